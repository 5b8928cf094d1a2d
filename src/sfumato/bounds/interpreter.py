"""Walk a JAX program with abstract values in place of numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from sfumato.bounds import indexing, reductions  # noqa: F401 (they register rules)
from sfumato.bounds.arithmetic import exponential, logarithm
from sfumato.bounds.canonical import PLAIN
from sfumato.bounds.elementwise import FUNCTIONS
from sfumato.bounds.idioms import Step, steps
from sfumato.bounds.rules import RULES, unsupported
from sfumato.bounds.shapes import structural, structural_names
from sfumato.bounds.values import Const, Scope, Value, at_each, constant, of_consts, plain

_KEEPS_SIGN = ("mul", "div", "add", "max", "min", "sqrt", "reduce_sum", "cumsum", "cumprod", "reduce_max", "pow")


def run(scope: Scope, closed: ClosedJaxpr, arguments: Sequence[Value]) -> list[Value]:
    """Evaluate a program on abstract values."""
    jaxpr = closed.jaxpr
    known: dict[Any, Value] = {}
    known.update(zip(jaxpr.constvars, [constant(c) for c in closed.consts], strict=True))
    known.update(zip(jaxpr.invars, arguments, strict=True))
    for step in needed_equations(jaxpr):
        operands = [_read(known, v) for v in step.invars]
        known.update(zip(step.outvars, _apply(scope, step, operands), strict=True))
    return [_read(known, v) for v in jaxpr.outvars]


def _read(known: dict[Any, Value], variable: Any) -> Value:
    if isinstance(variable, Literal):
        return constant(np.asarray(variable.val))
    return known[variable]


def needed_equations(jaxpr: Any) -> list[Step]:
    """Keep the operations that the outputs need; NumPyro leaves many unused ones behind."""
    wanted = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    needed = []
    for step in reversed(steps(jaxpr)):
        if any(v in wanted for v in step.outvars):
            needed.append(step)
            wanted |= {v for v in step.invars if not isinstance(v, Literal)}
    return needed[::-1]


def inner_program(equation: Any) -> ClosedJaxpr | None:
    """Return the program inside a call such as jit or custom_jvp_call."""
    if equation.primitive.name in ("while", "scan", "cond"):
        return None
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = equation.params.get(key)
        if inner is not None:
            return inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())
    return None


def _apply(scope: Scope, step: Step, operands: list[Value]) -> list[Value]:
    constant_only = all(isinstance(v, Const) for v in operands)
    if step.name in PLAIN:
        return [_plain_function(step.name, operands) if constant_only else RULES[step.name](scope, {}, *operands)]  # type: ignore[arg-type]
    equation = step.equation
    if (inner := inner_program(equation)) is not None:
        return run(scope, inner, operands)
    if step.name in structural_names():
        out = structural(lambda *x: equation.primitive.bind(*x, **equation.params), *operands, scope=scope)
        return out if isinstance(out, list) else [out]
    if constant_only:
        return _constants(scope, equation, operands)  # type: ignore[arg-type]
    if step.name not in RULES:
        raise unsupported(step.name)
    params = {**equation.params, "from_whole": is_whole(equation.invars[0])}
    return [RULES[step.name](scope, params, *operands)]


def _plain_function(name: str, operands: list[Const]) -> Const:
    return of_consts(PLAIN[name], *operands, positive=name in FUNCTIONS and FUNCTIONS[name].positive)


def is_whole(variable: Any) -> bool:
    """Whether a variable of a program holds whole numbers."""
    return str(variable.aval.dtype).startswith(("int", "uint", "bool"))


def _constants(scope: Scope, equation: Any, operands: list[Const]) -> list[Value]:
    name = equation.primitive.name
    if name == "exp":
        return [exponential(scope, operands[0])]
    if name == "log" and operands[0].log is not None:
        return [logarithm(scope, operands[0])]
    if name == "convert_element_type" and operands[0].log is not None and _is_float(equation.outvars[0]):
        return [operands[0]]
    fixed = all(v.fixed for v in operands)

    def bind(*operands: Any) -> list[Any]:
        out = equation.primitive.bind(*operands, **equation.params)
        return list(out) if equation.primitive.multiple_results else [out]

    with plain(fixed):
        found = at_each(bind, *(v.at for v in operands))
    positive = name in FUNCTIONS and FUNCTIONS[name].positive
    positive = positive or (name in _KEEPS_SIGN and all(v.positive for v in operands))
    return [constant(at[0]) if fixed else Const(at, False, positive) for at in zip(*found, strict=True)]


def _is_float(variable: Any) -> bool:
    return str(variable.aval.dtype).startswith("float")
