"""Every vector is cut to a body of known diameter, and what is cut is the model's own gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from test_reference_bounds import CASES

import sfumato as sf
from sfumato.bounds import interval as iv
from sfumato.bounds.reference import Reference
from sfumato.bounds.values import Scope
from sfumato.errors import Unsupported
from sfumato.model import from_numpyro
from sfumato.privacy.budget import QUANTA_PER_UNIT, cost_quanta
from sfumato.tools.quick_jit import quick_jit
from sfumato.vault.queries.vector import score_sum

# -- the cut ----------------------------------------------------------------------------------------------------------


def anything(rng, shape):
    """Numbers of every size, and what is not a number at all."""
    out = rng.normal(size=shape) * 10.0 ** rng.integers(-3, 200, size=shape)
    odd = rng.random(shape)
    return np.select(
        [odd < 0.1, odd < 0.2, odd < 0.3, odd < 0.6], [np.nan, np.inf, -np.inf, rng.normal(size=shape)], out
    )


def furthest(integers, gamma):
    """Largest distance between two rows, in whole numbers: the vault's own."""
    apart = (integers[:, None] - integers[None]).astype(object)
    return gamma * float(np.max((apart**2).sum(-1))) ** 0.5


@pytest.mark.parametrize("case", ["logistic-ball-5", "logistic-box-5", "normal-ball", "quadratic", "coin"])
def test_whatever_a_record_gives_two_cut_vectors_are_no_further_apart_than_the_charge(case):
    """Balls, boxes, two predictors, none that looks at a record: slopes and numbers of any size, as integers on the lattice."""
    function, domain, *_ = CASES[case]
    near, rng, gamma = Reference(from_numpyro(function, domain), domain), np.random.default_rng(1), 2.0**-38
    region, bases = near.remainder.region, len(near.remainder.uses)
    dim = near.remainder.program.dim
    count = 400
    with jax.enable_x64(True):
        root = np.linalg.cholesky(np.cov(rng.normal(size=(dim, 3 * dim + 3))).reshape(dim, dim))
        proven = near.at(rng.normal(size=dim) * 0.4, root)
        scores, body = score_sum(proven, root, gamma, 1), proven.body
        # A half of them reach for the ends of every range: there the diameter is attained.
        slopes = np.where(np.arange(count)[:, None] % 2 == 0, 1e9, 1.0) * anything(rng, (count, bases))
        atoms = anything(rng, (count, region.size))
        cut = quick_jit(jax.vmap(lambda s, a: body.vector(region, s, a)))
        vectors = np.asarray(cut(jnp.asarray(slopes), jnp.asarray(atoms))) @ root
        nothing = cut(jnp.full((2, bases), jnp.nan), jnp.full((2, region.size), jnp.nan))
    assert np.all(np.isfinite(vectors)) and np.all(np.isfinite(nothing)) and np.array_equal(nothing[0], nothing[1])
    integers = np.clip(np.round(vectors / gamma).astype(np.int64), *scores.box[:2])
    charged = (cost_quanta(scores.moved**2) / QUANTA_PER_UNIT) ** 0.5
    assert 0.5 * charged < furthest(integers, gamma) <= charged


# -- what is cut ------------------------------------------------------------------------------------------------------


def logistic_of(column):
    """A logistic regression on a function of a column."""

    def model(x, y):
        a, b = (numpyro.sample(name, dist.Normal(0.0, 1.0)) for name in "ab")
        with numpyro.plate("records", y.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=a + b * column(x)), obs=y)

    return model


REAL, WHOLE = sf.Interval(-2.5, 2.5), sf.Integers(-20, 20)
ODD = {
    "sin": (lambda x: jnp.sin(3 * x), REAL),
    "cos": (lambda x: jnp.cos(x) ** 2, REAL),
    "rem": (lambda x: x % 1.0, REAL),
    "rem of positive numbers": (lambda x: x % 1.0, sf.Interval(0.0, 2.5)),
    "rem of whole numbers": (lambda x: x % 7, WHOLE),
    "floor": (jnp.floor, REAL),
    "convert_element_type": (lambda x: x.astype(int), REAL),
    "round": (jax.lax.round, REAL),
    "where": (lambda x: jnp.where(jnp.sin(x) > 0.3, x, x**2), REAL),
}


@pytest.mark.parametrize("case", ODD)
def test_functions_of_a_record_are_evaluated_as_the_program_evaluates_them(case):
    function, column = ODD[case]
    domain, rng = {"x": column, "y": sf.Binary()}, np.random.default_rng(2)
    model = from_numpyro(logistic_of(function), domain)
    near = Reference(model, domain)
    near.check()
    table = {"x": column.sample(rng, 300).astype(int if column.discrete else float), "y": rng.integers(0, 2, 300)}
    theta = rng.normal(size=2)
    with jax.enable_x64(True):
        body = near.at(theta, np.eye(2)).body
        ours = quick_jit(jax.vmap(near.vector, (None, 0)))(body, {k: jnp.asarray(v) for k, v in table.items()})
        theirs = quick_jit(jax.vmap(jax.grad(model.log_likelihood), (None, 0)))(jnp.asarray(theta), table)
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)
    assert np.ptp(np.asarray(theirs)[:, 1]) > 0.3


@pytest.mark.parametrize("column", [lambda x: (100 * x).astype(jnp.int8), lambda x: (x.astype(int) * 7) // 2])
def test_whole_numbers_that_wrap_or_drop_a_rest_are_refused(column):
    domain = {"x": REAL, "y": sf.Binary()}
    with pytest.raises(Unsupported, match="second derivative"):
        Reference(from_numpyro(logistic_of(column), domain), domain).check()


def middle(self, name, image, exact, *values):
    """As it was: a function of the record is the middle of its interval."""
    return RECORD_ONLY(self, name, image, lambda *x: sum(image(*map(iv.point, x))) / 2, *values)


RECORD_ONLY = Scope.record_only


def test_a_vector_that_is_not_the_models_gradient_is_found_out_before_anything_is_asked(monkeypatch):
    domain = {"x": REAL, "y": sf.Binary()}
    model = from_numpyro(logistic_of(ODD["sin"][0]), domain)
    monkeypatch.setattr(Scope, "record_only", middle)
    near = Reference(model, domain)
    with pytest.raises(Unsupported, match="made-up records it is not.*'sin'") as caught:
        near.check()
    assert caught.value.primitive == "sin" and not near.possible  # so that "auto" takes a walk


def test_a_range_that_does_not_hold_a_function_of_the_record_is_found_out(monkeypatch):
    """Half of the numbers of sin are cut off then, in both queries alike: private, and not exact."""
    domain = {"x": REAL, "y": sf.Binary()}
    near = Reference(from_numpyro(logistic_of(ODD["sin"][0]), domain), domain)
    region = near.remainder.region
    region.known[-1] = (0.0, region.known[-1][1])
    assert not near.possible


def test_records_on_a_kink_of_the_formula_are_no_reason_to_refuse():
    """A logit of exactly zero, for every parameter: NumPyro's formula changes pieces there, and the gradient is zero."""

    def model(x, y):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0))
        with numpyro.plate("records", y.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=beta * x), obs=y)

    domain = {"x": sf.Binary(), "y": sf.Binary()}
    assert Reference(from_numpyro(model, domain), domain).possible
