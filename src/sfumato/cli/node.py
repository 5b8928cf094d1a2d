"""``sfumato init``, ``serve`` and ``token``: the data owner's node."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli import endings
from sfumato.cli.options import Command, Group, flag
from sfumato.errors import InvalidInput

OwnerPath = Annotated[Path, typer.Argument(metavar="OWNER", help="The owner's file (TOML).", show_default=False)]
TokenName = Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits, - and _.", show_default=False)]
AsJson = Annotated[bool, flag("--json", help="Write one JSON document to standard output and nothing else.")]

tokens = typer.Typer(cls=Group, help="Tokens of a node: who may ask, and who may look.", no_args_is_help=True)


def init(
    path: Annotated[Path, typer.Argument(metavar="OWNER", help="The file to write.")] = Path("owner.toml"),
    name: Annotated[str, typer.Option("--name", help="How analysts will call the owner.")] = "Example Hospital",
    as_json: AsJson = False,
) -> None:
    """Write a commented owner's file to start from, and beside it the model it approves. Never overwrites."""
    from sfumato.node.config import MODEL, MODEL_FILE, template

    if not name.isprintable() or '"' in name or "\\" in name:
        raise InvalidInput(f"--name must be plain text without quotes, got {name!r}.")
    model = path.parent / MODEL_FILE
    if not _write_new(path, template(name)):
        raise InvalidInput(f"{path} exists and is never overwritten; name another file.")
    made = _write_new(model, MODEL)
    if as_json:
        endings.write_json({"ok": True, "path": str(path), "model": str(model), "model_written": made})
        return
    typer.echo(f"Wrote {path} and {model}." if made else f"Wrote {path}; {model} was there, and stays as it is.")
    typer.echo(f"Edit them, put your table in place, then: sfumato token add {path} NAME, sfumato serve {path}")


def _write_new(path: Path, text: str) -> bool:
    """Write a file that must not exist; False if it does."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written ({error.strerror}); name another place.") from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    return True


def serve(
    owner: OwnerPath,
    dev: Annotated[
        bool, flag("--dev", help="For trying out: no TLS needed anywhere; makes tokens if there are none.")
    ] = False,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="Listen here, whatever the file says.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Serve approved questions about records that stay here, within a budget. Ctrl-C ends it cleanly."""
    import msgspec

    from sfumato.node.config import check_listen, read_owner

    file = read_owner(owner)
    if port is not None:
        file = msgspec.structs.replace(file, listen=msgspec.structs.replace(file.listen, port=port))
    check_listen(file.listen, dev=dev)
    need_extra()
    from sfumato.node.serve import serve as run
    from sfumato.node.tokens import TokenFile

    book = TokenFile(file.place(file.tokens))
    made = {}
    if dev and not book.all():
        made = {"owner": book.add("dev-owner", "owner", days=1), "analyst": book.add("dev-analyst", days=1)}
    scheme = "https" if file.listen.certificate else "http"
    address = f"{scheme}://{file.listen.host}:{file.listen.port}"

    def announce() -> None:
        if as_json:
            endings.write_json({"ok": True, "address": address, "tokens": made})
            return
        typer.echo(f"{file.name}: {address} (console in a browser; Ctrl-C ends)")
        for kind, token in made.items():
            typer.echo(f"  {kind}'s token, for a day: {token}")
        if dev and not file.listen.certificate:
            typer.echo("  --dev: without TLS; never let this face a network you do not trust.")

    run(file, dev=dev, announce=announce)


@tokens.command(cls=Command)
def add(
    owner: OwnerPath,
    name: TokenName,
    for_owner: Annotated[bool, flag("--owner", help="Opens the console; may not ask questions.")] = False,
    monitor: Annotated[bool, flag("--monitor", help="Reads /metrics and nothing else.")] = False,
    days: Annotated[float | None, typer.Option("--days", help="Expires after so many days; never by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a token and show it, once. A running node knows it at once."""
    from sfumato.node.config import read_owner
    from sfumato.node.tokens import TokenFile

    if for_owner and monitor:
        raise InvalidInput("a token is the owner's or a monitor's; give one of --owner and --monitor.")
    file = read_owner(owner)
    kind = "owner" if for_owner else "monitor" if monitor else "analyst"
    token = TokenFile(file.place(file.tokens)).add(name, kind, days=days)  # type: ignore[arg-type]
    if as_json:
        endings.write_json({"ok": True, "name": name, "kind": kind, "token": token})
    else:
        typer.echo(token)
        typer.echo("Hand it over safely: it is not kept and cannot be shown again.", err=True)


@tokens.command(cls=Command)
def revoke(owner: OwnerPath, name: TokenName, as_json: AsJson = False) -> None:
    """Close a token for good. A running node hangs up on it within a second."""
    from sfumato.node.config import read_owner
    from sfumato.node.tokens import TokenFile

    file = read_owner(owner)
    TokenFile(file.place(file.tokens)).revoke(name)
    if as_json:
        endings.write_json({"ok": True, "name": name, "state": "revoked"})
    else:
        typer.echo(f"{name} is revoked.")


@tokens.command("list", cls=Command)
def list_tokens(owner: OwnerPath, as_json: AsJson = False) -> None:
    """List tokens: names, kinds and states, never the tokens themselves."""
    from sfumato.node.config import read_owner
    from sfumato.node.tokens import TokenFile

    file, now = read_owner(owner), datetime.now(UTC)
    lines = [
        {"name": t.name, "kind": t.kind, "state": t.state(now), "created": t.created, "expires": t.expires}
        for t in TokenFile(file.place(file.tokens)).all().values()
    ]
    if as_json:
        endings.write_json({"ok": True, "tokens": lines})
        return
    for line in lines:
        typer.echo(f"{line['name']:<24} {line['kind']:<8} {line['state']:<8} until {line['expires'] or 'revoked'}")
    if not lines:
        typer.echo("No tokens yet.")


def need_extra() -> None:
    """Say what to install where a package that a node needs is missing."""
    try:
        import fastapi  # noqa: F401
        import httptools  # noqa: F401
        import uvicorn  # noqa: F401
        import websockets  # noqa: F401
    except ImportError as error:
        raise InvalidInput(f"a node needs the package {error.name}: pip install 'sfumato[node]'.") from None
