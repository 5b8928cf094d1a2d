r"""What an average of noisy copies says of the posterior: the belief that a plan on bundles rests on.

The mean of the copies is a noisy :math:`S_n`, the centre is the mode given it, the covariance is
:math:`(n J^\top C J + \text{prior precision})^{-1}` with :math:`J = \partial\varphi/\partial\theta`.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.analysis.noise_aware import Measurement, find_mode, log_density, prior_starts, require_moments
from sfumato.errors import Unsupported
from sfumato.families.base import Family
from sfumato.families.langevin import natural_jacobian
from sfumato.model import Model
from sfumato.model.base import theta_of
from sfumato.planner.belief import Belief, positive, prior_precision, safe_inverse
from sfumato.tools.quick_jit import quick_jit

Array: TypeAlias = Any


def belief_from_copies(
    family: Family, model: Model, measurement: Measurement, guess: Mapping[str, Any] | None, clamped: bool
) -> Belief:
    """Centre and covariance of the posterior, from an average of noisy copies."""
    with jax.enable_x64(True):
        start = None if guess is None else theta_of(model, guess, "guess")
        starts = prior_starts(model, start)
        try:
            require_moments(family)
            density = log_density(family, model, measurement, clamped=clamped)
            centre, _ = find_mode(density, starts)
            information = _expected(family, model, measurement.n, centre)
        except Unsupported:
            centre, information = _plug_in(family, model, measurement, starts)
        covariance = safe_inverse(information + prior_precision(model, centre))
    return Belief(centre, covariance, "the mean of some copies, which the chain does not use")


def _expected(family: Family, model: Model, n: int, centre: np.ndarray) -> np.ndarray:
    covariance = quick_jit(lambda t: family.covariance(model.constrain(t)))(jax.device_put(centre))
    jacobian = natural_jacobian(family, model, centre)
    return positive(n * jacobian.T @ np.asarray(covariance) @ jacobian)


def _plug_in(
    family: Family, model: Model, measurement: Measurement, starts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mode and curvature as if the mean of the copies were S_n: for families whose S has no law of its own."""
    total, n = jnp.asarray(measurement.basis @ measurement.value), measurement.n

    def given(theta: Array) -> Array:
        values = model.constrain(theta)
        return n * family.log_g(values) + family.natural(values) @ total

    def density(theta: Array) -> Array:
        value = model.log_prior(theta) + given(theta)
        return jnp.where(jnp.isnan(value), -jnp.inf, value)

    centre, _ = find_mode(density, starts)
    curvature = -np.nan_to_num(np.asarray(quick_jit(jax.hessian(given))(jax.device_put(centre))))
    return centre, positive(curvature)
