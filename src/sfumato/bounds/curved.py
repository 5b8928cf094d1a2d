r"""Calculus of numbers that are not affine: how an interval, its slopes and its second derivatives go through an operation.

Slopes and derivatives follow the same rules (Leibniz', the chain rule), with intervals in place of numbers:

.. math:: (PQ)_{jk} = P\,Q_{jk} + Q\,P_{jk} + P_jQ_k + Q_jP_k, \qquad
          (g\circ P)_{jk} = g''(P)\,P_j P_k + g'(P)\,P_{jk} .

Second derivatives are carried where `Scope.twice` asks for them, and are None elsewhere. A function with a kink has none: where
an argument may cross one, they are unbounded.
"""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special

from sfumato.bounds import interval as iv
from sfumato.bounds.elementwise import Map
from sfumato.bounds.interval import Array, Interval
from sfumato.bounds.values import Curved, align_slopes


def grown(x: Interval, axes: int) -> Interval:
    """Add last axes, to meet slopes (one) or second derivatives (two)."""
    return _both(x, lambda end: jnp.reshape(end, (*np.shape(end), *(1,) * axes)))


def _both(x: Interval, change: Callable[[Array], Array]) -> Interval:
    return iv.point(change(x.lo)) if iv.is_point(x) else Interval(change(x.lo), change(x.hi))


def _spread(x: Interval, shape: tuple[int, ...], axes: int) -> Interval:
    """Broadcast slopes to the shape of a result."""
    full = (*shape, *x.lo.shape[x.lo.ndim - axes :])
    return x if x.lo.shape == full else _both(x, lambda end: jnp.broadcast_to(end, full))


def outer(x: Interval, y: Interval) -> Interval:
    """Products of slopes, every one with every other."""
    return iv.mul(_both(x, lambda e: e[..., :, None]), _both(y, lambda e: e[..., None, :]))


def outer_square(x: Interval) -> Interval:
    """The same with itself: squares on the diagonal are not negative."""
    own, diagonal = iv.square(x), np.eye(x.lo.shape[-1], dtype=bool)
    pairs = zip(own, outer(x, x), strict=True)
    return Interval(*(jnp.where(diagonal, o[..., :, None], e) for o, e in pairs))


def plus(x: Curved, y: Curved) -> Curved:
    """Sum."""
    slopes = iv.add(*align_slopes(x.slopes, y.slopes))
    second = None
    if x.second is not None and y.second is not None:
        second = iv.add(*align_slopes(x.second, y.second, axes=2))
    return Curved(iv.add(x.bounds, y.bounds), slopes, second, x.free and y.free, x.positive and y.positive)


def negative(x: Curved) -> Curved:
    """Negation."""
    return Curved(iv.neg(x.bounds), iv.neg(x.slopes), None if x.second is None else iv.neg(x.second), x.free)


def times(x: Curved, y: Curved) -> Curved:
    r"""Product. Between a pair, :math:`a'b' - ab = \bar a\,(b'-b) + \bar b\,(a'-a)` with the bar for the mean of both."""
    shape = np.broadcast_shapes(x.shape, y.shape)
    slopes = _leibniz(x, y, 1, *align_slopes(x.slopes, y.slopes))
    second = None
    if x.second is not None and y.second is not None:
        second = _leibniz(x, y, 2, *align_slopes(x.second, y.second, axes=2))
        if not (x.free or y.free):
            sx, sy = align_slopes(x.slopes, y.slopes)
            second = iv.add(*align_slopes(second, iv.add(outer(sx, sy), outer(sy, sx)), axes=2))
        second = _spread(second, shape, 2)
    bounds = iv.mul(x.bounds, y.bounds)
    return Curved(bounds, _spread(slopes, shape, 1), second, x.free and y.free, x.positive and y.positive)


