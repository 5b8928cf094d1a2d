"""Derivatives of one record's log-likelihood as flat vectors: what a pilot asks sums of. Pure and public."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import numpy as np

from sfumato.errors import InvalidInput
from sfumato.model.base import Model

Array: TypeAlias = Any

KINDS = ("gradient", "information", "outer")
"""Vectors that a pilot may ask sums of."""


def size(what: str, dim: int) -> int:
    """How many coordinates a vector of this kind has."""
    return dim if _known(what) == "gradient" else dim * (dim + 1) // 2


def vector_function(what: str, model: Model, theta: Array, matrix: Array) -> Callable[[Mapping[str, Array]], Array]:
    r"""Function record -> its whitened gradient, information, or outer product.

    With the score :math:`g = A^\top \nabla\ell`, "gradient" is g itself; "information" is the upper triangle of
    :math:`-A^\top \nabla^2\ell\, A`, and "outer" that of :math:`gg^\top`, both with off-diagonal entries times
    :math:`\sqrt 2`, so that Euclidean length is Frobenius norm. Under the model the last two have one mean.
    """
    _known(what)
    gradient = jax.grad(model.log_likelihood)
    if what == "gradient":
        return lambda record: matrix.T @ gradient(theta, record)
    rows, columns = np.triu_indices(model.dim)
    weight = np.where(rows == columns, 1.0, 2.0**0.5)
    if what == "outer":

        def outer(record: Mapping[str, Array]) -> Array:
            score = matrix.T @ gradient(theta, record)
            return score[rows] * score[columns] * weight

        return outer
    hessian = jax.hessian(model.log_likelihood)
    return lambda record: -(matrix.T @ hessian(theta, record) @ matrix)[rows, columns] * weight


def whitened(what: str, derivatives: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """The same of many records at once, from their scores, or (for "information") their second derivatives."""
    _known(what)
    if what == "gradient":
        return np.asarray(derivatives @ matrix)
    rows, columns = np.triu_indices(len(matrix))
    weight = np.where(rows == columns, 1.0, 2.0**0.5)
    if what == "outer":
        scores = derivatives @ matrix
        return np.asarray(scores[:, rows] * scores[:, columns] * weight)
    # One large product in place of one small one a record.
    right = derivatives.reshape(-1, len(matrix)) @ matrix
    left = right.reshape(derivatives.shape).transpose(0, 2, 1).reshape(-1, len(matrix)) @ matrix
    return np.asarray(-left.reshape(derivatives.shape)[:, rows, columns] * weight)


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
    if what not in KINDS:
        raise InvalidInput(f"a vector release is one of {', '.join(KINDS)}, got {what!r}.")
    return what
