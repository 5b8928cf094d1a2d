"""The demonstration: who owns a home? 214 144 men of a census extract, under epsilon = 1.

The records ship with the package `causaldata` (the census extract behind Fetter, "How do mortgage subsidies affect home
ownership?", AEJ: Economic Policy 2013). They are public, which is why the exact, non-private fit may be shown beside
the private one.

The covariates are zeros and ones on purpose. What a budget buys is fixed by how far the most influential *possible*
record can move the posterior, in posterior standard deviations: an extreme value that hardly anybody has costs as much
as if everybody had it. This coding was picked among a dozen on these public records; on private ones that would cost budget.
"""

from typing import Any, NamedTuple

import numpy as np
import numpyro
import numpyro.distributions as dist

from sfumato.analysis.wording import Label, Words
from sfumato.domain import Binary, Domain
from sfumato.errors import InvalidInput

EPSILON = 1.0
DELTA = 1e-7
CHAINS = 2
"""Two: the budget buys less than a hundred effective draws, and fewer longer chains show better whether they agree."""
MIDDLE_COHORT = -13.0
"""Middle of the range of birth quarters, -54.5 to 28.5, counted from the cutoff for the Korean-war mortgage subsidy."""
GUESS = {"intercept": 0.0, "b_veteran": 0.5, "b_nonwhite": -1.0, "b_younger": -1.0}
"""Round numbers near the known answer, chosen with these public records in view. A private study needs an outside source;
without guess and example the first plan of this one is too hopeful."""
LABELS = {"intercept": "intercept", "b_veteran": "veteran", "b_nonwhite": "nonwhite", "b_younger": "born later"}
COVARIATES = ("veteran", "nonwhite", "younger")
WORDS = Words(
    title="Home ownership in a census extract",
    question="Who owns a home?",
    answer="b_veteran",
    parameters={
        "intercept": Label("The share of owners among white men born earlier who are no veterans", scale="expit"),
        "b_veteran": Label("The odds ratio of owning a home, veterans to others", scale="exp"),
        "b_nonwhite": Label("The odds ratio of owning a home, nonwhite to white", scale="exp"),
        "b_younger": Label("The odds ratio of owning a home, born later to earlier", scale="exp"),
    },
    source="a census extract, from the package causaldata",
)


def home_ownership(veteran: Any, nonwhite: Any, younger: Any, owner: Any) -> None:
    """Logistic regression of home ownership."""
    intercept = numpyro.sample("intercept", dist.Normal(0, 1))
    effects = [numpyro.sample(f"b_{name}", dist.Normal(0, 1)) for name in COVARIATES]
    logits = intercept + effects[0] * veteran + effects[1] * nonwhite + effects[2] * younger
    with numpyro.plate("men", veteran.shape[0]):
        numpyro.sample("obs", dist.Bernoulli(logits=logits), obs=owner)


def domain() -> dict[str, Domain]:
    """Every column is zero or one."""
    return {name: Binary() for name in (*COVARIATES, "owner")}


def terms(epsilon: float = EPSILON) -> dict[str, Any]:
    """Give the options that plan and run share."""
    terms: dict[str, Any] = {"domain": domain(), "epsilon": epsilon, "delta": DELTA, "chains": CHAINS}
    return terms | {"example": example(), "guess": GUESS}


def load() -> dict[str, np.ndarray]:
    """Read the public table."""
    try:
        from causaldata import mortgages
    except ImportError:
        raise InvalidInput(
            "the demo reads its public census extract from the package causaldata, which is not installed; "
            "pip install 'sfumato[demo]'."
        ) from None
    table = mortgages.load_pandas().data
    return {
        "veteran": np.asarray(table["vet_wwko"], dtype=np.int8),
        "nonwhite": np.asarray(table["nonwhite"], dtype=np.int8),
        "younger": (np.asarray(table["qob_minus_kw"]) > MIDDLE_COHORT).astype(np.int8),
        "owner": np.asarray(table["home_ownership"], dtype=np.int8),
    }


def example(size: int = 2048) -> dict[str, np.ndarray]:
    """Make up records with shares rounded from this public table, for the first plan. See `GUESS`."""
    rng = np.random.default_rng(0)
    younger = rng.random(size) < 0.5
    veteran = rng.random(size) < np.where(younger, 0.2, 0.7)  # most of the older, few of the younger men served
    nonwhite, owner = rng.random(size) < 0.1, rng.random(size) < 0.4
    columns = {"veteran": veteran, "nonwhite": nonwhite, "younger": younger, "owner": owner}
    return {name: column.astype(np.int8) for name, column in columns.items()}


class Fit(NamedTuple):
    """Mean and standard deviation of each coefficient, in the order of the design's columns (and of `LABELS`)."""

    mean: np.ndarray
    sd: np.ndarray


def non_private_fit(data: dict[str, np.ndarray]) -> Fit:
    """Fit without privacy, for comparison only, and only because these records are public."""
    design = np.stack([np.ones(len(data["owner"])), *(data[name].astype(float) for name in COVARIATES)], axis=1)
    return logistic_fit(design, data["owner"])


def logistic_fit(design: np.ndarray, response: np.ndarray, steps: int = 12) -> Fit:
    """Fit a logistic regression with standard normal priors: a normal approximation by Newton's method.

    For tens of thousands of people and a handful of coefficients it is as good as exact.
    """
    theta = np.zeros(design.shape[1])
    precision = np.eye(len(theta))
    for _ in range(steps):
        p = 1 / (1 + np.exp(-design @ theta))
        gradient = design.T @ (response - p) - theta
        precision = (design * (p * (1 - p))[:, None]).T @ design + np.eye(len(theta))
        theta = theta + np.linalg.solve(precision, gradient)
    return Fit(theta, np.sqrt(np.diag(np.linalg.inv(precision))))
