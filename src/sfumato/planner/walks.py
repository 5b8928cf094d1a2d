r"""Tuning walks: a step asks for one log ratio, whose sensitivity grows with its length.

A step of length s along a column of D (:math:`DD^\top = \Sigma`) has sensitivity about :math:`s\,w_j`, so a budget
:math:`\mu^2` buys :math:`k = \mu^2\sigma^2/(s^2 \overline{w^2})` steps; what each is worth is in `efficiency`.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.kernel import Kind
from sfumato.planner import efficiency, truncated
from sfumato.planner.belief import Belief
from sfumato.planner.choice import Choice, Task, longest_steps
from sfumato.planner.plan import Plan
from sfumato.study.target import Study
from sfumato.tools.quick_jit import quick_jit

Array: TypeAlias = Any
Walk: TypeAlias = Any
"""A registered kernel without a first query: the class."""
WidthSquare: TypeAlias = Callable[[Belief, np.ndarray], float]

SIGMAS = tuple(np.round(np.geomspace(0.1, 4.0, 28), 3).tolist())
STEPS = tuple(np.round(np.geomspace(0.2, 3.0, 17), 3).tolist())
ENOUGH = 0.97
"""Smaller steps cost compute, not privacy; stop shrinking them at this share of the best forecast."""


def tune(kind: Walk, task: Task) -> Choice:
    """Best step matrix, step and noise of a walk."""
    width_square, belief = mean_square_width(task.study.bounds.range), task.belief
    if task.truncate is not None:
        return _tune_truncated(kind, task.truncate, width_square, task)
    rng, dim = np.random.default_rng(1), len(belief.centre)
    matrices = step_matrices(belief.covariance)
    units = [kind.unit_moves(matrix, rng) for matrix in matrices]
    squares = [width_square(belief, 0.3 * unit) / 0.09 for unit in units]
    pick = int(np.argmin(squares))
    matrix, unit = matrices[pick], units[pick]
    options: list[Choice] = []
    for step in STEPS:
        square = width_square(belief, step * unit) if step > 0.6 else squares[pick] * step**2
        for sigma, worth in zip(SIGMAS, efficiency.worth(kind, step, SIGMAS, dim), strict=True):
            iterations, ess = task.buys(square / sigma**2, worth)
            options.append(Choice(kind.name, matrix, step, sigma, iterations, ess))
    return longest_steps(options, ENOUGH)


def build(kind: Walk, study: Study, plan: Plan) -> Kind:
    """The walk of a plan."""
    kernel: Kind = kind(plan.matrix, plan.step, *([] if plan.truncate is None else [plan.truncate]))
    return kernel


def _tune_truncated(kind: Walk, bound: float, width_square: WidthSquare, task: Task) -> Choice:
    """Tune the truncated random walk; where the bound binds, longer steps change nothing and the shortest is kept."""
    covariance = task.belief.covariance
    matrix = truncated.step_matrix(covariance)
    options: list[Choice] = []
    for step in STEPS:
        square = width_square(task.belief, truncated.moves(matrix, step, bound))
        for sigma, worth in zip(SIGMAS, truncated.worth(covariance, matrix, step, bound, SIGMAS), strict=True):
            iterations, ess = task.buys(square / sigma**2, worth)
            options.append(Choice(kind.name, matrix, step, sigma, iterations, ess))
    return max(options, key=lambda o: (o.ess, -o.step))


def step_matrices(covariance: np.ndarray) -> list[np.ndarray]:
    """Candidates for D with D D' = covariance: triangular roots in both orders, the symmetric root."""
    lower = np.linalg.cholesky(covariance)
    reverse = np.linalg.cholesky(covariance[::-1, ::-1])[::-1, ::-1]
    values, vectors = np.linalg.eigh(covariance)
    symmetric = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    return [lower, reverse, symmetric][: None if len(covariance) > 1 else 1]


@lru_cache(maxsize=16)
def mean_square_width(range_: Any) -> WidthSquare:
    """Function (belief, moves) -> average squared sensitivity of those moves (one per row) from points around the centre."""

    @quick_jit
    def average(theta: Array, moves: Array) -> Array:
        lo, hi = jax.vmap(range_)(theta, theta + moves)
        return jnp.mean((hi - lo) ** 2)

    def apply(belief: Belief, moves: np.ndarray) -> float:
        spread = np.linalg.cholesky(belief.covariance)
        around = np.random.default_rng(0).standard_normal((len(moves), len(belief.centre))) @ spread.T + belief.centre
        found = float(average(jax.device_put(around), jax.device_put(moves)))
        return np.inf if np.isnan(found) else found  # no number is no bound: such moves cannot be afforded

    return apply
