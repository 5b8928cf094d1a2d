r"""Proven ranges of one record's log ratio, from the model's own program.

The program of the log-likelihood is walked with abstract values (`values`), which gives

.. math:: \ell(r,\theta') - \ell(r,\theta) = S_0 + \sum_j S_j\,w_j(r)

with interval slopes S and affine differences w. The record domain is cut into cells, along the affine numbers that are
bent by the model or along single columns, and the walk is done for all cells at once: in a small cell the slopes are
nearly numbers, so that the range of the affine function :math:`S_0 + \sum_j \bar S_j w_j`, which is exact, is all that
matters. The remaining radii are added outright.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.bounds import interval as iv
from sfumato.bounds.atoms import Axis
from sfumato.bounds.bounds import Bounds
from sfumato.bounds.cells import ENUMERATE, Cell, cut_for_ends, product_of_cells, widen
from sfumato.bounds.interval import Array, Interval
from sfumato.bounds.program import Program
from sfumato.bounds.values import Affine, Const, Scope, Value, align, difference_form, mean_form, pad_slopes
from sfumato.domain import Domain
from sfumato.errors import InvalidInput
from sfumato.model.base import Model
from sfumato.tools.quick_jit import quick_jit

_CELLS = 64  # along a single axis
_FEW_CELLS = 32  # for tables so small that proving a range would take longer than summing: 1 to 2 % wider
_ALL_CELLS = 400  # along several, together
_WORTH_CUTTING = 0.1  # share of all blur from which on a second affine number is cut too
_PROBES = 3


class Plan(NamedTuple):
    """Where to cut: single atoms, and base numbers."""

    columns: tuple[int, ...]
    forms: tuple[int, ...]


class Certifier:
    """The walk for one model and domain."""

    def __init__(self, model: Model, domain: Mapping[str, Domain]) -> None:
        self.program = Program(model, domain)
        self.exact = False  # set by the plan: an affine log ratio has an exact range
        self.plan = self._plan()

    def range(self, theta: Array, theta_prop: Array, cells_per_axis: int = _CELLS) -> tuple[Array, Array]:
        """Bound the log ratio from below and above."""
        both = (theta, theta_prop)
        if not self.plan.columns and not self.plan.forms:
            low, high = combine(*self.program.walk(both, pair=True))
        else:
            edges, forms = self._cells(both, cells_per_axis)
            low, high = jax.vmap(lambda cell: self._walk(both, cell, forms))(edges)
            low, high = jnp.min(low), jnp.max(high)
        undefined = ~(low <= high)  # NaN, too
        return jnp.where(undefined, -jnp.inf, low), jnp.where(undefined, jnp.inf, high)

    def _walk(self, both: tuple[Array, Array], cell: Cell, forms: list[Array]) -> tuple[Array, Array]:
        """The range on one cell; that of an empty one is empty."""
        columns = {column: cell[f"column{column}"] for column in self.plan.columns}
        axes = [Axis(form, cell[f"form{number}"]) for number, form in zip(self.plan.forms, forms, strict=True)]
        scope, out = self.program.walk(both, columns, axes=axes, pair=True)
        low, high = combine(scope, out)
        empty = scope.atoms.empty
        return jnp.where(empty, jnp.inf, low), jnp.where(empty, -jnp.inf, high)

    # -- where to cut -------------------------------------------------------------------------------------------------

    def _plan(self) -> Plan:
        """Walk on the whole domain and see what is bent, chosen by index, or enters in two forms."""
        seen: list[Scope] = []

        def blurs(theta: Array, theta_prop: Array) -> Array:
            scope, out = self.program.walk((theta, theta_prop), pair=True)
            seen.append(scope)
            self.exact = isinstance(out, Const | Affine) and not any(
                w in scope.touched for _, where, _ in scope.derived for w in where
            )
            return _blurs(scope, out)

        # Any parameters do for finding out which numbers matter: the choice affects tightness, never soundness.
        rng = np.random.default_rng(0)
        theta = rng.normal(scale=0.5, size=(_PROBES, self.program.dim))
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
        bent = {number - 1: used for number, used in scope.bent.items() if used.size and shares[number - 1] > 0}
        touched = sorted({int(a) for used in bent.values() for a in used})
        if touched and len(touched) <= 2 and all(a in single for a in touched):
            return Plan(tuple(dict.fromkeys([*columns, *touched])), ())
        worst = sorted(bent, key=lambda number: -shares[number])
        forms = [number for number in worst if shares[number] >= _WORTH_CUTTING][: 2 - len(columns)]
        twice = self._used_twice(scope, single)
        columns = list(dict.fromkeys([*columns, *twice[: 2 - len(forms)]]))
        return Plan(tuple(columns), tuple(forms))

    @cached_property
    def _single(self) -> dict[int, np.ndarray | None]:
        """Atoms that are entries of boxes, and the values they can take, where these are few."""
        separable = [at for at, (domain, _) in enumerate(self.program.entries) if domain.separable]
        return {at: self.program.values(at, ENUMERATE) for at in separable}

    def _used_twice(self, scope: Scope, single: Iterable[int]) -> list[int]:
        """Columns that enter in two forms, such as v and log v: cutting them keeps the two consistent."""
        root = {column: column for column in single}
        for _, where, used in scope.derived:
            roots = {root.get(int(a)) for a in used}
            if len(roots) == 1 and None not in roots:
                root.update({int(a): next(iter(roots)) for a in where})  # type: ignore[misc]
        entered = [root[a] for a in sorted(scope.touched) if a in root]
        return [column for column in dict.fromkeys(entered) if entered.count(column) > 1]

    def _cells(self, both: tuple[Array, Array], most: int) -> tuple[Cell, list[Array]]:
        """All cells, as arrays along one leading axis, and the affine numbers that are cut."""
        count = self._cells_per_axis(most)
        edges = {f"column{c}": self._column_edges(c, count) for c in self.plan.columns}
        forms = []
        if self.plan.forms:
            scope, _ = self.program.walk(both, pair=True)
            for number in self.plan.forms:
                _, form = mean_form(scope.bases[number])
                edges[f"form{number}"] = cut_for_ends(scope.atoms.range(jnp.zeros(()), form), count)
                forms.append(form)
        return product_of_cells(edges), forms

    def _cells_per_axis(self, most: int) -> int:
        """Share the cells among the axes, after those that the values of a discrete column take."""
        listed = [len(values) for c in self.plan.columns if (values := self._single[c]) is not None]
        others = len(self.plan.columns) + len(self.plan.forms) - len(listed)
        if others <= 1 and not listed:
            return most
        room = _ALL_CELLS * (most / _CELLS) / np.prod(listed, dtype=float)
        return int(np.clip(room ** (1 / max(others, 1)), 8, most))

    def _column_edges(self, column: int, count: int) -> Interval:
        if (listed := self._single[column]) is not None:
            return iv.point(jnp.asarray(listed))
        domain, entry = self.program.entries[column]
        return cut_for_ends(Interval(*(jnp.asarray(end.ravel()[entry]) for end in (domain.lo, domain.hi))), count)


def _slopes_and_moves(scope: Scope, out: Value) -> tuple[Interval, Interval]:
    """Slopes, of jumps first, and how far every base number moves."""
    slopes = pad_slopes(scope.curved(out).slopes, scope.width)  # after it no base number is new
    moves = Interval(*(jnp.array([b.range[end] for b in scope.bases]) for end in (0, 1)))
    return slopes, moves


def _blurs(scope: Scope, out: Value) -> Array:
    """How much the uncertainty of each slope adds to the range."""
    slopes, moves = _slopes_and_moves(scope, out)
    return iv.times(iv.radius(slopes)[1:], iv.magnitude(moves))


# -- the end of a walk ------------------------------------------------------------------------------------------------


def combine(scope: Scope, out: Value) -> tuple[Array, Array]:
    r"""Range of :math:`S_0 + \sum_j S_j w_j` in the present cell.

    Two bounds hold and are intersected: the sum of interval products, and the exact range of the affine function with
    the slopes' midpoints plus :math:`\sum_j \mathrm{rad}(S_j)\max|w_j|`.
    """
    if isinstance(out, Const | Affine):
        exact = scope.atoms.range(*difference_form(scope.affine(out)))
        return widen(exact, iv.magnitude(exact))
    slopes, moves = _slopes_and_moves(scope, out)
    jumps, steps = Interval(slopes.lo[0], slopes.hi[0]), Interval(slopes.lo[1:], slopes.hi[1:])
    products = iv.mul(steps, moves)
    total = Interval(jumps.lo + jnp.sum(products.lo), jumps.hi + jnp.sum(products.hi))
    size = iv.magnitude(jumps) + jnp.sum(iv.magnitude(steps) * iv.magnitude(moves))
    if scope.width > 2:
        middle = iv.centre(steps)
        blur = jnp.sum(iv.times(iv.radius(steps), iv.magnitude(moves)))
        differences = [difference_form(base) for base in scope.bases]
        offsets, forms = jnp.stack([d for d, _ in differences]), jnp.stack(align(*(q for _, q in differences)))
        affine = scope.atoms.range(middle @ offsets, middle @ forms)
        total = iv.meet(total, Interval(jumps.lo + affine.lo - blur, jumps.hi + affine.hi + blur))
    return widen(total, size)


def certified(model: Model, domain: Mapping[str, Domain]) -> Bounds:
    """Build the proven range for a model on a domain."""
    missing = [name for name in model.columns if name not in domain]
    if missing:
        raise InvalidInput(f"the domain must declare the columns {missing}, which the model uses.")
    certifier = Certifier(model, {name: domain[name] for name in model.columns})
    quick = partial(certifier.range, cells_per_axis=_FEW_CELLS)
    return Bounds(certifier.range, "exact" if certifier.exact else "certified", proven=True, quick=quick)
