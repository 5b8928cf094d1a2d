"""Names of operations and their rules: one entry serves values, slopes, second derivatives and single records alike.

A rule takes the scope, the primitive's parameters and the abstract operands, and returns the abstract result. Where
every operand is a constant the interpreter applies the primitive itself, so rules only see operands of which at least
one depends on the record.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from sfumato.bounds.values import Affine, Const, Truth, Value
from sfumato.errors import Unsupported

Params: TypeAlias = Mapping[str, Any]
Rule: TypeAlias = Callable[..., Value]

RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule under the names of primitives."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


def unsupported(name: str, why: str = "") -> Unsupported:
    """Build the refusal that names the primitive."""
    return Unsupported(
        f"the certifier has no sound rule for the primitive {name!r} on values that depend on a record{why}; "
        "rewrite the model without it, or declare a bound with sf.Clip, sf.Lipschitz or sf.Range.",
        primitive=name,
    )


def no_derivative(name: str) -> Unsupported:
    """Refuse what has no proven second derivative."""
    return Unsupported(
        f"kernel='langevin' has no proven second derivative for the primitive {name!r} here; use kernel='guided', or "
        "rewrite the model without it.",
        primitive=name,
    )


def is_number(value: Value, number: float) -> bool:
    """Whether a value is this very number."""
    return isinstance(value, Const) and value.fixed and value.shape == () and float(value.at[0]) == number


def is_positive(value: Value) -> bool:
    """Whether a value is known to be above zero for every parameter and record."""
    return not isinstance(value, Truth) and value.positive


def is_fixed(value: Value) -> bool:
    """Whether a value does not look at the parameter."""
    return isinstance(value, Const | Affine) and value.fixed


def broadcast(first: Value, second: Value) -> tuple[int, ...]:
    """Shape of an operation on two arrays."""
    return np.broadcast_shapes(first.shape, second.shape)
