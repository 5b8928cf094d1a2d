r"""Whether a pilot has arrived: how far its last point may be from the mode, from a gradient that did not move it there.

In coordinates whitened by the posterior's precision a gradient at :math:`\theta` is the way to the mode, in posterior standard
deviations, plus noise of known size: :math:`\lVert\hat g\rVert^2/\sigma^2` has a noncentral :math:`\chi^2_d` law whose
noncentrality is the squared distance over :math:`\sigma^2`.
"""

import numpy as np
from scipy.special import chdtri, chndtr, gammaincinv

SURPRISING = 1e-3
"""Level at which a gradient is too long for the noise in it and in the step that led there: it is looked at with suspicion."""
IMPOSSIBLE = 1e-6
"""Level at which such a gradient is no chance any more: the pilot is not where it believes to be."""
CONFIDENCE = 0.99
"""Of the upper limit for a distance."""


def is_noise(square: float, variance: float, dim: int, level: float = SURPRISING) -> bool:
    """Whether a gradient of this squared length is what noise of this variance in every coordinate may look like."""
    return bool(square <= variance * chdtri(dim, level))


def noise_length(sigma: float, dim: int) -> float:
    """Upper limit of the length of noise alone, at the same confidence."""
    return float(sigma * np.sqrt(2 * gammaincinv(dim / 2, CONFIDENCE)))


def upper_limit(square: float, sigma: float, dim: int) -> float:
    """Upper limit of the distance that a gradient of this squared length was asked from.

    It is the distance at which so short a gradient would be seen with probability 1 - `CONFIDENCE`.
    """
    seen, alpha = square / sigma**2, 1 - CONFIDENCE
    if chndtr(seen, dim, 0.0) <= alpha:
        return 0.0
    low, high = 0.0, seen + 10 * dim + 100
    while chndtr(seen, dim, high) > alpha:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if chndtr(seen, dim, middle) > alpha else (low, middle)
    return float(sigma * np.sqrt(high))
