"""The page of an estimate: what it is an approximation by, before anything else."""

from html import escape
from typing import Any

import numpy as np

from sfumato import __version__
from sfumato.analysis.diagnostics import series
from sfumato.analysis.report import page as parts
from sfumato.analysis.report import svg
from sfumato.analysis.report.style import CSS

INTERVAL = (0.05, 0.95)


def page(estimate: Any, title: str = "A private estimate") -> str:
    """Return the whole page of an `sfumato.Estimate`: computed from what was released, so it adds nothing to it."""
    body = [
        f'<header><p class="brand">sfumato</p><h1>{escape(title)}</h1><p>{escape(estimate.label)}</p></header>',
        parts._banner(estimate),
        parts._promise(estimate),
        _learnt(estimate),
        parts._pilot(estimate),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<meta name="generator" content="sfumato {__version__}">\n'
        f"<title>{escape(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def _learnt(estimate: Any) -> str:
    if not estimate.verdict.usable:
        nothing = '<p class="note bad">Nothing: intervals are not shown, because they would mislead. See above.</p>'
        return parts._section("What was learnt", nothing)
    lines, figures = [], []
    for name, draws in series(estimate).items():
        low, high = np.quantile(draws, INTERVAL)
        mean, sd = float(np.mean(draws)), float(np.std(draws))
        ends = f"{parts._number(low, sd)} to {parts._number(high, sd)}"
        lines.append((escape(name), parts._number(mean, sd), parts._number(sd, sd), ends))
        figures.append((name, svg.density(np.asarray(draws, float), (float(low), float(high)), name)))
    table = parts._table(("parameter", "mean", "sd", "90% interval"), lines)
    return parts._section("What was learnt", table) + parts._section(
        "Posterior", parts._grid(figures[: parts.PICTURED])
    )
