"""Moving entries about: every part of an abstract value moves alike."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from sfumato.bounds import interval as iv
from sfumato.bounds.choices import truth
from sfumato.bounds.interval import Array, Interval
from sfumato.bounds.moves import move
from sfumato.bounds.values import Affine, Const, Curved, Scope, Truth, Value, align, align_slopes, plain

_STRUCTURAL = (
    "broadcast_in_dim", "reshape", "squeeze", "transpose", "slice", "rev", "copy", "copy_p", "concatenate", "pad",
    "split", "stack", "stop_gradient", "expand_dims", "optimization_barrier", "pvary",
)  # fmt: skip


def structural_names() -> tuple[str, ...]:
    """Primitives that only move entries."""
    return _STRUCTURAL


def structural(apply: Callable[..., Any], *values: Value, scope: Scope) -> Any:
    """Move entries about without changing them: `apply` acts on every part of the abstract value alike."""
    if all(isinstance(v, Const) for v in values):
        return _move_constants(apply, values)  # type: ignore[arg-type]
    if any(isinstance(v, Truth) for v in values):
        parts = [truth(v) for v in values]
        free = all(p.free for p in parts)
        yes, no = apply(*(p.yes for p in parts)), apply(*(p.no for p in parts))
        return _zip_outputs(lambda y, n: Truth(y, n, free), yes, no)
    if any(isinstance(v, Curved) for v in values):
        return move_curved(apply, [scope.curved(v) for v in values])
    return _move_affine(apply, [scope.affine(v) for v in values])


def _zip_outputs(build: Callable[..., Value], *parts: Any) -> Any:
    if isinstance(parts[0], list | tuple):
        return [build(*each) for each in zip(*parts, strict=True)]
    return build(*parts)


def _move_constants(apply: Callable[..., Any], values: tuple[Const, ...]) -> Any:
    fixed = all(v.fixed for v in values)
    run = partial(move, apply) if fixed else apply
    first = run(*(v.at[0] for v in values))
    second = first if fixed else run(*(v.at[1] for v in values))
    positive = all(v.positive for v in values)
    logs = _moved_logs(apply, values)
    outs = _zip_outputs(lambda a, b: Const((a, b), fixed, positive), first, second)
    return _attach(outs, logs)


def _moved_logs(apply: Callable[..., Any], values: tuple[Value, ...]) -> Any:
    """Move the logarithm along with its number; for single operands only."""
    if len(values) != 1 or isinstance(values[0], Truth) or values[0].log is None:
        return None
    log = values[0].log
    if isinstance(log, Const):
        return _move_constants(apply, (log,))
    if isinstance(log, Affine):
        return _move_affine(apply, [log])
    return None


def _attach(outs: Any, logs: Any) -> Any:
    if logs is not None:
        pairs = zip(outs, logs, strict=True) if isinstance(outs, list) else [(outs, logs)]
        for out, log in pairs:
            out.log = log
    return outs


def _over_last(apply: Callable[..., Any]) -> Callable[..., Any]:
    """The same move for every entry of the last axis, of which there may be none."""

    def run(*arrays: Array) -> Any:
        if arrays[0].shape[-1]:
            return jax.vmap(apply, in_axes=-1, out_axes=-1)(*arrays)
        shape = jax.eval_shape(apply, *(a[..., :0].sum(-1) for a in arrays))
        return jax.tree.map(lambda s: np.zeros((*s.shape, 0)), shape)

    return run


def _move_affine(apply: Callable[..., Any], values: list[Affine]) -> Any:
    fixed = all(v.fixed for v in values)
    columns = _over_last(apply)
    run, run_columns = (partial(move, apply), partial(move, columns)) if fixed else (apply, columns)
    sides = []
    for side in (0,) if fixed else (0, 1):
        offset = run(*(v.offset[side] for v in values))
        with plain(fixed):
            coefficients = align(*(v.coefficients[side] for v in values))
        sides.append((offset, run_columns(*coefficients)))
    sides *= 2 if fixed else 1
    ids = move(apply, *(v.ids for v in values))
    uses = move(columns, *align(*(v.uses for v in values)))
    positive = all(v.positive for v in values)

    def build(*parts: Array) -> Affine:
        first, second, slopes, slopes_prop, names, used = parts
        return Affine((first, second), (slopes, slopes_prop), names, used.astype(bool), fixed, positive)

    outs = _zip_outputs(build, sides[0][0], sides[1][0], sides[0][1], sides[1][1], ids, uses)
    return _attach(outs, _moved_logs(apply, tuple(values)))


def move_curved(apply: Callable[..., Any], values: list[Curved]) -> Any:
    """Move intervals and slopes."""
    low, high = apply(*(v.bounds.lo for v in values)), apply(*(v.bounds.hi for v in values))
    slopes = align_slopes(*(v.slopes for v in values))
    columns = _over_last(apply)
    slope_low = columns(*(s.lo for s in slopes))
    exact = all(iv.is_point(s) for s in slopes)
    slope_high = slope_low if exact else columns(*(s.hi for s in slopes))
    free, positive = all(v.free for v in values), all(v.positive for v in values)

    def build(lo: Array, hi: Array, slo: Array, shi: Array) -> Curved:
        return Curved(Interval(lo, hi), iv.point(slo) if exact else Interval(slo, shi), free, positive)

    outs = _zip_outputs(build, low, high, slope_low, slope_high)
    return _attach(outs, _moved_logs(apply, tuple(values)))
