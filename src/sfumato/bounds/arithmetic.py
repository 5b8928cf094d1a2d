"""Rules for sums, products, quotients, powers and functions of one number."""

import jax.numpy as jnp
import numpy as np

from sfumato.bounds import curved
from sfumato.bounds import interval as iv
from sfumato.bounds.atoms import pad_last
from sfumato.bounds.elementwise import FUNCTIONS, JUMPS, Function, Jump, real_power
from sfumato.bounds.rules import (
    RULES,
    Params,
    Rule,
    broadcast,
    is_fixed,
    is_number,
    is_positive,
    no_derivative,
    rule,
    unsupported,
)
from sfumato.bounds.values import Affine, Const, Curved, Scope, Truth, Value, align, at_each, constant, of_consts, plain


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
            offset = at_each(lambda x, y: x + y, a.offset, b.offset)
            coefficients = at_each(lambda x, y: sum(align(x, y)), a.coefficients, b.coefficients)
        used, also = align(a.uses, b.uses)
        out = scope.new_affine(offset, coefficients, used | also, fixed, positive)
        return _keep_names(out, a, b)
    return curved.plus(scope.curved(first), scope.curved(second))


def _moves_straight(value: Value) -> bool:
    """Whether it is affine and depends on the parameter: then a product beside it had better be affine too."""
    return isinstance(value, Const | Affine) and not value.fixed


def _keep_names(out: Affine, a: Affine, b: Affine) -> Affine:
    """Adding plain numbers changes nothing but by how much an entry is more than what its name stands for."""
    for one, other in ((a, b), (b, a)):
        if one.fixed and not one.uses.any():
            more = np.asarray(one.offset[0])
            if other.shape == out.shape and not np.any(more):
                return other
            if np.all(np.isfinite(more)):
                out.ids, out.factor, out.shift = (
                    np.broadcast_to(part, out.shape) for part in (other.ids, other.factor, other.shift + more)
                )
    return out


def negate(scope: Scope, value: Value) -> Value:
    """Negation."""
    if isinstance(value, Const):
        return of_consts(lambda x: -jnp.asarray(x), value)
    if isinstance(value, Affine):
        return scale(scope, value, constant(-1.0))
    return curved.negative(scope.curved(value))


def scale(scope: Scope, value: Affine, by: Const) -> Affine:
    """Multiply an affine number by a constant."""
    fixed = value.fixed and by.fixed
    if not by.fixed:
        scope.touched.update(scope.uses(value).tolist())
    with plain(fixed):
        factors = tuple(jnp.asarray(x, dtype=float) for x in by.at)
        offset = at_each(lambda x, f: x * f, value.offset, factors)
        coefficients = at_each(lambda x, f: x * f[..., None], value.coefficients, factors)
    shape = broadcast(value, by)
    uses = np.broadcast_to(value.uses, (*shape, value.uses.shape[-1]))
    out = scope.new_affine(offset, coefficients, uses, fixed, value.positive and by.positive)
    if by.fixed and np.all(ratio := np.asarray(by.at[0], dtype=float)) and np.all(np.isfinite(ratio)):
        # A multiple keeps its name.
        out.ids, out.factor, out.shift = np.broadcast_to(value.ids, shape), value.factor * ratio, value.shift * ratio
    return out


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
    """Product; affine where it stays so, an exponential where both are, new atoms where neither looks at the parameter."""
    for one, other in ((first, second), (second, first)):
        if is_number(one, 1.0) and not isinstance(other, Truth):
            return other
        if isinstance(one, Const) and isinstance(other, Affine):
            return scale(scope, other, one)
    if first is second:
        return unary(scope, first, "square", FUNCTIONS["square"])
    if (through_logs := _through_logs(scope, first, second, 1.0)) is not None:
        return through_logs
    if is_fixed(first) and is_fixed(second):
        return scope.record_only("mul", iv.mul, jnp.multiply, first, second)
    scope.touched.update(scope.uses(*(v for v in (first, second) if is_fixed(v))).tolist())
    crossed = not (is_fixed(first) or is_fixed(second))
    out = curved.times(scope.curved(first, bent=crossed), scope.curved(second, bent=crossed))
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
    total = scale(scope, column, Const(other.offset, False))
    simplices = {i for s in scope.atoms.simplices for i in range(s.start, s.start + s.size)}
    for j in np.flatnonzero(rows.any(axis=0)).tolist():
        if j in simplices:
            scope.indexed.append(scope.index_columns[j])
        atom = scope.pick(np.full(column.shape, j))
        own = _is_multiple(column, j)
        if own:  # a multiple of the atom times the atom
            square = scope.record_only("square", FUNCTIONS["square"].image, jnp.square, column)
            product = scale(scope, square, constant(1.0 / np.asarray(column.coefficients[0])[..., j]))
        else:
            product = scope.record_only("mul", iv.mul, jnp.multiply, column, atom)
        pair = tuple(pad_last(c, rows.shape[-1])[..., j] for c in other.coefficients)
        total = add(scope, total, scale(scope, product, Const(pair, False)))  # type: ignore[assignment]
    return total


def _is_multiple(column: Affine, j: int) -> bool:
    """Whether every entry of a column is a multiple of atom j."""
    alone = np.zeros(column.uses.shape[-1], dtype=bool)
    if j >= alone.size or np.any(np.asarray(column.offset[0])):
        return False
    alone[j] = True
    return bool((column.uses == alone).all())


