"""Rules for sums, products, quotients, powers and functions of one number."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.bounds import interval as iv
from sfumato.bounds.atoms import pad_last
from sfumato.bounds.elementwise import FUNCTIONS, STEPS, Function, integer_power, real_power
from sfumato.bounds.interval import Interval
from sfumato.bounds.rules import (
    RULES,
    Params,
    Rule,
    broadcast,
    is_fixed,
    is_number,
    is_positive,
    rule,
    unsupported,
)
from sfumato.bounds.values import Affine, Const, Curved, Scope, Truth, Value, align, align_slopes, constant, plain


def add(scope: Scope, first: Value, second: Value) -> Value:
    """Sum; affine numbers stay affine."""
    for one, other in ((first, second), (second, first)):
        if is_number(one, 0.0) and not isinstance(other, Truth):
            return other
    positive = is_positive(first) and is_positive(second)
    if _moves_straight(first) or _moves_straight(second):
        first, second = expand(scope, first), expand(scope, second)
    if isinstance(first, Const | Affine) and isinstance(second, Const | Affine):
        a, b = scope.affine(first), scope.affine(second)
        fixed = a.fixed and b.fixed
        with plain(fixed):
            offset = tuple(x + y for x, y in zip(a.offset, b.offset, strict=True))
            pairs = [align(x, y) for x, y in zip(a.coefficients, b.coefficients, strict=True)]
            coefficients = tuple(x + y for x, y in pairs)
        used, also = align(a.uses, b.uses)
        out = Affine(
            offset,
            coefficients,
            scope.fresh(broadcast(a, b)),
            used | also,
            fixed,
            positive,
        )
        return _keep_names(out, a, b)
    x, y = scope.curved(first), scope.curved(second)
    slopes = align_slopes(x.slopes, y.slopes)
    return Curved(iv.add(x.bounds, y.bounds), iv.add(*slopes), x.free and y.free, positive)


def _moves_straight(value: Value) -> bool:
    """Whether it is affine and depends on the parameter: then a product beside it had better be affine too."""
    return isinstance(value, Const | Affine) and not value.fixed


def _keep_names(out: Affine, a: Affine, b: Affine) -> Affine:
    """Adding a plain zero (an array of them) changes nothing: the entries keep their names."""
    for one, other in ((a, b), (b, a)):
        if one.fixed and not one.uses.any() and other.shape == out.shape and not np.any(np.asarray(one.offset[0])):
            return other
    return out


def negate(scope: Scope, value: Value) -> Value:
    """Negation."""
    if isinstance(value, Const):
        return flip(value)
    if isinstance(value, Affine):
        return scale(scope, value, Const((-1.0, -1.0), True))
    x = scope.curved(value)
    return Curved(iv.neg(x.bounds), iv.neg(x.slopes), x.free)


def scale(scope: Scope, value: Affine, by: Const) -> Affine:
    """Multiply an affine number by a constant."""
    fixed = value.fixed and by.fixed
    if not by.fixed:
        scope.touched.update(scope.uses(value).tolist())
    with plain(fixed):
        factors = tuple(jnp.asarray(x, dtype=float) for x in by.at)
        offset = tuple(x * f for x, f in zip(value.offset, factors, strict=True))
        coefficients = tuple(x * f[..., None] for x, f in zip(value.coefficients, factors, strict=True))
    shape = broadcast(value, by)
    uses = np.broadcast_to(value.uses, (*shape, value.uses.shape[-1]))
    positive = value.positive and by.positive
    return Affine(offset, coefficients, scope.fresh(shape), uses, fixed, positive)


@rule("add", "add_any")
def _add(scope: Scope, params: Params, first: Value, second: Value) -> Value:
    return add(scope, first, second)


@rule("sub")
def _sub(scope: Scope, params: Params, first: Value, second: Value) -> Value:
    return add(scope, first, negate(scope, second))


@rule("neg")
def _neg(scope: Scope, params: Params, value: Value) -> Value:
    return negate(scope, value)


# -- products ---


def multiply(scope: Scope, first: Value, second: Value) -> Value:
    r"""Product: :math:`a'b' - ab = \bar a\,(b'-b) + \bar b\,(a'-a)` with the bar for the mean of both values."""
    for one, other in ((first, second), (second, first)):
        if is_number(one, 1.0) and not isinstance(other, Truth):
            return other
        if isinstance(one, Const) and isinstance(other, Affine):
            return scale(scope, other, one)
    if first is second:
        return unary(scope, first, integer_power(2), ("square",))
    if (through_logs := _through_logs(scope, first, second, 1.0)) is not None:
        return through_logs
    if is_fixed(first) and is_fixed(second):
        return record_only(scope, iv.mul, first, second)
    scope.touched.update(scope.uses(*(v for v in (first, second) if is_fixed(v))).tolist())
    crossed = not (is_fixed(first) or is_fixed(second))
    x, y = scope.curved(first, bent=crossed), scope.curved(second, bent=crossed)
    sx, sy = align_slopes(x.slopes, y.slopes)
    parts = []
    if not x.free:
        parts.append(iv.mul(column(y.bounds), sx))
    if not y.free:
        parts.append(iv.mul(column(x.bounds), sy))
    slopes = parts[0] if len(parts) == 1 else iv.add(*parts) if parts else sx
    shape = broadcast(x, y)
    slopes = spread(slopes, shape)
    out = Curved(iv.mul(x.bounds, y.bounds), slopes, x.free and y.free, x.positive and y.positive)
    if isinstance(first, Affine) and isinstance(second, Affine):
        out.factors = (first, second) if first.fixed else (second, first) if second.fixed else None
    return out


_MAX_PRODUCTS = 64


def expand(scope: Scope, value: Value) -> Value:
    r"""Write the product of a column u and an affine number as affine again.

    :math:`u\,(c + \sum_j A_j a_j) = c\,u + \sum_j A_j\,(u a_j)` with a new atom for every product :math:`u a_j`.
    """
    if not isinstance(value, Curved) or value.factors is None:
        return value
    column, other = value.factors
    if column.shape != other.shape or other.uses.sum() > _MAX_PRODUCTS:
        return value
    if value.expanded is None:
        value.expanded = _expand(scope, column, other)
    return value.expanded


def _expand(scope: Scope, column: Affine, other: Affine) -> Affine:
    rows = other.uses.reshape(-1, other.uses.shape[-1])
    total = _times_offset(scope, column, other)
    simplices = {i for s in scope.atoms.simplices for i in range(s.start, s.start + s.size)}
    for j in np.flatnonzero(rows.any(axis=0)).tolist():
        if j in simplices:
            scope.indexed.append(scope.index_columns[j])
        atom = scope.pick(np.full(column.shape, j))
        own = _is_multiple(column, j)
        product = (
            unary(scope, column, integer_power(2), ("square",)) if own else record_only(scope, iv.mul, column, atom)
        )
        if own:  # a multiple of the atom times the atom
            product = scale(scope, product, constant(1.0 / np.asarray(column.coefficients[0])[..., j]))  # type: ignore[arg-type]
        pair = tuple(pad_last(c, rows.shape[-1])[..., j] for c in other.coefficients)
        total = add(scope, total, scale(scope, product, Const(pair, False)))  # type: ignore[arg-type,assignment]
    return total


def _is_multiple(column: Affine, j: int) -> bool:
    """Whether every entry of a column is a multiple of atom j."""
    alone = np.zeros(column.uses.shape[-1], dtype=bool)
    if j >= alone.size or np.any(np.asarray(column.offset[0])):
        return False
    alone[j] = True
    return bool((column.uses == alone).all())


def _times_offset(scope: Scope, column: Affine, other: Affine) -> Affine:
    return scale(scope, column, Const(other.offset, False))


def spread(slopes: Interval, shape: tuple[int, ...]) -> Interval:
    """Broadcast slopes to the shape of a result."""
    full = (*shape, slopes.lo.shape[-1])
    if slopes.lo.shape == full:
        return slopes
    if iv.is_point(slopes):
        return iv.point(jnp.broadcast_to(slopes.lo, full))
    return Interval(jnp.broadcast_to(slopes.lo, full), jnp.broadcast_to(slopes.hi, full))


def column(x: Interval) -> Interval:
    """Add a last axis, to meet the slopes."""
    return iv.point(x.lo[..., None]) if iv.is_point(x) else Interval(x.lo[..., None], x.hi[..., None])


def _through_logs(scope: Scope, first: Value, second: Value, sign: float) -> Value | None:
    """Keep a product or quotient of positive numbers an exponential, if one of them is one."""
    if not any(isinstance(v, Curved | Affine) and v.log is not None for v in (first, second)):
        return None
    logs = [_log_of(scope, v) for v in (first, second)]
    if logs[0] is None or logs[1] is None:
        return None
    other = logs[1] if sign > 0 else negate(scope, logs[1])
    return exponential(scope, add(scope, logs[0], other))


def flip(value: Const) -> Const:
    """Negate a constant."""
    with plain(value.fixed):
        return Const((-jnp.asarray(value.at[0]), -jnp.asarray(value.at[1])), value.fixed)


def _log_of(scope: Scope, value: Value) -> Value | None:
    if isinstance(value, Truth) or not value.positive:
        return None
    if value.log is not None:
        return value.log
    if isinstance(value, Const):
        with plain(value.fixed):
            return Const((jnp.log(value.at[0] * 1.0), jnp.log(value.at[1] * 1.0)), value.fixed)
    if isinstance(value, Affine) and value.fixed:
        return logarithm(scope, value)
    return None


def exponential(scope: Scope, value: Value) -> Value:
    """Exponential that remembers its logarithm."""
    if isinstance(value, Const):
        with plain(value.fixed):
            return Const((jnp.exp(value.at[0]), jnp.exp(value.at[1])), value.fixed, True, value)
    out = unary(scope, value, FUNCTIONS["exp"], ("exp",))
    out.log = value  # type: ignore[union-attr]
    return out


def logarithm(scope: Scope, value: Value) -> Value:
    """Logarithm; of an exponential it is the argument itself."""
    if not isinstance(value, Truth) and value.log is not None:
        return value.log
    if isinstance(value, Affine) and value.fixed:
        value.log = unary(scope, value, FUNCTIONS["log"], ("log",))
        return value.log
    return unary(scope, value, FUNCTIONS["log"], ("log",))


@rule("exp")
def _exp(scope: Scope, params: Params, value: Value) -> Value:
    return exponential(scope, value)


@rule("log")
def _log(scope: Scope, params: Params, value: Value) -> Value:
    return logarithm(scope, value)


@rule("mul")
def _mul(scope: Scope, params: Params, first: Value, second: Value) -> Value:
    return multiply(scope, first, second)


@rule("div")
def _div(scope: Scope, params: Params, first: Value, second: Value) -> Value:
    r"""Quotient: :math:`a'/b' - a/b = ((a'-a) - (a/b)(b'-b))/b'`."""
    if params.get("from_whole"):
        raise unsupported("div", " (of whole numbers)")
    if isinstance(second, Const):
        with plain(second.fixed):
            inverse = Const((1.0 / second.at[0], 1.0 / second.at[1]), second.fixed, second.positive)
        if second.log is not None:
            inverse.log = flip(second.log) if isinstance(second.log, Const) else None
        return multiply(scope, first, inverse)
    if (through_logs := _through_logs(scope, first, second, -1.0)) is not None:
        return through_logs
    if is_fixed(first) and is_fixed(second):
        return record_only(scope, lambda p, q: iv.mul(p, iv.reciprocal(q)), first, second)
    x, y = scope.curved(first, bent=not is_fixed(first)), scope.curved(second, bent=True)
    inverse_bounds = iv.reciprocal(y.bounds)
    ratio = iv.mul(x.bounds, inverse_bounds)
    sx, sy = align_slopes(x.slopes, y.slopes)
    slopes = iv.mul(column(inverse_bounds), iv.sub(sx, iv.mul(column(ratio), sy)))
    return Curved(ratio, spread(slopes, broadcast(x, y)), x.free and y.free, x.positive and y.positive)


# -- functions of one number ---


def unary(scope: Scope, value: Value, function: Function, name: tuple[str, ...]) -> Value:
    """Apply a smooth function of one number."""
    if isinstance(value, Affine) and value.fixed:
        out = record_only(scope, function.image, value)
        out.positive = out.positive or function.positive
        return out
    x = scope.curved(expand(scope, value), bent=True)
    slopes = iv.mul(column(function.slope(x.bounds)), x.slopes)
    return Curved(function.image(x.bounds), slopes, x.free, function.positive)


def record_only(scope: Scope, image: Callable[..., Interval], *values: Value) -> Affine:
    """Make a new atom of a number that looks at the record alone."""
    ranges = [scope.bounds(value) for value in values]
    known = [scope.known(value) for value in values]
    with jax.ensure_compile_time_eval():
        everywhere = image(*(Interval(*(jnp.asarray(end) for end in k)) for k in known if k is not None))
        everywhere = Interval(np.asarray(everywhere.lo), np.asarray(everywhere.hi))
    shape = np.broadcast_shapes(*(value.shape for value in values))
    everywhere = Interval(np.broadcast_to(everywhere.lo, shape), np.broadcast_to(everywhere.hi, shape))
    here = image(*ranges)
    here = Interval(jnp.broadcast_to(here.lo, shape), jnp.broadcast_to(here.hi, shape))
    return scope.atom(here, everywhere, shape, scope.uses(*values))


def _register_functions() -> None:
    for name, function in FUNCTIONS.items():
        if name not in RULES:
            RULES[name] = _unary_rule(name, function)
    for name, image in STEPS.items():
        RULES[name] = step_rule(image)


def _unary_rule(name: str, function: Function) -> Rule:
    return lambda scope, params, value: unary(scope, value, function, (name,))


def step_rule(image: Callable[[Interval], Interval]) -> Rule:
    """Make a rule for a function that jumps."""

    def apply(scope: Scope, params: Params, value: Value) -> Value:
        if isinstance(value, Affine) and value.fixed:
            return record_only(scope, image, value)
        x = scope.curved(value)
        out = Curved(image(x.bounds), iv.point(jnp.zeros((*x.shape, 1))), x.free)
        return out if x.free else scope.jump(out)

    return apply


_register_functions()


@rule("integer_pow")
def _integer_pow(scope: Scope, params: Params, value: Value) -> Value:
    return _power(scope, value, float(params["y"]))


@rule("pow")
def _pow(scope: Scope, params: Params, base: Value, exponent: Value) -> Value:
    if isinstance(exponent, Const) and exponent.fixed and np.size(exponent.at[0]) == 1:
        return _power(scope, base, float(np.reshape(np.asarray(exponent.at[0]), ())))
    if not is_positive(base):
        raise unsupported("pow", " (the base must be positive, and known to be)")
    return exponential(scope, multiply(scope, exponent, _log_or_compute(scope, base)))


def _log_or_compute(scope: Scope, value: Value) -> Value:
    known = _log_of(scope, value)
    return logarithm(scope, value) if known is None else known


def _power(scope: Scope, value: Value, exponent: float) -> Value:
    if exponent == 1.0:
        return value
    if not isinstance(value, Truth) and value.log is not None and not isinstance(value, Const):
        return exponential(scope, multiply(scope, Const((exponent, exponent), True, exponent > 0), value.log))
    out = unary(scope, value, real_power(exponent), ("pow",))
    return out


@rule("sqrt")
def _sqrt(scope: Scope, params: Params, value: Value) -> Value:
    if not isinstance(value, Truth) and value.log is not None:
        return _power(scope, value, 0.5)
    return unary(scope, value, FUNCTIONS["sqrt"], ("sqrt",))
