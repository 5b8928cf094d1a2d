"""Rules for conditions, choices between numbers, and the larger and smaller of two."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from sfumato.bounds import curved
from sfumato.bounds.arithmetic import add, multiply
from sfumato.bounds.indexing import indicators
from sfumato.bounds.interval import Array, Interval
from sfumato.bounds.rules import RULES, Params, Rule, is_fixed, rule, unsupported
from sfumato.bounds.shapes import truth
from sfumato.bounds.values import Affine, Const, Curved, Scope, Truth, Value, of_consts


def _compare(certain: Callable[[Interval, Interval], Array], impossible: Callable[[Interval, Interval], Array]) -> Rule:
    def apply(scope: Scope, params: Params, first: Value, second: Value) -> Value:
        known = scope.known(first), scope.known(second)
        if known[0] is not None and known[1] is not None:
            with np.errstate(invalid="ignore"):
                yes, no = np.asarray(certain(*known)), np.asarray(impossible(*known))  # type: ignore[arg-type]
            if np.all(yes | no):
                return Const((yes,), True)
        x, y = scope.curved(first), scope.curved(second)
        yes, no = ~impossible(x.bounds, y.bounds), ~certain(x.bounds, y.bounds)
        free = x.free and y.free
        return Truth(yes, no, free, frozenset(scope.uses(first, second).tolist()) if free else frozenset())

    return apply


def _joined(yes: Array, no: Array, *parts: Truth) -> Truth:
    """A condition made of others."""
    return Truth(yes, no, all(p.free for p in parts), frozenset().union(*(p.uses for p in parts)))


def _register_comparisons() -> None:
    RULES["lt"] = _compare(lambda a, b: a.hi < b.lo, lambda a, b: a.lo >= b.hi)
    RULES["le"] = _compare(lambda a, b: a.hi <= b.lo, lambda a, b: a.lo > b.hi)
    RULES["gt"] = _compare(lambda a, b: a.lo > b.hi, lambda a, b: a.hi <= b.lo)
    RULES["ge"] = _compare(lambda a, b: a.lo >= b.hi, lambda a, b: a.hi < b.lo)


_register_comparisons()


def equal(scope: Scope, first: Value, second: Value) -> Value:
    """Whether two numbers are equal."""
    if first is second:
        yes = np.ones(first.shape, dtype=bool)
        return Const((yes,), True)
    if isinstance(first, Truth) or isinstance(second, Truth):
        a, b = truth(first), truth(second)
        return _joined((a.yes & b.yes) | (a.no & b.no), (a.yes & b.no) | (a.no & b.yes), a, b)
    same = _compare(
        lambda a, b: (a.lo == a.hi) & (b.lo == b.hi) & (a.lo == b.lo), lambda a, b: (a.hi < b.lo) | (a.lo > b.hi)
    )
    return same(scope, {}, first, second)


def invert(value: Value) -> Value:
    """Negate a condition."""
    if isinstance(value, Const):
        return of_consts(lambda x: ~jnp.asarray(x), value)
    value = truth(value)
    return _joined(value.no, value.yes, value)


@rule("eq")
def _eq(scope: Scope, params: Params, first: Value, second: Value) -> Value:
    out = equal(scope, first, second)
    if isinstance(out, Truth) and params["from_whole"] and isinstance(first, Affine) and is_fixed(first):
        out.indicator = indicators(scope, first, second)
    return out


@rule("ne")
def _ne(scope: Scope, params: Params, first: Value, second: Value) -> Value:
    return invert(equal(scope, first, second))


@rule("not")
def _invert(scope: Scope, params: Params, value: Value) -> Value:
    return invert(truth(value))


@rule("and")
def _and(scope: Scope, params: Params, first: Value, second: Value) -> Value:
    a, b = truth(first), truth(second)
    return _joined(a.yes & b.yes, a.no | b.no, a, b)


@rule("or")
def _or(scope: Scope, params: Params, first: Value, second: Value) -> Value:
    a, b = truth(first), truth(second)
    return _joined(a.yes | b.yes, a.no & b.no, a, b)


@rule("xor")
def _xor(scope: Scope, params: Params, first: Value, second: Value) -> Value:
    a, b = truth(first), truth(second)
    return _joined((a.yes & b.no) | (a.no & b.yes), (a.yes & b.yes) | (a.no & b.no), a, b)


@rule("reduce_and")
def _reduce_and(scope: Scope, params: Params, value: Value) -> Value:
    t, axes = truth(value), tuple(params["axes"])
    return _joined(jnp.all(t.yes, axis=axes), jnp.any(t.no, axis=axes), t)


@rule("reduce_or")
def _reduce_or(scope: Scope, params: Params, value: Value) -> Value:
    t, axes = truth(value), tuple(params["axes"])
    return _joined(jnp.any(t.yes, axis=axes), jnp.all(t.no, axis=axes), t)


@rule("is_finite")
def _is_finite(scope: Scope, params: Params, value: Value) -> Value:
    x = scope.curved(value)
    finite = jnp.isfinite(x.bounds.lo) & jnp.isfinite(x.bounds.hi)
    return Truth(jnp.ones_like(finite), ~finite, x.free)


@rule("select_n")
def _select(scope: Scope, params: Params, which: Value, *cases: Value) -> Value:
    if len(cases) != 2:
        raise unsupported("select_n", " with more than two cases")
    otherwise, chosen = cases
    if isinstance(which, Const) and which.fixed and (picked := _select_known(which, otherwise, chosen)) is not None:
        return picked
    condition = truth(which)
    if isinstance(otherwise, Truth) or isinstance(chosen, Truth):
        a, b = truth(otherwise), truth(chosen)
        yes = (condition.yes & b.yes) | (condition.no & a.yes)
        return _joined(yes, (condition.yes & b.no) | (condition.no & a.no), condition, a, b)
    if condition.indicator is not None and isinstance(otherwise, Const) and isinstance(chosen, Const):
        apart = of_consts(lambda a, b: jnp.asarray(a, float) - b, chosen, otherwise)
        return add(scope, otherwise, multiply(scope, condition.indicator(), apart))
    scope.decide(condition)
    return _select_numbers(scope, condition, scope.curved(otherwise), scope.curved(chosen))


def _select_known(which: Const, otherwise: Value, chosen: Value) -> Value | None:
    mask = np.asarray(which.at[0], dtype=bool)
    if mask.all():
        return chosen
    if not mask.any():
        return otherwise
    return None


def _select_numbers(scope: Scope, condition: Truth, otherwise: Curved, chosen: Curved) -> Curved:
    """Pick by a condition. One that may switch between parameters makes the difference a jump."""
    yes, no = ~condition.no, ~condition.yes  # certainly
    out = curved.choose(yes, no, chosen, otherwise)
    if condition.free:
        return out
    out.free = False
    return scope.jump(out, yes | no)


def _extreme(scope: Scope, first: Value, second: Value, larger: bool) -> Value:
    """Max or min: the difference is a convex mix of the operands' differences."""
    extreme = jnp.maximum if larger else jnp.minimum

    def image(a: Interval, b: Interval) -> Interval:
        return Interval(extreme(a.lo, b.lo), extreme(a.hi, b.hi))

    if is_fixed(first) and is_fixed(second):
        return scope.record_only("max" if larger else "min", image, extreme, first, second)
    x, y = scope.curved(first, bent=True), scope.curved(second, bent=True)
    above, below = x.bounds.lo >= y.bounds.hi, y.bounds.lo >= x.bounds.hi
    yes, no = (above, below) if larger else (x.bounds.hi <= y.bounds.lo, y.bounds.hi <= x.bounds.lo)
    out = curved.kinked(curved.choose(yes, no, x, y), yes | no)
    out.bounds = image(*(Interval(*(jnp.broadcast_to(e, out.shape) for e in v.bounds)) for v in (x, y)))
    out.positive = (x.positive or y.positive) if larger else (x.positive and y.positive)
    return out


@rule("max")
def _max(scope: Scope, params: Params, first: Value, second: Value) -> Value:
    return _extreme(scope, first, second, True)


@rule("min")
def _min(scope: Scope, params: Params, first: Value, second: Value) -> Value:
    return _extreme(scope, first, second, False)


@rule("clamp")
def _clamp(scope: Scope, params: Params, low: Value, value: Value, high: Value) -> Value:
    return _extreme(scope, _extreme(scope, value, low, True), high, False)
