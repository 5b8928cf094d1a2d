"""Cutting the domain into cells, and the outward rounding of what holds on each."""

from typing import TypeAlias

import jax.numpy as jnp
import numpy as np

from sfumato.bounds.interval import Array, Interval

Cell: TypeAlias = dict[str, Interval]
"""Ranges of what is cut, by name; with a leading axis, those of all cells."""
ENUMERATE = 32
"""A discrete column with at most so many values gets one cell per value."""
_SAFETY = 1e-11  # outward rounding, relative to the sum of all magnitudes: thousands of roundings of 1e-16


def cut_for_ends(whole: Interval, count: int) -> Interval:
    """Cut an interval into cells that are finer near its ends, where exponentials are largest."""
    even = np.linspace(0.0, 1.0, count + 1)
    grid = (even + (1 - np.cos(np.pi * even)) / 2) / 2
    edges = whole.lo + (whole.hi - whole.lo) * jnp.asarray(grid)
    return Interval(edges[:-1], edges[1:])


def product_of_cells(edges: Cell) -> Cell:
    """Every combination of cells of the single axes."""
    grid = np.indices([len(e.lo) for e in edges.values()]).reshape(len(edges), -1)
    if len(edges) == 1:
        return edges
    return {k: Interval(e.lo[i], e.hi[i]) for (k, e), i in zip(edges.items(), grid, strict=True)}


def cut_evenly(whole: Interval, count: int) -> Interval:
    """Cells of one width: where a number lies among them is one multiplication."""
    edges = whole.lo + (whole.hi - whole.lo) * jnp.linspace(0.0, 1.0, count + 1)
    return Interval(edges[:-1], edges[1:])


def widen(x: Interval, size: Array) -> tuple[Array, Array]:
    """Round outward by far more than all rounding errors on the way."""
    slack = _SAFETY * size + 1e-300
    return x.lo - slack, x.hi + slack
