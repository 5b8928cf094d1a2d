r"""Positive and bounded reals: Exponential, Gamma, Beta."""

from dataclasses import dataclass
from math import hypot, log, log1p
from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import gammaln
from numpyro.distributions import constraints

from sfumato.domain import Domain, Interval
from sfumato.errors import InvalidInput
from sfumato.families.base import Array, Family, Parameter
from sfumato.families.counts import Linear, gamma_prior
from sfumato.families.prior import Joint, Values
from sfumato.model.base import Record


@dataclass(frozen=True, eq=False, repr=False)
class Exponential(Linear):
    r"""Waiting times.

    .. math:: S(y) = y, \quad \varphi = -\lambda, \quad A(\varphi) = -\log(-\varphi), \quad \nabla_2 S = y_{\max}

    Parameters
    ----------
    upper
        Longest time a record may hold: the declared domain is [0, upper].
    prior
        On ``rate``; by default Gamma(1, upper/4), conjugate.
    """

    upper: float

    def __post_init__(self) -> None:
        if not self.upper > 0:
            raise InvalidInput(f"upper must be positive, got {self.upper}.")

    @property
    def domain(self) -> dict[str, Domain]:
        """Y in [0, upper]."""
        return {"y": Interval(0.0, self.upper)}

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """One rate."""
        return (Parameter("rate", (), constraints.positive),)

    def default_prior(self) -> dict[str, Any]:
        """Gamma(1, upper/4): a mean record of about a quarter of the longest."""
        return {"rate": dist.Gamma(1.0, self.upper / 4)}

    def natural(self, values: Values) -> Array:
        """Minus the rate."""
        return -jnp.reshape(values["rate"], (1,))

    def log_partition(self, phi: Array) -> Array:
        r""":math:`-\log(-\varphi)` for negative phi."""
        return jnp.where(phi[0] < 0, -jnp.log(jnp.where(phi[0] < 0, -phi[0], 1.0)), jnp.inf)

    def natural_inverse(self, phi: Array) -> dict[str, Array]:
        """Minus phi."""
        return {"rate": -phi[0]}

    def distribution(self, values: Values) -> dist.Distribution:
        """NumPyro's Exponential."""
        return dist.Exponential(values["rate"])

    def posterior(self, s_n: Array, n: int) -> Joint:
        r"""Gamma(:math:`a + n,\ b + S_n`)."""
        a, b = gamma_prior(self)
        return Joint({"rate": dist.Gamma(a + n, b + s_n[0])})


@dataclass(frozen=True, eq=False, repr=False)
class Gamma(Family):
    r"""Positive reals, shape and rate unknown.

    .. math:: S(y) = (\log y,\ y), \quad \varphi = (a,\ -b), \quad
              A(\varphi) = \log\Gamma(\varphi_1) - \varphi_1\log(-\varphi_2)

    :math:`\nabla_2 S = \sqrt{\log^2(y_{hi}/y_{lo}) + (y_{hi}-y_{lo})^2}`: both entries grow with y.

    Parameters
    ----------
    lower, upper
        The declared domain, 0 < lower < upper.
    prior
        On ``concentration`` and ``rate``; by default Gamma(2, 1) and Gamma(2, upper/4), independent.
    """

    lower: float
    upper: float

    def __post_init__(self) -> None:
        if not 0 < self.lower < self.upper:
            raise InvalidInput(f"bounds must satisfy 0 < lower < upper, got {self.lower} and {self.upper}.")

    @property
    def domain(self) -> dict[str, Domain]:
        """Y in [lower, upper]."""
        return {"y": Interval(self.lower, self.upper)}

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Shape and rate."""
        return (Parameter("concentration", (), constraints.positive), Parameter("rate", (), constraints.positive))

    def default_prior(self) -> dict[str, Any]:
        """Gamma(2, 1) and Gamma(2, upper/4)."""
        return {"concentration": dist.Gamma(2.0, 1.0), "rate": dist.Gamma(2.0, self.upper / 4)}

    def statistic(self, record: Record) -> Array:
        """S(y) = (log y, y)."""
        return jnp.stack([jnp.log(record["y"]), record["y"]])

    def natural(self, values: Values) -> Array:
        """(a, -b)."""
        return jnp.stack([values["concentration"], -values["rate"]])

    def log_partition(self, phi: Array) -> Array:
        r""":math:`\log\Gamma(\varphi_1) - \varphi_1\log(-\varphi_2)`."""
        inside = (phi[0] > 0) & (phi[1] < 0)
        a, b = jnp.where(inside, phi[0], 1.0), jnp.where(inside, -phi[1], 1.0)
        return jnp.where(inside, gammaln(a) - a * jnp.log(b), jnp.inf)

    def natural_inverse(self, phi: Array) -> dict[str, Array]:
        """(phi_1, -phi_2)."""
        return {"concentration": phi[0], "rate": -phi[1]}

    def distribution(self, values: Values) -> dist.Distribution:
        """NumPyro's Gamma."""
        return dist.Gamma(values["concentration"], values["rate"])

    def support(self, v: Array) -> Array:
        r"""Ends, or the peak of :math:`v_1\log y + v_2 y` at :math:`-v_1/v_2` if it is concave."""

        def at(y: Array) -> Array:
            return v[0] * jnp.log(y) + v[1] * y

        peak = (v[0] > 0) & (v[1] < 0)
        top = jnp.clip(-v[0] / jnp.where(peak, v[1], -1.0), self.lower, self.upper)
        return jnp.maximum(jnp.maximum(at(self.lower), at(self.upper)), jnp.where(peak, at(top), -jnp.inf))

    def diameter(self) -> float:
        """Distance between the ends."""
        return hypot(log(self.upper / self.lower), self.upper - self.lower)


