"""Rules for entries chosen by a column of the record, such as a group effect ``b[group]``.

With a table that depends on the parameter alone, ``table[k]`` is affine in the indicators of k: no loss. With a table
that depends on the record too, it lies in the hull over the entries that k can choose in the cell; the driver then
gives every value of k a cell of its own.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import lax

from sfumato.bounds import curved
from sfumato.bounds.interval import Array, Interval
from sfumato.bounds.rules import Params, rule, unsupported
from sfumato.bounds.shapes import structural
from sfumato.bounds.values import Affine, Const, Scope, Truth, Value, at_each, constant, plain

_MAX_ENTRIES = 256


@rule("gather")
def _gather(scope: Scope, params: Params, table: Value, index: Value) -> Value:
    numbers = params["dimension_numbers"]
    if isinstance(index, Const) and index.fixed:
        at = index.at[0]
        return structural(lambda x: _bind_gather(x, at, params), table, scope=scope)
    if np.prod(index.shape[:-1], dtype=int) != 1:
        raise unsupported("gather", " (with more than one index)")
    place, others = _chosen(scope, table, index, params)
    axis = numbers.start_index_map[place]
    if params["slice_sizes"][axis] != 1:
        raise unsupported("gather", " (of more than one row)")
    own = structural(lambda x: x[..., place], index, scope=scope)

    def take(x: Array, k: int) -> Array:
        at = others.copy()
        at[..., place] = k
        return _bind_gather(x, jnp.asarray(at), params)

    return _choose(scope, table, own, table.shape[axis], take)


def _chosen(scope: Scope, table: Value, index: Value, params: Params) -> tuple[int, np.ndarray]:
    """Which number of an index such as ``[0, k]`` the record chooses, and the index itself for the others, the same for all."""
    axes = np.array(params["dimension_numbers"].start_index_map)
    if len(axes) == 1:
        return 0, np.zeros(index.shape, np.int32)
    known = scope.known(index)
    if known is not None:
        low, high = (np.broadcast_to(end, index.shape) for end in known)
        moving = np.flatnonzero((low != high).reshape(-1))
        place = int(moving[0]) if len(moving) else 0
        last = np.array(table.shape)[axes] - np.array(params["slice_sizes"])[axes]
        inside = np.delete((low >= 0) & (high <= last), place, axis=-1)  # what is chosen is checked with its table
        if len(moving) <= 1 and inside.all():
            return place, low.astype(np.int32)
    raise unsupported("gather", " (with more than one index)")


def _bind_gather(x: Array, index: Array, params: Params) -> Array:
    return lax.gather(
        x,
        index,
        dimension_numbers=params["dimension_numbers"],
        slice_sizes=params["slice_sizes"],
        mode="clip",  # the index was shown to lie inside, or is a constant that the model itself clips
    )


@rule("dynamic_slice")
def _dynamic_slice(scope: Scope, params: Params, table: Value, *starts: Value) -> Value:
    sizes = params["slice_sizes"]
    moving = [i for i, start in enumerate(starts) if not (isinstance(start, Const) and start.fixed)]
    fixed = [0 if i in moving else int(start.at[0]) for i, start in enumerate(starts)]  # type: ignore[union-attr]
    if not moving:
        return structural(lambda x: lax.dynamic_slice(x, fixed, sizes), table, scope=scope)
    axis = moving[0]
    if len(moving) != 1 or sizes[axis] != 1:
        raise unsupported("dynamic_slice", " (with more than one index)")

    def take(x: Array, k: int) -> Array:
        return lax.dynamic_slice(x, [k if i == axis else s for i, s in enumerate(fixed)], sizes)

    return _choose(scope, table, starts[axis], table.shape[axis], take)


def _choose(scope: Scope, table: Value, index: Value, count: int, take: Callable[[Array, int], Array]) -> Value:
    known = scope.known(index)
    if known is None or not isinstance(index, Affine) or isinstance(table, Truth):
        raise unsupported("gather", " (the index must be a column of the record, the table numeric)")
    if float(np.min(known.lo)) < 0 or float(np.max(known.hi)) > count - 1 or count > _MAX_ENTRIES:
        raise unsupported("gather", f" (the index ranges beyond 0 .. {count - 1}, or over too many entries)")
    entries = [structural(lambda x, k=k: take(x, k), table, scope=scope) for k in range(count)]
    possible = _possible(scope.bounds(index) if _is_cut(scope, index) else known, count)
    if isinstance(table, Const):
        return _indicator_sum(scope, entries, index, possible)
    scope.indexed.append(scope.uses(index))
    return curved.hull_over([scope.curved(entry) for entry in entries], possible)


def indicators(scope: Scope, index: Affine, numbers: Value) -> Callable[[], Affine] | None:
    """What makes "a whole number of the record equals these numbers" affine, if it takes few values: its indicators."""
    known = scope.known(index)
    same = all(len(np.unique(part)) == 1 for part in (index.ids, index.factor, index.shift))
    if not (same and known is not None and isinstance(numbers, Const) and numbers.fixed):
        return None
    low, high = float(np.min(known.lo)), float(np.max(known.hi))
    if low < 0 or high >= _MAX_ENTRIES:
        return None
    shape, count = np.broadcast_shapes(index.shape, numbers.shape), int(high) + 1

    def make() -> Affine:
        one = structural(lambda x: x.reshape(-1)[0], index, scope=scope)
        entries = [constant(np.broadcast_to(np.asarray(numbers.at[0]) == k, shape).astype(float)) for k in range(count)]
        bounds = scope.bounds(one) if _is_cut(scope, one) else scope.known(one)
        assert bounds is not None  # noqa: S101 (the index is fixed)
        return _indicator_sum(scope, entries, one, _possible(bounds, count))

    return make


def _is_cut(scope: Scope, index: Affine) -> bool:
    """Whether an index is known more closely than on the whole domain."""
    return scope.point is not None or bool(scope.cut & set(scope.uses(index).tolist()))


def _possible(bounds: Interval, count: int) -> Array:
    low, high = (end.reshape(()) for end in bounds)
    return (np.arange(count) >= low) & (np.arange(count) <= high)


def _indicator_sum(scope: Scope, entries: list[Const], index: Affine, possible: Array) -> Affine:
    name, factor, shift = (part.reshape(()).item() for part in (index.ids, index.factor, index.shift))
    key = (name, factor, shift, len(entries))
    if key not in scope.indicators:
        uses = scope.uses(index)
        scope.indicators[key] = where = scope.atoms.add_simplex(possible, len(entries))
        if scope.cut & set(uses.tolist()):
            scope.cut |= set(where.tolist())
        if scope.point is not None:
            scope.point = jnp.concatenate([scope.point, possible.astype(float)])
        scope.index_columns.update({int(i): uses for i in where})
    where, size = scope.indicators[key], scope.atoms.size

    def spread(*values: Array) -> Array:
        columns = jnp.stack([jnp.asarray(value, dtype=float) for value in values], axis=-1)
        return jnp.zeros((*columns.shape[:-1], size)).at[..., where].set(columns)

    shape, positive = entries[0].shape, all(entry.positive for entry in entries)
    uses = np.zeros((*shape, size), dtype=bool)
    uses[..., where] = True
    fixed = all(entry.fixed for entry in entries)
    with plain(fixed):
        slopes = at_each(spread, *(entry.at for entry in entries))
        zero = (jnp.zeros(shape),) * len(slopes)
    return scope.new_affine(zero, slopes, uses, fixed, positive)
