r"""Hierarchies: what moves for free, and what is left for the paid step to move.

Coordinates :math:`\eta` that no record speaks of (`model.spoken`) are moved by the prior alone after every paid step. So the
paid step moves the others, :math:`\varphi`, given :math:`\eta`. On a normal posterior that is a Gibbs sampler, one half of it
Langevin. With :math:`r^2` the largest squared canonical correlation of :math:`\varphi` and :math:`\eta`, the direction of
:math:`\varphi` that lags most goes by :math:`1 - r^2` of a step. Where records say much of every group, that is next to one.
"""

from typing import NamedTuple

import jax
import numpy as np

from sfumato.bounds import compiled
from sfumato.kernel import FreeMoves
from sfumato.model.spoken import unspoken
from sfumato.planner.belief import Belief, positive, safe_inverse
from sfumato.study.target import Study


class Paid(NamedTuple):
    """The paid step of a hierarchy: a root that does not mix what moves freely with the rest, and 1 - r squared."""

    root: np.ndarray
    pace: float


def free_coordinates(study: Study) -> np.ndarray:
    """Mask of what moves for free: nothing in a family, whose statistic speaks of every parameter."""
    if study.family is not None:
        return np.zeros(study.model.dim, bool)
    return unspoken(study.model, study.domain)


def free_moves(study: Study, belief: Belief) -> FreeMoves | None:
    """Moves of the coordinates that no record speaks of, one conditional standard deviation long; None where there are none.

    Given all others their precision is the prior's own: at the centre, made positive.
    """
    free = free_coordinates(study)
    if not free.any():
        return None
    bend = np.asarray(compiled.prior_derivatives(study.model)(jax.device_put(belief.centre))[1])
    precision = positive(-np.nan_to_num(bend[np.ix_(free, free)]))
    directions = np.zeros((len(free), int(free.sum())))
    directions[free] = np.linalg.cholesky(safe_inverse(precision))
    return FreeMoves(directions)


def paid_step(belief: Belief, free: np.ndarray) -> Paid:
    """The root of a paid step: that of the belief's covariance, or of its two conditional ones."""
    covariance = belief.covariance
    if not free.any():
        return Paid(np.linalg.cholesky(covariance), 1.0)
    precision = safe_inverse(covariance)
    apart = np.zeros_like(covariance)
    for part in (free, ~free):
        block = np.ix_(part, part)
        apart[block] = safe_inverse(positive(precision[block]))
    block = np.ix_(~free, ~free)
    white = np.linalg.inv(np.linalg.cholesky(covariance[block]))
    pace = float(np.linalg.eigvalsh(white @ apart[block] @ white.T)[0])
    return Paid(np.linalg.cholesky(apart), min(max(pace, 1e-6), 1.0))
