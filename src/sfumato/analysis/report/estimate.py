"""The page of an estimate: what it is an approximation by, before anything else."""

from html import escape
from typing import Any

import numpy as np

from sfumato.analysis.diagnostics import series
from sfumato.analysis.report import html, sections, svg

INTERVAL = (0.05, 0.95)


def page(estimate: Any, title: str = "A private estimate") -> str:
    """Return the whole page of an `sfumato.Estimate`: computed from what was released, so it adds nothing to it."""
    body = [
        f'<header><p class="brand">sfumato</p><h1>{escape(title)}</h1><p>{escape(estimate.label)}</p></header>',
        sections.banner(estimate),
        sections.promise(estimate),
        _learnt(estimate),
        sections.pilot(estimate),
    ]
    return html.document(title, body)


def _learnt(estimate: Any) -> str:
    if not estimate.verdict.usable:
        nothing = '<p class="note bad">Nothing: intervals are not shown, because they would mislead. See above.</p>'
        return html.section("What was learnt", nothing)
    lines, figures = [], []
    for name, draws in series(estimate).items():
        low, high = np.quantile(draws, INTERVAL)
        mean, sd = float(np.mean(draws)), float(np.std(draws))
        ends = f"{html.number(low, sd)} to {html.number(high, sd)}"
        lines.append((escape(name), html.number(mean, sd), html.number(sd, sd), ends))
        figures.append((name, svg.density(np.asarray(draws, float), (float(low), float(high)), name)))
    table = html.table(("parameter", "mean", "sd", "90% interval"), lines)
    return html.section("What was learnt", table) + html.section("Posterior", html.grid(figures[: html.PICTURED]))
