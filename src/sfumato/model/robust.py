r"""Likelihoods of bounded influence: the density-power loss of a distribution, in place of its log-density.

A record that the model finds impossible pulls at a log-likelihood as hard as it likes, and everybody pays for how far one record
*could* pull. The density-power (beta-divergence) loss

.. math:: \ell_\beta(y) = \frac{f(y)^\beta - 1}{\beta} - \frac{\int f^{1+\beta} - 1}{1+\beta}

has its largest mean where f is the truth, tends to log f for :math:`\beta\to 0`, and forgets records far from the model. What
is sampled with it is a *generalised posterior*, :math:`\eta(\theta)\exp(w\sum_i\ell_\beta(y_i))`. Its width depends on the
*weight* w. With J the mean of :math:`-\nabla^2\ell_\beta` and K the covariance of :math:`\nabla\ell_\beta`, both under the model,
the error of a mode is :math:`J^{-1}KJ^{-1}/n` and the posterior's covariance :math:`(wnJ)^{-1}`. One number cannot make these
equal for all parameters; :math:`w = d/\mathrm{tr}(J^{-1}K)` makes them equal on average. It is computed once, from made-up
records alone, where the prior puts the parameters, and is part of the model from then on.

References
----------
Basu, Harris, Hjort & Jones 1998; Ghosh & Basu 2016; Jewson, Smith & Holmes 2018; Lyddon, Holmes & Walker 2019 (the weight).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from sfumato.domain import Domain
from sfumato.errors import InvalidInput, InvalidModel
from sfumato.model.base import Loss, Model, Observation
from sfumato.model.power_integral import has_power_integral, log_power_integral
from sfumato.model.trials import synthetic_batch
from sfumato.privacy.target import Target
from sfumato.tools.quick_jit import quick_jit

Array: TypeAlias = Any

MADE_UP = 8192
"""Made-up records from which weights and ratios are computed: to two percent or so."""
_PRIOR_DRAWS = 201
_NOTHING = 1e-9  # of the largest information, in each coordinate's own unit: no record speaks of that direction
_WRAPPERS = (dist.distribution.ExpandedDistribution, dist.Independent, dist.distribution.MaskedDistribution)


class Robust(dist.Distribution):  # type: ignore[misc]  # NumPyro's classes have no types that mypy knows
    """The density-power loss of a distribution; made by `robust`, drawn from like the distribution itself."""

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 (NumPyro looks for it on the class)
    pytree_data_fields = ("base_dist",)
    pytree_aux_fields = ("beta", "weight")

    def __init__(self, base_dist: Any, beta: float, weight: float | None) -> None:
        self.base_dist, self.beta, self.weight = base_dist, beta, weight
        super().__init__(base_dist.batch_shape, base_dist.event_shape)

    @property
    def support(self) -> Any:
        """That of the distribution."""
        return self.base_dist.support

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw from the distribution."""
        return self.base_dist.sample(key, sample_shape)

    def log_prob(self, value: Array) -> Array:
        """The loss, times the weight if one was given; minus infinity outside of the support."""
        log_density = self.base_dist.log_prob(value)
        gain = (jnp.exp(self.beta * log_density) - 1) / self.beta
        price = (jnp.exp(log_power_integral(self.base_dist, self.beta)) - 1) / (1 + self.beta)
        loss = jnp.where(log_density == -jnp.inf, -jnp.inf, gain - price)
        return loss if self.weight is None else self.weight * loss

    def expand(self, batch_shape: tuple[int, ...]) -> Any:
        """The loss of the expanded distribution."""
        return Robust(self.base_dist.expand(batch_shape), self.beta, self.weight)


