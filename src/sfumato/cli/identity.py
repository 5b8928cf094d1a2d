"""``sfumato identity``: an owner's keys for sealed sums."""

from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli import endings
from sfumato.cli.options import Command, Group, flag

IdentityPath = Annotated[Path, typer.Argument(metavar="FILE", help="The file of the identity.")]
AsJson = Annotated[bool, flag("--json", help="Write one JSON document to standard output and nothing else.")]

app = typer.Typer(
    cls=Group, help="Keys of an owner who answers together with others (sealed sums).", no_args_is_help=True
)


@app.command(cls=Command)
def new(path: IdentityPath = Path("identity.key"), as_json: AsJson = False) -> None:
    """Make an identity, in a file that its owner alone can read, and show what the other members pin. Never overwrites."""
    from sfumato.vault.sealed.identity import Identity

    _show(path, Identity.new(path).public, as_json)


@app.command(cls=Command)
def show(path: IdentityPath = Path("identity.key"), as_json: AsJson = False) -> None:
    """Show what the other members pin, and its fingerprint to compare by telephone."""
    from sfumato.vault.sealed.identity import Identity

    _show(path, Identity.open(path).public, as_json)


def _show(path: Path, public: str, as_json: bool) -> None:
    from sfumato.protocol.consortium import fingerprint

    if as_json:
        endings.write_json({"ok": True, "path": str(path), "key": public, "fingerprint": fingerprint(public)})
        return
    typer.echo(public)
    typer.echo(f"fingerprint {fingerprint(public)}: read it to the other members by telephone.", err=True)
