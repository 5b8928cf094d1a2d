"""``sfumato demo``: a real study on real, public records, from the plan to the report."""

import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli import endings
from sfumato.cli.study import AsJson

if TYPE_CHECKING:
    from sfumato.demo import Fit
    from sfumato.report.table import Row

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


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for draws and report.")] = Path("demo-output"),
    epsilon: Annotated[float, typer.Option("--epsilon", help="Larger: more draws, weaker promise.")] = 1.0,
    seed: Annotated[
        int | None, typer.Option("--seed", help="For proposals and decisions; the noise has no seed.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show all of it on 214,144 real records: plan, private posterior beside the exact one, report. About a minute."""
    began = time.perf_counter()
    from sfumato.cli import show

    if not as_json:  # before the slow imports: a person wants to know what is going on
        show.heading("sfumato demo")
        show.paragraph(INTRODUCTION.format(epsilon=epsilon))
    from sfumato import demo as study
    from sfumato.cli import outputs
    from sfumato.report.table import posterior_rows
    from sfumato.sampler import plan as make_plan
    from sfumato.sampler import sample

    data, terms = study.load(), study.terms(epsilon)
    planned = make_plan(study.home_ownership, n=len(data["owner"]), **terms)
    if not as_json:
        show.plan(planned, "before anything is spent; its assumptions were made knowing this public table")
    run = sample(study.home_ownership, data, seed=seed, **terms)
    written = outputs.write(run, out, "Who owns a home?")
    rows, exact = posterior_rows(run), study.non_private_fit(data)
    took = time.perf_counter() - began
    if as_json:
        endings.write_json(outputs.as_json(run, written, "demo") | _comparison(rows, exact) | {"seconds": took})
    else:
        _show(run, rows, exact)
        show.statement(run)
        show.files(written)
        show.paragraph(f"\nDone in {took:.0f} seconds. Open {show.short(written.files['report'])} in a browser.")
    raise typer.Exit(endings.INTERRUPTED if run.stop_reason.name == "INTERRUPTED" else endings.FINE)


def _show(run: Any, rows: "list[Row]", exact: "Fit") -> None:
    from sfumato.cli import show

    show.heading("Coefficients (log odds)")
    show.console().print(_table(rows, exact))
    show.paragraph(COMPARISON.format(expected=median(row.ess for row in rows) ** -0.5))
    show.heading("Chains")
    show.chains(run, rows)


def _table(rows: "list[Row]", exact: "Fit") -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from sfumato.cli.show import r_hat
    from sfumato.demo import LABELS

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("")
    for column in ("private mean", "sd", "exact mean", "sd", "off by", "ESS", "R-hat"):
        table.add_column(column, justify="right", no_wrap=True)
    for row, mean, sd in _paired(rows, exact):
        figures = [
            f"{row.mean:.3f}",
            f"{row.sd:.3f}",
            f"{mean:.3f}",
            f"{sd:.3f}",
            f"{abs(row.mean - mean) / sd:.1f} sd",
        ]
        table.add_row(LABELS[row.name], *figures, f"{row.ess:.0f}", r_hat(row))
    return table


def _paired(rows: "list[Row]", exact: "Fit") -> "list[tuple[Row, float, float]]":
    from sfumato.demo import LABELS

    by_name = {row.name: row for row in rows}
    return [(by_name[name], float(exact.mean[i]), float(exact.sd[i])) for i, name in enumerate(LABELS)]


def _comparison(rows: "list[Row]", exact: "Fit") -> dict[str, Any]:
    return {"without_privacy": [{"name": row.name, "mean": mean, "sd": sd} for row, mean, sd in _paired(rows, exact)]}
