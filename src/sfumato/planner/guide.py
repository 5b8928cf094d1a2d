"""A pilot's guide: knows the model, and no record. Where to go from a noisy gradient, how far, and what that may miss."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sfumato.bounds import compiled, synthetic
from sfumato.domain import Domain
from sfumato.model import Model
from sfumato.model.derivatives import triangle_to_matrix
from sfumato.planner.belief import mean_information, positive, prior_precision, safe_inverse
from sfumato.planner.centre import summit

_BENDS = 4.0  # factor by which a step may change the information along it
_KINKED = 0.3  # information over outer products on made-up records, where it is less the program has kinks
_FAR = 6.0  # posterior standard deviations, root mean square: from further away a gradient says nothing of the mode
_BENT = 0.25  # of the noise: a Newton step may miss by so much, because the log posterior is no parabola, and still be heard
_MAX_MOVE = 3.0  # in prior standard deviations: no single noisy step may leave the region the prior believes in


class Answered(NamedTuple):
    """A noisy score of all records, where it was asked, a root of its noise's covariance, and directions in which it is zero."""

    theta: np.ndarray
    score: np.ndarray
    noise: np.ndarray
    silent: np.ndarray

    @property
    def precision(self) -> np.ndarray:
        """Inverse of the noise's covariance; very large along directions in which a score is known to be zero."""
        covariance = self.noise @ self.noise.T
        return safe_inverse(covariance + 1e-9 * np.trace(covariance) * self.silent @ self.silent.T)


class Looked(NamedTuple):
    """A noisy gradient of the log posterior in whitened coordinates: the way to the mode in posterior standard deviations.

    `score` is the records' part of it, as it is; `sigma` the noise of each whitened coordinate, `free` how many of them have any:
    a coordinate that no record speaks of has none.
    """

    way: np.ndarray
    score: np.ndarray
    sigma: float
    free: int

    @property
    def square(self) -> float:
        """Squared length."""
        return float(self.way @ self.way)


class Point(NamedTuple):
    """Where the pilot is: the parameter, the information it believes in, and how far that may be off (whitened).

    `reached`: variance, in every whitened coordinate, of where the point is: of the gradient that led here, or of a later one
    that was no longer than its noise.
    """

    theta: np.ndarray
    information: np.ndarray
    root: np.ndarray
    roughness: float
    reached: float = 0.0


