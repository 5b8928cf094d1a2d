r"""The noise-aware posterior: p(theta given everything that was released).

Every release about an exponential family is a linear measurement of :math:`S_n = \sum_i S(y_i)`: a copy of a bundle,
:math:`\hat S = S_n + N(0, \xi I)`, or a chain's scalar answer,
:math:`\hat d_t - n\log\tfrac{g(\theta'_t)}{g(\theta_t)} = v_t^\top S_n + N(0, \sigma_t^2)` with
:math:`v_t = \varphi(\theta'_t) - \varphi(\theta_t)`. Together they have precision :math:`P` and mean :math:`\bar S`, and

.. math:: p(\theta \mid \text{released}) \propto \eta(\theta)\, N\bigl(\bar S;\ n\,m(\theta),\ n\,C(\theta) + P^{-1}\bigr),

m and C the mean and covariance of S under theta. Of a part of S that has no law (a regression's covariates) the posterior is
given what was released of that part's own sums: `Family.beside`. While P is singular (a scalar chain may look along few
directions) the measurement is kept in the range of P: :math:`z = U^\top\bar S`, whose noise is diagonal and finite.

It is an **approximation** (central limit theorem for :math:`S_n`), calibrated where a budget is too small for the chain to
mix. For sums of counts the law of :math:`S_n` is known and the mixture over it is exact. It uses the same releases as the
chain: it is not independent evidence to pool with it. Being post-processing, it costs nothing.

References
----------
Bernstein & Sheldon 2018, "Differentially private Bayesian inference for exponential families".
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from scipy.special import gammaln

from sfumato.analysis.result import quiet_arviz
from sfumato.errors import InvalidInput, Unsupported
from sfumato.families.base import Family
from sfumato.families.counts import Binomial, Geometric, Linear, Poisson
from sfumato.families.measurement import Measurement
from sfumato.model import Model

if TYPE_CHECKING:
    from sfumato.analysis.result import Run

Array: TypeAlias = Any
LogDensity: TypeAlias = Callable[[Array], Array]
Moments: TypeAlias = Callable[[Mapping[str, Array]], tuple[Array, Array]]

LABEL = "approximation: central limit theorem for S_n; not independent evidence to pool with the chain"
LABEL_COUNTS = "exact law of the counts behind S_n; not independent evidence to pool with the chain"
MAX_COUNTS = 4096
"""Widest window of counts that is summed over; a window that is wider means noise that drowns what the CLT misses."""
WINDOW = 9.0  # standard deviations of noise either side
RANK = 1e-11
"""Eigenvalues of P below this share of the largest measure nothing that floating point could tell from rounding."""
_PRIOR_TRIES = 256
_APART = 100.0  # factor between prior standard deviations of coordinates, from which a climb is scaled by them


def from_copies(mean: np.ndarray, variance: float, n: int) -> Measurement:
    """Measurement by an average of noisy copies with `variance` per coordinate."""
    return Measurement(np.eye(len(mean)), np.asarray(mean), np.full(len(mean), float(variance)), n)


def from_answers(directions: np.ndarray, answers: np.ndarray, sigma: np.ndarray, n: int) -> Measurement:
    r"""Measurement by scalar answers :math:`v_t^\top S_n + N(0, \sigma_t^2)`.

    It lives in the range of :math:`P = \sum v_tv_t^\top/\sigma_t^2`. P is never inverted: only its eigenvalues above `RANK`
    times the largest are, one by one.
    """
    scaled = directions / sigma[:, None]
    unit = np.sqrt(np.mean(scaled**2, axis=0))  # coordinates of S may differ by orders of magnitude
    unit = np.where(unit > 0, unit, 1.0)
    # Singular values of the tall matrix, not eigenvalues of its square: half the digits would be lost.
    left, singular, right = np.linalg.svd(scaled / unit, full_matrices=False)
    keep = singular**2 > RANK * max(float(singular[0]) ** 2, 1e-300)
    if not np.any(keep):
        raise InvalidInput("no answer of this run says anything about the sum of statistics; draw more.")
    value = (left[:, keep].T @ (answers / sigma)) / singular[keep]
    # z measures right' diag(unit) S: bring it to an orthonormal basis of the same space.
    basis, mixing = np.linalg.qr((right[keep] * unit).T)
    inverse = np.linalg.inv(mixing.T)
    noise = inverse @ np.diag(1 / singular[keep] ** 2) @ inverse.T
    spread, turn = np.linalg.eigh((noise + noise.T) / 2)
    return Measurement(basis @ turn, turn.T @ inverse @ value, np.maximum(spread, 1e-300), n)


# -- the density ------------------------------------------------------------------------------------------------------


def log_likelihood(family: Family, measurement: Measurement, *, clamped: bool = False) -> Callable[[Any], Array]:
    """Function {site: value} -> log density of the measurement: exact for counts in a window, else normal."""
    if uses_counts(family, measurement, clamped=clamped):
        return _mixture(family, measurement)
    if clamped and knows_clamped(family):
        return _normal(_of_records(moments_of(family, clamped), measurement.n), measurement)
    rest, beside = family.beside(measurement)
    beside = jax.tree.map(jnp.asarray, beside)
    return _normal(lambda values: family.moments_of_sum(values, measurement.n, beside), rest)


def uses_counts(family: Family, measurement: Measurement, *, clamped: bool = False) -> bool:
    """Whether `log_likelihood` sums over the exact law of S_n."""
    return not clamped and isinstance(family, Binomial | Poisson | Geometric) and _window(measurement) is not None


def _normal(moments: Moments, measurement: Measurement) -> Callable[[Any], Array]:
    basis, value = jnp.asarray(measurement.basis), jnp.asarray(measurement.value)
    noise = jnp.diag(jnp.asarray(measurement.variance))

    def apply(values: Any) -> Array:
        mean, covariance = moments(values)
        return dist.MultivariateNormal(basis.T @ mean, basis.T @ covariance @ basis + noise).log_prob(value)

    return apply


def _of_records(moments: Moments, n: int) -> Moments:
    """Moments of the sum of n records from those of one."""

    def apply(values: Mapping[str, Array]) -> tuple[Array, Array]:
        mean, covariance = moments(values)
        return n * mean, n * covariance

    return apply


def _mixture(family: Family, measurement: Measurement) -> Callable[[Any], Array]:
    r"""Exact: :math:`\sum_s P(S_n = s \mid \theta)\, N(z; us, V)`, u = +-1 the one basis vector.

    :math:`\log P(S_n = s) = \log h_n(s) + \varphi s + n\log g`: all but the last two is computed once.
    """
    window = _window(measurement)
    assert window is not None  # noqa: S101 (`uses_counts` said so)
    sign, sd, z = measurement.basis[0, 0], np.sqrt(measurement.variance[0]), measurement.value[0]
    fixed = log_base(family, measurement.n, window) - (z - sign * window) ** 2 / (2 * sd**2)
    possible = np.isfinite(fixed)
    counts, weight = jnp.asarray(window[possible]), jnp.asarray(fixed[possible])
    return lambda values: logsumexp(family.natural(values)[0] * counts + weight) + measurement.n * family.log_g(values)


def _window(measurement: Measurement) -> np.ndarray | None:
    """Counts that the measurement leaves possible, or None if they are too many to list."""
    centre = float(measurement.basis[0, 0] * measurement.value[0])
    half = WINDOW * float(np.sqrt(measurement.variance[0])) + 1
    low, high = max(0, int(np.floor(centre - half))), int(np.ceil(centre + half))
    # A measurement far below zero is possible too: then the smallest counts explain it best.
    high = max(high, low + int(np.ceil(half)))
    return np.arange(low, high + 1, dtype=np.float64) if high - low < MAX_COUNTS else None


def log_base(family: Family, n: int, s: np.ndarray) -> np.ndarray:
    r"""Base measure :math:`\log h_n(s)` of the sum of n records of a count family; -inf where it has no mass."""
    if isinstance(family, Binomial):
        total = n * family.trials
        inside = np.minimum(s, total)
        value = gammaln(total + 1) - gammaln(inside + 1) - gammaln(total - inside + 1)
        return np.where(s <= total, value, -np.inf)
    if isinstance(family, Poisson):
        return np.asarray(s * np.log(n) - gammaln(s + 1))
    return np.asarray(gammaln(s + n) - gammaln(s + 1) - gammaln(n))  # geometric


def moments_of(family: Family, clamped: bool) -> Moments:
    """Function values -> mean and covariance of S; of the clamped record where records were clamped and it is known."""
    if clamped and knows_clamped(family):
        return lambda values: _clamped(family, values)  # type: ignore[arg-type]
    return lambda values: (family.mean(values), family.covariance(values))


def knows_clamped(family: Family) -> bool:
    """Whether the moments of a clamped record are computed: families of one column with S(y) = y."""
    return isinstance(family, Linear)


def _clamped(family: Linear, values: Any) -> tuple[Array, Array]:
    r"""Moments of :math:`Y_c = \min(\max(Y, lo), hi)`, from :math:`E[Y_c - lo] = \int_{lo}^{hi} P(Y > y)\,dy`."""
    lo, hi = family.ends
    law = family.distribution(values)
    if family.domain["y"].discrete:
        points = jnp.arange(lo, hi + 1)
        mass = jnp.exp(law.log_prob(points))
        mass = mass.at[-1].add(jnp.maximum(1 - mass.sum(), 0.0))
        mean = jnp.sum(mass * points)
        variance = jnp.sum(mass * (points - mean) ** 2)
    else:
        nodes, weights = np.polynomial.legendre.leggauss(96)
        points, weight = jnp.asarray(lo + (hi - lo) * (nodes + 1) / 2), weights * (hi - lo) / 2
        above = (1 - law.cdf(points)) * weight
        shift = jnp.sum(above)
        mean, variance = lo + shift, jnp.sum(2 * (points - lo) * above) - shift**2
    return jnp.reshape(mean, (1,)), jnp.reshape(variance, (1, 1))


def require_moments(family: Family) -> None:
    """Refuse families whose sum of statistics has no mean and covariance."""
    with jax.enable_x64(True):
        try:
            values = jax.eval_shape(family.joint_prior().sample, jax.random.key(0))
            _, beside = family.beside(Measurement.nothing(family.size, 2))
            jax.eval_shape(lambda v: family.moments_of_sum(v, 2, beside), values)
        except Unsupported:
            raise Unsupported(
                f"the noise-aware posterior needs the mean and covariance of the sum of S, and {type(family).__name__} has "
                "none; use the chain."
            ) from None


def log_density(family: Family, model: Model, measurement: Measurement, *, clamped: bool = False) -> LogDensity:
    """Unnormalised log posterior over the unconstrained parameter; minus infinity where it is not finite."""
    given = log_likelihood(family, measurement, clamped=clamped)

    def apply(theta: Array) -> Array:
        value = model.log_prior(theta) + given(model.constrain(theta))
        return jnp.where(jnp.isnan(value), -jnp.inf, value)

    return apply


# -- its mode ---------------------------------------------------------------------------------------------------------


def find_mode(density: LogDensity, starts: np.ndarray, keep: int = 3) -> tuple[np.ndarray, float]:
    """Climb from the best of many starting points; return the highest place and its log density."""
    from scipy.optimize import minimize

    value = jax.jit(jax.vmap(density))
    # In units of the prior where these differ by orders of magnitude.
    spread = np.maximum(np.std(starts, axis=0), 1e-300)
    unit = spread if spread.max() > _APART * spread.min() else np.ones(len(spread))
    both = jax.jit(jax.value_and_grad(lambda theta: -density(theta)))
    heights = np.asarray(value(jnp.asarray(starts)))
    order = np.argsort(-np.where(np.isfinite(heights), heights, -np.inf))[:keep]
    if not np.isfinite(heights[order[0]]):
        raise InvalidInput(
            "the posterior density is not finite at any draw of the prior; choose another prior or guess."
        )

    def objective(scaled: np.ndarray) -> tuple[float, np.ndarray]:
        height, slope = both(jnp.asarray(scaled * unit))
        if not np.isfinite(height):
            return 1e300, np.zeros_like(scaled)
        return float(height), np.nan_to_num(np.asarray(slope, dtype=np.float64) * unit)

    best, top = starts[order[0]], float(heights[order[0]])
    for start in starts[order]:
        found = minimize(objective, start / unit, jac=True, method="BFGS", options={"maxiter": 300})
        if np.isfinite(found.fun) and -found.fun > top:
            best, top = np.asarray(found.x) * unit, -float(found.fun)
    return best, top


def prior_starts(model: Model, guess: np.ndarray | None = None) -> np.ndarray:
    """Points to climb from: draws of the prior, their median, and a guess."""
    from sfumato.bounds import compiled

    draws = compiled.prior_draws(model)[:_PRIOR_TRIES]
    extra = [np.median(draws, axis=0)] + ([] if guess is None else [guess])
    return np.concatenate([np.stack(extra), draws])


# -- draws ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NoiseAware:
    """Draws from the noise-aware posterior.

    Approximation: central limit theorem for S_n; not independent evidence to pool with the chain (`label` says which
    approximation this one is).

    Attributes
    ----------
    draws
        {site: array (chain, draw, ...)} in each site's own support.
    theta
        The same, unconstrained, shape (chain, draw, d).
    measurement
        What the releases said about the sum of statistics.
    label, notes
        What this is, and what it leaves out.
    privacy
        The guarantee of the releases it was computed from; it adds nothing to their cost.
    """

    draws: Mapping[str, np.ndarray]
    theta: np.ndarray
    measurement: Measurement
    label: str
    notes: tuple[str, ...]
    privacy: Any

    def to_arviz(self) -> Any:
        """ArviZ InferenceData, with label and privacy statement in its attributes."""
        arviz = quiet_arviz()
        attributes = {"label": self.label, "notes": "; ".join(self.notes), "privacy": str(self.privacy)}
        return arviz.from_dict(posterior=dict(self.draws), attrs=attributes | {"inference_library": "sfumato"})

    def summary(self) -> Any:
        """ArviZ summary table."""
        arviz = quiet_arviz()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return arviz.summary(self.to_arviz(), round_to=None)

    def __repr__(self) -> str:
        chains, draws = self.theta.shape[:2]
        return f"<NoiseAware {chains} x {draws} draws of {', '.join(self.draws)}; {self.label}>"


def from_run(run: "Run", family: Family, **options: Any) -> NoiseAware:
    """Noise-aware posterior given the answers of a chain (and the copies its start used, if it ran on bundles).

    The pilot of a chain on live data is left out: its terms are cut to a radius, so they are no linear measurement.
    """
    parts = _answers(run, family)
    n = run.privacy.n
    copies = run.pilot.get("copies_mean")
    directions, answers, sigma = parts
    if copies is not None:
        size = len(copies["mean"])
        directions = np.concatenate([directions, np.eye(size)])
        answers = np.concatenate([answers, copies["mean"]])
        sigma = np.concatenate([sigma, np.full(size, np.sqrt(copies["variance"]))])
    if not len(answers):
        raise InvalidInput("this run released no answer to learn from; draw at least two steps.")
    clamped = run.pilot.get("outside") == "clamp"
    return sample_posterior(
        family, from_answers(directions, answers, sigma, n), run.privacy, clamped=clamped, **options
    )


def _answers(run: "Run", family: Family) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Directions, answers less their public part, and noise, of every step whose two ends are known."""
    t = run.transcript
    if "t_noisy" in t:
        return _statistics(run)
    theta, theta_prop, accepted = (np.asarray(t[name]) for name in ("theta", "theta_prop", "accepted"))
    before = np.concatenate([theta[:, :1], theta[:, :-1]], axis=1)
    known = np.isfinite(t["d_n_noisy"])
    # The transcript holds where a chain was after each step; where it began is known only if it stayed there at first.
    known[:, 0] &= ~accepted[:, 0]
    model = family.to_model()
    with jax.enable_x64(True):

        def natural(point: Array) -> tuple[Array, Array]:
            values = model.constrain(point)
            return family.natural(values), family.log_g(values)

        at = jax.jit(jax.vmap(natural))
        here, there = (tuple(map(np.asarray, at(jnp.asarray(part[known])))) for part in (before, theta_prop))
    directions = there[0] - here[0]
    answers = np.asarray(t["d_n_noisy"])[known] - run.privacy.n * (there[1] - here[1])
    usable = np.isfinite(answers) & np.all(np.isfinite(directions), axis=1)
    return directions[usable], answers[usable], np.asarray(t["sigma"])[known][usable]


