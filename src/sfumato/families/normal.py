r"""Normal records: known variance, both unknown."""

from dataclasses import dataclass
from math import sqrt
from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro.distributions import constraints, transforms

from sfumato.domain import Domain, Interval
from sfumato.errors import InvalidInput, Unsupported
from sfumato.families.base import Array, Family, Parameter
from sfumato.families.counts import Linear
from sfumato.families.prior import Joint, Values
from sfumato.families.quadratic import over_interval
from sfumato.model.base import Record


def check_interval(lower: float, upper: float) -> None:
    """Refuse an empty interval."""
    if not lower < upper:
        raise InvalidInput(f"lower must be below upper, got {lower} and {upper}.")


def scale_law(shape: Array, rate: Array) -> dist.Distribution:
    r"""Law of a standard deviation s with :math:`1/s^2 \sim` Gamma(shape, rate): the conjugate one."""
    return dist.TransformedDistribution(dist.Gamma(shape, rate), transforms.PowerTransform(-0.5))


def need_default_prior(family: Family) -> None:
    """Refuse a conjugate update of a prior that is not the family's own."""
    if family.prior is not None:
        raise Unsupported(f"the conjugate posterior of {type(family).__name__} is known for its default prior only.")


@dataclass(frozen=True, eq=False, repr=False)
class Normal(Linear):
    r"""Normal records of known standard deviation.

    .. math:: S(y) = y, \quad \varphi = \mu/\sigma^2, \quad A(\varphi) = \sigma^2\varphi^2/2,
              \quad \nabla_2 S = y_{hi} - y_{lo}

    Parameters
    ----------
    scale
        The known standard deviation.
    lower, upper
        The declared domain of a record.
    prior
        On ``mean``; by default Normal with the domain's midpoint and half its length, conjugate.
    """

    scale: float
    lower: float
    upper: float

    def __post_init__(self) -> None:
        check_interval(self.lower, self.upper)
        if not self.scale > 0:
            raise InvalidInput(f"scale must be positive, got {self.scale}.")

    @property
    def domain(self) -> dict[str, Domain]:
        """Y in [lower, upper]."""
        return {"y": Interval(self.lower, self.upper)}

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """One mean."""
        return (Parameter("mean", (), constraints.real),)

    def default_prior(self) -> dict[str, Any]:
        """Normal(midpoint, half length)."""
        return {"mean": dist.Normal((self.lower + self.upper) / 2, (self.upper - self.lower) / 2)}

    def natural(self, values: Values) -> Array:
        r""":math:`\mu/\sigma^2`."""
        return jnp.reshape(values["mean"], (1,)) / self.scale**2

    def log_partition(self, phi: Array) -> Array:
        r""":math:`\sigma^2\varphi^2/2`."""
        return self.scale**2 * phi[0] ** 2 / 2

    def natural_inverse(self, phi: Array) -> dict[str, Array]:
        r""":math:`\mu = \sigma^2\varphi`."""
        return {"mean": self.scale**2 * phi[0]}

    def distribution(self, values: Values) -> dist.Distribution:
        """NumPyro's Normal."""
        return dist.Normal(values["mean"], self.scale)

    def posterior(self, s_n: Array, n: int) -> Joint:
        """Precisions add; the mean is their weighted average."""
        prior = self.joint_prior()["mean"]
        if not isinstance(prior, dist.Normal):
            raise Unsupported(f"a conjugate posterior needs a Normal prior on mean, got {type(prior).__name__}.")
        precision = 1 / prior.scale**2 + n / self.scale**2
        centre = (prior.loc / prior.scale**2 + s_n[0] / self.scale**2) / precision
        return Joint({"mean": dist.Normal(centre, 1 / sqrt(precision))})


def square_diameter(lower: float, upper: float) -> float:
    r"""Largest distance between two points (y, y^2), y in an interval.

    Spreading a pair with the same sum apart only helps, so one of the two is an end e of the interval; the other is the
    other end or a root of :math:`1 + 2ey + 2y^2 = 0`, where the derivative vanishes.
    """
    pairs = [(lower, upper)]
    for end in (lower, upper):
        if end**2 > 2:
            roots = [(-end + sign * sqrt(end**2 - 2)) / 2 for sign in (-1, 1)]
            pairs += [(end, y) for y in roots if lower <= y <= upper]
    return float(max(abs(x - y) * sqrt(1 + (x + y) ** 2) for x, y in pairs))


