"""Interval arithmetic on pairs of JAX arrays.

An infinite end means "no bound", so zero times infinity is zero here: a factor that is zero for every record stays
zero whatever the other factor does. NaN is kept and turned into an infinite width at the very end.
"""

from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp

Array: TypeAlias = Any


class Interval(NamedTuple):
    """Lower and upper ends, arrays of one shape."""

    lo: Array
    hi: Array


def point(value: Array) -> Interval:
    """Interval of one number."""
    return Interval(value, value)


def is_point(x: Interval) -> bool:
    """Whether both ends are the same object, which saves half of the arithmetic."""
    return x.lo is x.hi


def add(x: Interval, y: Interval) -> Interval:
    """Sum."""
    if is_point(x) and is_point(y):
        return point(x.lo + y.lo)
    return Interval(x.lo + y.lo, x.hi + y.hi)


def neg(x: Interval) -> Interval:
    """Negation."""
    if is_point(x):
        return point(-x.lo)
    return Interval(-x.hi, -x.lo)


def sub(x: Interval, y: Interval) -> Interval:
    """Difference of two unrelated quantities."""
    return add(x, neg(y))


def times(x: Array, y: Array) -> Array:
    """Product with zero times infinity equal to zero."""
    return jnp.where((x == 0) | (y == 0), jnp.zeros((), jnp.result_type(x, y)), x * y)


def mul(x: Interval, y: Interval) -> Interval:
    """Product of two unrelated quantities."""
    if is_point(x) and is_point(y):
        return point(times(x.lo, y.lo))
    if is_point(x) or is_point(y):
        a, b = times(x.lo, y.lo), times(x.hi, y.hi)
        return Interval(jnp.minimum(a, b), jnp.maximum(a, b))
    a, b, c, d = times(x.lo, y.lo), times(x.lo, y.hi), times(x.hi, y.lo), times(x.hi, y.hi)
    low = jnp.minimum(jnp.minimum(a, b), jnp.minimum(c, d))
    return Interval(low, jnp.maximum(jnp.maximum(a, b), jnp.maximum(c, d)))


def reciprocal(x: Interval) -> Interval:
    """1/x; unbounded when x may be zero."""
    apart = (x.lo > 0) | (x.hi < 0)
    return Interval(jnp.where(apart, 1 / x.hi, -jnp.inf), jnp.where(apart, 1 / x.lo, jnp.inf))


def square(x: Interval) -> Interval:
    """X squared, which is never negative."""
    a, b = x.lo * x.lo, x.hi * x.hi
    inside = (x.lo <= 0) & (x.hi >= 0)
    return Interval(jnp.where(inside, 0.0, jnp.minimum(a, b)), jnp.maximum(a, b))


def hull(x: Interval, y: Interval) -> Interval:
    """Smallest interval around both."""
    return Interval(jnp.minimum(x.lo, y.lo), jnp.maximum(x.hi, y.hi))


def meet(x: Interval, y: Interval) -> Interval:
    """Intersection of two bounds of the same quantity; an end that is NaN is ignored."""
    return Interval(jnp.fmax(x.lo, y.lo), jnp.fmin(x.hi, y.hi))


def magnitude(x: Interval) -> Array:
    """Largest absolute value."""
    return jnp.maximum(jnp.abs(x.lo), jnp.abs(x.hi))


def centre(x: Interval) -> Array:
    """Midpoint."""
    return x.lo if is_point(x) else (x.lo + x.hi) / 2


def radius(x: Interval) -> Array:
    """Half the width."""
    return jnp.zeros_like(x.lo) if is_point(x) else (x.hi - x.lo) / 2
