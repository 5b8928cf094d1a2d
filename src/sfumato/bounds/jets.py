r"""Numbers with proven first and second derivatives in a few linear predictors.

A `Jet` stands for a number of the model's program, for all records of a cell and all parameters of a hull at once: an
interval around its value P, intervals around :math:`\partial P/\partial L_j` and around
:math:`\partial^2 P/\partial L_j\partial L_k`, where the predictors :math:`L_j` are the linear functions of the parameter
through which the program sees it (`predictors`). Derivatives go through the chain rule,

.. math:: (g\circ P)_{jk} = g''(P)\,P_j P_k + g'(P)\,P_{jk},

with proven images of :math:`g'` and :math:`g''` on the interval of P. A function with a kink has no second derivative:
where an argument may cross one, the derivatives are unbounded, and the pair is not asked.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special

from sfumato.bounds import interval as iv
from sfumato.bounds.elementwise import FUNCTIONS, Map, increasing, integer_power, mills, peaked, real_power
from sfumato.bounds.interval import Array, Interval


@dataclass(frozen=True, eq=False)
class Jet:
    """Intervals around a number, its first (last axis: predictors) and second derivatives (last two axes)."""

    value: Interval
    first: Interval
    second: Interval
    log: "Jet | None" = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return tuple(np.shape(self.value.lo))

    @property
    def size(self) -> int:
        """Number of predictors."""
        return int(self.first.lo.shape[-1])


def _jet(parts: Iterable[Interval], log: "Jet | None" = None) -> Jet:
    value, first, second = parts
    return Jet(value, first, second, log)


def still(value: Interval, size: int) -> Jet:
    """A number that does not look at the parameter."""
    shape = np.shape(value.lo)
    return Jet(value, iv.point(jnp.zeros((*shape, size))), iv.point(jnp.zeros((*shape, size, size))))


def add(x: Jet, y: Jet) -> Jet:
    """Sum."""
    parts = ((x.value, y.value), (x.first, y.first), (x.second, y.second))
    ranks = (0, 1, 2)
    return _jet(iv.add(*_same_rank(a, b, rank)) for (a, b), rank in zip(parts, ranks, strict=True))


def negate(x: Jet) -> Jet:
    """Negation."""
    return Jet(iv.neg(x.value), iv.neg(x.first), iv.neg(x.second))


def multiply(x: Jet, y: Jet) -> Jet:
    """Product, by Leibniz' rule."""
    if x is y:
        return power(x, 2.0)
    (xv, yv), (xf, yf), (xs, ys) = (
        _same_rank(a, b, r) for r, (a, b) in enumerate(((x.value, y.value), (x.first, y.first), (x.second, y.second)))
    )
    first = iv.add(iv.mul(_grow(xv, 1), yf), iv.mul(_grow(yv, 1), xf))
    cross = iv.add(iv.mul(_column(xf), _row(yf)), iv.mul(_column(yf), _row(xf)))
    second = iv.add(iv.add(iv.mul(_grow(xv, 2), ys), iv.mul(_grow(yv, 2), xs)), cross)
    log = add(x.log, y.log) if x.log is not None and y.log is not None else None
    return Jet(iv.mul(xv, yv), first, second, log)


def apply(x: Jet, image: Map, slope: Map, curvature: Map) -> Jet:
    """A function of one number, by the chain rule."""
    g1, g2 = slope(x.value), curvature(x.value)
    outer = iv.mul(_column(x.first), _row(x.first))
    own = iv.square(x.first)
    diagonal = np.eye(x.size, dtype=bool)
    outer = Interval(*(jnp.where(diagonal, _spread(o), e) for o, e in zip(own, outer, strict=True)))
    second = iv.add(iv.mul(_grow(g2, 2), outer), iv.mul(_grow(g1, 2), x.second))
    return Jet(image(x.value), iv.mul(_grow(g1, 1), x.first), second)


def exponential(x: Jet) -> Jet:
    """exp, which remembers its logarithm."""
    return replace(apply(x, *_maps("exp")), log=x)


def logarithm(x: Jet) -> Jet:
    """log; that of an exponential is known."""
    return x.log if x.log is not None else apply(x, *_maps("log"))


def power(x: Jet, exponent: float) -> Jet:
    """A fixed power."""
    if exponent == 1.0:
        return x
    if x.log is not None:
        by = jnp.full((), exponent)
        return exponential(multiply(still(iv.point(by), x.size), x.log))
    function = real_power(exponent)
    if float(exponent).is_integer():
        n = int(exponent)
        twice = integer_power(n - 2)
        factor = iv.point(jnp.asarray(float(n * (n - 1))))
        return apply(x, function.image, function.slope, lambda v: iv.mul(factor, twice.image(v)))
    # on the positive half line the second derivative of a power is monotone
    second = real_power(exponent - 1.0)
    factor = iv.point(jnp.asarray(exponent))
    return apply(x, function.image, function.slope, lambda v: iv.mul(factor, second.slope(v)))


