r"""What the interpreter knows about a number inside the model, for all records of a cell at once.

A number P of the program is looked at for one record r of a cell, and at one or several parameters. It is one of

`Const`
    a function of the parameter alone: its values are at hand, by JAX.
`Affine`
    :math:`c(\theta) + A(\theta)\,a(r)` in the atoms of the record, with c and A known at the parameters. Nothing is lost.
`Curved`
    anything else: an interval around its values, and what is known of how it moves with the *base numbers* :math:`L_j`, the
    affine numbers that entered a non-linear operation.
`Truth`
    a condition that may be true, false, or either.

One walk with one table of rules serves three purposes, told apart by the `Scope`:

- *a pair of parameters* (`Scope.pair`): interval slopes S with

  .. math:: P(\theta', r) - P(\theta, r) = S_0 + \sum_j S_j\,(L_j(\theta', r) - L_j(\theta, r));

  :math:`S_0` collects jumps;
- *the neighbourhood of a parameter*: slopes are intervals around :math:`\partial P/\partial L_j`, and where `Scope.twice` is set
  there are intervals around :math:`\partial^2 P/\partial L_j\partial L_k`, too;
- *one record* (`Scope.point`): every interval is a point, and slopes are the derivatives themselves.

Keeping slopes, not differences, is what preserves :math:`(y - \mu)\,w` as one product when y and the mean both multiply
the same w.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.bounds import interval as iv
from sfumato.bounds.atoms import Atoms, pad_last
from sfumato.bounds.interval import Array, Interval


@dataclass(eq=False)
class Const:
    """A function of the parameter: `at` each of them. `fixed`: not even of that, and `at` has one entry."""

    at: tuple[Array, ...]
    fixed: bool
    positive: bool = False
    log: "Value | None" = None
    straight: "Affine | None" = None  # itself as an affine number, once it was one: its entries have names then

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return tuple(np.shape(self.at[0]))


@dataclass(eq=False)
class Affine:
    """`offset + coefficients @ atoms`, at each parameter; `fixed`: the same at all, in plain numbers, with one entry.

    `ids` names every entry, so that copies made by reshaping are known to be copies; an entry is `factor` times what its name
    stands for, plus `shift`. `uses` marks the atoms that may have a non-zero coefficient.
    """

    offset: tuple[Array, ...]
    coefficients: tuple[Array, ...]
    ids: np.ndarray
    factor: np.ndarray
    shift: np.ndarray
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
    """An interval, interval slopes (last axis: jumps, then the base numbers) and second derivatives (last two axes)."""

    bounds: Interval
    slopes: Interval
    second: Interval | None = None
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
    """Whether a condition can be true and can be false; `free`: it does not look at the parameter.

    `uses` are the atoms that decide it; `indicator` makes it an affine number that is one where it holds, if there is one.
    """

    yes: Array
    no: Array
    free: bool
    uses: frozenset[int] = frozenset()
    indicator: "Callable[[], Affine] | None" = None

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
    return Const((value,), fixed=True, positive=positive)


def at_each(run: Callable[..., Any], *parts: Sequence[Array]) -> tuple[Any, ...]:
    """Apply a function at every parameter; what is fixed has one entry for all."""
    return tuple(run(*(p[min(i, len(p) - 1)] for p in parts)) for i in range(max(map(len, parts), default=1)))


def of_consts(run: Callable[..., Array], *values: Const, positive: bool = False) -> Const:
    """A function of constants."""
    fixed = all(v.fixed for v in values)
    with plain(fixed):
        return Const(at_each(run, *(v.at for v in values)), fixed, positive)


class Base(NamedTuple):
    """A base number: at each parameter its offset and coefficients, the atoms it uses, and its range (of a pair: its move's)."""

    offset: tuple[Array, ...]
    coefficients: tuple[Array, ...]
    uses: np.ndarray
    range: Interval


@dataclass
class Scope:
    """One walk through the program on one cell: what is asked, the atoms, the base numbers, and what was met on the way."""

    atoms: Atoms
    pair: bool = False  # slopes are those between two parameters, else derivatives near the first
    twice: bool = False  # second derivatives are wanted
    point: Array | None = None  # numbers of one record, in place of all records of the cell
    given: Interval | None = None  # bounds of the base numbers that are known beforehand
    cut: set[int] = field(default_factory=set)  # atoms whose range depends on the cell
    next_id: int = 0
    columns: dict[int, int] = field(default_factory=dict)  # name of an entry to its column of the slopes
    bases: list[Base] = field(default_factory=list)
    bent: dict[int, np.ndarray] = field(default_factory=dict)  # column to atoms, of what entered a non-linear operation
    made: dict[tuple[Any, ...], Affine] = field(default_factory=dict)  # functions of the record that have atoms
    derived: list[tuple[str, np.ndarray, np.ndarray]] = field(default_factory=list)  # function, new atoms, their atoms
    touched: set[int] = field(default_factory=set)  # atoms that a parameter multiplies
    indexed: list[np.ndarray] = field(default_factory=list)  # atoms that choose an entry or a branch
    index_columns: dict[int, np.ndarray] = field(default_factory=dict)  # indicator to the atoms of its index
    indicators: dict[tuple[float, ...], np.ndarray] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """Columns of slopes so far; the first is for jumps."""
        return 1 + len(self.bases)

    def fresh(self, shape: tuple[int, ...]) -> np.ndarray:
        """Names for new entries."""
        count = int(np.prod(shape, dtype=int))
        ids = np.arange(self.next_id, self.next_id + count).reshape(shape)
        self.next_id += count
        return ids

    def new_affine(
        self,
        offset: tuple[Array, ...],
        coefficients: tuple[Array, ...],
        uses: np.ndarray,
        fixed: bool,
        positive: bool = False,
    ) -> Affine:
        """An affine number whose entries have names of their own."""
        shape = uses.shape[:-1]
        return Affine(offset, coefficients, self.fresh(shape), np.ones(shape), np.zeros(shape), uses, fixed, positive)

    # -- conversions --------------------------------------------------------------------------------------------------

    def affine(self, value: Value) -> Affine:
        """View a constant as an affine number."""
        if isinstance(value, Affine):
            return value
        assert isinstance(value, Const)  # noqa: S101 (an internal contract; callers test for it)
        if value.straight is None:
            with plain(value.fixed):
                offset = tuple(jnp.asarray(x, dtype=float) for x in value.at)
                none = np.zeros((*value.shape, 0))
            value.straight = self.new_affine(
                offset, (none,) * len(offset), none.astype(bool), value.fixed, value.positive
            )
            value.straight.log = value.log
        return value.straight

    def curved(self, value: Value, *, bent: bool = False) -> Curved:
        """Interval and slopes of any number. `bent`: it enters a non-linear operation, so it is worth subdividing."""
        if isinstance(value, Curved):
            return value
        if isinstance(value, Truth):
            self.decide(value)
            bounds = Interval(jnp.where(value.no, 0.0, 1.0), jnp.where(value.yes, 1.0, 0.0))
            return self.jump(self.still(bounds, value.free), ~(value.yes & value.no))
        return self._from_affine(self.affine(value), bent)

    def still(self, bounds: Interval, free: bool = True, positive: bool = False, log: Value | None = None) -> Curved:
        """A number that does not move."""
        shape = np.shape(bounds.lo)
        second = iv.point(jnp.zeros((*shape, 1, 1))) if self.twice else None
        return Curved(bounds, iv.point(jnp.zeros((*shape, 1))), second, free, positive, log)

    def bounds(self, value: Value) -> Interval:
        """Interval around all values."""
        return self.curved(value).bounds

    def range(self, offset: Array, coefficients: Array) -> Interval:
        """Range of `offset + coefficients @ atoms`, for the records of the cell."""
        if self.point is None:  # a range is never differentiated, the affine numbers are
            return self.atoms.range(*(jax.lax.stop_gradient(jnp.asarray(part)) for part in (offset, coefficients)))
        return iv.point(offset + jnp.asarray(coefficients) @ self.point[: coefficients.shape[-1]])

    def _from_affine(self, value: Affine, bent: bool) -> Curved:
        if value.fixed:
            bounds = self.range(value.offset[0], value.coefficients[0])
            return self.still(bounds, True, value.positive, value.log)
        if self.pair:
            # Half way between both values, and half of their difference to either side.
            (mean, mean_slopes), (step, step_slopes) = mean_form(value), difference_form(value)
            both = self.range(jnp.stack([mean, step]), jnp.stack([mean_slopes, step_slopes]))
            move = Interval(both.lo[1], both.hi[1])
            reach = iv.magnitude(move) / 2
            bounds = Interval(both.lo[0] - reach, both.hi[0] + reach)
            columns = self._columns(value, move)
        else:
            bounds = self.range(value.offset[0], value.coefficients[0])
            columns = self._columns(value, bounds)
            if self.given is not None:
                bounds = Interval(*(end[columns - 1].reshape(value.shape) for end in self.given))
                bounds = iv.add(iv.mul(iv.point(value.factor), bounds), iv.point(value.shift))
        if bent:
            uses = value.uses.reshape(columns.size, -1)
            for position, column in enumerate(columns.tolist()):
                self.bent.setdefault(column, np.flatnonzero(uses[position]))
        out = self.still(bounds, False, value.positive, value.log)
        one_hot = np.eye(self.width)[columns].reshape(*value.shape, self.width)
        out.slopes = iv.point(jnp.asarray(one_hot * value.factor[..., None]))
        return out

    def _columns(self, value: Affine, ranges: Interval) -> np.ndarray:
        """Columns of the entries of an affine number, in a row; what is new becomes a base number, as its name stands for it."""
        names = value.ids.reshape(-1).tolist()
        uses = value.uses.reshape(len(names), -1)
        for position, name in enumerate(names):
            if name not in self.columns:
                self.columns[name] = self.width
                at = np.unravel_index(position, value.shape) if value.shape else ()
                by, shift = value.factor[at], value.shift[at]
                own = Interval(ranges.lo[at], ranges.hi[at])
                own = iv.mul(iv.point(1 / by), own if self.pair else iv.sub(own, iv.point(shift)))
                offset = tuple((p[at] - shift) / by for p in value.offset)
                coefficients = tuple(p[at] / by for p in value.coefficients)
                self.bases.append(Base(offset, coefficients, uses[position], own))
        return np.array([self.columns[name] for name in names], dtype=int)

    # -- new numbers --------------------------------------------------------------------------------------------------

    def record_only(
        self, name: str, image: Callable[..., Interval], exact: Callable[..., Array], *values: Value
    ) -> Affine:
        """Make new atoms of a number that looks at the record alone; the same function gets the same atoms.

        Parameters
        ----------
        name
            What the function is called, with its own numbers.
        image
            Its range on intervals, for many records.
        exact
            The function itself, for one. An interval around a number may be wide (of sin it is [-1, 1]).
        values
            What it is applied to.
        """
        shape = np.broadcast_shapes(*(value.shape for value in values))
        key = (name, shape, *(_content(self.affine(value)) for value in values))
        if key in self.made:
            return self.made[key]

        def over(find: Callable[..., Interval], ranges: list[Interval]) -> Interval:
            return Interval(*(jnp.broadcast_to(end, shape) for end in find(*ranges)))

        with jax.ensure_compile_time_eval():
            whole = [Interval(*(jnp.asarray(end) for end in self.known(v) or ())) for v in values]
            known = Interval(*(np.asarray(end) for end in over(image, whole)))
        uses = self.uses(*values)
        moving = self.point is None and bool(self.cut & set(uses.tolist()))
        here = over(image, [self.bounds(value) for value in values]) if moving else known
        where = self.atoms.add_box(here, known)
        if moving:
            self.cut |= set(where.tolist())
        if self.point is not None:
            found = exact(*(self.bounds(value).lo for value in values))
            self.point = jnp.concatenate([self.point, jnp.broadcast_to(found, shape).astype(float).ravel()])
        self.derived.append((name.split(maxsplit=1)[0], where, uses))
        self.made[key] = self.pick(where.reshape(shape), positive=bool(np.all(known.lo > 0)))
        return self.made[key]

    def pick(self, where: np.ndarray, positive: bool = False) -> Affine:
        """Return the atoms at the positions `where`."""
        coefficients = np.eye(self.atoms.size)[where]
        uses = coefficients.astype(bool)
        return self.new_affine((np.zeros(where.shape),), (coefficients,), uses, fixed=True, positive=positive)

    def jump(self, value: Curved, sure: Array | bool = False) -> Curved:
        """Forget how a number moves, but where it is sure to move: its difference can be anything within its width.

        A jump has no derivative: there its slope is unbounded.
        """
        if value.free:
            return value
        if self.pair:
            reach = (value.bounds.hi - value.bounds.lo)[..., None]
        else:
            reach = jnp.full((*value.shape, 1), jnp.inf)
        kept, jumped = (pad_slopes(s, self.width) for s in (value.slopes, Interval(-reach, reach)))
        stay = jnp.broadcast_to(sure, value.shape)[..., None]
        slopes = Interval(*(jnp.where(stay, k, j) for k, j in zip(kept, jumped, strict=True)))
        return Curved(value.bounds, slopes, value.second, False, value.positive)

    def decide(self, condition: Truth) -> None:
        """Remember what a condition hangs on: it is worth cutting."""
        if condition.uses:
            self.indexed.append(np.array(sorted(condition.uses)))

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


def _content(value: Affine) -> bytes:
    """What a fixed number is, however many atoms there are by now."""
    offset, coefficients = np.asarray(value.offset[0]), np.asarray(value.coefficients[0])
    where = np.argwhere(coefficients)
    parts = (np.asarray(value.shape), offset, where, coefficients[tuple(where.T)])
    return b"|".join(np.ascontiguousarray(part).tobytes() for part in parts)


def mean_form(value: Affine | Base) -> tuple[Array, Array]:
    """Half way between the values at the two parameters."""
    (a, b), (p, q) = value.offset, align(*value.coefficients)
    return (a + b) / 2, (p + q) / 2


def difference_form(value: Affine | Base) -> tuple[Array, Array]:
    """Value at theta_prop minus value at theta."""
    (a, b), (p, q) = value.offset, align(*value.coefficients)
    return b - a, q - p


def align(*arrays: Array) -> list[Array]:
    """Pad the last axes to the longest."""
    size = max(array.shape[-1] for array in arrays)
    return [pad_last(array, size) for array in arrays]


def pad_slopes(x: Interval, size: int, axes: int = 1) -> Interval:
    """Pad the last axes of slopes, or of second derivatives, keeping points points."""

    def grown(end: Array) -> Array:
        end = pad_last(end, size)
        return end if axes == 1 else jnp.swapaxes(pad_last(jnp.swapaxes(end, -1, -2), size), -1, -2)

    return iv.point(grown(x.lo)) if iv.is_point(x) else Interval(grown(x.lo), grown(x.hi))


def align_slopes(*slopes: Interval, axes: int = 1) -> list[Interval]:
    """Pad slopes to the same number of columns."""
    size = max(s.lo.shape[-1] for s in slopes)
    return [pad_slopes(s, size, axes) for s in slopes]
