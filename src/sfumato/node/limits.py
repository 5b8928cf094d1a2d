"""What one visitor may take of the machine: rates and connections, counted in memory."""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable

from sfumato.node.catalogue import Refusal


class Bucket:
    """A token bucket: `rate` a second on average, up to a second's worth at once.

    Parameters
    ----------
    rate
        Events per second.
    burst
        Events that may come at once; a second's worth by default.
    """

    __slots__ = ("_at", "_burst", "_level", "_rate")

    def __init__(self, rate: float, burst: float | None = None) -> None:
        self._rate = rate
        self._burst = max(1.0, rate if burst is None else burst)
        self._level = self._burst
        self._at = time.monotonic()

    def allows(self) -> bool:
        """Whether one more may come now; counts nothing."""
        now = time.monotonic()
        self._level = min(self._burst, self._level + (now - self._at) * self._rate)
        self._at = now
        return self._level >= 1.0

    def take(self) -> bool:
        """Count one event; False when there are too many."""
        if not self.allows():
            return False
        self._level -= 1.0
        return True


class Buckets:
    """A bucket per visitor: those who came last, up to `kept` of them.

    Parameters
    ----------
    make
        Makes the bucket of a visitor who is not known.
    kept
        Visitors that are remembered.
    """

    def __init__(self, make: Callable[[], Bucket], kept: int = 4096) -> None:
        self._make, self._most = make, kept
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def of(self, visitor: str) -> Bucket:
        """The bucket of one visitor."""
        found = self._buckets.pop(visitor, None) or self._make()
        self._buckets[visitor] = found
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return found


class Turnstile:
    """Connections at a time, in all and per name."""

    def __init__(self, total: int, each: int) -> None:
        self._total, self._each = total, each
        self._inside: Counter[str] = Counter()

    @property
    def inside(self) -> int:
        """Connections open now."""
        return self._inside.total()

    def enter(self, name: str) -> None:
        """Let one in, or refuse with `too-many`."""
        if self.inside >= self._total or self._inside[name] >= self._each:
            raise Refusal("too-many", f"{self._inside[name]} connections of {name}, {self.inside} in all")
        self._inside[name] += 1

    def leave(self, name: str) -> None:
        """Count one out."""
        self._inside[name] -= 1
        if self._inside[name] <= 0:
            del self._inside[name]
