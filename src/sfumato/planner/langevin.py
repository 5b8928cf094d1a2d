"""Tuning Langevin in a family's natural parameter: a step asks for the statistic, then for a correction."""

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.errors import Unsupported
from sfumato.kernel import Kind
from sfumato.planner import efficiency
from sfumato.planner.choice import Choice, Task, longest_steps
from sfumato.planner.plan import Plan
from sfumato.planner.walks import SIGMAS
from sfumato.study.target import Study
from sfumato.tools.quick_jit import quick_jit

Array: TypeAlias = Any
Statistical: TypeAlias = Any
"""A registered kernel that moves by the statistic: the class."""

STEP_SIZES = tuple(np.round(np.geomspace(0.002, 1.0, 22), 5).tolist())
"""Langevin step sizes h that are tried."""
RATIOS = tuple(np.round(np.geomspace(1.0, 64.0, 13), 3).tolist())
"""Variances of Langevin's second copies that are tried, in those of its first: both are counted on one lattice."""
ENOUGH = 0.985
"""Smaller steps cost neither privacy nor a pass over the records; stop shrinking them at this share of the best forecast."""


def tune(kind: Statistical, task: Task) -> Choice:
    """Best step size and second noise; where answers take long to come, of corrections from second copies."""
    return _tune_copies(kind, task) if task.ahead else _tune_scalars(kind, task)


def build(kind: Statistical, study: Study, plan: Plan) -> Kind:
    """The kernel of a plan; it needs what is public of the log posterior."""
    public = study.public_part(plan.n)
    kernel: Kind = kind(
        plan.matrix, plan.step, public, copy_sigma=plan.copy_sigma, averaged=plan.averaged, lent=plan.lent
    )
    return kernel


def _tune_scalars(kind: Statistical, task: Task) -> Choice:
    r"""Best step size h and second noise sigma for Langevin in the natural parameter.

    A step of one chain costs :math:`\tfrac h4 w_1^2` for the proposal (:math:`w_1` the whitened diameter of the statistic)
    and :math:`w_2^2/\sigma^2` for the correction, whose mean is taken over typical moves.
    """
    root = np.linalg.cholesky(task.belief.covariance)
    first, seconds = squared_widths(task, root)
    options = []
    for h, square in zip(STEP_SIZES, seconds, strict=True):
        for sigma, worth in zip(SIGMAS, efficiency.worth(kind, h, SIGMAS, len(root)), strict=True):
            iterations, ess = task.buys(h / 4 * first + square / sigma**2, worth)
            options.append(Choice(kind.name, root, h, sigma, iterations, ess))
    return longest_steps(options, ENOUGH)


def squared_widths(task: Task, root: np.ndarray) -> tuple[float, list[float]]:
    """Square of what a record can move the whitened statistic by; and of the correction, its mean for each step size."""
    belief, family = task.belief, task.study.family
    if family is None:
        raise Unsupported("Langevin in the natural parameter needs a family, and this model is none; use a walk.")
    public = task.study.public_part(task.n)
    z = np.random.default_rng(0).standard_normal((2, 64, len(root)))
    around = jax.device_put(belief.centre + z[0] @ root.T)
    statistic = -quick_jit(jax.grad(public))(jnp.asarray(belief.centre))  # S_n, if the centre is the mode

    @quick_jit
    def second(h: Array) -> Array:
        """Mean squared width of the second query."""

        def one(theta: Array, noise: Array) -> Array:
            move = h / 2 * (root @ (root.T @ (jax.grad(public)(theta) + statistic))) + jnp.sqrt(h) * (root @ noise)
            change = root @ (root.T @ (jax.grad(public)(theta + move) - jax.grad(public)(theta)))
            square = (h / 4 * family.width(change)) ** 2
            return jnp.where(jnp.isfinite(square), square, jnp.nan)

        return jnp.nanmean(jax.vmap(one)(around, jnp.asarray(z[1])))

    return task.study.statistic_diameter(root) ** 2, [float(second(jnp.asarray(h))) for h in STEP_SIZES]


def _tune_copies(kind: Statistical, task: Task) -> Choice:
    r"""Best step size h and ratio r for Langevin whose corrections are made from second copies.

    A step of one chain costs :math:`\tfrac h4 w_1^2 (1 + 1/r)`, wherever it goes. `Choice.sigma` is what the noise of a
    correction will be on average (the root of the mean square): :math:`\tfrac h4 \sqrt{\xi_2\, d\, (h + h^2/4)}`.
    """
    root = np.linalg.cholesky(task.belief.covariance)
    dim, first = len(root), task.study.statistic_diameter(root) ** 2 / 4
    options = []
    for h in STEP_SIZES:
        for ratio, worth in zip(RATIOS, efficiency.langevin_copies(h, RATIOS, dim), strict=True):
            iterations, ess = task.buys(h * first * (1 + 1 / ratio), worth)
            copy_sigma = float(np.sqrt(4 * ratio / h))
            sigma = float(copy_sigma * h / 4 * np.sqrt(dim * (h + h**2 / 4)))
            options.append(Choice(kind.name, root, h, sigma, iterations, ess, copy_sigma))
    return longest_steps(options, ENOUGH)
