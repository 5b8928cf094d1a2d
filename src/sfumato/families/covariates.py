r"""What a measurement says of the covariates' own sums :math:`G = \sum_i z_iz_i^\top`, about which a regression has no law.

Before it, covariates are an unknown law on their domain: a Dirichlet process of concentration c about made-up ones (half of all
entries uniform, half at the ends). The mean of :math:`zz^\top` under such a law has the mean :math:`E` and the covariance
:math:`C/(1 + c)` of made-up records. To the normal law with these moments the measurement is added; the part of it where G is no
sum of squares is taken off, and the moments of what is left are given.

References
----------
Ferguson 1973, "A Bayesian analysis of some nonparametric problems".
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from sfumato.families.measurement import Measurement

CONCENTRATION = 1.0
_DRAWN = 4000  # tries whether G is a sum of squares
_SURE = 0.995  # share of them from which the normal law is taken as it is
_PLENTY = 0.1  # share from which they are enough draws; below, hit and run
_WALKERS, _STEPS, _SETTLED = 64, 1200, 300
_INSIDE = 0.9  # of the way to the edge of all sums of squares: where walks begin


class Sums(NamedTuple):
    """Mean and covariance of the entries of G."""

    mean: np.ndarray
    covariance: np.ndarray


def believed(made_up: np.ndarray, heard: Measurement, matrix: Callable[[np.ndarray], np.ndarray]) -> Sums:
    """Moments of the sums given a measurement of them.

    Parameters
    ----------
    made_up
        Entries of zz' of made-up records.
    heard
        The measurement of their sums, with independent noise of variance one.
    matrix
        Function entries, shape (m, k), -> G, shape (m, d, d).
    """
    n, size = heard.n, made_up.shape[1]
    centre = n * made_up.mean(axis=0)
    spread = n**2 * np.cov(made_up, rowvar=False).reshape(size, size) / (1 + CONCENTRATION)
    values, vectors = np.linalg.eigh(spread)
    root = vectors * np.sqrt(np.maximum(values, 1e-9 * max(values.max(), 1e-300)))
    seen = heard.basis[:size].T @ root
    left, singular, right = np.linalg.svd(seen, full_matrices=True)
    gain = singular / (1 + singular**2)
    found = right[: len(singular)].T @ (
        gain * (left[:, : len(singular)].T @ (heard.value - heard.basis[:size].T @ centre))
    )
    shrink = np.ones(size)
    shrink[: len(singular)] = (1 + singular**2) ** -0.5
    return _sums_of_squares(centre, centre + root @ found, root @ right.T * shrink, matrix)


def _sums_of_squares(
    inside: np.ndarray, mean: np.ndarray, root: np.ndarray, matrix: Callable[[np.ndarray], np.ndarray]
) -> Sums:
    """Moments of a normal law, cut to where G is positive."""
    rng = np.random.default_rng(0)
    drawn = mean + rng.standard_normal((_DRAWN, len(mean))) @ root.T
    good = drawn[np.linalg.eigvalsh(matrix(drawn))[:, 0] >= 0]
    if len(good) >= _SURE * _DRAWN:
        return Sums(mean, root @ root.T)
    if len(good) < _PLENTY * _DRAWN:
        good = mean + _hit_and_run(np.linalg.solve(root, inside - mean), mean, root, matrix, rng) @ root.T
    return Sums(good.mean(axis=0), np.cov(good, rowvar=False).reshape(len(mean), len(mean)))


def _hit_and_run(
    inside: np.ndarray, mean: np.ndarray, root: np.ndarray, matrix: Callable[[np.ndarray], np.ndarray],
    rng: np.random.Generator,
) -> np.ndarray:  # fmt: skip
    """Standard normal vectors w for which the matrix of mean + root w is positive.

    References
    ----------
    Smith 1984, "Efficient Monte Carlo procedures for generating points uniformly distributed over bounded regions".
    """
    nothing = matrix(mean[None])[0]

    def ends(here: np.ndarray, way: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How far a way may be gone, backwards and forwards."""
        lower = np.linalg.inv(np.linalg.cholesky(matrix(mean + here @ root.T)))
        along = matrix(mean + way @ root.T) - nothing
        values = np.linalg.eigvalsh(lower @ along @ np.swapaxes(lower, 1, 2))
        forwards = np.where(values[:, 0] < 0, -1 / np.minimum(values[:, 0], -1e-300), np.inf)
        backwards = np.where(values[:, -1] > 0, -1 / np.maximum(values[:, -1], 1e-300), -np.inf)
        return backwards * (1 - 1e-9), forwards * (1 - 1e-9)

    way = -inside[None]
    here = np.repeat(inside[None] + min(_INSIDE * float(ends(inside[None], way)[1][0]), 1.0) * way, _WALKERS, axis=0)
    kept = []
    for step in range(_STEPS):
        way = rng.standard_normal(here.shape)
        way /= np.linalg.norm(way, axis=1, keepdims=True)
        middle = -np.sum(here * way, axis=1)
        back, forth = ends(here, way)
        moved = middle + _truncated_normal(back - middle, forth - middle, rng)
        here = here + np.clip(moved, back, forth)[:, None] * way
        if step >= _SETTLED and step % 5 == 0:
            kept.append(here)
    return np.concatenate(kept)


def _truncated_normal(low: np.ndarray, high: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One standard normal between each pair of bounds, in the tail where it is better conditioned."""
    turn = low > 0
    low, high = np.where(turn, -high, low), np.where(turn, -low, high)
    under, over = ndtr(low), ndtr(high)
    drawn = ndtri(np.clip(under + rng.random(len(low)) * (over - under), 1e-300, 1 - 1e-16))
    drawn = np.where(over - under > 1e-200, np.clip(drawn, low, high), high)
    return np.asarray(np.where(turn, -drawn, drawn))
