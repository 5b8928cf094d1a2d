r"""The set of a record's numbers, and proven ranges of linear functions on it, whole or cut by a slab.

A product of an axis-parallel box and Euclidean balls around zero, with support function
:math:`h(q) = \sum_i \max(q_i l_i, q_i u_i) + \sum_b R_b\lVert q_b\rVert`. On a slab :math:`t_1 \le u^\top a \le t_2` weak
duality gives, for every multiplier :math:`\lambda`,

.. math:: \sup q^\top a \le h(q - \lambda u) + \max(\lambda t_1, \lambda t_2),

and the least value over a few well-chosen multipliers is close to exact: on one ball the two at which the ends of the slab
bind, on a box the breakpoints :math:`q_i/u_i`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from sfumato.bounds.interval import Array, Interval
from sfumato.domain import TOLERANCE

LONGEST = 1.0 + 2 * TOLERANCE
"""A record in a ball may be longer than the radius by a relative 1e-6, and is not cut."""
_MAX_BREAKPOINTS = 16


class Slab(NamedTuple):
    """A linear function of the atoms, known to lie between two numbers; `uses`: atoms that it can look at."""

    direction: Array
    low: Array
    high: Array
    uses: np.ndarray


@dataclass
class Region:
    """A growing product of intervals and balls; all plain numbers."""

    lo: np.ndarray = field(default_factory=lambda: np.zeros(0))
    hi: np.ndarray = field(default_factory=lambda: np.zeros(0))
    balls: list[tuple[int, int, float]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Number of atoms."""
        return len(self.lo)

    @property
    def in_box(self) -> np.ndarray:
        """Which atoms are in no ball."""
        out = np.ones(self.size, bool)
        for start, count, _ in self.balls:
            out[start : start + count] = False
        return out

    def add_box(self, lo: np.ndarray, hi: np.ndarray) -> np.ndarray:
        """Add one atom per entry; returns their positions."""
        where = np.arange(self.size, self.size + len(lo))
        self.lo, self.hi = np.concatenate([self.lo, lo]), np.concatenate([self.hi, hi])
        return where

    def add_ball(self, radius: float, count: int) -> np.ndarray:
        """Add a ball; returns the positions of its atoms."""
        radius = radius * LONGEST
        self.balls.append((self.size, count, radius))
        return self.add_box(np.full(count, -radius), np.full(count, radius))

    def nearest(self, atoms: Array) -> Array:
        """Cut one record's numbers to the region, whatever they are: what is not a number becomes the middle."""
        bounded = self.in_box & np.isfinite(self.lo) & np.isfinite(self.hi)
        middle = (np.where(bounded, self.lo, 0.0) + np.where(bounded, self.hi, 0.0)) / 2
        out = jnp.clip(jnp.where(jnp.isnan(atoms), middle, atoms), self.lo, self.hi)
        for start, count, radius in self.balls:
            ball = out[start : start + count]
            short = ball * jnp.minimum(1.0, radius / jnp.maximum(jnp.sqrt(jnp.sum(ball * ball)), 1e-300))
            out = out.at[start : start + count].set(short)
        return out

    def known_range(self, offset: np.ndarray, coefficients: np.ndarray) -> Interval:
        """Range of affine functions over the box around the region, in plain numbers."""
        low, high = self.lo[: coefficients.shape[-1]], self.hi[: coefficients.shape[-1]]
        down, up = (np.where(coefficients == 0, 0.0, coefficients * end) for end in (low, high))
        return Interval(offset + np.minimum(down, up).sum(-1), offset + np.maximum(down, up).sum(-1))

    def support(self, q: Array) -> Array:
        """Largest value of `q @ atoms`, over the last axis of `q`."""
        box = np.flatnonzero(self.in_box)
        part = q[..., box]
        total = jnp.sum(jnp.where(part == 0, 0.0, jnp.maximum(part * self.lo[box], part * self.hi[box])), axis=-1)
        for start, count, radius in self.balls:
            ball = q[..., start : start + count]
            total += radius * jnp.sqrt(jnp.sum(ball * ball, axis=-1))
        return total

    def upper(self, q: Array, slabs: Sequence[Slab] = ()) -> Array:
        """Least proven upper bound of `q @ atoms`."""
        if not slabs:
            return self.support(q)
        bound = self._dual(q, slabs[0])
        for slab in slabs[1:]:
            bound = jnp.minimum(bound, self._dual(q, slab))
        return bound

    def _dual(self, q: Array, slab: Slab) -> Array:
        multipliers = self._multipliers(q, slab)
        rest = self.support(q[..., None, :] - multipliers[..., None] * slab.direction)
        on_slab = jnp.maximum(multipliers * slab.low, multipliers * slab.high)
        # A large multiplier cancels large terms; what it may lose in rounding is given back.
        size = jnp.abs(slab.direction) @ jnp.maximum(np.abs(self.lo), np.abs(self.hi))
        rounding = 4e-16 * self.size * jnp.abs(multipliers) * size
        bound = rest + on_slab + rounding
        return jnp.min(jnp.where(jnp.isnan(bound), jnp.inf, bound), axis=-1)

    def range(self, offset: Array, q: Array, slabs: Sequence[Slab] = ()) -> Interval:
        """Range of `offset + q @ atoms`."""
        ends = self.upper(jnp.stack([-q, q]), slabs)
        return Interval(offset - ends[0], offset + ends[1])

    def _multipliers(self, q: Array, slab: Slab) -> Array:
        u = slab.direction
        candidates = [jnp.zeros((*q.shape[:-1], 1))]
        box = np.flatnonzero(self.in_box & slab.uses)
        if 0 < len(box) <= _MAX_BREAKPOINTS:
            candidates.append(jnp.where(u[box] == 0, 0.0, q[..., box] / jnp.where(u[box] == 0, 1.0, u[box])))
        for start, count, radius in self.balls:
            ball = slice(start, start + count)
            if not slab.uses[ball].any():
                continue
            uu = jnp.maximum(jnp.sum(u[ball] ** 2), 1e-300)
            along = jnp.sum(q[..., ball] * u[ball], axis=-1) / uu
            across = jnp.sqrt(jnp.maximum(jnp.sum(q[..., ball] ** 2, axis=-1) / uu - along**2, 0.0))
            for end in (slab.low, slab.high):
                t = jnp.clip(end / jnp.sqrt(uu) / radius, -1 + 1e-6, 1 - 1e-6)  # sine of the angle
                candidates.append((along - across * t / jnp.sqrt(1 - t * t))[..., None])
        return jnp.concatenate(candidates, axis=-1)
