r"""Proven ranges of one record's log ratio, from the model's own program.

The program of the log-likelihood is walked with abstract values (`values`), which gives

.. math:: \ell(r,\theta') - \ell(r,\theta) = S_0 + \sum_j S_j\,w_j(r)

with interval slopes S and affine differences w. The record domain is cut into cells, along the affine numbers that are
bent by the model or along single columns, and the walk is done for all cells at once: in a small cell the slopes are
nearly numbers, so that the range of the affine function :math:`S_0 + \sum_j \bar S_j w_j`, which is exact, is all that
matters. The remaining radii are added outright.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.bounds import interval as iv
from sfumato.bounds.atoms import Atoms, Axis, pad_last
from sfumato.bounds.bounds import Bounds
from sfumato.bounds.canonical import log_density
from sfumato.bounds.interpreter import run
from sfumato.bounds.interval import Array, Interval
from sfumato.bounds.values import Affine, Const, Scope, Value, align, difference_form
from sfumato.domain import Domain
from sfumato.errors import InvalidInput
from sfumato.model.base import Model, Record, input_spec
from sfumato.tools.quick_jit import quick_jit

_CELLS = 64  # along a single axis
_FEW_CELLS = 32  # for tables so small that proving a range would take longer than summing: 1 to 2 % wider
_ALL_CELLS = 400  # along several, together
_ENUMERATE = 32  # a discrete column with at most so many values gets one cell per value
_WORTH_CUTTING = 0.1  # share of all blur from which on a second affine number is cut too
_PROBES = 3
_SAFETY = 1e-11  # outward rounding, relative to the sum of all magnitudes: thousands of roundings of 1e-16


Cell: TypeAlias = dict[str, Interval]


class Plan(NamedTuple):
    """Where to cut: single atoms, and affine numbers by their names."""

    columns: tuple[int, ...]
    forms: tuple[int, ...]


class Certifier:
    """The walk for one model and domain."""

    def __init__(self, model: Model, domain: Mapping[str, Domain]) -> None:
        self.model = model
        self.domain = dict(domain)
        theta, record = input_spec(model.dim, domain)
        self.program = jax.make_jaxpr(canonical_log_likelihood(model))(theta, record)
        self.exact = False  # set by the plan: an affine log ratio has an exact range
        self.names = sorted(record)  # the order in which JAX flattens a dict
        self.plan = self._plan()

    def range(self, theta: Array, theta_prop: Array, cells_per_axis: int = _CELLS) -> tuple[Array, Array]:
        """Bound the log ratio from below and above."""
        cells = self._cells(theta, theta_prop, cells_per_axis)
        if cells is None:
            low, high = self._walk(theta, theta_prop, {}, {})
        else:
            edges, coefficients = cells
            low, high = jax.vmap(lambda cell: self._walk(theta, theta_prop, cell, coefficients))(edges)
            low, high = jnp.min(low), jnp.max(high)
        undefined = ~(low <= high)  # NaN, too
        return jnp.where(undefined, -jnp.inf, low), jnp.where(undefined, jnp.inf, high)

    # -- one cell -----------------------------------------------------------------------------------------------------

    def _walk(self, theta: Array, theta_prop: Array, cell: Cell, forms: dict[str, Array]) -> tuple[Array, Array]:
        scope, inputs = self._start(theta, theta_prop, cell)
        scope.atoms.axes = [Axis(coefficients, cell[key]) for key, coefficients in forms.items()]
        scope.atoms.may_be_empty = len(cell) > 1
        (out,) = run(scope, self.program, inputs)
        low, high = combine(scope, out)
        empty = scope.atoms.empty
        return jnp.where(empty, jnp.inf, low), jnp.where(empty, -jnp.inf, high)

    def _start(self, theta: Array, theta_prop: Array, cell: Cell) -> tuple[Scope, list[Value]]:
        """Atoms of the record, restricted to the cell."""
        atoms = Atoms()
        scope = Scope(atoms, cut=set(self.plan.columns) if cell else set())
        inputs: list[Value] = [Const((theta, theta_prop), fixed=False)]
        for name in self.names:
            domain = self.domain[name]
            known = Interval(domain.lo.reshape(-1), domain.hi.reshape(-1))
            if domain.separable:
                where = atoms.add_box(self._restrict(known, atoms.size, cell), known)
            else:
                where = atoms.add_body(domain.support, domain.shape, known)
            inputs.append(scope.pick(where.reshape(domain.shape), positive=bool(np.all(domain.lo > 0))))
        return scope, inputs

    def _restrict(self, known: Interval, start: int, cell: Cell) -> Interval:
        low, high = known
        for column in self.plan.columns if cell else ():
            if start <= column < start + len(known.lo):
                lower, upper = cell[f"column{column}"]
                low, high = (jnp.asarray(end) for end in (low, high))
                low, high = low.at[column - start].set(lower), high.at[column - start].set(upper)
        return Interval(low, high)

    # -- where to cut -------------------------------------------------------------------------------------------------

    def _plan(self) -> Plan:
        """Walk on the whole domain and see what is bent, chosen by index, or enters in two forms."""
        self.plan = Plan((), ())
        seen: list[Scope] = []

        def blurs(theta: Array, theta_prop: Array) -> Array:
            scope, inputs = self._start(theta, theta_prop, {})
            (out,) = run(scope, self.program, inputs)
            seen.append(scope)
            self.exact = isinstance(out, Const | Affine) and not any(
                w in scope.touched for d, _ in scope.derived for w in d
            )
            return _blurs(scope, out)

        # Any parameters do for finding out which numbers matter: the choice affects tightness, never soundness.
        rng = np.random.default_rng(0)
        theta = rng.normal(scale=0.5, size=(_PROBES, self.model.dim))
        step = rng.normal(scale=1e-3, size=theta.shape)
        arguments = jax.device_put(theta), jax.device_put(theta + step)
        measured = quick_jit(jax.vmap(blurs))(*arguments)
        weights = np.nan_to_num(np.asarray(measured), nan=1e300, posinf=1e300)
        shares = np.mean(weights / np.maximum(weights.sum(axis=-1, keepdims=True), 1e-300), axis=0)
        return self._choose(seen[0], shares)

    def _choose(self, scope: Scope, shares: np.ndarray) -> Plan:
        single = self._single
        columns = [c for used in scope.indexed for c in used.tolist() if single.get(c) is not None]
        columns = list(dict.fromkeys(columns))[:1]
        bent = [
            (name, used) for name, used in scope.curved_arguments if used.size and shares[scope.columns[name] - 1] > 0
        ]
        touched = sorted({int(a) for _, used in bent for a in used})
        if touched and len(touched) <= 2 and all(a in single for a in touched):
            return Plan(tuple(dict.fromkeys([*columns, *touched])), ())
        bent.sort(key=lambda item: -shares[scope.columns[item[0]] - 1])
        forms = [name for name, _ in bent if shares[scope.columns[name] - 1] >= _WORTH_CUTTING][: 2 - len(columns)]
        twice = self._used_twice(scope, single)
        columns = list(dict.fromkeys([*columns, *twice[: 2 - len(forms)]]))
        return Plan(tuple(columns), tuple(forms))

    @cached_property
    def _single(self) -> dict[int, np.ndarray | None]:
        """Atoms that are entries of boxes, and the values they can take, where these are few."""
        out: dict[int, np.ndarray | None] = {}
        start = 0
        for name in self.names:
            domain = self.domain[name]
            if domain.separable:
                out.update({start + i: domain.cells(i, _ENUMERATE) for i in range(domain.size)})
            start += domain.size
        return out

    def _known(self, column: int) -> tuple[float, float]:
        low = np.concatenate([self.domain[n].lo.reshape(-1) for n in self.names])
        high = np.concatenate([self.domain[n].hi.reshape(-1) for n in self.names])
        return float(low[column]), float(high[column])

    def _used_twice(self, scope: Scope, single: Iterable[int]) -> list[int]:
        """Columns that enter in two forms, such as v and log v: cutting them keeps the two consistent."""
        root = {column: column for column in single}
        for where, used in scope.derived:
            roots = {root.get(int(a)) for a in used}
            if len(roots) == 1 and None not in roots:
                root.update({int(a): next(iter(roots)) for a in where})  # type: ignore[misc]
        entered = [root[a] for a in sorted(scope.touched) if a in root]
        return [column for column in dict.fromkeys(entered) if entered.count(column) > 1]

    def _cells(self, theta: Array, theta_prop: Array, most: int) -> tuple[Cell, dict[str, Array]] | None:
        """All cells, as arrays along one leading axis."""
        if not self.plan.columns and not self.plan.forms:
            return None
        count = self._cells_per_axis(most)
        edges = {f"column{c}": self._column_edges(c, count) for c in self.plan.columns}
        coefficients = {}
        if self.plan.forms:
            scope, inputs = self._start(theta, theta_prop, {})
            run(scope, self.program, inputs)
            for name in self.plan.forms:
                _, coefficients[f"form{name}"] = scope.forms[name]
                whole = scope.atoms.range(jnp.zeros(()), coefficients[f"form{name}"])
                edges[f"form{name}"] = cut_evenly(whole, count)
        return product_of_cells(edges), coefficients

    def _cells_per_axis(self, most: int) -> int:
        """Share the cells among the axes, after those that the values of a discrete column take."""
        listed = [len(values) for c in self.plan.columns if (values := self._single[c]) is not None]
        others = len(self.plan.columns) + len(self.plan.forms) - len(listed)
        if others <= 1 and not listed:
            return most
        room = _ALL_CELLS * (most / _CELLS) / np.prod(listed, dtype=float)
        return int(np.clip(room ** (1 / max(others, 1)), 8, most))

    def _column_edges(self, column: int, count: int) -> Interval:
        low, high = self._known(column)
        if (listed := self._single[column]) is not None:
            values = jnp.asarray(listed)
            return Interval(values, values)
        return cut_evenly(Interval(jnp.asarray(low), jnp.asarray(high)), count)


def cut_evenly(whole: Interval, count: int) -> Interval:
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


def _blurs(scope: Scope, out: Value) -> Array:
    """How much the uncertainty of each slope adds to the range."""
    if isinstance(out, Const | Affine) or scope.width == 1:
        return jnp.zeros(scope.width - 1)
    value = scope.curved(out)
    slopes = Interval(pad_last(value.slopes.lo, scope.width)[1:], pad_last(value.slopes.hi, scope.width)[1:])
    moves = Interval(*(jnp.stack([d.range[end] for d in scope.differences]) for end in (0, 1)))
    return iv.times(iv.radius(slopes), iv.magnitude(moves))


# -- the end of a walk ------------------------------------------------------------------------------------------------


def combine(scope: Scope, out: Value) -> tuple[Array, Array]:
    r"""Range of :math:`S_0 + \sum_j S_j w_j` in the present cell.

    Two bounds hold and are intersected: the sum of interval products, and the exact range of the affine function with
    the slopes' midpoints plus :math:`\sum_j \mathrm{rad}(S_j)\max|w_j|`.
    """
    if isinstance(out, Const):
        difference = jnp.asarray(out.at[1] - out.at[0], dtype=float)
        return widen(Interval(difference, difference), jnp.abs(difference))
    if isinstance(out, Affine):
        offset, coefficients = difference_form(out)
        exact = scope.atoms.range(offset, coefficients)
        return widen(exact, iv.magnitude(exact))
    value = scope.curved(out)
    slopes = Interval(pad_last(value.slopes.lo, scope.width), pad_last(value.slopes.hi, scope.width))
    if scope.width == 1:
        only = Interval(slopes.lo[0], slopes.hi[0])
        return widen(only, iv.magnitude(only))
    moves = Interval(*(jnp.stack([d.range[end] for d in scope.differences]) for end in (0, 1)))
    steps = Interval(slopes.lo[1:], slopes.hi[1:])
    products = iv.mul(steps, moves)
    total = Interval(slopes.lo[0] + jnp.sum(products.lo), slopes.hi[0] + jnp.sum(products.hi))
    size = jnp.maximum(jnp.abs(slopes.lo[0]), jnp.abs(slopes.hi[0])) + jnp.sum(
        iv.magnitude(steps) * iv.magnitude(moves)
    )
    if scope.width > 2:
        middle = iv.centre(steps)
        blur = jnp.sum(iv.times(iv.radius(steps), iv.magnitude(moves)))
        offsets = jnp.stack([d.offset for d in scope.differences])
        coefficients = jnp.stack(align(*(d.coefficients for d in scope.differences)))
        affine = scope.atoms.range(middle @ offsets, middle @ coefficients)
        total = iv.meet(total, Interval(slopes.lo[0] + affine.lo - blur, slopes.hi[0] + affine.hi + blur))
    return widen(total, size)


def widen(x: Interval, size: Array) -> tuple[Array, Array]:
    """Round outward by far more than all rounding errors on the way."""
    slack = _SAFETY * size + 1e-300
    return x.lo - slack, x.hi + slack


# -- the program ------------------------------------------------------------------------------------------------------


def canonical_log_likelihood(
    model: Model, density: Callable[[Any, Array], Array] = log_density
) -> Callable[[Array, Record], Array]:
    """Log-likelihood of one record up to terms without the parameter, in canonical form where the factors are known."""
    if model.observations is None:
        return model.log_likelihood
    observations = model.observations

    def total(theta: Array, record: Record) -> Array:
        out = jnp.zeros(())
        for factor in observations(theta, record):
            out += jnp.sum(density(factor.distribution, factor.value) * factor.scale)
        return out

    return total


def certified(model: Model, domain: Mapping[str, Domain]) -> Bounds:
    """Build the proven range for a model on a domain."""
    missing = [name for name in model.columns if name not in domain]
    if missing:
        raise InvalidInput(f"the domain must declare the columns {missing}, which the model uses.")
    certifier = Certifier(model, {name: domain[name] for name in model.columns})
    quick = partial(certifier.range, cells_per_axis=_FEW_CELLS)
    return Bounds(certifier.range, "exact" if certifier.exact else "certified", proven=True, quick=quick)
