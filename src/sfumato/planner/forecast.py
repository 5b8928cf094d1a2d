r"""What an estimate (`sfumato.estimate`) would give for a budget, forecast before anything is spent.

In coordinates whitened by the posterior without privacy an estimate's score has noise of variance :math:`V = (2r)^2/(w\mu^2)` in
every direction: r is the radius of the ball that holds all records' whitened scores, w the share of the budget that the score
gets. That is :math:`1/(wL)`, L the one-shot limit in effective draws, but for the ball being wider than the distance between
any two records. With a share p of that posterior's precision from the prior the answer has the precision

.. math:: p + (1 - p)\,\bigl((1 - p) + V\bigr)^{-1}(1 - p),

so that its width, beside the posterior without privacy, is :math:`\sqrt{1 + V}` for p near zero, and never more than the prior's
own, :math:`p^{-1/2}`. What it is wider by is the noise: :math:`\text{error}^2 = \text{width}^2 - 1`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from sfumato.bounds.reach import Search
from sfumato.planner.belief import Belief, prior_precision
from sfumato.planner.placing import FINDING, LOOKING
from sfumato.study.target import Study

MOSTLY_PRIOR = 0.8
"""Posterior over prior standard deviation from which a parameter is mostly prior."""


class EstimateForecast(NamedTuple):
    """What an estimate would give, in the direction that fares worst.

    Attributes
    ----------
    error_sd
        Standard deviation of what the noise adds, in standard deviations of the posterior without privacy.
    width_ratio
        Width of a 90 % interval beside the one without privacy.
    of_prior
        Posterior over prior standard deviation, in the direction that fares best.
    band
        The width over what is not known before the pilot, where the one-shot limit is at its 90th and at its 10th percentile;
        None after the pilot.
    perhaps_prior
        Whether the larger of the two is hardly less than the prior's own width.
    """

    error_sd: float
    width_ratio: float
    of_prior: float
    band: tuple[float, float] | None = None
    perhaps_prior: bool = False

    @property
    def mostly_prior(self) -> bool:
        """Whether the answer would hardly be more than the prior, for every parameter."""
        return self.of_prior > MOSTLY_PRIOR

    def __str__(self) -> str:
        if self.mostly_prior:
            return "an answer that is mostly prior, for every parameter"
        low, high = self.band or (self.width_ratio, self.width_ratio)
        if self.perhaps_prior or high > _FAR * low:
            first = f"an error of {_short(_error(low))} posterior sds or more from noise"
            return (
                f"{first}, 90% intervals {_short(low)} times as wide as without privacy or wider, up to the prior's own"
            )
        first = f"an error of {_range(_error(low), _error(high))} posterior sds from noise"
        if high < _HARDLY:
            return f"{first}, 90% intervals hardly wider than without privacy"
        return f"{first}, 90% intervals {_range(low, high)} times as wide as without privacy"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        band = None if self.band is None else list(self.band)
        return self._asdict() | {"band": band, "mostly_prior": self.mostly_prior}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "EstimateForecast":
        """Inverse of `to_dict`."""
        values = {name: plain[name] for name in cls._fields}
        return cls(**values | {"band": tuple(values["band"]) if values["band"] else None})


_HARDLY = 1.05
_CLOSE = 1.1  # a narrower range says no more than its middle
_FAR = 10.0  # a wider one says no more than its lower end


def _range(low: float, high: float) -> str:
    if high <= _CLOSE * low:
        return f"about {_short((low + high) / 2)}"
    return f"{_short(low)} to {_short(high)}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _error(width: float) -> float:
    return float(max(width**2 - 1.0, 0.0) ** 0.5)


def forecast_estimate(
    study: Study, belief: Belief, mu_squared: float, limits: tuple[float, float] | None = None
) -> EstimateForecast:
    """Forecast an estimate at what is believed of the posterior.

    Parameters
    ----------
    mu_squared
        What it may spend.
    limits
        The one-shot limit at its 10th and at its 90th percentile, in units of the one at the centre.
    """
    root = np.linalg.cholesky(belief.covariance)
    shares = np.linalg.eigvalsh(root.T @ prior_precision(study.model, belief.centre) @ root)
    prior = np.clip(shares, 1e-12, 1.0)
    radius = Search(study.model, [study.domain]).reach("gradient", belief.centre, root).radius
    score = 1.0 - FINDING - (0.0 if study.knows_information else LOOKING)
    noise = (2 * radius) ** 2 / (score * mu_squared)
    width = _width(prior, noise)
    worst, of_prior = float(np.max(width)), float(np.min(width * prior**0.5))
    if limits is None:
        return EstimateForecast(_error(worst), worst, of_prior)
    widest, narrowest = _width(prior, noise / min(limits[0], 1.0)), _width(prior, noise / max(limits[1], 1.0))
    band = float(np.max(narrowest)), float(np.max(widest))
    perhaps = bool((widest * prior**0.5)[np.argmax(widest)] > MOSTLY_PRIOR)
    return EstimateForecast(_error(worst), worst, of_prior, band, perhaps)


def _width(prior: np.ndarray, noise: float) -> np.ndarray:
    """Width beside the posterior without privacy, direction by direction."""
    told = 1.0 - prior
    return np.asarray((prior + told * told / (told + noise)) ** -0.5)
