r"""Counts: Bernoulli, Binomial, Poisson, Geometric; and `Linear`, what families of one number with S(y) = y share."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro.distributions import constraints

from sfumato.domain import Binary, Domain, Integers
from sfumato.errors import InvalidInput, Unsupported
from sfumato.families.base import Array, Family, Parameter
from sfumato.families.prior import Joint, Values
from sfumato.model.base import Record


class Linear(Family):
    r"""Families of one real column with :math:`S(y) = y`: every sensitivity is a multiple of the domain's length."""

    @property
    def ends(self) -> tuple[float, float]:
        """Smallest and largest y."""
        return float(self.domain["y"].lo), float(self.domain["y"].hi)

    def statistic(self, record: Record) -> Array:
        """S(y) = y."""
        return jnp.reshape(record["y"], (1,)) * 1.0

    def support(self, v: Array) -> Array:
        r"""Larger end: :math:`\max(v\,y_{lo}, v\,y_{hi})`."""
        lo, hi = self.ends
        return jnp.maximum(v[0] * lo, v[0] * hi)

    def whitened_diameter(self, matrix: Array) -> Array:
        r"""Exact: :math:`(y_{hi} - y_{lo})\lVert A_{1\cdot}\rVert`."""
        lo, hi = self.ends
        return (hi - lo) * jnp.sqrt(jnp.sum(matrix[0] ** 2))


def _beta_prior(family: Family) -> tuple[Array, Array]:
    """Read the two counts of a conjugate Beta prior on p."""
    prior = family.joint_prior()["p"]
    if not isinstance(prior, dist.Beta):
        raise Unsupported(f"a conjugate posterior needs a Beta prior on p, got {type(prior).__name__}.")
    return prior.concentration1, prior.concentration0


def gamma_prior(family: Family, site: str = "rate") -> tuple[Array, Array]:
    """Shape and rate of a conjugate Gamma prior."""
    prior = family.joint_prior()[site]
    if not isinstance(prior, dist.Gamma) or prior.event_shape:
        raise Unsupported(f"a conjugate posterior needs a Gamma prior on {site}, got {type(prior).__name__}.")
    return prior.concentration, prior.rate


@dataclass(frozen=True, eq=False, repr=False)
class Binomial(Linear):
    r"""Number of successes in a known number of trials.

    .. math:: S(y) = y, \quad \varphi = \log\tfrac{p}{1-p}, \quad A(\varphi) = m\log(1 + e^\varphi),
              \quad \nabla_2 S = m

    Parameters
    ----------
    trials
        m, the trials behind each record.
    prior
        On ``p``; by default Beta(1, 1), conjugate.
    """

    trials: int

    def __post_init__(self) -> None:
        _check_count("trials", self.trials)

    @property
    def domain(self) -> dict[str, Domain]:
        """Y in {0, ..., trials}."""
        return {"y": Integers(0, self.trials)}

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """One probability."""
        return (Parameter("p", (), constraints.unit_interval),)

    def default_prior(self) -> dict[str, Any]:
        """Beta(1, 1)."""
        return {"p": dist.Beta(1.0, 1.0)}

    def natural(self, values: Values) -> Array:
        """Log odds."""
        p = values["p"]
        return jnp.reshape(jnp.log(p) - jnp.log1p(-p), (1,))

    def log_partition(self, phi: Array) -> Array:
        r""":math:`m\log(1 + e^\varphi)`."""
        return self.trials * jax.nn.softplus(phi[0])

    def natural_inverse(self, phi: Array) -> dict[str, Array]:
        """Logistic function."""
        return {"p": jax.nn.sigmoid(phi[0])}

    def distribution(self, values: Values) -> dist.Distribution:
        """NumPyro's Binomial."""
        return dist.Binomial(self.trials, probs=values["p"])

    def posterior(self, s_n: Array, n: int) -> Joint:
        r"""Beta(:math:`a + S_n,\ b + nm - S_n`)."""
        a, b = _beta_prior(self)
        return Joint({"p": dist.Beta(a + s_n[0], b + n * self.trials - s_n[0])})


