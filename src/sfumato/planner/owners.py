r"""Sharing the noise out among owners.

The chain needs noise of variance :math:`\sigma^2` in an answer, whoever adds it. Owner i adds the share :math:`r_i`,
:math:`\sum r_i = 1`, and pays :math:`w_i^2/(r_i\sigma^2)` a step, :math:`w_i` its sensitivity. All budgets
:math:`\mu_i^2` end at the same step when

.. math:: r_i = \frac{w_i^2/\mu_i^2}{\sum_j w_j^2/\mu_j^2},

and the chain is then as long as that of one owner of all records with :math:`\mu^2 = w^2/\sum_j (w_j^2/\mu_j^2)`. The same
shares serve the two queries of a Langevin step, :math:`\xi_i = r_i\,4/h` and :math:`\sigma_i^2 = r_i\sigma^2`, and the pilot.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np

from sfumato.kernel import Kind, kinds
from sfumato.planner import efficiency
from sfumato.planner.belief import Belief
from sfumato.planner.choice import Choice, Task
from sfumato.planner.walks import SIGMAS, STEPS, Walk, mean_square_width, step_matrices
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


def relative_widths(studies: Sequence[Study], belief: Belief) -> list[float]:
    """Mean squared sensitivity of typical moves under each owner's domain, relative to the first."""
    first = studies[0]
    if all(study is first for study in studies):
        return [1.0] * len(studies)
    moves = 0.3 * np.random.default_rng(0).standard_normal((256, len(belief.centre)))
    moves = moves @ np.linalg.cholesky(belief.covariance).T
    with jax.enable_x64(True):
        squares = {id(s): mean_square_width(s.bounds.range)(belief, moves) for s in studies}
    return [squares[id(study)] / squares[id(first)] for study in studies]


def choose_beside_copies(task: Task, copies: Copies, kernel: str) -> Choice:
    r"""Best walk where some owners answer live and others with copies, whose noise grows with the step.

    The noise of a step of length s is :math:`\sqrt{\sigma^2 + c^2 s^2}`; only :math:`\sigma` is paid for.
    """
    task = replace(task, max_iterations=min(task.max_iterations, copies.steps))
    with jax.enable_x64(True):
        jacobian = task.study.natural_jacobian(task.belief.centre)
    width_square = mean_square_width(task.study.bounds.range)
    rng = np.random.default_rng(1)
    options: list[Choice] = []
    walks: list[Walk] = [kind for kind in kinds(kernel) if kind.second == "ratio"]
    for kind in walks:
        for matrix in step_matrices(task.belief.covariance):
            unit = kind.unit_moves(matrix, rng)
            slope = float(np.sqrt(copies.xi * np.mean(np.sum((unit @ jacobian.T) ** 2, axis=1))))
            with jax.enable_x64(True):
                square = width_square(task.belief, 0.3 * unit) / 0.09
            options += [_option(kind, matrix, step, sigma, square, slope, task) for step in STEPS for sigma in SIGMAS]
    return max(options, key=lambda choice: choice.ess)


def _option(
    kind: type[Kind], matrix: np.ndarray, step: float, sigma: float, square: float, slope: float, task: Task
) -> Choice:
    total = float(np.hypot(sigma, slope * step))
    worths = efficiency.worth(kind, step, SIGMAS, len(matrix))
    worth = float(np.interp(total, SIGMAS, worths, right=0.0))
    return Choice(kind.name, matrix, step, sigma, *task.buys(square * step**2 / sigma**2, worth))
