"""What is believed of the posterior: its centre, its covariance, and how far both may be off. All of it is public."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from sfumato.bounds import compiled, synthetic
from sfumato.domain import Domain
from sfumato.model import Model

LEAST_START = 1 / 16
"""Variance of the starts about the centre in posterior variances, at the least: chains should not start at one point."""

_KINKED = 0.3  # information over outer products, in any direction, below which second derivatives do not tell it
_NOTHING = 1e-9  # of the largest outer product, in each coordinate's own unit: no record speaks of that direction


@dataclass(frozen=True)
class Belief:
    """Assumed before a pilot, paid for after it: only as good as where it came from.

    `error`: standard deviation of the centre in posterior standard deviations, coordinate by coordinate. `roughness`: how
    far the covariance may be off, as the root of the summed squares of the whitened information's errors.
    """

    centre: np.ndarray
    covariance: np.ndarray
    origin: str
    error: float = 0.0
    roughness: float = 0.0

    @property
    def start(self) -> np.ndarray:
        r"""Covariance :math:`(1 - e^2)\Sigma` of starts about the centre; its own error e is the rest of the posterior's.

        So a start is as far from the mode, on average, as a draw. With all of :math:`\Sigma` about the centre it would be
        further, and on a small budget no steps can be spared for the chain to forget it.
        """
        return self.covariance * max(1.0 - self.error**2, LEAST_START)


def assumed_belief(
    model: Model,
    domain: Mapping[str, Domain],
    n: int,
    centre: np.ndarray,
    example: synthetic.Batch | None,
    origin: str,
    spread: float = 1.0,
) -> Belief:
    """Posterior covariance from the information of made-up (or public example) records at the centre."""
    batch = synthetic.uniform(model, domain, centre, spread=spread) if example is None else example
    information = n * fisher_information(model, centre, batch) + prior_precision(model, centre)
    return Belief(centre, safe_inverse(information), origin)


def mean_information(model: Model, theta: np.ndarray, batch: Mapping[str, Any]) -> np.ndarray:
    """Average information of one record: the mean of minus the hessian, made positive."""
    mean = np.asarray(compiled.information(model)(jax.device_put(theta), dict(batch)))
    return positive(mean) if np.any(mean) else np.eye(model.dim)


def fisher_information(model: Model, theta: np.ndarray, batch: Mapping[str, Any]) -> np.ndarray:
    """Average information of one record: the mean hessian, or outer products of scores where that does not tell it."""
    hessian = np.asarray(compiled.information(model)(jax.device_put(theta), dict(batch)))
    scores = np.asarray(compiled.scores(model)(jax.device_put(theta), dict(batch)))
    scores = scores[np.isfinite(scores).all(axis=1)]
    outer = scores.T @ scores / max(len(scores), 1)
    if model.loss is None and len(scores) and not hessian_tells(hessian, outer):
        return positive(outer)
    return positive(hessian) if np.any(hessian) else np.eye(model.dim)


def hessian_tells(hessian: np.ndarray, outer: np.ndarray) -> bool:
    """Whether a mean of minus hessians says what outer products of scores do: for records of the model both have one mean.

    Where a program has kinks the hessian is too small. Where parameters act through fewer combinations than there are of them (a
    non-centred scale), it has curvature, of either sign, along directions that no record speaks of.
    """
    size = np.sqrt(np.diag(outer))
    if not size.any():
        return True
    unit = np.where(size > 0, size, size.max())
    values, vectors = np.linalg.eigh(outer / np.outer(unit, unit))
    heard = values > _NOTHING * values[-1]
    bent = vectors.T @ (hessian / np.outer(unit, unit)) @ vectors
    root = np.sqrt(values[heard])
    silent = np.abs(bent[np.ix_(~heard, ~heard)]).max(initial=0.0)
    return (
        silent <= _NOTHING and float(np.linalg.eigvalsh(bent[np.ix_(heard, heard)] / np.outer(root, root))[0]) > _KINKED
    )


def prior_precision(model: Model, theta: np.ndarray) -> np.ndarray:
    """Minus the hessian of the log prior, made positive."""
    return positive(-np.nan_to_num(np.asarray(compiled.prior_derivatives(model)(jax.device_put(theta))[1])))


def positive(matrix: np.ndarray, floor: float = 1e-9) -> np.ndarray:
    """Nearest symmetric matrix with eigenvalues at least `floor` times the largest, each coordinate in its own unit.

    Units of coordinates may differ by many orders of magnitude, and no eigenvalue is small because of them.
    """
    size = np.sqrt(np.abs(np.diag(matrix)))
    size = np.where(size > 0, size, size[size > 0].min(initial=np.inf))
    unit = np.where(np.isfinite(size), size, 1.0)
    own = matrix / np.outer(unit, unit)
    values, vectors = np.linalg.eigh((own + own.T) / 2)
    values = np.maximum(values, floor * max(values.max(), 1e-300))
    return np.asarray((vectors * values) @ vectors.T * np.outer(unit, unit))


def safe_inverse(matrix: np.ndarray) -> np.ndarray:
    """Inverse of a positive matrix, symmetric to the last bit."""
    inverse = np.linalg.inv(matrix)
    return np.asarray((inverse + inverse.T) / 2)
