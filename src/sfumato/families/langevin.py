"""A family in its natural parameter: the coordinates in which the log posterior is public plus linear in S_n."""

from functools import lru_cache
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.bounds.bounds import Bounds
from sfumato.errors import Unsupported
from sfumato.families.base import Family
from sfumato.model import Model
from sfumato.model.base import Record
from sfumato.tools.quick_jit import quick_jit

Array: TypeAlias = Any


def natural_model(family: Family) -> Model:
    """The family as a `Model` whose theta is the natural parameter itself.

    It is not unconstrained: outside its space the prior density is zero, and a proposal there is rejected without a query.
    """
    if not family.regular:
        raise Unsupported(
            f"kernel='langevin' needs a family with a log-partition and an inverse of its natural parameter; "
            f"{type(family).__name__} lacks one of them. Use kernel='guided'."
        )
    plain = family.to_model()

    def constrain(phi: Array) -> dict[str, Array]:
        return family.natural_inverse(phi)

    def log_prior(phi: Array) -> Array:
        value = family.log_prior_natural(phi)
        inside = jnp.isfinite(family.log_partition(phi)) & jnp.isfinite(value)
        return jnp.where(inside, value, -jnp.inf)

    def log_likelihood(phi: Array, record: Record) -> Array:
        return jnp.sum(phi * family.statistic(record).astype(phi.dtype)) - family.log_partition(phi)

    def sample_records(phi: Array, key: Array, size: int) -> dict[str, Any]:
        return family.sample(quick_jit(family.natural_inverse)(phi), key, size)

    return Model(
        sites=plain.sites,
        log_prior=log_prior,
        log_likelihood=log_likelihood,
        constrain=constrain,
        unconstrain=family.natural,
        sample_prior=lambda key: family.natural(plain.constrain(plain.sample_prior(key))),
        columns=plain.columns,
        source=plain.source + " in its natural parameter",
        sample_records=sample_records,
    )


def natural_bounds(family: Family) -> Bounds:
    """Exact range of one record's log ratio in the natural parameter, from the support function."""

    def range_(phi: Array, phi_prop: Array) -> tuple[Array, Array]:
        move = phi_prop - phi
        shift = family.log_partition(phi) - family.log_partition(phi_prop)
        return shift - family.support(-move), shift + family.support(move)

    return Bounds(range_, "exact" if family.exact else "certified", proven=True, statistic=True)


@lru_cache(maxsize=64)
def public_part(family: Family, model: Model, n: int) -> Any:
    r"""B: the log posterior without its data term, :math:`\log\eta(\varphi) - n A(\varphi)`."""
    return lambda phi: model.log_prior(phi) - n * family.log_partition(phi)


def natural_jacobian(family: Family, model: Model, theta: np.ndarray) -> np.ndarray:
    """Derivative of the natural parameter in theta, shape (k, d)."""
    return np.asarray(quick_jit(jax.jacfwd(lambda t: family.natural(model.constrain(t))))(jax.device_put(theta)))