def robust(distribution: Any, beta: float = 0.2, *, weight: float | None = None) -> Robust:
    r"""The density-power loss of a NumPyro distribution, for an observed site: a likelihood of bounded influence.

    ``numpyro.sample("y", sf.robust(dist.Normal(mu, sigma), beta=0.2), obs=y)``. What is sampled is then a generalised posterior,
    and plan, statement, verdict and report say so.

    Parameters
    ----------
    distribution
        Normal, multivariate normal, lognormal, half-normal, Student-t, Cauchy, Laplace, logistic, exponential, gamma, Weibull,
        beta, Bernoulli, categorical, ordered logistic, binomial of a fixed number of trials, Poisson, negative binomial,
        geometric, zero-inflated; expanded, masked, or made one event of several.
    beta
        In (0, 1]. Larger: outliers matter less, and so does everybody else. Of a normal, 0.2 costs 4 % of the efficiency of a
        mean and 8 % of that of a scale.
    weight
        What the loss is multiplied by. None: what makes intervals calibrated on average, by made-up records where the prior puts
        the parameters; of all such sites of a model, one number.

    Raises
    ------
    InvalidInput
        There is no formula for the integral of the distribution's power; or beta or weight is not what it must be.
    """
    if isinstance(beta, bool) or not isinstance(beta, int | float) or not 0 < beta <= 1:
        raise InvalidInput(
            f"beta must be a plain number in (0, 1], got {beta!r:.40}; 0.2 costs little and forgets outliers."
        )
    if weight is not None and not (isinstance(weight, int | float) and 0 < weight < math.inf):
        raise InvalidInput(
            f"weight must be a plain positive number, got {weight!r:.40}; leave it out to have it computed."
        )
    if not has_power_integral(distribution):
        raise InvalidInput(
            f"sf.robust needs the integral of a power of the density, and has no formula for {type(distribution).__name__}. "
            "It has one for Normal, MultivariateNormal, LogNormal, HalfNormal, StudentT, Cauchy, Laplace, Logistic, Exponential, "
            "Gamma, Weibull, Beta, Bernoulli, Categorical, OrderedLogistic, Binomial (a fixed number of trials), Poisson, "
            "NegativeBinomial, Geometric and zero-inflated ones; score the outcome by one of these."
        )
    return Robust(distribution, float(beta), None if weight is None else float(weight))


# -- in a model -------------------------------------------------------------------------------------------------------


def find_robust(distribution: Any) -> Robust | None:
    """The density-power loss inside of what wraps a distribution, if there is one."""
    while isinstance(distribution, _WRAPPERS) and not isinstance(distribution, Robust):
        distribution = distribution.base_dist
    return distribution if isinstance(distribution, Robust) else None


def plain(distribution: Any) -> Any:
    """The distribution with its own log-density in place of any density-power loss."""
    if isinstance(distribution, Robust):
        return distribution.base_dist
    if find_robust(distribution) is None:
        return distribution
    inner = plain(distribution.base_dist)
    if isinstance(distribution, dist.Independent):
        return dist.Independent(inner, distribution.reinterpreted_batch_ndims)
    if isinstance(distribution, dist.distribution.MaskedDistribution):
        return inner.mask(distribution._mask)
    return inner.expand(distribution.batch_shape)


def with_weight(model: Model, domain: Mapping[str, Domain]) -> Model:
    """A model whose density-power losses, if it has any, are weighed; as it was, if it has none. Call with 64 bits enabled."""
    sites = _robust_sites(model, domain)
    if not sites:
        return model
    given = {site.weight for site in sites.values()}
    betas = tuple((name, site.beta) for name, site in sorted(sites.items()))
    if given == {None}:
        theta = _prior_middle(model)
        weight = _rounded(_moments(model, domain, theta).weight)
        if not (math.isfinite(weight) and weight > 0):
            raise InvalidModel(
                f"the weight of sf.robust cannot be computed where the prior puts the parameters ({_names(betas)}); state it: "
                "sf.robust(..., weight=1.0).",
                site=betas[0][0],
            )
        return _weighed(replace(model, loss=Loss(betas, weight, "made-up records at the prior's median")), weight)
    if None in given or len(given) > 1:
        raise InvalidModel(
            f"one weight is stated for all of {_names(betas)}, or none; got {[site.weight for site in sites.values()]}.",
            site=betas[0][0],
        )
    return replace(model, loss=Loss(betas, float(given.pop()), "the model itself"))  # type: ignore[arg-type]


