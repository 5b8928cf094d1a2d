r"""The secret stream: where the noise comes from, and who may have it.

Every answer that leaves the vault carries a *discrete Gaussian* on the lattice of the sums (Canonne, Kamath & Steinke
2020), :math:`P(X = x) \propto \exp(-x^2/(2s^2))` for integers :math:`x`, where :math:`s = \sigma/\gamma` is the
standard deviation counted in lattice units. Two sources draw that same law:

- `OpenDPSource`: OpenDP's sampler, the reference, about 14 microseconds a draw;
- `sfumato.vault.gaussian.ExactSource`: a vectorised sampler, exact as well, for runs in which OpenDP would be most of
  the time.

`NoisePool` draws ahead on a background thread and hands every value out once. Nothing here takes a seed, and no
setting makes the noise smaller than the scale says. A pool cannot be pickled or copied, and a forked child cannot use
the one of its parent: the same noise in two answers would cancel in their difference.
"""

import os
import threading
import weakref
from collections import deque
from time import perf_counter
from types import TracebackType
from typing import Any, NoReturn, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InvalidInput, NoiseError
from sfumato.vault.closed import closed
from sfumato.vault.gaussian import ExactSource, checked_scale

RECORDS_PER_DRAW = 5000
"""Records per drawn coordinate below which OpenDP's sampler would be more than a third of a run: see `source_for`."""

BLOCK = 4096
"""Draws per block: OpenDP needs about 60 ms for it, and a block of half of that is no cheaper per draw."""

DEPTH = 4
"""Blocks that are kept ahead of use, at the least."""

AT_HAND = 256
"""Values that `NoisePool.numbers` takes at a time."""

HEALTH_BLOCK = 64
"""Blocks of at least this many draws are refused when constant: at scale 1 an honest one is with chance 2^-83."""

JOIN_SECONDS = 5.0
"""How long `NoisePool.close` waits for the block under way."""


class Source(Protocol):
    """Draws independent discrete Gaussians of one fixed scale."""

    @property
    def scale(self) -> float:
        """Standard deviation parameter s in lattice units; the float is meant exactly."""
        ...

    def draw(self, size: int) -> NDArray[np.int64]:
        """Return `size` fresh, independent draws, never returned before."""
        ...


class OpenDPSource:
    """OpenDP's discrete Gaussian, exact, from the operating system's randomness.

    Parameters
    ----------
    scale
        Standard deviation parameter in lattice units, in [2^-4, 2^50].

    References
    ----------
    Canonne, Kamath & Steinke 2020, Algorithm 3; OpenDP's ``make_gaussian`` over vectors of 64-bit integers.
    """

    def __init__(self, scale: float) -> None:
        self.scale = checked_scale(scale)
        self._measurement = _opendp_gaussian(self.scale)

    def draw(self, size: int) -> NDArray[np.int64]:
        """Return `size` independent draws."""
        return np.array(self._measurement([0] * size), dtype=np.int64).reshape(size)


