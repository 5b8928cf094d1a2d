"""Derivatives of one record's log-likelihood as flat vectors: what a pilot asks sums of. Pure and public."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import numpy as np

from sfumato.errors import InvalidInput
from sfumato.model.base import Model

Array: TypeAlias = Any


def size(what: str, dim: int) -> int:
    """How many coordinates a vector of this kind has."""
    return {"gradient": dim, "information": dim * (dim + 1) // 2}[_known(what)]


def vector_function(what: str, model: Model, theta: Array, matrix: Array) -> Callable[[Mapping[str, Array]], Array]:
    r"""Function record -> its whitened gradient or information.

    "gradient" is :math:`A^\top \nabla\ell`; "information" the upper triangle of :math:`-A^\top \nabla^2\ell\, A` with
    off-diagonal entries times :math:`\sqrt 2`, so that Euclidean length is Frobenius norm.
    """
    _known(what)
    if what == "gradient":
        return lambda record: matrix.T @ jax.grad(model.log_likelihood)(theta, record)
    rows, columns = np.triu_indices(model.dim)
    weight = np.where(rows == columns, 1.0, 2.0**0.5)
    hessian = jax.hessian(model.log_likelihood)
    return lambda record: -(matrix.T @ hessian(theta, record) @ matrix)[rows, columns] * weight


def triangle_to_matrix(triangle: np.ndarray, dim: int) -> np.ndarray:
    """Symmetric matrix from the layout above."""
    rows, columns = np.triu_indices(dim)
    out = np.zeros((dim, dim))
    out[rows, columns] = np.where(rows == columns, triangle, triangle / 2.0**0.5)
    return np.asarray(out + np.triu(out, 1).T)


def matrix_to_triangle(matrix: np.ndarray) -> np.ndarray:
    """Inverse of `triangle_to_matrix`."""
    rows, columns = np.triu_indices(len(matrix))
    return np.asarray(matrix[rows, columns] * np.where(rows == columns, 1.0, 2.0**0.5))


def _known(what: str) -> str:
    if what not in ("gradient", "information"):
        raise InvalidInput(f'a vector release is "gradient" or "information", got {what!r}.')
    return what
