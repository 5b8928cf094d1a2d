"""What a person sees: tables and short paragraphs on standard output."""

import re
import shlex
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sfumato.analysis.diagnostics import Interval, Row, decimals, intervals, shown_rows
from sfumato.analysis.report.words import ending
from sfumato.analysis.verdict import FAIR_R_HAT, GOOD_R_HAT, Verdict
from sfumato.cli.output import console
from sfumato.planner.advice import as_commands

if TYPE_CHECKING:
    from sfumato.analysis.estimate import Estimate
    from sfumato.analysis.result import Run
    from sfumato.auditor import Audit
    from sfumato.cli.outputs import Written
    from sfumato.planner import Plan

ENDS = {
    "FINISHED": "all planned iterations were drawn",
    "BUDGET_SPENT": "the budget is spent, as planned",
    "INTERRUPTED": "interrupted; what was drawn is saved",
    "OWNER_LOST": "an owner no longer answers; what was drawn is saved",
    "NOT_MIXING": "the chain stopped itself",
}
STYLES = {"good": "bold green", "rough": "bold yellow", "unusable": "bold red"}
UNSHOWN = "\N{EN DASH}"
"""In place of a number that would mislead, or that nobody knows."""


def heading(text: str) -> None:
    """Start a section."""
    console().print(Text(f"\n{text}", style="bold"))


def paragraph(text: str) -> None:
    """Print wrapped text, indented, never read as markup."""
    console().print(Padding(Text(text), (0, 0, 0, 2), expand=False))


def facts(rows: list[tuple[str, str]]) -> None:
    """Show labels and values."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for label, value in rows:
        table.add_row(Text(label), Text(value))
    console().print(Padding(table, (0, 0, 0, 2), expand=False))


def plan(made: "Plan", name: str, study: Path = Path("study.toml")) -> None:
    """Show a plan, and what to make of it; `study` is its file."""
    heading(f"Plan: {name}")
    facts(made.rows())
    if made.hopeless:
        console().print(Text("\n  Too weak: the forecast says that the chain cannot mix.", style="bold red"))
        paragraph(advice(made, study))
    elif made.weak:
        console().print(Text("\n  Weak if the parameters are near there; the pilot will tell.", style="yellow"))


def first_plan(made: "Plan", name: str, forced: bool = False) -> None:
    """Show a plan that is about to be carried out, in a few lines: nothing is asked, Ctrl-C stops it."""
    heading(f"Plan: {name}")
    kept = ("budget", "pilot", "kernel", "chains", "forecast", "perhaps", "owner", "WARNING")
    facts([row for row in made.rows() if row[0] in kept])
    if made.hopeless:
        on = " --force goes on all the same." if forced else ""
        console().print(Text(f"  Too weak: the forecast says that the chain cannot mix.{on}", style="bold red"))


def audit(found: "Audit", name: str) -> None:
    """Show what an audit found, and what to make of it."""
    heading(f"Audit: {name}")
    facts(found.rows())
    style = "green" if found.passed else "bold red"
    console().print(Padding(Text(f"\n{found.verdict}", style=style), (0, 0, 0, 2), expand=False))


def advice(made: "Plan", study: Path) -> str:
    """Say what would make a weak plan strong, in the library's own words."""
    text = in_shell(made.remedy, study)
    return text[:1].upper() + text[1:]


def in_shell(text: str, study: Path, out: Path | None = None) -> str:
    """Ways out as commands; `out` is a folder that is taken."""
    command = f"sfumato estimate {shlex.quote(short(study))}"
    beside = "" if out is None else f" --out {shlex.quote(short(out) + '-estimate')}"
    text = re.sub(
        r"sf\.estimate answers with what is left \(epsilon=(\S+) at the same delta\)",
        rf"`{command} --epsilon \1{beside}` answers with what is left",
        text,
    )
    force = "sfumato run" if out is None else f"sfumato resume {shlex.quote(short(out))}"
    return as_commands(text, f"{command}{beside}", force)


