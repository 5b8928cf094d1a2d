r"""Largest value of a quadratic function over an interval, a ball, a box, or a product of these.

Statistics with squares and products need :math:`\sup_w w^\top Q w + c^\top w`. Over an interval and over a ball that is
solved exactly (the ball by duality, which is tight there: the trust-region problem). Over a box it is NP-hard in
general: exact up to `MAX_FACES_DIM` dimensions by going through all faces; exact in any dimension where Q has rank two,
because the box then casts a polygon as its shadow; a proven upper bound otherwise. Everything is pure JAX.
"""

from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

Array: TypeAlias = Any

MAX_FACES_DIM = 4
"""Boxes up to this dimension are solved face by face: 3^4 = 81 small linear systems."""
_BISECTIONS = 90
_FAN = 64


def over_interval(linear: Array, square: Array, lo: Array, hi: Array) -> Array:
    r"""Exact :math:`\max_{lo\le y\le hi} a y + b y^2`."""

    def at(y: Array) -> Array:
        return linear * y + square * y**2

    top = jnp.clip(-linear / jnp.where(square < 0, 2 * square, -1.0), lo, hi)
    return jnp.maximum(jnp.maximum(at(lo), at(hi)), jnp.where(square < 0, at(top), -jnp.inf))


def over_ball(matrix: Array, linear: Array, radius: float = 1.0) -> Array:
    r"""Exact :math:`\max_{\lVert x\rVert\le r} x^\top Q x + c^\top x`.

    In the eigenvectors of Q the dual is :math:`\min_{t} t + \sum_i g_i^2/(4(t-\lambda_i))` over
    :math:`t \ge \max(0, \lambda_{\max})`; there is no gap, and any t gives an upper bound, so what is left of the bisection
    errs upwards, by the square of its last step.
    """
    values, vectors = jnp.linalg.eigh(radius**2 * matrix)
    g = radius * (vectors.T @ linear)
    least = jnp.maximum(values[-1], 0.0)
    length = jnp.sqrt(jnp.sum(g**2))
    tiny = 1e-16 * (jnp.abs(values).max() + length) + 1e-300

    def halve(_: int, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        lo, hi = bracket
        middle = (lo + hi) / 2
        gap = jnp.maximum(middle - values, tiny)
        falling = jnp.sum((g / (2 * gap)) ** 2) > 1
        return jnp.where(falling, middle, lo), jnp.where(falling, hi, middle)

    _, t = jax.lax.fori_loop(0, _BISECTIONS, halve, (least, least + length / 2 + tiny))
    return t + jnp.sum(g**2 / (4 * jnp.maximum(t - values, tiny)))


def over_box(matrix: Array, linear: Array, lo: np.ndarray, hi: np.ndarray) -> Array:
    r"""Largest :math:`x^\top Q x + c^\top x` over a box: exact up to `MAX_FACES_DIM` dimensions, else an upper bound."""
    if len(lo) <= MAX_FACES_DIM:
        return _over_faces(matrix, linear, lo, hi)
    return jnp.minimum(_over_hull(matrix, linear, lo, hi), _by_pairs(matrix, linear, lo, hi))


@lru_cache(maxsize=8)
def _faces(dim: int) -> np.ndarray:
    """All faces of a box: for every coordinate, lower end (0), free (1) or upper end (2)."""
    return np.array(list(product((0, 1, 2), repeat=dim)))


def _over_faces(matrix: Array, linear: Array, lo: np.ndarray, hi: np.ndarray) -> Array:
    # The maximum is a critical point inside some face. A face on which that point is not unique shares its value with a
    # smaller face. Every candidate is moved into the box, so none can exceed the maximum.
    faces = _faces(len(lo))
    free = jnp.asarray(faces == 1)
    fixed = jnp.where(faces == 0, lo, jnp.where(faces == 2, hi, 0.0))
    both = free[:, :, None] & free[:, None, :]
    system = jnp.where(both, 2 * matrix, 0.0) + jnp.where(free, 0.0, 1.0)[:, :, None] * jnp.eye(len(lo))
    right = jnp.where(free, -(linear + 2 * fixed @ matrix), fixed)
    points = jnp.linalg.solve(system, right[:, :, None])[:, :, 0]
    points = jnp.clip(jnp.where(jnp.isfinite(points), points, lo), lo, hi)
    return jnp.max(jnp.sum((points @ matrix) * points, axis=1) + points @ linear)


def _over_hull(matrix: Array, linear: Array, lo: np.ndarray, hi: np.ndarray) -> Array:
    """Over the ellipsoid around the box: an upper bound."""
    centre, half = (lo + hi) / 2, (hi - lo) / 2
    shifted = linear + 2 * matrix @ centre
    inner = over_ball(matrix * jnp.outer(half, half), shifted * half, len(lo) ** 0.5)
    return inner + centre @ matrix @ centre + linear @ centre


def _by_pairs(matrix: Array, linear: Array, lo: np.ndarray, hi: np.ndarray) -> Array:
    """Each square and each product at its own best: an upper bound."""
    centre, half = (lo + hi) / 2, (hi - lo) / 2
    scaled = matrix * jnp.outer(half, half)
    shifted = (linear + 2 * matrix @ centre) * half
    diagonal = jnp.diagonal(scaled)
    own = jnp.sum(over_interval(shifted, diagonal, -1.0, 1.0))
    mixed = jnp.sum(jnp.abs(scaled)) - jnp.sum(jnp.abs(diagonal))
    return own + mixed + centre @ matrix @ centre + linear @ centre


class Solid(NamedTuple):
    """A product of points, intervals and at most one ball: w = offset + (half * s, |s_i| <= 1) + (ball entries)."""

    offset: np.ndarray
    half: np.ndarray
    in_ball: np.ndarray
    radius: float

    @property
    def size(self) -> np.ndarray:
        """Largest absolute value of each coordinate."""
        return np.abs(self.offset) + self.half + self.radius * self.in_ball


def over_solid(matrix: Array, solid: Solid) -> Array:
    r"""Largest :math:`w^\top Q w` over a solid: exact where Q has rank two and is indefinite, an upper bound otherwise.

    The two leading eigenvectors cast the solid's shadow on a plane, a polygon with rounded corners, over which their part
    is maximised exactly; each of the others adds the most it can.
    """
    scale = np.where(solid.size > 0, solid.size, 1.0)  # one unit for all coordinates
    values, vectors = jnp.linalg.eigh(matrix * np.outer(scale, scale))
    order = jnp.argsort(-jnp.abs(values))
    values, rows = values[order], vectors[:, order] / scale[:, None]
    middle = solid.offset @ rows
    reach = solid.half @ jnp.abs(rows)
    reach += solid.radius * jnp.sqrt(jnp.sum((solid.in_ball[:, None] * rows) ** 2, axis=0))
    most = values * (jnp.abs(middle) + reach) ** 2
    least = values * jnp.maximum(jnp.abs(middle) - reach, 0.0) ** 2
    rest = jnp.sum(jnp.where(values > 0, most, least)[2:])
    return _over_shadow(values[:2], rows[:, :2], solid) + rest


def _over_shadow(values: Array, rows: Array, solid: Solid) -> Array:
    """Largest u'Du over the plane shadow u = rows' w, D diagonal."""
    corners, edges = _polygon(rows, solid)
    lengths = over_interval(
        2 * jnp.sum(values * corners * edges, axis=1), jnp.sum(values * edges**2, axis=1), 0.0, 1.0
    ) + jnp.sum(values * corners**2, axis=1)
    best = jnp.max(lengths)
    outward = jnp.stack([edges[:, 1], -edges[:, 0]], axis=1)
    bulge = jnp.zeros((2, 2))
    if solid.radius > 0:
        bulge = _root(solid.radius**2 * (rows.T @ (solid.in_ball[:, None] * rows)))
        best = jnp.maximum(best, _rounded(values, corners, edges, outward, bulge))
    # A concave function may peak inside, at u = 0. Only a direction that separates 0 from the shadow proves it does not.
    angles = np.arange(_FAN) * 2 * np.pi / _FAN
    fan = jnp.concatenate([jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1), outward])
    beyond = jnp.max(fan @ corners.T, axis=1) + jnp.sqrt(jnp.sum((fan @ bulge) ** 2, axis=1))
    apart = jnp.any(beyond < 0)
    return jnp.where((jnp.max(values) <= 0) & ~apart, 0.0, best)


