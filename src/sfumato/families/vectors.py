r"""Bernoullis: several yes-or-no answers of one person, each with a rate of its own."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro.distributions import constraints

from sfumato.domain import Binary, Domain
from sfumato.errors import InvalidInput, Unsupported
from sfumato.families.base import Array, Family, Parameter
from sfumato.families.prior import Joint, Values
from sfumato.model.base import Record

_UNIT_CUBE = constraints.independent(constraints.unit_interval, 1)


@dataclass(frozen=True, eq=False, repr=False)
class Bernoullis(Family):
    r"""A vector of independent yes-or-no answers, such as a questionnaire.

    .. math:: S(y) = y \in \{0,1\}^d, \quad \varphi_j = \log\tfrac{p_j}{1-p_j}, \quad
              A(\varphi) = \sum_j \log(1 + e^{\varphi_j}), \quad \nabla_2 S = \sqrt d

    One record holds all d answers of one person, and all of them are protected together.

    Parameters
    ----------
    count
        d, the answers in a record.
    prior
        On ``p``, a vector; by default independent Beta(1, 1), conjugate.
    """

    count: int

    def __post_init__(self) -> None:
        if isinstance(self.count, bool) or int(self.count) != self.count or self.count < 1:
            raise InvalidInput(f"count must be a whole number of at least one, got {self.count!r}.")

    @property
    def domain(self) -> dict[str, Domain]:
        """Y in {0, 1}^d."""
        return {"y": Binary(shape=(self.count,))}

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """One probability each."""
        return (Parameter("p", (self.count,), _UNIT_CUBE),)

    def default_prior(self) -> dict[str, Any]:
        """Beta(1, 1) each."""
        return {"p": dist.Beta(1.0, 1.0).expand([self.count]).to_event(1)}

    def statistic(self, record: Record) -> Array:
        """S(y) = y."""
        return jnp.asarray(record["y"]) * 1.0

    def natural(self, values: Values) -> Array:
        """Log odds."""
        p = values["p"]
        return jnp.log(p) - jnp.log1p(-p)

    def log_partition(self, phi: Array) -> Array:
        r""":math:`\sum_j \log(1 + e^{\varphi_j})`."""
        return jnp.sum(jax.nn.softplus(phi))

    def natural_inverse(self, phi: Array) -> dict[str, Array]:
        """Logistic function."""
        return {"p": jax.nn.sigmoid(phi)}

    @property
    def coordinatewise(self) -> bool:
        """Where the prior's support is an interval for each answer alone, as that of independent Betas."""
        support = self.joint_prior().given("p", {}).support
        return isinstance(support, type(_UNIT_CUBE)) and support.base_constraint.event_dim == 0

    def distribution(self, values: Values) -> dist.Distribution:
        """NumPyro's Bernoulli, answer by answer."""
        return dist.Bernoulli(probs=values["p"]).to_event(1)

    def support(self, v: Array) -> Array:
        """Sum of the positive entries."""
        return jnp.sum(jnp.maximum(v, 0.0))

    def whitened_diameter(self, matrix: Array) -> Array:
        r"""Exact to 12 dimensions, and for diagonal A in any: :math:`\lVert A\rVert_F`; else the general bound."""
        exact = self.domain["y"].image_diameter(matrix)
        return super().whitened_diameter(matrix) if exact is None else exact

    def posterior(self, s_n: Array, n: int) -> Joint:
        r"""Beta(:math:`a_j + S_{n,j},\ b_j + n - S_{n,j}`), independent; for a prior of independent Betas."""
        base = self.joint_prior()["p"]
        while not isinstance(base, dist.Beta):
            base = getattr(base, "base_dist", None)
            if base is None:
                raise Unsupported("a conjugate posterior needs a prior of independent Betas on p.")
        return Joint({"p": dist.Beta(base.concentration1 + s_n, base.concentration0 + n - s_n).to_event(1)})
