"""Models of every supported kind, with bounded domains, and honest searches for the true width."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import ndtr

from sfumato.bounds import Bounds, bounds_for
from sfumato.domain import Ball, Binary, Box, Categories, Domain, Integers, Interval
from sfumato.model import Model, from_numpyro
from sfumato.tools.quick_jit import quick_jit

sample = numpyro.sample


def vector(name: str, size: int) -> Any:
    return sample(name, dist.Normal(0, 1).expand([size]).to_event(1))


def records(y: Any) -> Any:
    return numpyro.plate("records", y.shape[0])


def logit(x, y):
    beta, alpha = vector("beta", x.shape[-1]), sample("alpha", dist.Normal(0, 1))
    with records(y):
        sample("obs", dist.Bernoulli(logits=x @ beta + alpha), obs=y)


def poisson(x, y):
    beta, alpha = vector("beta", x.shape[-1]), sample("alpha", dist.Normal(0, 1))
    with records(y):
        sample("obs", dist.Poisson(jnp.exp(x @ beta + alpha)), obs=y)


def normal(x, y):
    beta, scale = vector("beta", x.shape[-1]), sample("scale", dist.HalfNormal(1))
    with records(y):
        sample("obs", dist.Normal(x @ beta, scale), obs=y)


def student(x, y):
    beta, scale, df = vector("beta", x.shape[-1]), sample("scale", dist.HalfNormal(1)), sample("df", dist.Gamma(2, 0.1))
    with records(y):
        sample("obs", dist.StudentT(df, x @ beta, scale), obs=y)


def gamma(x, y):
    beta, shape = vector("beta", x.shape[-1]), sample("shape", dist.Gamma(2, 1))
    with records(y):
        sample("obs", dist.Gamma(shape, shape / jnp.exp(x @ beta)), obs=y)


def softmax(x, y):
    beta = sample("beta", dist.Normal(0, 1).expand([x.shape[-1], 3]).to_event(2))
    with records(y):
        sample("obs", dist.Categorical(logits=x @ beta), obs=y)


def mixture(y):
    weights = sample("weights", dist.Dirichlet(jnp.ones(2)))
    locs, scales = vector("locs", 2), sample("scales", dist.HalfNormal(1).expand([2]).to_event(1))
    with records(y):
        sample("obs", dist.MixtureSameFamily(dist.Categorical(weights), dist.Normal(locs, scales)), obs=y)


def probit(x, y):
    beta = vector("beta", x.shape[-1])
    with records(y):
        sample("obs", dist.Bernoulli(probs=ndtr(x @ beta)), obs=y)


def interaction(x, y):
    beta = vector("beta", 4)
    first, second = x[:, 0], x[:, 1]
    with records(y):
        eta = beta[0] * first + beta[1] * second + beta[2] * first * second + beta[3] * first**2
        sample("obs", dist.Bernoulli(logits=eta), obs=y)


def hierarchical(x, group, y):
    centre, spread = sample("centre", dist.Normal(0, 1)), sample("spread", dist.HalfNormal(1))
    raw, beta = vector("raw", 4), vector("beta", x.shape[-1])
    with records(y):
        sample("obs", dist.Bernoulli(logits=(centre + spread * raw)[group] + x @ beta), obs=y)


def beta(y):
    a, b = sample("a", dist.Gamma(2, 1)), sample("b", dist.Gamma(2, 1))
    with records(y):
        sample("obs", dist.Beta(a, b), obs=y)


def negative_binomial(x, y):
    coefficients, size = vector("beta", x.shape[-1]), sample("size", dist.HalfNormal(1))
    with records(y):
        sample("obs", dist.NegativeBinomial2(jnp.exp(x @ coefficients), size), obs=y)


def exponential(x, y):
    coefficients = vector("beta", x.shape[-1])
    with records(y):
        sample("obs", dist.Exponential(jnp.exp(x @ coefficients)), obs=y)


def coin(y):
    p = sample("p", dist.Beta(1, 1))
    with records(y):
        sample("obs", dist.Bernoulli(p), obs=y)


def two_outcomes(x, y, t):
    coefficients, scale = vector("beta", x.shape[-1]), sample("scale", dist.HalfNormal(1))
    with records(y):
        sample("first", dist.Bernoulli(logits=x @ coefficients), obs=y)
        sample("second", dist.Normal(x @ coefficients, scale), obs=t)


def network(x, y):
    hidden, out = sample("hidden", dist.Normal(0, 1).expand([2, 3]).to_event(2)), vector("out", 3)
    with records(y):
        sample("obs", dist.Bernoulli(logits=jnp.tanh(x @ hidden) @ out), obs=y)


class Case(NamedTuple):
    name: str
    model: Callable[..., Any]
    domain: dict[str, Domain]
    limit: float | None = None  # largest allowed certified / brute-force width for small steps


def _box(d: int) -> Box:
    return Box(-1, 1, shape=(d,))


COUNTS, REAL, POSITIVE = Integers(0, 20), Interval(-2, 2), Interval(0.1, 4)
CASES = {
    case.name: case
    for case in (
        Case("logit-box-1", logit, {"x": _box(1), "y": Binary()}, 1.5),
        Case("logit-box-5", logit, {"x": _box(5), "y": Binary()}, 1.5),
        Case("logit-ball-1", logit, {"x": Ball(1.0, 1), "y": Binary()}, 1.5),
        Case("logit-ball-5", logit, {"x": Ball(1.0, 5), "y": Binary()}, 1.5),
        Case("poisson-box", poisson, {"x": _box(3), "y": COUNTS}, 1.5),
        Case("poisson-ball", poisson, {"x": Ball(1.0, 3), "y": COUNTS}, 1.5),
        Case("normal", normal, {"x": _box(3), "y": REAL}, 2.5),
        Case("student", student, {"x": _box(3), "y": REAL}, 2.5),
        Case("gamma", gamma, {"x": _box(3), "y": POSITIVE}, 2.5),
        Case("softmax", softmax, {"x": _box(3), "y": Categories(3)}, 2.5),
        Case("mixture", mixture, {"y": REAL}, 2.5),
        Case("probit", probit, {"x": _box(3), "y": Binary()}),
        Case("interaction", interaction, {"x": _box(2), "y": Binary()}),
        Case("hierarchical", hierarchical, {"x": _box(3), "group": Categories(4), "y": Binary()}),
        Case("beta", beta, {"y": Interval(0.02, 0.98)}),
        Case("negative-binomial", negative_binomial, {"x": _box(3), "y": COUNTS}),
        Case("exponential", exponential, {"x": _box(3), "y": POSITIVE}),
        Case("coin", coin, {"y": Binary()}),
        Case("two-outcomes", two_outcomes, {"x": _box(3), "y": Binary(), "t": REAL}),
        Case("network", network, {"x": _box(2), "y": Binary()}),
    )
}


class Built(NamedTuple):
    model: Model
    bounds: Bounds
    range: Callable[..., Any]  # over a batch of pairs
    ratio: Callable[..., Any]  # (theta, theta_prop, records) over a batch of records


@cache
def build(name: str) -> Built:
    case = CASES[name]
    model = from_numpyro(case.model, case.domain)
    bounds = bounds_for(model, case.domain, "certify")
    with jax.enable_x64(True):
        one = jax.vmap(model.log_likelihood, in_axes=(None, 0))
        ratio = quick_jit(lambda a, b, r: one(b, r) - one(a, r))
        return Built(model, bounds, quick_jit(jax.vmap(bounds.range)), ratio)


def draw(domain: dict[str, Domain], rng: np.random.Generator, size: int) -> dict[str, Any]:
    """Records from inside, from the corners of boxes and from the surface of balls."""
    return {name: typed(d, _column(d, rng, size)) for name, d in domain.items()}


def _column(domain: Domain, rng: np.random.Generator, size: int) -> np.ndarray:
    values, half = domain.sample(rng, size), size // 2
    if isinstance(domain, Ball):
        values[:half] *= domain.radius / np.linalg.norm(values[:half], axis=1, keepdims=True)
        return values
    side = rng.uniform(size=(half, *domain.shape))
    values[:half] = np.where(side < 0.4, domain.lo, np.where(side < 0.8, domain.hi, values[:half]))
    return values


def typed(domain: Domain, values: np.ndarray) -> Any:
    return jnp.asarray(values.astype(np.int64) if domain.discrete else values)


def pairs(dim: int, rng: np.random.Generator, count: int, scale: float, step: float) -> tuple[Any, Any]:
    theta = rng.normal(scale=scale, size=(count, dim))
    return jnp.asarray(theta), jnp.asarray(theta + rng.normal(scale=step, size=theta.shape))


BATCH = 3060  # records evaluated at a time, always as many: one compilation per model


def brute_force(case: Case, built: Built, theta: Any, theta_prop: Any, rng: np.random.Generator) -> float:
    """Width by random search over inside, corners and surfaces, then local search from the best records."""
    ends = []
    for sign in (1.0, -1.0):
        best = _best(case, built, [draw(case.domain, rng, BATCH) for _ in range(7)], (sign, theta, theta_prop))
        for reach in (0.3, 0.1, 0.03, 0.01, 0.003):
            near = {k: _near(case.domain[k], v, rng, reach) for k, v in best.items()}
            best = _best(case, built, [near], (sign, theta, theta_prop))
        ends.append(sign * float(np.max(sign * np.asarray(built.ratio(theta, theta_prop, _fill(best))))))
    return ends[0] - ends[1]


def _best(case: Case, built: Built, batches: list[dict[str, Any]], query: tuple[float, Any, Any]) -> dict[str, Any]:
    sign, theta, theta_prop = query
    values = np.concatenate([sign * np.asarray(built.ratio(theta, theta_prop, batch)) for batch in batches])
    top = np.argsort(-values)[:60]
    return {k: np.concatenate([np.asarray(batch[k]) for batch in batches])[top] for k in case.domain}


def _fill(best: dict[str, Any]) -> dict[str, Any]:
    return {k: jnp.asarray(np.resize(v, (BATCH, *v.shape[1:]))) for k, v in best.items()}


def _near(domain: Domain, values: np.ndarray, rng: np.random.Generator, reach: float) -> Any:
    """The records themselves, and fifty neighbours of each."""
    copies = np.repeat(values, 50, axis=0)
    if not domain.discrete:
        width = np.max(domain.hi - domain.lo)
        copies = domain.clamp(copies + rng.normal(scale=reach * width, size=copies.shape))
    return typed(domain, np.concatenate([values, copies]))