def _opendp_gaussian(scale: float) -> Any:
    """Build OpenDP's measurement: a vector of 64-bit integers in, the same plus discrete Gaussians out."""
    import opendp.prelude as dp  # here: loading the shared library takes time that `--help` should not pay

    dp.enable_features("contrib")
    return dp.m.make_gaussian(dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64"), scale)


def source_for(scale: float, n: int, coordinates: int = 1) -> Source:
    """Return the source a vault uses: OpenDP's, or ours where OpenDP's would be a large part of the run.

    OpenDP's sampler is the reference that others have reviewed, so it is the rule. It takes 14 microseconds a draw,
    and evaluating one record takes about 5 nanoseconds (logistic regression in float32): with fewer than
    `RECORDS_PER_DRAW` = 5000 records per drawn coordinate the noise alone would be more than a third of the run, and
    `ExactSource`, the same law at about 0.1 microseconds a draw, takes over.

    Privacy: the choice depends on `n` and the model's shape, both public, never on a record; the law is the same.

    Parameters
    ----------
    scale
        Standard deviation parameter in lattice units.
    n
        Number of records, at least 1.
    coordinates
        Draws that one answer needs, at least 1.
    """
    if n < 1 or coordinates < 1:
        raise InvalidInput(f"n and coordinates must be at least 1, got n={n}, coordinates={coordinates}.")
    return ExactSource(scale) if n < RECORDS_PER_DRAW * coordinates else OpenDPSource(scale)


@closed("unused noise")
class _Shelf:
    """What a pool and its thread share. The thread knows the shelf, not the pool, so that the pool can be collected."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.pid = os.getpid()
        self.blocks: deque[NDArray[np.int64]] = deque()
        self.used = 0  # values already taken from blocks[0]
        self.hand: deque[int] = deque()  # values taken and not handed out yet: see `NoisePool.numbers`
        self.error: BaseException | None = None
        self.closed = False
        self.waited = 0.0
        # Re-entrant: the collector may run `close` in a thread that is inside `put` at that moment.
        self.changed = threading.Condition(threading.RLock())

    def put(self, block: NDArray[np.int64]) -> bool:
        """Shelve a block, waiting for room; False once the shelf is closed."""
        with self.changed:
            self.changed.wait_for(lambda: self.closed or len(self.blocks) < self.depth)
            if self.closed:
                block.fill(0)
                return False
            self.blocks.append(block)
            self.changed.notify_all()
            return True

    def fail(self, error: BaseException) -> None:
        """Tell every consumer that the source broke."""
        with self.changed:
            self.error = error
            self.wipe()
            self.changed.notify_all()

    def pop_into(self, out: NDArray[np.int64], block: int) -> None:
        """Move values into `out`, first come first served, and zero them where they were."""
        with self.changed:
            # Who asks for many will ask for as many again: they are drawn while this lot is used.
            if (depth := -(-out.size // block)) > self.depth:
                self.depth = depth
                self.changed.notify_all()  # only then: waking the thread for every value costs more than the value
            filled = 0
            while filled < out.size:
                self._await_block()
                filled += self._move(out[filled:])

    def _await_block(self) -> None:
        started = perf_counter()
        self.changed.wait_for(lambda: self.closed or self.error is not None or self.blocks)
        self.waited += perf_counter() - started
        if self.error is not None:
            raise NoiseError(
                f"noise must come from a working source, and this one failed with {type(self.error).__name__}; "
                "nothing was answered. Build a new pool."
            ) from self.error
        if self.closed:
            raise NoiseError("a closed pool holds no noise; build a new pool.")

    def _move(self, out: NDArray[np.int64]) -> int:
        # The order matters: Ctrl-C may strike between any two lines, and a zeroed value must never count as unused.
        head = self.blocks[0]
        piece = head[self.used : self.used + out.size]
        self.used += piece.size
        out[: piece.size] = piece
        piece.fill(0)
        if self.used == head.size:
            self.blocks.popleft()
            self.used = 0
            self.changed.notify_all()
        return int(piece.size)

    def wipe(self) -> None:
        """Zero and forget everything on the shelf."""
        while self.blocks:
            self.blocks.pop().fill(0)
        self.used = 0
        self.hand.clear()

    def close(self) -> None:
        """Wipe the shelf and let the thread end."""
        if self.pid != os.getpid():  # forked without hooks: the lock may be held by a thread that is not here
            self.abandon()
            return
        with self.changed:
            self.closed = True
            self.wipe()
            self.changed.notify_all()

    def abandon(self) -> None:
        """Forget the parent's values and its locks, which a thread that no longer exists may hold."""
        self.changed = threading.Condition(threading.RLock())
        self.closed = True
        self.wipe()


_SHELVES: weakref.WeakSet[_Shelf] = weakref.WeakSet()


def _abandon_all() -> None:
    for shelf in list(_SHELVES):
        shelf.abandon()


if hasattr(os, "register_at_fork"):  # absent on Windows, which cannot fork
    os.register_at_fork(after_in_child=_abandon_all)


def _fill(shelf: _Shelf, source: Source, block: int) -> None:
    """Draw block after block until the shelf closes (the thread's whole life)."""
    try:
        while shelf.put(_checked_block(source, block)):
            pass
    except BaseException as error:  # whatever ended the thread must reach the consumer, or it would wait for ever
        shelf.fail(error)


def _checked_block(source: Source, size: int) -> NDArray[np.int64]:
    """Draw one block and refuse what cannot be noise: a wrong type, a wrong length, a constant."""
    drawn = source.draw(size)
    if not (isinstance(drawn, np.ndarray) and drawn.dtype == np.int64 and drawn.shape == (size,)):
        raise NoiseError(f"a source must return an int64 array of {size} values; use a source of sfumato.vault.noise.")
    if source.scale >= 1 and size >= HEALTH_BLOCK and bool((drawn == drawn[0]).all()):
        raise NoiseError(f"a source returned {size} equal values, which is not noise; check the source.")
    return drawn.copy()  # the pool zeroes what it hands out, and the source may keep its own buffer


class NoisePool:
    """Noise drawn ahead on a background thread; every value is handed out once.

    Parameters
    ----------
    source
        Where the values come from; its scale is the pool's scale.
    block
        Draws made at a time, at least 1.
    depth
        Blocks kept ahead of use, at least 1; more once more are taken at a time, so that drawing overlaps with use.

    Notes
    -----
    Taken values are zeroed inside the pool, and so is what is left when the pool closes. That is hygiene, not a
    guarantee: numpy and the allocator may keep other copies. The pool belongs to the process that built it. In a
    forked child every use raises `NoiseError`, and the inherited values are wiped before any code of the child runs;
    a block that was being drawn at the moment of the fork is out of reach there, for its thread does not exist.

    Privacy: drawing ahead also keeps the time a draw takes out of the time an answer takes, while the pool is not
    empty.
    """

    def __init__(self, source: Source, *, block: int = BLOCK, depth: int = DEPTH) -> None:
        if block < 1 or depth < 1:
            raise InvalidInput(f"a pool needs at least one block of one draw, got block={block}, depth={depth}.")
        self._scale = source.scale
        self._shelf, self._block = _Shelf(depth), block
        _SHELVES.add(self._shelf)
        self._thread = threading.Thread(
            target=_fill, args=(self._shelf, source, block), name="sfumato-noise", daemon=True
        )
        self._thread.start()
        self._finalizer = weakref.finalize(self, self._shelf.close)

    @property
    def scale(self) -> float:
        """Scale of the values, in lattice units."""
        return self._scale

    @property
    def waited(self) -> float:
        """Seconds that consumers have spent waiting for draws."""
        return self._shelf.waited

    def take(self, k: int) -> NDArray[np.int64]:
        """Return `k` values that nobody has had and nobody else will get; waits until there are that many.

        Raises
        ------
        NoiseError
            If the source failed, the pool is closed, or this is not the process that built it.
        """
        if k < 0:
            raise InvalidInput(f"a number of draws cannot be negative, got {k}.")
        self._refuse_other_process()
        out = np.empty(k, dtype=np.int64)
        self._shelf.pop_into(out, self._block)
        return out

    def numbers(self, k: int) -> list[int]:
        """The same values as `take` would give, as Python's own: a small round would wait longer for an array than for them.

        Some are kept at hand in between. Each is still handed out once, and they are wiped with the pool.
        """
        self._refuse_other_process()
        shelf = self._shelf
        with shelf.changed:
            if len(shelf.hand) < k:
                shelf.hand.extend(self.take(max(k, AT_HAND)).tolist())
            return [shelf.hand.popleft() for _ in range(k)]

    def close(self) -> None:
        """Wipe what is left and end the thread. Closing twice is harmless."""
        self._finalizer()
        if self._shelf.pid == os.getpid() and self._thread is not threading.current_thread():
            self._thread.join(JOIN_SECONDS)

    def _refuse_other_process(self) -> None:
        # Compared at every use too: a fork by native code runs no hooks.
        if self._shelf.pid != os.getpid():
            raise NoiseError("a pool belongs to the process that built it, and this is another; build a new pool here.")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return "<NoisePool closed>"

    def __reduce__(self) -> NoReturn:
        raise NoiseError("noise is never serialised: it would be used twice. Build a new pool where it is needed.")

    def __copy__(self) -> NoReturn:
        raise NoiseError("noise is never copied: it would be used twice. Build a new pool.")

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise NoiseError("noise is never copied: it would be used twice. Build a new pool.")
