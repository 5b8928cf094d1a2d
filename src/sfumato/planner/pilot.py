r"""The pilot: a few paid releases that find the start, the scale and the preconditioner.

Noisy Newton steps. In coordinates whitened by the current guess of the posterior covariance, :math:`A A^\top = \Sigma`,
one record's score is short, so a little noise protects it; the posterior's own standard deviation is one, so the same
noise hardly matters. Early steps are cheap and rough; then the information is released once; the last steps, with most
of the pilot's budget, place the start. Everything here is post-processing of what `Release` returned, so no exactness
is at stake: a bad pilot costs efficiency, never correctness.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from sfumato.domain import Domain
from sfumato.model import Model
from sfumato.model.derivatives import triangle_to_matrix
from sfumato.planner import compiled, forecast, synthetic

Array: TypeAlias = Any
Release: TypeAlias = Callable[[str, np.ndarray, np.ndarray, float, float], np.ndarray]
"""(what, theta, whitening matrix, radius, sigma) -> noisy sum: `Vault.release`, here or over a wire."""

Schedule: TypeAlias = tuple[tuple[str, float], ...]
SCHEDULE: Schedule = (
    ("gradient", 0.06),
    ("gradient", 0.06),
    ("gradient", 0.10),
    ("information", 0.14),
    ("gradient", 0.22),
    ("gradient", 0.42),
)
"""Releases and their shares of the pilot's budget."""
PLACING = 0.74
"""Share of the pilot that places the centre: what its first two steps say from afar is not counted on."""
FAMILY_SCHEDULE = (("gradient", 0.1), ("gradient", 0.3), ("gradient", 0.6))
"""The same for a family in its natural parameter, whose information does not depend on the data."""
_RADIUS_MARGIN = 1.0 + 2.0**-10
_FAR = 6.0  # posterior standard deviations, root mean square: from further away a gradient says nothing of the mode
_BENT = 0.25  # of the noise: a Newton step may miss by so much, because the log posterior is no parabola, and still be heard
_MAX_MOVE = 3.0  # in prior standard deviations: no single noisy step may leave the region the prior believes in


class Piloted(NamedTuple):
    """What the pilot found and what it released."""

    picture: forecast.Picture
    releases: list[dict[str, Any]]
    last_move: float


def run_pilot(
    model: Model,
    domain: Mapping[str, Domain],
    n: int,
    start: np.ndarray,
    mu_squared: float,
    release: Release,
    schedule: Schedule = SCHEDULE,
    bound: float = np.inf,
    others: Sequence[Mapping[str, Domain]] = (),
) -> Piloted:
    """Find centre and covariance of the posterior for `mu_squared` of budget.

    Parameters
    ----------
    start
        Public start: the guess, or the prior's median.
    mu_squared
        What the pilot may spend, all releases together.
    release
        The vault's vector answer.
    bound
        Largest coordinate the owners answer for: a step beyond ends on the edge of that box.
    others
        Domains of further owners, where they differ: what their records may say is not cut off either.
    """
    theta, prior_sd = np.clip(start, -bound, bound), _prior_sd(model)
    released: list[dict[str, Any]] = []
    information: np.ndarray | None = None
    moved, roughness = np.inf, 0.0
    answered: list[Answered] = []
    for what, share in schedule:
        batch = synthetic.uniform(model, domain, theta)
        precision = _precision(model, n, theta, batch, information)
        root = np.linalg.cholesky(forecast.safe_inverse(precision))
        radius = _radius(what, model, domain, theta, root, batch)
        for other in others:
            radius = max(radius, _radius(what, model, other, theta, root, synthetic.uniform(model, other, theta)))
        sigma = 2 * radius * _RADIUS_MARGIN / (share * mu_squared) ** 0.5
        answer = release(what, theta, root, radius, sigma)
        released.append(
            {"what": what, "theta": theta.tolist(), "sigma": sigma, "radius": radius, "answer": answer.tolist()}
        )
        if what == "information":
            information, roughness = _information(answer, root, sigma)
            continue
        slope = np.asarray(compiled.prior_derivatives(model)(theta)[0])
        answered.append(Answered(theta, np.linalg.solve(root.T, answer) + slope, np.linalg.inv(root).T * sigma))
        step = answer + root.T @ slope
        move = _bounded(root @ step, prior_sd)
        theta, moved = _inside(model, theta, move), float(np.linalg.norm(step)) / len(step) ** 0.5
        theta = np.clip(theta, -bound, bound)
    batch = synthetic.uniform(model, domain, theta)
    covariance = forecast.safe_inverse(_precision(model, n, theta, batch, information))
    trusted = _straight(answered, theta, _bends(model, n, theta, batch), covariance)
    placed, error = _place(trusted, covariance)
    last = answered[-1].theta
    theta = np.clip(_inside(model, last, _bounded(placed - last, prior_sd)), -bound, bound)
    batch = synthetic.uniform(model, domain, theta)
    covariance = forecast.safe_inverse(_precision(model, n, theta, batch, information))
    return Piloted(forecast.Picture(theta, covariance, "the pilot's releases", error, roughness), released, moved)


class Answered(NamedTuple):
    """A noisy gradient of the log posterior, where it was asked, and a root of its noise's covariance."""

    theta: np.ndarray
    gradient: np.ndarray
    noise: np.ndarray