def _polygon(rows: Array, solid: Solid) -> tuple[Array, Array]:
    """Corners of the intervals' shadow, counterclockwise, and the edge that leaves each."""
    used = np.flatnonzero(solid.half > 0)
    sides = solid.half[used, None] * rows[used]
    down = (sides[:, 1] < 0) | ((sides[:, 1] == 0) & (sides[:, 0] < 0))
    sides = jnp.where(down[:, None], -sides, sides)
    sides = 2 * sides[jnp.argsort(jnp.arctan2(sides[:, 1], sides[:, 0]))]
    climb = jnp.cumsum(sides, axis=0) - sides - jnp.sum(sides, axis=0) / 2
    centre = solid.offset @ rows
    return centre + jnp.concatenate([climb, -climb]), jnp.concatenate([sides, -sides])


def _rounded(values: Array, corners: Array, edges: Array, outward: Array, bulge: Array) -> Array:
    """The ellipse that a ball adds at every corner, and every edge pushed out by it."""

    def corner(point: Array) -> Array:
        inner = over_ball(bulge @ (values[:, None] * bulge), 2 * bulge @ (values * point))
        return inner + jnp.sum(values * point**2)

    pushed = outward @ bulge
    norm = jnp.sqrt(jnp.sum(pushed**2, axis=1, keepdims=True))
    starts = corners + (pushed / jnp.maximum(norm, 1e-300)) @ bulge
    along = over_interval(2 * jnp.sum(values * starts * edges, axis=1), jnp.sum(values * edges**2, axis=1), 0.0, 1.0)
    return jnp.maximum(jnp.max(jax.vmap(corner)(corners)), jnp.max(along + jnp.sum(values * starts**2, axis=1)))


def _root(matrix: Array) -> Array:
    """Symmetric square root."""
    values, vectors = jnp.linalg.eigh(matrix)
    return (vectors * jnp.sqrt(jnp.maximum(values, 0.0))) @ vectors.T


def triangle(dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r"""Rows, columns and weights of an upper triangle: off-diagonal entries times :math:`\sqrt 2` keep Frobenius norms."""
    rows, columns = np.triu_indices(dim)
    return rows, columns, np.where(rows == columns, 1.0, 2.0**0.5)


def from_triangle(entries: Array, dim: int) -> Array:
    r"""Symmetric Q with :math:`x^\top Q x = v^\top \mathrm{triangle}(xx^\top)`."""
    rows, columns, weights = triangle(dim)
    upper = jnp.zeros((dim, dim), entries.dtype).at[rows, columns].set(entries * weights)
    return (upper + upper.T) / 2