def reciprocal(x: Jet) -> Jet:
    """1/x."""
    return power(x, -1.0)


def largest(x: Jet, y: Jet) -> Jet:
    """max(x, y): continuous, so its slope is one of both; a second derivative only where it is known which."""
    x, y = _broadcast(x, y)
    value = Interval(jnp.maximum(x.value.lo, y.value.lo), jnp.maximum(x.value.hi, y.value.hi))
    return replace(_kinked(x.value.lo >= y.value.hi, y.value.lo >= x.value.hi, x, y), value=value)


def absolute(x: Jet) -> Jet:
    """|x|: the same with x and its negative."""
    return replace(_kinked(x.value.lo >= 0, x.value.hi <= 0, x, negate(x)), value=FUNCTIONS["abs"].image(x.value))


def _kinked(take_x: Array, take_y: Array, x: Jet, y: Jet) -> Jet:
    sure = _choose(take_x, take_y, x, y)
    either = iv.hull(x.first, y.first)
    known = (take_x | take_y)[..., None]
    first = Interval(*(jnp.where(known, a, b) for a, b in zip(sure.first, either, strict=True)))
    return replace(sure, first=first)


def choose(yes: Array, no: Array, free: bool, x: Jet, y: Jet) -> Jet:
    """One number where a condition holds, another where not; if it may do either, one of both if it is `free`.

    A condition that never looks at the parameter is the same at all parameters, so a record's number is one of the two.
    """
    x, y = _broadcast(x, y)
    sure_x, sure_y = yes & ~no, no & ~yes
    out = _choose(sure_x, sure_y, x, y)
    if not free:
        return out
    either = _jet(iv.hull(a, b) for a, b in ((x.value, y.value), (x.first, y.first), (x.second, y.second)))
    known = sure_x | sure_y
    return _choose(known, ~known, out, either)


def _choose(take_x: Array, take_y: Array, x: Jet, y: Jet) -> Jet:
    def part(a: Interval, b: Interval, rank: int) -> Interval:
        one, other = (jnp.reshape(t, (*np.shape(t), *(1,) * rank)) for t in (take_x, take_y))
        lo = jnp.where(one, a.lo, jnp.where(other, b.lo, -jnp.inf))
        return Interval(lo, jnp.where(one, a.hi, jnp.where(other, b.hi, jnp.inf)))

    return Jet(part(x.value, y.value, 0), part(x.first, y.first, 1), part(x.second, y.second, 2))


def logsumexp(x: Jet) -> Jet:
    r"""Over the last axis: slopes are softmax weights p, curvature :math:`\mathrm{diag}(p) - pp^\top`."""
    low, high = x.value
    others = ~np.eye(low.shape[-1], dtype=bool)

    def rest(end: Array) -> Array:
        return special.logsumexp(jnp.where(others, end[..., None, :], -jnp.inf), axis=-1)

    p = Interval(jax.nn.sigmoid(low - rest(high)), jax.nn.sigmoid(high - rest(low)))
    total = Interval(special.logsumexp(low, axis=-1), special.logsumexp(high, axis=-1))
    first = _sum(iv.mul(_grow(p, 1), x.first), -2)
    squares = iv.mul(_column(x.first), _row(x.first))
    second = _sum(iv.add(iv.mul(_grow(p, 2), x.second), iv.mul(_grow(p, 2), squares)), -3)
    second = iv.sub(second, iv.mul(_column(first), _row(first)))
    return Jet(total, first, second)


# -- shapes -----------------------------------------------------------------------------------------------------------


def move(how: Callable[..., Any], *jets: Jet) -> Any:
    """Move entries about: every part alike."""
    logs = None
    if len(jets) == 1 and jets[0].log is not None:
        logs = move(how, jets[0].log)
    ends = []
    for rank, name in enumerate(("value", "first", "second")):
        over = how
        for _ in range(rank):
            over = jax.vmap(over, in_axes=-1, out_axes=-1)
        ends.append([over(*(getattr(j, name)[end] for j in jets)) for end in (0, 1)])
    if isinstance(ends[0][0], list | tuple):
        count = len(ends[0][0])
        parts = logs if logs is not None else [None] * count
        return [_jet((Interval(lo[i], hi[i]) for lo, hi in ends), parts[i]) for i in range(count)]
    return _jet((Interval(lo, hi) for lo, hi in ends), logs)


def total(x: Jet, axes: tuple[int, ...]) -> Jet:
    """Sum over axes."""
    axes = tuple(a % len(x.shape) for a in axes)
    return _jet(Interval(*(jnp.sum(end, axis=axes) for end in part)) for part in (x.value, x.first, x.second))


def _broadcast(x: Jet, y: Jet) -> tuple[Jet, Jet]:
    shape = np.broadcast_shapes(x.shape, y.shape)

    def grow(j: Jet) -> Jet:
        tails = ((), (j.size,), (j.size, j.size))
        parts = (j.value, j.first, j.second)
        own = [
            Interval(*(jnp.broadcast_to(_lead(e, len(shape), len(t)), (*shape, *t)) for e in part))
            for part, t in zip(parts, tails, strict=True)
        ]
        return _jet(own)

    return grow(x), grow(y)


