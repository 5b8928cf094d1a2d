r"""The conformance suite: what every family must obey, for ours and for yours.

`check` compares each method with something that does not know it: NumPyro's own densities, sums and averages over
drawn records, brute force over the record domain, prior times likelihood. It raises `NotConformant`, which is an
`AssertionError` that says what is wrong and by how much.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.domain import Domain, check_record_domain
from sfumato.errors import Unsupported
from sfumato.families.base import Array, Family
from sfumato.families.prior import Joint, Values
from sfumato.model import Model
from sfumato.model.trials import as_model_input
from sfumato.tools.quick_jit import quick_jit

ATTAINED = 1e-6
"""How close, relative to the width, brute force must come to what is said to be exact."""
_ROUNDING = 1e-9
_SIGMAS = 6.0  # of a Monte Carlo average: one false alarm in 10^9 comparisons


class NotConformant(AssertionError):
    """A family breaks a rule; the message says which, and by how much."""


@dataclass(frozen=True)
class Suite:
    """A family with everything the checks share: parameters drawn from its prior, points of its domain."""

    family: Family
    records: dict[str, Array]
    statistics: Array
    many: Callable[[dict[str, Array]], Array]
    seed: int

    @cached_property
    def model(self) -> Model:
        """The family as a model."""
        return self.family.to_model()

    @cached_property
    def values(self) -> list[dict[str, Array]]:
        """Six draws from the prior."""
        return self.family.prior_draws(self.seed)[:6]

    @property
    def rng(self) -> np.random.Generator:
        """A fresh generator: every check draws the same numbers, whatever ran before it."""
        return np.random.default_rng(self.seed)

    def statistic(self, batch: dict[str, np.ndarray]) -> np.ndarray:
        """S of records laid out in two axes."""
        domain = self.family.domain
        shape = next(iter(batch.values())).shape[:2]
        flat = {name: as_model_input(domain[name], b.reshape(-1, *domain[name].shape)) for name, b in batch.items()}
        return np.asarray(self.many(flat)).reshape(*shape, -1)

    def drawn(self, values: Values, number: int, draws: int) -> np.ndarray:
        """S of records drawn from the family."""
        return np.asarray(self.many(self.family.draw(values, jax.random.key(number), draws)), float)


def check(
    family: Family, *, only: Collection[str] = (), draws: int = 20_000, points: int = 20_000, seed: int = 0
) -> list[str]:
    """Test a family against brute force, NumPyro and itself.

    Parameters
    ----------
    family
        The family to test, with settings that matter to you.
    only
        Names of the checks to run; by default all of `CHECKS`.
    draws
        Records drawn from the family for Monte Carlo averages.
    points
        Records of the domain for brute force.
    seed
        Of both.

    Returns
    -------
    list
        Names of the checks that ran; one that does not apply (no conjugate posterior, say) is left out.

    Raises
    ------
    NotConformant
        With what is wrong.
    """
    with jax.enable_x64(True):
        suite = make_suite(family, points, seed)
        ran = []
        for name, one in CHECKS.items():
            if only and name not in only:
                continue
            try:
                one(suite, draws)
            except Unsupported:
                continue
            ran.append(name)
        return ran


def make_suite(family: Family, points: int, seed: int) -> Suite:
    """Draw what the checks share."""
    check_record_domain(family.domain)
    records = brute_records(family.domain, points, np.random.default_rng(seed))
    many = quick_jit(jax.vmap(family.statistic))
    statistics = many(records)
    _expect(statistics.ndim == 2, f"statistic must have shape (k,) for one record, got {statistics.shape[1:]}")
    _expect(bool(jnp.all(jnp.isfinite(statistics))), "statistic must be finite on the whole record domain")
    return Suite(family, records, statistics, many, seed)


def brute_records(domain: dict[str, Domain], points: int, rng: np.random.Generator) -> dict[str, Array]:
    """Points of the record domain: inside, on the border, corners, in all mixtures of these over the columns."""
    out = {}
    for name, column in domain.items():
        inside, corners = column.sample(rng, points), column.extremes(rng, points)
        shape = (points,) + (1,) * len(column.shape)
        if not column.separable or not column.shape:
            chosen = np.where(rng.random(shape) < 0.5, inside, corners)
        else:
            chosen = np.where(rng.random(inside.shape) < rng.random(shape), inside, corners)
        out[name] = jnp.asarray(as_model_input(column, chosen))
    return out


def _expect(right: bool, message: str) -> None:
    if not right:
        raise NotConformant(message + ".")


def _close(got: Any, wanted: Any, message: str, rtol: float = 1e-6, atol: float = 1e-8) -> None:
    got, wanted = np.asarray(got, float), np.asarray(wanted, float)
    _expect(got.shape == wanted.shape, f"{message}: shapes {got.shape} and {wanted.shape}")
    scale = atol + rtol * np.maximum(np.abs(wanted), np.max(np.abs(wanted), initial=0.0))
    bad = ~(np.abs(got - wanted) <= scale)
    _expect(not bad.any(), f"{message}: {got[bad][:3]} against {wanted[bad][:3]}")


# -- densities --------------------------------------------------------------------------------------------------------


def check_densities(suite: Suite, draws: int) -> None:
    """Compare the log likelihood with NumPyro's log density: equal up to log h(y), which is the same for all theta."""
    family = suite.family
    few = {name: column[:200] for name, column in suite.records.items()}

    @quick_jit
    def gap(values: Values) -> Array:
        ours = jax.vmap(lambda r: family.log_likelihood(values, r))(few)
        return ours - family.log_prob(values, few)

    gaps = np.stack([np.asarray(gap(values)) for values in suite.values])
    gaps = gaps[:, np.isfinite(gaps).all(axis=0)]  # NumPyro leaves the border of some supports out
    _expect(gaps.shape[1] > 50, "log_likelihood or NumPyro's log_prob is not finite on much of the record domain")
    message = "log_likelihood differs from NumPyro's by more than log h(y)"
    _close(gaps - gaps[0], np.zeros_like(gaps), message, atol=1e-6 * (1 + np.abs(gaps).max()))


