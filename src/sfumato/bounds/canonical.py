r"""Log-densities written so that their slopes in the natural predictors are simple.

NumPyro's own formulas guard against overflow by splitting a function in pieces (``max(z, 0) + log1p(exp(-|z|))``), and
pieces blur slopes. Here the same densities are written with whole functions that have closed-form slopes: softplus,
whose slope is the logistic function, and log-sum-exp, whose slopes are softmax weights. The functions exist for the
interpreter only: the vault evaluates NumPyro's formulas, and walks these for gradients alone (`pointwise`).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.extend.core import Primitive
from jax.scipy import special
from numpyro.distributions import discrete
from numpyro.distributions.util import clamp_probs

from sfumato.bounds import curved
from sfumato.bounds.arithmetic import add, logarithm, multiply, negate
from sfumato.bounds.rules import RULES, Params, rule
from sfumato.bounds.shapes import structural
from sfumato.bounds.values import Const, Scope, Value, of_consts
from sfumato.domain import WHOLE
from sfumato.model.base import Array

_softplus_p: Any = Primitive("softplus")
_logsumexp_p: Any = Primitive("logsumexp")


def _softplus_shape(x: Any) -> Any:
    return x


def _logsumexp_shape(x: Any) -> Any:
    return jax.core.ShapedArray(x.shape[:-1], x.dtype)


_softplus_p.def_abstract_eval(_softplus_shape)
_logsumexp_p.def_abstract_eval(_logsumexp_shape)


def softplus(x: Array) -> Array:
    """log(1 + e^x)."""
    return _softplus_p.bind(jnp.asarray(x, dtype=float))


def logsumexp(x: Array) -> Array:
    """Log of the sum of exponentials over the last axis."""
    return _logsumexp_p.bind(jnp.asarray(x, dtype=float))


@rule("logsumexp")
def _logsumexp(scope: Scope, params: Params, value: Value) -> Value:
    return curved.logsumexp(scope.curved(value, bent=True))


# -- functions that JAX writes in pieces ------------------------------------------------------------------------------


@rule("logsumexp_keep")
def _logsumexp_keep(scope: Scope, params: Params, value: Value) -> Value:
    return structural(lambda x: x[..., None], RULES["logsumexp"](scope, {}, value), scope=scope)


@rule("log_softmax")
def _log_softmax(scope: Scope, params: Params, value: Value) -> Value:
    total = RULES["logsumexp_keep"](scope, {}, value)
    return add(scope, value, negate(scope, total))


@rule("xlogy")
def _xlogy(scope: Scope, params: Params, x: Value, y: Value) -> Value:
    return multiply(scope, x, logarithm(scope, y))


@rule("xlog1py")
def _xlog1py(scope: Scope, params: Params, x: Value, y: Value) -> Value:
    log = of_consts(jnp.log1p, y) if isinstance(y, Const) else RULES["log1p"](scope, {}, y)
    return multiply(scope, x, log)


@rule("logaddexp")
def _logaddexp(scope: Scope, params: Params, x: Value, y: Value) -> Value:
    return add(scope, RULES["softplus"](scope, {}, add(scope, x, negate(scope, y))), y)


PLAIN: dict[str, Callable[..., Array]] = {
    "softplus": jax.nn.softplus,
    "logsumexp": lambda x: special.logsumexp(x, axis=-1),
    "logsumexp_keep": lambda x: special.logsumexp(x, axis=-1, keepdims=True),
    "log_softmax": jax.nn.log_softmax,
    "ndtr": special.ndtr,
    "log_ndtr": special.log_ndtr,
    "xlogy": special.xlogy,
    "xlog1py": special.xlog1py,
    "logaddexp": jnp.logaddexp,
}
"""The functions themselves, for operands that do not depend on a record."""


# -- densities --------------------------------------------------------------------------------------------------------


def log_density(distribution: Any, value: Array) -> Array:
    """Log-density of a NumPyro distribution; in canonical form where there is one."""
    for kind, formula in _DENSITIES:
        if type(distribution) is kind:
            return formula(distribution, value)
    return distribution.log_prob(value)


def _expanded(d: Any, value: Array) -> Array:
    return jnp.broadcast_to(log_density(d.base_dist, value), d.batch_shape)


def _independent(d: Any, value: Array) -> Array:
    inner = log_density(d.base_dist, value)
    return jnp.sum(inner, axis=tuple(range(-d.reinterpreted_batch_ndims, 0)))


def _bernoulli_logits(d: Any, value: Array) -> Array:
    return value * d.logits - softplus(d.logits)


def _probs(d: Any, value: Array) -> Array:
    """With the outcome once: then the second derivatives of both branches cancel."""
    p = clamp_probs(d.probs)
    return value * (jnp.log(p) - jnp.log1p(-p)) + getattr(d, "total_count", 1) * jnp.log1p(-p)


def _binomial_logits(d: Any, value: Array) -> Array:
    return value * d.logits - d.total_count * softplus(d.logits)


def _categorical_logits(d: Any, value: Array) -> Array:
    chosen = jnp.take_along_axis(d.logits, jnp.asarray(value, WHOLE)[..., None], axis=-1)[..., 0]
    return chosen - logsumexp(d.logits)


def _gamma_poisson(d: Any, value: Array) -> Array:
    log_rate = jnp.log(d.rate)
    ways = special.gammaln(d.concentration + value) - special.gammaln(d.concentration)
    return ways - d.concentration * softplus(-log_rate) - value * softplus(log_rate)


def _mixture_same_family(d: Any, value: Array) -> Array:
    weights = jnp.log(d.mixing_distribution.probs) if hasattr(d.mixing_distribution, "probs") else None
    if isinstance(d.mixing_distribution, discrete.CategoricalLogits):
        weights = d.mixing_distribution.logits - logsumexp(d.mixing_distribution.logits)[..., None]
    inner = log_density(d.component_distribution, jnp.expand_dims(value, d.mixture_dim))
    return logsumexp(weights + inner)


_DENSITIES: list[tuple[type, Callable[[Any, Array], Array]]] = [
    (dist.distribution.ExpandedDistribution, _expanded),
    (dist.Independent, _independent),
    (discrete.BernoulliLogits, _bernoulli_logits),
    (discrete.BernoulliProbs, _probs),
    (discrete.BinomialProbs, _probs),
    (discrete.BinomialLogits, _binomial_logits),
    (discrete.CategoricalLogits, _categorical_logits),
    (dist.GammaPoisson, _gamma_poisson),
    (dist.NegativeBinomial2, _gamma_poisson),
    (dist.MixtureSameFamily, _mixture_same_family),
]
