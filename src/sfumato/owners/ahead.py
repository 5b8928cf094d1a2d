"""Statistics asked ahead: one message for several steps of Langevin.

Langevin's first query, the noisy statistic, does not depend on where the chains are. So those of the next steps are asked for
together, and a step waits for its second query alone: one round instead of two, which is what a chain over a long wire takes.
The numbers are the same ones in the same order. On a family the second query is a copy of the statistic too
(`kernel.langevin`): then nothing is left to wait for, and sixteen steps are one round.

Which steps share a message follows from the step's number alone, so a run that comes back asks with the same ids and gets the
same bytes, whatever chunks it is cut into and whatever is left of a budget. The last part of a run asks step by step:
statistics nobody could pay the second query of, or that no step is left for, would be lost.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sfumato.errors import BudgetSpent
from sfumato.protocol.questions import AHEAD, AHEAD_NUMBERS, Statistic


class Summed(NamedTuple):
    """Answers of all owners, added up, and what each of them charged for."""

    numbers: np.ndarray
    widths: np.ndarray


Ask = Callable[[str, Statistic, int], Summed]


class Statistics:
    """The statistics of a chain, step by step.

    Parameters
    ----------
    ask
        (name of the query, question, how many numbers) -> the answers of all owners.
    chains, dim
        A step's statistics: a row of `dim` numbers for each of the chains.
    until
        Step up to which they are asked ahead: the same when a run goes on.
    """

    def __init__(self, ask: Ask, chains: int, dim: int, until: int) -> None:
        self._ask, self._chains, self._dim, self._until = ask, chains, dim, until
        self.stride = max(1, min(AHEAD, AHEAD_NUMBERS // (chains * dim)))
        self._first, self._rows = 0, np.zeros((0, chains, dim), np.int64)
        self.widths = np.zeros(0)
        """What a record can move one of them by, owner by owner: the same at every step."""

    def at(self, step: int) -> np.ndarray:
        """Those of a step."""
        if not self._first <= step < self._first + len(self._rows):
            self._fetch(step)
        return self._rows[step - self._first]

    @property
    def mark(self) -> str:
        """What tells a second query after statistics asked ahead from one after its own: another content, another id."""
        return "-ahead" if len(self._rows) > 1 else ""

    def unused(self, step: int) -> int:
        """Numbers asked for ahead, of this step and later ones: released, and in no transcript if the run ends here."""
        return max(0, self._first + len(self._rows) - step) * self._chains * self._dim

    def _fetch(self, step: int) -> None:
        first = step - step % self.stride
        if self.stride > 1 and first + self.stride <= self._until:
            try:
                return self._get(f"{first}/statistics", first, self.stride)
            except BudgetSpent:
                self._until = 0  # somebody's does not reach that far: for one step it may
        return self._get(f"{step}/statistic", step, 1)

    def _get(self, name: str, first: int, count: int) -> None:
        question = Statistic(chains=self._chains, steps=count)
        numbers, self.widths = self._ask(name, question, count * self._chains * self._dim)
        self._first, self._rows = first, numbers.reshape(count, self._chains, self._dim)
