"""Progress for whoever watches: a bar on a terminal, nothing in a pipe, a callback where one is given."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Tick: TypeAlias = Callable[[int, int, str], None]
"""(steps done, steps expected, what is going on)."""


def say(text: str) -> None:
    """Write a line for whoever watches; a bar that is there lets it pass above itself. Nothing in a pipe."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


@contextmanager
def ticker(progress: bool | Tick | None) -> Iterator[Tick]:
    """Give a function to call with progress. None means: a bar if standard error is a terminal."""
    if callable(progress):
        yield progress
        return
    if progress is False or (progress is None and not sys.stderr.isatty()):
        yield lambda done, total, text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[count]}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("planning", total=None, count="")

        def tick(done: int, total: int, text: str) -> None:
            # A share of one: the steps expected change from chunk to chunk, and a changed total would forget the speed.
            count = f"{done:,} of {max(total, done):,}"
            bar.update(task, completed=done / max(total, done, 1), total=1.0, description=text, count=count)

        yield tick
