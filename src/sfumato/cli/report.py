"""``sfumato report``: the page of a saved run."""

from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli import endings
from sfumato.cli.study import AsJson
from sfumato.errors import InvalidInput


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A saved run (run.npz).", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the page.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option("--title", help="Heading of the page.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the HTML report of a saved run: one file, readable anywhere, released values only."""
    from sfumato.analysis.report import write_report
    from sfumato.analysis.result import load
    from sfumato.cli import outputs

    loaded = load(run)
    try:
        path = write_report(loaded, out, title=title)
    except OSError as error:
        raise InvalidInput(
            f"the report cannot be written to {out} ({error.strerror}); choose another place with --out."
        ) from None
    if as_json:
        endings.write_json({"ok": True, "report": str(path), "verdict": outputs.verdict_json(loaded)})
    else:
        from sfumato.cli import show

        show.verdict(loaded)
        typer.echo(f"Report: {path}")
