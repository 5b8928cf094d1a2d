"""``sfumato ledger``: look at a budget ledger, export it, verify it, copy it."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from sfumato.cli import endings
from sfumato.cli.options import Command, Group, flag
from sfumato.errors import InvalidInput, LedgerError, SfumatoError
from sfumato.privacy.budget import mu_squared
from sfumato.vault.ledger import Head, Ledger

PROBLEMS_FOUND = 3
"""Of a plan 3 means that it is too weak; here nothing is planned."""

app = typer.Typer(
    cls=Group,
    help="Look at a budget ledger, export it, verify it, copy it.",
    epilog="Exit codes: 0 fine; 1 something unexpected; 2 wrong usage or invalid input; 3 verification found problems; 4 the "
    "ledger is missing, is none, or cannot be read.",
    no_args_is_help=True,
)

LedgerPath = Annotated[Path, typer.Argument(metavar="LEDGER", help="The ledger's file.", show_default=False)]
AsJson = Annotated[bool, flag("--json", help="Write JSON for other programs.")]


@app.command(cls=Command)
def show(path: LedgerPath, as_json: AsJson = False) -> None:
    """Show cap, spending and accounts."""
    with _opened(path, as_json) as ledger:
        facts = _facts(ledger)
    if as_json:
        _write_json({"ok": True, **facts})
    else:
        _print_facts(facts)


@app.command(cls=Command)
def export(
    path: LedgerPath,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write to this file, not to the screen.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write all entries of the hash chain, oldest first: one JSON object a line, or one document with --json."""
    with _opened(path, as_json) as ledger:
        rows = list(ledger.entries())
    lines = [json.dumps({"ok": True, "entries": rows})] if as_json else [json.dumps(row) for row in rows]
    if out is None:
        sys.stdout.writelines(f"{line}\n" for line in lines)
        return
    try:
        out.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    except OSError as error:
        words = f"the export needs a file it can write, and '{out}' cannot be written ({error.strerror}); name another."
        _fail(InvalidInput(words), as_json)


@app.command(cls=Command)
def verify(
    path: LedgerPath,
    head: Annotated[
        str | None,
        typer.Option("--head", help="A head (number:hash) you kept elsewhere; finds a cut or rewritten end."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Recompute the hash chain and all balances; name every entry that was edited, deleted or moved."""
    with _opened(path, as_json) as ledger:
        result = ledger.verify(Head.parse(head) if head is not None else None)
    if as_json:
        _write_json({"ok": result.ok, "head": str(result.head), "problems": list(result.problems)})
    elif result.ok:
        typer.echo(f"The chain of {result.head.seq} entries holds, and every balance follows from it.")
        typer.echo(f"Head: {result.head}")
        if head is None:
            typer.echo("Keep this head elsewhere: without one, a cut or wholly rewritten ledger cannot be told apart.")
    else:
        typer.echo(f"{len(result.problems)} problem(s) found:")
        for problem in result.problems:
            typer.echo(f"  {problem}")
    if not result.ok:
        raise typer.Exit(PROBLEMS_FOUND)


@app.command(cls=Command)
def backup(
    path: LedgerPath,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="The copy; must not exist.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Copy a ledger, also one in use, and name the copy's head: keep that elsewhere."""
    with _opened(path, as_json) as ledger:
        head = ledger.backup(target)
    if as_json:
        _write_json({"ok": True, "path": str(target), "head": str(head)})
    else:
        typer.echo(f"Copied to {target}.\nHead: {head}")
        typer.echo("Keep this head elsewhere. What is spent from now on is not in the copy.")


@contextmanager
def _opened(path: Path, as_json: bool) -> Iterator[Ledger]:
    """Open a ledger; turn what goes wrong with it into one line and an exit code."""
    try:
        if not path.is_file():  # the library would say how to make one in Python
            raise LedgerError(
                f"there is no ledger at '{path}'; name the file of one. A node's is what `ledger` in its owner.toml says, a "
                "run's own lies in its checkpoint folder."
            )
        with Ledger(path) as ledger:
            yield ledger
    except SfumatoError as error:
        _fail(error, as_json)


def _fail(error: SfumatoError, as_json: bool) -> None:
    raise typer.Exit(endings.explain(error, as_json))


def _write_json(value: dict[str, Any]) -> None:
    typer.echo(json.dumps(value, indent=2))


def _facts(ledger: Ledger) -> dict[str, Any]:
    spent = ledger.spent
    return {
        "path": str(ledger.path),
        "epsilon": ledger.epsilon,
        "delta": ledger.delta,
        **_amounts(ledger.cap, spent),
        "head": str(ledger.head()),
        "accounts": [
            {
                "name": state.name,
                "parent": state.parent,
                **_amounts(state.cap, state.spent),
                "open_blocks": state.open_blocks,
                "answers": state.answers,
                "about": state.about,
            }
            for state in ledger.accounts()
        ],
    }


def _amounts(cap: int, spent: int) -> dict[str, Any]:
    """Give cap, spent and left exactly (quanta) and readably (mu squared)."""
    quanta = {"cap": cap, "spent": spent, "left": cap - spent}
    return {"quanta": quanta, "mu_squared": {name: mu_squared(value) for name, value in quanta.items()}}


def _print_facts(facts: dict[str, Any]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from sfumato.cli.output import console as opened

    console = opened(80)
    # Plain Text everywhere: a name in the ledger is never read as markup.
    console.print(Text(_guarantee(facts)))
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("account", overflow="fold")
    for column in ("spent", "of", "left", "open", "answers"):
        table.add_column(column, justify="right", no_wrap=True)
    for depth, account in _tree(facts["accounts"]):
        amounts = account["mu_squared"]
        figures = [f"{amounts[name]:.4g}" for name in ("spent", "cap", "left")]
        counts = [str(account["open_blocks"]), f"{account['answers']:,}"]
        table.add_row(*map(Text, ["  " * depth + account["name"], *figures, *counts]))
    if facts["accounts"]:
        console.print(table)
    console.print(Text(f"Head: {facts['head']}"), soft_wrap=True)


def _tree(accounts: list[dict[str, Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Accounts with their depth, each under the one that it is part of."""
    names = {account["name"] for account in accounts}

    def below(parent: str | None, depth: int) -> Iterator[tuple[int, dict[str, Any]]]:
        for account in accounts:
            above = account["parent"] if account["parent"] in names else None
            if above == parent:
                yield depth, account
                yield from below(account["name"], depth + 1)

    return below(None, 0)


def _guarantee(facts: dict[str, Any]) -> str:
    amounts = facts["mu_squared"]
    terms = "" if facts["epsilon"] is None else f"Cap: epsilon {facts['epsilon']:g}, delta {facts['delta']:g}. "
    return (
        f"{terms}Mu squared: {amounts['spent']:.6g} of {amounts['cap']:.6g} spent "
        f"(blocks never settled count in full), {amounts['left']:.6g} left."
    )