def _statistics(run: "Run") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Langevin: the average of all noisy statistics A'S_n, of second copies too, each by its precision.

    Corrections asked for as scalars, a small share of the budget, are left out; those made from a copy say nothing besides.
    """
    t_noisy = np.asarray(run.transcript["t_noisy"])
    columns = np.asarray(run.planned["matrix"]).T
    count = t_noisy.shape[0] * t_noisy.shape[1]
    if not count:
        return np.zeros((0, len(columns))), np.zeros(0), np.zeros(0)
    average, precision = t_noisy.reshape(count, -1).mean(axis=0), run.planned["step"] / 4
    if "copy_noisy" in run.transcript:
        second = run.planned["copy_sigma"] ** -2
        other = np.asarray(run.transcript["copy_noisy"]).reshape(count, -1).mean(axis=0)
        average, precision = (average * precision + other * second) / (precision + second), precision + second
    return columns, average, np.full(len(columns), (precision * count) ** -0.5)


def sample_posterior(
    family: Family,
    measurement: Measurement,
    privacy: Any,
    *,
    clamped: bool = False,
    draws: int = 1000,
    warmup: int = 500,
    chains: int = 4,
    seed: int = 0,
) -> NoiseAware:
    """Draw with NumPyro's NUTS, started at the mode.

    Parameters
    ----------
    family, measurement, privacy
        What is inferred, from what, under which promise.
    clamped
        Whether records were moved into the domain: then m and C are those of the clamped record, where they are known.
    draws, warmup, chains, seed
        Of NUTS.
    """
    from numpyro.infer import MCMC, NUTS

    require_moments(family)
    notes: tuple[str, ...] = ()
    if clamped and not knows_clamped(family):
        notes = ("records were clamped to the domain; the moments used are those of unclamped records",)
    model = family.to_model()
    with jax.enable_x64(True):
        density = log_density(family, model, measurement, clamped=clamped)
        mode, _ = find_mode(density, prior_starts(model))
        spread = _spread(density, mode)
        root, centre = jnp.asarray(spread), jnp.asarray(mode)

        def whitened(free: Array) -> Array:
            return density(centre + root @ free)

        begun = np.random.default_rng(seed).standard_normal((chains, len(mode)))
        heights = np.asarray(jax.jit(jax.vmap(whitened))(jnp.asarray(begun)))
        first = jnp.asarray(np.where(np.isfinite(heights)[:, None], begun, 0.0))
        sampler = MCMC(
            NUTS(potential_fn=lambda free: -whitened(free), dense_mass=True), num_warmup=warmup, num_samples=draws,
            num_chains=chains, chain_method="vectorized", progress_bar=False,
        )  # fmt: skip
        sampler.run(jax.random.key(seed), init_params=first if chains > 1 else first[0])
        theta = centre + sampler.get_samples(group_by_chain=True) @ root.T
        sites = jax.jit(jax.vmap(jax.vmap(model.constrain)))(theta)
        found = {name: np.asarray(value) for name, value in sites.items()}
    label = LABEL_COUNTS if uses_counts(family, measurement, clamped=clamped) else LABEL
    return NoiseAware(found, np.asarray(theta), measurement, label, notes, privacy)


def _spread(density: LogDensity, mode: np.ndarray) -> np.ndarray:
    """Root of the covariance that the curvature at the mode suggests."""
    from sfumato.planner.belief import positive, safe_inverse

    curvature = -np.nan_to_num(np.asarray(jax.jit(jax.hessian(density))(jnp.asarray(mode)), dtype=np.float64))
    return np.linalg.cholesky(safe_inverse(positive(curvature)))
