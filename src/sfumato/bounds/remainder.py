r"""Proven range of the second-order scalar of one record: what exact Langevin asks for at every step.

.. math:: s(r) = \ell(r,\theta') - \ell(r,\theta) - \nabla\ell(r,\theta^*)^\top v, \qquad v = \delta - w .

By Taylor's theorem in the model's linear predictors, cell by cell: `docs/proofs/remainder.md`. The range of the swapped
pair is the same one with its ends negated and exchanged.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.bounds import interval as iv
from sfumato.bounds.certifier import cut_evenly, product_of_cells, widen
from sfumato.bounds.interval import Array, Interval
from sfumato.bounds.jets import Jet
from sfumato.bounds.predictors import Program
from sfumato.bounds.region import Slab
from sfumato.domain import Domain
from sfumato.model.base import Model

CELLS = 24
"""Along one predictor."""
CELLS_EACH = 8
"""Along each of two."""


class Anchor(NamedTuple):
    r"""What the bound needs to know about a reference point: computed once, all public.

    Attributes
    ----------
    theta
        The reference point.
    directions
        Coefficients of the predictors that are cut, over the atoms.
    low, high
        Ends of the cells along each of them, shape (cell, axis), their offsets taken off.
    bound_low, bound_high
        Range of every predictor at the reference point in each cell.
    slope_low, slope_high
        Range of :math:`\varphi_j(L^*)` in each cell.
    """

    theta: Array
    directions: Array
    low: Array
    high: Array
    bound_low: Array
    bound_high: Array
    slope_low: Array
    slope_high: Array


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
        self.found = self.program.predictors
        self.region = self.found.region
        self.tables = self.found.all_tables()
        varied = [j for j in range(len(self.tables)) if self.tables[j][:, 1:].any()]
        self.varied = tuple(varied)
        self.axes = tuple(varied[:2])

    # -- at the reference point ---------------------------------------------------------------------------------------

    def anchor(self, theta: Array, finer: int = 1, even: bool = False) -> Anchor:
        """Cells and slopes at a reference point; `finer` times as many along each predictor that is cut, or all as wide."""
        offset, q = self._forms(theta)
        edges = {}
        count = finer * (CELLS if len(self.axes) == 1 else CELLS_EACH)
        for axis in self.axes:
            whole = self.region.range(jnp.zeros(()), q[axis])
            edges[str(axis)] = _even(whole, count) if even else cut_evenly(whole, count)
        if edges:
            cells = product_of_cells(edges)
            low, high = (jnp.stack([cells[str(a)][end] for a in self.axes], axis=1) for end in (0, 1))
        else:
            low = high = jnp.zeros((1, 0))
        directions = q[np.array(self.axes, dtype=int)]

        def slopes(low: Array, high: Array) -> tuple[Interval, Interval]:
            slabs = self._slabs(directions, low, high)
            bounds = self._within(offset, q, slabs)
            first = self._jet(bounds).first
            return bounds, Interval(*(jnp.broadcast_to(end, (len(q),)) for end in first))

        bounds, slope = jax.vmap(slopes)(low, high)
        return Anchor(theta, directions, low, high, *bounds, *slope)

    def _slabs(self, directions: Array, low: Array, high: Array) -> list[Slab]:
        used = [self.tables[axis][:, 1:].any(axis=0) for axis in self.axes]
        return [Slab(directions[i], low[i], high[i], used[i]) for i in range(len(self.axes))]

    def _forms(self, theta: Array) -> tuple[Array, Array]:
        """Offset and coefficients over the atoms of every predictor, at a parameter."""
        all_ = jnp.einsum("a,mab->mb", jnp.concatenate([jnp.ones(1), theta]), jnp.asarray(self.tables))
        return all_[:, 0], all_[:, 1:]

    def _along(self, direction: Array) -> tuple[Array, Array]:
        """The same for the linear part along a direction."""
        all_ = jnp.einsum("a,mab->mb", direction, jnp.asarray(self.tables[:, 1:]))
        return all_[:, 0], all_[:, 1:]

    def _within(self, offset: Array, q: Array, slabs: list[Slab]) -> Interval:
        bounds = self.region.range(offset, q, slabs)
        for slab, axis in zip(slabs, self.axes, strict=True):
            bounds = Interval(
                bounds.lo.at[axis].max(offset[axis] + slab.low), bounds.hi.at[axis].min(offset[axis] + slab.high)
            )
        return bounds

    def _jet(self, bounds: Interval) -> Jet:
        def enter(table: np.ndarray) -> Interval:
            if table[1:].any():
                j = self.found.index(table)
                return Interval(bounds.lo[j], bounds.hi[j])
            row = jnp.asarray(self.found.pad(table)[0])
            return self.region.range(row[0], row[1:])

        return self.program.jet(enter)

    # -- for a pair -----------------------------------------------------------------------------------------------------

    def range(self, anchor: Anchor, theta: Array, theta_prop: Array, w: Array) -> tuple[Array, Array]:
        """Bound the scalar from below and above, for every record of the domain."""
        forms = [self._along(t - anchor.theta) for t in (theta, theta_prop)]
        forms += [self._along(theta_prop - theta), self._along((theta + theta_prop) / 2 - anchor.theta), self._along(w)]
        here, there, delta, middle = (self.region.range(*form) for form in forms[:4])
        spread = iv.hull(iv.hull(here, there), iv.point(jnp.zeros(())))
        crossed = self._crossed(forms[2], forms[3], iv.magnitude(delta), iv.magnitude(middle))
        parts = slice(None, len(crossed[0])), slice(len(crossed[0]), None)

        def cell(low: Array, high: Array, bounds: Interval, slope: Interval) -> tuple[Array, Array]:
            slabs = self._slabs(anchor.directions, low, high)
            second = self._jet(iv.add(bounds, spread)).second
            offset, q = (jnp.concatenate(pair) for pair in zip(crossed, forms[4], strict=True))
            ranges = self.region.range(offset, q, slabs)
            squares, extra = (Interval(*(end[part] for end in ranges)) for part in parts)
            return self._combine(second, slope, delta, middle, extra, iv.square(squares))

        bounds = Interval(anchor.bound_low, anchor.bound_high)
        slope = Interval(anchor.slope_low, anchor.slope_high)
        low, high = jax.vmap(cell)(anchor.low, anchor.high, bounds, slope)
        low, high = jnp.min(low), jnp.max(high)
        undefined = ~(low <= high)
        return jnp.where(undefined, -jnp.inf, low), jnp.where(undefined, jnp.inf, high)

    def _crossed(
        self, p: tuple[Array, Array], q: tuple[Array, Array], reach_p: Array, reach_q: Array
    ) -> tuple[Array, Array]:
        """Both combinations of every pair of predictors that look at the record, one after the other."""
        rows, columns = self._pairs()
        kappa = jnp.sqrt(jnp.maximum(reach_p[rows], 1e-150) / jnp.maximum(reach_q[columns], 1e-150))
        one = p[0][rows] / kappa, p[1][rows] / kappa[:, None]
        other = q[0][columns] * kappa, q[1][columns] * kappa[:, None]
        return tuple(jnp.concatenate([a + b, a - b]) for a, b in zip(one, other, strict=True))  # type: ignore[return-value]

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


def _even(whole: Interval, count: int) -> Interval:
    """Cells of one width: where a number lies among them is one multiplication."""
    edges = whole.lo + (whole.hi - whole.lo) * jnp.linspace(0.0, 1.0, count + 1)
    return Interval(edges[:-1], edges[1:])


def _column(x: Interval) -> Interval:
    return Interval(x.lo[:, None], x.hi[:, None])


def _row(x: Interval) -> Interval:
    return Interval(x.lo[None, :], x.hi[None, :])