@dataclass
class Guide:
    """Knows the model, and no record: where to go from a gradient, and how far."""

    model: Model
    domain: Mapping[str, Domain]
    n: int
    bound: float
    known: bool
    silent: np.ndarray

    def enter(self, theta: np.ndarray, covariance: np.ndarray | None) -> Point:
        """The start, with what the plan assumes there."""
        if covariance is None:
            return self.at(theta, self.made_up(theta), np.inf)
        prior = prior_precision(self.model, theta)
        return self.at(theta, positive(safe_inverse(covariance) - prior), np.inf)

    def at(self, theta: np.ndarray, information: np.ndarray, roughness: float, reached: float = 0.0) -> Point:
        """A point and its whitening matrix."""
        heard = np.eye(len(theta)) - self.silent @ self.silent.T
        information = heard @ information @ heard
        precision = positive(information + prior_precision(self.model, theta))
        root = np.linalg.cholesky(safe_inverse(precision))
        return Point(theta, information, root, roughness, reached)

    def made_up(self, theta: np.ndarray) -> np.ndarray:
        """Information of as many made-up records."""
        batch = synthetic.uniform(self.model, self.domain, theta)
        return np.asarray(self.n * mean_information(self.model, theta, batch))

    def kind(self, theta: np.ndarray) -> str:
        """How information is asked for."""
        return information_kind(self.model, self.domain, theta)

    def move(self, point: Point, looked: Looked) -> Point:
        """Take a Newton step, shorter where the information is rough or changes along the way."""
        careful = (1 + min(point.roughness, 1.0)) * point.information
        way = self.towards(point.theta, looked.score, careful)
        theta = self.step(point.theta, way * self._straight_for(point.theta, way))
        return self.at(theta, point.information, point.roughness, looked.sigma**2)

    def towards(self, theta: np.ndarray, score: np.ndarray, information: np.ndarray) -> np.ndarray:
        r"""The way to the mode if the log-likelihood is a parabola: :math:`s^\top\delta - \tfrac12\delta^\top J\delta`.

        The prior is public and taken as it is, not as a parabola: hyperparameters, which no record speaks of, then follow the
        parameters that they govern, and a curved prior is followed along its ridge.
        """
        return _bounded(summit(self.model, theta, score, information) - theta, _prior_sd(self.model))

    def step(self, theta: np.ndarray, way: np.ndarray) -> np.ndarray:
        """Where a step ends: where the prior is positive, and inside the box that the owners answer for."""
        return np.clip(_inside(self.model, theta, way), -self.bound, self.bound)

    def bend(self, point: Point, reach: float) -> float:
        """How far a Newton step misses the mode from `reach` posterior standard deviations away, along the worst axis.

        By made-up records, and by the prior as it is. Where the posterior is curved within the pilot's own error, that error
        says little.
        """
        ends = [point.theta + sign * reach * axis for axis in point.root.T for sign in (-1.0, 1.0)]
        return self.misses(point, ends)

    def misses(self, mode: Point, starts: Sequence[np.ndarray]) -> float:
        """How far a Newton step from the worst of these starts misses the mode, in posterior standard deviations."""
        batch = synthetic.uniform(self.model, self.domain, mode.theta)
        bends = newton_miss(self.model, self.n, mode.theta, batch, self.kind(mode.theta))
        white = np.linalg.inv(mode.root)
        missed = [float(np.linalg.norm(white @ bends(start))) for start in starts]
        return max((m for m in missed if np.isfinite(m)), default=0.0)

    def _straight_for(self, theta: np.ndarray, way: np.ndarray) -> float:
        """How much of a step may be taken before the made-up records' information along it changes by a factor."""
        size = float(np.linalg.norm(way))
        if not size > 0:
            return 1.0

        prior = float(way @ prior_precision(self.model, theta) @ way) / size**2

        def along(share: float) -> float:
            there = _inside(self.model, theta, share * way)
            batch = synthetic.uniform(self.model, self.domain, there)
            mean = np.asarray(compiled.information(self.model)(there, dict(batch)))
            return max(self.n * float(way @ mean @ way) / size**2, 0.0) + prior

        here, share = along(0.0), 1.0
        for _ in range(12):
            there = along(share)
            if here / _BENDS <= there <= here * _BENDS:
                break
            share /= 2
        return share


def information_kind(model: Model, domain: Mapping[str, Domain], theta: np.ndarray) -> str:
    """How information is asked for: as outer products where second derivatives do not tell it (a kink).

    On records that the model itself makes both have one mean; where the Hessian's is much smaller, it misses something.
    """
    if model.observations is None and model.sample_records is None:
        return "information"
    batch = synthetic.uniform(model, domain, theta)
    hessian, outer = (_mean(model, what, theta, batch) for what in ("information", "outer"))
    white = np.linalg.inv(np.linalg.cholesky(positive(outer)))
    return "information" if np.linalg.eigvalsh(white @ hessian @ white.T)[0] > _KINKED else "outer"


def combine_scores(
    answered: list[Answered], theta: np.ndarray, information: np.ndarray, covariance: np.ndarray
) -> tuple[np.ndarray, float]:
    r"""What scores say together about the score at theta, and the error it leaves in the mode (posterior sds, rms).

    A score :math:`s_k` that was asked at :math:`\theta_k` says :math:`s_k - J(\theta - \theta_k)` of theta; these are averaged
    by the precisions of their noises. The mode is off by :math:`\Sigma` times the average's noise.
    """
    precisions = [a.precision for a in answered]
    spread = safe_inverse(np.sum(precisions, axis=0))
    moved = [p @ (a.score - information @ (theta - a.theta)) for p, a in zip(precisions, answered, strict=True)]
    root = np.linalg.cholesky(covariance)
    return spread @ np.sum(moved, axis=0), float((np.trace(root.T @ spread @ root) / len(root)) ** 0.5)


