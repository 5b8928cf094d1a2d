"""What is proven near a reference point holds for every record tried, and is close to what records attain."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sfumato as sf
from sfumato.bounds.elementwise import FUNCTIONS
from sfumato.bounds.interval import Interval
from sfumato.bounds.reference import Reference
from sfumato.errors import InvalidInput
from sfumato.model import from_numpyro
from sfumato.model.trials import as_model_input
from sfumato.study.target import make_study
from sfumato.tools.quick_jit import quick_jit


def slopes(x, scale=1.0):
    return numpyro.sample("beta", dist.Normal(0.0, scale).expand([x.shape[1]]).to_event(1))


def logistic(x, y):
    beta = slopes(x, 2.0)
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


def poisson(x, y):
    intercept, beta = numpyro.sample("a", dist.Normal(0.0, 1.0)), slopes(x)
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(intercept + x @ beta)), obs=y)


def normal(x, y):
    beta, scale = slopes(x), numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Normal(x @ beta, scale), obs=y)


def student(x, y):
    beta, scale = slopes(x), numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.StudentT(4.0, x @ beta, scale), obs=y)


def probit(x, y):
    beta = slopes(x)
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(probs=jax.scipy.stats.norm.cdf(x @ beta)), obs=y)


def quadratic(x, y):
    """A function of the record inside the model, and two predictors that both look at it."""
    a, b = (numpyro.sample(name, dist.Normal(0.0, 1.0)) for name in "ab")
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Normal(a * x[:, 0] + b * x[:, 0] ** 2, jnp.exp(0.3 * a * x[:, 1])), obs=y)


def waves(x, y):
    """Functions of a column whose interval is wide even around a number: what is proven must hold for what they are."""
    a, b, c = (numpyro.sample(name, dist.Normal(0.0, 1.0)) for name in "abc")
    with numpyro.plate("records", y.shape[0]):
        logits = a * jnp.sin(3 * x[:, 0]) + b * (x[:, 1] % 0.75) + c * (3 * x[:, 0]).astype(int)
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def coin(y):
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(probs=p), obs=y)


BALL, BOX = sf.Ball(1.0, dim=5), sf.Box(-1.0, 1.0, shape=(5,))
# model, domain, how much wider than what sampled records attain the scalar's range and the diameter may be, on average
CASES = {
    "logistic-ball-2": (logistic, {"x": sf.Ball(1.0, dim=2), "y": sf.Binary()}, 1.2, 1.03),
    "logistic-ball-5": (logistic, {"x": BALL, "y": sf.Binary()}, 1.4, 1.1),
    "logistic-box-5": (logistic, {"x": BOX, "y": sf.Binary()}, 1.5, 1.03),
    "poisson-ball": (poisson, {"x": sf.Ball(1.0, dim=3), "y": sf.Integers(0, 8)}, 1.35, 1.1),
    "normal-ball": (normal, {"x": sf.Ball(1.0, dim=3), "y": sf.Interval(-3, 3)}, 2.0, 1.2),
    "student-ball": (student, {"x": sf.Ball(1.0, dim=3), "y": sf.Interval(-3, 3)}, 4.0, 1.25),
    "probit-box": (probit, {"x": sf.Box(-1.0, 1.0, shape=(2,)), "y": sf.Binary()}, 2.0, 1.2),
    "quadratic": (quadratic, {"x": sf.Box(-1.0, 1.0, shape=(2,)), "y": sf.Interval(-2, 2)}, 2.0, 4.0),
    "waves": (waves, {"x": sf.Box(-1.0, 1.0, shape=(2,)), "y": sf.Binary()}, 6.0, 2.5),
    "coin": (coin, {"y": sf.Binary()}, 1.1, 1.01),
}
PAIRS, RECORDS = 250, 4_000


@pytest.mark.parametrize("case", CASES)
def test_a_million_triples_stay_within_the_proven_ranges(case):
    """250 pairs times 4000 records; the pairs near and far from the reference point, the records inside and at corners."""
    function, domain, wide, wide_diameter = CASES[case]
    model = from_numpyro(function, domain)
    rng = np.random.default_rng(0)
    half = RECORDS // 2
    table = {
        name: np.concatenate([as_model_input(d, d.sample(rng, half)), as_model_input(d, d.extremes(rng, half))])
        for name, d in domain.items()
    }
    with jax.enable_x64(True):
        near = Reference(model, domain)
        centre = rng.normal(size=model.dim) * 0.4
        mixed = np.eye(model.dim) + 0.2 * rng.normal(size=(model.dim, model.dim))
        matrix = np.linalg.cholesky(0.02**2 * mixed @ mixed.T)
        proven = near.at(centre, matrix)
        spread = np.where(np.arange(PAIRS) % 5 == 0, 10.0, 1.0)[:, None]
        e, delta, lag = (spread * rng.normal(size=(PAIRS, model.dim)) @ matrix.T * s for s in (1.5, 0.5, 0.01))
        theta, theta_prop = centre + e, centre + e + delta

        # Every pair forth and back, in one compiled loop.
        pairs = [np.concatenate(both) for both in ((theta, theta_prop), (theta_prop, theta), (lag, -lag))]

        @jax.jit
        def check(*pairs):
            likelihood = jax.vmap(model.log_likelihood, (None, 0))
            gradients = jax.vmap(jax.grad(model.log_likelihood), (None, 0))(jnp.asarray(centre), table)

            def one(row):
                a, b, w = row
                scalars = likelihood(b, table) - likelihood(a, table) - gradients @ (b - a - w)
                return *near.range(proven.anchor, a, b, w), scalars.min(), scalars.max()

            return gradients, jax.lax.map(one, pairs)

        gradients, found = check(*(jnp.asarray(v) for v in pairs))
    lo, hi, least, most = (np.asarray(v)[:PAIRS] for v in found)
    back = [np.asarray(v)[PAIRS:] for v in found[:2]]
    rounding = 1e-12
    assert np.all(np.isfinite(lo)) and np.all(np.isfinite(hi))
    assert np.all(least >= lo - rounding) and np.all(most <= hi + rounding)
    close = spread[:, 0] == 1.0
    assert np.median(((hi - lo) / (most - least))[close]) < wide
    # Swapping the pair negates and exchanges the ends: what is charged, and what is admissible, is symmetric.
    assert np.allclose(back[0], -hi, rtol=1e-12, atol=1e-15) and np.allclose(back[1], -lo, rtol=1e-12, atol=1e-15)
    whitened = np.asarray(gradients) @ matrix
    assert np.all(whitened >= proven.gradients.low) and np.all(whitened <= proven.gradients.high)
    apart = diameter(whitened)
    assert apart <= proven.gradients.diameter <= wide_diameter * apart


def diameter(points):
    """Largest distance found by walking from direction to direction: a lower bound."""
    rng, best = np.random.default_rng(0), 0.0
    for _ in range(50):
        direction = rng.normal(size=points.shape[1])
        for _ in range(10):
            along = points @ direction
            direction = points[along.argmax()] - points[along.argmin()]
            best = max(best, float(np.linalg.norm(direction)))
    return best


def test_the_bound_is_of_second_order():
    """Halve the step and the distance: the width falls to a quarter (the log ratio's own would fall to a half)."""
    function, domain, *_ = CASES["logistic-ball-5"]
    near = Reference(from_numpyro(function, domain), domain)
    with jax.enable_x64(True):
        centre, e, delta = np.random.default_rng(0).normal(size=(3, 5))
        anchor = near.at(centre * 0.3, np.eye(5)).anchor
        widths = []
        for size in (0.02, 0.01):
            a = jnp.asarray(centre * 0.3 + size * e)
            lo, hi = quick_jit(near.range)(anchor, a, a + size * delta, jnp.zeros(5))
            widths.append(float(hi - lo))
    assert widths[0] / widths[1] == pytest.approx(4.0, rel=0.05)


@pytest.mark.parametrize("name", sorted(name for name, f in FUNCTIONS.items() if f.curvature is not None))
def test_first_and_second_derivatives_of_every_function_are_bounded(name):
    """Bounds of g(L), for a number L in random intervals, against derivatives by JAX at points inside."""
    rng = np.random.default_rng(5)
    function = FUNCTIONS[name]
    g = function.exact
    positive = name in ("log", "sqrt", "rsqrt", "lgamma", "digamma")
    ends = np.sort(rng.normal(scale=2.0, size=(2, 200)), axis=0)
    ends = np.exp(ends) if positive else np.maximum(ends, -0.95) if name == "log1p" else ends
    with jax.enable_x64(True):
        value = Interval(jnp.asarray(ends[0]), jnp.asarray(ends[1]))
        bounds = [quick_jit(part)(value) for part in (function.image, function.slope, function.curvature)]
        inside = ends[0] + (ends[1] - ends[0]) * rng.random((50, 200))
        one, two = jax.grad(g), jax.grad(jax.grad(g))
        first, second = (np.asarray(quick_jit(jax.vmap(jax.vmap(f)))(jnp.asarray(inside))) for f in (one, two))
        values = np.asarray(quick_jit(g)(jnp.asarray(inside)))
    for bound, seen in zip(bounds, (values, first, second), strict=True):
        low, high = (np.asarray(end).reshape(-1) for end in bound)
        slack = 1e-9 * (1 + np.abs(seen))
        assert np.all(seen >= low - slack) and np.all(seen <= high + slack)


def laplace(y):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Laplace(m, 1.0), obs=y)


