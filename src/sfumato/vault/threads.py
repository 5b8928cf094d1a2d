"""A table of this process in parts, summed on as many threads as there are cores. Nothing here leaves `vault/`.

XLA shares every single operation of a pass out among its threads and waits for the slowest of them before the next; a node has
many small passes to make, and may share its cores with others. Here each thread makes a whole pass over parts of its own, and
they meet once. A part is small enough that what a pass writes down in between stays in the processor's cache. Sums are whole
numbers, so nothing depends on the parts or on their order.

For a process in which XLA has one thread (`sfumato.node.serve`).
"""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce

import numpy as np

from sfumato.study.target import Study
from sfumato.vault.closed import closed
from sfumato.vault.counting import count_records
from sfumato.vault.engine import LocalEngine, Query
from sfumato.vault.records import Records

PART = 1 << 15
"""Rows of a part at the most."""
ALIGNED = 64
"""Rows that parts are counted in."""
LEAST = 1 << 13
"""And at the least: below, handing it to a thread takes about as long as it saves."""


@closed("records")
class ThreadedEngine:
    """The records of this process, in parts; see `sfumato.vault.engine.Engine`.

    Parameters
    ----------
    records
        The validated table.
    study
        Public: the model and the domain.
    precision
        How records are evaluated.
    threads
        How many work at a time; by default one for each core that this process may use.
    """

    def __init__(
        self, records: Records, study: Study, *, precision: str = "float64", threads: int | None = None
    ) -> None:
        threads = threads or _cores()
        records = count_records(records, study.domain)
        self._count = records.n
        sizes = _sizes(records.n, threads) if records.counts is None else [records.n]
        made = partial(LocalEngine, study=study, precision=precision, whole=records.n if len(sizes) > 1 else None)
        self._parts = [
            made(records.part(end - size, size) if len(sizes) > 1 else records)
            for size, end in zip(sizes, np.cumsum(sizes).tolist(), strict=True)
        ]
        self._shares = [self._parts[i::threads] for i in range(min(threads, len(self._parts)))]
        away = len(self._shares) - 1
        self._threads = ThreadPoolExecutor(away, thread_name_prefix="sfumato-parts") if away else None

    @property
    def n(self) -> int:
        """Number of records."""
        return self._count

    @property
    def rows(self) -> int:
        """Rows evaluated a round."""
        return sum(part.rows for part in self._parts)

    @property
    def here(self) -> bool:
        """Sums are computed in this process."""
        return True

    def at_once(self, chains: int) -> bool:
        """Where there is one part, and few rows in it."""
        return len(self._parts) == 1 and self._parts[0].at_once(chains)

    def sum(self, query: Query) -> np.ndarray:
        """Every thread makes its passes, this one among them; the whole numbers add up."""

        def passes(share: list[LocalEngine]) -> np.ndarray:
            return reduce(np.add, (part.sum(query) for part in share))

        if self._threads is None:
            return passes(self._shares[0])
        away = [self._threads.submit(passes, share) for share in self._shares[1:]]
        # All of them end before this returns, also when one fails: no thread is left with the records.
        try:
            own = passes(self._shares[0])
        finally:
            errors = [future.exception() for future in away]
        for error in errors:
            if error is not None:
                raise error
        return reduce(np.add, (future.result() for future in away), own)

    def forget(self) -> None:
        """Drop what is kept between rounds."""
        for part in self._parts:
            part.forget()

    def close(self) -> None:
        """Let go of the records."""
        if self._threads is not None:
            self._threads.shutdown(wait=True)
        for part in self._parts:
            part.close()


def _cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _sizes(rows: int, threads: int) -> list[int]:
    """Rows of each part: as many parts for every thread, equal ones but for the last.

    A multiple of `ALIGNED`: JAX uses the table as it stands in memory, without a copy, where its parts begin at such a place.
    """
    parts = min(max(1, rows // LEAST), threads * -(-rows // (threads * PART)))
    size = -(-rows // (parts * ALIGNED)) * ALIGNED
    return [min(size, rows - start) for start in range(0, rows, size)]
