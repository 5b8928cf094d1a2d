"""The range of one record's log ratio, searched for and enforced: for walks on programs without a proof."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.bounds import synthetic
from sfumato.bounds.bounds import SEARCHED, Bounds
from sfumato.bounds.climbing import Climber, joined, mixed
from sfumato.bounds.interval import Array
from sfumato.domain import Domain
from sfumato.model.base import Model

_EACH = 384  # corners, and records all over the domain
_DRAWN = 64  # records that the model makes at each of a few draws from the prior
_PRIORS = 4


def searched_bounds(model: Model, domain: Mapping[str, Domain]) -> Bounds:
    """Build the range: what made-up records reach for this very pair, and a margin."""
    domain = {name: domain[name] for name in model.columns}
    climber = Climber(domain)
    bank = _bank(model, domain, climber)

    def both(theta: Array, theta_prop: Array) -> tuple[Array, Array]:
        def scalar(record: Mapping[str, Array]) -> Array:
            return model.log_likelihood(theta_prop, record) - model.log_likelihood(theta, record)

        records = {name: jnp.asarray(column) for name, column in bank.items()}
        low, high = climber.widest(scalar, records, jax.vmap(scalar)(records))
        undefined = ~(jnp.isfinite(low) & jnp.isfinite(high))
        return jnp.where(undefined, -jnp.inf, low), jnp.where(undefined, jnp.inf, high)

    return Bounds(both, SEARCHED, proven=False)


def _bank(model: Model, domain: Mapping[str, Domain], climber: Climber) -> dict[str, np.ndarray]:
    """Made-up records, always the same: corners, records all over the domain, and records that the model makes."""
    rng = np.random.default_rng(0)
    drawn = [
        synthetic.uniform(model, domain, np.asarray(model.sample_prior(jax.random.key(i)), np.float64), _DRAWN, i)
        for i in range(_PRIORS)
    ]
    return joined(
        [climber.typed(batch) for batch in (synthetic.extreme(domain, _EACH), mixed(domain, rng, _EACH), *drawn)]
    )
