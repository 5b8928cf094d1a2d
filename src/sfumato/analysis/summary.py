"""The summary table of a run, which never shows numbers without the verdict on them."""

import math
import textwrap
from html import escape
from typing import TYPE_CHECKING, Any

import pandas as pd

from sfumato.analysis.diagnostics import decimals
from sfumato.analysis.verdict import Verdict

if TYPE_CHECKING:
    from sfumato.analysis.estimate import Estimate
    from sfumato.analysis.result import Run

DIAGNOSTICS = ("ess_bulk", "ess_tail", "r_hat")
"""Columns that say how the chains went: the only ones of an unusable run."""
COUNTS = ("ess_bulk", "ess_tail")
SHARES = ("r_hat", "of_prior")


class Summary(pd.DataFrame):  # type: ignore[misc]  # pandas has no types of its own
    """The table; printed, it begins with the verdict. Of an unusable run everything but the diagnostics is NaN."""

    _metadata = ["verdict"]  # noqa: RUF012 (pandas looks for it on the class)
    verdict: Verdict

    @property
    def _constructor(self) -> Any:
        return Summary

    def _first_line(self) -> str:
        verdict = getattr(self, "verdict", None)
        return "" if verdict is None else textwrap.fill(str(verdict), 100) + "\n"

    def _formatted(self) -> pd.DataFrame:
        """Each number with as many digits as it has: two of the sd, two of a Monte Carlo error, whole effective draws."""
        if not {"mean", "sd"} <= set(self.columns):  # a part of the table
            return pd.DataFrame(self)
        lines = {}
        for name, row in self.iterrows():
            lines[name] = [_digits(column, value, row["sd"]) for column, value in row.items()]
        return pd.DataFrame.from_dict(lines, orient="index", columns=list(self.columns))

    def __repr__(self) -> str:
        return self._first_line() + repr(self._formatted())

    def _repr_html_(self) -> str:
        return f"<p>{escape(self._first_line())}</p>{self._formatted()._repr_html_() or ''}"


def of_run(run: "Run") -> Summary:
    """The table of a run."""
    from sfumato.analysis.diagnostics import posterior_rows

    columns = ["mean", "sd", "5%", "95%", "mcse_mean", *DIAGNOSTICS]
    rows = {r.name: [r.mean, r.sd, r.low, r.high, r.mcse, r.ess, r.ess_tail, r.r_hat] for r in posterior_rows(run)}
    return with_verdict(pd.DataFrame.from_dict(rows, orient="index", columns=columns), run.verdict)


def of_estimate(estimate: "Estimate") -> Summary:
    """The table of an estimate, whose draws are independent: there is nothing to diagnose."""
    from sfumato.analysis.diagnostics import intervals

    columns = ["mean", "sd", "5%", "95%", "of_prior"]
    rows = {row.name: [row.mean, row.sd, row.low, row.high, row.of_prior] for row in intervals(estimate)}
    return with_verdict(pd.DataFrame.from_dict(rows, orient="index", columns=columns), estimate.verdict)


def with_verdict(table: pd.DataFrame, verdict: Verdict) -> Summary:
    """The table under its verdict."""
    if not verdict.usable:
        table = table.copy()
        table.loc[:, [column for column in table.columns if column not in DIAGNOSTICS]] = float("nan")
    shown = Summary(table)
    shown.verdict = verdict
    shown.attrs["verdict"] = str(verdict)
    return shown


def _digits(column: Any, value: Any, sd: float) -> str:
    if not isinstance(value, float) or math.isnan(value):
        return "NaN"
    if column in COUNTS:
        return f"{value:.0f}"
    return f"{value:.2f}" if column in SHARES else f"{value:.{decimals(value if column == 'mcse_mean' else sd)}f}"
