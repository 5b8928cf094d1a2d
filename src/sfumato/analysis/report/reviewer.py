"""What a reviewer needs: data, model, priors, preparation, plan against outcome, owners, versions."""

import math
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from sfumato.analysis.diagnostics import intervals, shown_rows
from sfumato.analysis.facts import Facts
from sfumato.analysis.report import html
from sfumato.analysis.report.words import ending
from sfumato.analysis.wording import Words
from sfumato.kernel import asks_first
from sfumato.privacy import gdp
from sfumato.privacy.joint import JointStatement
from sfumato.privacy.statement import CLAMPED

if TYPE_CHECKING:
    from sfumato.analysis.estimate import Estimate
    from sfumato.analysis.result import Run


REFUSED = (
    "A table with a record outside the declared domain is refused as a whole: nothing is released from it. No record was moved "
    "or left out."
)


def of_run(run: "Run", words: Words, facts: Facts) -> str:
    """The facts of a run."""
    parts = [
        _data(run, words, facts),
        _model(facts),
        _prior(run, facts),
        _outcome(run, facts),
        _beside(run, facts),
    ]
    return html.section("facts", "For the reviewer", "".join([*parts, _owners(run), _made(run, facts)]))


def of_estimate(estimate: "Estimate", words: Words, facts: Facts) -> str:
    """The facts of an estimate."""
    parts = [
        _data(estimate, words, facts),
        _model(facts),
        _prior(estimate, facts),
        _owners(estimate),
        _made(estimate, facts),
    ]
    return html.section("facts", "For the reviewer", "".join(parts))


def _data(run: "Run | Estimate", words: Words, facts: Facts) -> str:
    privacy = run.privacy
    rule = f"As a rule, {CLAMPED}. Whether any was is not released." if privacy.outside == "clamp" else REFUSED
    told = [("source", words.source), ("records", f"{privacy.n:,}"), ("the rule for records outside", rule)]
    lines = [(escape(name), escape(words.columns.get(name, name)), escape(said)) for name, said in facts.domain.items()]
    table = html.table(("column", "made from", "declared domain"), lines, words=True) if lines else ""
    return f"<h3>Data, domain and preparation</h3>{html.facts([pair for pair in told if pair[1]])}{table}"


def _model(facts: Facts) -> str:
    if not facts.model:
        return ""
    text = escape(facts.model.rstrip())
    return (
        f'<h3>The model as written</h3><pre tabindex="0" role="region" aria-label="The model as written">{text}</pre>'
    )


def _prior(run: "Run | Estimate", facts: Facts) -> str:
    """The prior in numbers, with what is left of its width."""
    if not facts.prior:
        return ""
    found = {row.name: (row.low, row.high) for row in _rows(run)}
    lines = []
    for name, (low, middle, high) in list(facts.prior.items())[: 4 * html.PICTURED]:
        sd = (high - low) / 4 or 1.0
        ends = found.get(name, (math.nan, math.nan))
        left = (ends[1] - ends[0]) / (high - low) if high > low else math.nan
        cells = [
            escape(name),
            html.number(middle, sd),
            f"{html.number(low, sd)} to {html.number(high, sd)}",
        ]
        lines.append((*cells, html.UNKNOWN if math.isnan(left) else _share(left)))
    heads = ("parameter", "prior median", "prior 90 % interval", "width left")
    legend = "By a thousand draws from the prior. Width left: of the 90 % interval, after the data."
    return f'<h3>Priors</h3>{html.table(heads, lines)}<p class="small">{legend}</p>'


def _share(left: float) -> str:
    return f"{left:.1%}" if left < 0.1 else f"{left:.0%}"


def _rows(run: "Run | Estimate") -> Any:
    return shown_rows(run) if hasattr(run, "transcript") else intervals(run)  # type: ignore[arg-type]


def _outcome(run: "Run", facts: Facts) -> str:
    """What was planned beside what came of it."""
    plan, first, rows = run.planned, facts.first_plan, shown_rows(run)
    counts = [row.ess for row in rows if math.isfinite(row.ess)]
    came = _range(counts) if run.verdict.usable else "of no use" if counts else html.UNKNOWN
    cap = run.privacy.mu**2
    pilot = max(run.privacy.spent_mu**2 - float(np.asarray(run.transcript["mu_squared"]).sum()), 0.0)
    lines = [
        ("effective draws", _first(first, "forecast_ess"), f"{plan['forecast_ess']:,.0f}", came),
        ("iterations a chain", _first(first, "iterations"), f"{plan['iterations']:,}", f"{run.iterations:,}"),
        ("kernel", escape(str(first.get("kernel", html.UNKNOWN))), escape(_kernel(plan)), "as planned"),
        ("accepted", "", "", html.UNKNOWN if math.isnan(run.acceptance) else f"{run.acceptance:.0%} of the proposals"),
        (
            "budget (mu squared)",
            f"{cap:.4g}",
            f"{max(cap - pilot, 0):.4g}",
            f"{run.privacy.spent_mu**2 / cap:.1%} of the cap used",
        ),
    ]
    heads = ("", "before anything was spent", "after the pilot", "came out")
    told = [
        ("stopped", ending(run)),
        ("pilot", f"{pilot / cap:.1%} of the cap"),
        ("one-shot limit", f"{plan['limit_ess']:,.0f} draws, were the whole budget spent on a single release"),
        ("the plan rests on", "; ".join(plan["assumptions"])),
        *([("left out", f"the first {run.discarded:,} draws of every chain")] if run.discarded else []),
    ]
    return f"<h3>Plan against outcome</h3>{html.table(heads, lines, words=True)}{html.facts(told)}"


