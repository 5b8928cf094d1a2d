r"""Functions of one number: their image and their slope on an interval.

For g continuous and piecewise smooth, :math:`g(b) - g(a) = s\,(b - a)` with s in the closed range of :math:`g'` on the
hull of a and b. Each entry of `FUNCTIONS` gives a bound of the image and of that range on [lo, hi].
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

from sfumato.bounds import interval as iv
from sfumato.bounds.interval import Array, Interval

Map = Callable[[Interval], Interval]


class Function(NamedTuple):
    """Image and slope of g on an interval; `positive`: g never returns zero or less."""

    image: Map
    slope: Map
    positive: bool = False


def increasing(g: Callable[[Array], Array]) -> Map:
    """Apply an increasing function to an interval."""
    return lambda x: Interval(g(x.lo), g(x.hi))


def decreasing(g: Callable[[Array], Array]) -> Map:
    """Apply a decreasing function to an interval."""
    return lambda x: Interval(g(x.hi), g(x.lo))


def peaked(g: Callable[[Array], Array], top: float, at: float = 0.0) -> Map:
    """Apply a function that rises to `top` and then falls to an interval."""

    def image(x: Interval) -> Interval:
        a, b = g(x.lo), g(x.hi)
        inside = (x.lo <= at) & (x.hi >= at)
        return Interval(jnp.minimum(a, b), jnp.where(inside, top, jnp.maximum(a, b)))

    return image


def within(domain: Callable[[Interval], Array], inner: Map) -> Map:
    """Give no bound at all where the argument may leave the domain of g."""

    def image(x: Interval) -> Interval:
        fine, out = domain(x), inner(x)
        return Interval(jnp.where(fine, out.lo, -jnp.inf), jnp.where(fine, out.hi, jnp.inf))

    return image


def _positive(x: Interval) -> Array:
    return x.lo > 0


def _not_negative(x: Interval) -> Array:
    return x.lo >= 0


def _sign(x: Interval) -> Interval:
    return Interval(jnp.sign(x.lo), jnp.sign(x.hi))


def _abs(x: Interval) -> Interval:
    a, b = jnp.abs(x.lo), jnp.abs(x.hi)
    inside = (x.lo <= 0) & (x.hi >= 0)
    return Interval(jnp.where(inside, 0.0, jnp.minimum(a, b)), jnp.maximum(a, b))


_LGAMMA_AT, _LGAMMA_LOW = 1.4616321449683623, -0.12148629053584961


def _lgamma(x: Interval) -> Interval:
    a, b = lax.lgamma(x.lo), lax.lgamma(x.hi)
    inside = (x.lo <= _LGAMMA_AT) & (x.hi >= _LGAMMA_AT)
    return Interval(jnp.where(inside, _LGAMMA_LOW, jnp.minimum(a, b)), jnp.maximum(a, b))


def _trigamma(x: Array) -> Array:
    return special.polygamma(1, x)


def _bell(x: Array) -> Array:
    return jnp.exp(-x * x) * (2 / np.sqrt(np.pi))


_log_ndtr = jax.jit(special.log_ndtr)
"""Compiled as a whole: its rule for derivatives would otherwise be traced also where a number is wanted at once."""


def mills(x: Array) -> Array:
    r"""Slope of :math:`\log\Phi`, that is :math:`\varphi(x)/\Phi(x)`: decreasing."""
    return jnp.exp(-0.5 * x * x - 0.5 * np.log(2 * np.pi) - special.log_ndtr(x))


def _normal(x: Array) -> Array:
    return jnp.exp(-0.5 * x * x) / np.sqrt(2 * np.pi)


def _sech2(x: Array) -> Array:
    return 4 * jax.nn.sigmoid(2 * x) * jax.nn.sigmoid(-2 * x)


def _logistic_slope(x: Array) -> Array:
    return jax.nn.sigmoid(x) * jax.nn.sigmoid(-x)


def _erf_inv_slope(x: Array) -> Array:
    return np.sqrt(np.pi) / 2 * jnp.exp(lax.erf_inv(x) ** 2)


def _valley(g: Callable[[Array], Array], low: float) -> Map:
    def image(x: Interval) -> Interval:
        a, b = g(x.lo), g(x.hi)
        inside = (x.lo <= 0) & (x.hi >= 0)
        return Interval(jnp.where(inside, low, jnp.minimum(a, b)), jnp.maximum(a, b))

    return image


def _unit(x: Interval) -> Interval:
    one = jnp.ones_like(x.lo)
    return Interval(-one, one)


def integer_power(n: int) -> Function:
    """X to a whole power."""
    if n == 0:
        return Function(lambda x: iv.point(jnp.ones_like(x.lo)), lambda x: iv.point(jnp.zeros_like(x.lo)), True)
    if n < 0:
        below = integer_power(-n)

        def slope(x: Interval) -> Interval:
            return iv.mul(iv.point(jnp.asarray(float(n))), iv.reciprocal(integer_power(1 - n).image(x)))

        return Function(lambda x: iv.reciprocal(below.image(x)), slope)
    if n % 2:
        image: Map = increasing(lambda x: lax.integer_pow(x, n))
        return Function(image, _scaled_even(n))

    def even(x: Interval) -> Interval:
        a, b = lax.integer_pow(x.lo, n), lax.integer_pow(x.hi, n)
        inside = (x.lo <= 0) & (x.hi >= 0)
        return Interval(jnp.where(inside, 0.0, jnp.minimum(a, b)), jnp.maximum(a, b))

    return Function(even, increasing(lambda x: n * lax.integer_pow(x, n - 1)))


def _scaled_even(n: int) -> Map:
    if n == 1:
        return lambda x: iv.point(jnp.ones_like(x.lo))
    below = integer_power(n - 1)
    return lambda x: iv.mul(iv.point(jnp.asarray(float(n))), below.image(x))


def real_power(exponent: float) -> Function:
    """X to a fixed real power, for positive x."""
    if float(exponent).is_integer():
        return integer_power(int(exponent))
    rising = increasing if exponent > 0 else decreasing
    slope_rising = increasing if exponent * (exponent - 1) > 0 else decreasing
    return Function(
        within(_positive, rising(lambda x: x**exponent)),
        within(_positive, slope_rising(lambda x: exponent * x ** (exponent - 1))),
        True,
    )


FUNCTIONS: dict[str, Function] = {
    "exp": Function(increasing(jnp.exp), increasing(jnp.exp), True),
    "exp2": Function(increasing(jnp.exp2), increasing(lambda x: np.log(2) * jnp.exp2(x)), True),
    "log": Function(within(_not_negative, increasing(jnp.log)), within(_positive, decreasing(lambda x: 1 / x))),
    "log1p": Function(
        within(lambda x: x.lo >= -1, increasing(jnp.log1p)),
        within(lambda x: x.lo > -1, decreasing(lambda x: 1 / (1 + x))),
    ),
    "expm1": Function(increasing(jnp.expm1), increasing(jnp.exp)),
    "logistic": Function(increasing(jax.nn.sigmoid), peaked(_logistic_slope, 0.25), True),
    "tanh": Function(increasing(jnp.tanh), peaked(_sech2, 1.0)),
    "sqrt": Function(
        within(_not_negative, increasing(jnp.sqrt)), within(_positive, decreasing(lambda x: 0.5 / jnp.sqrt(x)))
    ),
    "cbrt": Function(increasing(jnp.cbrt), within(_positive, decreasing(lambda x: 1 / (3 * jnp.cbrt(x) ** 2)))),
    "rsqrt": Function(
        within(_positive, decreasing(lax.rsqrt)), within(_positive, increasing(lambda x: -0.5 * x**-1.5)), True
    ),
    "square": integer_power(2),
    "abs": Function(_abs, _sign),
    "lgamma": Function(within(_positive, _lgamma), within(_positive, increasing(lax.digamma))),
    "digamma": Function(within(_positive, increasing(lax.digamma)), within(_positive, decreasing(_trigamma))),
    "erf": Function(increasing(lax.erf), peaked(_bell, 2 / np.sqrt(np.pi))),
    "erfc": Function(decreasing(lax.erfc), lambda x: iv.neg(peaked(_bell, 2 / np.sqrt(np.pi))(x)), True),
    "erf_inv": Function(
        within(lambda x: (x.lo >= -1) & (x.hi <= 1), increasing(lax.erf_inv)),
        within(lambda x: (x.lo > -1) & (x.hi < 1), _valley(_erf_inv_slope, np.sqrt(np.pi) / 2)),
    ),
    "atan": Function(increasing(jnp.arctan), peaked(lambda x: 1 / (1 + x * x), 1.0)),
    "asinh": Function(increasing(jnp.arcsinh), peaked(lambda x: 1 / jnp.sqrt(1 + x * x), 1.0)),
    "sinh": Function(increasing(jnp.sinh), _valley(jnp.cosh, 1.0)),
    "cosh": Function(_valley(jnp.cosh, 1.0), increasing(jnp.sinh), True),
    "sin": Function(_unit, _unit),
    "cos": Function(_unit, _unit),
    "softplus": Function(increasing(jax.nn.softplus), increasing(jax.nn.sigmoid), True),
    "ndtr": Function(increasing(special.ndtr), peaked(_normal, 1 / np.sqrt(2 * np.pi)), True),
    "log_ndtr": Function(increasing(_log_ndtr), decreasing(mills)),
}


def _round(x: Interval) -> Interval:
    """To the nearest whole number; of two that are as near, either: operations differ in which they take."""
    return Interval(jnp.ceil(x.lo - 0.5), jnp.floor(x.hi + 0.5))


def remainder_image(by: np.ndarray | float, whole: bool) -> Map:
    """Image of the rest of a division (C's fmod: it has the sign of the number); of whole numbers it is less by one at least."""
    limit = np.abs(np.asarray(by, dtype=float)) - (1 if whole else 0)

    def image(x: Interval) -> Interval:
        high = jnp.where(x.hi > 0, jnp.minimum(limit, x.hi), 0.0)
        return Interval(jnp.where(x.lo < 0, jnp.maximum(-limit, x.lo), 0.0), high)

    return image


STEPS: dict[str, Map] = {
    "floor": increasing(jnp.floor),
    "ceil": increasing(jnp.ceil),
    "round": _round,
    "sign": _sign,
}
"""Functions that jump: an image, and no slope."""
