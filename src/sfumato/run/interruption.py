"""Ctrl-C while a run is under way: heard wherever it comes, and never lost.

Python raises KeyboardInterrupt between any two instructions of the main thread. Where that is a callback of the garbage
collector (JAX has one), a finaliser or a weak reference's callback, the exception is printed and forgotten, and the run would go
on to spend. So the signal is written down first, and `check` raises it again at the next place where a run can stop: before each
release of the pilot and before the chains. While chains are drawn nothing is raised at all: the loop looks after every chunk
(`until_asked`).
"""

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class _Ear:
    """What was heard since a run began."""

    def __init__(self, before: Any) -> None:
        self._before = before
        self.asked = False
        self.patient = False  # the first Ctrl-C waits for the loop
        self.ending = self.late = False  # one that comes while the handler is taken away waits until it is

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Write Ctrl-C down; then do what it did before, unless that would be lost, or the loop will see to it."""
        first, self.asked, self.late = not self.asked, True, self.ending
        if self.ending or (self.patient and first) or _would_be_lost(frame):
            return
        self.act(number, frame)

    def act(self, number: int, frame: FrameType | None) -> None:
        """Do what Ctrl-C did before."""
        if callable(self._before):
            self._before(number, frame)
        else:
            raise KeyboardInterrupt


_ear: _Ear | None = None  # signals are the process's, and only its main thread hears them


@contextmanager
def listening() -> Iterator[None]:
    """Hear Ctrl-C from here on, for a whole run; where signals are not this thread's to hear, or are ignored, do nothing."""
    global _ear  # noqa: PLW0603 (one process, one Ctrl-C)
    before = signal.getsignal(signal.SIGINT) if _main() else None
    if _ear is not None or before in (None, signal.SIG_IGN):
        yield
        return
    ear = _Ear(before)
    try:
        signal.signal(signal.SIGINT, ear.hear)
        _ear = ear
        yield
    finally:
        _ear, ear.ending = None, True  # no call before this: between instructions without one no signal is heard
        signal.signal(
            signal.SIGINT, before
        )  # it hears what is pending first, and what raised there would leave the handler
        if ear.late:
            ear.act(signal.SIGINT, None)


def check() -> None:
    """Raise a Ctrl-C that was heard and lost. For the places where a run can stop.

    Raises
    ------
    KeyboardInterrupt
        It was asked for, in this thread's run.
    """
    if _asked():
        raise KeyboardInterrupt


@contextmanager
def until_asked() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a request, which the function given tells of; a second one raises as usual."""
    with listening():
        if _ear is None or not _main():
            yield lambda: False
            return
        outer, _ear.patient = _ear.patient, True
        ear = _ear
        try:
            yield lambda: ear.asked
        finally:
            ear.patient = outer


def _main() -> bool:
    return threading.current_thread() is threading.main_thread()


def _asked() -> bool:
    return _ear is not None and _ear.asked and _main()


def _would_be_lost(frame: FrameType | None) -> bool:
    """Whether an exception raised here would be printed and forgotten. Not all such places can be told; `check` is for those."""
    callbacks = [getattr(callback, "__code__", None) for callback in gc.callbacks]
    while frame is not None:
        if frame.f_code in callbacks or frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False
