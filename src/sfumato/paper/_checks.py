"""Argument rules shared by the paper's functions: one sentence each, one error type."""

import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import InvalidInput

Array = NDArray[np.float64]


def require(holds: Any, rule: str, value: Any, fix: str) -> None:
    """Raise with the rule, the value met and the next step, unless the rule holds everywhere."""
    if not np.all(holds):
        raise InvalidInput(f"{rule}; got {value!r}. {fix}")


def numbers(name: str, value: ArrayLike) -> Array:
    """Turn an argument into a float array."""
    try:
        return np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        raise InvalidInput(
            f"{name} must be a number or an array of numbers; got {value!r}. Choose another {name}."
        ) from None


def positive(**values: ArrayLike) -> list[Array]:
    """Turn arguments into float arrays, each finite and above zero."""
    arrays = []
    for name, value in values.items():
        array = numbers(name, value)
        rule = f"{name} must be finite and above 0"
        require(np.isfinite(array) & (array > 0), rule, value, f"Choose another {name}.")
        arrays.append(array)
    return arrays


def records(n: ArrayLike) -> Array:
    """Check the number of records: at least two, because the paper divides by log n."""
    array = numbers("n", n)
    require(np.isfinite(array) & (array >= 2), "n must be finite and at least 2: log n divides", n, "Add records.")
    return array


def exponent(alpha: ArrayLike) -> Array:
    """Check alpha: above 0, and with a warning above 1/2, where the chain freezes as n grows (Sec. 3.2.1)."""
    (array,) = positive(alpha=alpha)
    if np.any(array > 0.5):
        warnings.warn(
            f"alpha above 1/2 (got {alpha!r}): proposals shrink faster than the posterior and the chain freezes "
            "as n grows (Sec. 3.2.1). Use alpha <= 1/2 unless that is what you study.",
            UserWarning,
            stacklevel=3,
        )
    return array


def unwrap(result: Any, *given: ArrayLike) -> Any:
    """Give a Python float if every argument was a scalar, else the array."""
    return float(result) if all(np.ndim(x) == 0 for x in given) else np.asarray(result)
