"""How a command ends: exit codes, and errors as one paragraph or one JSON object.

What sfumato raises on purpose carries a message that quotes the request and never a record, so it is shown. Any other
exception is named by its type alone: its message might quote a record. ``SFUMATO_DEBUG=1`` shows the traceback.
"""

import json
import math
import os
import sys
import traceback
from typing import Any, NamedTuple

from sfumato import errors

FINE, UNEXPECTED, INVALID, TOO_WEAK, NO_BUDGET, CHECKPOINT, OWNER, REFUTED, INTERRUPTED = 0, 1, 2, 3, 4, 5, 6, 7, 130


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
    errors.OwnerLost: Ending("owner-lost", OWNER),
    errors.OwnerRefused: Ending("owner-refused", OWNER),
    errors.BadAnswer: Ending("bad-answer", OWNER),
    errors.OwnerError: Ending("owner", OWNER),
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


def _failure(ending: Ending, message: str, error: Exception) -> dict[str, Any]:
    failure: dict[str, Any] = {"ok": False, "code": ending.code, "error": message}
    plan: Any = getattr(error, "plan", None)
    return failure if plan is None else failure | {"plan": plan.to_dict()}


def _say(message: str) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False)
    console.print(Text.assemble(("Error: ", "bold red"), message), soft_wrap=not console.is_terminal)


def _plain(value: Any) -> Any:
    """Keep to what JSON can hold: NaN and infinity become null, NumPy scalars numbers."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
