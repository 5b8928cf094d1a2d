r"""The shape of a release's noise: an ellipsoid around the records' scores, not the ball that a whitener gives.

With a matrix W each record's vector is :math:`W^\top s(y)`, cut to a ball of radius r, under noise of one size,
:math:`\sigma = 2r/\mu`. Of the score itself that is noise of covariance :math:`\sigma^2(WW^\top)^{-1}`. Privacy rests on the cut
alone, so W may be any public matrix. For a smooth target, the weighted sum of posterior variances, whose slope in the noise is
M, the best noise Q solves

.. math:: \min_Q\ \mathrm{tr}(MQ) \quad\text{with}\quad v_i^\top Q^{-1}v_i \le 1,
    \qquad Q = M^{-1/2}\bigl(M^{1/2}DM^{1/2}\bigr)^{1/2}M^{-1/2},\ D = \sum_i w_iv_iv_i^\top,

:math:`v_i` the vectors that a search has met, about the middle of their ball, and w the weights that make
:math:`\mathrm{tr}(M^{1/2}DM^{1/2})^{1/2}` largest. They are found by multiplying each by its own slope, again and again.

References
----------
Nikolov & Tang 2024 (optimal Gaussian noise for a set); Silvey, Titterington & Torsney 1978 (the weights).
"""

from collections.abc import Callable, Sequence

import numpy as np

from sfumato.bounds.reach import Search, enclosing_ball

WORTH = 0.95
"""Sum of posterior variances, beside that under a ball's noise, from which another shape is used."""
OTHERS = 0.03
"""Weight of a parameter that is not in focus, beside one that is: no direction is left unheard."""
_ROUNDS, _UPDATES = 3, 200
_FLAT = 1e-3  # of the longest axis of an ellipsoid: the shortest, where vectors fill no space
_LEAST = 1e-6  # of the largest eigenvalue: the smallest that a slope may have


def coordinate_weights(names: Sequence[str], focus: Sequence[str] | None) -> np.ndarray:
    """How much each coordinate's variance counts: all alike, or those in focus more.

    Parameters
    ----------
    names
        Of all coordinates, such as "beta[2]".
    focus
        Names of sites or of coordinates; each has at least one coordinate.
    """
    if focus is None:
        return np.ones(len(names))
    chosen = [any(name == one or name.startswith(f"{one}[") for one in focus) for name in names]
    return np.where(chosen, 1.0, OTHERS)


def shaped(
    search: Search, theta: np.ndarray, root: np.ndarray, prior: np.ndarray, weight: np.ndarray, mu_squared: float
) -> np.ndarray:
    """The matrix of a release with the lowest forecast error: the whitener itself unless another is clearly better.

    Parameters
    ----------
    search
        Looks for the vectors that reach furthest.
    theta, root
        Where it is asked; a root of the posterior covariance, which whitens.
    prior
        Precision of the prior there.
    weight
        Of each coordinate's variance, in units of its posterior variance without noise.
    mu_squared
        What the release may cost.
    """
    target = root.T @ np.diag(weight / np.sum(root**2, axis=1)) @ root
    forecast = _forecast(root.T @ prior @ root, target)

    def noise(turn: np.ndarray) -> np.ndarray:
        radius = search.reach("gradient", theta, root @ turn).radius
        back = np.linalg.inv(turn)
        return np.asarray(4 * radius**2 / mu_squared * back.T @ back)

    vectors = search.vectors("gradient", theta, root)
    vectors = vectors - enclosing_ball(vectors).centre
    best, turn = np.eye(len(root)), np.eye(len(root))
    covariance = noise(best)
    lowest = plain = forecast(covariance)[0]
    for _ in range(_ROUNDS):
        ellipsoid = _smallest(vectors, forecast(covariance)[1])
        turn = np.linalg.inv(np.linalg.cholesky(ellipsoid)).T
        covariance = noise(turn)
        if (value := forecast(covariance)[0]) < lowest:
            best, lowest = turn, value
    return np.asarray(root @ best) if lowest < WORTH * plain else root


def _forecast(prior: np.ndarray, target: np.ndarray) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
    """Function noise covariance -> weighted sum of posterior variances, and its slope in the noise; all whitened."""
    values, vectors = np.linalg.eigh(np.eye(len(prior)) - prior)
    information = (vectors * np.clip(values, 1e-6, 1.0)) @ vectors.T
    rest = np.eye(len(prior)) - information

    def at(noise: np.ndarray) -> tuple[float, np.ndarray]:
        gain = np.linalg.solve(information + noise, information)
        covariance = np.linalg.inv(rest + information @ gain)
        along = gain @ covariance
        return float(np.sum(target * covariance)), along @ target @ along.T

    return at


def _smallest(vectors: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """The ellipsoid Q around the vectors with the least tr(MQ), M the slope."""
    values, turn = np.linalg.eigh((slope + slope.T) / 2)
    values = np.maximum(values, _LEAST * values.max())
    there, back = (turn * values**0.5) @ turn.T, (turn * values**-0.5) @ turn.T
    points = vectors @ there
    weight = np.full(len(points), 1 / len(points))
    for _ in range(_UPDATES):
        size, axes = np.linalg.eigh((weight[:, None] * points).T @ points)
        size = np.sqrt(np.maximum(size, _FLAT**2 * max(size.max(), 1e-300)))
        weight = weight * np.sum((points @ axes) ** 2 / size, axis=1)
        weight /= weight.sum()
    return np.asarray(back @ ((axes * size) @ axes.T) @ back)
