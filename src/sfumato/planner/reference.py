"""Tuning Langevin around a reference point: a step asks for the summed gradients there, then for what they leave over."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.bounds.reference import ReferenceBounds
from sfumato.errors import Unsupported
from sfumato.kernel import Kind, ReferenceLangevin
from sfumato.kernel.reference import autoregression_worth
from sfumato.model import Model
from sfumato.planner.belief import Belief, positive, prior_precision, safe_inverse
from sfumato.planner.choice import Choice, Task
from sfumato.planner.hierarchy import free_coordinates, free_moves, paid_step
from sfumato.planner.plan import Plan
from sfumato.study.target import Study
from sfumato.tools.quick_jit import quick_jit

Array: TypeAlias = Any
Around: TypeAlias = type[ReferenceLangevin]

PAIRS = 64
"""Moves over which the cost of Langevin's second query is averaged."""
STEPS = tuple(np.round(np.geomspace(0.01, 2.0, 18), 4).tolist())
"""Step sizes that are tried: none is too large for a normal posterior."""
SIGMAS = tuple(np.round(np.geomspace(0.03, 2.0, 24), 4).tolist())
ENOUGH = 0.99
"""Of the best forecast, which is flat in the step."""
SHOWING = 400
"""Steps a chain should have, where it can, for its diagnostics to mean something."""
TRUST = 10.0
"""Radius of the trust region beyond the root of d and twice the centre's error, in posterior standard deviations: the mass
outside is far below 1e-12."""


def reference_kernel(
    study: Study, belief: Belief, matrix: np.ndarray, step: float, kind: Around = ReferenceLangevin
) -> ReferenceLangevin:
    """Langevin around the believed centre: J is its precision less that of the prior.

    In a hierarchy J is the whole precision of what the paid step moves. The trust region is one of the posterior, in units of a
    step given what moves freely.
    """
    model, free, precision = study.model, free_coordinates(study), safe_inverse(belief.covariance)
    trust = len(belief.centre) ** 0.5 * (1 + 2 * belief.error) + TRUST
    if not free.any():
        information = positive(precision - prior_precision(model, belief.centre))
        return kind(matrix, step, model.log_prior, belief.centre, information, trust)
    information = np.where(free | free[:, None], 0.0, precision)
    trust, moves = trust / paid_step(belief, free).pace ** 0.5, free_moves(study, belief)
    return kind(matrix, step, model.log_prior, belief.centre, information, trust, free=moves)


def build(kind: Around, study: Study, plan: Plan) -> Kind:
    """The kernel of a plan, around its centre."""
    return reference_kernel(study, plan.belief, plan.matrix, plan.step, kind)


def tune(kind: Around, task: Task) -> Choice:
    r"""Best step size h and second noise sigma for Langevin around a reference point.

    A step of one chain costs :math:`w_1^2/(4/h - 1)` for the proposal (:math:`w_1` the diameter of the whitened gradients)
    and :math:`w_2^2/\sigma^2` for the correction, whose mean is taken over moves as the chain will make them: from points
    around a mode that the centre misses by the belief's error. What a step is worth is in
    `kernel.reference.autoregression_worth`; in a hierarchy a step is shorter by its pace (`hierarchy.paid_step`).
    """
    belief, model, bounds = task.belief, task.study.model, task.study.reference_bounds
    if bounds is None:
        raise Unsupported(
            f"kernel={kind.name!r} needs bounds around a reference point: {task.study.why_not(kind.second)}."
        )
    (root, pace), dim = paid_step(belief, free_coordinates(task.study)), len(belief.centre)
    proven = bounds.at(belief.centre, root)
    first = proven.gradients.diameter**2
    rng = np.random.default_rng(0)
    x, noise, miss = (jax.device_put(rng.standard_normal((PAIRS, dim))) for _ in range(3))
    kernel = reference_kernel(task.study, belief, root, 1.0)
    place = *(jax.device_put(part) for part in (kernel.centre, root, kernel.information, belief.error)), kernel.free
    options = []
    for h in STEPS:
        square = float(_mean_square(bounds, model)(*place, proven.anchor, jnp.asarray(h), x, noise, miss))
        if not np.isfinite(square):
            raise Unsupported(
                "kernel='langevin' needs second derivatives that are bounded for every record near the posterior; here they "
                "are not (a kink, as of an absolute value?). Use kernel='guided'."
            )
        for sigma in SIGMAS:
            worth = autoregression_worth(pace * h, float(np.hypot(sigma, belief.roughness * np.sqrt(h * (1 - h / 4)))))
            iterations, ess = task.buys(first / (4 / h - 1) + square / sigma**2, worth)
            options.append(Choice(kind.name, root, h, sigma, iterations, ess))
    top = max(option.ess for option in options)
    good = [o for o in options if o.ess >= ENOUGH * top]
    # The forecast is flat in h. Long steps save passes over the records; but a chain of a few draws shows nothing of itself.
    long_enough = [o for o in good if o.iterations >= SHOWING] or good
    return max(long_enough, key=lambda o: (o.step if o.iterations >= SHOWING else -o.step, o.ess))


@lru_cache(maxsize=16)
def _mean_square(bounds: ReferenceBounds, model: Model) -> Callable[..., Array]:
    """Compile the mean squared width of the second query over given moves."""

    def mean(
        centre: Array, root: Array, information: Array, error: Array, free: Any, anchor: Any, h: Array, *numbers: Array
    ) -> Array:
        kernel = ReferenceLangevin(root, h, model.log_prior, centre, information, np.inf, free=free)

        def one(pair: tuple[Array, Array, Array]) -> Array:
            x, noise, miss = pair
            x_prop = (1 - h / 2) * x + jnp.sqrt(h * (1 - h / 4)) * noise
            theta, theta_prop = (centre + root @ (p + error * miss) for p in (x, x_prop))
            if free is not None:
                theta_prop = jnp.where(free.spoken, theta_prop, theta)
            lag = theta_prop - theta - kernel.known(theta, theta_prop).along
            lo, hi = bounds.range(anchor, theta, theta_prop, lag)
            return (hi - lo) ** 2

        return jnp.mean(jax.lax.map(one, numbers))

    return quick_jit(mean)
