"""Whole numbers are evaluated in 64 bits; a program in which they could still wrap round is refused.

A bound is proven over the reals, and the vault evaluates the program: the two are the same only as long as no whole number
leaves its type. The fourth power of 60 000 leaves 64 bits; an explicit `astype(jnp.int32)` may cut sooner.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.domain import Domain
from sfumato.errors import InvalidModel
from sfumato.model.base import Model, input_spec


class Whole(NamedTuple):
    """Range of a whole number that a program computes, in Python's own integers, and the columns it is made of."""

    low: int
    high: int
    columns: frozenset[str] = frozenset()


Known: TypeAlias = dict[Any, Whole]
_ARITHMETIC: dict[str, Callable[..., Iterable[int]]] = {
    "add": lambda a, b: (a.low + b.low, a.high + b.high),
    "sub": lambda a, b: (a.low - b.high, a.high - b.low),
    "mul": lambda a, b: (a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high),
    "neg": lambda a: (-a.high, -a.low),
    "abs": lambda a: (0 if a.low <= 0 <= a.high else min(abs(a.low), abs(a.high)), max(abs(a.low), abs(a.high))),
    "max": lambda a, b: (max(a.low, b.low), max(a.high, b.high)),
    "min": lambda a, b: (min(a.low, b.low), min(a.high, b.high)),
    "square": lambda a: (0, a.low**2, a.high**2),
    "convert_element_type": lambda a: a[:2],
}
_MOVES = (
    "select_n", "concatenate", "broadcast_in_dim", "reshape", "squeeze", "transpose", "copy", "rev", "slice", "reduce_max",
    "reduce_min",
)  # fmt: skip
_INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")


def check_whole(model: Model, domain: Mapping[str, Domain]) -> None:
    """Refuse a model that computes, from whole columns, a whole number beyond its type for some record of the domain.

    Ranges are followed through the program by interval arithmetic in exact integers; operations without a rule end the trail.
    """
    domain = {name: domain[name] for name in model.columns if name in domain}
    if not any(column.discrete for column in domain.values()):
        return
    with jax.enable_x64(True):
        program = jax.make_jaxpr(model.log_likelihood)(*input_spec(model.dim, domain))
    known: Known = {}
    for variable, name in zip(program.jaxpr.invars[1:], sorted(domain), strict=True):
        if domain[name].discrete:
            low, high = int(np.min(domain[name].lo)), int(np.max(domain[name].hi))
            known[variable] = Whole(low, high, frozenset([name]))
    _follow(program.jaxpr, program.consts, known)


def _follow(jaxpr: Any, constants: Iterable[Any], known: Known) -> list[Whole | None]:
    """Walk a program; what is known of its outputs."""
    for variable, value in zip(jaxpr.constvars, constants, strict=True):
        if (found := _constant(value)) is not None:
            known[variable] = found
    for equation in jaxpr.eqns:
        given = [_look_up(variable, known) for variable in equation.invars]
        for variable, found in zip(equation.outvars, _outputs(equation, given), strict=True):
            if found is not None and _whole(variable.aval):
                _check_fits(equation, variable.aval.dtype, found)
                known[variable] = found
    return [_look_up(variable, known) for variable in jaxpr.outvars]


def _look_up(variable: Any, known: Known) -> Whole | None:
    return _constant(variable.val) if hasattr(variable, "val") else known.get(variable)


def _whole(value: Any) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(value), jnp.integer))


def _constant(value: Any) -> Whole | None:
    if not _whole(value) or np.size(value) == 0:
        return None
    array = np.asarray(value)
    return Whole(int(array.min()), int(array.max()))


def _outputs(equation: Any, given: list[Whole | None]) -> list[Whole | None]:
    """Ranges of what one operation gives; None: a real number, or not known."""
    name, unknown = equation.primitive.name, list[Whole | None]([None] * len(equation.outvars))
    if (inner := next((equation.params[key] for key in _INNER if key in equation.params), None)) is not None:
        program, constants = getattr(inner, "jaxpr", inner), getattr(inner, "consts", ())
        if len(program.invars) != len(given) or name in ("while", "scan"):
            return unknown
        pairs = zip(program.invars, given, strict=True)
        return _follow(program, constants, {variable: value for variable, value in pairs if value is not None})
    if not _whole(equation.outvars[0].aval):
        return unknown
    if name == "select_n":
        given = given[1:]  # the first says which
    if any(value is None for value in given):
        return unknown
    parts = [value for value in given if value is not None]
    ends = _ends(equation, parts)
    columns = frozenset().union(*(part.columns for part in parts))
    return unknown if ends is None else [Whole(min(ends), max(ends), columns)]


def _ends(equation: Any, parts: list[Whole]) -> list[int] | None:
    name = equation.primitive.name
    if name in _ARITHMETIC:
        return list(_ARITHMETIC[name](*parts))
    if name in _MOVES:
        return [end for part in parts for end in part[:2]]
    if name == "integer_pow":
        power = equation.params["y"]
        even = [0] if power % 2 == 0 else []
        return None if power < 0 else [parts[0].low ** power, parts[0].high ** power, *even]
    if name in ("reduce_sum", "cumsum", "dot_general"):
        terms = _terms(equation)
        each = list(_ARITHMETIC["mul"](*parts)) if name == "dot_general" else list(parts[0][:2])
        return [terms * min(each), terms * max(each)]
    return None


def _terms(equation: Any) -> int:
    """How many numbers are added up for one entry of the result, at the most."""
    shape = equation.invars[0].aval.shape
    if equation.primitive.name == "reduce_sum":
        return int(np.prod([shape[axis] for axis in equation.params["axes"]], dtype=int))
    if equation.primitive.name == "cumsum":
        return int(shape[equation.params["axis"]])
    (contracted, _), _ = equation.params["dimension_numbers"]
    return int(np.prod([shape[axis] for axis in contracted], dtype=int))


def _check_fits(equation: Any, dtype: Any, found: Whole) -> None:
    if not found.columns:
        return
    limits = np.iinfo(dtype)
    if found.low < limits.min or found.high > limits.max:
        size = max(abs(found.low), abs(found.high))
        names = " and ".join(repr(name) for name in sorted(found.columns))
        raise InvalidModel(
            f"whole numbers must be computed without wrapping round, and over the domain {equation.primitive.name!r} of {names} "
            f"reaches {size:.2g}, which {dtype} cannot hold (it ends at {limits.max:.2g}). Compute with real numbers: write "
            f"{sorted(found.columns)[0]} * 1.0 in the model, or declare a narrower domain."
        )
