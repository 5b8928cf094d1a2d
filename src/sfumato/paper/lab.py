r"""A laboratory of finite chains: transition matrices written out, so that properties are computed, not simulated.

Take a finite parameter space, a target `pi` (a probability vector) and a proposal matrix `q` (rows sum to one). The
matrices of Metropolis-Hastings and of the penalty algorithm follow exactly, because the expected acceptance has a
closed form. Reversibility, Peskun order, spectral gap, minorisation and asymptotic variance are then linear algebra:
change sigma and look.

>>> from sfumato.paper import lab
>>> pi = lab.normal_target(size=21, sd=4.0)
>>> q = lab.walk(size=21, reach=3)
>>> T, T_sigma = lab.metropolis(pi, q), lab.penalty(pi, q, sigma=1.0)
>>> lab.imbalance(pi, T_sigma) < 1e-12 and lab.peskun_excess(T_sigma, T) < 1e-12
True

No private data are involved anywhere here.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.paper._checks import require
from sfumato.paper.acceptance import expected_acceptance

Array = NDArray[np.float64]


def normal_target(size: int, sd: float) -> Array:
    """Discretised normal on `size` grid points, standard deviation `sd` in units of the grid, centred.

    Parameters
    ----------
    size
        Number of points, at least 2.
    sd
        Standard deviation, above 0.

    Returns
    -------
    array
        Probability vector.
    """
    return target(-0.5 * ((np.arange(size) - (size - 1) / 2) / sd) ** 2)


def target(log_density: ArrayLike) -> Array:
    """Probability vector from unnormalised log densities on a finite set.

    Parameters
    ----------
    log_density
        One finite value per state.

    Returns
    -------
    array
    """
    log_pi = np.asarray(log_density, dtype=float)
    require(np.isfinite(log_pi), "log_density must be finite on every state", log_pi, "Drop the impossible states.")
    weights = np.exp(log_pi - log_pi.max())
    return np.asarray(weights / weights.sum())


def walk(size: int, reach: int) -> Array:
    """Proposal matrix of a random walk: uniform on the `reach` nearest points of each side; off the grid stays put.

    Parameters
    ----------
    size
        Number of points.
    reach
        Longest step, at least 1.

    Returns
    -------
    array
        Symmetric; a proposal that would leave the grid proposes the current point.
    """
    return steps(size, np.concatenate([np.zeros(1), np.ones(reach)]))


def steps(size: int, weights: ArrayLike) -> Array:
    """Proposal matrix of a symmetric walk whose step length m has weight ``weights[m]``.

    Parameters
    ----------
    size
        Number of points.
    weights
        Weight of each length 0, 1, ...; normalised here.

    Returns
    -------
    array
        Symmetric; what would leave the grid stays put.
    """
    lengths = _one_sided(size, weights)
    q = (lengths + lengths.T) / 2
    q[np.diag_indices(size)] += np.maximum(1 - q.sum(axis=1), 0.0)
    return np.asarray(q)


def independent(pi: ArrayLike) -> Array:
    """Proposal matrix that draws from `pi` whatever the state (uniformly ergodic if it covers the target).

    Parameters
    ----------
    pi
        Probability vector.

    Returns
    -------
    array
    """
    row = np.asarray(pi, dtype=float)
    return np.tile(row, (row.size, 1))


def log_ratios(pi: ArrayLike, q: ArrayLike) -> Array:
    r"""Exact log acceptance ratios :math:`\lambda_{ij} = \log\{\pi_j q_{ji}/(\pi_i q_{ij})\}`.

    Parameters
    ----------
    pi
        Target, positive everywhere.
    q
        Proposal matrix.

    Returns
    -------
    array
        Minus infinity where the way back does not exist; 0 where nothing is proposed.
    """
    pi_, q_ = _chain_arguments(pi, q)
    with np.errstate(divide="ignore", invalid="ignore"):
        flow = np.log(pi_)[:, None] + np.log(q_)
        return np.where(q_ > 0, flow.T - flow, 0.0)


def metropolis(pi: ArrayLike, q: ArrayLike) -> Array:
    """Transition matrix T of Metropolis-Hastings (Sec. 2).

    Parameters
    ----------
    pi
        Target, positive everywhere.
    q
        Proposal matrix.

    Returns
    -------
    array
    """
    return penalty(pi, q, 0.0)


def penalty(pi: ArrayLike, q: ArrayLike, sigma: ArrayLike) -> Array:
    r"""Transition matrix :math:`T_\sigma` of the penalty algorithm.

    .. math:: T_\sigma(i, j) = q_{ij}\,\alpha_{\sigma_{ij}}(\lambda_{ij}), \quad i \ne j

    Parameters
    ----------
    pi
        Target, positive everywhere.
    q
        Proposal matrix.
    sigma
        Standard deviation of the noise: one number, or a symmetric matrix of one per pair.

    Returns
    -------
    array
        Rows sum to one.

    Raises
    ------
    InvalidInput
        If sigma is not symmetric: then the chain would not target `pi`.
    """
    pi_, q_ = _chain_arguments(pi, q)
    noise = np.broadcast_to(np.asarray(sigma, dtype=float), q_.shape)
    require(noise == noise.T, "sigma must be symmetric in (theta, theta')", sigma, "Symmetrise it, or use a constant.")
    moves = q_ * np.asarray(expected_acceptance(log_ratios(pi_, q_), noise))
    np.fill_diagonal(moves, 0.0)
    return np.asarray(moves + np.diag(1 - moves.sum(axis=1)))


def guided(pi: ArrayLike, weights: ArrayLike, sigma: float) -> Array:
    r"""Transition matrix of the guided walk: keep the direction after an acceptance, flip it after a rejection.

    The lifted chain lives on two copies of the grid (first moving up, then moving down) and leaves the uniform
    lifting of `pi` invariant with the same expected acceptance; it is not reversible.

    Parameters
    ----------
    pi
        Target, positive everywhere.
    weights
        Weight of each step length 0, 1, ...
    sigma
        Standard deviation of the noise, at least 0.

    Returns
    -------
    array
        Of twice the size; use ``np.tile(pi, 2) / 2`` as its target and ``np.tile(f, 2)`` for functions.
    """
    pi_ = np.asarray(pi, dtype=float)
    up = _one_sided(pi_.size, weights)
    lam = np.log(pi_)[None, :] - np.log(pi_)[:, None]
    alpha = np.asarray(expected_acceptance(lam, sigma))
    rising, falling = up * alpha, up.T * alpha
    return np.block(
        [
            [rising, np.diag(1 - rising.sum(axis=1))],
            [np.diag(1 - falling.sum(axis=1)), falling],
        ]
    )


def imbalance(pi: ArrayLike, transition: ArrayLike) -> float:
    r"""Largest violation of detailed balance, :math:`\max_{ij}|\pi_i T_{ij} - \pi_j T_{ji}|`.

    Parameters
    ----------
    pi
        Target.
    transition
        Transition matrix.

    Returns
    -------
    float
        Zero, to rounding, for a chain reversible with respect to `pi`.
    """
    flow = np.asarray(pi, dtype=float)[:, None] * np.asarray(transition, dtype=float)
    return float(np.abs(flow - flow.T).max())


def invariance_error(pi: ArrayLike, transition: ArrayLike) -> float:
    r"""Largest entry of :math:`|\pi T - \pi|`.

    Parameters
    ----------
    pi
        Target.
    transition
        Transition matrix.

    Returns
    -------
    float
    """
    row = np.asarray(pi, dtype=float)
    return float(np.abs(row @ np.asarray(transition, dtype=float) - row).max())


def peskun_excess(slower: ArrayLike, faster: ArrayLike) -> float:
    """By how much `slower` exceeds `faster` off the diagonal, at most: not above zero if Peskun's order holds.

    Parameters
    ----------
    slower, faster
        Transition matrices of one size.

    Returns
    -------
    float
    """
    excess = np.asarray(slower, dtype=float) - np.asarray(faster, dtype=float)
    return float(excess[~np.eye(len(excess), dtype=bool)].max())


def minorisation_ratio(slower: ArrayLike, faster: ArrayLike) -> float:
    r"""Largest kappa with :math:`T_\sigma(\theta, \cdot) \ge \kappa\,T(\theta, \cdot)`: the smallest ratio of entries.

    Parameters
    ----------
    slower, faster
        Transition matrices of the penalty chain and of Metropolis-Hastings.

    Returns
    -------
    float
    """
    top, bottom = np.asarray(slower, dtype=float), np.asarray(faster, dtype=float)
    return float((top[bottom > 0] / bottom[bottom > 0]).min())


def minorisation(transition: ArrayLike) -> float:
    r"""Doeblin constant :math:`\sum_j \min_i T_{ij}`: total variation falls at least like its complement per step.

    Parameters
    ----------
    transition
        Transition matrix.

    Returns
    -------
    float
    """
    return float(np.asarray(transition, dtype=float).min(axis=0).sum())


def rejection(transition: ArrayLike, q: ArrayLike) -> Array:
    """Rejection probability of each state: what stays put though a move was proposed.

    Parameters
    ----------
    transition
        Transition matrix.
    q
        Proposal matrix it was built from.

    Returns
    -------
    array
    """
    return np.asarray(np.diag(np.asarray(transition, dtype=float)) - np.diag(np.asarray(q, dtype=float)))


def spectral_gap(pi: ArrayLike, transition: ArrayLike) -> float:
    """One minus the largest absolute eigenvalue below the trivial one, for a chain reversible under `pi`.

    Parameters
    ----------
    pi
        Target.
    transition
        Transition matrix, reversible.

    Returns
    -------
    float
    """
    root = np.sqrt(np.asarray(pi, dtype=float))
    symmetric = root[:, None] * np.asarray(transition, dtype=float) / root[None, :]
    values = np.sort(np.linalg.eigvalsh((symmetric + symmetric.T) / 2))
    return float(1 - max(values[-2], -values[0]))


def total_variation(pi: ArrayLike, transition: ArrayLike, iterations: int, start: int | None = None) -> Array:
    """Total variation distance to the target after 0, 1, ..., `iterations` steps.

    Parameters
    ----------
    pi
        Target.
    transition
        Transition matrix.
    iterations
        Number of steps.
    start
        First state; None takes the worst start at every step.

    Returns
    -------
    array
        Of length ``iterations + 1``.
    """
    row, matrix = np.asarray(pi, dtype=float), np.asarray(transition, dtype=float)
    law = np.eye(row.size) if start is None else np.eye(row.size)[[start]]
    distances = []
    for _ in range(iterations + 1):
        distances.append(np.abs(law - row).sum(axis=1).max() / 2)
        law = law @ matrix
    return np.array(distances)


def asymptotic_variance(pi: ArrayLike, transition: ArrayLike, f: ArrayLike) -> float:
    r"""Variance of the ergodic mean of `f`, times the number of iterations, in the limit.

    .. math:: v = \langle \bar f, (2Z - I)\bar f\rangle_\pi, \qquad Z = (I - T + 1\pi^{\mathsf T})^{-1}

    Parameters
    ----------
    pi
        Target.
    transition
        Transition matrix, reversible or not.
    f
        One value per state.

    Returns
    -------
    float
    """
    row, matrix = np.asarray(pi, dtype=float), np.asarray(transition, dtype=float)
    centred = np.asarray(f, dtype=float) - row @ np.asarray(f, dtype=float)
    solved = np.linalg.solve(np.eye(row.size) - matrix + row[None, :], centred)
    return float(row @ (centred * (2 * solved - centred)))


def efficiency(pi: ArrayLike, transition: ArrayLike, f: ArrayLike | None = None) -> float:
    """Effective draws per iteration: the variance of `f` over its asymptotic variance.

    Parameters
    ----------
    pi
        Target.
    transition
        Transition matrix.
    f
        One value per state; None takes the position on the grid.

    Returns
    -------
    float
    """
    row = np.asarray(pi, dtype=float)
    values = np.arange(row.size, dtype=float) if f is None else np.asarray(f, dtype=float)
    variance = row @ (values - row @ values) ** 2
    return float(variance / asymptotic_variance(row, transition, values))


def _one_sided(size: int, weights: ArrayLike) -> Array:
    """Upper triangular matrix of the probability to propose j from i < j; what leaves the grid is missing."""
    w = np.asarray(weights, dtype=float)
    require((w >= 0) & (w.sum() > 0), "weights must be non-negative with a positive sum", weights, "Choose others.")
    matrix = np.zeros((size, size))
    for length, weight in enumerate(w / w.sum()):
        matrix += weight * np.eye(size, k=length)
    return matrix


def _chain_arguments(pi: ArrayLike, q: ArrayLike) -> tuple[Array, Array]:
    pi_, q_ = np.asarray(pi, dtype=float), np.asarray(q, dtype=float)
    require(
        pi_.ndim == 1 and q_.shape == (pi_.size, pi_.size),
        "pi must be a vector and q a square matrix of its size",
        (pi_.shape, q_.shape),
        "Pass one row per state.",
    )
    _probabilities(pi_ > 0, pi_.sum(), "pi must be positive and sum to one")
    _probabilities(q_ >= 0, q_.sum(axis=1), "every row of q must be non-negative and sum to one")
    return pi_, q_


def _probabilities(sign: Any, total: Any, rule: str) -> None:
    require(np.all(sign) and np.allclose(total, 1, rtol=0, atol=1e-9), rule, total, "Normalise it.")