def check_model(suite: Suite, draws: int) -> None:
    """Compare scores: the `Model` scores as the family does, and its parameter makes the round trip."""
    model, family = suite.model, suite.family
    record = {name: column[0] for name, column in suite.records.items()}

    @quick_jit
    def both(values: Values) -> Any:
        theta = model.unconstrain(values)
        scores = model.log_likelihood(theta, record), family.log_likelihood(values, record)
        return model.constrain(theta), *scores, model.log_prior(theta)

    for values in suite.values:
        back, of_model, of_family, log_prior = both(values)
        for name, value in values.items():
            _close(back[name], value, f"constrain(unconstrain(.)) must give {name} back", rtol=1e-8)
        _close(of_model, of_family, "the model's log likelihood must be the family's")
        _expect(bool(jnp.isfinite(log_prior)), "log_prior must be finite at a draw from the prior")


# -- moments ----------------------------------------------------------------------------------------------------------


def check_score(suite: Suite, draws: int) -> None:
    r"""Score identity: the log-normaliser's gradient is minus the mean of S, :math:`\nabla\log g = -J^\top E[S]`."""
    family, model = suite.family, suite.model

    @quick_jit
    def derivatives(values: Values) -> tuple[Array, Array]:
        theta = model.unconstrain(values)
        jacobian = jax.jacfwd(lambda t: family.natural(model.constrain(t)))(theta)
        return jacobian, jax.grad(lambda t: family.log_g(model.constrain(t)))(theta)

    for number, values in enumerate(suite.values[:3]):
        jacobian, gradient = (np.asarray(part) for part in derivatives(values))
        scores = suite.drawn(values, number, draws) @ jacobian + gradient
        error = scores.std(axis=0, ddof=1) / draws**0.5
        _averages(scores.mean(axis=0), np.zeros_like(error), error, "the gradient of log_g is not minus the mean of S")