_PRIOR_SHAPE = 2.0  # of the precision's Gamma law
_PRIOR_WEIGHT = 1 / 16  # the prior of a mean weighs as much as this many records


@dataclass(frozen=True, eq=False, repr=False)
class NormalMeanScale(Family):
    r"""Normal records, mean and standard deviation unknown.

    .. math:: S(y) = (y,\ y^2), \quad \varphi = \Bigl(\frac{\mu}{\sigma^2},\ -\frac{1}{2\sigma^2}\Bigr), \quad
              A(\varphi) = -\frac{\varphi_1^2}{4\varphi_2} - \tfrac12\log(-2\varphi_2)

    :math:`\nabla_2 S` is the largest :math:`|x-y|\sqrt{1+(x+y)^2}`, in closed form. Centre the column by a public constant:
    squares are smallest around zero.

    Parameters
    ----------
    lower, upper
        The declared domain of a record.
    prior
        On ``scale`` and ``mean``; by default :math:`1/\sigma^2\sim` Gamma(2, 2 (length/8)^2) and mean given scale
        Normal(midpoint, 4 scale), conjugate.
    """

    lower: float
    upper: float

    def __post_init__(self) -> None:
        check_interval(self.lower, self.upper)

    @property
    def domain(self) -> dict[str, Domain]:
        """Y in [lower, upper]."""
        return {"y": Interval(self.lower, self.upper)}

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Mean and standard deviation."""
        return (Parameter("mean", (), constraints.real), Parameter("scale", (), constraints.positive))

    def default_prior(self) -> dict[str, Any]:
        """Normal-inverse-gamma, as wide as the domain."""
        return self._conjugate(_PRIOR_SHAPE, _PRIOR_SHAPE * self._unit**2, (self.lower + self.upper) / 2, _PRIOR_WEIGHT)

    @property
    def _unit(self) -> float:
        return (self.upper - self.lower) / 8

    @staticmethod
    def _conjugate(shape: Array, rate: Array, centre: Array, weight: Array) -> dict[str, Any]:
        return {
            "scale": scale_law(shape, rate),
            "mean": lambda values: dist.Normal(centre, values["scale"] / jnp.sqrt(weight)),
        }

    def statistic(self, record: Record) -> Array:
        """S(y) = (y, y^2)."""
        return jnp.stack([record["y"], record["y"] ** 2])

    def natural(self, values: Values) -> Array:
        """(mean, -1/2) over the variance."""
        return jnp.stack([values["mean"], -0.5 * jnp.ones_like(values["mean"])]) / values["scale"] ** 2

    def log_partition(self, phi: Array) -> Array:
        r""":math:`-\varphi_1^2/(4\varphi_2) - \tfrac12\log(-2\varphi_2)`."""
        second = jnp.where(phi[1] < 0, phi[1], -1.0)
        return jnp.where(phi[1] < 0, -(phi[0] ** 2) / (4 * second) - jnp.log(-2 * second) / 2, jnp.inf)

    def natural_inverse(self, phi: Array) -> dict[str, Array]:
        r""":math:`\sigma^2 = -1/(2\varphi_2),\ \mu = \sigma^2\varphi_1`."""
        variance = -0.5 / phi[1]
        return {"mean": variance * phi[0], "scale": jnp.sqrt(variance)}

    def distribution(self, values: Values) -> dist.Distribution:
        """NumPyro's Normal."""
        return dist.Normal(values["mean"], values["scale"])

    def support(self, v: Array) -> Array:
        """Largest value of a parabola over the interval."""
        return over_interval(v[0], v[1], self.lower, self.upper)

    def diameter(self) -> float:
        """Closed form."""
        return square_diameter(self.lower, self.upper)

    def posterior(self, s_n: Array, n: int) -> Joint:
        """Normal-inverse-gamma update."""
        need_default_prior(self)
        middle = (self.lower + self.upper) / 2
        weight = _PRIOR_WEIGHT + n
        centre = (_PRIOR_WEIGHT * middle + s_n[0]) / weight
        rate = _PRIOR_SHAPE * self._unit**2 + (s_n[1] + _PRIOR_WEIGHT * middle**2 - weight * centre**2) / 2
        return Joint(self._conjugate(_PRIOR_SHAPE + n / 2, rate, centre, weight))