def _through_logs(scope: Scope, first: Value, second: Value, sign: float) -> Value | None:
    """Keep a product or quotient of positive numbers an exponential, if one of them is one."""
    if not any(isinstance(v, Curved | Affine) and v.log is not None for v in (first, second)):
        return None
    logs = [_log_of(scope, v) for v in (first, second)]
    if logs[0] is None or logs[1] is None:
        return None
    other = logs[1] if sign > 0 else negate(scope, logs[1])
    return exponential(scope, add(scope, logs[0], other))


def _log_of(scope: Scope, value: Value) -> Value | None:
    if isinstance(value, Truth) or not value.positive:
        return None
    if value.log is None and (isinstance(value, Const) or is_fixed(value)):
        value.log = logarithm(scope, value)
    return value.log


def exponential(scope: Scope, value: Value) -> Value:
    """Exponential that remembers its logarithm."""
    if isinstance(value, Const):
        out: Value = of_consts(jnp.exp, value, positive=True)
    else:
        out = unary(scope, value, "exp", FUNCTIONS["exp"])
    out.log = value  # type: ignore[union-attr]
    return out


def logarithm(scope: Scope, value: Value) -> Value:
    """Logarithm; of an exponential it is the argument itself."""
    if not isinstance(value, Truth) and value.log is not None:
        return value.log
    if isinstance(value, Const):
        return of_consts(lambda x: jnp.log(x * 1.0), value)
    out = unary(scope, value, "log", FUNCTIONS["log"])
    if isinstance(value, Affine) and value.fixed:
        value.log = out
    return out


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
        inverse = of_consts(lambda x: 1.0 / x, second, positive=second.positive)
        if isinstance(second.log, Const):
            inverse.log = negate(scope, second.log)
        return multiply(scope, first, inverse)
    if (through_logs := _through_logs(scope, first, second, -1.0)) is not None:
        return through_logs
    if is_fixed(first) and is_fixed(second):
        return scope.record_only("div", lambda p, q: iv.mul(p, iv.reciprocal(q)), jnp.divide, first, second)
    if is_fixed(second) or not scope.pair:
        return multiply(scope, first, _power(scope, second, -1.0))
    x, y = scope.curved(first, bent=not is_fixed(first)), scope.curved(second, bent=True)
    ratio = iv.mul(x.bounds, iv.reciprocal(y.bounds))
    # Its numerator, the ratio held: then one division.
    parts = curved.plus(x, curved.negative(curved.times(scope.still(ratio), y)))
    inverse_ = scope.still(iv.reciprocal(y.bounds))
    out = curved.times(inverse_, parts)
    return Curved(ratio, out.slopes, None, x.free and y.free, x.positive and y.positive)


# -- functions of one number ---


def unary(scope: Scope, value: Value, name: str, function: Function) -> Value:
    """Apply a smooth function of one number."""
    if is_fixed(value):
        out: Value = scope.record_only(name, function.image, function.exact, value)
        out.positive = is_positive(out) or function.positive  # type: ignore[union-attr]
        return out
    x = scope.curved(expand(scope, value), bent=True)
    if scope.twice and function.curvature is None and not x.free:
        raise no_derivative(name)
    out = curved.compose(x, function.image, function.slope, function.curvature)
    out.positive = function.positive
    return out


def _smooth(name: str, function: Function) -> Rule:
    return lambda scope, params, value: unary(scope, value, name, function)


def jumping(name: str, function: Jump) -> Rule:
    """Make a rule for a function that jumps."""

    def apply(scope: Scope, params: Params, value: Value) -> Value:
        if is_fixed(value):
            way = {key: params[key] for key in ("rounding_method",) if key in params}
            return scope.record_only(f"{name} {way or ''}", function.image, lambda x: function.exact(x, **way), value)
        x = scope.curved(value)
        if scope.twice and not x.free:
            raise no_derivative(name)
        return scope.jump(scope.still(function.image(x.bounds), x.free))

    return apply


RULES.update({name: _smooth(name, function) for name, function in FUNCTIONS.items() if name not in RULES})
RULES.update({name: jumping(name, function) for name, function in JUMPS.items()})


@rule("integer_pow")
def _integer_pow(scope: Scope, params: Params, value: Value) -> Value:
    return _power(scope, value, float(params["y"]))


@rule("pow")
def _pow(scope: Scope, params: Params, base: Value, exponent: Value) -> Value:
    if isinstance(exponent, Const) and exponent.fixed and np.size(exponent.at[0]) == 1:
        return _power(scope, base, float(np.reshape(np.asarray(exponent.at[0]), ())))
    if not is_positive(base):
        raise unsupported("pow", " (the base must be positive, and known to be)")
    known = _log_of(scope, base)
    return exponential(scope, multiply(scope, exponent, logarithm(scope, base) if known is None else known))


def _power(scope: Scope, value: Value, exponent: float) -> Value:
    if exponent == 1.0:
        return value
    if not isinstance(value, Truth) and value.log is not None and not isinstance(value, Const):
        return exponential(scope, multiply(scope, constant(exponent), value.log))
    return unary(scope, value, f"pow {exponent}", real_power(exponent))


@rule("sqrt")
def _sqrt(scope: Scope, params: Params, value: Value) -> Value:
    if not isinstance(value, Truth) and value.log is not None:
        return _power(scope, value, 0.5)
    return unary(scope, value, "sqrt", FUNCTIONS["sqrt"])
