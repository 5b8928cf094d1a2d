r"""The linear predictors through which a model sees its parameter.

Most likelihoods look at the parameter through a few numbers that are linear in it, with coefficients that are affine in
the record: :math:`L_j(\theta, r) = c_j(r) + \theta^\top a_j(r)`, such as :math:`x^\top\beta`, a residual
:math:`y - x^\top\beta`, or a log-scale, which is a coordinate of the parameter itself. This walk through the program finds
them: a number that is linear in that sense is kept exactly, as plain coefficients; when it enters anything else it
becomes a predictor, and from there on numbers are jets (`jets`) in the predictors.

A function of the record alone becomes a new *atom*: one more number of the record, with its proven range.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal
from jax.scipy import special
from numpyro.distributions import discrete
from numpyro.distributions.util import clamp_probs

from sfumato.bounds import interval as iv
from sfumato.bounds import jets
from sfumato.bounds.canonical import log_density
from sfumato.bounds.certifier import canonical_log_likelihood
from sfumato.bounds.elementwise import FUNCTIONS, STEPS, increasing, real_power, remainder_image
from sfumato.bounds.idioms import Step
from sfumato.bounds.interpreter import inner_program, is_whole, needed_equations
from sfumato.bounds.interval import Array, Interval
from sfumato.bounds.jets import Jet
from sfumato.bounds.moves import move
from sfumato.bounds.region import Region
from sfumato.bounds.shapes import structural_names
from sfumato.domain import Domain
from sfumato.errors import Unsupported
from sfumato.model.base import Model, input_spec


@dataclass(frozen=True, eq=False)
class Linear:
    """Coefficients of (1, theta) x (1, atoms), last two axes: plain numbers. An empty shape is one number."""

    table: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return tuple(self.table.shape[:-2])

    @property
    def record_only(self) -> bool:
        """Whether it never looks at the parameter."""
        return not self.table[..., 1:, :].any()

    @property
    def parameter_only(self) -> bool:
        """Whether it never looks at the record."""
        return not self.table[..., :, 1:].any()


@dataclass(frozen=True, eq=False)
class Truth:
    """Whether a condition can hold and can fail here; `free`: it does not look at the parameter.

    `on_domain` says the same for all records of the domain, where that is known in plain numbers. It alone decides whether a
    branch is walked at all: so every walk, of a cell or of one record, takes the same way and finds the same predictors.
    """

    yes: Array
    no: Array
    free: bool
    on_domain: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return tuple(np.shape(self.yes))


Number: TypeAlias = np.ndarray | Linear | Jet | Truth
Enter: TypeAlias = Callable[[np.ndarray], Interval]
"""Bounds of a linear number, given its table: on the cell, for all parameters of the hull."""


@dataclass
class Predictors:
    """What a walk found: the atoms of a record and the predictors, as tables over (1, theta) x (1, atoms)."""

    dim: int
    region: Region
    tables: list[np.ndarray] = field(default_factory=list)
    names: dict[bytes, int] = field(default_factory=dict)
    derived: dict[tuple[Any, ...], int] = field(default_factory=dict)

    @property
    def number(self) -> int:
        """How many predictors there are."""
        return len(self.tables)

    def all_tables(self) -> np.ndarray:
        """All predictors, shape (m, 1 + d, 1 + atoms)."""
        return np.stack([self.pad(t) for t in self.tables])

    def pad(self, table: np.ndarray) -> np.ndarray:
        """Give a table columns for all atoms."""
        missing = 1 + self.region.size - table.shape[-1]
        return np.pad(table, [(0, 0)] * (table.ndim - 1) + [(0, missing)])

    def index(self, table: np.ndarray) -> int:
        """Number of the predictor with this table, a new one if need be. Constant and record-only parts are kept."""
        key = _key(table)
        if key not in self.names:
            self.names[key] = len(self.tables)
            self.tables.append(table)
        return self.names[key]

    def atom(self, key: tuple[Any, ...], known: Interval, shape: tuple[int, ...]) -> Linear:
        """New atoms for a function of the record, one per entry; the same function gets the same atoms."""
        if key not in self.derived:
            self.derived[key] = self.region.size
            self.region.add_box(np.ravel(known.lo), np.ravel(known.hi))
        start, count = self.derived[key], int(np.prod(shape, dtype=int))
        table = np.zeros((count, 1 + self.dim, 1 + self.region.size))
        table[np.arange(count), 0, 1 + start + np.arange(count)] = 1.0
        return Linear(table.reshape(*shape, *table.shape[1:]))


def _key(table: np.ndarray) -> bytes:
    """What a table says, however many atoms it has room for."""
    where = np.argwhere(table)
    return where.tobytes() + table[tuple(where.T)].tobytes()


class Walk:
    """One pass through a model's program."""

    def __init__(self, found: Predictors, enter: Enter | None) -> None:
        self.found, self.enter = found, enter
        self.size = found.number if enter is not None else 0

    def run(self, closed: ClosedJaxpr, arguments: list[Number]) -> list[Number]:
        """Evaluate a program."""
        jaxpr = closed.jaxpr
        known: dict[Any, Number] = {}
        known.update(zip(jaxpr.constvars, [np.asarray(c) for c in closed.consts], strict=True))
        known.update(zip(jaxpr.invars, arguments, strict=True))
        for step in needed_equations(jaxpr):
            operands = [self._read(known, v) for v in step.invars]
            known.update(zip(step.outvars, self._apply(step, operands), strict=True))
        return [self._read(known, v) for v in jaxpr.outvars]

    @staticmethod
    def _read(known: dict[Any, Number], variable: Any) -> Number:
        return np.asarray(variable.val) if isinstance(variable, Literal) else known[variable]

    # -- conversions --------------------------------------------------------------------------------------------------

    def linear(self, value: Number) -> Linear:
        """View plain numbers as linear ones."""
        if isinstance(value, Linear):
            return Linear(self.found.pad(value.table))
        assert isinstance(value, np.ndarray)  # noqa: S101 (an internal contract; callers test for it)
        table = np.zeros((*value.shape, 1 + self.found.dim, 1 + self.found.region.size))
        table[..., 0, 0] = value.astype(float)
        return Linear(table)

    def jet(self, value: Number) -> Jet:
        """View anything as a jet; a linear number that looks at the parameter becomes predictors."""
        if isinstance(value, Jet):
            return value
        if isinstance(value, Truth):
            bounds = Interval(jnp.where(value.no, 0.0, 1.0), jnp.where(value.yes, 1.0, 0.0))
            out = jets.still(bounds, self.size)
            return out if value.free else jets.choose(value.yes, value.no, False, out, out)
        if isinstance(value, np.ndarray):
            return jets.still(iv.point(jnp.asarray(value, dtype=float)), self.size)
        flat = value.table.reshape(-1, *value.table.shape[-2:])
        lows, highs, slopes = [], [], []
        for table in flat:
            moving = bool(table[1:].any())
            where = self.found.index(table) if moving else None
            bounds = self.enter(table) if self.enter is not None else Interval(jnp.zeros(()), jnp.ones(()))
            lows.append(bounds.lo)
            highs.append(bounds.hi)
            slopes.append(np.eye(self.size)[where] if where is not None and self.size else np.zeros(self.size))
        shape = value.shape
        first = jnp.asarray(np.array(slopes).reshape(*shape, self.size))
        bounds = Interval(*(jnp.stack(end).reshape(shape) for end in (lows, highs)))
        second = jnp.zeros((*shape, self.size, self.size))
        return Jet(bounds, iv.point(first), iv.point(second))

    def known(self, value: Number) -> Interval:
        """Range of a number that does not look at the parameter, on the whole domain, in plain numbers."""
        if isinstance(value, np.ndarray):
            return Interval(value.astype(float), value.astype(float))
        table = self.linear(value).table[..., 0, :]
        return self.found.region.known_range(table[..., 0], table[..., 1:])

    # -- operations ---------------------------------------------------------------------------------------------------

    def _apply(self, step: Step, operands: list[Number]) -> list[Number]:
        equation, name = step.equation, step.name
        if name not in _IDIOMS and (inner := inner_program(equation)) is not None:
            return self.run(inner, operands)
        if all(isinstance(v, np.ndarray) for v in operands) and name not in _IDIOMS:
            out = move(partial(equation.primitive.bind, **equation.params), *operands)
            return list(out) if equation.primitive.multiple_results else [out]
        if name in structural_names():
            return self._structural(lambda *x: equation.primitive.bind(*x, **equation.params), operands)
        if name in _RULES:
            return [_RULES[name](self, {**equation.params, "from_whole": is_whole(equation.invars[0])}, *operands)]
        return [self._unary(name, operands)]

    def _structural(self, how: Callable[..., Any], operands: list[Number]) -> list[Number]:
        if any(isinstance(v, Truth) for v in operands):
            truths = [self.truth(v) for v in operands]
            free = all(t.free for t in truths)
            yes, no = (how(*(jnp.asarray(getattr(t, k)) for t in truths)) for k in ("yes", "no"))
            several = isinstance(yes, list | tuple)
            return [Truth(a, b, free) for a, b in (zip(yes, no, strict=True) if several else [(yes, no)])]
        if any(isinstance(v, Jet) for v in operands):
            moved = jets.move(how, *(self.jet(v) for v in operands))
            return list(moved) if isinstance(moved, list) else [moved]
        tables = [self.linear(v).table for v in operands]
        flat = [t.reshape(*t.shape[:-2], -1) for t in tables]
        out = move(jax.vmap(how, in_axes=-1, out_axes=-1), *flat)
        outs = out if isinstance(out, list | tuple) else [out]
        return [Linear(np.asarray(o).reshape(*o.shape[:-1], *tables[0].shape[-2:])) for o in outs]

    def _unary(self, name: str, operands: list[Number]) -> Number:
        (value,) = operands if len(operands) == 1 else (None,)
        if value is None:
            raise unsupported(name)
        if isinstance(value, Truth):
            value = self.jet(value)
        if self.still(value):
            image = FUNCTIONS[name].image if name in FUNCTIONS else STEPS.get(name)
            if image is None:
                raise unsupported(name)
            return self.record_function((name,), image, plain_function(name), value)
        make = jets.function(name)
        if make is None:
            raise unsupported(name)
        return make(self.jet(value))

    def still(self, value: Number) -> bool:
        """Whether a number never looks at the parameter."""
        return isinstance(value, np.ndarray) or (isinstance(value, Linear) and value.record_only)

    def record_function(
        self, name: tuple[Any, ...], image: Callable[..., Interval], exact: Callable[..., Array], *values: Number
    ) -> Number:
        """A function of the record alone: new atoms with a proven range.

        Parameters
        ----------
        name
            What names the function, with its fixed numbers.
        image
            Its range on intervals: for all records of a domain.
        exact
            The function itself: for one record (`pointwise`). An interval around a number may be wide (of sin it is [-1, 1]).
        values
            What it is applied to.
        """
        with jax.ensure_compile_time_eval():
            bounds = [Interval(*(jnp.asarray(end) for end in self.known(v))) for v in values]
            out = Interval(*(np.asarray(end) for end in image(*bounds)))
        key, shape = atom_key(self, name, values)
        return self.found.atom(key, Interval(*(np.broadcast_to(end, shape) for end in out)), shape)

    def truth(self, value: Number) -> Truth:
        """View plain booleans as conditions."""
        if isinstance(value, Truth):
            return value
        if isinstance(value, np.ndarray):
            yes = value.astype(bool)
            return Truth(yes, ~yes, True, (yes, ~yes))
        raise unsupported("a condition")


