"""Which coordinates of theta records speak of, read off the program: what a hyperparameter of a centred hierarchy is not.

The program of one record's log-likelihood is followed backwards, to drop what its value does not need, and then forwards: slices
and reshapes of theta only carry coordinates on, anything else reads them. What is never read cannot move any record's term,
whatever the record and wherever theta is.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import jax
import numpy as np

from sfumato.domain import Domain
from sfumato.model.base import Model, input_spec

Where: TypeAlias = dict[Any, np.ndarray]
"""Of a variable that is made of coordinates of theta: which coordinate every entry is."""

_CARRY = ("slice", "squeeze", "reshape", "broadcast_in_dim", "transpose", "rev", "copy", "split", "expand_dims")
_SAME = ("convert_element_type", "copy_p", "stop_gradient")
_INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")


def unspoken(model: Model, domain: Mapping[str, Domain]) -> np.ndarray:
    """Mask over theta: coordinates that no record speaks of. If no record speaks of any, there is no hierarchy and none is."""
    free = ~_read_by(model, tuple(sorted(domain.items())))
    return np.zeros_like(free) if free.all() else free


@lru_cache(maxsize=16)
def _read_by(model: Model, columns: tuple[tuple[str, Domain], ...]) -> np.ndarray:
    with jax.enable_x64(True):
        program = jax.make_jaxpr(model.log_likelihood)(*input_spec(model.dim, dict(columns))).jaxpr
    return coordinates_read(program, model.dim)


def coordinates_read(program: Any, dim: int) -> np.ndarray:
    """Mask over theta, the first input of a program: which of its coordinates the outputs need."""
    read = np.zeros(dim, bool)
    given = {program.invars[0]: np.arange(dim)}
    for found in _follow(program, given, [True] * len(program.outvars), read):
        if found is not None:
            read[found] = True
    return read


def _follow(program: Any, where: Where, wanted: Sequence[bool], read: np.ndarray) -> list[np.ndarray | None]:
    """Mark what is read of theta for the wanted outputs; say where it is carried on to among them."""
    where = dict(where)
    for equation, needed in _needed(program, wanted)[0]:
        given = [None if hasattr(v, "val") else where.get(v) for v in equation.invars]
        if all(part is None for part in given):
            continue
        inner = _inner(equation)
        carried: list[np.ndarray | None] | None
        if inner is not None:
            within = {v: part for v, part in zip(inner.invars, given, strict=True) if part is not None}
            carried = _follow(inner, within, needed, read)
        else:
            carried = _carried(equation, given)
        if carried is None:
            for part in given:
                if part is not None:
                    read[part] = True
            continue
        where |= {v: part for v, part in zip(equation.outvars, carried, strict=True) if part is not None}
    return [None if hasattr(v, "val") else where.get(v) for v in program.outvars]


def _needed(program: Any, wanted: Sequence[bool]) -> tuple[list[tuple[Any, list[bool]]], set[Any]]:
    """Equations that the wanted outputs need, in their order, with which of each one's outputs; and the variables needed."""
    live = {v for v, want in zip(program.outvars, wanted, strict=True) if want and not hasattr(v, "val")}
    kept = []
    for equation in reversed(program.eqns):
        needed = [v in live for v in equation.outvars]
        if not any(needed) and not equation.effects:
            continue
        kept.append((equation, needed))
        inner = _inner(equation)
        within = None if inner is None else _needed(inner, needed)[1]
        for i, v in enumerate(equation.invars):
            if not hasattr(v, "val") and (within is None or inner.invars[i] in within):
                live.add(v)
    return kept[::-1], live


def _inner(equation: Any) -> Any:
    """The program inside an equation that calls one as it stands; None for loops, branches and everything else."""
    if equation.primitive.name in ("while", "scan", "cond"):
        return None
    found = next((equation.params[key] for key in _INNER if key in equation.params), None)
    inner = getattr(found, "jaxpr", found)
    same = (
        inner is not None and len(inner.invars) == len(equation.invars) and len(inner.outvars) == len(equation.outvars)
    )
    return inner if same else None


def _carried(equation: Any, given: Sequence[np.ndarray | None]) -> list[np.ndarray | None] | None:
    """Where an operation that only moves entries about leaves them; None where it reads them."""
    name = equation.primitive.name
    if name in _SAME:
        return [given[0]]
    if name not in _CARRY or len(given) != 1:
        return None
    with jax.enable_x64(True):
        moved = equation.primitive.bind(jax.numpy.asarray(given[0]), **equation.params)
    return [np.asarray(part) for part in (moved if equation.primitive.multiple_results else [moved])]