def robustly(model: Model, domain: Mapping[str, Domain], theta: np.ndarray, beta: float) -> Model | None:
    """The same model with the density-power loss at every observed site that has one, weighed at theta; None where none has.

    For plans that say what it would bring: a model of one's own says `robust` itself. Call with 64 bits enabled.
    """
    before = model.observations
    if before is None or model.loss is not None:
        return None
    changed: set[str] = set()

    def observations(theta: Array, record: Mapping[str, Array]) -> list[Observation]:
        out = []
        for factor in before(theta, record):
            if type(factor.distribution).__name__ != "Unit" and has_power_integral(factor.distribution):
                changed.add(factor.name)
                out.append(factor._replace(distribution=Robust(factor.distribution, beta, None)))
            else:
                out.append(factor)
        return out

    def log_likelihood(theta: Array, record: Mapping[str, Array]) -> Array:
        return sum(
            (jnp.sum(f.distribution.log_prob(f.value) * f.scale) for f in observations(theta, record)), jnp.zeros(())
        )

    made = replace(model, observations=observations, log_likelihood=log_likelihood)
    weight = _moments(made, domain, theta).weight
    if not changed or not (math.isfinite(weight) and weight > 0):
        return None
    betas = tuple((name, beta) for name in sorted(changed))
    return _weighed(replace(made, loss=Loss(betas, weight, "the plan's centre")), weight)


def _robust_sites(model: Model, domain: Mapping[str, Domain]) -> dict[str, Robust]:
    if model.observations is None:
        return {}
    found: dict[str, Robust] = {}

    def look(theta: Array, record: Mapping[str, Array]) -> Array:
        for factor in model.observations(theta, record):  # type: ignore[misc]
            site = find_robust(factor.distribution)
            if site is not None:
                found[factor.name] = Robust(dist.Normal(), site.beta, site.weight)  # nothing that is being traced
        return jnp.zeros(())

    batch = synthetic_batch({name: domain[name] for name in model.columns}, 1, np.random.default_rng(0))
    jax.eval_shape(look, jnp.zeros(model.dim), {name: column[0] for name, column in batch.items()})
    return found


def _names(betas: tuple[tuple[str, float], ...]) -> str:
    return ", ".join(repr(name) for name, _ in betas)


def _weighed(model: Model, weight: float) -> Model:
    """The same model with its robust sites times a weight."""
    before: Callable[..., list[Observation]] = model.observations  # type: ignore[assignment]

    def observations(theta: Array, record: Mapping[str, Array]) -> list[Observation]:
        return [
            factor if find_robust(factor.distribution) is None else factor._replace(scale=factor.scale * weight)
            for factor in before(theta, record)
        ]

    def log_likelihood(theta: Array, record: Mapping[str, Array]) -> Array:
        return sum(
            (jnp.sum(f.distribution.log_prob(f.value) * f.scale) for f in observations(theta, record)), jnp.zeros(())
        )

    return replace(model, observations=observations, log_likelihood=log_likelihood)


def _rounded(value: float) -> float:
    """Three digits, so that all machines agree, and a user can repeat it."""
    return float(f"{value:.3g}")


def _prior_middle(model: Model) -> np.ndarray:
    """Median of draws from the prior, coordinate by coordinate, unconstrained."""
    one = quick_jit(lambda number: model.sample_prior(jax.random.fold_in(jax.random.key(1), number)))
    return np.median([np.asarray(one(number), np.float64) for number in range(_PRIOR_DRAWS)], axis=0)


# -- J and K ----------------------------------------------------------------------------------------------------------


def target_of(model: Model, domain: Mapping[str, Domain], theta: np.ndarray, at: str) -> Target | None:
    """What is sampled, where that is a generalised posterior, and how wide it is at one parameter; else None.

    Ratios are of parameters that records speak of. Call with 64 bits enabled.
    """
    if model.loss is None:
        return None
    found = _moments(model, domain, theta)
    named = model.coordinate_names()
    known = [i for i in range(model.dim) if math.isfinite(found.ratios[i])]
    return Target(
        betas=model.loss.betas, weight=model.loss.weight, place=model.loss.place, at=at,
        here=_rounded(found.weight),
        ratios={named[i]: float(found.ratios[i]) for i in known},
        efficiency={named[i]: float(found.efficiency[i]) for i in known},
    )  # fmt: skip


@dataclass(frozen=True)
class _Moments:
    weight: float
    ratios: np.ndarray = field(repr=False)
    efficiency: np.ndarray = field(repr=False)


