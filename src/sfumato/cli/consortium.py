"""``sfumato demo consortium``: three insurers, three nodes, one posterior that none of them could draw alone."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from sfumato.cli import endings
from sfumato.cli.node import need_extra
from sfumato.demo.consortium import DELTA, EPSILON
from sfumato.errors import OwnerLost

if TYPE_CHECKING:
    from sfumato.analysis.result import Run
    from sfumato.cli.outputs import Written
    from sfumato.demo.consortium.owners import Owner
    from sfumato.demo.consortium.tables import Insurer

TITLE = "Does paying keep people from the doctor?"
INTRODUCTION = (
    "Does paying a part of the bill keep people from seeing a doctor? In the RAND Health Insurance Experiment (1974 to 1982) "
    "chance decided which insurance a family got. Here three insurers hold the records of one plan each. None may show them "
    "to the others or to the analyst, and none can answer alone: all its own customers have the same plan.\n\n"
    "Each insurer runs a node of its own, a real server on this machine. It adds its own noise to its own answers and guards "
    "its own budget, (epsilon, delta) = ({epsilon:g}, {delta:g}). {how}\n\n"
    "The records are public (they ship with the package statsmodels), so the answer can be checked. One record, and so what "
    "is protected, is one person in one year; of some people there are up to five, and for them mu is up to five times as large."
)
SEALED = (
    "The insurers are one consortium: what each of them sends is masked, and only the sum of all three opens. So they share the "
    "noise: each is protected from the analyst together with any one of the others, and the sum has half the noise variance. The "
    "analyst draws from the exact posterior of all records together."
)
UNSEALED = (
    "It adds all the noise that it needs. The analyst adds the answers up, and draws from the exact posterior of all records "
    "together."
)
COMPARISON = (
    "Without privacy: the normal approximation of the posterior of all {n:,} records in one table. Nobody here has such a "
    "table; it is shown because these records are public. `off by` is the distance of the two means in posterior standard "
    "deviations; the Monte Carlo error of so few effective draws accounts for about {{expected:.1f}} of them."
)
LOOK = "Open an address in a browser and enter its token, to see what that owner sees{while_it_lasts}."


class Seen(NamedTuple):
    """What an owner's console showed when the run was over."""

    owner: "Owner"
    state: dict[str, Any]
    share: float

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        owner, state = self.owner, self.state
        facts = {"name": owner.name, "n": owner.insurer.n, "console": owner.node.address, "token": owner.owner_token}
        return facts | {
            "folder": str(owner.folder),
            "pid": owner.node.process.pid,
            "budget": state["budget"],
            "answers": state["answers"],
            "noise_share": self.share,
            "statement": state["statement"],
        }


def demonstrate(
    out: Path,
    epsilon: float | None,
    seed: int | None,
    limit: dict[str, int],
    *,
    keep: bool,
    sealed: bool,
    as_json: bool,
) -> int:
    """Run the demonstration; gives the exit code. The nodes are gone then, however it ended."""
    need_extra()
    try:
        with _ended_by_signals():
            terms = limit | {"sealed": sealed}
            return _demonstrate(out, EPSILON if epsilon is None else epsilon, seed, terms, keep, as_json)
    except KeyboardInterrupt:
        typer.echo("\nInterrupted. The nodes are stopped; nothing was drawn.", err=True)
        return endings.INTERRUPTED


def _demonstrate(out: Path, epsilon: float, seed: int | None, limit: dict[str, Any], keep: bool, as_json: bool) -> int:
    began = time.perf_counter()
    from sfumato.cli import show

    if not as_json:  # before the slow imports: a person wants to know what is going on
        show.heading("sfumato demo consortium")
        how = SEALED if limit["sealed"] else UNSEALED
        show.paragraph(INTRODUCTION.format(epsilon=epsilon, delta=DELTA, how=how))
    from sfumato.cli import outputs
    from sfumato.demo.consortium import tables
    from sfumato.demo.consortium.owners import owners

    insurers = tables.load()
    with owners(insurers, epsilon) as everyone:
        if not as_json:
            _introduce(everyone, keep)
        run = _sample(everyone, tables.terms(epsilon) | limit, seed, as_json)
        if run.iterations == 0:
            _nothing_drawn(run)
        written = outputs.write(run, out, TITLE)  # before the owners are asked anything: the draws were paid for
        seen = _look(everyone, run)
        _write_statements(seen, written, out)
        took = time.perf_counter() - began
        if as_json:
            endings.write_json(_document(run, insurers, seen, written) | {"seconds": took})
        else:
            _show(run, insurers, seen, written)
            show.paragraph(f"\nDone in {took:.0f} seconds. Open {show.short(written.files['report'])} in a browser.")
        if keep and run.stop_reason.name != "INTERRUPTED":
            _wait(as_json)
    if keep and not as_json:
        typer.echo("\n  The nodes are stopped, and their folders are gone.")
    return endings.of_run(run)


