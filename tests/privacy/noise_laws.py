"""Checks of a discrete Gaussian sample, shared by the tests of its sources and by the saboteurs that must fail them.

Each function returns one p-value: small means "this is not that law". Those that look at several statistics correct
for their number (Bonferroni).
"""

import numpy as np
from mpmath import mp
from scipy import stats

SOLID = 500  # least number of draws expected in a bin of the chi-square


def probabilities(scale: float, reach: int) -> np.ndarray:
    """Return the law on -reach..reach, from mpmath."""
    with mp.workprec(200):
        s = mp.mpf(scale)
        mass = [mp.exp(-(mp.mpf(x) ** 2) / (2 * s**2)) for x in range(-reach, reach + 1)]
        total = mp.nsum(lambda x: mp.exp(-(x**2) / (2 * s**2)), [-mp.inf, mp.inf])
        return np.array([float(m / total) for m in mass])


def pools(expected: np.ndarray) -> list[int]:
    """Where runs of neighbours begin that hold at least `SOLID` each; the last run takes what is left over."""
    starts, held = [0], 0.0
    for i, count in enumerate(expected):
        if held >= SOLID and expected[i:].sum() >= SOLID:
            starts.append(i)
            held = 0.0
        held += count
    return starts


def exact_law(draws: np.ndarray, scale: float) -> float:
    """Compare with the exact probabilities: chi-square where there are counts, Poisson for the mass beyond.

    Neighbouring integers are pooled until `SOLID` are expected: with fewer, a single rare draw would make the
    chi-square cry wolf far more often than its p-value says.
    """
    reach = int(12 * scale) + 2
    law = probabilities(scale, reach)
    observed = np.bincount(np.clip(draws, -reach, reach) + reach, minlength=2 * reach + 1)
    starts = pools(law * draws.size)
    expected_in, observed_in = np.add.reduceat(law * draws.size, starts), np.add.reduceat(observed, starts)
    body = stats.chi2.sf(((observed_in - expected_in) ** 2 / expected_in).sum(), len(starts) - 1)
    rare = law * draws.size < SOLID / 10
    beyond, mean = observed[rare].sum(), law[rare].sum() * draws.size
    tail = 2 * min(stats.poisson.cdf(beyond, mean), stats.poisson.sf(beyond - 1, mean))
    return float(min(1.0, 2 * min(body, tail)))


def normal_shape(draws: np.ndarray, scale: float) -> float:
    """Kolmogorov-Smirnov against the normal, which a scale above 2^20 cannot be told from."""
    return float(stats.kstest(draws / scale, "norm").pvalue)


def moments(draws: np.ndarray, scale: float) -> float:
    """Mean, variance, fourth moment, mass beyond 3 scales, lag-1 correlation: each a z-test."""
    z, n = draws / scale, draws.size
    beyond = 2 * stats.norm.sf(3)
    scores = [
        z.mean() * np.sqrt(n),
        ((z**2).mean() - 1) / np.sqrt(2 / n),
        ((z**4).mean() - 3) / np.sqrt(96 / n),
        ((np.abs(z) > 3).mean() - beyond) / np.sqrt(beyond * (1 - beyond) / n),
        (z[1:] * z[:-1]).mean() * np.sqrt(n),
    ]
    return float(min(1.0, len(scores) * 2 * stats.norm.sf(np.abs(scores).max())))


def low_bits(draws: np.ndarray, scale: float) -> float:
    """Chi-square of each of the three lowest bytes against the uniform, for scales above 2^24."""
    assert scale > 2**24
    p_values = [stats.chisquare(np.bincount((draws >> shift) & 255, minlength=256)).pvalue for shift in (0, 8, 16)]
    return float(min(1.0, len(p_values) * min(p_values)))


LARGE_SCALE_LAWS = (normal_shape, moments, low_bits)
