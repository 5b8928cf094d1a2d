r"""Balls that a record's vector is cut to: one for all records, or one for each kind of record.

Records whose whole-numbered columns agree are of one *kind* (an outcome of one, in group seven). Where all columns are
single numbers, real ones are cut into pieces, too: a kind then has its piece of each. A record's whitened vector is cut to
the ball of its kind. So two vectors are no further apart than

.. math:: \max_{k,l}\ \lVert c_k - c_l\rVert + r_k + r_l

*by construction*, whatever the program computes and whoever chose the balls. For scores of groups that is up to :math:`\sqrt 2`
less than the diameter of one ball around all of them (Jung 1901: a ball can be that much wider than what it holds).
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from sfumato.bounds.interval import Array
from sfumato.domain import Domain

SHORTENED = 1.0 + 2.0**-20
"""Shortening in floating point (float32 at worst) can leave a vector longer than the radius by this factor at most."""
MOST_KINDS = 512
"""Kinds of record that have a ball of their own, at the most; columns of many values are left out first."""
MOST_PIECES = 1024
"""Kinds with pieces of real columns, at the most."""
FINEST = 16
"""Pieces of a real column, at the most."""
MOST_CUT = 3
"""Real columns that are cut, at the most: a kind has two to the power of that many corners."""
_ROUNDING = 2.0**-48  # relative error of a centre and of a point about it: some roundings of 2^-53
_ITERATIONS = 80  # of the smallest ball's approximation: within a few percent of it


def shortened(value: Array, radius: Array) -> Array:
    """Shorten a vector to `radius`, in units of its largest entry: the square of a tiny length would underflow."""
    largest = jnp.max(jnp.abs(value))
    unit = value / jnp.where(largest > 0, largest, 1.0)
    return unit * jnp.minimum(largest, radius / jnp.maximum(jnp.linalg.norm(unit), 1.0))


class Kinds:
    """Which kind a record is of: told by its whole-numbered columns of few values, and by pieces of its real ones."""

    def __init__(self, domain: Mapping[str, Domain]) -> None:
        counted = {name: int(d.hi) - int(d.lo) + 1 for name, d in domain.items() if d.discrete and d.shape == ()}
        self.columns: list[tuple[str, int, int]] = []
        self.number = 1
        for name in sorted(counted, key=lambda name: (counted[name], name)):
            if self.number * counted[name] <= MOST_KINDS:
                self.columns.append((name, int(domain[name].lo), counted[name]))
                self.number *= counted[name]
        self.pieces = self._pieces(domain)
        self.number *= int(np.prod([count for *_, count in self.pieces], dtype=int))

    def _pieces(self, domain: Mapping[str, Domain]) -> list[tuple[str, float, float, int]]:
        """Real columns with their ends and how many pieces they are cut into; none where something else is left in a kind."""
        reals = sorted(name for name, d in domain.items() if not d.discrete)
        rest = set(domain) - {name for name, *_ in self.columns} - set(reals)
        fit = all(d.separable and d.shape == () and float(d.hi) > float(d.lo) for d in (domain[name] for name in reals))
        if rest or not fit or not 0 < len(reals) <= MOST_CUT:
            return []
        count = 2 ** int(np.log2(max((MOST_PIECES / self.number) ** (1 / len(reals)), 1.0)))
        ends = [(name, float(domain[name].lo), float(domain[name].hi)) for name in reals]
        return [(*end, min(count, FINEST)) for end in ends] if count > 1 else []

    def of(self, record: Mapping[str, Array]) -> Array:
        """Number of a record's kind; outside of the domain that of the nearest one."""
        number: Array = jnp.zeros((), int)
        for name, low, count in self.columns:
            number = number * count + jnp.clip(jnp.asarray(record[name]).astype(int) - low, 0, count - 1)
        for name, left, right, count in self.pieces:
            share = (jnp.asarray(record[name]) - left) / (right - left)
            number = number * count + jnp.clip(jnp.floor(share * count).astype(int), 0, count - 1)
        return number

    def values(self, each: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Columns of so many records of every kind, one kind after the other: pieces at all their corners, and inside."""
        number, turn = np.repeat(np.arange(self.number), each), np.tile(np.arange(each), self.number)
        found: dict[str, np.ndarray] = {}
        for i, (name, left, right, count) in enumerate(reversed(self.pieces)):
            corner = (turn >> i) & 1
            place = np.where(turn < 2 ** len(self.pieces), corner, rng.random(len(turn)))
            found[name] = left + (right - left) * (number % count + place) / count
            number = number // count
        for name, low, count in reversed(self.columns):
            found[name], number = low + number % count, number // count
        return found


class Balls(NamedTuple):
    """What whitened vectors at a reference point are cut to, as arrays: all public, all arguments of compiled programs.

    Attributes
    ----------
    theta
        The reference point.
    matrix, back
        A, with which vectors are whitened; and what leads back, the inverse of its transpose.
    centres, radii
        The ball of every kind.
    """

    theta: Array
    matrix: Array
    back: Array
    centres: Array
    radii: Array

    def cut(self, vector: Array, kind: Array) -> Array:
        """The point of a kind's ball that is nearest to a whitened vector; its centre, if that is no number."""
        centre = self.centres[kind]
        apart = vector - centre
        return centre + shortened(jnp.where(jnp.all(jnp.isfinite(apart)), apart, 0.0), self.radii[kind])


def diameter(centres: np.ndarray, radii: np.ndarray) -> float:
    """Largest distance of two points of the balls, with what shortening leaves over and how centres are rounded.

    Distances are those of differences: squares and products of centres far from zero would cancel.
    """
    widest = max(
        float((np.linalg.norm(centres - centre, axis=1) + radii + radius).max())
        for centre, radius in zip(centres, radii, strict=True)
    )
    return widest * SHORTENED + _ROUNDING * float(np.linalg.norm(np.abs(centres).max(axis=0)))


def enclosing(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A ball around each set of points, (set, point, d), nearly the smallest: `reach.enclosing_ball`, of many sets at once."""
    centres = (points.min(axis=1) + points.max(axis=1)) / 2
    best, least = centres, _furthest(points, centres)[1]
    for k in range(_ITERATIONS):
        which, away = _furthest(points, centres)
        best = np.where((away < least)[:, None], centres, best)
        least = np.minimum(least, away)
        centres = centres + (points[np.arange(len(points)), which] - centres) / (k + 2)
    return best, least


def _furthest(points: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    away = np.linalg.norm(points - centres[:, None], axis=2)
    which = away.argmax(axis=1)
    return which, away[np.arange(len(points)), which]
