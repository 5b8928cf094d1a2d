"""A table too large for one machine: where it lies, and who evaluates it. Names only; it is read on the private side."""

from dataclasses import dataclass
from typing import Any

from sfumato.errors import InvalidInput


@dataclass(frozen=True, kw_only=True)
class RayTable:
    """A Parquet table that the actors of a Ray cluster hold in shards.

    Parameters
    ----------
    pattern
        Files, such as ``/data/visits/*.parquet`` or ``s3://bucket/visits/*.parquet``.
    address
        An existing cluster, such as ``head:6379`` or ``auto``. None starts one on this machine, for this run.
    workers
        Actors; by default one per core of the cluster.
    """

    pattern: str
    address: str | None = None
    workers: int | None = None

    def __init__(self, pattern: Any, *, address: str | None = None, workers: int | None = None) -> None:
        if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
            raise InvalidInput(f"workers must be a whole number of at least one, got {workers!r}.")
        object.__setattr__(self, "pattern", str(pattern))
        object.__setattr__(self, "address", address)
        object.__setattr__(self, "workers", workers)