def check_moments(suite: Suite, draws: int) -> None:
    """`mean` and `covariance` against averages over drawn records."""
    moments = quick_jit(lambda values: (suite.family.mean(values), suite.family.covariance(values)))
    for number, values in enumerate(suite.values[:3]):
        mean, covariance = (np.asarray(part) for part in moments(values))
        statistics = suite.drawn(values, 10 + number, draws)
        error = statistics.std(axis=0, ddof=1) / draws**0.5
        _averages(statistics.mean(axis=0), mean, error, "mean is not the mean of S")
        centred = statistics - mean
        products = centred[:, :, None] * centred[:, None, :]
        error = products.std(axis=0, ddof=1) / draws**0.5
        _averages(products.mean(axis=0), covariance, error, "covariance is not the covariance of S", heavy=True)


def check_partition(suite: Suite, draws: int) -> None:
    """`log_partition` is minus `log_g`, its gradient the mean, its Hessian the covariance."""
    family = suite.family

    @quick_jit
    def both(values: Values) -> Any:
        phi = family.natural(values)
        ours = family.log_partition(phi), jax.grad(family.log_partition)(phi), jax.hessian(family.log_partition)(phi)
        return ours, (-family.log_g(values), family.mean(values), family.covariance(values))

    for values in suite.values:
        (level, gradient, hessian), (minus_log_g, mean, covariance) = both(values)
        _close(level, minus_log_g, "log_partition(natural(.)) must be -log_g")
        _close(gradient, mean, "the gradient of log_partition must be the mean")
        _close(hessian, covariance, "the Hessian of log_partition must be the covariance")


def check_inverse(suite: Suite, draws: int) -> None:
    """`natural_inverse` gives the values back."""
    family = suite.family
    round_trip = quick_jit(lambda values: family.natural_inverse(family.natural(values)))
    for values in suite.values:
        back = round_trip(values)
        for name, value in values.items():
            _close(back[name], value, f"natural_inverse(natural(.)) must give {name} back", rtol=1e-6)


def _averages(got: np.ndarray, wanted: np.ndarray, error: np.ndarray, message: str, heavy: bool = False) -> None:
    # Averages of products have heavy tails, so their own error is uncertain: a tenth of the value is forgiven.
    slack = 1e-9 * (1 + np.abs(wanted)) + (0.1 * np.abs(wanted).max() if heavy else 0.0)
    z = (np.abs(got - wanted) - slack) / np.maximum(error, 1e-300)
    _expect(not np.any(z > _SIGMAS), f"{message}: average {got.ravel()[:4]} of records, {wanted.ravel()[:4]} claimed")


# -- sensitivities ----------------------------------------------------------------------------------------------------


def check_support(suite: Suite, draws: int) -> None:
    """`support` bounds v'S over the domain, and is attained where the family says exact; `width` is its two ends."""
    family, k = suite.family, suite.family.size
    directions = np.concatenate([np.eye(k), -np.eye(k), suite.rng.standard_normal((24, k))])
    ends = quick_jit(jax.vmap(lambda v: (family.support(v), family.support(-v), family.width(v))))(directions)
    above, below, widths = (np.asarray(end) for end in ends)
    _close(widths, above + below, "width(v) must be support(v) + support(-v)")
    _compare(climb(suite, directions), above, widths + np.abs(above), family.exact, "support")


def _compare(found: np.ndarray, claimed: np.ndarray, scale: np.ndarray, exact: bool, what: str) -> None:
    """A claim must not lie below what was found; nor above it, if it is said to be exact."""
    over, under = (found - claimed) / (scale + 1e-12), (claimed - found) / (scale + 1e-12)
    _expect(
        over.max() <= _ROUNDING, f"{what} is not an upper bound: brute force exceeds it by {over.max():.2g} of itself"
    )
    right = not exact or under.max() <= ATTAINED
    _expect(right, f"{what} is said to be exact, and is too large by {under.max():.2g} of itself")