def _moments(model: Model, domain: Mapping[str, Domain], theta: np.ndarray) -> _Moments:
    r"""J, K and the information I from scores of made-up records.

    With u the score of the model's own log-density and psi that of the loss, :math:`J = E\,\psi u^\top` (differentiate
    :math:`E_\theta\psi = 0`), :math:`K = E\,\psi\psi^\top`, :math:`I = E\,uu^\top`.
    """
    columns = {name: domain[name] for name in model.columns}
    batch = synthetic_batch(columns, MADE_UP, np.random.default_rng(5))
    u, of_robust, whole = (np.asarray(part) for part in _scores(model)(theta, jax.random.key(5), batch))
    good = np.isfinite(u).all(1) & np.isfinite(of_robust).all(1) & np.isfinite(whole).all(1)
    if good.sum() < MADE_UP // 2:
        nothing = np.full(model.dim, np.nan)
        return _Moments(math.nan, nothing, nothing)
    u, of_robust, whole = u[good], of_robust[good], whole[good]
    mean = 1 / len(u)
    j, k = _symmetric(of_robust.T @ u * mean), of_robust.T @ of_robust * mean
    inverse, rank = _inverse(j)
    weight = rank / float(np.trace(inverse @ k)) if rank else math.nan
    j, k, information = _symmetric(whole.T @ u * mean), whole.T @ whole * mean, u.T @ u * mean
    inverse, _ = _inverse(j)
    spread, best = np.diag(inverse), np.diag(_inverse(information)[0])
    error = np.diag(inverse @ k @ inverse)
    with np.errstate(all="ignore"):
        return _Moments(
            weight, np.where(error > 0, np.sqrt(spread / error), np.nan), np.where(error > 0, best / error, np.nan)
        )


@lru_cache(maxsize=16)
def _scores(model: Model) -> Callable[..., tuple[Array, Array, Array]]:
    """Compile: (theta, key, records) -> scores: of the plain log-density, of robust sites without a weight, of the model."""
    observations: Callable[..., list[Observation]] = model.observations  # type: ignore[assignment]

    def one(theta: Array, key: Array, record: Mapping[str, Array]) -> tuple[Array, Array, Array]:
        factors = observations(theta, record)
        keys = jax.random.split(key, len(factors))
        drawn = [
            f.value if type(f.distribution).__name__ == "Unit" else plain(f.distribution).sample(k)
            for f, k in zip(factors, keys, strict=True)
        ]

        def total(t: Array, score: Callable[[Observation, Array], Array]) -> Array:
            pairs = zip(observations(t, record), drawn, strict=True)
            return sum((jnp.sum(score(f, value)) for f, value in pairs), jnp.zeros(()))

        def unweighed(f: Observation, value: Array) -> Array:
            site = find_robust(f.distribution)
            return jnp.zeros(()) if site is None else f.distribution.log_prob(value) / (site.weight or 1.0)

        scores: list[Callable[[Observation, Array], Array]] = [
            lambda f, value: plain(f.distribution).log_prob(value),
            unweighed,
            lambda f, value: f.distribution.log_prob(value) * f.scale,
        ]
        by_plain, by_robust, by_whole = (jax.grad(total)(theta, score) for score in scores)
        return by_plain, by_robust, by_whole

    def every(theta: Array, key: Array, batch: Mapping[str, Array]) -> tuple[Array, Array, Array]:
        keys = jax.random.split(key, MADE_UP)
        return jax.vmap(one, (None, 0, 0))(theta, keys, batch)

    compiled: Callable[..., tuple[Array, Array, Array]] = quick_jit(every)
    return compiled


def _symmetric(matrix: np.ndarray) -> np.ndarray:
    return np.asarray((matrix + matrix.T) / 2)


def _inverse(matrix: np.ndarray) -> tuple[np.ndarray, int]:
    """Inverse over the directions that records speak of, and how many these are."""
    size = np.sqrt(np.abs(np.diag(matrix)))
    unit = np.where(size > 0, size, 1.0)
    values, vectors = np.linalg.eigh(matrix / np.outer(unit, unit))
    kept = values > _NOTHING * max(values.max(), 1e-300)
    inverse = (vectors[:, kept] / values[kept]) @ vectors[:, kept].T / np.outer(unit, unit)
    return np.asarray(inverse), int(kept.sum())
