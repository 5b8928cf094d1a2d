"""Exponential families: statistic, natural parameter, log-normaliser, and how far one record can move them."""

from sfumato.families.base import Family, Parameter
from sfumato.families.conformance import NotConformant, check
from sfumato.families.counts import Bernoulli, Binomial, Geometric, Poisson
from sfumato.families.intervals import Beta, Exponential, Gamma
from sfumato.families.multivariate import MultivariateNormal, MultivariateNormalMeanCovariance
from sfumato.families.normal import Normal, NormalMeanScale
from sfumato.families.prior import Joint
from sfumato.families.regression import LinearRegression
from sfumato.families.tables import Categorical, LogLinear
from sfumato.families.vectors import Bernoullis

__all__ = [
    "Bernoulli",
    "Bernoullis",
    "Beta",
    "Binomial",
    "Categorical",
    "Exponential",
    "Family",
    "Gamma",
    "Geometric",
    "Joint",
    "LinearRegression",
    "LogLinear",
    "MultivariateNormal",
    "MultivariateNormalMeanCovariance",
    "Normal",
    "NormalMeanScale",
    "NotConformant",
    "Parameter",
    "Poisson",
    "check",
]
