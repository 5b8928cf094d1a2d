"""How a command ends: exit codes, and errors as one paragraph or one JSON object.

What sfumato raises on purpose carries a message that quotes the request and never a record, so it is shown. Any other
exception is named by its type alone: its message might quote a record. ``SFUMATO_DEBUG=1`` shows the traceback.
"""

import json
import math
import os
import sys
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from sfumato import errors

if TYPE_CHECKING:
    from sfumato.analysis.estimate import Estimate
    from sfumato.analysis.result import Run

FINE, UNEXPECTED, INVALID, TOO_WEAK, NO_BUDGET, CHECKPOINT, OWNER, REFUTED = 0, 1, 2, 3, 4, 5, 6, 7
UNUSABLE, INTERRUPTED = 8, 130


class Ending(NamedTuple):
    """A code for programs, an exit code for shells."""

    code: str
    exit_code: int


# The most special class first: the first that fits is taken.
ENDINGS: dict[type[errors.SfumatoError], Ending] = {
    errors.InvalidModel: Ending("invalid-model", INVALID),
    errors.InvalidData: Ending("invalid-data", INVALID),
    errors.BundleError: Ending("bundle", INVALID),
    errors.Unsupported: Ending("unsupported", INVALID),
    errors.InvalidInput: Ending("invalid-input", INVALID),
    errors.PlanTooWeak: Ending("plan-too-weak", TOO_WEAK),
    errors.NotArrived: Ending("not-arrived", TOO_WEAK),
    errors.OwnerLost: Ending("owner-lost", OWNER),
    errors.OwnerRefused: Ending("owner-refused", OWNER),
    errors.BadAnswer: Ending("bad-answer", OWNER),
    errors.OwnerError: Ending("owner", OWNER),
    errors.KeysGone: Ending("keys-gone", OWNER),
    errors.BudgetSpent: Ending("budget-spent", NO_BUDGET),
    errors.LedgerError: Ending("ledger", NO_BUDGET),
    errors.CheckpointError: Ending("checkpoint", CHECKPOINT),
    errors.NoiseError: Ending("noise", UNEXPECTED),
    errors.SfumatoError: Ending("sfumato", UNEXPECTED),
}


def explain(error: Exception, as_json: bool) -> int:
    """Show an error to whoever asked, and return the exit code."""
    if os.environ.get("SFUMATO_DEBUG") == "1":
        traceback.print_exception(error)
    ending, message = _ending(error)
    if as_json:
        write_json(_failure(ending, message, error))
    elif ending.code == "usage" and hasattr(error, "show"):
        error.show()
    else:
        _say(message)
    return ending.exit_code


def interrupted(message: str, as_json: bool) -> int:
    """Say what Ctrl-C left behind, where there are no draws to show, and return the exit code."""
    if as_json:
        write_json(_failure(Ending("interrupted", INTERRUPTED), message))
    else:
        _say(message, "Interrupted. ", "bold yellow")
    return INTERRUPTED


def of_estimate(estimate: "Estimate") -> int:
    """Exit code of a command that ends with an estimate: what it is worth."""
    return FINE if estimate.verdict.usable else UNUSABLE


def of_run(run: "Run") -> int:
    """Exit code of a command that ends with a run: how it stopped, if somebody can go on with it; else what it is worth."""
    stopped = {"INTERRUPTED": INTERRUPTED, "OWNER_LOST": OWNER}.get(run.stop_reason.name)
    return stopped if stopped is not None else FINE if run.verdict.usable else UNUSABLE


def leave(exit_code: int) -> NoReturn:
    """End the process here and now, without the interpreter's own ending; everything was closed on the way to here.

    Ctrl-C leaves JAX compiling in a thread of its own. It crashes when the interpreter takes the device away from it, and a
    segmentation fault would take the place of the exit code.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(exit_code)


def write_json(value: dict[str, Any]) -> None:
    """Write one JSON document to standard output: the only thing a command with --json writes there."""
    sys.stdout.write(json.dumps(_plain(value), indent=2, allow_nan=False) + "\n")
    sys.stdout.flush()


def _ending(error: Exception) -> tuple[Ending, str]:
    for kind, ending in ENDINGS.items():
        if isinstance(error, kind):
            return ending, str(error)
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # what the argument parser raises
        return Ending("usage", error.exit_code), str(error.format_message())
    return Ending("unexpected", UNEXPECTED), (
        f"Something unexpected happened: {type(error).__name__}. Its message is not shown, because it might quote a "
        "record; SFUMATO_DEBUG=1 shows the traceback, on a terminal where records may be seen."
    )


def _failure(ending: Ending, message: str, error: Exception | None = None) -> dict[str, Any]:
    failure: dict[str, Any] = {"ok": False, "code": ending.code, "error": message}
    plan: Any = getattr(error, "plan", None)
    forecast: Any = getattr(error, "estimate", None)
    failure |= {} if forecast is None else {"estimate": forecast.to_dict()}
    return failure if plan is None else failure | {"plan": plan.to_dict()}


def _say(message: str, heading: str = "Error: ", style: str = "bold red") -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False)
    console.print(Text.assemble((heading, style), message), soft_wrap=not console.is_terminal)


def _plain(value: Any) -> Any:
    """Keep to what JSON can hold: NaN and infinity become null, NumPy scalars numbers."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
