r"""Sharing the noise out among owners.

The chain needs noise of variance :math:`\sigma^2` in an answer, whoever adds it. Owner i adds the share :math:`r_i`,
:math:`\sum r_i = 1`, and pays :math:`w_i^2/(r_i\sigma^2)` a step, :math:`w_i` its sensitivity. All budgets
:math:`\mu_i^2` end at the same step when

.. math:: r_i = \frac{w_i^2/\mu_i^2}{\sum_j w_j^2/\mu_j^2},

and the chain is then as long as that of one owner of all records with :math:`\mu^2 = w^2/\sum_j (w_j^2/\mu_j^2)`. The same
shares serve the two queries of a Langevin step, :math:`\xi_i = r_i\,4/h` and :math:`\sigma_i^2 = r_i\sigma^2`, and the pilot.

Where sums are sealed, owner i pays for what a coalition with :math:`c_i` others cannot subtract, and from a second, larger budget
against everybody: `share_sealed`.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import jax
import numpy as np

from sfumato.errors import InvalidInput
from sfumato.kernel import Kind, kinds
from sfumato.planner import efficiency
from sfumato.planner.belief import Belief
from sfumato.planner.bundles import MOST_AVERAGED, RATIOS
from sfumato.planner.choice import Choice, Task, longest_steps
from sfumato.planner.langevin import ENOUGH, STEP_SIZES, squared_widths
from sfumato.planner.plan import Plan
from sfumato.planner.walks import SIGMAS, STEPS, Walk, mean_square_width, step_matrices
from sfumato.privacy.coalition import SMALLEST_SHARE, left_of
from sfumato.study.target import Study

MOST_LENT = 0.98
"""Of the noise that Langevin's proposal needs, what bundles may lend at the most: live owners answer with some of their own."""


class Copies(NamedTuple):
    """What bundles bring: noise variance of one summed copy, and steps per chain that there are copies for."""

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


def share_sealed(
    budgets: Sequence[float], everybody: Sequence[float], squared_widths: Sequence[float], colluders: Sequence[int]
) -> tuple[list[float], float]:
    r"""The same where sums are sealed: the least noise in all that keeps every owner within both of its budgets.

    With :math:`v_i` owner i's noise variance and :math:`V = \sum_i v_i`, the smallest V for which, at every owner,

    .. math:: V - \sum_{c_i\text{ largest } j \ne i} v_j \ge w_i^2/\mu_i^2, \qquad v_i \ge w_i^2/M_i^2,

    :math:`M_i` its budget against everybody; of all such, the one whose largest :math:`v_i` is smallest. A linear program: the
    sum of the c largest is :math:`\min_t\{ct + \sum_j (v_j - t)_+\}`. Equal owners get :math:`V = \frac{N}{N - c}w^2/\mu^2`.

    Parameters
    ----------
    budgets, everybody
        Mu squared that each owner has left against its coalition, and against everybody.
    squared_widths
        As in `share_out`.
    colluders
        How many others each owner assumes to work with the analyst.
    """
    size = len(budgets)
    needed = np.array(squared_widths) / np.array(budgets)
    floors = np.array(squared_widths) / np.array(everybody)
    unit = float(needed.max())
    needed, floors = needed / unit, floors / unit
    least = _least_noise(needed, floors, colluders, np.ones(size), None)
    evenest = _least_noise(needed, floors, colluders, None, float(least.sum()) * (1 + 1e-9))
    noise = np.maximum(evenest, float(evenest.sum()) * 2 * SMALLEST_SHARE / size)
    total = float(noise.sum())
    shares = (noise / total).tolist()
    # What rounding and a solver's tolerance left undone: a little more noise pays for it.
    short = max(need / left_of(shares, i, c) / total for i, (need, c) in enumerate(zip(needed, colluders, strict=True)))
    return shares, float((unit * total * max(short, 1.0)) ** -0.5)


def _least_noise(
    needed: np.ndarray, floors: np.ndarray, colluders: Sequence[int], price: np.ndarray | None, total: float | None
) -> np.ndarray:
    """Noise variances that keep everybody within budget: the least in all; or, of those up to a total, the evenest ones."""
    from scipy.optimize import linprog

    size = len(needed)
    # Unknown: v (size), the largest of them, and for every owner t_i and (v_j - t_i)_+ for each j.
    width = size + 1 + size * (size + 1)
    rows, limits = [], []

    def row(limit: float) -> np.ndarray:
        rows.append(np.zeros(width))
        limits.append(limit)
        return rows[-1]

    for i, c in enumerate(colluders):
        at = size + 1 + i * (size + 1)
        enough = row(-needed[i])
        enough[:size] = -1.0
        enough[at] = c
        for j in range(size):
            if j != i and c:
                enough[at + 1 + j] = 1.0
                above = row(0.0)
                above[j], above[at], above[at + 1 + j] = 1.0, -1.0, -1.0
        largest = row(0.0)
        largest[i], largest[size] = 1.0, -1.0
    if total is not None:
        row(total)[:size] = 1.0
    goal = np.zeros(width)
    if price is None:
        goal[size] = 1.0
    else:
        goal[:size] = price
    bounds = [(floor, None) for floor in floors] + [(0.0, None)] * (width - size)
    found = linprog(goal, A_ub=np.array(rows), b_ub=np.array(limits), bounds=bounds, method="highs")
    if not found.success:
        raise InvalidInput(f"the noise of these owners cannot be shared out ({found.message}); check their budgets.")
    return np.asarray(found.x[:size])


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


