"""Each primitive's rule against sampling: small programs of a parameter and a record, one primitive at a time."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.scipy import special
from sensitivity_zoo import draw

from sfumato.bounds import bounds_for
from sfumato.bounds.elementwise import FUNCTIONS, JUMPS, integer_power, real_power
from sfumato.bounds.idioms import softplus_of_pytensor, steps
from sfumato.bounds.interval import Interval as Ends
from sfumato.domain import Ball, Box, Categories, Domain, Interval
from sfumato.errors import Unsupported
from sfumato.model import Model

RUNS = settings(max_examples=15, deadline=None, derandomize=True)


def bare(log_likelihood: Callable[..., Any], domain: dict[str, Domain]) -> Model:
    """A model of three parameters that is its log-likelihood and nothing else."""
    return Model(
        sites=(),
        log_prior=lambda theta: jnp.zeros(()),
        log_likelihood=log_likelihood,
        constrain=lambda theta: {"theta": theta},
        unconstrain=lambda values: values["theta"],
        sample_prior=lambda key: jnp.zeros(3),
        columns=tuple(domain),
    )


class Three(Model):
    """A bare model with a fixed number of parameters."""

    @property
    def dim(self) -> int:
        return 3


def certified(log_likelihood: Callable[..., Any], domain: dict[str, Domain]) -> Any:
    model = Three(**{f: getattr(bare(log_likelihood, domain), f) for f in Model.__dataclass_fields__})
    return bounds_for(model, domain, "certify")


def hasty(function: Callable[..., Any]) -> Any:
    """Compile for a few runs: most of the time of these tests is compilation."""
    theta = jax.ShapeDtypeStruct((3,), jnp.float64)
    return jax.jit(function).lower(theta, theta).compile(compiler_options={"xla_backend_optimization_level": 0})


# -- functions of one number ------------------------------------------------------------------------------------------

PLAIN: dict[str, tuple[float, float]] = {
    **dict.fromkeys(FUNCTIONS, (-4, 4)),
    **dict.fromkeys(("log", "sqrt", "cbrt", "rsqrt"), (0.01, 9)),
    **dict.fromkeys(("lgamma", "digamma"), (0.05, 9)),
    **dict.fromkeys(("logistic", "softplus"), (-9, 9)),
    **dict.fromkeys(("ndtr", "log_ndtr"), (-6, 6)),
    "log1p": (-0.99, 9),
    "erf_inv": (-0.99, 0.99),
}
"""Where each function is looked at."""
UNIT = st.floats(0, 1)


def contains(function: Any, low: float, high: float) -> None:
    with jax.enable_x64(True):
        x = jnp.linspace(low, high, 41)
        y, ends = function.exact(x), Ends(x[0], x[-1])
        image, slope = function.image(ends), function.slope(ends)
        slack = 1e-9 * (1 + jnp.max(jnp.abs(y)))
        assert jnp.all(y >= image.lo - slack) and jnp.all(y <= image.hi + slack)
        if high - low > 1e-3:
            quotient = (y[:, None] - y) / jnp.where(x[:, None] == x, 1.0, x[:, None] - x)
            quotient = quotient[~jnp.eye(41, dtype=bool)]
            slack = 1e-6 * (1 + jnp.max(jnp.abs(quotient)))
            assert jnp.all(quotient >= slope.lo - slack) and jnp.all(quotient <= slope.hi + slack)


@pytest.mark.parametrize("name", PLAIN)
@RUNS
@given(a=UNIT, b=UNIT)
def test_image_and_slope_contain_samples(name: str, a: float, b: float) -> None:
    low, high = PLAIN[name]
    ends = sorted((low + a * (high - low), low + b * (high - low)))
    contains(FUNCTIONS[name], *ends)


@pytest.mark.parametrize("exponent", [-3, -2, -1, 0, 1, 2, 3, 4, 5, 0.5, 1.7, -0.5])
@RUNS
@given(a=UNIT, b=UNIT)
def test_powers_contain_samples(exponent: float, a: float, b: float) -> None:
    low, high = (-3.0, 3.0) if exponent >= 0 and float(exponent).is_integer() else (0.1, 3.0)
    ends = sorted((low + a * (high - low), low + b * (high - low)))
    contains(real_power(exponent), *ends)


def test_a_power_across_zero_has_no_bound() -> None:
    with jax.enable_x64(True):
        image = integer_power(-1).image(Ends(jnp.asarray(-1.0), jnp.asarray(1.0)))
        assert image.lo == -jnp.inf and image.hi == jnp.inf


@pytest.mark.parametrize("name", JUMPS)
@RUNS
@given(a=st.floats(-3, 3), b=st.floats(-3, 3))
def test_steps_contain_samples(name: str, a: float, b: float) -> None:
    with jax.enable_x64(True):
        x = jnp.clip(jnp.linspace(min(a, b), max(a, b), 41), min(a, b), max(a, b))
        image, y = JUMPS[name].image(Ends(x[0], x[-1])), JUMPS[name].exact(x)
        assert jnp.all(y >= image.lo) and jnp.all(y <= image.hi)


@pytest.mark.parametrize("way", lax.RoundingMethod)
def test_rounding_contains_both_neighbours_of_a_half(way: lax.RoundingMethod) -> None:
    with jax.enable_x64(True):
        for half in (-2.5, -1.5, 0.5, 1.5, 2.5):
            image, x = JUMPS["round"].image(Ends(jnp.asarray(half), jnp.asarray(half))), lax.round(half, way)
            assert image.lo <= x <= image.hi


# -- programs ---------------------------------------------------------------------------------------------------------

BOX = {"v": Interval(0.2, 1.5), "x": Box(-1, 1, shape=(3,))}
GROUPS = {**BOX, "k": Categories(3)}


def lower(t: Any) -> Any:
    return jnp.array([[1.5, 0.0, 0.0], [1.0, 2.0, 0.0], [-0.5, 0.3, 1.0]]) * jnp.exp(0.3 * t)[:, None]


def eta(t: Any, r: Any) -> Any:
    return r["x"] @ t


PROGRAMS: dict[str, tuple[Callable[..., Any], dict[str, Domain]]] = {
    "add, sub, neg": (lambda t, r: -(t[0] * r["v"]) + t[1] - jnp.exp(eta(t, r)), BOX),
    "mul of two parameters' lines": (lambda t, r: (t[0] * r["v"] + t[1]) * eta(t, r), BOX),
    "div by a line": (lambda t, r: t[0] / (4.0 + eta(jnp.tanh(t), r)), BOX),
    "div of lines": (lambda t, r: eta(t, r) / (5.0 + jnp.sin(t[0]) * r["v"]), BOX),
    "column times line": (lambda t, r: jnp.tanh(r["v"] * eta(t, r) + t[0]), BOX),
    "a column squared times a parameter": (lambda t, r: jnp.exp(t[0] * r["v"] * r["v"] + t[1] * r["v"]), BOX),
    "max, min": (lambda t, r: jnp.maximum(eta(t, r), t[0] * r["v"]) - jnp.minimum(eta(t, r), 0.1), BOX),
    "clamp": (lambda t, r: lax.clamp(-0.3, eta(t, r), 0.4), BOX),
    "select by record": (lambda t, r: jnp.where(r["v"] > 0.7, t[0] * r["v"], jnp.exp(eta(t, r))), BOX),
    "select by parameter": (lambda t, r: jnp.where(eta(t, r) > 0.1, t[0], t[1]), BOX),
    "select by both, and or not xor": (
        lambda t, r: jnp.where(((r["v"] > 1) | ~(t[0] < 0)) & ((t[1] > 0) ^ (r["v"] < 0.5)), eta(t, r), 0.0),
        BOX,
    ),
    "sign and step of a line": (lambda t, r: jnp.sign(eta(t, r)) + jnp.floor(2 * eta(t, r)), BOX),
    "ge, le, eq, ne as numbers": (
        lambda t, r: t[0] * ((r["v"] >= 0.5) + (r["v"] <= 0.7) + 1.0 * (r["k"] == 1) + (r["k"] != 2)),
        GROUPS,
    ),
    "any, all, isfinite": (
        lambda t, r: jnp.where(jnp.any(r["x"] > 0.5) | ~jnp.all(jnp.isfinite(r["x"])), eta(t, r), t[0]),
        BOX,
    ),
    "integer_pow, pow, sqrt": (
        lambda t, r: eta(t, r) ** 3 + (r["v"] * jnp.exp(t[0])) ** 1.5 + jnp.sqrt(1 + jnp.exp(eta(t, r))),
        BOX,
    ),
    "pow with a parameter": (lambda t, r: r["v"] ** t[0] + jnp.exp(t[1]) ** r["v"], BOX),
    "logs of exponentials": (lambda t, r: jnp.log(jnp.exp(t[0]) * r["v"] / jnp.exp(eta(t, r))) * r["v"], BOX),
    "reduce_max, reduce_min": (lambda t, r: jnp.max(r["x"] * t) - jnp.min(r["x"] + t), BOX),
    "reduce_prod, cumsum": (lambda t, r: jnp.prod(2 + 0.3 * r["x"] * t) + jnp.cumsum(jnp.tanh(r["x"] * t))[1], BOX),
    "dot_general of two": (lambda t, r: jnp.tanh(jnp.outer(r["x"], t) @ jnp.tanh(r["x"] * t)).sum(), BOX),
    "shapes": (
        lambda t, r: jnp.tanh(
            jnp.concatenate([r["x"] * t, jnp.stack([t[0] * r["v"], t[1]])])[::-1].reshape(5, 1).T[0, 1:4]
        ).sum(),
        BOX,
    ),
    "pad, roll, broadcast": (
        lambda t, r: (jnp.pad(jnp.exp(r["x"] * t), 1)[None, :] * jnp.ones((2, 1)))[1] @ jnp.arange(5.0),
        BOX,
    ),
    "gather a parameter": (lambda t, r: jnp.exp(t[r["k"]] * r["v"]) + t[r["k"]], GROUPS),
    "gather a line": (lambda t, r: (r["x"] * t)[r["k"]] + jnp.tanh(r["x"] * t)[r["k"]], GROUPS),
    "gather by a pair of which one is fixed": (
        lambda t, r: (
            jnp.tanh(jnp.outer(t, r["x"]))[jnp.array([1]), r["k"][None]][0]
            + jnp.outer(t, t)[r["k"][None], jnp.array([2])][0]
        ),
        GROUPS,
    ),
    "dynamic_slice": (
        lambda t, r: lax.dynamic_index_in_dim(jnp.exp(r["x"] * t), r["k"], keepdims=False) * r["v"],
        GROUPS,
    ),
    "one-hot, and a choice between parameters": (
        lambda t, r: (
            jnp.exp(jax.nn.one_hot(r["k"], 3) @ t * r["v"]) + jnp.where(r["k"] == 1, t[0], t[1] * r["v"]) * r["v"]
        ),
        GROUPS,
    ),
    "indices that differ by a shift or a factor": (
        lambda t, r: t[r["k"]] * r["v"] + jnp.exp(t[2 - r["k"]]) + jnp.repeat(t, 2)[2 * r["k"]] ** 2,
        GROUPS,
    ),
    "triangular_solve": (
        lambda t, r: jnp.sum(lax.linalg.triangular_solve(lower(t), r["x"][:, None], left_side=True, lower=True) ** 2),
        BOX,
    ),
    "triangular_solve from the right, transposed": (
        lambda t, r: jnp.sum(
            lax.linalg.triangular_solve(lower(t), jnp.tanh(r["x"] * t)[None], lower=True, transpose_a=True)
        ),
        BOX,
    ),
    "multiples and shifts of one line": (
        lambda t, r: jax.nn.softplus(eta(t, r)) + jax.nn.softplus(2 - eta(t, r)) * jnp.tanh(eta(t, r) / 3 + 1),
        BOX,
    ),
    "remainder and casts": (lambda t, r: t[0] * (r["k"] % 2) + jnp.exp(t[1] * r["k"].astype(float)), GROUPS),
    "waves of columns": (lambda t, r: t[0] * jnp.sin(3 * r["v"]) + jnp.exp(t[1] * jnp.cos(r["x"][0])), BOX),
    "rests of columns": (lambda t, r: t[0] * (r["v"] % 0.4) + jnp.tanh(t[1] * jnp.fmod(r["x"][1], 0.3)), BOX),
    "whole parts of columns": (
        lambda t, r: t[0] * (4 * r["v"]).astype(int) + jnp.exp(t[1] * jnp.floor(3 * r["x"][0])) * jnp.round(r["v"]),
        BOX,
    ),
    "logsumexp": (lambda t, r: special.logsumexp(r["x"] * t + t), BOX),
    "log_softmax": (lambda t, r: jax.nn.log_softmax(r["x"] * t)[0], BOX),
    "logaddexp, softplus": (lambda t, r: jnp.logaddexp(eta(t, r), t[0] * r["v"]) + jax.nn.softplus(eta(t, r)), BOX),
    "softplus of PyTensor": (
        lambda t, r: softplus_of_pytensor(15 * eta(t, r)) + softplus_of_pytensor(t * r["x"])[1],
        BOX,
    ),
    "xlogy, xlog1py": (
        lambda t, r: special.xlogy(r["v"], jnp.exp(eta(t, r)) + 1) + special.xlog1py(t[0], r["v"] * jnp.exp(t[1])),
        BOX,
    ),
    "ndtr, log_ndtr": (lambda t, r: special.ndtr(eta(t, r)) + special.log_ndtr(eta(t, r) + t[0]), BOX),
    "stop_gradient is no excuse": (lambda t, r: lax.stop_gradient(jnp.exp(eta(t, r))), BOX),
    "ball": (lambda t, r: jax.nn.softplus(r["b"] @ t) * (1 + r["v"]), {"b": Ball(2.0, 3), "v": Interval(0, 1)}),
    "jit and vmap inside": (lambda t, r: jnp.sum(jax.vmap(jax.jit(lambda a: jnp.exp(a * t[0])))(r["x"])), BOX),
}
NUMBERS = st.floats(-1.5, 1.5)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_stay_inside(name: str) -> None:
    program, domain = PROGRAMS[name]
    bounds = certified(program, domain)
    with jax.enable_x64(True):
        records = draw(domain, np.random.default_rng(5), 600)
        one = jax.vmap(program, in_axes=(None, 0))
        evaluate = hasty(lambda a, b: (one(b, records) - one(a, records), *bounds.range(a, b)))

        @settings(max_examples=15, deadline=None, derandomize=True)
        @given(theta=st.tuples(NUMBERS, NUMBERS, NUMBERS), step=st.tuples(NUMBERS, NUMBERS, NUMBERS), s=UNIT)
        def inside(theta: Any, step: Any, s: float) -> None:
            a = jnp.asarray(theta)
            f, lo, hi = evaluate(a, a + s**3 * jnp.asarray(step))
            slack = 1e-11 * (1 + jnp.max(jnp.abs(f)))
            assert not jnp.isnan(lo) and not jnp.isnan(hi)
            assert jnp.min(f) >= lo - slack and jnp.max(f) <= hi + slack

        inside()


# -- refusals ---------------------------------------------------------------------------------------------------------


def _cholesky(t: Any, r: Any) -> Any:
    return jnp.linalg.cholesky(jnp.eye(3) * jnp.exp(t[0]) + jnp.outer(r["x"], r["x"]))[2, 2]


REFUSED: dict[str, Callable[..., Any]] = {
    "cholesky": _cholesky,
    "sort": lambda t, r: jnp.sort(r["x"] * t)[0],
    "while": lambda t, r: lax.while_loop(lambda a: a < 3, lambda a: a + 1 + r["v"] * t[0] ** 2, r["v"]),
    "scan": lambda t, r: lax.scan(lambda c, a: (c * t[0] + a, None), 0.0, r["x"])[0],
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_primitive_without_a_rule_is_named(name: str) -> None:
    with pytest.raises(Unsupported, match=name) as caught:
        certified(REFUSED[name], BOX)
    assert caught.value.primitive == name


@pytest.mark.parametrize("pair", [lambda k: (k, k), lambda k: (3 + 0 * k, k)], ids=["two columns", "beyond the table"])
def test_a_pair_of_indices_is_refused_unless_all_but_one_are_known(pair: Any) -> None:
    with pytest.raises(Unsupported, match="more than one index"):
        certified(lambda t, r: lax.gather(jnp.outer(t, r["x"]), jnp.stack(pair(r["k"])), ONE_ENTRY, (1, 1)), GROUPS)


ONE_ENTRY = lax.GatherDimensionNumbers(offset_dims=(), collapsed_slice_dims=(0, 1), start_index_map=(0, 1))


def test_pytensors_softplus_is_put_back_together_and_nothing_like_it() -> None:
    def other(x: Any) -> Any:
        return jnp.where(
            x < -37.0,
            jnp.exp(x),
            jnp.where(x < 18.0, jnp.log1p(jnp.exp(x)), jnp.where(x < 33.4, x + jnp.exp(-x), x)),
        )

    for function, known in ((softplus_of_pytensor, True), (other, False)):
        names = [step.name for step in steps(jax.make_jaxpr(function)(jnp.zeros(3)).jaxpr)]
        assert ("softplus" in names) == known


def test_the_same_primitives_are_fine_on_parameters_alone() -> None:
    bounds = certified(lambda t, r: jnp.sort(t)[0] * r["v"], BOX)
    with jax.enable_x64(True):
        lo, hi = bounds.range(jnp.array([1.0, 2.0, 3.0]), jnp.array([2.0, 2.0, 3.0]))
        np.testing.assert_allclose([lo, hi], [0.2, 1.5], rtol=1e-9)


def test_a_name_alone_does_not_make_a_known_function() -> None:
    @jax.custom_jvp
    def xlogy(x: Any, y: Any) -> Any:
        return x * y**2

    xlogy.defjvps(lambda g, ans, x, y: g, lambda g, ans, x, y: g)
    program = lambda t, r: xlogy(r["v"], t[0] * r["v"])  # noqa: E731
    bounds = certified(program, BOX)
    with jax.enable_x64(True):
        a, b = jnp.array([1.0, 0.0, 0.0]), jnp.array([1.5, 0.0, 0.0])
        lo, hi = bounds.range(a, b)
        truth = 1.5**3 * (1.5**2 - 1)
        assert lo <= 0.2**3 * (1.5**2 - 1) and truth <= hi <= 1.3 * truth
