"""Moving plain numbers about without a compiler.

JAX compiles a program for every operation and shape that it is asked to run at once: ten milliseconds and a megabyte each, for
copying a few numbers to another place. What a model's program does to constants, names and tables of coefficients is nearly all
of that kind, and NumPy does it as it stands.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from sfumato.sensitivity.interval import Array


def _broadcast(x: np.ndarray, shape: Any, broadcast_dimensions: Any, **_: Any) -> np.ndarray:
    view = [1] * len(shape)
    for size, where in zip(x.shape, broadcast_dimensions, strict=True):
        view[where] = size
    return np.array(np.broadcast_to(x.reshape(view), shape))


def _slice(x: np.ndarray, start_indices: Any, limit_indices: Any, strides: Any, **_: Any) -> np.ndarray:
    steps = strides or [1] * x.ndim
    return x[tuple(slice(*at) for at in zip(start_indices, limit_indices, steps, strict=True))]


_MOVES: dict[str, Callable[..., Any]] = {
    "broadcast_in_dim": _broadcast,
    "concatenate": lambda *x, dimension, **_: np.concatenate(x, dimension),
    "copy": lambda x, **_: x,
    "copy_p": lambda x, **_: x,
    "reshape": lambda x, new_sizes, **_: x.reshape(new_sizes),
    "rev": lambda x, dimensions, **_: np.flip(x, dimensions),
    "slice": _slice,
    "split": lambda x, sizes, axis, **_: np.split(x, np.cumsum(sizes)[:-1], axis),
    "squeeze": lambda x, dimensions, **_: np.squeeze(x, dimensions),
    "stop_gradient": lambda x, **_: x,
    "transpose": lambda x, permutation, **_: np.transpose(x, permutation),
}


def move(apply: Callable[..., Any], *arrays: Array) -> Any:
    """Apply a function that only moves entries to fixed numbers, now; the same numbers as ``apply(*arrays)``.

    The function is traced, which compiles nothing, and its operations are done by NumPy. Where one of them is not known here, JAX
    does them all.
    """
    with jax.ensure_compile_time_eval():
        if not all(map(_is_plain, arrays)):  # the key of a random number
            return apply(*arrays)
        numbers = [np.asarray(a) for a in arrays]
        program, shape = jax.make_jaxpr(apply, return_shape=True)(*numbers)
        outs = _run(program, numbers)
        if outs is not None:
            return jax.tree.unflatten(jax.tree.structure(shape), outs)
        found = apply(*(jax.device_put(a) for a in numbers))
        return jax.tree.map(lambda v: np.asarray(v) if _is_plain(v) else v, found)


def _is_plain(array: Array) -> bool:
    return not (hasattr(array, "dtype") and jnp.issubdtype(array.dtype, jax.dtypes.prng_key))


def _run(program: ClosedJaxpr, numbers: list[np.ndarray]) -> list[np.ndarray] | None:
    """Values of the outputs; None where an operation is not known here."""
    known: dict[Any, np.ndarray] = dict(zip(program.jaxpr.invars, numbers, strict=True))
    known |= {v: np.asarray(c) for v, c in zip(program.jaxpr.constvars, program.consts, strict=True)}

    def read(variable: Any) -> np.ndarray:
        return np.asarray(variable.val) if isinstance(variable, Literal) else known[variable]

    for equation in program.jaxpr.eqns:
        operands = [read(v) for v in equation.invars]
        if equation.primitive.name in ("jit", "pjit"):
            outs: Any = _run(equation.params["jaxpr"], operands)
        elif (how := _MOVES.get(equation.primitive.name)) is not None:
            found = how(*operands, **equation.params)
            outs = found if equation.primitive.multiple_results else [found]
        else:
            outs = None
        if outs is None:
            return None
        known |= dict(zip(equation.outvars, outs, strict=True))
    return [read(v) for v in program.jaxpr.outvars]