def beside_copies(plan: Plan, task: Task, copies: Copies, kernel: str) -> Plan:
    """Plan again where some owners answer live and others with copies: the best of the kernels that come into question."""
    task = replace(task, max_iterations=min(task.max_iterations, copies.steps))
    choices = [choice for kind in kinds(kernel) if (choice := _best(kind, task, copies)) is not None]
    if not choices:
        raise InvalidInput(
            f"kernel={kernel!r} cannot be had beside these bundles: their copies are too noisy for its proposals, or too few, or "
            "it asks what no bundle answers. Ask for bundles of more copies (each is noisier, for the same budget), or use "
            "kernel='auto'."
        )
    best = max(choices, key=lambda choice: choice.ess)
    limit = float(max(1 / (1 / plan.limit_ess + _strongest(task, copies) / (copies.steps * plan.chains)), best.ess))
    low, high = plan.band or (0.0, 0.0)
    scale = best.ess / plan.forecast_ess  # what is not known before the pilot is the same with bundles
    return replace(
        plan, kernel=best.kernel, matrix=best.matrix, step=best.step, sigma=best.sigma, forecast_ess=best.ess,
        iterations=best.iterations, copy_sigma=0.0, averaged=best.averaged, lent=best.lent, limit_ess=limit, estimate=None,
        band=None if plan.band is None else (low * scale, high * scale),
        considered=tuple((c.kernel, float(c.ess / limit)) for c in sorted(choices, key=lambda choice: -choice.ess)), missing=(),
    )  # fmt: skip


def _best(kind: type[Kind], task: Task, copies: Copies) -> Choice | None:
    """Best tuning of a kernel; None where it cannot be had."""
    if kind.second == "linear" and task.study.can_answer("linear"):
        return _langevin(kind, task, copies)
    return _walk(kind, task, copies) if kind.second == "ratio" else None


def _strongest(task: Task, copies: Copies) -> float:
    """Noise variance of one copy in the direction that it blurs most, in units of the posterior's."""
    with jax.enable_x64(True):
        jacobian = task.study.natural_jacobian(task.belief.centre)
    return float(copies.xi * np.linalg.norm(jacobian @ np.linalg.cholesky(task.belief.covariance), ord=2) ** 2)


def _walk(kind: Walk, task: Task, copies: Copies) -> Choice:
    r"""Best tuning of a walk: noise :math:`\sqrt{\sigma^2 + c^2 s^2}` at a step of length s; only :math:`\sigma` is paid for."""
    width_square, rng = mean_square_width(task.study.bounds.range), np.random.default_rng(1)
    options: list[Choice] = []
    with jax.enable_x64(True):
        jacobian = task.study.natural_jacobian(task.belief.centre)
        for matrix in step_matrices(task.belief.covariance):
            unit = kind.unit_moves(matrix, rng)
            slope = float(np.sqrt(copies.xi * np.mean(np.sum((unit @ jacobian.T) ** 2, axis=1))))
            square = width_square(task.belief, 0.3 * unit) / 0.09
            for step in STEPS:
                worth = _worth(kind, step, len(matrix), slope * step)
                options += [
                    Choice(kind.name, matrix, step, sigma, *task.buys(square * step**2 / sigma**2, each))
                    for sigma, each in zip(SIGMAS, worth, strict=True)
                ]
    return max(options, key=lambda choice: choice.ess)


def _langevin(kind: type[Kind], task: Task, copies: Copies) -> Choice | None:
    r"""Best tuning of Langevin, or None where the copies are too noisy for every step size.

    The mean of m copies, whitened, has the noise :math:`\Sigma = \tfrac\xi m A^\top A`. Of the two that it is split into
    (`kernel.langevin.SplitCopy`) the first lends :math:`c = \lambda_{\max}(\Sigma)(1 + 1/r)` to the 4/h that the proposal needs;
    live owners add the rest, which costs :math:`w_1^2/(4/h - c)`. The second adds :math:`u^\top\Sigma_2 u` to the variance of
    a correction, its mean over moves :math:`\tfrac{h^2}{16}(h + \tfrac{h^2}{4})\,\mathrm{tr}\,\Sigma_2`.
    """
    root = np.linalg.cholesky(task.belief.covariance)
    with jax.enable_x64(True):
        first, seconds = squared_widths(task, root)
    options: list[Choice] = []
    for averaged in sorted({int(m) for m in np.geomspace(1, min(MOST_AVERAGED, copies.steps), 24)}):
        some = replace(task, max_iterations=min(task.max_iterations, copies.steps // averaged))
        spread = np.linalg.eigvalsh(copies.xi / averaged * root.T @ root)
        for ratio, (h, square) in product(RATIOS, zip(STEP_SIZES, seconds, strict=True)):
            lent = float(spread[-1]) * (1 + 1 / ratio)
            if lent >= MOST_LENT * 4 / h:
                continue
            added = h / 4 * np.sqrt((h + h**2 / 4) * np.sum(lent * spread / (lent - spread)))
            worth, cost = _worth(kind, h, len(root), float(added)), first / (4 / h - lent) + square / np.square(SIGMAS)
            bought = [some.buys(*pair) for pair in zip(cost.tolist(), worth, strict=True)]
            best = max(range(len(SIGMAS)), key=lambda i: bought[i][1])
            options.append(Choice(kind.name, root, h, SIGMAS[best], *bought[best], averaged=averaged, lent=lent))
    return longest_steps(options, ENOUGH) if options else None


def _worth(kind: type[Kind], step: float, dim: int, added: float) -> list[float]:
    """Effective draws per step at every sigma, with the noise that copies add to an answer."""
    total = np.hypot(SIGMAS, added)
    found: list[float] = np.interp(total, SIGMAS, efficiency.worth(kind, step, SIGMAS, dim), right=0.0).tolist()
    return found
