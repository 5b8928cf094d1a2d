"""Each function of a model that planning needs, compiled once per model: compiling is most of what planning costs."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.model import Model
from sfumato.model.derivatives import whitened
from sfumato.tools.quick_jit import quick_jit

Array: TypeAlias = Any
_KEPT = 16  # models remembered: a session plans a few, again and again


@lru_cache(maxsize=_KEPT)
def prior_draws(model: Model) -> np.ndarray:
    """Draw a thousand parameters from the prior, unconstrained; one after another, which compiles in half the time."""
    one = quick_jit(lambda number: model.sample_prior(jax.random.fold_in(jax.random.key(0), number)))
    return np.stack([np.asarray(one(number), dtype=np.float64) for number in range(1001)])


@lru_cache(maxsize=_KEPT)
def prior_density(model: Model) -> Callable[[Array], Array]:
    """Function theta -> log prior density."""
    return quick_jit(model.log_prior)


@lru_cache(maxsize=_KEPT)
def prior_derivatives(model: Model) -> Callable[[Array], tuple[Array, Array]]:
    """Function theta -> gradient and hessian of the log prior."""
    return quick_jit(lambda theta: (jax.grad(model.log_prior)(theta), jax.hessian(model.log_prior)(theta)))


@lru_cache(maxsize=_KEPT)
def scores(model: Model) -> Callable[[Array, Mapping[str, Array]], Array]:
    """Function (theta, records) -> score of each record."""
    return quick_jit(jax.vmap(jax.grad(model.log_likelihood), (None, 0)))


@lru_cache(maxsize=_KEPT)
def hessians(model: Model) -> Callable[[Array, Mapping[str, Array]], Array]:
    """Function (theta, records) -> second derivatives of each record's log-likelihood."""
    return quick_jit(jax.vmap(jax.hessian(model.log_likelihood), (None, 0)))


def information(model: Model) -> Callable[[Array, Mapping[str, Array]], np.ndarray]:
    """Function (theta, records) -> mean of minus the hessian over records where it is finite."""

    def mean(theta: Array, batch: Mapping[str, Array]) -> np.ndarray:
        each = -np.asarray(hessians(model)(theta, batch))
        finite = np.isfinite(each).all(axis=(1, 2))
        return np.asarray(np.where(finite[:, None, None], each, 0.0).sum(0) / max(finite.sum(), 1))

    return mean


def vectors(model: Model, what: str) -> Callable[[Array, Array, Mapping[str, Array]], np.ndarray]:
    """Function (theta, matrix, records) -> each record's whitened vector: what a pilot asks sums of, `vector_function` of each.

    Only derivatives are compiled; NumPy whitens them. So all kinds share two programs, and large products are its own.
    """

    def each(theta: Array, matrix: Array, batch: Mapping[str, Array]) -> np.ndarray:
        derivatives = np.asarray((hessians if what == "information" else scores)(model)(theta, batch))
        with np.errstate(invalid="ignore", over="ignore"):  # where a record has none, the vector has none either
            return whitened(what, derivatives, np.asarray(matrix))

    return each


@lru_cache(maxsize=_KEPT)
def outcomes(model: Model) -> Callable[[Array, Array, Mapping[str, Array]], list[Array]]:
    """Function (theta, keys, records) -> one draw of every observed site per record."""

    def one(theta: Array, key: Array, record: Mapping[str, Array]) -> list[Array]:
        factors = model.observations(theta, record)  # type: ignore[misc]
        keys = jax.random.split(key, len(factors))
        return [jnp.squeeze(f.distribution.sample(k), 0) for k, f in zip(keys, factors, strict=True)]

    return quick_jit(jax.vmap(one, (None, 0, 0)))


@lru_cache(maxsize=_KEPT)
def observed_values(model: Model) -> Callable[[Array, Mapping[str, Array]], list[Array]]:
    """Function (theta, record) -> the value of every observed site."""
    return quick_jit(lambda theta, record: [f.value for f in model.observations(theta, record)])  # type: ignore[misc]