def climb(suite: Suite, directions: np.ndarray, starts: int = 4) -> np.ndarray:
    """Largest v'S found for each direction: brute force, then random moves of shrinking length around the best points."""
    domain, rng = suite.family.domain, suite.rng
    scores = np.asarray(suite.statistics) @ directions.T
    if all(column.discrete for column in domain.values()):
        return np.asarray(scores.max(axis=0))
    at = np.argsort(-scores, axis=0)[:: len(scores) // 40][:starts].T.ravel()
    at[::starts] = scores.argmax(axis=0)
    targets = np.repeat(directions, starts, axis=0)
    best = {name: np.asarray(column, float)[at] for name, column in suite.records.items()}
    top = np.repeat(-np.inf, len(targets))
    for length in _LENGTHS:
        batch = {name: _around(column, best[name], length, rng) for name, column in domain.items()}
        values = np.einsum("dmk,dk->dm", suite.statistic(batch), targets)
        pick = values.argmax(axis=1)
        top = values.max(axis=1)
        best = {name: column[np.arange(len(pick)), pick] for name, column in batch.items()}
    return np.asarray(np.maximum(top.reshape(-1, starts).max(axis=1), scores.max(axis=0)))


_LENGTHS = np.geomspace(0.5, 1e-8, 100)
_NEIGHBOURS = 64


def _around(column: Domain, points: np.ndarray, length: float, rng: np.random.Generator) -> np.ndarray:
    """Neighbours of each point, itself among them; some coordinates stay where they are (on a face of a box, say)."""
    shape = (len(points), _NEIGHBOURS, *column.shape)
    moves = rng.standard_normal(shape) * (column.hi - column.lo) * length
    moves *= rng.random(shape) < rng.random((*shape[:2], *(1,) * len(column.shape)))
    moves[:, 0] = 0.0
    flat = (points[:, None] + moves).reshape(-1, *column.shape)
    return np.asarray(column.clamp(flat).reshape(shape))


def check_diameter(suite: Suite, draws: int) -> None:
    """`diameter` bounds the distance of any two statistics, and is attained where the family says exact."""
    family, rng, k = suite.family, suite.rng, suite.family.size
    points = np.asarray(suite.statistics)
    claimed, found = family.diameter(), max(furthest(points, rng), climb_pair(suite))
    said = f"diameter is {claimed:.6g}, and the furthest records found are {found:.6g} apart"
    _expect(found <= claimed * (1 + _ROUNDING), f"diameter is too small: {said}")
    exact = not family.exact_diameter or claimed <= found * (1 + 10 * ATTAINED)
    _expect(exact, f"diameter is said to be exact, and is too large: {said}")
    matrix = rng.standard_normal((k, k))
    claimed, found = float(quick_jit(family.whitened_diameter)(jnp.asarray(matrix))), furthest(points @ matrix, rng)
    said = f"{claimed:.6g}, and the furthest records found are {found:.6g} apart"
    _expect(found <= claimed * (1 + _ROUNDING), f"whitened_diameter is too small: {said}")


def furthest(points: np.ndarray, rng: np.random.Generator) -> float:
    """Largest distance found between two of the points: among those that are extreme along some direction."""
    directions = rng.standard_normal((points.shape[1], 400))
    extreme = np.unique(np.concatenate([np.argmax(points @ directions, 0), np.argmin(points @ directions, 0)]))
    chosen = points[extreme]
    return float(np.sqrt(((chosen[:, None] - chosen[None]) ** 2).sum(-1).max()))


def climb_pair(suite: Suite, starts: int = 16) -> float:
    """Largest distance found between two statistics: each of two far records is moved in turn."""
    domain, rng, points = suite.family.domain, suite.rng, np.asarray(suite.statistics)
    if all(column.discrete for column in domain.values()):
        return 0.0
    first = rng.integers(len(points), size=starts)
    ends = [np.array([int(np.argmax(((points - points[i]) ** 2).sum(1))) for i in first])]
    ends.append(np.array([int(np.argmax(((points - points[i]) ** 2).sum(1))) for i in ends[0]]))
    pair = [{name: np.asarray(column, float)[end] for name, column in suite.records.items()} for end in ends]
    images = [points[end] for end in ends]
    for length in _LENGTHS:
        for side in (0, 1):
            batch = {name: _around(column, pair[side][name], length, rng) for name, column in domain.items()}
            moved = suite.statistic(batch)
            pick = ((moved - images[1 - side][:, None]) ** 2).sum(-1).argmax(axis=1)
            rows = np.arange(starts)
            images[side] = moved[rows, pick]
            pair[side] = {name: column[rows, pick] for name, column in batch.items()}
    return float(np.sqrt(((images[0] - images[1]) ** 2).sum(1).max()))


def check_bounds(suite: Suite, draws: int) -> None:
    """`bounds` contain every record's log ratio, are attained where exact, and change sign when theta, theta' swap."""
    family, model = suite.family, suite.model
    thetas = jnp.stack([quick_jit(model.unconstrain)(values) for values in suite.values])
    first, second = np.triu_indices(len(thetas), 1)
    ranges = quick_jit(jax.vmap(family.bounds().range))
    lo, hi = (np.asarray(end) for end in ranges(thetas[first], thetas[second]))
    back_lo, back_hi = (np.asarray(end) for end in ranges(thetas[second], thetas[first]))
    _close(
        np.stack([lo, hi]), -np.stack([back_hi, back_lo]), "swapping theta and theta' must negate and swap the bounds"
    )

    @jax.vmap
    def parts(theta: Array) -> tuple[Array, Array]:
        values = model.constrain(theta)
        return family.natural(values), family.log_g(values)

    phi, log_g = (np.asarray(part) for part in quick_jit(parts)(thetas))
    moves, shifts = phi[second] - phi[first], log_g[second] - log_g[first]
    scale = hi - lo + np.abs(shifts) + 1e-6
    _compare(shifts + climb(suite, moves), hi, scale, family.exact_ratio, "the upper bound of the log ratio")
    _compare(climb(suite, -moves) - shifts, -lo, scale, family.exact_ratio, "the lower bound of the log ratio")


# -- the conjugate posterior ------------------------------------------------------------------------------------------


def check_posterior(suite: Suite, draws: int) -> None:
    """Compare the conjugate posterior with prior times likelihood: proportional."""
    family, n = suite.family, 7
    records = {name: column[:n] for name, column in suite.records.items()}
    s_n = jnp.sum(jax.vmap(family.statistic)(records), axis=0)
    posterior, prior = family.posterior(s_n, n), family.joint_prior()
    _expect(isinstance(posterior, Joint), "posterior must be a Joint")

    @quick_jit
    def gap(values: Values) -> Array:
        likelihood = jnp.sum(jax.vmap(lambda r: family.log_likelihood(values, r))(records))
        return prior.log_prob(values) + likelihood - posterior.log_prob(values)

    gaps = []
    for values in suite.values:
        gaps.append(float(gap(values)))
    _close(gaps, np.full(len(gaps), gaps[0]), "posterior is not proportional to prior times likelihood", rtol=1e-7)


CHECKS: dict[str, Callable[[Suite, int], None]] = {
    "densities": check_densities,
    "model": check_model,
    "score": check_score,
    "moments": check_moments,
    "partition": check_partition,
    "inverse": check_inverse,
    "support": check_support,
    "diameter": check_diameter,
    "bounds": check_bounds,
    "posterior": check_posterior,
}