def _lead(array: Array, rank: int, tail: int) -> Array:
    """Insert axes in front until there are `rank` of them before the tail."""
    missing = rank + tail - array.ndim
    return jnp.reshape(array, (*(1,) * missing, *array.shape))


def _same_rank(x: Interval, y: Interval, tail: int) -> tuple[Interval, Interval]:
    rank = max(np.ndim(x.lo), np.ndim(y.lo)) - tail

    def grow(i: Interval) -> Interval:
        if iv.is_point(i):
            return iv.point(_lead(jnp.asarray(i.lo), rank, tail))
        return Interval(*(_lead(jnp.asarray(e), rank, tail) for e in i))

    return grow(x), grow(y)


def _map_ends(x: Interval, f: Callable[[Array], Array]) -> Interval:
    return iv.point(f(x.lo)) if iv.is_point(x) else Interval(f(x.lo), f(x.hi))


def _grow(x: Interval, rank: int) -> Interval:
    return _map_ends(x, lambda e: jnp.reshape(e, (*np.shape(e), *(1,) * rank)))


def _column(x: Interval) -> Interval:
    return _map_ends(x, lambda e: e[..., :, None])


def _row(x: Interval) -> Interval:
    return _map_ends(x, lambda e: e[..., None, :])


def _spread(x: Array) -> Array:
    return x[..., :, None]


def _sum(x: Interval, axis: int) -> Interval:
    return Interval(jnp.sum(x.lo, axis=axis), jnp.sum(x.hi, axis=axis))


# -- second derivatives of functions of one number ----------------------------------------------------------------------


def turning(g: Callable[[Array], Array], *points: float) -> Map:
    """Image of a smooth function whose only turning points are given."""

    def image(x: Interval) -> Interval:
        values = [g(x.lo), g(x.hi)]
        for at in points:
            inside = (x.lo <= at) & (x.hi >= at)
            values.append(jnp.where(inside, g(jnp.asarray(at)), values[0]))
        stacked = jnp.stack(jnp.broadcast_arrays(*values))
        return Interval(jnp.min(stacked, axis=0), jnp.max(stacked, axis=0))

    return image


def _on_positive(inner: Map) -> Map:
    def image(x: Interval) -> Interval:
        out = inner(x)
        return Interval(jnp.where(x.lo > 0, out.lo, -jnp.inf), jnp.where(x.lo > 0, out.hi, jnp.inf))

    return image


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


CURVATURE: dict[str, Map] = {
    "exp": increasing(jnp.exp),
    "expm1": increasing(jnp.exp),
    "log": _on_positive(increasing(lambda x: -1 / (x * x))),
    "log1p": lambda x: _on_positive(increasing(lambda v: -1 / (v * v)))(Interval(1 + x.lo, 1 + x.hi)),
    "logistic": turning(_logistic_second, -1.3169578969248166, 1.3169578969248166),
    "tanh": turning(_tanh_second, -0.6584789484624083, 0.6584789484624083),
    "sqrt": _on_positive(increasing(lambda x: -0.25 * x**-1.5)),
    "rsqrt": _on_positive(lambda x: Interval(0.75 * x.hi**-2.5, 0.75 * x.lo**-2.5)),
    "lgamma": _on_positive(lambda x: Interval(special.polygamma(1, x.hi), special.polygamma(1, x.lo))),
    "digamma": _on_positive(increasing(lambda x: special.polygamma(2, x))),
    "erf": turning(_bell_second, -(0.5**0.5), 0.5**0.5),
    "erfc": lambda x: iv.neg(turning(_bell_second, -(0.5**0.5), 0.5**0.5)(x)),
    "softplus": peaked(lambda x: jax.nn.sigmoid(x) * jax.nn.sigmoid(-x), 0.25),
    "ndtr": turning(_normal_second, -1.0, 1.0),
    "log_ndtr": increasing(_mills_second),
    "atan": turning(lambda x: -2 * x / (1 + x * x) ** 2, -(3.0**-0.5), 3.0**-0.5),
    "sinh": increasing(jnp.sinh),
    "cosh": FUNCTIONS["cosh"].image,
}
"""Proven images of second derivatives."""


def _maps(name: str) -> tuple[Map, Map, Map]:
    return FUNCTIONS[name].image, FUNCTIONS[name].slope, CURVATURE[name]


def function(name: str) -> Callable[[Jet], Jet] | None:
    """The function of one number of that name, if its second derivative is known."""
    special_ones: dict[str, Callable[[Jet], Jet]] = {
        "exp": exponential,
        "log": logarithm,
        "abs": absolute,
        "neg": negate,
        "square": lambda x: power(x, 2.0),
        "sqrt": lambda x: power(x, 0.5) if x.log is not None else apply(x, *_maps("sqrt")),
    }
    if name in special_ones:
        return special_ones[name]
    return (lambda x: apply(x, *_maps(name))) if name in CURVATURE else None
