"""What all kinds of query share at the desk: a quote, its answer, and the checks of what was asked."""

from collections.abc import Callable
from math import isfinite
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from sfumato.errors import InvalidInput
from sfumato.kernel.loop import Priced
from sfumato.vault.closed import closed
from sfumato.vault.noise import NoisePool
from sfumato.vault.packing import packed, unpacked

Array: TypeAlias = Any
Range: TypeAlias = Callable[[Array, Array], tuple[Array, Array]]
"""Function (theta, theta_prop) -> proven range of one record's log ratio."""
YES = [True]


class Answer(NamedTuple):
    """A noisy answer that has not left yet, as Python's own numbers."""

    gamma: float
    numbers: list[int]
    widths: list[float]
    answered: list[bool]


@closed("an answer that is not paid for")
class Quote(NamedTuple):
    """What a question costs, how many numbers it asks for, and how to answer it once it is paid for."""

    quanta: int
    numbers: int
    answer: Callable[[], Answer]


class Rounds(Protocol):
    """One kind of query of a chain that was begun, answered a round at a time."""

    pools: list[NoisePool]

    def quote(self, question: Any, covered: int) -> Quote:
        """Price a question; `covered` quanta are reserved for it already."""
        ...


@closed("exact sums")
class PricedScalars(NamedTuple):
    """What scalars cost, each chain's width and whether it is answered; then whole numbers, exact sums among them. Private."""

    charge: int
    widths: list[float]
    answered: list[bool]
    whole: list[list[int]]

    @classmethod
    def read(cls, row: Array, chains: int, count: int) -> "PricedScalars":
        """From what a compiled price hands out: see `packed_price`."""
        parts = (int, 1), (float, chains), (bool, chains), *[(int, chains)] * count
        (charge,), widths, answered, *whole = unpacked(row, *parts)
        return cls(charge, widths, answered, whole)

    def quote(self, gamma: float, totals: Callable[[], list[int]], pool: NoisePool) -> Quote:
        """Exact sums with noise, once they are paid for; nothing for chains that are not answered."""

        def answer() -> Answer:
            noise = pool.numbers(len(self.widths))
            added = zip(totals(), noise, self.answered, strict=True)
            return Answer(gamma, [x + z if yes else 0 for x, z, yes in added], self.widths, self.answered)

        return Quote(self.charge, sum(self.answered), answer)


def packed_price(priced: Priced, *whole: Array) -> Array:
    """A price, and whole numbers of every chain, as one row."""
    return packed(priced.quanta, priced.widths, priced.answered, *whole)


def matrix_of(name: str, rows: Any, count: int, width: int) -> np.ndarray:
    """Rows of finite numbers as an array."""
    try:
        array = np.array(rows, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.zeros(0)
    if array.shape != (count, width) or not np.isfinite(array).all():
        raise InvalidInput(f"{name} must be {count} rows of {width} finite numbers, got shape {array.shape}.")
    return array


def numbers_of(name: str, rows: list[list[float]], count: int, width: int) -> list[float]:
    """The same, row after row in one list: a message's own numbers, which need no array before they are packed."""
    try:
        flat = rows[0] if len(rows) == 1 else [x for row in rows for x in row]
        fine = len(rows) == count and all(len(row) == width for row in rows) and all(map(isfinite, flat))
    except TypeError:
        fine = False
    if not fine:
        raise InvalidInput(f"{name} must be {count} rows of {width} finite numbers.")
    return flat


def flags_of(asked: list[bool], chains: int) -> list[bool]:
    """Which chains a question is about."""
    if len(asked) != chains:
        raise InvalidInput(f"asked must say yes or no for each of {chains} chains, got {len(asked)}.")
    return asked
