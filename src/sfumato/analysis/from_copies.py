r"""What an average of noisy copies says of the posterior: the belief that a plan on bundles rests on.

The mean of the copies is a noisy :math:`S_n`, the centre is the mode given it, the covariance is
:math:`(n J^\top C J + \text{prior precision})^{-1}` with :math:`J = \partial\varphi/\partial\theta`.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.analysis.noise_aware import find_mode, log_density, prior_starts, require_moments
from sfumato.errors import Unsupported
from sfumato.families.base import Family
from sfumato.families.measurement import Measurement
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
            centre, covariance = belief_by_law(family, model, measurement, starts, clamped)
        except Unsupported:
            centre, information = _plug_in(family, model, measurement, starts)
            covariance = safe_inverse(information + prior_precision(model, centre))
    return Belief(centre, covariance, "the mean of some copies, which the chain does not use")


def belief_by_law(
    family: Family, model: Model, measurement: Measurement, starts: np.ndarray, clamped: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Mode given a measurement, and the covariance that the records' own posterior has there."""
    require_moments(family)
    centre, _ = find_mode(log_density(family, model, measurement, clamped=clamped), starts)
    information = _expected(family, model, measurement, centre)
    return centre, safe_inverse(information + prior_precision(model, centre))


def _expected(family: Family, model: Model, measurement: Measurement, centre: np.ndarray) -> np.ndarray:
    r"""Information where :math:`S_n` has its mean: :math:`-\nabla^2(\varphi^\top E S_n + n\log g)`."""
    _, beside = family.beside(measurement)
    n = measurement.n

    def given(theta: Array, total: Array) -> Array:
        values = model.constrain(theta)
        return family.natural(values) @ total + n * jnp.reshape(family.log_g(values), ())

    total = family.moments_of_sum(model.constrain(jnp.asarray(centre)), n, jax.tree.map(jnp.asarray, beside))[0]
    return positive(-np.asarray(quick_jit(jax.hessian(given))(jax.device_put(centre), total)))


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
