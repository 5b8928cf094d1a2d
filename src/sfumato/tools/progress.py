"""Progress for whoever watches: a live line on a terminal or in a notebook, nothing in a pipe, a callback where one is given.

What is shown is public: stages, counts, and what follows from released values.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from html import escape
from typing import Any, Protocol, TypeAlias

Tick: TypeAlias = Callable[[int, int, str], None]
"""(steps done, steps expected, what is going on)."""

EVERY = 0.2
"""Seconds between two updates of a notebook's line."""


class Display(Protocol):
    """Where progress is shown. A total of zero means that nobody knows how long it takes."""

    def tick(self, done: int, total: int, text: str) -> None:
        """Show how far it is."""

    def pause(self) -> None:
        """Take the line away while something else is written."""

    def go_on(self) -> None:
        """Show it again."""

    def close(self) -> None:
        """Take the line away for good."""


class _Watching:
    """Displays that are open, the innermost last, and who wants to see the plan."""

    def __init__(self) -> None:
        self.displays: list[Display] = []
        self.planned: list[Callable[[Any], None]] = []


_watching = _Watching()


def say(text: str) -> None:
    """Write a line for whoever watches; a bar that is there lets it pass above itself. Nothing in a pipe."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


def watched() -> bool:
    """Whether anybody looks: what is only computed to be shown need not be computed else."""
    return bool(_watching.displays)


def stage(text: str) -> None:
    """Say what begins now, to whoever watches; it takes as long as it takes."""
    if _watching.displays:
        _watching.displays[-1].tick(0, 0, text)


def show_plan(plan: Any) -> None:
    """Show a plan to whoever asked to see it, before anything is spent on it."""
    for show in _watching.planned:
        for display in _watching.displays:
            display.pause()
        show(plan)
        for display in _watching.displays:
            display.go_on()


@contextmanager
def watching(text: str = "", planned: Callable[[Any], None] | None = None) -> Iterator[None]:
    """Open a display, if somebody watches, for everything that happens inside; `planned` is shown the plan, pipe or not."""
    display = _open()
    with ExitStack() as stack:
        if display is not None:
            stack.enter_context(_shown(display))
        if planned is not None:
            _watching.planned.append(planned)
            stack.callback(_watching.planned.remove, planned)
        if text:
            stage(text)
        yield


@contextmanager
def _shown(display: Display) -> Iterator[Display]:
    _watching.displays.append(display)
    try:
        yield display
    finally:
        _watching.displays.remove(display)
        display.close()


@contextmanager
def ticker(progress: bool | Tick | None) -> Iterator[Tick]:
    """Give a function to call with progress. None means: a live line if somebody watches."""
    if callable(progress):
        yield progress
    elif progress is False or (progress is None and not _watching.displays and not _somebody()):
        yield lambda done, total, text: None
    elif _watching.displays:
        yield _watching.displays[-1].tick
    else:
        with _shown(_open() or _Terminal()) as display:
            yield display.tick


def by_tenths(write: Callable[[str], None]) -> Tick:
    """Progress for a pipe: a line for every tenth."""
    told = -1

    def tick(done: int, total: int, text: str) -> None:
        nonlocal told
        if total > 0 and (tenth := 10 * done // total) > told:
            told = tenth
            write(f"{text}: {done:,} of {total:,}")

    return tick


def _somebody() -> bool:
    return sys.stderr.isatty() or _in_notebook()


def _open() -> Display | None:
    """A display of its own, unless one is open or nobody watches."""
    if _watching.displays or not _somebody():
        return None
    return _Terminal() if sys.stderr.isatty() else _Notebook()


# -- a terminal -------------------------------------------------------------------------------------------------------------


class _Terminal:
    """One line on standard error: what is going on, how far, for how long; gone at the end."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = (
            SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=12), TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(), TextColumn("{task.fields[left]}"), TimeRemainingColumn(elapsed_when_finished=False),
        )  # fmt: skip
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)
        self._bar.start()
        self._task = self._bar.add_task("starting", total=None, count="", left="")
        self._known = False

    def tick(self, done: int, total: int, text: str) -> None:
        if (total > 0) != self._known:  # a new task: the speed of what was before says nothing about this
            self._bar.remove_task(self._task)
            self._task, self._known = (
                self._bar.add_task(text, total=1.0 if total > 0 else None, count="", left=""),
                total > 0,
            )
        if total > 0:
            # A share of one: the steps expected change from chunk to chunk, and a changed total would forget the speed.
            count = f"{done:,}/{max(total, done):,}"
            self._bar.update(
                self._task, completed=done / max(total, done), description=text, count=count, left="left", refresh=True
            )
        else:
            self._bar.update(self._task, description=text, count="", left="", refresh=True)

    def pause(self) -> None:
        self._bar.stop()

    def go_on(self) -> None:
        self._bar.start()

    def close(self) -> None:
        self._bar.stop()


# -- a notebook -------------------------------------------------------------------------------------------------------------


def _in_notebook() -> bool:
    """Whether a notebook shows what this process displays."""
    shell = sys.modules.get("IPython")
    if shell is None:
        return False
    running = shell.get_ipython()
    return running is not None and hasattr(running, "kernel")


class _Notebook:
    """An HTML line that updates itself."""

    def __init__(self) -> None:
        from IPython import display

        shown: Any = display  # has no types of its own
        self._html, self._began, self._shown = shown.HTML, time.monotonic(), 0.0
        self._handle = shown.display(self._html(self._line(0, 0, "starting")), display_id=True)

    def tick(self, done: int, total: int, text: str) -> None:
        if time.monotonic() - self._shown < EVERY and done < total:
            return
        self._shown = time.monotonic()
        self._update(self._line(done, total, text))

    def pause(self) -> None:
        """Nothing: a notebook has room for both."""

    def go_on(self) -> None:
        """Nothing."""

    def close(self) -> None:
        self._update("")  # a finished notebook shows results, and no times

    def _update(self, text: str) -> None:
        with suppress(Exception):  # a display that fails must not end a run
            self._handle.update(self._html(text))

    def _line(self, done: int, total: int, text: str) -> str:
        far = f' value="{done}" max="{max(total, done)}"' if total > 0 else ""
        count = f" {done:,} of {max(total, done):,}" if total > 0 else ""
        seconds = time.monotonic() - self._began
        left = f", about {seconds * (total - done) / done:.0f} s left" if total > done > 0 else ""
        label = escape(text)
        return f'<progress{far} aria-label="{label}"></progress> {label}{count}, {seconds:.0f} s{left}'
