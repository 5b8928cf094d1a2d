"""The page, section by section. All text is escaped; nothing is fetched from anywhere; no script runs."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from sfumato.analysis.diagnostics import Row, series, shown_rows
from sfumato.analysis.report import estimate, html, sections, svg, words
from sfumato.analysis.verdict import FAIR_R_HAT, GOOD_R_HAT
from sfumato.kernel import asks_first
from sfumato.tools.version import __version__

if TYPE_CHECKING:
    from sfumato.analysis.result import Run

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
        sections.banner(run),
        sections.promise(run),
        _posterior(run, rows),
        _heard(run),
        _pictures(run, rows),
        _spending(run, rows),
        sections.pilot(run),
        _colophon(run),
    ]
    return html.document(title, body)


def _head(run: "Run", title: str) -> str:
    privacy = run.privacy
    facts = [
        ("records", f"{privacy.n:,}"),
        ("epsilon", f"{privacy.epsilon:g}"),
        ("delta", f"{privacy.delta:g}"),
        ("draws", f"{_chains(run)} × {run.iterations:,}"),
    ]
    return sections.head(title, facts)


def _posterior(run: "Run", rows: Sequence[Row]) -> str:
    heads = ("parameter", "mean", "sd", "90% interval", "ESS", "R-hat")
    lines = [
        (
            escape(row.name),
            html.number(row.mean, row.sd),
            html.number(row.sd, row.sd),
            f"{html.number(row.low, row.sd)} to {html.number(row.high, row.sd)}"
            if run.verdict.usable
            else html.UNKNOWN,
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
        return html.section("What was learnt", html.table(heads, lines) + f'<p class="small">{legend}</p>')
    nothing = (
        '<p class="note bad">Nothing: means and intervals are not shown, because they would mislead. See above.</p>'
    )
    return html.section(
        "What was learnt", f'{nothing}<div class="greyed">{html.table(heads, lines)}</div><p class="small">{legend}</p>'
    )


def _heard(run: "Run") -> str:
    """Of an unusable run, what its releases say all the same."""
    if run.heard is None:
        return ""
    text = html.paragraphs([run.heard.label, *run.heard.verdict.reasons[1:]])
    return html.section("What the releases say all the same", text + estimate.table(run.heard))


def _pictures(run: "Run", rows: Sequence[Row]) -> str:
    if run.iterations < 2:
        return ""
    shown = list(zip(series(run).items(), rows, strict=True))[: html.PICTURED]
    densities = [(name, svg.density(np.asarray(d, float), (row.low, row.high), name)) for (name, d), row in shown]
    traces = [(name, svg.trace(np.asarray(d, float), name)) for (name, d), _ in shown]
    rest = len(rows) - len(shown)
    remark = f'<p class="small">{rest} further parameters are in the table only.</p>' if rest > 0 else ""
    density_text = "The shaded part holds 90% of the draws, the dotted line is the mean, thin lines are single chains."
    trace_text = "Draws in the order they were made. Good chains overlap and show no drift."
    chains = html.section("Chains", f"<p>{trace_text}</p>{html.grid(traces)}")
    if not run.verdict.usable:
        return chains
    return html.section("Posterior", f"<p>{density_text}</p>{html.grid(densities)}{remark}") + "\n" + chains


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
    return html.section("How the budget was spent", f"<p>{text}</p>{figure}{html.facts(facts)}{rests}")


def _kernel(plan: Mapping[str, Any]) -> str:
    """The kernel with its step and its noise, in the words of the plan."""
    if not asks_first(plan["kernel"]):
        return f"{plan['kernel']}, step {plan['step']:g} sd, noise sigma = {plan['sigma']:g} in every answer"
    often = "correction on average" if plan.get("copy_sigma") else "correction"
    return f"{plan['kernel']}, step size h = {plan['step']:g}, noise sigma = {plan['sigma']:.3g} per {often}"


def _colophon(run: "Run") -> str:
    works = "".join(f"<li>{escape(work)}</li>" for work in CITATIONS)
    made = (
        f"Made by sfumato {__version__}. Public seed {run.seed}; the noise has no seed. All of this page is released."
    )
    cite = f"sfumato, version {__version__}: exact Bayesian inference under differential privacy. With:"
    return (
        html.section("How to cite", f"<p>{cite}</p><ul>{works}</ul>") + f'<footer><p class="small">{made}</p></footer>'
    )


# -- pieces -----------------------------------------------------------------------------------------------------------


def _or_unknown(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else html.UNKNOWN


def _count(value: float) -> str:
    return _or_unknown(value, ".0f")


def _r_hat_grade(r_hat: float) -> str:
    if math.isnan(r_hat):
        return "bad"
    return "good" if r_hat <= GOOD_R_HAT else "fair" if r_hat <= FAIR_R_HAT else "bad"


def _most(rows: Sequence[Row]) -> float:
    return max((row.ess for row in rows if not math.isnan(row.ess)), default=math.nan)


def _chains(run: "Run") -> int:
    return int(run.transcript["accepted"].shape[0])
