"""A run under way in a checkpoint folder: nobody else goes on with it meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager

from sfumato.checkpoint import Checkpoint


@contextmanager
def under_way(kept: Checkpoint | None) -> Iterator[None]:
    """Hold the folder of a run, if it has one, from before its terms are written or read until it has ended.

    Raises
    ------
    CheckpointError
        Another run holds the folder.
    """
    if kept is None:
        yield
        return
    with kept.held():
        yield
