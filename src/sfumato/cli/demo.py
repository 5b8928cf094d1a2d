"""``sfumato demo``: a real study on real, public records, from the plan to the report."""

import math
import time
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli import endings
from sfumato.cli.options import flag
from sfumato.cli.study import AsJson
from sfumato.errors import InvalidInput

if TYPE_CHECKING:
    from sfumato.analysis.diagnostics import Row
    from sfumato.demo.census import Fit

INTRODUCTION = (
    "Who owns a home? A census extract of 214,144 men: does owning one go with being a veteran, with race, with the "
    "birth cohort? A logistic regression answers, but the sampler may not look at the records: it asks for "
    "log-likelihood ratios, each comes back with Gaussian noise, and the penalty algorithm absorbs that noise. The "
    "draws come from the exact posterior; together they satisfy ({epsilon:g}, 1e-07)-differential privacy."
)
COMPARISON = (
    "Without privacy: the normal approximation of the same posterior, shown only because these records are public "
    "(from the package causaldata). `off by` is the distance of the two means in posterior standard deviations; the "
    "Monte Carlo error of so few effective draws accounts for about {expected:.1f} of them."
)


class Which(StrEnum):
    """The demonstrations there are."""

    HOME = "home"
    CONSORTIUM = "consortium"


def demo(
    which: Annotated[
        Which,
        typer.Argument(help="home: one table of 214,144 men. consortium: three owners, each behind its own node."),
    ] = Which.HOME,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for draws and report; demo-output, or consortium in it, by default."),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            "--epsilon", help="Larger: more draws, weaker promise. By default 1; 3 for each of the consortium."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="For proposals and decisions; the noise has no seed.")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option("--iterations", help="Steps per chain at the most; else as many as the budget buys.")
    ] = None,
    keep: Annotated[
        bool, flag("--keep", help="Consortium: leave the nodes and their consoles running until Ctrl-C.")
    ] = False,
    unsealed: Annotated[
        bool, flag("--unsealed", help="Consortium: no sealed sums; every owner adds all the noise it needs.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show all of it on real records: plan, private posterior beside the exact one, report. About a minute."""
    limit = {} if iterations is None else {"max_iterations": iterations}
    if which is Which.CONSORTIUM:
        from sfumato.cli.consortium import demonstrate

        where = out or Path("demo-output/consortium")
        code = demonstrate(where, epsilon, seed, limit, keep=keep, sealed=not unsealed, as_json=as_json)
    elif keep or unsealed:
        raise InvalidInput(
            "--keep and --unsealed are about the consortium's nodes, and this demo has none; leave them out."
        )
    else:
        code = _home(out or Path("demo-output"), 1.0 if epsilon is None else epsilon, seed, limit, as_json)
    raise typer.Exit(code)


def _home(out: Path, epsilon: float, seed: int | None, limit: dict[str, int], as_json: bool) -> int:
    began = time.perf_counter()
    from sfumato.cli import show

    if not as_json:  # before the slow imports: a person wants to know what is going on
        show.heading("sfumato demo")
        show.paragraph(INTRODUCTION.format(epsilon=epsilon))
    from sfumato.analysis.diagnostics import shown_rows
    from sfumato.cli import outputs
    from sfumato.demo import census as study
    from sfumato.run.sampling import plan as make_plan
    from sfumato.run.sampling import sample

    data, terms = study.load(), study.terms(epsilon) | limit
    planned = make_plan(study.home_ownership, n=len(data["owner"]), **terms)
    if not as_json:
        show.plan(planned, "before anything is spent; its assumptions were made knowing this public table")
    run = sample(study.home_ownership, data, seed=seed, **terms)
    run = run.described(study.WORDS)
    written = outputs.write(run, out, study.WORDS.title)
    rows, exact = shown_rows(run), study.non_private_fit(data)
    took = time.perf_counter() - began
    if as_json:
        document = outputs.as_json(run, written, "demo") | without_privacy(rows, exact, study.LABELS)
        endings.write_json(document | {"seconds": took})
    else:
        show.verdict(run)
        show_coefficients(rows, exact, study.LABELS, COMPARISON)
        show.heading("Chains")
        show.chains(run)
        show.statement(run)
        show.files(written)
        show.paragraph(f"\nDone in {took:.0f} seconds. Open {show.short(written.files['report'])} in a browser.")
    return endings.of_run(run)


# -- the private posterior beside the one without privacy ---------------------------------------------------------------


def show_coefficients(rows: "list[Row]", exact: "Fit", labels: Mapping[str, str], comparison: str) -> None:
    """Show both, coefficient by coefficient, and what the difference may be."""
    from sfumato.cli import show
    from sfumato.cli.output import console

    show.heading("Coefficients (log odds)")
    console().print(_table(rows, exact, labels))
    if not any(math.isnan(row.mean) for row in rows):  # of an unusable run there is nothing to compare
        show.paragraph(comparison.format(expected=median(row.ess for row in rows) ** -0.5))


def without_privacy(rows: "list[Row]", exact: "Fit", labels: Mapping[str, str]) -> dict[str, Any]:
    """The posterior without privacy, for JSON."""
    paired = _paired(rows, exact, labels)
    return {"without_privacy": [{"name": row.name, "mean": mean, "sd": sd} for row, mean, sd in paired]}


def _table(rows: "list[Row]", exact: "Fit", labels: Mapping[str, str]) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from sfumato.cli.show import UNSHOWN, number, r_hat

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("")
    for column in ("private mean", "sd", "exact mean", "sd", "off by", "ESS", "R-hat"):
        table.add_column(column, justify="right", no_wrap=True)
    for row, mean, sd in _paired(rows, exact, labels):
        figures = [
            number(row.mean),
            number(row.sd),
            f"{mean:.3f}",
            f"{sd:.3f}",
            UNSHOWN if math.isnan(row.mean) else f"{abs(row.mean - mean) / sd:.1f} sd",
        ]
        table.add_row(labels[row.name], *figures, number(row.ess, 0), r_hat(row))
    return table


def _paired(rows: "list[Row]", exact: "Fit", labels: Mapping[str, str]) -> "list[tuple[Row, float, float]]":
    by_name = {row.name: row for row in rows}
    return [(by_name[name], float(exact.mean[i]), float(exact.sd[i])) for i, name in enumerate(labels)]
