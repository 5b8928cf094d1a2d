"""The posterior as rows of numbers, for the page, the terminal and JSON alike."""

import math
import warnings
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sfumato.analysis.facts import scalars
from sfumato.analysis.result import quiet_arviz

if TYPE_CHECKING:
    from sfumato.analysis.estimate import Estimate
    from sfumato.analysis.result import Run

INTERVAL = (0.05, 0.95)


class Row(NamedTuple):
    """One parameter: its posterior, and how well the draws know it.

    `low` and `high` are the 5 % and 95 % quantiles; `mcse` is the Monte Carlo standard error of the mean; `ess` is of the bulk,
    `ess_tail` of the ends.
    """

    name: str
    mean: float
    sd: float
    low: float
    high: float
    mcse: float
    ess: float
    ess_tail: float
    r_hat: float


def series(run: "Run | Estimate") -> dict[str, np.ndarray]:
    """Draws by scalar parameter, (chain, draw) each, vectors as ``beta[2]``."""
    return {name: values for site, draws in run.draws.items() for name, values in scalars(site, draws, 2).items()}


def posterior_rows(run: "Run") -> list[Row]:
    """One row per scalar parameter."""
    return [_row(name, np.asarray(draws, dtype=np.float64)) for name, draws in series(run).items()]


def shown_rows(run: "Run") -> list[Row]:
    """The rows as they may be shown: of an unusable run, the diagnostics alone."""
    rows = posterior_rows(run)
    if run.verdict.usable:
        return rows
    return [row._replace(mean=math.nan, sd=math.nan, low=math.nan, high=math.nan, mcse=math.nan) for row in rows]


class Interval(NamedTuple):
    """One parameter of an estimate: its draws are independent, so there is nothing to diagnose.

    `of_prior`: posterior over prior standard deviation, on the unconstrained scale; NaN where a parameter is no coordinate of it.
    """

    name: str
    mean: float
    sd: float
    low: float
    high: float
    of_prior: float


def intervals(estimate: "Estimate") -> list[Interval]:
    """One row per scalar parameter, as it may be shown: of an unusable estimate, the names alone."""
    if not estimate.verdict.usable:
        return [Interval(name, *([math.nan] * 5)) for name in series(estimate)]
    found = []
    for name, draws in series(estimate).items():
        low, high = np.quantile(draws, INTERVAL)
        share = estimate.of_prior.get(name, math.nan)
        found.append(Interval(name, float(np.mean(draws)), float(np.std(draws)), float(low), float(high), share))
    return found


def decimals(sd: float) -> int:
    """So many that two digits of a standard deviation are seen; three where there is none."""
    return 3 if not sd > 0 or not math.isfinite(sd) else min(max(1 - math.floor(math.log10(sd)), 0), 10)


def _row(name: str, draws: np.ndarray) -> Row:
    if draws.size == 0:
        return Row(name, *([math.nan] * 8))
    low, high = np.quantile(draws, INTERVAL)
    ess, ess_tail, r_hat = _diagnostics(draws)
    sd = float(draws.std()) if np.ptp(draws) > 0 else 0.0
    mcse = sd / math.sqrt(ess) if ess > 0 else math.nan
    return Row(name, float(draws.mean()), sd, float(low), float(high), mcse, ess, ess_tail, r_hat)


def _diagnostics(draws: np.ndarray) -> tuple[float, float, float]:
    """Bulk and tail ESS and rank-normalised split R-hat; NaN where a chain is too short to say, or all draws are one."""
    if np.ptp(draws) == 0:  # of as many draws as there are, says ArviZ
        return math.nan, math.nan, math.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about short chains: NaN says it
        arviz = quiet_arviz()
        several = len(draws) > 1
        tail = float(arviz.ess(draws, method="tail", prob=INTERVAL))
        return effective_draws(draws), tail, float(arviz.rhat(draws)) if several else math.nan


def effective_draws(draws: np.ndarray) -> float:
    """Bulk ESS of (chain, draw)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about short chains: NaN says it
        return float(quiet_arviz().ess(draws))
