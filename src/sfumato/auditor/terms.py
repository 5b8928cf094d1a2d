"""What one record adds to each answer: the auditor's own arithmetic.

Every answer of a vault is a sum over records plus Gaussian noise, so whoever made the records up knows its mean under any
table. The terms are evaluated here in plain float64 from the model itself, not by the vault's functions: a mistake in those
cannot hide itself. Nothing here decides whether an audit is valid (any statistic is); it decides how sharp it is.
"""

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.bounds.synthetic import Batch
from sfumato.kernel import Kernel, Langevin, ReferenceLangevin
from sfumato.model.derivatives import KINDS, vector_function
from sfumato.protocol.questions import Release
from sfumato.study.target import Study

Array: TypeAlias = Any

FEW, MANY = 8, 1024
"""Pairs of parameters that are evaluated at a time: always as many, so that nothing is compiled twice."""


class Terms:
    """Terms of one study under one kernel. All public: the records are made up.

    Parameters
    ----------
    study, kernel, n
        What is asked, and of how many records.
    clamped
        Whether a walk's terms are cut to the range that the study states, as the vault does; False is what they would be in a
        vault that forgot to.
    """

    def __init__(self, study: Study, kernel: Kernel, n: int, *, clamped: bool = True) -> None:
        self._study, self._kernel, self._n = study, kernel, n
        self._clamped = clamped and not study.bounds.proven  # a proven range cuts nothing

    def pilot(self, question: Release, batch: Batch) -> np.ndarray:
        """Vectors of a pilot's question, cut to the ball around its centre: shape (record, k)."""
        with jax.enable_x64(True):
            point = jnp.asarray(question.theta), jnp.asarray(question.matrix)
            values = np.asarray(self._vectors[question.what](*point, batch))
        centre = np.asarray(question.centre) if question.centre else np.zeros(values.shape[1])
        away = np.where(np.isfinite(values).all(axis=1, keepdims=True), values - centre, 0.0)
        length = np.linalg.norm(away, axis=1, keepdims=True)
        return centre + away * np.minimum(1.0, question.radius / np.maximum(length, 1e-300))

    def first(self, batch: Batch) -> np.ndarray:
        """Vectors of Langevin's first query, the same at every step: (record, d); a walk has none: (record, 0)."""
        with jax.enable_x64(True):
            return np.asarray(self._firsts(batch), dtype=np.float64)

    def step(self, batch: Batch, theta: np.ndarray, theta_prop: np.ndarray) -> np.ndarray:
        """Scalars of the last query of steps, one pair of parameters a row: shape (pair, record)."""
        size = FEW if len(theta) <= FEW else MANY
        out = [np.zeros((0, len(next(iter(batch.values())))))]
        with jax.enable_x64(True):
            for start in range(0, len(theta), size):
                pair = [_padded(part[start : start + size], size) for part in (theta, theta_prop)]
                out.append(np.asarray(self._steps(batch, *pair))[: len(theta) - start])
        return np.concatenate(out)

    # -- compiled -------------------------------------------------------------------------------------------------

    @cached_property
    def _vectors(self) -> dict[str, Callable[..., Array]]:
        def vectors(what: str) -> Callable[..., Array]:
            model = self._study.model
            return jax.jit(lambda theta, matrix, batch: jax.vmap(vector_function(what, model, theta, matrix))(batch))

        return {what: vectors(what) for what in KINDS}

    @cached_property
    def _vectors_there(self) -> Callable[[Batch], Array]:
        """Vectors of records at the kernel's reference point, as the vault sums them.

        Automatic differentiation will not do: at a kink of the model's formula (a logit of exactly zero) it gives the slope of
        one piece, which is no gradient. The auditor would take two such records for a leak.
        """
        bounds, kernel = self._study.reference_bounds, cast(ReferenceLangevin, self._kernel)
        if bounds is None:
            centre = jnp.asarray(kernel.centre)
            return jax.vmap(partial(jax.grad(self._study.model.log_likelihood), centre))
        return jax.vmap(partial(bounds.vector, bounds.at(kernel.centre, kernel.matrix).body))

    @cached_property
    def _firsts(self) -> Callable[[Batch], Array]:
        kernel, family = self._kernel, self._study.family
        if kernel.second == "remainder":
            matrix, vectors = jnp.asarray(kernel.matrix), self._vectors_there
            return jax.jit(lambda batch: vectors(batch) @ matrix)
        if kernel.second == "linear" and family is not None:
            statistic, matrix = family.statistic, jnp.asarray(kernel.matrix)
            return jax.jit(jax.vmap(lambda record: statistic(record).astype(jnp.float64) @ matrix))
        return lambda batch: np.zeros((len(next(iter(batch.values()))), 0))

    @cached_property
    def _steps(self) -> Callable[[Batch, Array, Array], Array]:
        return jax.jit(jax.vmap(self._scalars(), (None, 0, 0)))

    def _scalars(self) -> Callable[[Batch, Array, Array], Array]:
        """Function of records and one pair of parameters."""
        kernel, bounds = self._kernel, self._study.bounds
        likelihood = jax.vmap(self._study.model.log_likelihood, (None, 0))
        vectors = self._vectors_there if kernel.second == "remainder" else None

        def second_order(batch: Batch, theta: Array, theta_prop: Array) -> Array:
            along = vectors(batch) @ cast(Langevin, kernel).known(theta, theta_prop).along  # type: ignore[misc]
            return likelihood(theta_prop, batch) - likelihood(theta, batch) - along

        def linear(batch: Batch, theta: Array, theta_prop: Array) -> Array:
            return -(self._firsts(batch) @ cast(Langevin, kernel).known(theta, theta_prop).along)

        def ratio(batch: Batch, theta: Array, theta_prop: Array) -> Array:
            change = likelihood(theta_prop, batch) - likelihood(theta, batch)
            return jnp.clip(change, *bounds.range_for(self._n)(theta, theta_prop)) if self._clamped else change

        return {"remainder": second_order, "linear": linear, "ratio": ratio}[kernel.second]


def _padded(rows: np.ndarray, size: int) -> np.ndarray:
    return np.concatenate([rows, np.repeat(rows[-1:], size - len(rows), axis=0)])