def run(drawn: "Run", written: "Written", name: str, way_on: str = "") -> None:
    """Show a run: whether to believe it, the posterior, the promise, the files; `way_on` is the command that goes on with it."""
    verdict(drawn)
    heading(f"Posterior: {name}")
    console().print(posterior(shown_rows(drawn)))
    if drawn.heard is not None:
        heading("What the releases say all the same")
        answer(drawn.heard)
    heading("Chains")
    chains(drawn)
    statement(drawn)
    files(written)
    ended = drawn.stop_reason.name
    happened = {"INTERRUPTED": "Interrupted.", "OWNER_LOST": f"{drawn.stop_owner} no longer answers."}.get(ended, "")
    if happened and way_on:
        paragraph(f"\n{happened} {'Go on' if ended == 'INTERRUPTED' else 'When it is back, go on'} with: {way_on}")
    elif happened:
        paragraph(f"\n{happened} Without a checkpoint there is nothing to go on with.")


def estimate(found: "Estimate", written: "Written", name: str) -> None:
    """Show an estimate: what it is, the answer, how sure it is, the promise, the files."""
    heading(f"Estimate: {name}")
    answer(found)
    heading("Privacy")
    paragraph(str(found.privacy))
    files(written)


def answer(found: "Estimate") -> None:
    """What an estimate is, what it says, and how sure it is."""
    paragraph(found.label)
    if found.verdict.usable:
        console().print(told(intervals(found)))
    verdict(found, skip=1)


def told(rows: list[Interval]) -> Table:
    """Build the table of an estimate: the last column is the width beside the prior's."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("")
    for column in ("mean", "sd", "90 % interval", "of the prior"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        share = UNSHOWN if isnan(row.of_prior) else f"{row.of_prior:.0%}"
        table.add_row(Text(row.name), digits(row.mean, row.sd), digits(row.sd, row.sd), interval(row), share)
    return table


def verdict(drawn: "Run | Estimate", skip: int = 0) -> None:
    """Say whether a run or an estimate may be used; `skip`: reasons that stand elsewhere."""
    found = drawn.verdict
    first, _, rest = str(Verdict(found.level, found.reasons[skip:])).partition(": ")
    console().print(Text.assemble("\n", (f"Verdict: {first}.", STYLES[found.level]), f" {rest}"))


def chains(drawn: "Run") -> None:
    """Say how the chains went."""
    number = drawn.transcript["accepted"].shape[0]
    ended = ENDS[drawn.stop_reason.name]
    forecast = f"The plan, made again after the pilot, had promised {drawn.plan.forecast_ess:.0f} effective draws."
    paragraph(
        f"{number} chains x {drawn.iterations:,} iterations, {drawn.acceptance:.0%} accepted; {ended}. {forecast}"
    )
    if drawn.stop_reason.name == "NOT_MIXING":
        paragraph(ending(drawn))


def statement(drawn: "Run") -> None:
    """Show the privacy statement, in full."""
    heading("Privacy")
    paragraph(str(drawn.privacy))


def files(written: "Written") -> None:
    """Say where everything lies."""
    heading("Files")
    facts([(what, short(path)) for what, path in written.files.items()])
    for remark in written.remarks:
        paragraph(remark)


def posterior(rows: list[Row]) -> Table:
    """Build the posterior table."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("")
    for column in ("mean", "sd", "90 % interval", "mcse", "ESS", "tail", "R-hat"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        figures = [digits(row.mean, row.sd), digits(row.sd, row.sd), interval(row), digits(row.mcse, row.mcse)]
        table.add_row(Text(row.name), *figures, number(row.ess, 0), number(row.ess_tail, 0), r_hat(row))
    return table


def interval(row: Row | Interval) -> str:
    """The 5 % and 95 % quantiles: the same interval everywhere."""
    return UNSHOWN if isnan(row.low) else f"{digits(row.low, row.sd)} to {digits(row.high, row.sd)}"


def digits(value: float, sd: float) -> str:
    """A number with two digits of its standard deviation, or a dash in its place."""
    return number(value, decimals(sd))


def number(value: float, decimals: int = 3) -> str:
    """A number, or a dash in its place."""
    return UNSHOWN if isnan(value) else f"{value:.{decimals}f}"


def r_hat(row: Row) -> Text:
    """Colour R-hat by what it means."""
    style = "green" if row.r_hat <= GOOD_R_HAT else "yellow" if row.r_hat <= FAIR_R_HAT else "red"
    return Text(number(row.r_hat, 2), style=style)


def short(path: Path) -> str:
    """Relative to where the person stands, if it lies below."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
