"""Every record of a domain has a density, and whole numbers are computed without wrapping round: else a study is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sfumato as sf
from sfumato.bounds import synthetic
from sfumato.errors import InvalidInput, InvalidModel
from sfumato.model import from_numpyro
from sfumato.model.base import on_joined
from sfumato.model.support import trial_records
from sfumato.model.trials import as_model_input, check_densities
from sfumato.model.whole import check_whole
from sfumato.study.target import Study
from sfumato.vault.engine import LocalEngine
from sfumato.vault.queries.vector import PilotSum
from sfumato.vault.records import load


def observing(make):
    """A model of one column y, observed under a distribution with one parameter."""

    def model(y):
        b = numpyro.sample("b", dist.Normal(0, 1))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("outcome", make(b), obs=y)

    return model


REACHING_OUT = {
    "exponential": (lambda b: dist.Exponential(jnp.exp(b)), sf.Interval(0, 50), "y = 0, which Interval(0, 50)", "(0.05, 50)"),
    "half-normal": (lambda b: dist.HalfNormal(jnp.exp(b)), sf.Interval(-1, 5), "y = -1", "sf.Interval(0.02, 5)"),
    "log-normal": (lambda b: dist.LogNormal(b, 1.0), sf.Interval(0, 50), "y = 0", "add a small constant"),
    "beta": (lambda b: dist.Beta(jnp.exp(b), 2.0), sf.Interval(0, 1), "y = ", "sf.Interval(0.001, 0.999)"),
    "poisson": (lambda b: dist.Poisson(jnp.exp(b)), sf.Integers(-3, 9), "y = -3", "sf.Integers(0, 9)"),
    "binomial": (lambda b: dist.Binomial(5, logits=b), sf.Integers(0, 7), "y = 7", "sf.Integers(0, 5)"),
    "bernoulli": (lambda b: dist.Bernoulli(logits=b), sf.Interval(0, 1), "y = 0.", "sf.Integers(0, 1)"),
    "categorical": (lambda b: dist.Categorical(logits=jnp.stack([b, -b])), sf.Categories(3), "y = 2", "inside the support"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REACHING_OUT)
def test_a_domain_that_reaches_outside_a_support_is_refused_with_site_value_and_cure(kind):
    make, domain, value, cure = REACHING_OUT[kind]
    with pytest.raises(InvalidModel, match="must have a density") as caught:
        from_numpyro(observing(make), {"y": domain})
    assert caught.value.site == "outcome"
    assert kind.replace("-", "") in str(caught.value).lower()
    assert value in str(caught.value)
    assert cure in str(caught.value)


@pytest.mark.parametrize(
    ("make", "domain"),
    [
        (lambda b: dist.Exponential(jnp.exp(b)), sf.Interval(0.05, 50)),
        (lambda b: dist.Beta(jnp.exp(b), 2.0), sf.Interval(0.001, 0.999)),
        (lambda b: dist.Poisson(jnp.exp(b)), sf.Integers(0, 9)),
        (lambda b: dist.TruncatedNormal(b, 1.0, low=0.0), sf.Interval(0, 9)),  # has a density at its edge
        (
            lambda b: dist.Poisson(jnp.exp(300.0 * b)),
            sf.Integers(0, 9),
        ),  # far out its rate overflows: bounds know of that
        (lambda b: dist.HalfNormal(jnp.exp(b)).mask(False), sf.Interval(0, 9)),  # masked records add nothing
    ],
)
def test_a_domain_inside_the_support_is_taken(make, domain):
    from_numpyro(observing(make), {"y": domain})


def test_a_domain_is_judged_by_the_support_also_where_numpyro_does_not_look():
    with numpyro.validation_enabled(False), pytest.raises(InvalidModel, match="Exponential at site 'outcome' has none"):
        from_numpyro(observing(lambda b: dist.Exponential(jnp.exp(b) + 0.5)), {"y": sf.Interval(-1, 50)})


def successes(total):
    def model(k, m):
        b = numpyro.sample("b", dist.Normal(0, 1))
        with numpyro.plate("people", k.shape[0]):
            numpyro.sample("outcome", dist.Binomial(total(k, m), logits=b), obs=k)

    return model


def test_columns_that_do_not_go_together_are_named_and_the_way_out_is_one():
    domain = {"k": sf.Integers(0, 10), "m": sf.Integers(1, 20)}
    with pytest.raises(InvalidModel, match="k = 10 and m = 1.*at_most=") as caught:
        from_numpyro(successes(lambda k, m: m), domain)
    assert caught.value.site == "outcome"
    from_numpyro(successes(lambda k, m: m), domain | {"m": sf.Integers(10, 20)})
    mended = successes(lambda k, m: jnp.maximum(m, k))
    plan = sf.plan(mended, n=20_000, domain=domain, epsilon=2.0, delta=1e-6, kernel="random-walk")
    assert plan.forecast_ess > 1  # trials in the record: made-up successes are drawn by NumPyro, which wants 64 bits


def test_a_column_that_never_exceeds_another_is_declared_so_and_drawn_so():
    domain = {"k": sf.Integers(0, 10, at_most="m"), "m": sf.Integers(1, 20)}
    model = from_numpyro(successes(lambda k, m: m), domain)
    assert (
        sf.plan(
            successes(lambda k, m: m), n=20_000, domain=domain, epsilon=2.0, delta=1e-6, kernel="guided"
        ).forecast_ess
        > 1
    )
    with jax.enable_x64(True):
        made_up = synthetic.uniform(model, domain, np.array([0.4]), 512)
        above = model.log_likelihood(jnp.array([0.4]), {"k": jnp.asarray(9), "m": jnp.asarray(4)})
        assert float(above) == float(model.log_likelihood(jnp.array([0.4]), {"k": jnp.asarray(4), "m": jnp.asarray(4)}))
        small = made_up["m"] < 5
        assert np.all(made_up["k"] <= made_up["m"]) and 0.4 < np.mean(made_up["k"][small] / made_up["m"][small]) < 0.8
        check_densities(on_joined(model, domain), domain)


def test_a_model_that_came_as_such_is_judged_by_its_log_likelihood():
    made = from_numpyro(observing(lambda b: dist.LogNormal(b, 1.0)), {"y": sf.Interval(0.1, 5)})
    with pytest.raises(InvalidModel, match="y = 0"):
        sf.plan(made, n=1000, domain={"y": sf.Interval(0, 5)}, epsilon=1.0, delta=1e-6)
    check_densities(made, {"y": sf.Interval(0.1, 9)})


def test_every_category_is_an_extreme_and_among_the_records_tried():
    rng = np.random.default_rng(0)
    assert set(sf.Categories(5).extremes(rng, 200)) == {0, 1, 2, 3, 4}
    assert set(trial_records({"g": sf.Categories(["a", "b", "c"])})["g"]) == {0, 1, 2}


# -- whole numbers ------------------------------------------------------------------------------------------------------


def growing(term):
    def model(x, y):
        b = numpyro.sample("b", dist.Normal(0, 1))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("outcome", dist.Normal(b * term(x), 1.0), obs=y)

    return model


LARGE = {"x": sf.Integers(0, 60_000), "y": sf.Interval(-3, 3)}


def test_the_square_of_60_000_does_not_wrap_round_in_vault_and_made_up_records():
    """In 32 bits it is -694 967 296: the gradient that the vault sums had the wrong sign."""
    model = from_numpyro(growing(lambda x: x**2 * 1e-9), LARGE)
    records = load({"x": np.array([60_000, 60_000]), "y": np.array([1.0, 1.0])}, LARGE)
    assert records.columns["x"].dtype == np.int32  # stored narrow
    assert as_model_input(LARGE["x"], np.array([6e4])).dtype == np.int64
    gamma = 2.0**-30
    query = PilotSum("gradient", np.zeros(1), np.eye(1), np.zeros(1), 1e3, gamma)
    found = LocalEngine(records, Study(model, LARGE, None)).sum(query)
    np.testing.assert_allclose(found * gamma, [2 * 3.6], rtol=1e-6)


def test_whole_columns_beyond_32_bits_are_taken_and_beyond_2_to_the_53_refused():
    domain = {"cents": sf.Integers(0, 10**12)}
    records = load({"cents": np.array([10**12, 7])}, domain)
    assert records.columns["cents"].tolist() == [10**12, 7]
    with pytest.raises(InvalidInput, match="at most 2\\^53"):
        sf.Integers(0, 10**16)


@pytest.mark.parametrize(
    ("term", "operation"),
    [
        (lambda x: x**4 * 1e-19, "'integer_pow' of 'x' reaches 1.3e\\+19, which int64"),
        (lambda x: x.astype(jnp.int32) ** 2 * 1e-9, "'integer_pow' of 'x' reaches 3.6e\\+09, which int32"),
        (lambda x: jax.jit(lambda v: v * v * v * v)(x) * 1e-19, "'mul' of 'x'"),
        (lambda x: (x.astype(jnp.int16) + 1) * 1.0, "'convert_element_type' of 'x' reaches 6e\\+04, which int16"),
    ],
)
def test_whole_numbers_that_could_still_wrap_round_are_refused(term, operation):
    with pytest.raises(InvalidModel, match=operation):
        check_whole(from_numpyro(growing(term), LARGE), LARGE)


@pytest.mark.parametrize("term", [lambda x: (x * 1.0) ** 4, lambda x: jnp.where(x > 5, x - 5, -x) * x * 1e-9])
def test_whole_numbers_that_stay_in_their_type_are_taken(term):
    check_whole(from_numpyro(growing(term), LARGE), LARGE)
