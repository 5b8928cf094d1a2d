"""Threads for what takes longer than a moment, shared out so that no one analyst keeps the others waiting."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

BEGINNING = 2
"""Threads that settle terms and compile: a token has one of them at a time, so another's beginning need not wait for it."""
ANSWERING = (os.cpu_count() or 1) + 4
"""Threads that answer from a desk: they wait for passes over the records more than they compute."""


class Lane:
    """A few threads; of those, every token may have some at a time, and whatever else it wants waits for its own turn.

    Parameters
    ----------
    threads, each
        How many work at a time, in all and for one token.
    name
        What the threads are called.
    """

    def __init__(self, threads: int, each: int, name: str) -> None:
        self._threads, self._each = ThreadPoolExecutor(threads, thread_name_prefix=name), each
        self._turns: dict[str, asyncio.Semaphore] = {}

    async def run(self, token: str, call: Callable[[], T]) -> T:
        """Do it on a thread, when it is this token's turn."""
        async with self._turns.setdefault(token, asyncio.Semaphore(self._each)):
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def close(self) -> None:
        """Begin nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)
