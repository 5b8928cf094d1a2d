"""The command line: parse, call the library, render.

Nothing heavy is imported before a command runs, so that ``sfumato --help`` answers at once.
"""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from sfumato.cli import audit, bundle, demo, doctor, endings, identity, ledger, node, paper, report, study
from sfumato.cli.options import Command, Group, flag

EPILOG = (
    "Exit codes: 0 fine; 1 something unexpected; 2 wrong usage or invalid input; 3 the plan is too weak, or `ledger verify` "
    "found problems; 4 the budget was spent before anything could be drawn, or the ledger refuses; 5 trouble with a checkpoint "
    "or a saved file; 6 an owner is lost, refuses, or answers nonsense; 7 an audit refutes the promise; 8 the verdict on a "
    'run or an estimate is "do not use"; 130 interrupted (what was drawn is saved).'
)

app = typer.Typer(
    name="sfumato",
    cls=Group,
    help="Exact Bayesian inference on records nobody is allowed to see.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # a traceback with locals would show records
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(cls=Command)(demo.demo)
app.command(cls=Command)(study.plan)
app.command(cls=Command)(study.run)
app.command(cls=Command)(study.estimate)
app.command(cls=Command)(study.resume)
app.command(cls=Command)(bundle.release)
app.command(cls=Command)(bundle.sample)
app.command(cls=Command)(report.report)
app.command(cls=Command)(node.init)
app.command(cls=Command)(node.serve)
app.add_typer(node.tokens, name="token")
app.add_typer(identity.app, name="identity")
app.command(cls=Command)(audit.audit)
app.command(cls=Command)(doctor.doctor)
app.add_typer(ledger.app, name="ledger")
app.add_typer(paper.app, name="paper")


def _print_version(asked: bool) -> None:
    if asked:
        from sfumato.tools.version import __version__

        typer.echo(f"sfumato {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, flag("--version", callback=_print_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; every error ends here, in words.

    Without arguments it is the program itself, which Ctrl-C ends at once.
    """
    code = _run(list(sys.argv[1:] if arguments is None else arguments))
    if arguments is None and code == endings.INTERRUPTED:
        endings.leave(code)
    return code


def _run(given: list[str]) -> int:
    try:
        code = app(args=given, prog_name="sfumato", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except Exception as error:  # the last line of defence: whatever happened, no record is quoted
        return endings.explain(error, as_json="--json" in given)
