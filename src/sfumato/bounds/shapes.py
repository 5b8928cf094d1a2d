"""Moving entries about: every part of an abstract value moves alike."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.bounds import curved
from sfumato.bounds.interval import Array
from sfumato.bounds.moves import move
from sfumato.bounds.rules import unsupported
from sfumato.bounds.values import Affine, Const, Curved, Scope, Truth, Value, align, at_each, plain

_STRUCTURAL = (
    "broadcast_in_dim", "reshape", "squeeze", "transpose", "slice", "rev", "copy", "copy_p", "concatenate", "pad",
    "split", "stack", "stop_gradient", "expand_dims", "optimization_barrier", "pvary",
)  # fmt: skip


def truth(value: Value) -> Truth:
    """View a constant condition as one that may differ between parameters."""
    if isinstance(value, Truth):
        return value
    if not isinstance(value, Const):
        raise unsupported("convert_element_type", " (to a condition)")
    several = jnp.stack([jnp.asarray(x, dtype=bool) for x in value.at])
    return Truth(jnp.any(several, axis=0), ~jnp.all(several, axis=0), value.fixed)


def structural_names() -> tuple[str, ...]:
    """Primitives that only move entries."""
    return _STRUCTURAL


def structural(apply: Callable[..., Any], *values: Value, scope: Scope) -> Any:
    """Move entries about without changing them: `apply` acts on every part of the abstract value alike."""
    if all(isinstance(v, Const) for v in values):
        return _move_constants(apply, values)  # type: ignore[arg-type]
    if any(isinstance(v, Truth) for v in values):
        parts = [truth(v) for v in values]
        free, uses = all(p.free for p in parts), frozenset[int]().union(*(p.uses for p in parts))
        yes, no = apply(*(p.yes for p in parts)), apply(*(p.no for p in parts))
        out = _zip_outputs(lambda y, n: Truth(y, n, free, uses), yes, no)
        if isinstance(out, Truth) and len(parts) == 1 and (own := parts[0].indicator) is not None:
            out.indicator = lambda: structural(apply, own(), scope=scope)
        return out
    if any(isinstance(v, Curved) for v in values):
        return _attach(curved.move(apply, [scope.curved(v) for v in values]), _moved_logs(apply, values))
    return _move_affine(apply, [scope.affine(v) for v in values])


def _zip_outputs(build: Callable[..., Value], *parts: Any) -> Any:
    if isinstance(parts[0], list | tuple):
        return [build(*each) for each in zip(*parts, strict=True)]
    return build(*parts)


def _move_constants(apply: Callable[..., Any], values: tuple[Const, ...]) -> Any:
    fixed = all(v.fixed for v in values)
    found = at_each(partial(move, apply) if fixed else apply, *(v.at for v in values))
    positive = all(v.positive for v in values)
    outs = _zip_outputs(lambda *at: Const(at, fixed, positive), *found)
    return _attach(outs, _moved_logs(apply, values))


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
    offset = at_each(run, *(v.offset for v in values))
    with plain(fixed):
        aligned = at_each(align, *(v.coefficients for v in values))
    coefficients = [run_columns(*each) for each in aligned]
    names = [move(apply, *(getattr(v, part) for v in values)) for part in ("ids", "factor", "shift")]
    uses = move(columns, *align(*(v.uses for v in values)))
    positive = all(v.positive for v in values)

    count = len(offset)

    def build(ids: np.ndarray, factor: np.ndarray, shift: np.ndarray, used: np.ndarray, *parts: Array) -> Affine:
        return Affine(parts[:count], parts[count:], ids, factor, shift, used.astype(bool), fixed, positive)

    outs = _zip_outputs(build, *names, uses, *offset, *coefficients)
    return _attach(outs, _moved_logs(apply, tuple(values)))
