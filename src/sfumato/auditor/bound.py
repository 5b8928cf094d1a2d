r"""From two samples of scores to a lower bound on mu that holds with a stated confidence, whatever the scores are.

A mechanism that is :math:`\mu`-GDP keeps every test of one table against a neighbouring one, at every threshold, above its
trade-off curve: a test with false-alarm rate :math:`\alpha` misses with a rate
:math:`\beta \ge \Phi(\Phi^{-1}(1-\alpha) - \mu)`. Tables that differ in k records are :math:`k\mu`-GDP (Dong, Roth & Su 2022).
So upper confidence limits of the two rates (Clopper & Pearson 1934, exact for any number of runs) give

.. math:: k\mu \ge \Phi^{-1}(1 - \bar\alpha) - \Phi^{-1}(\bar\beta) .

The threshold is chosen on runs that are then set aside. Nothing is assumed about the law of the scores.
Reading :math:`\mu` as an epsilon is the step of Nasr et al. 2023 ("Tight auditing of differentially private machine learning").
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri
from scipy.stats import beta

SET_ASIDE = 0.2
"""Share of the runs on which the threshold is chosen."""


class Bound(NamedTuple):
    """What a test of two tables showed: runs it was tested on, each table; false alarms; misses; the bound on k mu."""

    tested: int
    false_alarms: int
    misses: int
    mu_lower: float


@lru_cache(maxsize=64)
def upper_limits(runs: int, alpha: float) -> np.ndarray:
    """Clopper-Pearson upper confidence limits of a rate, one-sided, at confidence 1 - alpha: one for each count from 0."""
    count = np.arange(runs)
    return np.append(beta.ppf(1 - alpha, count + 1, runs - count), 1.0)


def trade_off(false_alarms: ArrayLike, misses: ArrayLike, runs: int, alpha: float) -> Any:
    """Smallest mu, at least 0, under which both upper limits (each at confidence 1 - alpha/2) are possible."""
    limits = upper_limits(runs, alpha / 2)
    return np.maximum(-ndtri(limits[np.asarray(false_alarms)]) - ndtri(limits[np.asarray(misses)]), 0.0)


def lower_bound(here: np.ndarray, there: np.ndarray, alpha: float) -> Bound:
    """Bound k mu from the scores of runs on one table and on the other (there they should be higher).

    Scores of several kinds may be given, one kind a row: the kind is chosen with the threshold.
    """
    here, there = np.atleast_2d(here), np.atleast_2d(there)
    runs = here.shape[1]
    aside = max(1, int(SET_ASIDE * runs))
    choices = [_best_threshold(a, b, alpha) for a, b in zip(here[:, :aside], there[:, :aside], strict=True)]
    kind = int(np.argmax([choice.mu for choice in choices]))
    threshold, tested = choices[kind].threshold, runs - aside
    false_alarms = int(np.sum(here[kind, aside:] > threshold))
    misses = int(np.sum(there[kind, aside:] <= threshold))
    return Bound(tested, false_alarms, misses, float(trade_off(false_alarms, misses, tested, alpha)))


class _Choice(NamedTuple):
    """A threshold, and the mu that it seems to show on the runs set aside."""

    threshold: float
    mu: float


def _best_threshold(here: np.ndarray, there: np.ndarray, alpha: float) -> _Choice:
    """The middle between the two medians, which is best for Gaussian scores; another only if it is clearly better.

    Clearly: if its lower bound beats even the estimate at the middle. A plain maximum over noisy bounds would mostly pick noise.
    """
    runs, middle = len(here), float(np.median(here) + np.median(there)) / 2
    rates = [(np.sum(wrong) + 0.5) / (runs + 1) for wrong in (here > middle, there <= middle)]
    tried = np.sort(np.concatenate([here, there]))
    false_alarms = runs - np.searchsorted(np.sort(here), tried, side="right")
    misses = np.searchsorted(np.sort(there), tried, side="right")
    found = trade_off(false_alarms, misses, runs, alpha)
    best, estimate = int(np.argmax(found)), float(-ndtri(rates[0]) - ndtri(rates[1]))
    if found[best] > estimate:
        return _Choice(float(tried[best]), float(found[best]))
    return _Choice(middle, estimate)
