"""Moving plain numbers about without a compiler.

JAX compiles a program for every operation and shape that it is asked to run at once: ten milliseconds and a megabyte each, for
copying a few numbers to another place. What a model's program does to constants, names and tables of coefficients is nearly all
of that kind, and NumPy does it as it stands.
"""

from collections.abc import Callable
from inspect import signature
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from sfumato.bounds.interval import Array


def _broadcast(x: np.ndarray, *, shape: Any, broadcast_dimensions: Any) -> np.ndarray:
    view = [1] * len(shape)
    for size, where in zip(x.shape, broadcast_dimensions, strict=True):
        view[where] = size
    return np.array(np.broadcast_to(x.reshape(view), shape))


def _reshape(x: np.ndarray, *, new_sizes: Any, dimensions: Any) -> np.ndarray:
    return (x if dimensions is None else np.transpose(x, dimensions)).reshape(new_sizes)


def _slice(x: np.ndarray, *, start_indices: Any, limit_indices: Any, strides: Any) -> np.ndarray:
    steps = strides or [1] * x.ndim
    return x[tuple(slice(*at) for at in zip(start_indices, limit_indices, steps, strict=True))]


# Each names all that it is told; whoever is told more is not known here.
_MOVES: dict[str, Callable[..., Any]] = {
    "broadcast_in_dim": _broadcast,
    "concatenate": lambda *x, dimension: np.concatenate(x, dimension),
    "copy": lambda x: x,
    "copy_p": lambda x: x,
    "reshape": _reshape,
    "rev": lambda x, *, dimensions: np.flip(x, dimensions),
    "slice": _slice,
    "split": lambda x, *, sizes, axis: np.split(x, np.cumsum(sizes)[:-1], axis),
    "squeeze": lambda x, *, dimensions: np.squeeze(x, dimensions),
    "stop_gradient": lambda x: x,
    "transpose": lambda x, *, permutation: np.transpose(x, permutation),
}
_TOLD = {
    name: {p.name for p in signature(how).parameters.values() if p.kind is p.KEYWORD_ONLY}
    for name, how in _MOVES.items()
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
        else:
            outs = _done(equation, operands)
        if outs is None:
            return None
        known |= dict(zip(equation.outvars, outs, strict=True))
    return [read(v) for v in program.jaxpr.outvars]


def _done(equation: Any, operands: list[np.ndarray]) -> list[np.ndarray] | None:
    name = equation.primitive.name
    told = {key: value for key, value in equation.params.items() if not (key == "sharding" and value is None)}
    if name not in _MOVES or set(told) != _TOLD[name]:
        return None
    found = _MOVES[name](*operands, **told)
    return list(found) if equation.primitive.multiple_results else [found]
