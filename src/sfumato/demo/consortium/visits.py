"""The approved study of `sfumato demo consortium`: each owner keeps a copy of this file beside its records.

An analyst has the same file, to the letter. Both sides compare its fingerprint before anyone spends.
"""

from typing import Any

import numpyro
import numpyro.distributions as dist


def visits(pays: Any, chronic: Any, visited: Any) -> None:
    """Logistic regression of whether there was a visit to a doctor in the year."""
    intercept = numpyro.sample("intercept", dist.Normal(0, 1))
    b_pays = numpyro.sample("b_pays", dist.Normal(0, 1))
    b_chronic = numpyro.sample("b_chronic", dist.Normal(0, 1))
    with numpyro.plate("records", visited.shape[0]):
        numpyro.sample("obs", dist.Bernoulli(logits=intercept + b_pays * pays + b_chronic * chronic), obs=visited)
