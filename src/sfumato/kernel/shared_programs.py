"""Programs that whoever needs them next finds again: compiled once in a process, whatever numbers they are called with."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

EACH = 32
"""Programs of each sort that are kept, the latest: for the studies of a node and their kernels."""
_ALL: list[Any] = []


def shared_program(make: F) -> F:
    """Decorator of a function that makes a compiled program: for the same arguments it is made once.

    The arguments are what is fixed in the program: a model, a domain, bounds. All of that is public. Numbers and records are the
    program's own arguments, so none of them is kept here.
    """
    kept = lru_cache(maxsize=EACH)(make)
    _ALL.append(kept)
    return kept  # type: ignore[return-value]


def forget_programs() -> None:
    """Drop all of them."""
    for kept in _ALL:
        kept.cache_clear()
