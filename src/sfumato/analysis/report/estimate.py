"""The page of an estimate: the answer first, then how sure it is, then the promise; its first lines say what it is."""

import math
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from sfumato.analysis.diagnostics import intervals, series
from sfumato.analysis.report import html, sections, svg
from sfumato.tools.version import __version__

if TYPE_CHECKING:
    from sfumato.analysis.estimate import Estimate

NOTHING_AGAINST = (
    "Nothing that was released speaks against it: the score was asked near the answer, the search for the place was not "
    "contradicted, and the information is clear. That the approximation holds cannot be told from the releases."
)


def page(estimate: "Estimate", title: str) -> str:
    """Return the whole page of an `sfumato.Estimate`: computed from what was released, so it adds nothing to it."""
    usable = estimate.verdict.usable
    body = [
        _head(estimate, title),
        "" if usable else sections.banner(estimate),
        html.section("What was learnt", table(estimate)),
        _pictures(estimate),
        html.section("How sure", _sureness(estimate)) if usable else "",
        sections.promise(estimate),
        sections.releases(estimate),
        _colophon(estimate),
    ]
    return html.document(title, body)


def table(estimate: "Estimate") -> str:
    """The posterior given what was released; nothing of an unusable estimate."""
    if not estimate.verdict.usable:
        return '<p class="note bad">Nothing: intervals are not shown, because they would mislead. See above.</p>'
    lines = [
        (
            escape(row.name), html.number(row.mean, row.sd), html.number(row.sd, row.sd),
            f"{html.number(row.low, row.sd)} to {html.number(row.high, row.sd)}",
            html.UNKNOWN if math.isnan(row.of_prior) else f"{row.of_prior:.0%}",
        )
        for row in intervals(estimate)
    ]  # fmt: skip
    legend = (
        "sd: standard deviation. 90% interval: between the 5% and 95% quantiles. Noise is in both: without privacy they would be "
        "narrower. Of the prior: the width beside the prior's, 100% where nothing was learnt."
    )
    shown = html.table(("parameter", "mean", "sd", "90% interval", "of the prior"), lines)
    return f'{shown}<p class="small">{legend}</p>'


def _head(estimate: "Estimate", title: str) -> str:
    privacy = estimate.privacy
    facts = [("records", f"{privacy.n:,}"), ("epsilon", f"{privacy.epsilon:g}"), ("delta", f"{privacy.delta:g}")]
    return sections.head(title, [*facts, ("kind", "estimate")], estimate.label)


def _pictures(estimate: "Estimate") -> str:
    if not estimate.verdict.usable:
        return ""
    ends = {row.name: (row.low, row.high) for row in intervals(estimate)}
    # Rows are no chains: one line for all of them.
    drawn = {name: np.asarray(draws, float).reshape(1, -1) for name, draws in series(estimate).items()}
    figures = [(name, svg.density(draws, ends[name], name)) for name, draws in list(drawn.items())[: html.PICTURED]]
    text = "The shaded part holds 90% of the posterior given what was released, the dotted line is its mean."
    rest = len(drawn) - len(figures)
    remark = f'<p class="small">{rest} further parameters are in the table only.</p>' if rest > 0 else ""
    return html.section("Posterior", f"<p>{text}</p>{html.grid(figures)}{remark}")


def _sureness(estimate: "Estimate") -> str:
    level = estimate.verdict.level
    grade = f'<p class="note {sections.GRADES[level]}">{level.capitalize()}.</p>'
    return grade + html.paragraphs(estimate.verdict.reasons[1:] or [NOTHING_AGAINST])


def _colophon(estimate: "Estimate") -> str:
    made = f"Made by sfumato {__version__}. Public seed {estimate.seed}; the noise has no seed. All of this page is released."
    return f'<footer><p class="small">{made}</p></footer>'