@dataclass(frozen=True, eq=False, repr=False)
class Bernoulli(Binomial):
    r"""Yes or no.

    .. math:: S(y) = y, \quad \varphi = \log\tfrac{p}{1-p}, \quad A(\varphi) = \log(1 + e^\varphi), \quad \nabla_2 S = 1

    Parameters
    ----------
    prior
        On ``p``; by default Beta(1, 1), conjugate.
    """

    trials: int = 1

    def __post_init__(self) -> None:
        if self.trials != 1:
            raise InvalidInput(f"a Bernoulli record has one trial, got {self.trials}; use Binomial instead.")

    @property
    def domain(self) -> dict[str, Domain]:
        """Y in {0, 1}."""
        return {"y": Binary()}


@dataclass(frozen=True, eq=False, repr=False)
class Poisson(Linear):
    r"""Counts with a rate.

    .. math:: S(y) = y, \quad \varphi = \log\lambda, \quad A(\varphi) = e^\varphi, \quad \nabla_2 S = y_{\max}

    Parameters
    ----------
    max_count
        Largest count a record may hold: the declared domain is {0, ..., max_count}.
    prior
        On ``rate``; by default Gamma(1, 4/max_count), conjugate.
    """

    max_count: int

    def __post_init__(self) -> None:
        _check_count("max_count", self.max_count)

    @property
    def domain(self) -> dict[str, Domain]:
        """Y in {0, ..., max_count}."""
        return {"y": Integers(0, self.max_count)}

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """One rate."""
        return (Parameter("rate", (), constraints.positive),)

    def default_prior(self) -> dict[str, Any]:
        """Gamma(1, 4/max_count): mean a quarter of the largest count."""
        return {"rate": dist.Gamma(1.0, 4.0 / self.max_count)}

    def natural(self, values: Values) -> Array:
        """Log rate."""
        return jnp.reshape(jnp.log(values["rate"]), (1,))

    def log_partition(self, phi: Array) -> Array:
        r""":math:`e^\varphi`."""
        return jnp.exp(phi[0])

    def natural_inverse(self, phi: Array) -> dict[str, Array]:
        """Exponential function."""
        return {"rate": jnp.exp(phi[0])}

    def distribution(self, values: Values) -> dist.Distribution:
        """NumPyro's Poisson."""
        return dist.Poisson(values["rate"])

    def posterior(self, s_n: Array, n: int) -> Joint:
        r"""Gamma(:math:`a + S_n,\ b + n`)."""
        a, b = gamma_prior(self)
        return Joint({"rate": dist.Gamma(a + s_n[0], b + n)})


@dataclass(frozen=True, eq=False, repr=False)
class Geometric(Linear):
    r"""Failures before the first success.

    .. math:: S(y) = y, \quad \varphi = \log(1-p), \quad A(\varphi) = -\log(1 - e^\varphi), \quad \nabla_2 S = y_{\max}

    Parameters
    ----------
    max_count
        Largest count a record may hold: the declared domain is {0, ..., max_count}.
    prior
        On ``p``; by default Beta(1, 1), conjugate.
    """

    max_count: int

    def __post_init__(self) -> None:
        _check_count("max_count", self.max_count)

    @property
    def domain(self) -> dict[str, Domain]:
        """Y in {0, ..., max_count}."""
        return {"y": Integers(0, self.max_count)}

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """One probability."""
        return (Parameter("p", (), constraints.unit_interval),)

    def default_prior(self) -> dict[str, Any]:
        """Beta(1, 1)."""
        return {"p": dist.Beta(1.0, 1.0)}

    def natural(self, values: Values) -> Array:
        """Log probability of a failure."""
        return jnp.reshape(jnp.log1p(-values["p"]), (1,))

    def log_partition(self, phi: Array) -> Array:
        r""":math:`-\log(1 - e^\varphi)` for negative phi."""
        inside = jnp.where(phi[0] < 0, phi[0], -1.0)
        return jnp.where(phi[0] < 0, -jnp.log(-jnp.expm1(inside)), jnp.inf)

    def natural_inverse(self, phi: Array) -> dict[str, Array]:
        r""":math:`p = 1 - e^\varphi`."""
        return {"p": -jnp.expm1(phi[0])}

    def distribution(self, values: Values) -> dist.Distribution:
        """NumPyro's Geometric."""
        return dist.Geometric(probs=values["p"])

    def posterior(self, s_n: Array, n: int) -> Joint:
        r"""Beta(:math:`a + n,\ b + S_n`)."""
        a, b = _beta_prior(self)
        return Joint({"p": dist.Beta(a + n, b + s_n[0])})


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or int(value) != value or value < 1:
        raise InvalidInput(f"{name} must be a whole number of at least one, got {value!r}.")