def _leibniz(x: Curved, y: Curved, axes: int, of_x: Interval, of_y: Interval) -> Interval:
    parts = []
    if not x.free:
        parts.append(iv.mul(grown(y.bounds, axes), of_x))
    if not y.free:
        parts.append(iv.mul(grown(x.bounds, axes), of_y))
    return iv.add(*parts) if len(parts) == 2 else parts[0] if parts else of_x


def compose(x: Curved, image: Map, slope: Map, curvature: Map | None) -> Curved:
    """A function of one number, by the chain rule."""
    first, second = slope(x.bounds), None
    if x.second is not None and curvature is not None:
        bend = iv.mul(grown(curvature(x.bounds), 2), outer_square(x.slopes))
        second = iv.add(*align_slopes(bend, iv.mul(grown(first, 2), x.second), axes=2))
    return Curved(image(x.bounds), iv.mul(grown(first, 1), x.slopes), second, x.free)


def pick(yes: Array, no: Array, chosen: Interval, otherwise: Interval) -> Interval:
    """Take one of two intervals where it is certain which, their hull elsewhere."""
    either = iv.hull(chosen, otherwise)
    low = jnp.where(yes, chosen.lo, jnp.where(no, otherwise.lo, either.lo))
    return Interval(low, jnp.where(yes, chosen.hi, jnp.where(no, otherwise.hi, either.hi)))


def choose(yes: Array, no: Array, chosen: Curved, otherwise: Curved) -> Curved:
    """One of two numbers, each part in the hull where it is not certain which."""
    shape = np.broadcast_shapes(np.shape(yes), chosen.shape, otherwise.shape)
    yes, no = (jnp.broadcast_to(t, shape) for t in (yes, no))

    def part(x: Interval, y: Interval, axes: int) -> Interval:
        x, y = (_spread(s, shape, axes) for s in (align_slopes(x, y, axes=axes) if axes else (x, y)))
        mask = [jnp.reshape(t, (*shape, *(1,) * axes)) for t in (yes, no)]
        return pick(mask[0], mask[1], x, y)

    second = None
    if chosen.second is not None and otherwise.second is not None:
        second = part(chosen.second, otherwise.second, 2)
    bounds, slopes = part(chosen.bounds, otherwise.bounds, 0), part(chosen.slopes, otherwise.slopes, 1)
    free, positive = chosen.free and otherwise.free, chosen.positive and otherwise.positive
    return Curved(bounds, slopes, second, free, positive)


def kinked(x: Curved, smooth: Array) -> Curved:
    """The same number, without second derivatives along what moves it where it is not `smooth`."""
    if x.second is None or x.free:
        return x
    rough = jnp.where(jnp.broadcast_to(smooth, x.shape), 0.0, jnp.inf)
    bend = iv.mul(grown(Interval(-rough, rough), 2), outer_square(x.slopes))
    second = iv.add(*align_slopes(x.second, bend, axes=2))
    return Curved(x.bounds, x.slopes, second, x.free, x.positive)


def hull_over(parts: Iterable[Curved], possible: Array) -> Curved:
    """The hull of those numbers that are possible: which one it is depends on the record alone."""
    several = list(parts)

    def over(members: list[Interval]) -> Interval:
        lows, highs = (jnp.stack([m[end] for m in members], axis=-1) for end in (0, 1))
        return Interval(
            jnp.min(jnp.where(possible, lows, jnp.inf), axis=-1), jnp.max(jnp.where(possible, highs, -jnp.inf), axis=-1)
        )

    second = None
    if all(p.second is not None for p in several):
        second = over(align_slopes(*(p.second for p in several if p.second is not None), axes=2))
    bounds, slopes = over([p.bounds for p in several]), over(align_slopes(*(p.slopes for p in several)))
    return Curved(bounds, slopes, second, all(p.free for p in several), all(p.positive for p in several))


