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
breakpoint :math:`q_i/u_i` or zero; on a ball :math:`\lambda_0 + \tan(\varphi)\lVert q_\perp\rVert/\lVert u\rVert`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from sfumato.bounds.interval import Array, Interval

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
    """Atoms `start` to `start + size`, written in `shape`, lie in a set that is known by its support function."""

    start: int
    size: int
    shape: tuple[int, ...]
    support: Callable[[Array], Array]


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

    def add_body(self, support: Callable[[Array], Array], shape: tuple[int, ...], known: Interval) -> np.ndarray:
        """Add a set with this support function inside the box `known` (flat); returns the positions of its atoms."""
        size = len(known.lo)
        self.bodies.append(Body(self.size, size, shape, support))
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

    def known_range(self, offset: np.ndarray, coefficients: np.ndarray) -> Interval:
        """Range of affine functions with numeric coefficients on the whole domain, atom by atom (NumPy)."""
        low, high = (np.array(end)[: coefficients.shape[-1]] for end in zip(*self.known, strict=True))
        with np.errstate(invalid="ignore"):
            down, up = coefficients * low, coefficients * high
            lo = offset + np.nansum(np.minimum(down, up), axis=-1)
            hi = offset + np.nansum(np.maximum(down, up), axis=-1)
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
        multipliers = self._multipliers(q, u)
        rest = self.support(q[..., None, :] - multipliers[..., None] * u)
        on_cell = jnp.maximum(multipliers * axis.cell.lo, multipliers * axis.cell.hi)
        # A large multiplier cancels large terms; what it may lose in rounding is given back.
        rounding = _ROUNDING * size * jnp.abs(multipliers) * self.magnitude(u)
        return jnp.min(rest + on_cell + rounding, axis=-1)

    def magnitude(self, q: Array) -> Array:
        """Return a bound of the absolute value of all partial sums of `q @ atoms`."""
        low, high = (np.array(end)[: q.shape[-1]] for end in zip(*self.known, strict=True))
        return jnp.abs(q) @ jnp.asarray(np.maximum(np.abs(low), np.abs(high)))

    def _multipliers(self, q: Array, u: Array) -> Array:
        """Candidates: zero, the breakpoints of boxes, and what would be the optima on balls, on a grid of angles."""
        candidates = [jnp.zeros((*q.shape[:-1], 1))]
        breaks = [i for b in self.boxes for i in range(b.start, b.start + b.size) if i < u.shape[-1]]
        few = len(breaks) <= _MAX_BREAKPOINTS
        if breaks and few:
            at = slice(None) if len(breaks) == u.shape[-1] else np.array(breaks)
            candidates.append(jnp.where(u[at] == 0, 0.0, q[..., at] / jnp.where(u[at] == 0, 1.0, u[at])))
        if self.bodies or self.simplices or not few:
            uu = jnp.maximum(jnp.sum(u * u), 1e-300)
            best = jnp.sum(q * u, axis=-1, keepdims=True) / uu
            across = jnp.sqrt(jnp.maximum(jnp.sum(q * q, axis=-1, keepdims=True) / uu - best * best, 0.0))
            candidates.append(best + across * jnp.asarray(_ANGLES))
        return jnp.concatenate(candidates, axis=-1)


def pad_last(array: Array, size: int) -> Array:
    """Append zeros to the last axis up to `size`."""
    missing = size - array.shape[-1]
    if missing <= 0:
        return array
    pad = np.pad if isinstance(array, np.ndarray) else jnp.pad
    return pad(array, [(0, 0)] * (array.ndim - 1) + [(0, missing)])