def _range(counts: list[float]) -> str:
    """The least and the most, as one figure where they are one."""
    if not counts:
        return html.UNKNOWN
    least, most = f"{min(counts):,.0f}", f"{max(counts):,.0f}"
    return least if least == most else f"{least} to {most}"


def _first(plan: Mapping[str, Any], name: str) -> str:
    return f"{plan[name]:,.0f}" if name in plan else html.UNKNOWN


def _kernel(plan: Mapping[str, Any]) -> str:
    """The kernel with its step and its noise, in the words of the plan."""
    if not asks_first(plan["kernel"]):
        return f"{plan['kernel']}, step {plan['step']:g} sd, noise sigma = {plan['sigma']:g} in every answer"
    often = "correction on average" if plan.get("copy_sigma") else "correction"
    return f"{plan['kernel']}, step size h = {plan['step']:g}, noise sigma = {plan['sigma']:.3g} per {often}"


def _beside(run: "Run", facts: Facts) -> str:
    """What the releases say by themselves, beside the chain."""
    beside = facts.beside
    if beside is None or beside.level == "unusable" or not run.verdict.usable:
        return ""
    lines, chain = [], {row.name: row for row in shown_rows(run)}
    for name, mean, sd, low, high in beside.rows:
        row = chain.get(name)
        own = (
            html.UNKNOWN
            if row is None
            else f"{html.number(row.mean, row.sd)} ({html.number(row.low, row.sd)} to {html.number(row.high, row.sd)})"
        )
        apart = html.UNKNOWN if row is None or not row.sd > 0 else f"{abs(mean - row.mean) / row.sd:.1f} sd"
        lines.append(
            (
                escape(name),
                own,
                f"{html.number(mean, sd)} ({html.number(low, sd)} to {html.number(high, sd)})",
                apart,
            )
        )
    text = f"{beside.label} Its interval says how much the releases tell without the chain."
    heads = ("parameter", "chain", "releases alone", "means apart")
    return f'<h3>Noise-aware, beside the chain</h3><p class="small">{escape(text)}</p>{html.table(heads, lines)}'


def _owners(run: "Run | Estimate") -> str:
    """Who promised what, and what holds for a person whom all of them know."""
    privacy = run.privacy
    if not isinstance(privacy, JointStatement):
        return ""
    shares = {owner["name"]: owner["share"] for owner in getattr(run, "planned", {}).get("owners", ())}
    lines = [
        (
            escape(owner.owner or f"owner {number}"), f"{owner.n:,}", f"{owner.epsilon:g}", f"{owner.delta:g}",
            f"{owner.releases:,}",
            f"{shares[owner.owner]:.0%}" if owner.owner in shares else html.UNKNOWN,
        )
        for number, owner in enumerate(privacy.owners, 1)
    ]  # fmt: skip
    together = float(gdp.epsilon(min(privacy.together_mu, 60.0), privacy.delta))
    text = (
        f"Each promise holds against the analyst and all other owners together. For a person whose record every owner holds, "
        f"the promises add up: "
        f"mu = {privacy.together_mu:.4g}, which is epsilon = {together:.3g} at delta = {privacy.delta:g}."
    )
    heads = ("owner", "records", "epsilon", "delta", "numbers released", "share of the noise")
    return f"<h3>Owners and their coalition</h3>{html.table(heads, lines)}<p>{text}</p>"


def _made(run: "Run | Estimate", facts: Facts) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in facts.versions.items())
    told = [("date", facts.date), ("model fingerprint", facts.fingerprint), ("versions", versions)]
    told = [(name, value) for name, value in told if value]
    privacy = run.privacy
    records = privacy.owners[0].precision if isinstance(privacy, JointStatement) else privacy.precision
    told += [("public seed", f"{run.seed}; the noise has no seed"), ("records evaluated in", records)]
    return f"<h3>How it was made</h3>{html.facts(told)}"
