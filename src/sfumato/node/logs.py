"""The owner's log: one JSON object a line. Events, names, codes and counts; never a record, a sum or the time of one query.

Anything unexpected is logged by its type and the places in the program it passed, without its message: that might quote a
record.
"""

import sys
import threading
import traceback
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

KEPT = 500
"""Events kept in memory for the console."""


class Log:
    """Structured events, to a file or to standard error, and the last few for the console.

    Parameters
    ----------
    path
        The file, opened for appending; None for standard error.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._file = sys.stderr if path is None else path.open("a", encoding="utf-8")
        self._lock = threading.Lock()
        self.recent: deque[dict[str, Any]] = deque(maxlen=KEPT)

    def event(self, kind: str, /, **facts: Any) -> None:
        """Write one event; times are whole seconds, so that no query's time can be read off."""
        line: dict[str, Any] = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "event": kind, **facts}
        with self._lock:
            self.recent.append(line)
            try:
                self._file.write(msgspec.json.encode(line).decode() + "\n")
                self._file.flush()
            except (OSError, ValueError):
                pass  # a full disk or a closed terminal silences the log, never the node

    def unexpected(self, where: str, error: BaseException, **facts: Any) -> None:
        """Write that something failed: type and places, no message."""
        self.event("unexpected", where=where, type=type(error).__name__, trace=places(error), **facts)

    def close(self) -> None:
        """Close the file."""
        if self._file is not sys.stderr:
            self._file.close()


def places(error: BaseException) -> list[str]:
    """File, line and function of each step of a traceback; no source text, no values."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames][-12:]


def public(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Keep text short: what a visitor sent may stand in the log, but not fill it."""
    return {key: value[:200] if isinstance(value, str) else value for key, value in facts.items()}
