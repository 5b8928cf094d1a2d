"""The public stream: everything random that is not noise, from the user's seed.

Numbers are drawn chain by chain and purpose by purpose from generators of their own, in order, so the same seed gives
the same proposals however the run is cut into chunks, and a resumed run goes on where it stopped.
"""

from collections import deque
from typing import Protocol

import numpy as np

from sfumato.errors import InvalidInput
from sfumato.kernel.base import Streams
from sfumato.kernel.free import FreeMoves
from sfumato.kernel.penalty import Draw

_SKIP = 65_536


class Drawer(Protocol):
    """Any kernel: all that matters here is that it draws its public numbers."""

    @property
    def free(self) -> FreeMoves | None:
        """What else moves, after every step."""
        ...

    def draw(self, rng: Streams, size: int) -> Draw:
        """Public random numbers for `size` steps of one chain."""
        ...


class PublicStream:
    """Public random numbers of all chains.

    Parameters
    ----------
    seed
        A whole number, or None to take one from the operating system (it is kept in the run, and is no secret).
    chains
        How many.
    """

    def __init__(self, seed: int | None, chains: int) -> None:
        if seed is not None and (not isinstance(seed, int | np.integer) or seed < 0):
            raise InvalidInput(f"seed must be a whole number that is not negative, or None; got {seed!r}.")
        root = np.random.SeedSequence(seed if seed is None else int(seed))
        self.seed = int(root.entropy)  # type: ignore[arg-type]
        self._start, *chain_seeds = root.spawn(chains + 1)
        self._streams = [Streams(s) for s in chain_seeds]
        self._buffer: deque[Draw] = deque()
        self._held = 0
        self.consumed = 0

    def starts(self, centre: np.ndarray, covariance: np.ndarray) -> np.ndarray:
        """Starting points: one draw per chain from what is believed of the posterior."""
        rng = np.random.default_rng(self._start)
        normal = rng.standard_normal((len(self._streams), len(centre)))
        return np.asarray(centre + normal @ np.linalg.cholesky(covariance).T)

    def directions(self, columns: int) -> np.ndarray:
        """Starting signs of travel: one per chain and column."""
        rng = np.random.default_rng(self._start.spawn(1)[0])
        return np.asarray(rng.choice([-1.0, 1.0], size=(len(self._streams), columns)))

    def peek(self, kernel: Drawer, size: int) -> Draw:
        """Show the next `size` steps' numbers, arrays (step, chain, ...), without using them up."""
        if self._held < size:
            self._buffer.append(self._fresh(kernel, size - self._held))
            self._held = size
        if len(self._buffer) > 1:
            self._buffer = deque([Draw(*(np.concatenate(parts) for parts in zip(*self._buffer, strict=True)))])
        return Draw(*(part[:size] for part in self._buffer[0]))

    def consume(self, steps: int) -> None:
        """Use the first `steps` up: they will not be shown again."""
        self._buffer = deque([Draw(*(part[steps:] for part in self._buffer[0]))])
        self._held -= steps
        self.consumed += steps

    def skip(self, kernel: Drawer, steps: int) -> None:
        """Go on where a run stopped that had used `steps` up."""
        while steps > 0:
            now = min(steps, _SKIP)
            self.peek(kernel, now)
            self.consume(now)
            steps -= now

    def _fresh(self, kernel: Drawer, size: int) -> Draw:
        per_chain = [_drawn(kernel, stream, size) for stream in self._streams]
        return Draw(*(np.stack(parts, axis=1) for parts in zip(*per_chain, strict=True)))


def _drawn(kernel: Drawer, streams: Streams, size: int) -> Draw:
    """What a kernel draws for one chain, and what its free moves do."""
    free = np.zeros((size, 0, 2)) if kernel.free is None else kernel.free.draw(streams.free, size)
    return kernel.draw(streams, size)._replace(free=free)


def split_noise(seed: int, owner: int, step: int, shape: tuple[int, ...]) -> np.ndarray:
    """Public normals that split the copies of one owner's bundle at one step: the same whoever asks for the step again."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0, owner, step))).standard_normal(shape)