def total(x: Curved, axes: tuple[int, ...]) -> Curved:
    """Sum over axes."""
    bounds, slopes = (_both(part, lambda e: jnp.sum(e, axis=axes)) for part in (x.bounds, x.slopes))
    second = None if x.second is None else _both(x.second, lambda e: jnp.sum(e, axis=axes))
    return Curved(bounds, slopes, second, x.free, x.positive)


def move(apply: Callable[..., Any], values: list[Curved]) -> Any:
    """Move entries about: every part alike. An operation of several results gives a list."""
    parts = [[v.bounds for v in values], align_slopes(*(v.slopes for v in values))]
    seconds = [v.second for v in values if v.second is not None]
    if seconds:
        parts.append(align_slopes(*seconds, axes=2))
    moved = [_moved(apply, part, axes) for axes, part in enumerate(parts)]
    free, positive = all(v.free for v in values), all(v.positive for v in values)
    several = isinstance(moved[0].lo, list | tuple)
    outs = [
        Curved(each[0], each[1], each[2] if seconds else None, free, positive)
        for each in (_split(moved) if several else [moved])
    ]
    return outs if several else outs[0]


def _split(moved: list[Interval]) -> list[list[Interval]]:
    each = [list(zip(part.lo, part.hi, strict=True)) for part in moved]
    return [[Interval(lo, hi) for lo, hi in parts] for parts in zip(*each, strict=True)]


def _moved(apply: Callable[..., Any], part: list[Interval], axes: int) -> Interval:
    for _ in range(axes):
        apply = jax.vmap(apply, in_axes=-1, out_axes=-1)
    low = apply(*(p.lo for p in part))
    return Interval(low, low if all(iv.is_point(p) for p in part) else apply(*(p.hi for p in part)))


def logsumexp(x: Curved) -> Curved:
    r"""Over the last axis. Slopes are softmax weights p, which are not negative and sum to one.

    So :math:`\sum_c p_c S_c = S_k + \sum_c p_c (S_c - S_k)` for every reference k; take the best k for each end. Curvature is
    :math:`\sum_c p_c (P_{c,jk} + P_{c,j}P_{c,k}) - P_jP_k`.
    """
    low, high = x.bounds
    bounds = Interval(special.logsumexp(low, axis=-1), special.logsumexp(high, axis=-1))
    weights = _softmax_bounds(low, high)
    if iv.is_point(x.slopes):
        slopes = x.slopes.lo
        shifts = slopes[..., None, :, :] - slopes[..., :, None, :]  # reference, class, column
        mixed = iv.mul(Interval(*(w[..., None, :, None] for w in weights)), iv.point(shifts))
        ends = Interval(*(jnp.sum(end, axis=-2) for end in mixed))
        lower, upper = jnp.max(slopes + ends.lo, axis=-2), jnp.min(slopes + ends.hi, axis=-2)
    else:
        mixed = iv.mul(grown(weights, 1), x.slopes)
        lower = jnp.maximum(jnp.sum(mixed.lo, axis=-2), jnp.min(x.slopes.lo, axis=-2))
        upper = jnp.minimum(jnp.sum(mixed.hi, axis=-2), jnp.max(x.slopes.hi, axis=-2))
    out = Curved(bounds, Interval(lower, upper), None, x.free)
    if x.second is not None:
        inner = iv.add(*align_slopes(x.second, outer_square(x.slopes), axes=2))
        mean = _both(iv.mul(grown(weights, 2), inner), lambda e: jnp.sum(e, axis=-3))
        out.second = iv.sub(mean, outer_square(out.slopes))
    return out


def _softmax_bounds(low: Array, high: Array) -> Interval:
    """Softmax weights: least when the own entry is low and all others are high."""
    others = ~np.eye(low.shape[-1], dtype=bool)

    def rest(end: Array) -> Array:
        return special.logsumexp(jnp.where(others, end[..., None, :], -jnp.inf), axis=-1)

    return Interval(jax.nn.sigmoid(low - rest(high)), jax.nn.sigmoid(high - rest(low)))
