"""Statistics asked ahead: one message for several steps of Langevin.

Langevin's first query, the noisy statistic, does not depend on where the chains are. So those of the next steps are asked for
together, and a step waits for its second query alone: one round instead of two, which is what a chain over a long wire takes.
The numbers are the same ones in the same order.

Which steps share a message follows from the step's number, so a run that comes back asks with the same ids and gets the same
bytes. Near the end of a budget each step asks for itself: statistics nobody could pay the second query of would be lost.
"""

from collections.abc import Callable

import numpy as np

from sfumato.access.questions import AHEAD, AHEAD_NUMBERS, Statistic
from sfumato.errors import BudgetSpent

ROOM = 2
"""Steps are fetched ahead while the budget reaches for this many times as many."""

Ask = Callable[[str, Statistic, int], np.ndarray]


class Statistics:
    """The statistics of a chain, step by step.

    Parameters
    ----------
    ask
        (name of the query, question, how many numbers) -> the answers of all owners, added up.
    chains, dim
        A step's statistics: a row of `dim` numbers for each of the chains.
    """

    def __init__(self, ask: Ask, chains: int, dim: int) -> None:
        self._ask, self._chains, self._dim = ask, chains, dim
        self.stride = max(1, min(AHEAD, AHEAD_NUMBERS // (chains * dim)))
        self._first, self._rows = -1, np.zeros((0, chains, dim), np.int64)

    def at(self, step: int, end: int, affordable: Callable[[int], bool]) -> np.ndarray:
        """Those of a step, of a chain that goes on until `end` at least; `affordable` says of how many steps."""
        if not self._first <= step < self._first + len(self._rows):
            self._fetch(step, end, affordable)
        return self._rows[step - self._first]

    def _fetch(self, step: int, end: int, affordable: Callable[[int], bool]) -> None:
        grid = step - step % self.stride
        # A run that comes back to the middle of a message asks for all of it again: it is paid for.
        first = grid if self._first < 0 else step
        count = min(grid + self.stride, end) - first
        if count > 1 and affordable(ROOM * count):
            try:
                return self._get(f"{first}/statistics-{count}", first, count)
            except BudgetSpent:
                pass  # somebody's does not reach that far: for one step it may
        return self._get(f"{step}/statistic", step, 1)

    def _get(self, name: str, first: int, count: int) -> None:
        question = Statistic(chains=self._chains, steps=count)
        numbers = self._ask(name, question, count * self._chains * self._dim)
        self._first, self._rows = first, numbers.reshape(count, self._chains, self._dim)
