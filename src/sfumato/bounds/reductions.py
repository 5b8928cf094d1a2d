"""Rules that combine the entries of an array, and conversions between kinds of numbers."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from sfumato.bounds import interval as iv
from sfumato.bounds.arithmetic import expand, multiply, record_only, step_rule
from sfumato.bounds.choices import equal, invert
from sfumato.bounds.elementwise import remainder_image
from sfumato.bounds.interval import Array, Interval
from sfumato.bounds.rules import RULES, Params, is_fixed, rule, unsupported
from sfumato.bounds.shapes import move_curved, structural
from sfumato.bounds.values import Affine, Const, Curved, Scope, Truth, Value, plain


def reduce_sum(scope: Scope, value: Value, axes: tuple[int, ...]) -> Value:
    """Sum over axes."""
    if not axes:
        return value
    if any(value.shape[axis] > 1 for axis in axes):
        value = expand(scope, value)
    if isinstance(value, Affine):
        if all(value.shape[axis] == 1 for axis in axes):
            return structural(lambda x: lax.squeeze(x, axes), value, scope=scope)
        with plain(value.fixed):
            offset = tuple(jnp.sum(jnp.asarray(x), axis=axes) for x in value.offset)
            coefficients = tuple(jnp.sum(jnp.asarray(x), axis=axes) for x in value.coefficients)
        uses = value.uses.any(axis=axes)
        return Affine(offset, coefficients, scope.fresh(uses.shape[:-1]), uses, value.fixed, value.positive)  # type: ignore[arg-type]
    return structural_sum(scope, scope.curved(value), axes)


def structural_sum(scope: Scope, value: Curved, axes: tuple[int, ...]) -> Curved:
    """Sum of intervals and of slopes."""
    if all(value.shape[axis] == 1 for axis in axes):
        return move_curved(lambda x: lax.squeeze(x, axes), [value])
    bounds = Interval(*(jnp.sum(end, axis=axes) for end in value.bounds))
    low = jnp.sum(value.slopes.lo, axis=axes)
    slopes = iv.point(low) if iv.is_point(value.slopes) else Interval(low, jnp.sum(value.slopes.hi, axis=axes))
    return Curved(bounds, slopes, value.free, value.positive)


@rule("reduce_sum")
def _reduce_sum(scope: Scope, params: Params, value: Value) -> Value:
    return reduce_sum(scope, value, tuple(params["axes"]))


@rule("reduce_prod")
def _reduce_prod(scope: Scope, params: Params, value: Value) -> Value:
    out = value
    for axis in sorted(params["axes"], reverse=True):
        parts = [
            structural(lambda x, i=i, a=axis: lax.index_in_dim(x, i, a, False), out, scope=scope)
            for i in range(out.shape[axis])
        ]
        out = parts[0]
        for part in parts[1:]:
            out = multiply(scope, out, part)
    return out


def _reduce_extreme(scope: Scope, value: Value, axes: tuple[int, ...], sign: float) -> Value:
    x = scope.curved(value, bent=True)
    low, high = (x.bounds.lo, x.bounds.hi) if sign > 0 else (-x.bounds.hi, -x.bounds.lo)
    floor = jnp.max(low, axis=axes, keepdims=True)
    possible = (high >= floor)[..., None]
    slo = jnp.min(jnp.where(possible, x.slopes.lo, jnp.inf), axis=axes)
    shi = jnp.max(jnp.where(possible, x.slopes.hi, -jnp.inf), axis=axes)
    low, high = jnp.max(low, axis=axes), jnp.max(high, axis=axes)
    bounds = Interval(low, high) if sign > 0 else Interval(-high, -low)
    return Curved(bounds, Interval(slo, shi), x.free, x.positive)


@rule("reduce_max")
def _reduce_max(scope: Scope, params: Params, value: Value) -> Value:
    return _reduce_extreme(scope, value, tuple(params["axes"]), 1.0)


@rule("reduce_min")
def _reduce_min(scope: Scope, params: Params, value: Value) -> Value:
    return _reduce_extreme(scope, value, tuple(params["axes"]), -1.0)


@rule("dot_general")
def _dot_general(scope: Scope, params: Params, first: Value, second: Value) -> Value:
    """Products over a common shape (batch, left, right, contracted), then a sum."""
    (left_in, right_in), (left_batch, right_batch) = params["dimension_numbers"]
    left_free = [i for i in range(len(first.shape)) if i not in left_in and i not in left_batch]
    right_free = [i for i in range(len(second.shape)) if i not in right_in and i not in right_batch]
    order = [*left_batch, *left_free, *left_in], [*right_batch, *right_free, *right_in]
    gaps = len(left_batch) + len(left_free), len(left_batch)

    def arrange_left(x: Array) -> Array:
        x = jnp.transpose(x, order[0])
        return x.reshape(*x.shape[: gaps[0]], *(1,) * len(right_free), *x.shape[gaps[0] :])

    def arrange_right(x: Array) -> Array:
        x = jnp.transpose(x, order[1])
        return x.reshape(*x.shape[: gaps[1]], *(1,) * len(left_free), *x.shape[gaps[1] :])

    a, b = structural(arrange_left, first, scope=scope), structural(arrange_right, second, scope=scope)
    product = multiply(scope, a, b)
    rank = len(product.shape)
    return reduce_sum(scope, product, tuple(range(rank - len(left_in), rank)))


@rule("cumsum")
def _cumsum(scope: Scope, params: Params, value: Value) -> Value:
    x = scope.curved(value)
    return move_curved(lambda y: lax.cumsum(y, axis=params["axis"], reverse=params["reverse"]), [x])


@rule("convert_element_type")
def _convert(scope: Scope, params: Params, value: Value) -> Value:
    kind = params["new_dtype"]
    if isinstance(value, Truth):
        return value if kind == jnp.bool_ else scope.curved(value)
    if kind == jnp.bool_:
        return invert(equal(scope, value, Const((0.0, 0.0), True)))
    if jnp.issubdtype(kind, jnp.integer) and not _whole(params):
        return RULES["_truncate"](scope, params, value)
    return value


def _whole(params: Params) -> bool:
    return bool(params.get("from_whole", False))


def _truncate(x: Interval) -> Interval:
    return Interval(jnp.trunc(x.lo), jnp.trunc(x.hi))


RULES["_truncate"] = step_rule(_truncate)


@rule("rem")
def _rem(scope: Scope, params: Params, first: Value, second: Value) -> Value:
    if not (is_fixed(first) and isinstance(second, Const) and second.fixed):
        raise unsupported("rem")
    image = remainder_image(np.asarray(second.at[0], dtype=float), _whole(params))
    return record_only(scope, lambda x, _: image(x), first, second)