def _sample(everyone: "list[Owner]", terms: dict[str, Any], seed: int | None, as_json: bool) -> "Run":
    """Do what an analyst does: connect, plan, sample."""
    from sfumato.cli import show
    from sfumato.demo.consortium.visits import visits
    from sfumato.owners.remote import connect
    from sfumato.run.sampling import plan, sample
    from sfumato.tools.progress import ticker

    doors = [connect(owner.node.address, token=owner.analyst_token) for owner in everyone]
    if not as_json:
        with ticker(None) as tick:  # a moving bar, where somebody watches
            planned = plan(visits, doors, **terms)
            tick(1, 1, "planned")
        show.plan(planned, "before anything is spent; its assumptions were made knowing this public table")
    return sample(visits, doors, seed=seed, **terms)


# -- what is shown and written ------------------------------------------------------------------------------------------


def _introduce(everyone: "list[Owner]", keep: bool) -> None:
    from sfumato.cli import show

    show.heading("Owners")
    show.facts(
        [
            (owner.name, f"{owner.insurer.n:,} records; console {owner.node.address}\ntoken {owner.owner_token}")
            for owner in everyone
        ]
    )
    show.paragraph(LOOK.format(while_it_lasts="" if keep else "; with --keep they stay up after the run"))


def _show(run: "Run", insurers: "list[Insurer]", seen: list[Seen], written: "Written") -> None:
    from sfumato.analysis.diagnostics import shown_rows
    from sfumato.cli import show
    from sfumato.cli.demo import show_coefficients
    from sfumato.cli.output import console
    from sfumato.demo.consortium.tables import LABELS, pooled_fit

    rows = shown_rows(run)
    show.verdict(run)
    show_coefficients(rows, pooled_fit(insurers), LABELS, COMPARISON.format(n=sum(i.n for i in insurers)))
    if run.verdict.usable:
        show.paragraph(_in_words(run))
    show.heading("Chains")
    show.chains(run)
    show.statement(run)
    show.heading("What each owner's console says now")
    console().print(_budgets(seen))
    show.facts([(one.owner.name, f"{one.state['statement']}\n") for one in seen])
    show.files(written)


def _in_words(run: "Run") -> str:
    """The answer as shares of people, from the private draws."""
    import numpy as np

    draws = {name: np.asarray(values) for name, values in run.draws.items()}
    free, pays = (np.mean(1 / (1 + np.exp(-x))) for x in (draws["intercept"], draws["intercept"] + draws["b_pays"]))
    return (
        f"In words: of people without chronic illness {free:.0%} see a doctor in a year where care is free, and {pays:.0%} "
        "where they pay a part of the bill."
    )


def _budgets(seen: list[Seen]) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("")
    for column in ("records", "promise", "budget spent", "answers", "share of noise"):
        table.add_column(column, justify="right", no_wrap=True)
    for owner, state, share in seen:
        budget = state["budget"]
        promise = f"({budget['epsilon']:g}, {budget['delta']:g})"
        spent = f"{budget['spent'] / budget['cap']:.0%} of mu^2 = {budget['cap']:.3g}"
        table.add_row(owner.name, f"{state['n']:,}", promise, spent, f"{state['answers']:,}", f"{share:.0%}")
    return table


def _look(everyone: "list[Owner]", run: "Run") -> list[Seen]:
    """Read every owner's console."""
    facts = zip(everyone, run.plan.owners, strict=True)
    return [Seen(owner, owner.console(), planned["share"]) for owner, planned in facts]


def _write_statements(seen: list[Seen], written: "Written", out: Path) -> None:
    written.files["owners"] = out / "owners.txt"
    statements = "\n\n".join(f"{one.owner.name}\n{one.state['statement']}" for one in seen)
    written.files["owners"].write_text(statements + "\n", encoding="utf-8")


def _document(run: "Run", insurers: "list[Insurer]", seen: list[Seen], written: "Written") -> dict[str, Any]:
    from sfumato.analysis.diagnostics import shown_rows
    from sfumato.cli import outputs
    from sfumato.cli.demo import without_privacy
    from sfumato.demo.consortium.tables import LABELS, pooled_fit

    compared = without_privacy(shown_rows(run), pooled_fit(insurers), LABELS)
    return outputs.as_json(run, written, "demo consortium") | compared | {"owners": [one.as_json() for one in seen]}


# -- endings ------------------------------------------------------------------------------------------------------------


def _nothing_drawn(run: "Run") -> None:
    if run.stop_reason.name == "INTERRUPTED":
        raise KeyboardInterrupt
    raise OwnerLost(f"{run.stop_owner!r} stopped answering before the first draw; try again.", owner=run.stop_owner)


def _wait(as_json: bool) -> None:
    """Leave the nodes to whoever looks at them."""
    if not as_json:
        typer.echo("\n  The nodes are up until Ctrl-C.")
    with suppress(KeyboardInterrupt):
        while True:
            time.sleep(1.0)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let a request to end, or a terminal that is closed, pass through every `finally`: no node may be left behind."""

    def leave(number: int, frame: Any) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
