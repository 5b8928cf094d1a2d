r"""The one-shot limit: what a single Gaussian release of the score with the whole budget would be worth."""

from collections.abc import Mapping

import jax
import numpy as np

from sfumato.bounds import compiled, synthetic
from sfumato.bounds.reach import Search, diameter
from sfumato.domain import Domain
from sfumato.model import Model
from sfumato.planner.belief import Belief, assumed_belief
from sfumato.study.target import Study

BAND_DRAWS = 8
BAND_SPREADS = (1.0, 1 / 3)
"""Parameters from the prior at which a plan looks at the limit, and parts of their domain that covariates fill there."""


def one_shot_limit(study: Study, belief: Belief, mu: float) -> float:
    """The limit by the family's own diameter, where that is exact; else by a search for two records."""
    known = study.score_diameter(belief.centre, np.linalg.cholesky(belief.covariance))
    if known is None:
        return limit_ess(study.model, study.domain, belief, mu)
    return float(mu**2 / max(known**2, 1e-300))


def limit_ess(model: Model, domain: Mapping[str, Domain], belief: Belief, mu: float, *, climb: bool = True) -> float:
    r"""One-shot limit :math:`ESS^* = \mu^2 / \sup\lVert A^\top(S(x) - S(y))\rVert^2`, S the score at the centre.

    The supremum is searched for: two records attain it, so no proof that is loose makes the limit look smaller than it is.
    """
    root = np.linalg.cholesky(belief.covariance)
    scores = Search(model, [domain], climb=climb).vectors("gradient", belief.centre, root)
    return float(mu**2 / max(diameter(scores) ** 2, 1e-300))


def limit_band(
    study: Study, n: int, centre: np.ndarray, shown: synthetic.Batch | None, mu: float, guessed: bool
) -> tuple[float, float]:
    """10th and 90th percentile of the one-shot limit over parameters from the prior and ways covariates may lie."""
    model, domain = study.model, study.domain
    draws = compiled.prior_draws(model)[:: len(compiled.prior_draws(model)) // BAND_DRAWS][:BAND_DRAWS]
    whole = shown is not None or model.sample_records is not None  # records are not made from the domain
    limits = []
    with jax.enable_x64(True):
        for theta in [*draws, *([centre] if guessed else [])]:
            for spread in (1.0,) if whole else BAND_SPREADS:
                belief = assumed_belief(model, domain, n, theta, shown, "", spread)
                # No record can tell as much as that; far out a bounded loss is flat, and nothing there moves any answer.
                limits.append(min(limit_ess(model, domain, belief, mu, climb=False), mu**2 * n))
    low, high = np.quantile(limits, [0.1, 0.9])
    return float(low), float(high)
