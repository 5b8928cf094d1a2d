r"""Sharing the noise out among owners.

The chain needs noise of variance :math:`\sigma^2` in an answer, whoever adds it. Owner i adds the share :math:`r_i`,
:math:`\sum r_i = 1`, and pays :math:`w_i^2/(r_i\sigma^2)` a step, :math:`w_i` its sensitivity. All budgets
:math:`\mu_i^2` end at the same step when

.. math:: r_i = \frac{w_i^2/\mu_i^2}{\sum_j w_j^2/\mu_j^2},

and the chain is then as long as that of one owner of all records with :math:`\mu^2 = w^2/\sum_j (w_j^2/\mu_j^2)`. The same
shares serve the two queries of a Langevin step, :math:`\xi_i = r_i\,4/h` and :math:`\sigma_i^2 = r_i\sigma^2`, and the pilot.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from sfumato.planner import forecast
from sfumato.planner.bundles import natural_jacobian
from sfumato.study.target import Study


class Copies(NamedTuple):
    """What bundles bring to a walk: noise variance of one summed copy, and steps per chain that there are copies for."""

    xi: float
    steps: int


def share_out(budgets: Sequence[float], squared_widths: Sequence[float]) -> tuple[list[float], float]:
    """Shares of the noise variance, and mu of the one owner that all of them together are worth.

    Parameters
    ----------
    budgets
        Mu squared that each owner has left.
    squared_widths
        Each owner's squared sensitivity, relative to that of the study the plan is made for.
    """
    loads = [width / budget for width, budget in zip(squared_widths, budgets, strict=True)]
    total = sum(loads)
    return [load / total for load in loads], float(total**-0.5)


def relative_widths(studies: Sequence[Study], picture: forecast.Picture) -> list[float]:
    """Mean squared sensitivity of typical moves under each owner's domain, relative to the first."""
    first = studies[0]
    if all(study is first for study in studies):
        return [1.0] * len(studies)
    moves = 0.3 * np.random.default_rng(0).standard_normal((256, len(picture.centre)))
    moves = moves @ np.linalg.cholesky(picture.covariance).T
    with jax.enable_x64(True):
        squares = {id(s): forecast.mean_square_width(s.bounds.range)(picture, moves) for s in studies}
    return [squares[id(study)] / squares[id(first)] for study in studies]


def choose_beside_copies(
    study: Study, picture: forecast.Picture, mu: float, copies: Copies, *, kernel: str, chains: int, max_iterations: int
) -> forecast.Choice:
    r"""Best walk where some owners answer live and others with copies, whose noise grows with the step.

    The noise of a step of length s is :math:`\sqrt{\sigma^2 + c^2 s^2}`; only :math:`\sigma` is paid for.
    """
    names = ["guided", "componentwise", "random-walk"] if kernel == "auto" else [kernel]
    assert study.family is not None  # noqa: S101 (bundles were checked against it)
    with jax.enable_x64(True):
        jacobian = natural_jacobian(study.family, study.model, picture.centre)
    width_square = forecast.mean_square_width(study.bounds.range)
    rng, dim = np.random.default_rng(1), len(picture.centre)
    best: list[forecast.Choice] = []
    for name in names:
        for matrix in forecast.step_matrices(picture.covariance)[: None if dim > 1 else 1]:
            unit = forecast._unit_moves(name, matrix, rng)
            slope = float(np.sqrt(copies.xi * np.mean(np.sum((unit @ jacobian.T) ** 2, axis=1))))
            with jax.enable_x64(True):
                square = width_square(picture, 0.3 * unit) / 0.09
            best += [
                _choice(name, matrix, step, sigma, square, slope, mu, copies, chains, max_iterations, dim)
                for step in forecast.STEPS
                for sigma in forecast.SIGMAS
            ]
    return max(best, key=lambda choice: choice.ess)


def _choice(
    name: str, matrix: np.ndarray, step: float, sigma: float, square: float, slope: float, mu: float, copies: Copies,
    chains: int, max_iterations: int, dim: int,
) -> forecast.Choice:  # fmt: skip
    total = float(np.hypot(sigma, slope * step))
    worth = float(np.interp(total, forecast.SIGMAS, forecast._worth(name, step, dim), right=0.0))
    afford = mu**2 * sigma**2 / max(square * step**2, 1e-300) / chains
    iterations = int(min(afford, max_iterations, copies.steps))
    return forecast.Choice(name, matrix, step, sigma, iterations, chains * iterations * worth)
