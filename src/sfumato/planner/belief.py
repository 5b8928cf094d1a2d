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
    information = n * mean_information(model, centre, batch) + prior_precision(model, centre)
    return Belief(centre, safe_inverse(information), origin)


def mean_information(model: Model, theta: np.ndarray, batch: Mapping[str, Any]) -> np.ndarray:
    """Average information of one record: the mean of minus the hessian, made positive."""
    mean = np.asarray(compiled.information(model)(jax.device_put(theta), dict(batch)))
    return positive(mean) if np.any(mean) else np.eye(model.dim)


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
