"""The posterior as rows of numbers, for the page, the terminal and JSON alike."""

import math
import warnings
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sfumato.run import quiet_arviz

if TYPE_CHECKING:
    from sfumato.run import Run

INTERVAL = (0.05, 0.95)
GOOD_R_HAT = 1.05
FAIR_R_HAT = 1.2
LOW_ESS = 100.0
VERY_LOW_ESS = 16.0


class Row(NamedTuple):
    """One parameter: its posterior, and how well the draws know it.

    `low` and `high` are the 5 % and 95 % quantiles; `mcse` is the Monte Carlo standard error of the mean.
    """

    name: str
    mean: float
    sd: float
    low: float
    high: float
    mcse: float
    ess: float
    r_hat: float


def series(run: "Run") -> dict[str, np.ndarray]:
    """Draws by scalar parameter, (chain, draw) each, vectors as ``beta[2]``."""
    out: dict[str, np.ndarray] = {}
    for site, draws in run.draws.items():
        if draws.ndim == 2:
            out[site] = draws
            continue
        for index in np.ndindex(*draws.shape[2:]):
            out[f"{site}[{', '.join(map(str, index))}]"] = draws[(slice(None), slice(None), *index)]
    return out


def posterior_rows(run: "Run") -> list[Row]:
    """One row per scalar parameter."""
    return [_row(name, np.asarray(draws, dtype=np.float64)) for name, draws in series(run).items()]


def _row(name: str, draws: np.ndarray) -> Row:
    if draws.size == 0:
        return Row(name, *([math.nan] * 7))
    low, high = np.quantile(draws, INTERVAL)
    ess, r_hat = _diagnostics(draws)
    sd = float(draws.std())
    mcse = sd / math.sqrt(ess) if ess > 0 else math.nan
    return Row(name, float(draws.mean()), sd, float(low), float(high), mcse, ess, r_hat)


def _diagnostics(draws: np.ndarray) -> tuple[float, float]:
    """Bulk ESS and rank-normalised split R-hat; NaN where a chain is too short to say."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about short chains: NaN says it
        diagnostics = quiet_arviz()
        several = len(draws) > 1
        return float(diagnostics.ess(draws)), float(diagnostics.rhat(draws)) if several else math.nan


def verdict(rows: list[Row]) -> list[str]:
    """Say what the diagnostics mean; the first sentence is the most important one."""
    worst = max((row.r_hat for row in rows if not math.isnan(row.r_hat)), default=math.nan)
    least = min((row.ess for row in rows if not math.isnan(row.ess)), default=math.nan)
    if math.isnan(worst) or math.isnan(least):
        if not math.isnan(least):
            return [
                "One chain cannot be compared with others (R-hat needs two): use chains=2 or more.",
                _precision(least),
            ]
        return ["The chains are too short to tell whether they have mixed. Do not rest a decision on these numbers."]
    return [_agreement(round(worst, 2)), _precision(least)]


def _agreement(worst: float) -> str:
    if worst <= GOOD_R_HAT:
        return f"The chains agree with each other (largest R-hat {worst:.2f})."
    if worst <= FAIR_R_HAT:
        return (
            f"The chains agree roughly (largest R-hat {worst:.2f}; 1.00 would be full agreement): means can be trusted "
            "to the Monte Carlo error shown, tails less."
        )
    return (
        f"The chains do not agree yet (largest R-hat {worst:.2f}; above {FAIR_R_HAT:g} is too much). Read these "
        "numbers as rough: the budget was too small for this model. More records, a larger epsilon or a simpler "
        "model would help."
    )


def _precision(least: float) -> str:
    share = 1 / math.sqrt(max(least, 1e-9))
    text = f"The draws are worth at least {least:.0f} independent ones, so each mean is known to {share:.0%} of its sd"
    if least >= LOW_ESS:
        return f"{text}."
    return f"{text}: {'fine for means, rough' if least >= VERY_LOW_ESS else 'rough, and rougher'} for the ends of intervals."
