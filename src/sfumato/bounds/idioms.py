"""Find well-known functions that JAX writes out piece by piece, and put them back together.

The normal distribution function is traced as a choice between erf and erfc, log-sum-exp as a shift by the maximum:
smooth functions, whose pieces are not. A stretch of a program is recognised when it is, operation for operation and
parameter for parameter, the program that JAX makes of the function itself; names play no part.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Literal
from jax.scipy import special

from sfumato.bounds.interval import Array


class Step(NamedTuple):
    """One operation: a JAX equation, or a stretch of them under the name of the function they compute."""

    name: str
    invars: list[Any]
    outvars: list[Any]
    equation: Any


class Idiom(NamedTuple):
    """A function, and the name of the rule that stands for its program; `along`: it takes an axis, which numbers have not."""

    name: str
    function: Callable[..., Array]
    arity: int = 1
    along: bool = False


def softplus_of_pytensor(x: Array) -> Array:
    """PyTensor's log(1 + e^x), operation for operation; none of its pieces is further from it than float64 rounds anyway."""
    return jnp.where(
        x < -37.0,
        jnp.exp(x),
        jnp.where(x < 18.0, jnp.log1p(jnp.exp(x)), jnp.where(x < 33.3, x + jnp.exp(-x), x)),
    )


_INLINE = (
    Idiom("ndtr", special.ndtr),
    Idiom("softplus", softplus_of_pytensor),
    Idiom("logsumexp", lambda x: special.logsumexp(x, axis=-1), along=True),
    Idiom("logsumexp_keep", lambda x: special.logsumexp(x, axis=-1, keepdims=True), along=True),
    Idiom("log_softmax", jax.nn.log_softmax, along=True),
)
_CALLS = (
    Idiom("xlogy", special.xlogy, 2),
    Idiom("xlog1py", special.xlog1py, 2),
    Idiom("logaddexp", jnp.logaddexp, 2),
    Idiom("log_ndtr", special.log_ndtr),
)


def steps(jaxpr: Any) -> list[Step]:
    """List the operations of a program, with idioms in place of the last operation of their stretch."""
    out = [Step(_call_name(e) or e.primitive.name, list(e.invars), list(e.outvars), e) for e in jaxpr.eqns]
    for start, equation in enumerate(jaxpr.eqns):
        found = next(_matches(jaxpr.eqns, start, equation), None)
        if found is not None:
            name, length, argument, result = found
            out[start + length - 1] = Step(name, [argument], [result], equation)
    return out


def _matches(equations: list[Any], start: int, first: Any) -> Iterator[tuple[str, int, Any, Any]]:
    for idiom in _INLINE:
        for operand in first.invars:
            aval = operand.aval
            if jnp.issubdtype(aval.dtype, jnp.floating) and (aval.ndim or not idiom.along):
                reference = _reference(idiom, ((aval.shape, str(aval.dtype)),))
                bound = _unify(reference, equations[start : start + len(reference.eqns)])
                if bound is not None:
                    yield idiom.name, len(reference.eqns), bound[reference.invars[0]], bound[reference.outvars[0]]


@lru_cache(maxsize=256)
def _reference(idiom: Idiom, shapes: tuple[tuple[tuple[int, ...], str], ...]) -> Any:
    spec: Any = jax.ShapeDtypeStruct
    jaxpr = jax.make_jaxpr(idiom.function)(*(spec(*shape) for shape in shapes)).jaxpr
    while len(jaxpr.eqns) == 1 and "jaxpr" in jaxpr.eqns[0].params:  # a call around the function itself
        jaxpr = jaxpr.eqns[0].params["jaxpr"].jaxpr
    return jaxpr


def _unify(reference: Any, equations: list[Any]) -> dict[Any, Any] | None:
    """Match two stretches of program up to the names of their variables."""
    if len(equations) < len(reference.eqns) or not reference.eqns:
        return None
    names: dict[Any, Any] = {}
    for wanted, met in zip(reference.eqns, equations, strict=True):
        if wanted.primitive is not met.primitive or str(wanted.params) != str(met.params):
            return None
        if not all(_same(names, w, m) for w, m in zip(wanted.invars, met.invars, strict=True)):
            return None
        names.update(zip(wanted.outvars, met.outvars, strict=True))
    return names


def _same(names: dict[Any, Any], wanted: Any, met: Any) -> bool:
    if isinstance(wanted, Literal) or isinstance(met, Literal):
        both = isinstance(wanted, Literal) and isinstance(met, Literal)
        return both and str(wanted.val) == str(met.val) and wanted.aval == met.aval
    return names.setdefault(wanted, met) is met


def _call_name(equation: Any) -> str | None:
    """Name of the function inside a custom derivative call, when its program is JAX's own."""
    if equation.primitive.name != "custom_jvp_call":
        return None
    shapes = tuple((v.aval.shape, str(v.aval.dtype)) for v in equation.invars)
    if not all(jnp.issubdtype(dtype, jnp.floating) for _, dtype in shapes):
        return None
    program = str(equation.params["call_jaxpr"])
    for idiom in _CALLS:
        if idiom.arity == len(equation.invars):
            inner = [e for e in _reference(idiom, shapes).eqns if e.primitive.name == "custom_jvp_call"]
            if any(str(e.params["call_jaxpr"]) == program for e in inner):
                return idiom.name
    return None
