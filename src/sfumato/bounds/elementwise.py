r"""Functions of one number: themselves, and bounds of their image, slope and curvature on an interval.

For g continuous and piecewise smooth, :math:`g(b) - g(a) = s\,(b - a)` with s in the closed range of :math:`g'` on the
hull of a and b. Each entry of `FUNCTIONS` gives g, and on [lo, hi] a bound of its image, of that range, and, where Langevin may
go through g, of :math:`g''`.
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
    """A function g, and its image, slope and curvature on an interval; `positive`: g never returns zero or less."""

    exact: Callable[[Array], Array]
    image: Map
    slope: Map
    curvature: Map | None = None
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


def turning(g: Callable[[Array], Array], *points: float) -> Map:
    """Apply a smooth function whose only turning points are given to an interval."""

    def image(x: Interval) -> Interval:
        values = [g(x.lo), g(x.hi)]
        for at in points:
            inside = (x.lo <= at) & (x.hi >= at)
            values.append(jnp.where(inside, g(jnp.asarray(at)), values[0]))
        stacked = jnp.stack(jnp.broadcast_arrays(*values))
        return Interval(jnp.min(stacked, axis=0), jnp.max(stacked, axis=0))

    return image


def _kink(x: Interval) -> Interval:
    """Curvature of |x|: none on either side of zero."""
    inside = (x.lo < 0) & (x.hi > 0)
    return Interval(jnp.where(inside, -jnp.inf, 0.0), jnp.where(inside, jnp.inf, 0.0))


def _logistic_second(x: Array) -> Array:
    s = jax.nn.sigmoid(x)
    return s * jax.nn.sigmoid(-x) * (1 - 2 * s)


def _tanh_second(x: Array) -> Array:
    t = jnp.tanh(x)
    return -2 * t * (1 - t * t)


def _bell_second(x: Array) -> Array:
    return -2 * x * jnp.exp(-x * x) * (2 / np.sqrt(np.pi))


def _normal_second(x: Array) -> Array:
    return -x * jnp.exp(-0.5 * x * x) / np.sqrt(2 * np.pi)


def _mills_second(x: Array) -> Array:
    """Slope of the inverse Mills ratio, which is convex (Sampford 1953): increasing from -1 to 0."""
    m = mills(x)
    return jnp.clip(-m * (x + m), -1.0, 0.0)


def constant(value: float) -> Map:
    """The same number for every argument."""
    return lambda x: iv.point(jnp.full_like(x.lo, value))


def _times(factor: float, inner: Map) -> Map:
    return lambda x: iv.mul(iv.point(jnp.asarray(factor)), inner(x))


def _power_image(n: int) -> Map:
    """Image of x to a whole power."""
    if n == 0:
        return constant(1.0)
    if n < 0:
        return lambda x: iv.reciprocal(_power_image(-n)(x))

    def g(x: Array) -> Array:
        return lax.integer_pow(x, n)

    return increasing(g) if n % 2 else _valley(g, 0.0)


def integer_power(n: int) -> Function:
    """X to a whole power."""
    slope = _times(float(n), _power_image(n - 1)) if n else constant(0.0)
    curvature = _times(float(n * (n - 1)), _power_image(n - 2)) if n * (n - 1) else constant(0.0)
    return Function(lambda x: lax.integer_pow(x, n), _power_image(n), slope, curvature, n == 0)


def real_power(exponent: float) -> Function:
    """X to a fixed real power, for positive x."""
    if float(exponent).is_integer():
        return integer_power(int(exponent))

    def monotone(factor: float, power: float) -> Map:
        way = increasing if factor * power > 0 else decreasing
        return within(_positive, way(lambda x: factor * x**power))

    first, second = exponent, exponent * (exponent - 1)
    return Function(
        lambda x: x**exponent,
        monotone(1.0, exponent),
        monotone(first, exponent - 1),
        monotone(second, exponent - 2),
        True,
    )


_BELL, _ERF_TURNS = 2 / np.sqrt(np.pi), 0.5**0.5
_logistic_slopes = peaked(_logistic_slope, 0.25)

FUNCTIONS: dict[str, Function] = {
    "exp": Function(jnp.exp, increasing(jnp.exp), increasing(jnp.exp), increasing(jnp.exp), True),
    "exp2": Function(
        jnp.exp2,
        increasing(jnp.exp2),
        increasing(lambda x: np.log(2) * jnp.exp2(x)),
        increasing(lambda x: np.log(2) ** 2 * jnp.exp2(x)),
        True,
    ),
    "log": Function(
        jnp.log,
        within(_not_negative, increasing(jnp.log)),
        within(_positive, decreasing(lambda x: 1 / x)),
        within(_positive, increasing(lambda x: -1 / (x * x))),
    ),
    "log1p": Function(
        jnp.log1p,
        within(lambda x: x.lo >= -1, increasing(jnp.log1p)),
        within(lambda x: x.lo > -1, decreasing(lambda x: 1 / (1 + x))),
        within(lambda x: x.lo > -1, increasing(lambda x: -1 / (1 + x) ** 2)),
    ),
    "expm1": Function(jnp.expm1, increasing(jnp.expm1), increasing(jnp.exp), increasing(jnp.exp)),
    "logistic": Function(
        jax.nn.sigmoid,
        increasing(jax.nn.sigmoid),
        _logistic_slopes,
        turning(_logistic_second, -1.3169578969248166, 1.3169578969248166),
        True,
    ),
    "tanh": Function(
        jnp.tanh,
        increasing(jnp.tanh),
        peaked(_sech2, 1.0),
        turning(_tanh_second, -0.6584789484624083, 0.6584789484624083),
    ),
    "sqrt": Function(
        jnp.sqrt,
        within(_not_negative, increasing(jnp.sqrt)),
        within(_positive, decreasing(lambda x: 0.5 / jnp.sqrt(x))),
        within(_positive, increasing(lambda x: -0.25 * x**-1.5)),
    ),
    "cbrt": Function(
        jnp.cbrt, increasing(jnp.cbrt), within(_positive, decreasing(lambda x: 1 / (3 * jnp.cbrt(x) ** 2)))
    ),
    "rsqrt": Function(
        lax.rsqrt,
        within(_positive, decreasing(lax.rsqrt)),
        within(_positive, increasing(lambda x: -0.5 * x**-1.5)),
        within(_positive, decreasing(lambda x: 0.75 * x**-2.5)),
        True,
    ),
    "square": integer_power(2),
    "abs": Function(jnp.abs, _abs, _sign, _kink),
    "lgamma": Function(
        lax.lgamma,
        within(_positive, _lgamma),
        within(_positive, increasing(lax.digamma)),
        within(_positive, decreasing(_trigamma)),
    ),
    "digamma": Function(
        lax.digamma,
        within(_positive, increasing(lax.digamma)),
        within(_positive, decreasing(_trigamma)),
        within(_positive, increasing(lambda x: special.polygamma(2, x))),
    ),
    "erf": Function(lax.erf, increasing(lax.erf), peaked(_bell, _BELL), turning(_bell_second, -_ERF_TURNS, _ERF_TURNS)),
    "erfc": Function(
        lax.erfc,
        decreasing(lax.erfc),
        _times(-1.0, peaked(_bell, _BELL)),
        _times(-1.0, turning(_bell_second, -_ERF_TURNS, _ERF_TURNS)),
        True,
    ),
    "erf_inv": Function(
        lax.erf_inv,
        within(lambda x: (x.lo >= -1) & (x.hi <= 1), increasing(lax.erf_inv)),
        within(lambda x: (x.lo > -1) & (x.hi < 1), _valley(_erf_inv_slope, np.sqrt(np.pi) / 2)),
    ),
    "atan": Function(
        jnp.arctan,
        increasing(jnp.arctan),
        peaked(lambda x: 1 / (1 + x * x), 1.0),
        turning(lambda x: -2 * x / (1 + x * x) ** 2, -(3.0**-0.5), 3.0**-0.5),
    ),
    "asinh": Function(jnp.arcsinh, increasing(jnp.arcsinh), peaked(lambda x: 1 / jnp.sqrt(1 + x * x), 1.0)),
    "sinh": Function(jnp.sinh, increasing(jnp.sinh), _valley(jnp.cosh, 1.0), increasing(jnp.sinh)),
    "cosh": Function(jnp.cosh, _valley(jnp.cosh, 1.0), increasing(jnp.sinh), _valley(jnp.cosh, 1.0), True),
    "sin": Function(jnp.sin, _unit, _unit, _unit),
    "cos": Function(jnp.cos, _unit, _unit, _unit),
    "softplus": Function(
        jax.nn.softplus, increasing(jax.nn.softplus), increasing(jax.nn.sigmoid), _logistic_slopes, True
    ),
    "ndtr": Function(
        special.ndtr,
        increasing(special.ndtr),
        peaked(_normal, 1 / np.sqrt(2 * np.pi)),
        turning(_normal_second, -1.0, 1.0),
        True,
    ),
    "log_ndtr": Function(special.log_ndtr, increasing(_log_ndtr), decreasing(mills), increasing(_mills_second)),
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


class Jump(NamedTuple):
    """A function that jumps: itself, and its image; it has no slope."""

    exact: Callable[[Array], Array]
    image: Map


JUMPS: dict[str, Jump] = {
    "floor": Jump(jnp.floor, increasing(jnp.floor)),
    "ceil": Jump(jnp.ceil, increasing(jnp.ceil)),
    "round": Jump(lax.round, _round),
    "sign": Jump(jnp.sign, increasing(jnp.sign)),
    "trunc": Jump(jnp.trunc, increasing(jnp.trunc)),
}
