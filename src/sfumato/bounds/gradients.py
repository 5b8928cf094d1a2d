r"""How far apart two vectors of the body can be that records are cut to at a public reference point: its diameter.

The first query of a Langevin step is :math:`\sum_i A^\top s(y_i)` with isotropic noise, so it costs the squared diameter of the
whitened body :math:`A^\top K` (`body`). This module is geometry: it knows the cells, their boxes of slopes and the region of
the record's numbers, and nothing of the model. In the predictors, :math:`A^\top s = \sum_j\varphi_j A^\top a_j(r)` with
:math:`a_j` affine in the record. A product of intervals and an affine function is linear in each factor, so its extremes sit
at corners:

- on a *ball* of covariates a cell is a slice: a point along the cut predictor plus a ball across it. Two slices are at most
  :math:`\max_{\lVert z\rVert\le1}\lVert d + \rho Bz\rVert` apart, d the difference of their points, B the whitened image
  of the directions across, :math:`\rho` the sum of their radii: a one-dimensional dual problem;
- on a *box* of few covariates a cell is a polytope, the convex hull of its corners: the diameter of finitely many points;
- *indicators* of a simplex have as many corners as categories, and each corner is one of the sets above;
- anywhere else, the diagonal of the smallest box around the set, or twice the longest vector, whichever is less.

The body need not be centred: for a logistic regression on the unit ball with :math:`\lVert\theta^*\rVert = 1` its diameter
is close to 1, that of the smallest ball around it 1.1, and twice its longest element 1.46.
"""

from itertools import groupby, product
from typing import NamedTuple

import numpy as np

from sfumato.bounds.atoms import Atoms
from sfumato.bounds.remainder import Anchor, Remainder
from sfumato.errors import Unsupported

GUARD = 1 + 1e-9
"""Outward rounding of what is computed here in double precision."""
MARGIN = 1e-9
"""Cells are taken wider by this part of the whole: where a record lies is computed in double precision, too."""
MAX_SLOPE_CORNERS = 64
"""Corners of a box of slopes that are looked at: of six base numbers beside each other."""
MAX_VERTICES = 256
"""Corners of the simplices of a record's indicators that are looked at."""
MAX_CORNERS = 10
"""Covariates of a box up to which all corners are looked at."""
_SHARES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
_POINTS = 12_000  # corners of all cells together; beyond, cells are merged
_ROWS = (
    8  # points that are compared with all others at a time: the differences of a hundred would be a hundred megabytes
)


class GradientSet(NamedTuple):
    r"""The whitened body :math:`A^\top K`: its diameter and the range of each coordinate."""

    diameter: float
    low: np.ndarray
    high: np.ndarray


class _Cell(NamedTuple):
    """Slopes of all base numbers, the slab of the cut one, and the vectors that belong to no covariate."""

    slope_low: np.ndarray
    slope_high: np.ndarray
    low: float
    high: float
    offset: np.ndarray


@np.errstate(all="ignore")  # what overflows, or is no number, is refused at the end: `_guarded`
def gradient_set(remainder: Remainder, anchor: Anchor, matrix: np.ndarray) -> GradientSet:
    """Diameter and coordinate ranges of the whitened body at the reference point.

    Parameters
    ----------
    remainder, anchor
        The region, the coefficients of the predictors, and the cells at the reference point: those of the body.
    matrix
        A, with which vectors are whitened.
    """
    root, tables = np.asarray(matrix, dtype=float), np.asarray(anchor.jacobian)
    points = np.einsum("da,mdb->mab", root, tables)  # whitened: (m, d, 1 + atoms)
    region, one = remainder.region, len(remainder.axes) == 1
    cells = _cells(anchor, points, one)
    if remainder.axes or not remainder.columns or _slope_corners(cells) > MAX_SLOPE_CORNERS:
        found = _set_of(points, cells, np.asarray(anchor.directions)[-1] if one else None, region)
    else:
        found = _of_small_cells(points, cells, np.asarray(anchor.atom_low), np.asarray(anchor.atom_high))
    plain = _around(tables, _cells(anchor, tables, one), region)
    error = 2 * float(np.linalg.norm(_rounding(root, plain)))
    return found._replace(diameter=found.diameter + error)


