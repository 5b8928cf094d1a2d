r"""What the interpreter knows about a number inside the model, for all records of a cell at once.

A number P of the program takes a value :math:`P(\theta, r)` and a value :math:`P(\theta', r)`. It is one of

`Const`
    a function of the parameter alone: both values are at hand.
`Affine`
    :math:`c + A\,a(r)` in the atoms of the record, with c and A known at both parameters. Nothing is lost.
`Curved`
    anything else: an interval around both values, and an interval *slope* for each base difference,

    .. math:: P(\theta', r) - P(\theta, r) = S_0 + \sum_j S_j\,w_j(r),\qquad w_j = L_j(\theta', r) - L_j(\theta, r),

    where the :math:`L_j` are the affine numbers that entered a non-linear operation and :math:`S_0` collects the
    differences that do not depend on the record.
`Truth`
    a condition that may be true, false, or either.

Keeping slopes, not differences, is what preserves :math:`(y - \mu)\,w` as one product when y and the mean both multiply
the same w.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.bounds import interval as iv
from sfumato.bounds.atoms import Atoms, pad_last
from sfumato.bounds.interval import Array, Interval


@dataclass(eq=False)
class Const:
    """A function of the parameter: `at` theta and theta_prop. `fixed`: not even of that."""

    at: tuple[Array, Array]
    fixed: bool
    positive: bool = False
    log: "Value | None" = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return tuple(np.shape(self.at[0]))


@dataclass(eq=False)
class Affine:
    """`offset + coefficients @ atoms`, at theta and theta_prop; `fixed`: the same at both, in plain numbers.

    `ids` names every entry, so that copies made by reshaping are known to be copies; `uses` marks the atoms that may
    have a non-zero coefficient.
    """

    offset: tuple[Array, Array]
    coefficients: tuple[Array, Array]
    ids: np.ndarray
    uses: np.ndarray
    fixed: bool
    positive: bool = False
    log: "Value | None" = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return tuple(self.ids.shape)


@dataclass(eq=False)
class Curved:
    """An interval around both values, and interval slopes (last axis: the base differences)."""

    bounds: Interval
    slopes: Interval
    free: bool = False
    positive: bool = False
    log: "Value | None" = None
    factors: "tuple[Affine, Affine] | None" = None  # a column and an affine number whose product this is
    expanded: "Affine | None" = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return tuple(np.shape(self.bounds.lo))


@dataclass(eq=False)
class Truth:
    """Whether a condition can be true and can be false; `free`: it does not look at the parameter."""

    yes: Array
    no: Array
    free: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return tuple(np.shape(self.yes))


Value: TypeAlias = Const | Affine | Curved | Truth


@contextmanager
def plain(fixed: bool) -> Iterator[None]:
    """Inside, arithmetic on fixed numbers happens now, not in the compiled program."""
    if fixed:
        with jax.ensure_compile_time_eval():
            yield
    else:
        yield


def constant(value: Array) -> Const:
    """Wrap a number that depends on nothing."""
    kind = getattr(value, "dtype", None) or np.asarray(value).dtype
    numeric = jnp.issubdtype(kind, jnp.number) and not isinstance(value, jax.core.Tracer)
    positive = bool(numeric and np.all(np.asarray(value) > 0))
    return Const((value, value), fixed=True, positive=positive)


class Difference(NamedTuple):
    """How an affine number moves from theta to theta_prop: as an affine number itself, and its range."""

    offset: Array
    coefficients: Array
    range: Interval


@dataclass
class Scope:
    """One walk through the program on one cell: the atoms, the base differences, and what was met on the way."""

    atoms: Atoms
    cut: set[int] = field(default_factory=set)  # atoms whose range depends on the cell
    next_id: int = 0
    columns: dict[int, int] = field(default_factory=dict)
    differences: list["Difference"] = field(default_factory=list)
    width: int = 1  # slopes so far; column 0 multiplies one
    curved_arguments: list[tuple[int, np.ndarray]] = field(default_factory=list)  # id and atoms of what was bent
    forms: dict[int, tuple[Array, Array]] = field(default_factory=dict)  # id to mean offset and coefficients
    derived: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)  # new atoms and the atoms they use
    touched: set[int] = field(default_factory=set)  # atoms that a parameter multiplies
    indexed: list[np.ndarray] = field(default_factory=list)  # atoms that choose an entry or a branch
    index_columns: dict[int, np.ndarray] = field(default_factory=dict)  # indicator to the atoms of its index
    indicators: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)

    def fresh(self, shape: tuple[int, ...]) -> np.ndarray:
        """Names for new entries."""
        count = int(np.prod(shape, dtype=int))
        ids = np.arange(self.next_id, self.next_id + count).reshape(shape)
        self.next_id += count
        return ids

    # -- conversions --------------------------------------------------------------------------------------------------

    def affine(self, value: Value) -> Affine:
        """View a constant as an affine number."""
        if isinstance(value, Affine):
            return value
        assert isinstance(value, Const)  # noqa: S101 (an internal contract; callers test for it)
        with plain(value.fixed):
            offset = tuple(jnp.asarray(x, dtype=float) for x in value.at)
            none = np.zeros((*value.shape, 0))
        return Affine(
            (offset[0], offset[1]),
            (none, none),
            self.fresh(value.shape),
            none.astype(bool),
            value.fixed,
            value.positive,
            value.log,
        )

    def curved(self, value: Value, *, bent: bool = False) -> Curved:
        """Interval and slopes of any number. `bent`: it enters a non-linear operation, so it is worth subdividing."""
        if isinstance(value, Curved):
            return value
        if isinstance(value, Truth):
            return self._from_truth(value)
        if isinstance(value, Const):
            first, second = (jnp.asarray(x, dtype=float) for x in value.at)
            if value.fixed:
                zero = jnp.zeros((*value.shape, 1))
                return Curved(iv.point(first), iv.point(zero), True, value.positive, value.log)
            bounds = Interval(jnp.minimum(first, second), jnp.maximum(first, second))
            return Curved(bounds, iv.point((second - first)[..., None]), False, value.positive, value.log)
        return self._from_affine(value, bent)

    def bounds(self, value: Value) -> Interval:
        """Interval around both values."""
        return self.curved(value).bounds

    def _from_truth(self, value: Truth) -> Curved:
        low = jnp.where(value.no, 0.0, 1.0)
        high = jnp.where(value.yes, 1.0, 0.0)
        zero = jnp.zeros((*value.shape, 1))
        out = Curved(Interval(low, high), iv.point(zero), value.free)
        return out if value.free else self.jump(out)

    def _from_affine(self, value: Affine, bent: bool) -> Curved:
        if value.fixed:
            bounds = self.atoms.range(jnp.asarray(value.offset[0]), jnp.asarray(value.coefficients[0]))
            return Curved(bounds, iv.point(jnp.zeros((*value.shape, 1))), True, value.positive, value.log)
        mean, mean_coefficients = mean_form(value)
        step, step_coefficients = difference_form(value)
        both = self.atoms.range(jnp.stack([mean, step]), jnp.stack([mean_coefficients, step_coefficients]))
        move = Interval(both.lo[1], both.hi[1])
        reach = iv.magnitude(move) / 2
        if bent:
            self._remember(value, mean, mean_coefficients)
        slopes = self._symbols(value, Difference(step, step_coefficients, move))
        return Curved(Interval(both.lo[0] - reach, both.hi[0] + reach), slopes, False, value.positive, value.log)

    def _remember(self, value: Affine, mean: Array, coefficients: Array) -> None:
        flat_uses = value.uses.reshape(-1, value.uses.shape[-1])
        for position, name in enumerate(value.ids.reshape(-1).tolist()):
            if name not in self.forms:
                index = np.unravel_index(position, value.shape) if value.shape else ()
                self.forms[name] = (mean[index], coefficients[index])
                self.curved_arguments.append((name, np.flatnonzero(flat_uses[position])))

    def _symbols(self, value: Affine, step: "Difference") -> Interval:
        for position, name in enumerate(value.ids.reshape(-1).tolist()):
            if name not in self.columns:
                index = np.unravel_index(position, value.shape) if value.shape else ()
                self.columns[name] = self.width
                move = Interval(step.range.lo[index], step.range.hi[index])
                self.differences.append(Difference(step.offset[index], step.coefficients[index], move))
                self.width += 1
        columns = np.array([self.columns[name] for name in value.ids.reshape(-1).tolist()])
        one_hot = np.eye(self.width)[columns].reshape(*value.shape, self.width)
        return iv.point(jnp.asarray(one_hot))

    # -- new numbers --------------------------------------------------------------------------------------------------

    def atom(self, bounds: Interval, known: Interval, shape: tuple[int, ...], uses: np.ndarray) -> Affine:
        """Treat a parameter-free number as new atoms of the record."""
        moving = bool(self.cut & set(uses.tolist()))
        where = self.atoms.add_box(bounds if moving else known, known)
        self.cut |= set(where.tolist()) if moving else set()
        self.derived.append((where, uses))
        return self.pick(where.reshape(shape), positive=bool(np.all(np.asarray(known.lo) > 0)))

    def pick(self, where: np.ndarray, positive: bool = False) -> Affine:
        """Return the atoms at the positions `where`."""
        coefficients = np.eye(self.atoms.size)[where]
        offset = np.zeros(where.shape)
        return Affine(
            (offset, offset),
            (coefficients, coefficients),
            self.fresh(where.shape),
            coefficients.astype(bool),
            fixed=True,
            positive=positive,
        )

    def jump(self, value: Curved) -> Curved:
        """Forget how a number moves: its difference can be anything within its interval's width."""
        reach = (value.bounds.hi - value.bounds.lo)[..., None]
        return Curved(value.bounds, Interval(-reach, reach), False, value.positive)

    def known(self, value: Value) -> Interval | None:
        """Range on the whole domain in plain numbers, for numbers that do not look at the parameter."""
        if isinstance(value, Const) and value.fixed:
            number = np.asarray(value.at[0], dtype=float)
            return Interval(number, number)
        if isinstance(value, Affine) and value.fixed:
            return self.atoms.known_range(np.asarray(value.offset[0]), np.asarray(value.coefficients[0]))
        return None

    def uses(self, *values: Value) -> np.ndarray:
        """Positions of the atoms that numbers depend on."""
        used: set[int] = set()
        for value in values:
            if isinstance(value, Affine):
                used |= set(np.flatnonzero(value.uses.reshape(-1, value.uses.shape[-1]).any(axis=0)).tolist())
        return np.array(sorted(used), dtype=int)


def mean_form(value: Affine) -> tuple[Array, Array]:
    """Half way between the values at the two parameters."""
    (a, b), (p, q) = value.offset, align(*value.coefficients)
    return (a + b) / 2, (p + q) / 2


def difference_form(value: Affine) -> tuple[Array, Array]:
    """Value at theta_prop minus value at theta."""
    (a, b), (p, q) = value.offset, align(*value.coefficients)
    return b - a, q - p


def align(*arrays: Array) -> list[Array]:
    """Pad the last axes to the longest."""
    size = max(array.shape[-1] for array in arrays)
    return [pad_last(array, size) for array in arrays]


def align_slopes(*slopes: Interval) -> list[Interval]:
    """Pad slopes to the same number of columns, keeping points points."""
    size = max(s.lo.shape[-1] for s in slopes)
    return [
        iv.point(pad_last(s.lo, size)) if iv.is_point(s) else Interval(pad_last(s.lo, size), pad_last(s.hi, size))
        for s in slopes
    ]
