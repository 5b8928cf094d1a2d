"""The owner's log: one JSON object a line. Events, names, codes and counts; never a record, a sum or the time of one query.

Whoever may knock can cause lines, so what one visitor causes is limited: a few lines of a kind in a second, then one that says
how many were left out. Refusals are all counted in the metrics.

Anything unexpected is logged by its type and the places in the program it passed, without its message: that might quote a
record.
"""

import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

KEPT = 500
"""Events kept in memory for the console."""
LINES_PER_SECOND = 5
"""Lines of one kind about one visitor in one second; the rest is counted."""
LIMITED = frozenset({"refused", "spent", "open", "begin", "closed", "unexpected"})
"""What a visitor can cause; what the owner does is always written."""


class _Second:
    """Lines of one kind about one visitor in the second under way."""

    __slots__ = ("asked", "at")

    def __init__(self, at: int) -> None:
        self.at, self.asked = at, 0


class Log:
    """Structured events, to a file or to standard error, and the last few for the console.

    Parameters
    ----------
    path
        The file, opened for appending; None for standard error.
    clock
        Seconds, from anywhere.
    """

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = sys.stderr if path is None else path.open("a", encoding="utf-8")
        self._lock, self._clock = threading.Lock(), clock
        self._seconds: dict[tuple[str, str], _Second] = {}
        self.recent: deque[dict[str, Any]] = deque(maxlen=KEPT)

    def event(self, kind: str, /, **facts: Any) -> None:
        """Write one event; times are whole seconds, so that no query's time can be read off."""
        with self._lock:
            if kind not in LIMITED or self._has_room(kind, str(facts.get("who", ""))):
                self._write(kind, facts)

    def _write(self, kind: str, facts: dict[str, Any]) -> None:
        line: dict[str, Any] = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "event": kind, **facts}
        self.recent.append(line)
        try:
            self._file.write(msgspec.json.encode(line).decode() + "\n")
            self._file.flush()
        except (OSError, ValueError):
            pass  # a full disk or a closed terminal silences the log, never the node

    def _has_room(self, kind: str, who: str) -> bool:
        """Count a line; False when its second is full."""
        now = int(self._clock())
        second = self._seconds.get((kind, who))
        if second is None or second.at != now:
            self._say_left_out(kind, who)
            second = self._seconds[kind, who] = _Second(now)
        second.asked += 1
        return second.asked <= LINES_PER_SECOND

    def _say_left_out(self, kind: str, who: str) -> None:
        second = self._seconds.pop((kind, who), None)
        if second is not None and second.asked > LINES_PER_SECOND:
            left_out = second.asked - LINES_PER_SECOND
            self._write("left-out", {"who": who, "count": left_out, "what": f"{left_out} more like the last: {kind}"})

    def tidy(self) -> None:
        """Say what was left out of the seconds that are over."""
        with self._lock:
            now = int(self._clock())
            for kind, who in [key for key, second in self._seconds.items() if second.at != now]:
                self._say_left_out(kind, who)

    def unexpected(self, where: str, error: BaseException, **facts: Any) -> None:
        """Write that something failed: type and places, no message."""
        self.event("unexpected", where=where, type=type(error).__name__, trace=places(error), **facts)

    def close(self) -> None:
        """Say what was left out, and close the file."""
        with self._lock:
            for kind, who in list(self._seconds):
                self._say_left_out(kind, who)
        if self._file is not sys.stderr:
            self._file.close()


def places(error: BaseException) -> list[str]:
    """File, line and function of each step of a traceback; no source text, no values."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames][-12:]
