"""Answers on a fixed beat: what leaves at a multiple of the tick says nothing about how long it took to compute."""

import asyncio
import math


class Tick:
    """A beat of so many milliseconds; zero lets answers go at once.

    Notes
    -----
    An answer that is not ready for one beat waits for the next: a likelihood that takes longer than a tick still shows, as a
    whole number of ticks. Choose a tick above the slowest answer.
    """

    def __init__(self, milliseconds: float) -> None:
        self._seconds = milliseconds / 1000.0

    def __bool__(self) -> bool:
        return self._seconds > 0

    async def wait(self) -> None:
        """Sleep until the next beat of the loop's own clock."""
        now = asyncio.get_running_loop().time()
        await asyncio.sleep((math.floor(now / self._seconds) + 1) * self._seconds - now)