def _rounding(root: np.ndarray, plain: GradientSet) -> np.ndarray:
    """Bound of the rounding error of each coordinate of one record's whitened gradient, and of its proven range.

    It matters where the columns of A nearly cancel in the gradient, as those of whoever chooses A to that end may: what is
    left is then no longer large beside the rounding of what cancelled.
    """
    largest = np.maximum(np.abs(plain.low), np.abs(plain.high))
    return np.asarray((len(root) + 8) * 2.0**-50 * (np.abs(root).T @ largest))


def _set_of(points: np.ndarray, cells: list[_Cell], cut: np.ndarray | None, region: Atoms) -> GradientSet:
    used = np.flatnonzero(np.abs(points[:, :, 1:]).max(axis=(0, 1)) > 0)
    vertices = _vertices(region, used)
    if len(vertices) > MAX_VERTICES or _slope_corners(cells) > MAX_SLOPE_CORNERS:
        return _around(points, cells, region)
    if vertices != [()]:
        cells = [c for v in vertices for c in _at_vertex(cells, points, cut, v)]
        used = np.array([a for a in used if not any(a in range(s, s + n) for s, n, _ in region.simplices)], dtype=int)
    ball = _only_ball(region, used)
    movers = [j for j in range(len(points)) if np.any(points[j][:, 1 + used])]
    if len(used) == 0:
        return _of_points(np.concatenate([_combine(c.offset, s) for c in cells for s in _ends(c)]))
    if ball is not None and len(movers) == 1 and cut is not None:
        beside = [a for a in used if not ball[0] <= a < ball[0] + ball[1]]
        if not beside:
            return _on_ball(points, movers[0], ball, cells, cut, region)
        if len(beside) == 1 and region.in_box[beside[0]] and cut[beside[0]] != 0:
            return _beside_ball(points, movers[0], ball, int(beside[0]), cells, cut, region)
    if np.all(region.in_box[used]) and len(used) <= MAX_CORNERS and cut is not None:
        return _on_box(points, used, cells, cut, region)
    return _around(points, cells, region)


def _cells(anchor: Anchor, points: np.ndarray, one: bool) -> list[_Cell]:
    low, high = np.asarray(anchor.low), np.asarray(anchor.high)
    if one:
        margin = MARGIN * (high.max() - low.min() + np.abs(low).max() + np.abs(high).max())
        low, high = low - margin, high + margin
    offset = points[:, :, 0]
    return [
        _Cell(s, t, float(low[i, -1]) if one else -np.inf, float(high[i, -1]) if one else np.inf, offset)
        for i, (s, t) in enumerate(zip(np.asarray(anchor.slope_low), np.asarray(anchor.slope_high), strict=True))
    ]


def _vertices(region: Atoms, used: np.ndarray) -> list[tuple[int, ...]]:
    """Corners of the simplices that are used: one indicator of each is one."""
    there = [np.arange(s, s + n)[np.asarray(p)] for s, n, p in region.simplices]
    return list(product(*(atoms.tolist() for atoms in there if np.isin(atoms, used).any())))


def _at_vertex(cells: list[_Cell], points: np.ndarray, cut: np.ndarray | None, vertex: tuple[int, ...]) -> list[_Cell]:
    """The cells with their indicators known: they are no covariates then."""
    ones = np.array(vertex)
    shift = 0.0 if cut is None else float(cut[ones].sum())
    offset = points[:, :, 0] + points[:, :, 1 + ones].sum(axis=-1)
    return [c._replace(low=c.low - shift, high=c.high - shift, offset=offset) for c in cells]


def _slope_corners(cells: list[_Cell]) -> int:
    """Corners of the boxes of slopes, at the most: twice as many for every slope that is not known."""
    return 2 ** max(int(np.sum(c.slope_low != c.slope_high)) for c in cells)


def _ends(cell: _Cell) -> np.ndarray:
    """Corners of the box of slopes."""
    ends = [(a,) if a == b else (a, b) for a, b in zip(cell.slope_low, cell.slope_high, strict=True)]
    return np.array(list(product(*ends)))


