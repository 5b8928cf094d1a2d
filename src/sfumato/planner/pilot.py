r"""The pilot: a few paid releases that find the start, the scale and the preconditioner.

Noisy Newton steps. In coordinates whitened by the current guess of the posterior covariance, :math:`A A^\top = \Sigma`,
one record's score is short, so a little noise protects it; the posterior's own standard deviation is one, so the same
noise hardly matters. Early steps are cheap and rough; then the information is released once; the last steps, with most
of the pilot's budget, place the start. Everything here is post-processing of what `Release` returned, so no exactness
is at stake: a bad pilot costs efficiency, never correctness.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
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
"""Releases and their shares of the pilot's budget; the gradients after the information place the centre together."""
PLACING = 0.64
"""Share of the pilot that places the centre."""
FAMILY_SCHEDULE = (("gradient", 0.1), ("gradient", 0.3), ("gradient", 0.6))
"""The same for a family in its natural parameter, whose information does not depend on the data."""
_RADIUS_MARGIN = 1.0 + 2.0**-10
_FAR = 4.0  # posterior standard deviations, root mean square: a Newton step this long was not yet at its end
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
    """
    theta, prior_sd = np.clip(start, -bound, bound), _prior_sd(model)
    released: list[dict[str, Any]] = []
    information: np.ndarray | None = None
    moved, roughness, sigma = np.inf, 0.0, np.inf
    placed: list[tuple[np.ndarray, float, float]] = []
    for what, share in schedule:
        batch = synthetic.uniform(model, domain, theta)
        precision = _precision(model, n, theta, batch, information)
        root = np.linalg.cholesky(forecast.safe_inverse(precision))
        radius = _radius(what, model, domain, theta, root, batch)
        sigma = 2 * radius * _RADIUS_MARGIN / (share * mu_squared) ** 0.5
        answer = release(what, theta, root, radius, sigma)
        released.append(
            {"what": what, "theta": theta.tolist(), "sigma": sigma, "radius": radius, "answer": answer.tolist()}
        )
        if what == "information":
            information = _information(answer, root, sigma, n)
            roughness = sigma * len(root) / 2**0.5
            continue
        step = answer + root.T @ np.asarray(compiled.prior_derivatives(model)(jnp.asarray(theta))[0])
        move = root @ step
        move *= min(1.0, _MAX_MOVE / max(np.max(np.abs(move) / prior_sd), 1e-300))
        theta, moved = _inside(model, theta, move), float(np.linalg.norm(step)) / len(step) ** 0.5
        theta = np.clip(theta, -bound, bound)
        if information is not None:
            placed.append((theta, sigma**-2, moved))
    theta, error = _place(placed) if placed else (theta, sigma)
    theta = np.clip(theta, -bound, bound)  # an average of points on the edge may round to just outside
    batch = synthetic.uniform(model, domain, theta)
    covariance = forecast.safe_inverse(_precision(model, n, theta, batch, information))
    return Piloted(forecast.Picture(theta, covariance, "the pilot's releases", error, roughness), released, moved)


def _place(placed: list[tuple[np.ndarray, float, float]]) -> tuple[np.ndarray, float]:
    """Average what the last Newton steps say, by their precision; a step from far away says nothing."""
    near = [p for p in placed if p[2] < _FAR] or placed[-1:]
    weights = np.array([weight for _, weight, _ in near])
    return np.asarray(weights @ np.stack([theta for theta, _, _ in near]) / weights.sum()), float(weights.sum() ** -0.5)


def _inside(model: Model, theta: np.ndarray, move: np.ndarray) -> np.ndarray:
    """Take the move, halved until it stays where the prior is positive."""
    for _ in range(60):
        if np.all(np.isfinite(np.asarray(compiled.prior_derivatives(model)(jnp.asarray(theta + move))[1]))):
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
    corners = np.asarray(length(jnp.asarray(theta), jnp.asarray(root), synthetic.extreme(domain)))
    usual = np.asarray(length(jnp.asarray(theta), jnp.asarray(root), dict(batch)))
    typical = np.nanmax(usual)
    largest = np.nanmax(np.where(np.isfinite(corners), corners, typical))
    return float(max(min(max(largest, typical), 3 * typical), 1e-12))


def _information(answer: np.ndarray, root: np.ndarray, sigma: float, n: int) -> np.ndarray:
    """Undo the whitening; directions in which noise drowned the signal keep a modest positive information."""
    dim = len(root)
    whitened = triangle_to_matrix(answer, dim)
    values, vectors = np.linalg.eigh(whitened)
    values = np.maximum(values, min(0.5, max(0.05, sigma * dim**0.5)))
    inverse = np.linalg.inv(root)
    return np.asarray(inverse.T @ ((vectors * values) @ vectors.T) @ inverse)


def _prior_sd(model: Model) -> np.ndarray:
    low, high = np.quantile(compiled.prior_draws(model), [0.16, 0.84], axis=0)
    return np.maximum((high - low) / 2, 1e-6)