def atom_key(walk: Walk, name: tuple[Any, ...], values: tuple[Number, ...]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """What names the atoms of a function of the record, and their shape."""
    shape = tuple(np.broadcast_shapes(*(np.shape(v) if isinstance(v, np.ndarray) else v.shape for v in values)))
    return (name, tuple(_key(walk.linear(v).table) for v in values), shape), shape


_PLAIN: dict[str, Callable[[Array], Array]] = {
    "softplus": jax.nn.softplus,
    "ndtr": special.ndtr,
    "log_ndtr": special.log_ndtr,
}


def plain_function(name: str) -> Callable[[Array], Array]:
    """The function of one number of that name, on numbers: JAX's own, under the name of its primitive."""
    return _PLAIN.get(name) or cast(Callable[[Array], Array], getattr(lax, name))


def unsupported(name: str) -> Unsupported:
    """Refuse by the name of the operation."""
    return Unsupported(
        f"kernel='langevin' has no proven second derivative for the primitive {name!r} here; use kernel='guided', or "
        "rewrite the model without it.",
        primitive=name,
    )


# -- rules ------------------------------------------------------------------------------------------------------------


def _add(walk: Walk, params: Any, x: Number, y: Number) -> Number:
    if isinstance(x, Jet | Truth) or isinstance(y, Jet | Truth):
        return jets.add(walk.jet(x), walk.jet(y))
    a, b = walk.linear(x), walk.linear(y)
    a, b = _aligned(a, b)
    return Linear(a.table + b.table)


def _aligned(x: Linear, y: Linear) -> tuple[Linear, Linear]:
    rank = max(len(x.shape), len(y.shape))
    x, y = (Linear(v.table.reshape(*(1,) * (rank - len(v.shape)), *v.table.shape)) for v in (x, y))
    return x, y


def _neg(walk: Walk, params: Any, x: Number) -> Number:
    return Linear(-x.table) if isinstance(x, Linear) else jets.negate(walk.jet(x))


def _sub(walk: Walk, params: Any, x: Number, y: Number) -> Number:
    return _add(walk, {}, x, negative(walk, y))


def multiply(walk: Walk, x: Number, y: Number) -> Number:
    """Product; linear where it stays so."""
    for one, other in ((x, y), (y, x)):
        if isinstance(one, np.ndarray) and not isinstance(other, np.ndarray):
            return _scale(walk, one, other)
    if isinstance(x, Linear) and isinstance(y, Linear) and (straight := _linear_product(walk, x, y)) is not None:
        return straight
    return jets.power(walk.jet(x), 2.0) if x is y else jets.multiply(walk.jet(x), walk.jet(y))


def _scale(walk: Walk, by: np.ndarray, value: Number) -> Number:
    """Multiply by plain numbers; a positive multiple of an exponential keeps its logarithm."""
    if isinstance(value, Linear):
        a, b = _aligned(walk.linear(by), walk.linear(value))
        return Linear(a.table[..., :1, :1] * b.table)
    jet = walk.jet(value)
    out = jets.multiply(walk.jet(by), jet)
    if jet.log is None or not np.all(by > 0):
        return out
    shift = jets.still(iv.point(jnp.log(jnp.asarray(by, dtype=float))), walk.size)
    return Jet(out.value, out.first, out.second, jets.add(shift, jet.log))


def _linear_product(walk: Walk, x: Linear, y: Linear) -> Number | None:
    """A column times a coordinate of the parameter is linear; a function of the record alone is a new atom."""
    if x.record_only and y.record_only:
        if x is y:
            return walk.record_function(("square",), FUNCTIONS["square"].image, jnp.square, x)
        return walk.record_function(("mul",), iv.mul, jnp.multiply, x, y)
    for one, other in ((x, y), (y, x)):
        if one.record_only and other.parameter_only:
            a, b = _aligned(walk.linear(one), walk.linear(other))
            return Linear(a.table[..., :1, :] * b.table[..., :, :1])
    return None


def _mul(walk: Walk, params: Any, x: Number, y: Number) -> Number:
    return multiply(walk, x, y)


def _div(walk: Walk, params: Any, x: Number, y: Number) -> Number:
    if params["from_whole"]:  # a quotient of whole numbers drops its rest
        raise unsupported("div")
    if isinstance(y, np.ndarray):
        return multiply(walk, x, np.asarray(1.0 / y.astype(float)))
    if walk.still(y):
        return multiply(walk, x, walk.record_function(("reciprocal",), iv.reciprocal, jnp.reciprocal, y))
    return multiply(walk, x, jets.reciprocal(walk.jet(y)))


def _power(walk: Walk, x: Number, exponent: float) -> Number:
    if walk.still(x):
        whole = float(exponent).is_integer()
        return walk.record_function(
            ("pow", exponent),
            real_power(exponent).image,
            lambda v: lax.integer_pow(v, int(exponent)) if whole else v**exponent,
            x,
        )
    return x if exponent == 1.0 else jets.power(walk.jet(x), exponent)


def _integer_pow(walk: Walk, params: Any, x: Number) -> Number:
    return _power(walk, x, float(params["y"]))


def _pow(walk: Walk, params: Any, x: Number, y: Number) -> Number:
    if isinstance(y, np.ndarray) and y.size == 1:
        return _power(walk, x, float(y.reshape(())))
    base = walk.jet(x)
    if base.log is None:
        raise unsupported("pow")
    return jets.exponential(jets.multiply(walk.jet(y), base.log))


def _reduce_sum(walk: Walk, params: Any, x: Number) -> Number:
    axes = tuple(params["axes"])
    return Linear(x.table.sum(axis=axes)) if isinstance(x, Linear) else jets.total(walk.jet(x), axes)


def _dot_general(walk: Walk, params: Any, x: Number, y: Number) -> Number:
    (left_in, right_in), (left_batch, right_batch) = params["dimension_numbers"]
    rank = [len(np.shape(v) if isinstance(v, np.ndarray) else v.shape) for v in (x, y)]
    left_free = [i for i in range(rank[0]) if i not in left_in and i not in left_batch]
    right_free = [i for i in range(rank[1]) if i not in right_in and i not in right_batch]
    order = [*left_batch, *left_free, *left_in], [*right_batch, *right_free, *right_in]
    gaps = len(left_batch) + len(left_free), len(left_batch)

    def left(v: Array) -> Array:
        v = jnp.transpose(v, order[0])
        return v.reshape(*v.shape[: gaps[0]], *(1,) * len(right_free), *v.shape[gaps[0] :])

    def right(v: Array) -> Array:
        v = jnp.transpose(v, order[1])
        return v.reshape(*v.shape[: gaps[1]], *(1,) * len(left_free), *v.shape[gaps[1] :])

    (a,), (b,) = walk._structural(left, [x]), walk._structural(right, [y])
    product = multiply(walk, a, b)
    return _reduce_sum(walk, {"axes": tuple(range(len(product.shape) - len(left_in), len(product.shape)))}, product)


def _convert(walk: Walk, params: Any, x: Number) -> Number:
    kind = params["new_dtype"]
    if isinstance(x, Truth):
        return x if kind == jnp.bool_ else walk.jet(x)
    if kind == jnp.bool_:
        return _compare("ne")(walk, {}, x, np.zeros(()))
    return _to_whole(walk, params, x) if jnp.issubdtype(kind, jnp.integer) else x


def _to_whole(walk: Walk, params: Any, x: Number) -> Number:
    """A function of the record as a whole number of some size: rounded towards zero, and refused where it would wrap."""
    if not (isinstance(x, Linear) and x.record_only):
        raise unsupported("convert_element_type")
    low, high = Walk.known(walk, x)
    kind = jnp.iinfo(params["new_dtype"])  # type: ignore[no-untyped-call]
    if not (np.min(low) > float(kind.min) - 1 and np.max(high) < float(kind.max) + 1):
        raise unsupported("convert_element_type")
    return x if params["from_whole"] else walk.record_function(("trunc",), increasing(jnp.trunc), jnp.trunc, x)


def _compare(name: str) -> Callable[..., Number]:
    def rule(walk: Walk, params: Any, x: Number, y: Number) -> Number:
        if x is y:
            same = np.full(x.shape, name in ("eq", "le", "ge"))
            return Truth(same, ~same, True, (same, ~same))
        if name in ("eq", "ne") and (isinstance(x, Truth) or isinstance(y, Truth)):
            differ = _logical("xor")(walk, params, x, y)
            return differ if name == "ne" else _logical("not")(walk, params, differ)
        if not (walk.still(x) and walk.still(y)):
            return compared(walk.jet(x).value, walk.jet(y).value, False)
        always = compared(Walk.known(walk, x), Walk.known(walk, y), True)
        on_domain = np.asarray(always.yes), np.asarray(always.no)
        return replace(compared(walk.known(x), walk.known(y), True), on_domain=on_domain)

    def compared(a: Interval, b: Interval, free: bool) -> Truth:
        below, above = a.hi < b.lo, a.lo > b.hi
        not_above, not_below = a.hi <= b.lo, a.lo >= b.hi
        point = (a.lo == a.hi) & (b.lo == b.hi) & (a.lo == b.lo)
        surely = {"lt": below, "le": not_above, "gt": above, "ge": not_below, "eq": point, "ne": below | above}[name]
        never = {"lt": not_below, "le": above, "gt": not_above, "ge": below, "eq": below | above, "ne": point}[name]
        return Truth(~never, ~surely, free)

    return rule


def _logical(name: str) -> Callable[..., Number]:
    def combine(*truths: tuple[Any, Any]) -> tuple[Any, Any]:
        (a_yes, a_no), *rest = truths
        if name == "not":
            return a_no, a_yes
        ((b_yes, b_no),) = rest
        if name == "and":
            return a_yes & b_yes, a_no | b_no
        if name == "or":
            return a_yes | b_yes, a_no & b_no
        return (a_yes & b_no) | (a_no & b_yes), (a_yes & b_yes) | (a_no & b_no)

    def rule(walk: Walk, params: Any, *values: Number) -> Number:
        truths = [walk.truth(v) for v in values]
        known = [t.on_domain for t in truths if t.on_domain is not None]
        on_domain = combine(*known) if len(known) == len(truths) else None
        return Truth(*combine(*((t.yes, t.no) for t in truths)), all(t.free for t in truths), on_domain)

    return rule


def _select(walk: Walk, params: Any, which: Number, *cases: Number) -> Number:
    if len(cases) != 2:
        raise unsupported("select_n")
    condition = walk.truth(which)
    if condition.on_domain is not None:  # a branch that no record takes is never walked
        yes, no = condition.on_domain
        if not np.any(no):
            return cases[1]
        if not np.any(yes):
            return cases[0]
    return jets.choose(condition.yes, condition.no, condition.free, walk.jet(cases[1]), walk.jet(cases[0]))


def _max(walk: Walk, params: Any, x: Number, y: Number) -> Number:
    if walk.still(x) and walk.still(y):
        return walk.record_function(
            ("max",), lambda a, b: Interval(jnp.maximum(a.lo, b.lo), jnp.maximum(a.hi, b.hi)), jnp.maximum, x, y
        )
    return jets.largest(walk.jet(x), walk.jet(y))


def _min(walk: Walk, params: Any, x: Number, y: Number) -> Number:
    return negative(walk, _max(walk, {}, *(negative(walk, v) for v in (x, y))))


def negative(walk: Walk, value: Number) -> Number:
    """Negation of anything."""
    return np.asarray(-value.astype(float)) if isinstance(value, np.ndarray) else _neg(walk, {}, value)


def _clamp(walk: Walk, params: Any, low: Number, x: Number, high: Number) -> Number:
    return _min(walk, {}, _max(walk, {}, low, x), high)


def _rem(walk: Walk, params: Any, x: Number, y: Number) -> Number:
    if not (walk.still(x) and isinstance(y, np.ndarray) and y.size == 1):
        raise unsupported("rem")
    by = float(y.reshape(()))
    image = remainder_image(by, params["from_whole"])
    return walk.record_function(("rem", by, params["from_whole"]), image, lambda v: jnp.fmod(v, by), x)


def _round(walk: Walk, params: Any, x: Number) -> Number:
    if not walk.still(x):
        raise unsupported("round")
    way = params["rounding_method"]
    return walk.record_function(("round", str(way)), STEPS["round"], partial(lax.round, rounding_method=way), x)


def _xlogy(walk: Walk, params: Any, x: Number, y: Number) -> Number:
    if walk.still(y):
        raise unsupported("xlogy")
    return multiply(walk, x, jets.logarithm(walk.jet(y)))


def _xlog1py(walk: Walk, params: Any, x: Number, y: Number) -> Number:
    return multiply(walk, x, walk._unary("log1p", [y]))


def _logaddexp(walk: Walk, params: Any, x: Number, y: Number) -> Number:
    return _add(walk, {}, walk._unary("softplus", [_sub(walk, {}, x, y)]), y)


def _logsumexp(walk: Walk, params: Any, x: Number) -> Number:
    return jets.logsumexp(walk.jet(x))


def _logsumexp_keep(walk: Walk, params: Any, x: Number) -> Number:
    return jets.move(lambda v: v[..., None], jets.logsumexp(walk.jet(x)))


def _log_softmax(walk: Walk, params: Any, x: Number) -> Number:
    return _sub(walk, {}, x, _logsumexp_keep(walk, {}, x))


def _function(name: str) -> Callable[..., Number]:
    return lambda walk, params, x: walk._unary(name, [x])


_IDIOMS: dict[str, Callable[..., Number]] = {
    "softplus": _function("softplus"),
    "ndtr": _function("ndtr"),
    "log_ndtr": _function("log_ndtr"),
    "xlogy": _xlogy,
    "xlog1py": _xlog1py,
    "logaddexp": _logaddexp,
    "logsumexp": _logsumexp,
    "logsumexp_keep": _logsumexp_keep,
    "log_softmax": _log_softmax,
}
_RULES: dict[str, Callable[..., Number]] = {
    **_IDIOMS,
    "add": _add,
    "add_any": _add,
    "sub": _sub,
    "neg": _neg,
    "mul": _mul,
    "div": _div,
    "integer_pow": _integer_pow,
    "pow": _pow,
    "reduce_sum": _reduce_sum,
    "dot_general": _dot_general,
    "convert_element_type": _convert,
    "select_n": _select,
    "max": _max,
    "min": _min,
    "clamp": _clamp,
    "rem": _rem,
    "round": _round,
    "and": _logical("and"),
    "or": _logical("or"),
    "not": _logical("not"),
    "xor": _logical("xor"),
    **{name: _compare(name) for name in ("lt", "le", "gt", "ge", "eq", "ne")},
}


# -- a model's program --------------------------------------------------------------------------------------------------


def _density(distribution: Any, value: Array) -> Array:
    """Log-densities in which the outcome occurs once: then the second derivatives of both branches cancel."""
    if type(distribution) is dist.distribution.ExpandedDistribution:
        return jnp.broadcast_to(_density(distribution.base_dist, value), distribution.batch_shape)
    if type(distribution) in (discrete.BernoulliProbs, discrete.BinomialProbs):
        p = clamp_probs(distribution.probs)
        count = getattr(distribution, "total_count", 1)
        return value * (jnp.log(p) - jnp.log1p(-p)) + count * jnp.log1p(-p)
    return log_density(distribution, value)


class Program:
    """A model's log-likelihood of one record, ready to be walked; `predictors` says through what it sees theta."""

    def __init__(self, model: Model, domain: Mapping[str, Domain]) -> None:
        self.model = model
        self.domain = {name: domain[name] for name in model.columns}
        theta, record = input_spec(model.dim, self.domain)
        self.closed = jax.make_jaxpr(canonical_log_likelihood(model, _density))(theta, record)
        region = Region()
        self.columns: dict[str, np.ndarray] = {}
        for name in sorted(record):
            column = self.domain[name]
            if (radius := column.ball_radius) is not None:
                self.columns[name] = region.add_ball(radius, column.size)
            else:
                self.columns[name] = region.add_box(column.lo.reshape(-1), column.hi.reshape(-1))
        self.predictors = Predictors(model.dim, region)
        # The first walk only looks which predictors there are: nothing is compiled.
        jax.eval_shape(lambda: self.walk(Walk(self.predictors, None)).value)

    def jet(self, enter: Enter) -> Jet:
        """First and second derivatives of one record's log-likelihood in the predictors, where `enter` bounds them."""
        return self.walk(Walk(self.predictors, enter))

    def walk(self, walk: Walk) -> Jet:
        """Take a walk through the program."""
        size, dim = self.predictors.region.size, self.model.dim
        theta = np.zeros((dim, 1 + dim, 1 + size))
        theta[np.arange(dim), 1 + np.arange(dim), 0] = 1.0
        arguments: list[Number] = [Linear(theta)]
        for name in sorted(self.columns):
            where = self.columns[name]
            table = np.zeros((len(where), 1 + dim, 1 + size))
            table[np.arange(len(where)), 0, 1 + where] = 1.0
            arguments.append(Linear(table.reshape(*self.domain[name].shape, *table.shape[1:])))
        (out,) = walk.run(self.closed, arguments)
        return walk.jet(out)