def test_a_kink_has_no_second_derivative_so_the_pair_is_not_asked():
    """|y - m| with y on both sides of m: the range is unbounded, never wrong."""
    domain = {"y": sf.Interval(-1, 1)}
    near = Reference(from_numpyro(laplace, domain), domain)
    with jax.enable_x64(True):
        anchor = near.at(np.full(1, 0.3), np.eye(1)).anchor
        lo, hi = quick_jit(near.range)(anchor, jnp.array([0.2]), jnp.array([0.4]), jnp.zeros(1))
    assert not np.isfinite(float(lo)) and not np.isfinite(float(hi))


def test_stated_bounds_are_not_enough():
    with pytest.raises(InvalidInput, match="follow from the model"):
        make_study(logistic, CASES["logistic-ball-5"][1], sf.Clip(bound=1.0), "langevin")


def collinear(x, y):
    a, b = (numpyro.sample(name, dist.Normal(0.0, 1.0)) for name in "ab")
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=(a + b) * x), obs=y)


def test_columns_that_nearly_cancel_in_the_gradient_are_charged_for_their_rounding():
    """Both parameters have the same gradient, and the columns of A are a billion times their difference: whoever may choose A."""
    domain = {"x": sf.Interval(-1, 1), "y": sf.Binary()}
    model = from_numpyro(collinear, domain)
    near, rng = Reference(model, domain), np.random.default_rng(0)
    large = np.array([1e9, 3e9])
    matrix = np.stack([large, -np.nextafter(large, np.inf)])
    x, y = rng.uniform(-1, 1, 2000), rng.integers(0, 2, 2000)
    with jax.enable_x64(True):
        proven = near.at(np.array([0.2, 0.1]), matrix).gradients
        one = jax.grad(model.log_likelihood)
        gradients = jax.vmap(lambda x, y: matrix.T @ one(jnp.array([0.2, 0.1]), {"x": x, "y": y}))(x, y)
    apart = np.asarray(gradients)[:, None] - np.asarray(gradients)
    spread = float(np.linalg.norm(apart, axis=-1).max())
    without = float(np.linalg.norm(proven.high - proven.low))  # of the exact gradients: they lie on a line
    assert without < spread <= proven.diameter
