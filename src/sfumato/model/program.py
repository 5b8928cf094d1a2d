"""What a traced program is known by: its operations, and every number that it holds."""

import hashlib
import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def equations(jaxpr: Any) -> Iterator[Any]:
    """All operations of a program, those of its inner programs too."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in _inner(equation):
            yield from equations(getattr(inner, "jaxpr", inner))


def digest(*programs: Any, given: Any = ()) -> str:
    """Digest of closed programs, and of arrays that belong to them.

    A program's text shows its operations and the plain numbers among them, but not the arrays it holds. Where a function of
    JAX's lies in memory is left out: it differs from one time to the next.
    """
    said = [re.sub(r"0x[0-9a-f]+", "", str(program)) for program in programs]
    for held in jax.tree.leaves(([list(_constants(program)) for program in programs], given)):
        keys = jnp.issubdtype(held.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(held) if keys else held)
        said += [str(array.dtype), str(array.shape), hashlib.sha256(array.tobytes()).hexdigest()]
    return hashlib.sha256("\n".join(said).encode()).hexdigest()


def _inner(equation: Any) -> Iterator[Any]:
    """Programs that one operation runs, with the arrays they hold where they hold any."""
    for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda v: hasattr(v, "eqns")):
        if hasattr(getattr(value, "jaxpr", value), "eqns"):
            yield value


def _constants(program: Any) -> Iterator[Any]:
    """All arrays that a program holds, those of its inner programs and those written in place of a variable too."""
    jaxpr = getattr(program, "jaxpr", program)
    yield from getattr(program, "consts", ())
    yield from _written(jaxpr.outvars)
    for equation in jaxpr.eqns:
        yield from _written(equation.invars)
        for inner in _inner(equation):
            yield from _constants(inner)


def _written(variables: Any) -> Iterator[Any]:
    for variable in variables:
        if np.ndim(getattr(variable, "val", 0.0)):  # plain numbers are in the text
            yield variable.val
