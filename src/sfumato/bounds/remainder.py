r"""Proven range of the second-order scalar of one record: what exact Langevin asks for at every step.

.. math:: s(r) = \ell(r,\theta') - \ell(r,\theta) - \nabla\ell(r,\theta^*)^\top v, \qquad v = \delta - w .

By Taylor's theorem in the base numbers of the model's program (`values`), cell by cell: `docs/proofs/remainder.md`. The range of
the swapped pair is the same one with its ends negated and exchanged.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.bounds import interval as iv
from sfumato.bounds.atoms import Axis, pad_last
from sfumato.bounds.cells import ENUMERATE, cut_evenly, cut_for_ends, product_of_cells, widen
from sfumato.bounds.interval import Array, Interval
from sfumato.bounds.program import Program
from sfumato.bounds.rules import no_derivative
from sfumato.bounds.values import Base, Curved, Scope, pad_slopes
from sfumato.domain import Domain
from sfumato.errors import Unsupported
from sfumato.model.base import Model, input_spec

CELLS = 24
"""Along one base number."""
CELLS_EACH = 8
"""Along each of two."""
_ROUNDING = 1e-15
"""Of the difference of two numbers, relative to their size: a few roundings of 1e-16."""


class Anchor(NamedTuple):
    r"""What the bound needs to know about a reference point: computed once, all public.

    Attributes
    ----------
    theta
        The reference point.
    directions
        What is cut, over the atoms: single columns first, then base numbers.
    low, high
        Ends of the cells along each of them, shape (cell, axis), their offsets taken off.
    counts
        Number of cells along each of them.
    atom_low, atom_high
        Range of every atom in each cell, where columns are cut.
    jacobian
        Derivatives of the base numbers in the parameter, over (1, atoms): shape (base, d, 1 + atoms).
    bound_low, bound_high
        Range of every base number at the reference point in each cell.
    slope_low, slope_high
        Range of :math:`\varphi_j(L^*)` in each cell.
    """

    theta: Array
    directions: Array
    low: Array
    high: Array
    counts: Array
    atom_low: Array
    atom_high: Array
    jacobian: Array
    bound_low: Array
    bound_high: Array
    slope_low: Array
    slope_high: Array


class Forms(NamedTuple):
    """Affine numbers of the record: offsets, and coefficients over the atoms."""

    offset: Array
    slopes: Array

    def __add__(self, other: "Forms") -> "Forms":  # type: ignore[override]
        return Forms(self.offset + other.offset, self.slopes + other.slopes)

    def __sub__(self, other: "Forms") -> "Forms":
        return Forms(self.offset - other.offset, self.slopes - other.slopes)

    def times(self, by: Array) -> "Forms":
        """Each multiplied by a number, or all by one."""
        return Forms(self.offset * by, self.slopes * jnp.asarray(by)[..., None])

    def pick(self, which: np.ndarray) -> "Forms":
        """Some of them, in another order."""
        return Forms(self.offset[which], self.slopes[which])


class Remainder:
    """The bound for one model and domain.

    Parameters
    ----------
    model, domain
        What is inferred, and where records live.

    Raises
    ------
    Unsupported
        If the model's program has an operation without a proven second derivative.
    """

    def __init__(self, model: Model, domain: Mapping[str, Domain]) -> None:
        self.program = Program(model, domain)
        theta, _ = input_spec(model.dim, domain)
        seen: list[Scope] = []

        def look(theta: Array) -> Array:
            seen.append(self._walk((theta,), twice=True)[0])
            return theta

        try:
            jax.eval_shape(look, theta)  # nothing is compiled
        except Unsupported as refused:
            raise no_derivative(str(refused.primitive)) from None
        self.region = seen[0].atoms
        self.record_functions = sorted({name for name, *_ in seen[0].derived})
        self.uses = np.stack([pad_last(base.uses, self.region.size) for base in seen[0].bases])
        self.varied = tuple(np.flatnonzero(self.uses.any(axis=1)).tolist())
        self.columns, self.axes = self._what_to_cut(seen[0])

    def _walk(
        self, thetas: tuple[Array, ...], columns: Mapping[int, Interval] | None = None, **asked: Any
    ) -> tuple[Scope, Curved]:
        scope, out = self.program.walk(thetas, columns, **asked)
        return scope, scope.curved(out)

    def _what_to_cut(self, scope: Scope) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Columns and base numbers.

        Functions of one or two columns stay tied to them where these are cut. Else the base numbers are cut, and a column of few
        values that decides a condition.
        """
        own = self.program.entries
        roots = {atom: {atom} for atom in range(len(own))}
        for atom, used in scope.index_columns.items():
            roots[atom] = set(used.tolist())
        for _, where, used in scope.derived:
            roots.update(dict.fromkeys(where.tolist(), set().union(*(roots[a] for a in used.tolist()))))
        entering = np.flatnonzero(self.uses.any(axis=0)).tolist()
        columns = sorted(set().union(*(roots[atom] for atom in entering)))
        tied = any(atom >= len(own) and atom not in scope.index_columns for atom in entering)
        if tied and len(columns) <= 2 and all(own[c][0].separable for c in columns):
            return tuple(columns), ()
        deciding = [c for used in scope.indexed for c in used.tolist() if c < len(own)]
        listed = [c for c in deciding if self.program.values(c, ENUMERATE) is not None]
        return tuple(listed[:1]), self.varied[: 2 - len(listed[:1])]

    # -- at the reference point ---------------------------------------------------------------------------------------

    def anchor(self, theta: Array, finer: int = 1, even: bool = False) -> Anchor:
        """Cells and slopes at a reference point; `finer` times as many along each base number that is cut, or all as wide."""
        derivatives, forms = jax.jacfwd(lambda t: self._forms((t,)) * 2, has_aux=True)(theta)
        count = finer * (CELLS if len(self.columns) + len(self.axes) == 1 else CELLS_EACH)
        cut = cut_evenly if even else cut_for_ends
        edges = {f"column{c}": self._column_edges(c, count, cut) for c in self.columns}
        edges |= {f"base{a}": cut(self.region.range(jnp.zeros(()), forms.slopes[a]), count) for a in self.axes}
        if edges:
            cells = product_of_cells(edges)
            low, high = (jnp.stack([cell[end] for cell in cells.values()], axis=1) for end in (0, 1))
        else:
            low = high = jnp.zeros((1, 0))
        directions = jnp.concatenate(
            [np.eye(self.region.size)[np.array(self.columns, dtype=int)], forms.slopes[np.array(self.axes, dtype=int)]]
        )

        def at(low: Array, high: Array) -> tuple[Interval, Interval, Interval]:
            scope, out = self._walk((theta,), self._restricted(low, high), axes=self._slabs(directions, low, high))
            bounds = Interval(*(jnp.stack([base.range[end] for base in scope.bases]) for end in (0, 1)))
            return scope.atoms.here(), bounds, _smooth(pad_slopes(out.slopes, scope.width))

        jacobian = jnp.concatenate([derivatives.offset[..., None], jnp.swapaxes(derivatives.slopes, -1, -2)], axis=-1)
        counts = np.array([len(e.lo) for e in edges.values()], dtype=int)
        atoms, bounds, slope = jax.vmap(at)(low, high)
        return Anchor(theta, directions, low, high, counts, *atoms, jacobian, *bounds, *slope)

    def _column_edges(self, column: int, count: int, cut: Callable[[Interval, int], Interval]) -> Interval:
        """Cells of a column; of one with few values they are all one wide, and hold one value each."""
        if (values := self.program.values(column, ENUMERATE)) is not None:
            return Interval(jnp.asarray(values - 0.5), jnp.asarray(values + 0.5))
        return cut(Interval(*(jnp.asarray(end[column]) for end in (self.region.lo, self.region.hi))), count)

    def _restricted(self, low: Array, high: Array) -> dict[int, Interval]:
        """Ranges of the columns that are cut, in one cell."""
        listed = [self.program.values(c, ENUMERATE) is not None for c in self.columns]
        return {
            c: iv.point((low[i] + high[i]) / 2) if listed[i] else Interval(low[i], high[i])
            for i, c in enumerate(self.columns)
        }

    def _slabs(self, directions: Array, low: Array, high: Array) -> list[Axis]:
        """Cells of the base numbers that are cut; an axis ends with the last atom that it uses."""
        sizes = [1 + int(np.flatnonzero(self.uses[axis]).max()) for axis in self.axes]
        first = len(self.columns)
        return [Axis(directions[i, :size], Interval(low[i], high[i])) for i, size in enumerate(sizes, first)]

    def _forms(self, thetas: tuple[Array, ...]) -> tuple[Forms, ...]:
        """All base numbers at each of the parameters."""
        scope, _ = self._walk(thetas)

        def at(side: int, base: Base) -> tuple[Array, Array]:
            return base.offset[side], pad_last(base.coefficients[side], self.region.size)

        each = [[at(side, base) for base in scope.bases] for side in range(len(thetas))]
        return tuple(Forms(*(jnp.stack(part) for part in zip(*found, strict=True))) for found in each)

    # -- for a pair -----------------------------------------------------------------------------------------------------

    def range(self, anchor: Anchor, theta: Array, theta_prop: Array, w: Array) -> tuple[Array, Array]:
        """Bound the scalar from below and above, for every record of the domain."""
        points = (anchor.theta, theta, theta_prop)
        start, here, there = self._forms(points)
        step, middle = there - here, (here + there).times(jnp.asarray(0.5)) - start
        # How the base numbers move beyond what their derivatives at the reference point say of delta - w; w, if they are linear.
        extra = (step - self._along(anchor, theta_prop - theta)) + self._along(anchor, w)
        lost = sum(jnp.abs(f.offset) + self.region.magnitude(f.slopes) for f in (start, here, there))
        from_start, to_start, delta, off = (
            self.region.range(*form) for form in (here - start, there - start, step, middle)
        )
        spread = iv.hull(iv.hull(from_start, to_start), iv.point(jnp.zeros(())))
        crossed = self._crossed(step, middle, iv.magnitude(delta), iv.magnitude(off))
        parts = slice(None, len(crossed.offset)), slice(len(crossed.offset), None)
        asked = Forms(*(jnp.concatenate(pair) for pair in zip(crossed, extra, strict=True)))

        def cell(low: Array, high: Array, bounds: Interval, slope: Interval) -> tuple[Array, Array]:
            slabs = self._slabs(anchor.directions, low, high)
            given = iv.add(bounds, spread)
            scope, out = self._walk(points, self._restricted(low, high), axes=slabs, twice=True, given=given)
            ranges = scope.atoms.range(*asked)
            squares, rest = (Interval(*(end[part] for end in ranges)) for part in parts)
            rest = Interval(rest.lo - _ROUNDING * lost, rest.hi + _ROUNDING * lost)
            return self._combine(_second(scope, out), slope, delta, off, rest, iv.square(squares))

        bounds = Interval(anchor.bound_low, anchor.bound_high)
        slope = Interval(anchor.slope_low, anchor.slope_high)
        low, high = jax.vmap(cell)(anchor.low, anchor.high, bounds, slope)
        low, high = jnp.min(low), jnp.max(high)
        undefined = ~(low <= high)
        return jnp.where(undefined, -jnp.inf, low), jnp.where(undefined, jnp.inf, high)

    def _along(self, anchor: Anchor, direction: Array) -> Forms:
        """Derivatives of the base numbers along a direction of the parameter."""
        found = jnp.einsum("d,mdb->mb", direction, anchor.jacobian)
        return Forms(found[:, 0], found[:, 1:])

    def _crossed(self, p: Forms, q: Forms, reach_p: Array, reach_q: Array) -> Forms:
        """Both combinations of every pair of base numbers that look at the record, one after the other."""
        rows, columns = self._pairs()
        kappa = jnp.sqrt(jnp.maximum(reach_p[rows], 1e-150) / jnp.maximum(reach_q[columns], 1e-150))
        one, other = p.pick(rows).times(1 / kappa), q.pick(columns).times(kappa)
        return Forms(*(jnp.concatenate(pair) for pair in zip(one + other, one - other, strict=True)))

    def _pairs(self) -> tuple[np.ndarray, np.ndarray]:
        pairs = np.array([(j, k) for j in self.varied for k in self.varied], dtype=int).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    def _combine(
        self, second: Interval, slope: Interval, delta: Interval, middle: Interval, extra: Interval,
        squares: Interval,
    ) -> tuple[Array, Array]:  # fmt: skip
        products = iv.mul(_column(delta), _row(middle))
        if self.varied:
            rows, columns = self._pairs()
            count = len(rows)
            sharper = Interval(
                (squares.lo[:count] - squares.hi[count:]) / 4, (squares.hi[:count] - squares.lo[count:]) / 4
            )
            met = iv.meet(Interval(products.lo[rows, columns], products.hi[rows, columns]), sharper)
            products = Interval(products.lo.at[rows, columns].set(met.lo), products.hi.at[rows, columns].set(met.hi))
        main = iv.mul(second, products)
        reach = iv.magnitude(delta)
        blur = iv.times(iv.radius(second), reach[:, None] * reach[None, :]) / 4
        rest = iv.mul(slope, extra)
        low = jnp.sum(main.lo) - jnp.sum(blur) + jnp.sum(rest.lo)
        high = jnp.sum(main.hi) + jnp.sum(blur) + jnp.sum(rest.hi)
        size = jnp.sum(iv.magnitude(main)) + jnp.sum(blur) + jnp.sum(iv.magnitude(rest))
        return widen(Interval(low, high), size)


def _smooth(slopes: Interval) -> Interval:
    """Slopes of the base numbers; none is known where the number may jump."""
    jumps = (slopes.lo[0] != 0) | (slopes.hi[0] != 0)
    return Interval(jnp.where(jumps, -jnp.inf, slopes.lo[1:]), jnp.where(jumps, jnp.inf, slopes.hi[1:]))


def _second(scope: Scope, out: Curved) -> Interval:
    """Second derivatives in the base numbers; none are known where the number may jump."""
    assert out.second is not None  # noqa: S101 (it was asked for)
    jumps = (out.slopes.lo[0] != 0) | (out.slopes.hi[0] != 0)
    low, high = (end[1:, 1:] for end in pad_slopes(out.second, scope.width, axes=2))
    return Interval(jnp.where(jumps, -jnp.inf, low), jnp.where(jumps, jnp.inf, high))


def _column(x: Interval) -> Interval:
    return Interval(x.lo[:, None], x.hi[:, None])


def _row(x: Interval) -> Interval:
    return Interval(x.lo[None, :], x.hi[None, :])