def newton_miss(model: Model, n: int, mode: np.ndarray, batch: Any, what: str) -> Callable[[np.ndarray], np.ndarray]:
    """Function theta -> how far a Newton step from there misses the mode, were the records the made-up ones."""
    information = n * _mean(model, what, mode, batch) + prior_precision(model, mode)
    made_up = safe_inverse(positive(information))

    def slope(theta: np.ndarray) -> np.ndarray:
        scores = np.asarray(compiled.scores(model)(theta, dict(batch)))
        finite = np.isfinite(scores).all(axis=1)
        total = np.where(finite[:, None], scores, 0.0).sum(axis=0)
        prior = np.asarray(compiled.prior_derivatives(model)(theta)[0])
        return np.asarray(n * total / max(finite.sum(), 1) + prior)

    there = slope(mode)
    return lambda theta: np.asarray(theta - mode + made_up @ (slope(theta) - there))


def _mean(model: Model, what: str, theta: np.ndarray, batch: Any) -> np.ndarray:
    """Mean information, or mean outer product, of records where it is finite."""
    each = np.asarray(compiled.vectors(model, what)(theta, np.eye(model.dim), dict(batch)))
    finite = np.isfinite(each).all(axis=1)
    return triangle_to_matrix(each[finite].sum(axis=0) / max(finite.sum(), 1), model.dim)


def on_one_parabola(
    answered: list[Answered], mode: np.ndarray, bend: Callable[[np.ndarray], np.ndarray], covariance: np.ndarray
) -> list[Answered]:
    """Answers from places so near that the log posterior is a parabola from there to the mode; the last one always."""
    white = np.linalg.inv(np.linalg.cholesky(covariance))

    def parabolic(a: Answered) -> bool:
        if not np.linalg.norm(white @ (a.theta - mode)) < _FAR * len(white) ** 0.5:
            return False
        noise = np.linalg.norm(white @ covariance @ a.noise)
        return bool(np.linalg.norm(white @ bend(a.theta)) < _BENT * noise)

    return [a for a in answered[:-1] if parabolic(a)] + answered[-1:]


def listen_matrix(root: np.ndarray, silent: np.ndarray) -> np.ndarray:
    r"""Matrix from a whitened noisy answer :math:`A^\top s + e` to the score s, which is known to be zero along some directions.

    The noise of :math:`A^{-\top}(A^\top s + e)` is correlated, so what is heard along a silent direction tells of the noise along
    the others, and is taken off there.
    """
    back = np.linalg.inv(root).T
    if not silent.size:
        return back
    covariance = back @ back.T
    part = covariance @ silent @ np.linalg.inv(silent.T @ covariance @ silent)
    left = back - part @ (silent.T @ back)
    return left - silent @ (silent.T @ left)


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


def unwhiten_information(answer: np.ndarray, root: np.ndarray, sigma: float) -> tuple[np.ndarray, float]:
    r"""Undo the whitening; give how rough the result is, too: the expected norm of what is wrong with it.

    The noise is known, so the whitened information W is drawn together towards a multiple of the identity as Stein does,

    .. math:: \bar w I + \max\{0,\ 1 - (p - 2)\sigma^2/\lVert W - \bar w I\rVert^2\}\,(W - \bar w I),

    p the free numbers: much where made-up records already had the right shape, hardly where they had not. A direction in which
    the Hessian is negative, as far from the mode of a scale, keeps its absolute curvature; one in which noise drowned the
    signal keeps a modest positive one.
    """
    dim = len(root)
    whitened = triangle_to_matrix(answer, dim)
    level = np.trace(whitened) / dim * np.eye(dim)
    free, apart = dim * (dim + 1) / 2 - 1, float(np.sum((whitened - level) ** 2))
    keep = 1.0 if free <= 2 else max(0.0, 1 - (free - 2) * sigma**2 / max(apart, 1e-300))
    whitened = level + keep * (whitened - level)
    values, vectors = np.linalg.eigh(whitened)
    values = np.maximum(np.abs(values), min(0.5, max(0.02, sigma * dim**0.5)))
    inverse = np.linalg.inv(root)
    rough = sigma * (1 + free * keep + 2 * (1 - keep)) ** 0.5  # Stein's own estimate of the loss, and the level's
    return np.asarray(inverse.T @ ((vectors * values) @ vectors.T) @ inverse), rough


def _prior_sd(model: Model) -> np.ndarray:
    low, high = np.quantile(compiled.prior_draws(model), [0.16, 0.84], axis=0)
    return np.maximum((high - low) / 2, 1e-6)