@dataclass(frozen=True, eq=False, repr=False)
class Beta(Family):
    r"""Proportions, both shapes unknown.

    .. math:: S(y) = (\log y,\ \log(1-y)), \quad \varphi = (a,\ b), \quad A(\varphi) = \log B(\varphi_1, \varphi_2)

    :math:`\nabla_2 S` is the distance between the ends of the domain: one entry grows with y, the other falls.

    Parameters
    ----------
    lower, upper
        The declared domain, 0 < lower < upper < 1.
    prior
        On ``concentration1`` (a) and ``concentration0`` (b); by default Gamma(2, 1/2) each, independent.
    """

    lower: float
    upper: float

    def __post_init__(self) -> None:
        if not 0 < self.lower < self.upper < 1:
            raise InvalidInput(f"bounds must satisfy 0 < lower < upper < 1, got {self.lower} and {self.upper}.")

    @property
    def domain(self) -> dict[str, Domain]:
        """Y in [lower, upper]."""
        return {"y": Interval(self.lower, self.upper)}

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Both shapes."""
        names = ("concentration1", "concentration0")
        return tuple(Parameter(name, (), constraints.positive) for name in names)

    def default_prior(self) -> dict[str, Any]:
        """Gamma(2, 1/2) each."""
        return {p.name: dist.Gamma(2.0, 0.5) for p in self.parameters}

    def statistic(self, record: Record) -> Array:
        """S(y) = (log y, log(1 - y))."""
        return jnp.stack([jnp.log(record["y"]), jnp.log1p(-record["y"])])

    def natural(self, values: Values) -> Array:
        """(a, b)."""
        return jnp.stack([values["concentration1"], values["concentration0"]])

    def log_partition(self, phi: Array) -> Array:
        r""":math:`\log B(\varphi_1, \varphi_2)`."""
        inside = (phi[0] > 0) & (phi[1] > 0)
        a, b = jnp.where(inside, phi[0], 1.0), jnp.where(inside, phi[1], 1.0)
        return jnp.where(inside, gammaln(a) + gammaln(b) - gammaln(a + b), jnp.inf)

    def natural_inverse(self, phi: Array) -> dict[str, Array]:
        """(phi_1, phi_2)."""
        return {"concentration1": phi[0], "concentration0": phi[1]}

    def distribution(self, values: Values) -> dist.Distribution:
        """NumPyro's Beta."""
        return dist.Beta(values["concentration1"], values["concentration0"])

    def support(self, v: Array) -> Array:
        r"""Ends, or the peak of :math:`v_1\log y + v_2\log(1-y)` at :math:`v_1/(v_1+v_2)` if it is concave."""

        def at(y: Array) -> Array:
            return v[0] * jnp.log(y) + v[1] * jnp.log1p(-y)

        peak = (v[0] > 0) & (v[1] > 0)
        top = jnp.clip(v[0] / jnp.where(peak, v[0] + v[1], 1.0), self.lower, self.upper)
        return jnp.maximum(jnp.maximum(at(self.lower), at(self.upper)), jnp.where(peak, at(top), -jnp.inf))

    def diameter(self) -> float:
        """Distance between the ends."""
        return hypot(log(self.upper / self.lower), log1p(-self.lower) - log1p(-self.upper))
