r"""The set in which a record's numbers live, and the exact range of linear functions on it.

A record is written as a vector of *atoms*: its own entries, and functions of them that involve no parameter (a
product of two columns, the logarithm of a column, the indicator of a category). The set of all atoms is a product of
blocks: intervals, convex bodies, simplices of indicators. Its support function is

.. math:: h(q) = \sup_a q^\top a = \sum_{boxes}(q_i m_i + |q_i| r_i) + \sum_{bodies} h_b(q_b)
          + \sum_{simplices}\max_c q_c .

When a linear function :math:`u^\top a` is known to lie in a cell :math:`[t_1, t_2]`, weak duality sharpens it: for
every multiplier :math:`\lambda`

.. math:: \sup\{q^\top a : t_1\le u^\top a\le t_2\} \le h(q-\lambda u) + \max(\lambda t_1, \lambda t_2),

so the least value over a set of candidates is a bound whatever the candidates are. On boxes the best multiplier is a
breakpoint :math:`q_i/u_i` or zero. On a ball it is :math:`\lambda_0 + \tan(\varphi)\lVert q_\perp\rVert/\lVert u\rVert`, where
:math:`\sin\varphi` is one of the ends of the cell over :math:`\lVert u\rVert` times the radius, negated.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from sfumato.bounds.interval import Array, Interval
from sfumato.domain import TOLERANCE, Domain

LONGEST = 1.0 + 2 * TOLERANCE
"""A record in a ball may be longer than the radius by a relative 1e-6, and is not cut."""
_ANGLES = np.tan(np.linspace(-1.45, 1.45, 11))
_ROUNDING = 1e-15
_MAX_BREAKPOINTS = 24  # beyond, the sum over coordinates is so smooth that the angles are as good


class Axis(NamedTuple):
    """A linear function of the atoms that is known to lie in a cell."""

    coefficients: Array
    cell: Interval


class Box(NamedTuple):
    """Atoms `start` to `start + size` lie in intervals; `still`: plain numbers, the same in every cell."""

    start: int
    size: int
    bounds: Interval
    still: bool


class Body(NamedTuple):
    """Atoms `start` to `start + size`, written in `shape`, lie in a set known by its support function; `radius`: of a ball."""

    start: int
    size: int
    shape: tuple[int, ...]
    support: Callable[[Array], Array]
    nearest: Callable[[Array], Array]
    radius: float | None


class Simplex(NamedTuple):
    """Atoms `start` to `start + size` are indicators of which exactly one is one; `possible` masks them."""

    start: int
    size: int
    possible: Array


@dataclass
class Atoms:
    """A growing product of blocks. `known` holds the ranges on the whole domain, as NumPy arrays."""

    size: int = 0
    boxes: list["Box"] = field(default_factory=list)
    bodies: list[Body] = field(default_factory=list)
    simplices: list[Simplex] = field(default_factory=list)
    known: list[tuple[float, float]] = field(default_factory=list)
    axes: list[Axis] = field(default_factory=list)
    may_be_empty: bool = False  # several cuts may contradict each other
    empty: Array = False

    def add_box(self, bounds: Interval, known: Interval) -> np.ndarray:
        """Add one atom per entry of `bounds` (flat); returns their positions."""
        count = int(np.size(known.lo))
        where = np.arange(self.size, self.size + count)
        still = isinstance(bounds.lo, np.ndarray) and isinstance(bounds.hi, np.ndarray)
        shape = np.reshape if still else jnp.reshape
        ends = Interval(shape(bounds.lo, (count,)), shape(bounds.hi, (count,)))
        self.boxes.append(Box(self.size, count, ends, still))
        self._grow(known, count)
        return where

    def add_column(self, domain: Domain, bounds: Interval) -> np.ndarray:
        """Add the numbers of one column, flat, of which `bounds` are known in this cell; returns their positions."""
        known = Interval(domain.lo.reshape(-1), domain.hi.reshape(-1))
        if domain.separable:
            return self.add_box(bounds, known)
        size, radius, longer = domain.size, domain.ball_radius, 1.0
        if radius is not None:
            radius, longer = radius * LONGEST, LONGEST
            known = Interval(known.lo * LONGEST, known.hi * LONGEST)
        support = _longer(domain.support, longer)
        self.bodies.append(Body(self.size, size, domain.shape, support, domain.clamp, radius))
        where = np.arange(self.size, self.size + size)
        self._grow(known, size)
        return where

    def add_simplex(self, possible: Array, size: int) -> np.ndarray:
        """Add indicators of `size` categories; returns their positions."""
        self.simplices.append(Simplex(self.size, size, possible))
        where = np.arange(self.size, self.size + size)
        self._grow(Interval(np.zeros(size), np.ones(size)), size)
        return where

    def _grow(self, known: Interval, count: int) -> None:
        low, high = (np.broadcast_to(np.asarray(end, dtype=float).reshape(-1), (count,)) for end in known)
        self.known += list(zip(low.tolist(), high.tolist(), strict=True))
        self.size += count

    @property
    def lo(self) -> np.ndarray:
        """Least value of each atom on the whole domain."""
        return np.array([low for low, _ in self.known])

    @property
    def hi(self) -> np.ndarray:
        """Largest value of each atom on the whole domain."""
        return np.array([high for _, high in self.known])

    @property
    def balls(self) -> list[tuple[int, int, float]]:
        """Start, size and radius of the blocks that are balls."""
        return [(b.start, b.size, b.radius) for b in self.bodies if b.radius is not None]

    @property
    def in_box(self) -> np.ndarray:
        """Which atoms are in no ball and no simplex: in a box, or in a set of which the box around it is known."""
        out = np.ones(self.size, bool)
        for start, size, *_ in [*self.balls, *self.simplices]:
            out[start : start + size] = False
        return out

    def here(self) -> Interval:
        """Range of every atom by itself in the present cell."""
        low, high = jnp.asarray(self.lo), jnp.asarray(self.hi)
        for box in self.boxes:
            where = slice(box.start, box.start + box.size)
            low, high = (end.at[where].set(own) for end, own in zip((low, high), box.bounds, strict=True))
        return Interval(low, high)

    def nearest(self, atoms: Array) -> Array:
        """Cut one record's numbers to the product of blocks, whatever they are: what is not a number becomes the middle."""
        low, high = self.lo, self.hi
        bounded = np.isfinite(low) & np.isfinite(high)
        middle = (np.where(bounded, low, 0.0) + np.where(bounded, high, 0.0)) / 2
        out = jnp.clip(jnp.where(jnp.isnan(atoms), middle, atoms), low, high)
        for body in self.bodies:
            where = slice(body.start, body.start + body.size)
            out = out.at[where].set(body.nearest(out[where].reshape(body.shape)).reshape(-1))
        for simplex in self.simplices:
            where = slice(simplex.start, simplex.start + simplex.size)
            out = out.at[where].set(jnp.eye(simplex.size)[jnp.argmax(out[where])])
        return out

    def known_range(self, offset: np.ndarray, coefficients: np.ndarray) -> Interval:
        """Range of affine functions with numeric coefficients on the whole domain, atom by atom (NumPy)."""
        low, high = (end[: coefficients.shape[-1]] for end in (self.lo, self.hi))
        with np.errstate(invalid="ignore"):
            down, up = coefficients * low, coefficients * high
            least, most = np.minimum(down, up), np.maximum(down, up)
            for simplex in (s for s in self.simplices if s.start < len(low)):  # one of them is one
                where = slice(simplex.start, simplex.start + simplex.size)
                least[..., where], most[..., where] = (
                    np.where(np.arange(simplex.size) == 0, best(coefficients[..., where], -1, keepdims=True), 0.0)
                    for best in (np.min, np.max)
                )
            lo, hi = offset + np.nansum(least, axis=-1), offset + np.nansum(most, axis=-1)
        return Interval(lo, hi)

    def support(self, q: Array) -> Array:
        """Largest value of `q @ atoms`, over the last axis of `q`."""
        total = jnp.zeros(q.shape[:-1], q.dtype)
        for still in (True, False):  # ranges that are the same in all cells are kept apart: their part is shared
            blocks = [b for b in self.boxes if b.still == still and b.start < q.shape[-1]]
            if blocks:
                index = np.concatenate([np.arange(b.start, b.start + b.size) for b in blocks])
                join = np.concatenate if still else jnp.concatenate
                low, high = join([b.bounds.lo for b in blocks]), join([b.bounds.hi for b in blocks])
                part = q if len(index) == q.shape[-1] else q[..., index]
                total += jnp.sum(jnp.where(part == 0, 0.0, jnp.maximum(part * low, part * high)), axis=-1)
        for body in self.bodies:
            part = q[..., body.start : body.start + body.size]
            if part.shape[-1]:
                total += body.support(part.reshape(*q.shape[:-1], *body.shape))
        for simplex in self.simplices:
            part = q[..., simplex.start : simplex.start + simplex.size]
            if part.shape[-1]:
                total += jnp.max(jnp.where(simplex.possible, part, -jnp.inf), axis=-1)
        return total

    def upper(self, q: Array) -> Array:
        """Least proven upper bound of `q @ atoms` in the present cell."""
        if q.shape[-1] == 0:
            return jnp.zeros(q.shape[:-1])
        # An axis counts only once all of its atoms exist: the support function knows no others.
        axes = [axis for axis in self.axes if axis.coefficients.shape[-1] <= self.size]
        if not axes:
            return self.support(q)
        bound = self._dual(q, axes[0])
        for axis in axes[1:]:
            bound = jnp.minimum(bound, self._dual(q, axis))
        return bound

    def range(self, offset: Array, q: Array) -> Interval:
        """Range of `offset + q @ atoms` in the present cell; both ends in one pass."""
        ends = self.upper(jnp.stack([-q, q]))
        if self.axes and self.may_be_empty:
            # Ends in the wrong order prove that no record lies in the cell (they contain their own rounding errors).
            crossed = ends[0] + ends[1] < -1e-9 * (jnp.abs(ends[0]) + jnp.abs(ends[1]))
            self.empty = self.empty | jnp.any(crossed)
        return Interval(offset - ends[0], offset + ends[1])

    def _dual(self, q: Array, axis: Axis) -> Array:
        size = max(q.shape[-1], axis.coefficients.shape[-1])
        q, u = pad_last(q, size), pad_last(axis.coefficients, size)
        multipliers = self._multipliers(q, u, axis.cell)
        rest = self.support(q[..., None, :] - multipliers[..., None] * u)
        on_cell = jnp.maximum(multipliers * axis.cell.lo, multipliers * axis.cell.hi)
        # A large multiplier cancels large terms; what it may lose in rounding is given back.
        rounding = _ROUNDING * size * jnp.abs(multipliers) * self.magnitude(u)
        return jnp.min(rest + on_cell + rounding, axis=-1)

    def magnitude(self, q: Array) -> Array:
        """Return a bound of the absolute value of all partial sums of `q @ atoms`."""
        low, high = (end[: q.shape[-1]] for end in (self.lo, self.hi))
        return jnp.abs(q) @ jnp.asarray(np.maximum(np.abs(low), np.abs(high)))

    def _multipliers(self, q: Array, u: Array, cell: Interval) -> Array:
        """Candidates: zero, the breakpoints of boxes, the optima on balls, and a grid of angles for everything else."""
        candidates = [jnp.zeros((*q.shape[:-1], 1))]
        breaks = [i for b in self.boxes for i in range(b.start, b.start + b.size) if i < u.shape[-1]]
        few = len(breaks) <= _MAX_BREAKPOINTS
        if breaks and few:
            at = slice(None) if len(breaks) == u.shape[-1] else np.array(breaks)
            candidates.append(jnp.where(u[at] == 0, 0.0, q[..., at] / jnp.where(u[at] == 0, 1.0, u[at])))
        for ball in (b for b in self.bodies if b.radius is not None and b.start < u.shape[-1]):
            where = slice(ball.start, ball.start + ball.size)
            best, across, length = _angle(q[..., where], u[where])
            for end in cell:
                sine = jnp.clip(end / (length * ball.radius), -1 + 1e-6, 1 - 1e-6)
                candidates.append(best - across * sine / jnp.sqrt(1 - sine * sine))
        if any(b.radius is None for b in self.bodies) or self.simplices or not few or (breaks and self.bodies):
            best, across, _ = _angle(q, u)
            candidates.append(best + across * jnp.asarray(_ANGLES))
        return jnp.concatenate(candidates, axis=-1)


def _angle(q: Array, u: Array) -> tuple[Array, Array, Array]:
    """Part of q along u and length of the rest, both in lengths of u; and that length."""
    uu = jnp.maximum(jnp.sum(u * u), 1e-300)
    best = jnp.sum(q * u, axis=-1, keepdims=True) / uu
    across = jnp.sqrt(jnp.maximum(jnp.sum(q * q, axis=-1, keepdims=True) / uu - best * best, 0.0))
    return best, across, jnp.sqrt(uu)


def _longer(support: Callable[[Array], Array], by: float) -> Callable[[Array], Array]:
    return lambda direction: by * support(direction)


def pad_last(array: Array, size: int) -> Array:
    """Append zeros to the last axis up to `size`."""
    missing = size - array.shape[-1]
    if missing <= 0:
        return array
    pad = np.pad if isinstance(array, np.ndarray) else jnp.pad
    return pad(array, [(0, 0)] * (array.ndim - 1) + [(0, missing)])
