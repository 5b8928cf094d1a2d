"""The page, section by section. All text is escaped; nothing is fetched from anywhere; no script runs."""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from sfumato.analysis.diagnostics import Row, series, shown_rows
from sfumato.analysis.report import svg, words
from sfumato.analysis.report.style import CSS
from sfumato.analysis.verdict import FAIR_R_HAT, GOOD_R_HAT
from sfumato.kernel import asks_first
from sfumato.tools.version import __version__

if TYPE_CHECKING:
    from sfumato.analysis.result import Run

PICTURED = 24
"""Parameters with plots of their own; the table has all of them."""
UNKNOWN = "?"
"""Shown where a run is too short to tell."""
GRADES = {"good": "good", "rough": "fair", "unusable": "bad"}
CITATIONS = (
    "S. Yıldırım (2016). On the use of penalty MCMC for differential privacy.",
    "D. M. Ceperley and M. Dewing (1999). The penalty method for random walks with uncertain energies. "
    "Journal of Chemical Physics 110, 9812.",
    "J. Dong, A. Roth and W. J. Su (2022). Gaussian differential privacy. Journal of the Royal Statistical Society "
    "B 84, 3-37.",
)


def page(run: "Run", title: str) -> str:
    """Return the whole page."""
    rows = shown_rows(run)
    body = [
        _head(run, title),
        _banner(run),
        _promise(run),
        _posterior(run, rows),
        _pictures(run, rows),
        _spending(run, rows),
        _pilot(run),
        _colophon(run),
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


def _head(run: "Run", title: str) -> str:
    privacy = run.privacy
    facts = [
        ("records", f"{privacy.n:,}"),
        ("epsilon", f"{privacy.epsilon:g}"),
        ("delta", f"{privacy.delta:g}"),
        ("draws", f"{_chains(run)} × {run.iterations:,}"),
    ]
    cells = "".join(f"<div><dt>{label}</dt><dd>{value}</dd></div>" for label, value in facts)
    return f'<header><p class="brand">sfumato</p><h1>{escape(title)}</h1><dl class="facts">{cells}</dl></header>'


def _banner(run: "Run") -> str:
    """The verdict, before anything else is said."""
    headings = {"good": "Good", "rough": "Rough", "unusable": "Do not use these draws"}
    level = run.verdict.level
    return (
        f'<section class="verdict {GRADES[level]}" role="note"><h2>{headings[level]}</h2>'
        f"{_paragraphs(run.verdict.reasons)}</section>"
    )


def _promise(run: "Run") -> str:
    text = _paragraphs(words.promise(run.privacy))
    full = f'<h3>For the record</h3><p class="small">{escape(str(run.privacy))}</p>'
    return _section("The promise", f'<div class="promise">{text}</div>{full}')


def _posterior(run: "Run", rows: Sequence[Row]) -> str:
    heads = ("parameter", "mean", "sd", "90% interval", "ESS", "R-hat")
    lines = [
        (
            escape(row.name),
            _number(row.mean, row.sd),
            _number(row.sd, row.sd),
            f"{_number(row.low, row.sd)} to {_number(row.high, row.sd)}" if run.verdict.usable else UNKNOWN,
            _count(row.ess),
            f'<span class="{_r_hat_grade(row.r_hat)}">{_or_unknown(row.r_hat, ".2f")}</span>',
        )
        for row in rows
    ]
    legend = (
        "sd: standard deviation. 90% interval: between the 5% and 95% quantiles. ESS: how many independent draws "
        "the chains are worth. R-hat: agreement of the chains, 1.00 when perfect."
    )
    if run.verdict.usable:
        return _section("What was learnt", _table(heads, lines) + f'<p class="small">{legend}</p>')
    nothing = (
        '<p class="note bad">Nothing: means and intervals are not shown, because they would mislead. See above.</p>'
    )
    return _section(
        "What was learnt", f'{nothing}<div class="greyed">{_table(heads, lines)}</div><p class="small">{legend}</p>'
    )


def _pictures(run: "Run", rows: Sequence[Row]) -> str:
    if run.iterations < 2:
        return ""
    shown = list(zip(series(run).items(), rows, strict=True))[:PICTURED]
    densities = [(name, svg.density(np.asarray(d, float), (row.low, row.high), name)) for (name, d), row in shown]
    traces = [(name, svg.trace(np.asarray(d, float), name)) for (name, d), _ in shown]
    rest = len(rows) - len(shown)
    remark = f'<p class="small">{rest} further parameters are in the table only.</p>' if rest > 0 else ""
    density_text = "The shaded part holds 90% of the draws, the dotted line is the mean, thin lines are single chains."
    trace_text = "Draws in the order they were made. Good chains overlap and show no drift."
    chains = _section("Chains", f"<p>{trace_text}</p>{_grid(traces)}")
    if not run.verdict.usable:
        return chains
    return _section("Posterior", f"<p>{density_text}</p>{_grid(densities)}{remark}") + "\n" + chains


def _spending(run: "Run", rows: Sequence[Row]) -> str:
    steps = np.asarray(run.transcript["mu_squared"]).sum(axis=0)
    before = max(run.privacy.spent_mu**2 - float(steps.sum()), 0.0)
    total = before + np.concatenate([[0.0], np.cumsum(steps)])
    cap = run.privacy.mu**2
    least = min((row.ess for row in rows if not math.isnan(row.ess)), default=math.nan)
    worth = f"worth {_count(least)} to {_count(_most(rows))} draws" if run.verdict.usable else "of no use"
    plan = run.plan
    facts = [
        ("cap", f"mu² = {cap:.4g}"),
        ("used", f"{run.privacy.spent_mu**2 / cap:.1%} of it, {before / cap:.1%} before the chain (pilot)"),
        ("kernel", _kernel(plan)),
        ("accepted", f"{_or_unknown(run.acceptance, '.0%')} of the proposals"),
        ("planned", f"{plan['chains']} × {plan['iterations']:,} iterations, worth {plan['forecast_ess']:.0f} draws"),
        ("achieved", f"{_chains(run)} × {run.iterations:,} iterations, {worth}"),
        ("limit", f"{plan['limit_ess']:.0f} draws, were the whole budget spent on a single release"),
    ]
    text = (
        "Every answer costs a part of the privacy budget. The cap was fixed before the first answer and cannot be "
        f"passed. {words.ending(run)}"
    )
    figure = f'<figure class="wide">{svg.spending(total, cap)}<figcaption>mu² spent, by iteration</figcaption></figure>'
    rests = f'<p class="small">The plan rests on: {escape("; ".join(plan["assumptions"]))}.</p>'
    return _section("How the budget was spent", f"<p>{text}</p>{figure}{_facts(facts)}{rests}")


def _kernel(plan: Mapping[str, Any]) -> str:
    """The kernel with its step and its noise, in the words of the plan."""
    if not asks_first(plan["kernel"]):
        return f"{plan['kernel']}, step {plan['step']:g} sd, noise sigma = {plan['sigma']:g} in every answer"
    often = "correction on average" if plan.get("copy_sigma") else "correction"
    return f"{plan['kernel']}, step size h = {plan['step']:g}, noise sigma = {plan['sigma']:.3g} per {often}"


def _pilot(run: "Run") -> str:
    releases = run.pilot.get("releases", [])
    if not releases:
        return ""
    lines = [
        (str(i), escape(str(r["what"])), str(len(r["answer"])), f"{r['sigma']:.4g}", _values(r["answer"]))
        for i, r in enumerate(releases, 1)
    ]
    text = (
        "A few noisy answers, paid from the same budget, found where to start and how far to step. They are "
        "released values too; the draws do not depend on their being accurate."
    )
    return _section(
        "The pilot", f"<p>{text}</p>{_table(('', 'release', 'numbers', 'noise sd', 'released values'), lines)}"
    )


def _colophon(run: "Run") -> str:
    works = "".join(f"<li>{escape(work)}</li>" for work in CITATIONS)
    made = (
        f"Made by sfumato {__version__}. Public seed {run.seed}; the noise has no seed. All of this page is released."
    )
    cite = f"sfumato, version {__version__}: exact Bayesian inference under differential privacy. With:"
    return _section("How to cite", f"<p>{cite}</p><ul>{works}</ul>") + f'<footer><p class="small">{made}</p></footer>'


# -- pieces -----------------------------------------------------------------------------------------------------------


def _section(heading: str, body: str) -> str:
    return f"<section><h2>{escape(heading)}</h2>{body}</section>"


def _paragraphs(texts: Iterable[str]) -> str:
    return "".join(f"<p>{escape(text)}</p>" for text in texts)


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Build a table that scrolls sideways in a narrow window; cells come escaped."""
    top = "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    rows = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in line) + "</tr>" for line in lines)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{rows}</tbody></table></div>'


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    return '<dl class="list">' + "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in facts) + "</dl>"


def _grid(figures: Sequence[tuple[str, str]]) -> str:
    cells = "".join(f"<figure><figcaption>{escape(name)}</figcaption>{plot}</figure>" for name, plot in figures)
    return f'<div class="grid">{cells}</div>'


def _number(value: float, sd: float) -> str:
    """As many decimals as the sd justifies: two digits of it."""
    if not math.isfinite(value):
        return UNKNOWN
    decimals = 3 if not sd > 0 or not math.isfinite(sd) else min(max(1 - math.floor(math.log10(sd)), 0), 8)
    return f"{value:,.{decimals}f}".replace("-", "\N{MINUS SIGN}")


def _or_unknown(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else UNKNOWN


def _count(value: float) -> str:
    return _or_unknown(value, ".0f")


def _values(answer: Sequence[Any]) -> str:
    shown = ", ".join(f"{float(v):.3g}" for v in answer[:6])
    return escape((shown + (", …" if len(answer) > 6 else "")).replace("-", "\N{MINUS SIGN}"))


def _r_hat_grade(r_hat: float) -> str:
    if math.isnan(r_hat):
        return "bad"
    return "good" if r_hat <= GOOD_R_HAT else "fair" if r_hat <= FAIR_R_HAT else "bad"


def _most(rows: Sequence[Row]) -> float:
    return max((row.ess for row in rows if not math.isnan(row.ess)), default=math.nan)


def _chains(run: "Run") -> int:
    return int(run.transcript["accepted"].shape[0])
