r"""Log of :math:`\int f^{1+\beta}` for NumPyro's distributions: what a density-power loss needs beside the density.

Closed forms where there are any. Counts without one are summed over fixed nodes: all small counts, then ever fewer of the large
ones (trapezoidal rule on a smooth scale). For Poisson and negative binomial that is within 1e-6 of the sum for means up to 2000;
beyond, where counts crowd about their mean, a normal law stands in, within 1e-4.
"""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import betaln, gammaln, logsumexp
from numpyro.distributions import conjugate, discrete

Array: TypeAlias = Any

MOST_COUNTED = 2000.0
"""Mean count up to which counts are summed whatever their law."""
_CROWDED = 200.0  # concentration beyond which counts of a larger mean crowd about it
_MOST_TRIALS = 1000  # of a binomial, all of whose outcomes are summed


def log_power_integral(distribution: Any, beta: float) -> Array:
    r"""Log of :math:`\int f^{1+\beta}`, of batch shape; infinite where it diverges (a gamma of a tiny shape).

    Raises
    ------
    NotImplementedError
        There is no formula for this distribution.
    """
    for kinds, formula in _FORMULAS:
        if isinstance(distribution, kinds):
            return formula(distribution, 1.0 + beta)
    raise NotImplementedError(type(distribution).__name__)


def has_power_integral(distribution: Any) -> bool:
    """Whether there is a formula, looking inside of what wraps a distribution."""
    while isinstance(distribution, _WRAPPERS):
        distribution = distribution.base_dist
    if isinstance(distribution, _BINOMIALS):
        return _trials(distribution) is not None
    return any(isinstance(distribution, kinds) for kinds, _ in _FORMULAS)


# -- wrapped ----------------------------------------------------------------------------------------------------------


def _expanded(d: Any, power: float) -> Array:
    return jnp.broadcast_to(log_power_integral(d.base_dist, power - 1), d.batch_shape)


def _independent(d: Any, power: float) -> Array:
    return jnp.sum(log_power_integral(d.base_dist, power - 1), axis=tuple(range(-d.reinterpreted_batch_ndims, 0)))


def _masked(d: Any, power: float) -> Array:
    return jnp.where(d._mask, log_power_integral(d.base_dist, power - 1), 0.0)


# -- real outcomes ----------------------------------------------------------------------------------------------------


def _normal(d: Any, power: float) -> Array:
    return (1 - power) * (jnp.log(d.scale) + 0.5 * math.log(2 * math.pi)) - 0.5 * math.log(power)


def _multivariate_normal(d: Any, power: float) -> Array:
    size = d.event_shape[-1]
    log_scale = jnp.sum(jnp.log(jnp.diagonal(d.scale_tril, axis1=-2, axis2=-1)), axis=-1)
    return (1 - power) * (log_scale + 0.5 * size * math.log(2 * math.pi)) - 0.5 * size * math.log(power)


def _log_normal(d: Any, power: float) -> Array:
    beta, normal = power - 1, dist.Normal(d.loc, d.scale)
    return _normal(normal, power) - beta * d.loc + (beta * d.scale) ** 2 / (2 * power)


def _half_normal(d: Any, power: float) -> Array:
    return _normal(d, power) + (power - 1) * math.log(2.0)


def _student_t(d: Any, power: float) -> Array:
    def log_constant(df: Array) -> Array:  # of (1 + z^2 / df)^(-(df + 1) / 2), its integral over z for df = 1
        return 0.5 * math.log(math.pi) + gammaln(df / 2) - gammaln((df + 1) / 2)

    within = (d.df + 1) * power - 1
    one = log_constant(d.df) + 0.5 * jnp.log(d.df) + jnp.log(d.scale)
    return log_constant(within) + 0.5 * jnp.log(d.df) + jnp.log(d.scale) - power * one


def _cauchy(d: Any, power: float) -> Array:
    return _student_t(dist.StudentT(1.0, d.loc, d.scale), power)


def _laplace(d: Any, power: float) -> Array:
    return (1 - power) * jnp.log(2 * d.scale) - math.log(power)


def _logistic(d: Any, power: float) -> Array:
    return (1 - power) * jnp.log(d.scale) + betaln(power, power)


def _exponential(d: Any, power: float) -> Array:
    return (power - 1) * jnp.log(d.rate) - math.log(power)


def _gamma(d: Any, power: float) -> Array:
    a, rate = d.concentration, d.rate
    within = (a - 1) * power + 1
    found = (power - 1) * jnp.log(rate) + gammaln(_above(within)) - within * math.log(power) - power * gammaln(a)
    return jnp.where(within > 0, found, jnp.inf)


def _weibull(d: Any, power: float) -> Array:
    k = d.concentration
    within = ((k - 1) * power + 1) / k
    found = (power - 1) * (jnp.log(k) - jnp.log(d.scale)) + gammaln(_above(within)) - within * math.log(power)
    return jnp.where(within > 0, found, jnp.inf)


def _beta(d: Any, power: float) -> Array:
    a, b = d.concentration1, d.concentration0
    first, second = (a - 1) * power + 1, (b - 1) * power + 1
    found = betaln(_above(first), _above(second)) - power * betaln(a, b)
    return jnp.where((first > 0) & (second > 0), found, jnp.inf)


def _above(value: Array) -> Array:
    """The value, or one where it is not positive: what is not chosen must have a derivative, too."""
    return jnp.where(value > 0, value, 1.0)


# -- few outcomes -----------------------------------------------------------------------------------------------------


def _bernoulli(d: Any, power: float) -> Array:
    return logsumexp(power * jnp.stack([-jax.nn.softplus(d.logits), -jax.nn.softplus(-d.logits)], axis=-1), axis=-1)


