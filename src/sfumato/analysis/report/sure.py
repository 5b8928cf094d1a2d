"""How sure the answer is: the verdict's reasons, effective draws and agreement, ranks and traces."""

import math
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from sfumato.analysis.diagnostics import Row, intervals, series, shown_rows
from sfumato.analysis.facts import Facts
from sfumato.analysis.report import html, svg
from sfumato.analysis.verdict import FAIR_R_HAT, GOOD_R_HAT

if TYPE_CHECKING:
    from sfumato.analysis.estimate import Estimate
    from sfumato.analysis.result import Run

OPEN = 4
"""Parameters whose pictures are unfolded: those with the fewest effective draws."""
NOTHING_AGAINST = (
    "Nothing that was released speaks against it: the score was asked near the answer, the search for the place was not "
    "contradicted, and the information is clear. That the approximation holds cannot be told from the releases."
)
LEGEND = (
    "Names and scales are the model's. sd: standard deviation. 90 % interval: between the 5 % and 95 % quantiles. Error of the "
    "mean: its Monte Carlo standard error. ESS: "
    "how many independent draws the chains are worth, for the middle (bulk) and for the ends (tail). R-hat: agreement of the "
    "chains, 1.00 "
    "when perfect."
)


def of_run(run: "Run", facts: Facts) -> str:
    """The diagnostics of a run, and what its chains look like."""
    rows = shown_rows(run)
    usable = run.verdict.usable
    reasons = html.paragraphs(run.verdict.reasons) if usable else html.paragraphs(["See the warning above."])
    heads: tuple[str, ...] = (
        "parameter",
        "mean",
        "sd",
        "90 % interval",
        "error of the mean",
        "ESS bulk",
        "ESS tail",
        "R-hat",
    )
    lines = [_line(row) for row in rows]
    if not usable:
        heads, lines = (heads[0], *heads[5:]), [(line[0], *line[5:]) for line in lines]
    table = html.table(heads, lines) + f'<p class="small">{LEGEND}</p>'
    return html.section("sure", "How sure", reasons + table + _pictures(run, rows, facts))


def of_estimate(estimate: "Estimate", facts: Facts) -> str:
    """Why an estimate may be used; nothing about chains, for it has none."""
    reasons = html.paragraphs(estimate.verdict.reasons[1:] or [NOTHING_AGAINST])
    if not estimate.verdict.usable:
        return html.section("sure", "How sure", html.paragraphs(["See the warning above."]))
    found = intervals(estimate)
    shares = [html.UNKNOWN if math.isnan(row.of_prior) else f"{row.of_prior:.0%}" for row in found]
    lines = [
        (escape(row.name), *_numbers(row.mean, row.sd, row.low, row.high), share)
        for row, share in zip(found, shares, strict=True)
    ]
    legend = (
        "sd: standard deviation. 90 % interval: between the 5 % and 95 % quantiles. Noise is in both: without privacy they "
        "would be "
        "narrower. Of the prior: the width beside the prior's, 100 % where nothing was learnt."
    )
    table = html.table(("parameter", "mean", "sd", "90 % interval", "of the prior"), lines)
    drawn = {name: np.asarray(draws, float).reshape(1, -1) for name, draws in series(estimate).items()}
    figures = [
        (
            name,
            svg.density(draws, _ends(draws), name, facts.support.get(name, (None, None))),
        )
        for name, draws in list(drawn.items())[: html.PICTURED]
    ]
    text = "<p>The shaded part holds 90 % of the posterior given what was released, the dotted line is its mean.</p>"
    return html.section("sure", "How sure", f'{reasons}{table}<p class="small">{legend}</p>{text}{html.grid(figures)}')


def _line(row: Row) -> tuple[str, ...]:
    grade = "good" if row.r_hat <= GOOD_R_HAT else "fair" if row.r_hat <= FAIR_R_HAT else "bad"
    error = html.UNKNOWN if math.isnan(row.mcse) else html.number(row.mcse, row.mcse)
    counts = [html.UNKNOWN if math.isnan(count) else f"{count:,.0f}" for count in (row.ess, row.ess_tail)]
    r_hat = html.UNKNOWN if math.isnan(row.r_hat) else f"{row.r_hat:.2f}"
    name, numbers = escape(row.name), _numbers(row.mean, row.sd, row.low, row.high)
    return (name, *numbers, error, *counts, f'<span class="{grade}">{r_hat}</span>')


def _numbers(mean: float, sd: float, low: float, high: float) -> tuple[str, str, str]:
    ends = html.UNKNOWN if math.isnan(low) else f"{html.number(low, sd)} to {html.number(high, sd)}"
    return html.number(mean, sd), html.number(sd, sd), ends


def _ends(draws: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(draws, (0.05, 0.95))
    return float(low), float(high)


def _pictures(run: "Run", rows: Sequence[Row], facts: Facts) -> str:
    """Density, ranks and trace of each parameter, those with the fewest effective draws first."""
    if run.iterations - run.discarded < 2:
        return ""
    drawn = {name: np.asarray(draws, float) for name, draws in series(run).items()}
    worst = sorted(rows, key=lambda row: row.ess if math.isfinite(row.ess) else -1.0)[: html.PICTURED]
    cards = [_card(drawn[row.name], row.name, facts, usable=run.verdict.usable) for row in worst]
    text = (
        "Parameters with the fewest effective draws come first. Density: the shaded part holds 90 % of the draws, thin lines "
        "are single "
        "chains. Ranks: how often each chain has small and large values; lines near the dotted one mean that the chains agree. "
        "Trace: "
        "draws in the order they were made; good chains overlap and show no drift."
    )
    folded = (
        f"<details><summary>{len(cards) - OPEN} more</summary>{''.join(cards[OPEN:])}</details>"
        if len(cards) > OPEN
        else ""
    )
    rest = len(rows) - len(cards)
    remark = f'<p class="small">{rest} further parameters are in the table only.</p>' if rest > 0 else ""
    return f'<h3>Pictures</h3><p class="small">{text}</p>{"".join(cards[:OPEN])}{folded}{remark}'


def _card(draws: np.ndarray, name: str, facts: Facts, *, usable: bool) -> str:
    ends = facts.support.get(name, (None, None))
    figures = [("density", svg.density(draws, _ends(draws), name, ends))] if usable else []
    figures += [("ranks", svg.ranks(draws, name))] if len(draws) > 1 else []
    figures += [("trace", svg.trace(draws, name))]
    return f'<div class="card"><h4>{escape(name)}</h4>{html.grid(figures)}</div>'
