"""Rules that combine the entries of an array, and conversions between kinds of numbers."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax.linalg import triangular_solve_p

from sfumato.bounds import curved
from sfumato.bounds.arithmetic import expand, multiply, negate
from sfumato.bounds.choices import equal, invert
from sfumato.bounds.elementwise import remainder_image
from sfumato.bounds.interval import Array, Interval
from sfumato.bounds.rules import RULES, Params, is_fixed, rule, unsupported
from sfumato.bounds.shapes import structural
from sfumato.bounds.values import Affine, Const, Scope, Truth, Value, at_each, constant, of_consts, plain


def reduce_sum(scope: Scope, value: Value, axes: tuple[int, ...]) -> Value:
    """Sum over axes."""
    if not axes:
        return value
    if any(value.shape[axis] > 1 for axis in axes):
        value = expand(scope, value)
    if all(value.shape[axis] == 1 for axis in axes):
        return structural(lambda x: lax.squeeze(x, axes), value, scope=scope)
    if isinstance(value, Affine):
        return combined(scope, lambda x: jnp.sum(jnp.asarray(x), axis=axes), value)
    return curved.total(scope.curved(value), axes)


def combined(scope: Scope, how: Callable[[Array], Array], value: Affine) -> Affine:
    """Sums of entries of an affine number, with factors that are not negative: new entries."""
    each = jax.vmap(how, in_axes=-1, out_axes=-1)
    shape = jax.eval_shape(how, np.zeros(value.shape)).shape

    def of_slopes(x: Array) -> Array:
        return each(x) if x.shape[-1] else np.zeros((*shape, 0))

    with plain(value.fixed):
        offset, coefficients = at_each(how, value.offset), at_each(of_slopes, value.coefficients)
    with jax.ensure_compile_time_eval():
        uses = np.asarray(of_slopes(value.uses.astype(float))) > 0
    return scope.new_affine(offset, coefficients, uses, value.fixed, value.positive)


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


def _reduce_extreme(scope: Scope, value: Value, axes: tuple[int, ...], larger: bool) -> Value:
    if not larger:
        return negate(scope, _reduce_extreme(scope, negate(scope, value), axes, True))
    x = scope.curved(value, bent=True)
    last = tuple(range(-len(axes), 0))

    def arranged(y: Array) -> Array:
        moved = jnp.moveaxis(y, axes, last)
        return moved.reshape(*moved.shape[: moved.ndim - len(axes)], -1)

    x = curved.move(arranged, [x])
    possible = x.bounds.hi >= jnp.max(x.bounds.lo, axis=-1, keepdims=True)
    parts = [curved.move(lambda y, i=i: y[..., i], [x]) for i in range(x.shape[-1])]
    out = curved.kinked(curved.hull_over(parts, possible), jnp.sum(possible, axis=-1) == 1)
    out.bounds = Interval(*(jnp.max(end, axis=-1) for end in x.bounds))
    return out


@rule("reduce_max")
def _reduce_max(scope: Scope, params: Params, value: Value) -> Value:
    return _reduce_extreme(scope, value, tuple(params["axes"]), True)


@rule("reduce_min")
def _reduce_min(scope: Scope, params: Params, value: Value) -> Value:
    return _reduce_extreme(scope, value, tuple(params["axes"]), False)


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


@rule("triangular_solve")
def _triangular_solve(scope: Scope, params: Params, matrix: Value, right: Value) -> Value:
    """With a matrix of the parameter alone: its inverse is one, too, and multiplies the right-hand side."""
    if not isinstance(matrix, Const):
        raise unsupported("triangular_solve", " (the matrix must not depend on a record)")
    unit, left = np.eye(matrix.shape[-1]), params["left_side"]
    told = {key: value for key, value in params.items() if key != "from_whole"}

    def inverse(x: Array) -> Array:
        found = triangular_solve_p.bind(x, jnp.broadcast_to(unit, x.shape), **told)
        return found[..., :, :, None] if left else found[..., None, :, :]

    def factor(x: Array) -> Array:
        return x[..., None, :, :] if left else x[..., :, :, None]

    product = multiply(scope, of_consts(inverse, matrix), structural(factor, right, scope=scope))
    return reduce_sum(scope, product, (len(product.shape) - 2,))


@rule("cumsum")
def _cumsum(scope: Scope, params: Params, value: Value) -> Value:
    def how(x: Array) -> Array:
        return lax.cumsum(jnp.asarray(x), axis=params["axis"], reverse=params["reverse"])

    value = expand(scope, value)
    return combined(scope, how, value) if isinstance(value, Affine) else curved.move(how, [scope.curved(value)])


@rule("convert_element_type")
def _convert(scope: Scope, params: Params, value: Value) -> Value:
    kind = params["new_dtype"]
    if isinstance(value, Truth):
        if kind == jnp.bool_:
            return value
        return scope.curved(value) if value.indicator is None else value.indicator()
    if kind == jnp.bool_:
        return invert(equal(scope, value, constant(0.0)))
    if jnp.issubdtype(kind, jnp.integer):
        return _to_whole(scope, params, value)
    return value


def _to_whole(scope: Scope, params: Params, value: Value) -> Value:
    """A number as a whole one of some size: rounded towards zero, and refused where it would wrap."""
    known, kind = scope.known(value), jnp.iinfo(params["new_dtype"])  # type: ignore[no-untyped-call]
    if known is not None and not (np.min(known.lo) > float(kind.min) - 1 and np.max(known.hi) < float(kind.max) + 1):
        raise unsupported("convert_element_type", " (a whole number of this size would wrap)")
    return value if _whole(params) else RULES["trunc"](scope, params, value)


def _whole(params: Params) -> bool:
    return bool(params.get("from_whole", False))


@rule("rem")
def _rem(scope: Scope, params: Params, first: Value, second: Value) -> Value:
    if not (is_fixed(first) and isinstance(second, Const) and second.fixed):
        raise unsupported("rem")
    by, whole = np.asarray(second.at[0], dtype=float), _whole(params)
    image = remainder_image(by, whole)
    return scope.record_only(f"rem {whole}", lambda x, _: image(x), jnp.fmod, first, second)