def _categorical(d: Any, power: float) -> Array:
    return logsumexp(power * jax.nn.log_softmax(d.logits, axis=-1), axis=-1)


def _binomial(d: Any, power: float) -> Array:
    trials = _trials(d)
    if trials is None:
        raise NotImplementedError(f"a binomial of other than one plain number of trials up to {_MOST_TRIALS}")
    outcomes = np.arange(trials + 1).reshape(-1, *[1] * len(d.batch_shape))
    return logsumexp(power * d.log_prob(outcomes), axis=0)


def _trials(d: Any) -> int | None:
    """Trials of a binomial, if they are one number that is known before any record is."""
    if isinstance(d.total_count, jax.core.Tracer):
        return None
    every = np.unique(np.asarray(d.total_count))
    return int(every[0]) if len(every) == 1 and every[0] <= _MOST_TRIALS else None


# -- counts -----------------------------------------------------------------------------------------------------------


def _make_nodes() -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights for sums over all counts.

    Spacing is 1 up to about 40, then grows like the root of a count (a Poisson law is that wide), then like the count itself.
    Its logarithm is smooth all the way, so that the trapezoidal rule has hardly any error.
    """
    fine, number = 256, 250
    j = np.arange(number * fine + 1) / fine
    log_spacing = np.log1p(0.3 * 2.0 * np.logaddexp(0.0, (j - 32.0) / 2.0))
    late = 1 / (1 + np.exp(-(j - 150.0) / 6.0))
    slope = np.gradient(log_spacing, j) * (1 - late) + 0.1 * late

    def integrate(y: np.ndarray) -> np.ndarray:
        return np.concatenate([[0.0], np.cumsum((y[1:] + y[:-1]) / 2) / fine])

    spacing = np.exp(integrate(slope))
    return integrate(spacing)[::fine], spacing[::fine]


_COUNTS, _SPACING = _make_nodes()
_LOG_SPACING = np.log(_SPACING)


def _poisson(d: Any, power: float) -> Array:
    beta, rate = power - 1, jnp.asarray(d.rate, float)
    few = jnp.minimum(rate, MOST_COUNTED)[..., None]
    terms = jax.scipy.special.xlogy(_COUNTS, few) - few - gammaln(_COUNTS + 1.0)
    many = jnp.maximum(rate, MOST_COUNTED)
    # The next term of the expansion in 1 / rate, too.
    crowded = -beta / 2 * jnp.log(2 * math.pi * many) - 0.5 * math.log(power) + beta * (2 + beta) / (24 * power * many)
    return jnp.where(rate <= MOST_COUNTED, logsumexp(power * terms + _LOG_SPACING, axis=-1), crowded)


def _gamma_poisson(d: Any, power: float) -> Array:
    beta = power - 1
    c, log_rate = jnp.asarray(d.concentration, float), jnp.log(d.rate)
    mean = c / d.rate
    many = (mean > MOST_COUNTED) & (c > _CROWDED)
    ways = gammaln(_COUNTS + c[..., None]) - gammaln(c)[..., None] - gammaln(_COUNTS + 1.0)
    chances = c * jax.nn.softplus(-log_rate)
    terms = ways - chances[..., None] - _COUNTS * jax.nn.softplus(log_rate)[..., None]
    variance = mean + mean**2 / c
    crowded = -beta / 2 * jnp.log(2 * math.pi * variance) - 0.5 * math.log(power)
    return jnp.where(many, crowded, logsumexp(power * terms + _LOG_SPACING, axis=-1))


def _geometric(d: Any, power: float) -> Array:
    log_p, log_q = -jax.nn.softplus(-d.logits), -jax.nn.softplus(d.logits)
    return power * log_p - jnp.log(-jnp.expm1(power * log_q))


def _zero_inflated(d: Any, power: float) -> Array:
    none, base = jnp.zeros(()), d.base_dist
    inside = log_power_integral(base, power - 1)
    of_zero = jnp.exp(power * base.log_prob(none) - inside)
    rest = inside + jnp.log(jnp.maximum(1.0 - of_zero, 1e-12))
    return jnp.logaddexp(power * d.log_prob(none), power * jnp.log1p(-d.gate) + rest)


_BINOMIALS = (discrete.BinomialProbs, discrete.BinomialLogits)
_WRAPPERS = (dist.distribution.ExpandedDistribution, dist.Independent, dist.distribution.MaskedDistribution)
_FORMULAS: list[tuple[Any, Callable[[Any, float], Array]]] = [
    (dist.distribution.ExpandedDistribution, _expanded),
    (dist.Independent, _independent),
    (dist.distribution.MaskedDistribution, _masked),
    (dist.Normal, _normal),
    (dist.MultivariateNormal, _multivariate_normal),
    (dist.LogNormal, _log_normal),
    (dist.HalfNormal, _half_normal),
    (dist.StudentT, _student_t),
    (dist.Cauchy, _cauchy),
    (dist.Laplace, _laplace),
    (dist.Logistic, _logistic),
    (dist.Exponential, _exponential),
    (dist.Gamma, _gamma),
    (dist.Weibull, _weibull),
    (dist.Beta, _beta),
    ((discrete.BernoulliProbs, discrete.BernoulliLogits), _bernoulli),
    ((discrete.CategoricalProbs, discrete.CategoricalLogits), _categorical),
    (_BINOMIALS, _binomial),
    (dist.Poisson, _poisson),
    (conjugate.GammaPoisson, _gamma_poisson),
    ((discrete.GeometricProbs, discrete.GeometricLogits), _geometric),
    (discrete.ZeroInflatedProbs, _zero_inflated),
]