def _place(answered: list[Answered], covariance: np.ndarray) -> tuple[np.ndarray, float]:
    r"""Where gradients together put the mode, and its error in posterior standard deviations (root mean square).

    With the final covariance :math:`\Sigma` every answer is a Newton step :math:`\theta_k + \Sigma g_k` of its own, with noise
    :math:`\Sigma N_k`; they are averaged by their precisions.
    """
    white = np.linalg.inv(np.linalg.cholesky(covariance))
    noises = [white @ covariance @ a.noise for a in answered]
    precisions = [forecast.safe_inverse(noise @ noise.T) for noise in noises]
    spread = forecast.safe_inverse(np.sum(precisions, axis=0))
    steps = [p @ (white @ (a.theta + covariance @ a.gradient)) for p, a in zip(precisions, answered, strict=True)]
    return np.linalg.solve(white, spread @ np.sum(steps, axis=0)), float((np.trace(spread) / len(white)) ** 0.5)


def _bends(model: Model, n: int, mode: np.ndarray, batch: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Function theta -> how far a Newton step from there misses the mode, were the records the made-up ones."""
    made_up = forecast.safe_inverse(_precision(model, n, mode, batch, None))

    def slope(theta: np.ndarray) -> np.ndarray:
        scores = np.asarray(compiled.scores(model)(theta, dict(batch)))
        finite = np.isfinite(scores).all(axis=1)
        total = np.where(finite[:, None], scores, 0.0).sum(axis=0)
        prior = np.asarray(compiled.prior_derivatives(model)(theta)[0])
        return np.asarray(n * total / max(finite.sum(), 1) + prior)

    there = slope(mode)
    return lambda theta: np.asarray(theta - mode + made_up @ (slope(theta) - there))


def _straight(
    answered: list[Answered], mode: np.ndarray, bend: Callable[[np.ndarray], np.ndarray], covariance: np.ndarray
) -> list[Answered]:
    """Answers from places so near that the log posterior is a parabola from there to the mode; the last one always."""
    white = np.linalg.inv(np.linalg.cholesky(covariance))

    def near(a: Answered) -> bool:
        if not np.linalg.norm(white @ (a.theta - mode)) < _FAR * len(white) ** 0.5:
            return False
        noise = np.linalg.norm(white @ covariance @ a.noise)
        return bool(np.linalg.norm(white @ bend(a.theta)) < _BENT * noise)

    return [a for a in answered[:-1] if near(a)] + answered[-1:]


def _bounded(move: np.ndarray, prior_sd: np.ndarray) -> np.ndarray:
    """The move, or as much of it as stays within a few prior standard deviations: noise may say anything."""
    return np.asarray(move * min(1.0, _MAX_MOVE / max(np.max(np.abs(move) / prior_sd), 1e-300)))


def _inside(model: Model, theta: np.ndarray, move: np.ndarray) -> np.ndarray:
    """Take the move, halved until it stays where the prior is positive."""
    for _ in range(60):
        if np.all(np.isfinite(np.asarray(compiled.prior_derivatives(model)(theta + move)[1]))):
            return theta + move
        move = move / 2
    return theta


def _precision(model: Model, n: int, theta: np.ndarray, batch: Any, information: np.ndarray | None) -> np.ndarray:
    """Posterior precision: from the released information once there is one, from made-up records before."""
    if information is None:
        information = n * forecast.mean_information(model, theta, batch)
    return forecast.positive(information + forecast.prior_precision(model, theta))


def _radius(
    what: str, model: Model, domain: Mapping[str, Domain], theta: np.ndarray, root: np.ndarray, batch: Mapping[str, Any]
) -> float:
    """How long one record's whitened vector gets: over corner records and usual ones, but no more than thrice the usual.

    Corners alone would do for gradients of a GLM; but where tails are heavy the corners say least (a Student-t's information is
    largest in its middle), and what most records say would be cut.
    """
    length = compiled.lengths(model, what)
    corners = np.asarray(length(theta, root, synthetic.extreme(domain)))
    usual = np.asarray(length(theta, root, dict(batch)))
    typical = np.nanmax(usual)
    largest = np.nanmax(np.where(np.isfinite(corners), corners, typical))
    return float(max(min(max(largest, typical), 3 * typical), 1e-12))


def _information(answer: np.ndarray, root: np.ndarray, sigma: float) -> tuple[np.ndarray, float]:
    r"""Undo the whitening; give how rough the result is, too: the expected norm of what is wrong with it.

    The noise is known, so the whitened information W is drawn together towards a multiple of the identity as Stein does,

    .. math:: \bar w I + \max\{0,\ 1 - (p - 2)\sigma^2/\lVert W - \bar w I\rVert^2\}\,(W - \bar w I),

    p the free numbers: much where made-up records already had the right shape, hardly where they had not. Directions in
    which noise drowned the signal keep a modest positive information.
    """
    dim = len(root)
    whitened = triangle_to_matrix(answer, dim)
    level = np.trace(whitened) / dim * np.eye(dim)
    free, apart = dim * (dim + 1) / 2 - 1, float(np.sum((whitened - level) ** 2))
    keep = 1.0 if free <= 2 else max(0.0, 1 - (free - 2) * sigma**2 / max(apart, 1e-300))
    whitened = level + keep * (whitened - level)
    values, vectors = np.linalg.eigh(whitened)
    values = np.maximum(values, min(0.5, max(0.05, sigma * dim**0.5)))
    inverse = np.linalg.inv(root)
    rough = sigma * (1 + free * keep + 2 * (1 - keep)) ** 0.5  # Stein's own estimate of the loss, and the level's
    return np.asarray(inverse.T @ ((vectors * values) @ vectors.T) @ inverse), rough


def _prior_sd(model: Model) -> np.ndarray:
    low, high = np.quantile(compiled.prior_draws(model), [0.16, 0.84], axis=0)
    return np.maximum((high - low) / 2, 1e-6)
