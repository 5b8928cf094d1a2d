"""The summary table of a run, which never shows numbers without the verdict on them."""

import textwrap
from html import escape
from typing import Any

import pandas as pd

from sfumato.analysis.verdict import Verdict

DIAGNOSTICS = ("ess_bulk", "ess_tail", "r_hat")
"""Columns that say how the chains went: the only ones of an unusable run."""


class Summary(pd.DataFrame):  # type: ignore[misc]  # pandas has no types of its own
    """ArviZ's table; printed, it begins with the verdict. Of an unusable run everything but the diagnostics is NaN."""

    _metadata = ["verdict"]  # noqa: RUF012 (pandas looks for it on the class)
    verdict: Verdict

    @property
    def _constructor(self) -> Any:
        return Summary

    def _first_line(self) -> str:
        verdict = getattr(self, "verdict", None)
        return "" if verdict is None else textwrap.fill(str(verdict), 100) + "\n"

    def __repr__(self) -> str:
        return self._first_line() + super().__repr__()

    def _repr_html_(self) -> str:
        return f"<p>{escape(self._first_line())}</p>{super()._repr_html_() or ''}"


def with_verdict(table: pd.DataFrame, verdict: Verdict) -> Summary:
    """The table under its verdict."""
    if not verdict.usable:
        table = table.copy()
        table.loc[:, [column for column in table.columns if column not in DIAGNOSTICS]] = float("nan")
    shown = Summary(table)
    shown.verdict = verdict
    shown.attrs["verdict"] = str(verdict)
    return shown