def _combine(vectors: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    return np.asarray(slopes @ vectors)[None, :]


def _only_ball(region: Atoms, used: np.ndarray) -> tuple[int, int, float] | None:
    """The ball whose atoms are used, if there is one alone."""
    there = [b for b in region.balls if np.any((used >= b[0]) & (used < b[0] + b[1]))]
    return there[0] if len(there) == 1 else None


# -- covariates in a ball ---------------------------------------------------------------------------------------------


def _on_ball(
    points: np.ndarray, mover: int, ball: tuple[int, int, float], cells: list[_Cell], cut: np.ndarray, region: Atoms
) -> GradientSet:
    """The smaller of two diameters: of slices along the predictor that is cut, and of whole balls.

    A slice is taken as a segment times a ball across. Where other numbers of the record move the predictor more than the
    covariates do (a wide outcome), every slice is nearly the whole ball, and the cylinder around it is wider than that.
    """
    start, count, radius = ball
    image = points[mover][:, 1 + start : 1 + start + count]
    along = cut[start : start + count]
    length = float(np.linalg.norm(along))
    whole = [(_slice_points(points, mover, c, np.zeros(len(image)), (0.0,)), radius) for c in cells]
    found = _of_slices(whole, image)
    if length < 1e-12:  # the predictor that is cut does not look at the ball
        return found
    unit = along / length
    others = _without(cut, np.arange(start, start + count), region)
    span = region.known_range(np.zeros(()), others)
    slices = []
    for cell in cells:
        low, high = (cell.low - float(span.hi)) / length, (cell.high - float(span.lo)) / length
        low, high = max(low, -radius), min(high, radius)
        if low > high:
            low = high = float(np.clip((low + high) / 2, -radius, radius))
        nearest = 0.0 if low <= 0 <= high else min(abs(low), abs(high)) * (1 - MARGIN)
        room = np.sqrt(max(radius**2 - nearest**2, 0.0))
        slices.append((_slice_points(points, mover, cell, image @ unit, (low, high)), room))
    sliced = _of_slices(slices, image - np.outer(image @ unit, unit))
    low, high = np.maximum(found.low, sliced.low), np.minimum(found.high, sliced.high)
    return GradientSet(min(found.diameter, sliced.diameter), low, high)


def _beside_ball(
    points: np.ndarray, mover: int, ball: tuple[int, int, float], atom: int, cells: list[_Cell], cut: np.ndarray,
    region: Atoms,
) -> GradientSet:  # fmt: skip
    """A ball and one number beside it (an outcome), of which the cut base number takes the place: of that the cells tell more."""
    start, count, radius = ball
    along = points[mover][:, 1 + atom] / cut[atom]
    image = points[mover][:, 1 + start : 1 + start + count] - np.outer(along, cut[start : start + count])
    low, high = _slack(region, _without(cut, np.array([atom, *range(start, start + count)]), region))
    slices = [(_slice_points(points, mover, c, along, (c.low - high, c.high - low)), radius) for c in cells]
    return _of_slices(slices, image)


def _of_slices(slices: list[tuple[tuple[np.ndarray, np.ndarray], float]], across: np.ndarray) -> GradientSet:
    """Diameter of a union of balls, all mapped by `across`, at points: each with the factors of its radius."""
    where = np.concatenate([c for (c, _), _ in slices])
    reach = np.concatenate([r * room for (_, r), room in slices])
    values, vectors = np.linalg.eigh(across.T @ across)
    values, turned = np.maximum(values, 0.0), where @ (across @ vectors)
    best = 0.0
    for i in range(0, len(where), 64):
        gap = ((where[i : i + 64, None] - where[None]) ** 2).sum(-1)
        rho = reach[i : i + 64, None] + reach[None]
        pull = rho[..., None] ** 2 * (turned[i : i + 64, None] - turned[None]) ** 2
        best = float(np.maximum(best, (gap + _furthest(pull, rho, values)).max()))  # NaN stays NaN, and is refused
    spread = reach[:, None] * np.linalg.norm(across, axis=1)
    low, high = (where - spread).min(0), (where + spread).max(0)
    return _guarded(best**0.5, low, high)


def _furthest(pull: np.ndarray, rho: np.ndarray, values: np.ndarray) -> np.ndarray:
    r"""Bound of :math:`2\rho d^\top Bz + \rho^2\lVert Bz\rVert^2` over the unit ball.

    By Lagrange duality :math:`\mu + \sum_i \mathrm{pull}_i/(\mu - \rho^2\lambda_i)` bounds it for every
    :math:`\mu > \rho^2\lambda_{\max}`; the least over a few of them is within a percent of the truth.
    """
    scale, top = np.sqrt(pull.sum(-1)), rho**2 * values[-1] * (1 + 1e-9)
    bounds = []
    for share in _SHARES:
        mu = top + share * scale + 1e-300
        parts = np.where(pull == 0, 0.0, pull / (mu[..., None] - rho[..., None] ** 2 * values))
        bounds.append(mu + parts.sum(-1))
    return np.asarray(np.min(bounds, axis=0))


def _slice_points(
    points: np.ndarray, mover: int, cell: _Cell, step: np.ndarray, ends: tuple[float, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Corners of the point along the cut, and the factor of the ball across, for one cell."""
    slopes = _ends(cell)
    fixed = slopes @ cell.offset
    where = np.concatenate([fixed + slopes[:, [mover]] * t * step for t in ends])
    return where, np.tile(np.abs(slopes[:, mover]), len(ends))


# -- covariates in a box ----------------------------------------------------------------------------------------------


def _without(cut: np.ndarray, used: np.ndarray, region: Atoms) -> np.ndarray:
    """The part of the cut base number that neither covariates nor indicators, which are known, speak of."""
    out = cut.copy()
    for where in (used, *(np.arange(s, s + n) for s, n, _ in region.simplices)):
        out[where] = 0.0
    return out


def _on_box(points: np.ndarray, used: np.ndarray, cells: list[_Cell], cut: np.ndarray, region: Atoms) -> GradientSet:
    others = _without(cut, used, region)
    span = _slack(region, others)
    lo, hi = region.lo[used], region.hi[used]
    corners = np.where(np.array(list(product((False, True), repeat=len(used)))), hi, lo)
    collected = []
    for cell in _merged(cells, len(used)):
        inside = _slice_corners(corners, cut[used], cell.low - span[1], cell.high - span[0])
        if not len(inside):
            continue
        slopes = _ends(cell)
        vectors = cell.offset[:, None] + np.einsum("mdk,ik->mid", points[:, :, 1 + used], inside)
        collected.append(np.einsum("sm,mid->sid", slopes, vectors).reshape(-1, points.shape[1]))
    return _of_points(np.concatenate(collected))


def _slack(region: Atoms, coefficients: np.ndarray) -> tuple[float, float]:
    span = region.known_range(np.zeros(()), coefficients)
    return float(span.lo), float(span.hi)


def _merged(cells: list[_Cell], size: int) -> list[_Cell]:
    """Fewer, wider cells where each has very many corners."""
    step = max(1, int(np.ceil(len(cells) * size * 2.0**size / 4 / _POINTS)))
    groups = [
        list(group[i : i + step])
        for _, same in groupby(cells, key=lambda c: id(c.offset))
        for group in [list(same)]
        for i in range(0, len(group), step)
    ]
    return [
        g[0]._replace(
            slope_low=np.min([c.slope_low for c in g], axis=0),
            slope_high=np.max([c.slope_high for c in g], axis=0),
            high=g[-1].high,
        )
        for g in groups
    ]


def _slice_corners(corners: np.ndarray, direction: np.ndarray, low: float, high: float) -> np.ndarray:
    """Corners of a box cut by a slab: its own inside, and where edges cross the two planes."""
    values = corners @ direction
    slack = 1e-12 * (1 + np.abs(values).max())
    found = [corners[(values >= low - slack) & (values <= high + slack)]]
    count = corners.shape[1]
    for i in range(count):
        bit = 1 << (count - 1 - i)
        first = np.flatnonzero((np.arange(len(corners)) & bit) == 0)
        a, b = values[first], values[first | bit]
        for plane in (low, high):
            crosses = (np.minimum(a, b) < plane) & (np.maximum(a, b) > plane)
            t = (plane - a[crosses]) / (b[crosses] - a[crosses])
            start, end = corners[first[crosses]], corners[(first | bit)[crosses]]
            found.append(start + t[:, None] * (end - start))
    return np.concatenate(found)


def _of_points(points: np.ndarray) -> GradientSet:
    """Exact diameter of finitely many points, after leaving out those that cannot be an end of it."""
    points = np.unique(np.round(points, 14), axis=0)
    centre = (points.min(0) + points.max(0)) / 2
    far = np.linalg.norm(points - centre, axis=1)
    order = np.argsort(-far)
    points_, far = points[order], far[order]
    best = 0.0
    for i in range(0, len(points_), _ROWS):
        if far[i] + far[0] <= best:
            break
        keep = far + far[i] > best
        squares = ((points_[i : i + _ROWS, None] - points_[keep][None]) ** 2).sum(-1) if keep.any() else np.zeros(1)
        best = float(np.maximum(best, squares.max() ** 0.5))
    return _guarded(best + 1e-12, points.min(0), points.max(0))


# -- columns that are cut ---------------------------------------------------------------------------------------------


def _of_small_cells(points: np.ndarray, cells: list[_Cell], low: np.ndarray, high: np.ndarray) -> GradientSet:
    """Cells in which all numbers of the record lie in small intervals: of each, balls around the corners of its slopes."""
    middle, half = (low + high) / 2, (high - low) / 2
    centres, reach = [], []
    for i, cell in enumerate(cells):
        slopes = _ends(cell)
        centres.append(slopes @ (points[:, :, 0] + points[:, :, 1:] @ middle[i]))
        reach.append(np.abs(np.einsum("sm,mda->sda", slopes, points[:, :, 1:])) @ half[i])
    where, spread = np.concatenate(centres), np.concatenate(reach) * (1 + MARGIN)
    radius = np.linalg.norm(spread, axis=1)
    around = (where.min(0) + where.max(0)) / 2
    order = np.argsort(-(np.linalg.norm(where - around, axis=1) + radius))
    where, radius, spread = where[order], radius[order], spread[order]
    far, best = np.linalg.norm(where - around, axis=1) + radius, 0.0
    for i in range(0, len(where), 64):
        if far[i] + far[0] <= best:
            break
        apart = np.linalg.norm(where[i : i + 64, None] - where[None], axis=-1) + radius[i : i + 64, None] + radius
        best = float(np.maximum(best, apart.max()))  # NaN stays NaN, and is refused
    return _guarded(best, (where - spread).min(0), (where + spread).max(0))


# -- anything else ----------------------------------------------------------------------------------------------------


def _around(points: np.ndarray, cells: list[_Cell], whole: Atoms) -> GradientSet:
    """The box around the set, coordinate by coordinate."""
    lows, highs = [], []
    spans = [[whole.known_range(p[0], p[1:]) for p in points[j]] for j in range(len(points))]
    ranges = np.array([[(float(s.lo), float(s.hi)) for s in row] for row in spans])  # (m, d, 2)
    if whole.balls and not whole.simplices:
        ranges = _sharpened(ranges, points, whole)
    for cell in cells:
        ends = np.stack([cell.slope_low, cell.slope_high])  # (2, m)
        corner = ends[:, :, None, None] * ranges[None]  # (2, m, d, 2)
        lows.append(corner.min(axis=(0, 3)).sum(0))
        highs.append(corner.max(axis=(0, 3)).sum(0))
    low, high = np.min(lows, axis=0), np.max(highs, axis=0)
    longest = float(np.linalg.norm(np.maximum(np.abs(low), np.abs(high))))
    return _guarded(min(float(np.linalg.norm(high - low)), 2 * longest), low, high)


def _sharpened(ranges: np.ndarray, points: np.ndarray, region: Atoms) -> np.ndarray:
    """Ranges of linear functions with balls as balls, not as boxes."""
    box = np.flatnonzero(region.in_box)
    offset, q = points[:, :, 0], points[:, :, 1:]
    low = offset + np.minimum(q[..., box] * region.lo[box], q[..., box] * region.hi[box]).sum(-1)
    high = offset + np.maximum(q[..., box] * region.lo[box], q[..., box] * region.hi[box]).sum(-1)
    for start, count, radius in region.balls:
        reach = radius * np.linalg.norm(q[..., start : start + count], axis=-1)
        low, high = low - reach, high + reach
    return np.stack([np.maximum(ranges[..., 0], low), np.minimum(ranges[..., 1], high)], axis=-1)


def _guarded(diameter: float, low: np.ndarray, high: np.ndarray) -> GradientSet:
    if not (np.isfinite(diameter) and np.all(np.isfinite(low)) and np.all(np.isfinite(high))):
        raise Unsupported("kernel='langevin' needs gradients that are bounded on the domain; use kernel='guided'.")
    slack = (np.abs(low) + np.abs(high)) * (GUARD - 1)
    return GradientSet(diameter * GUARD, low - slack, high + slack)
