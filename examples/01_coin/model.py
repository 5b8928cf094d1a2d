"""One question, answered yes or no; the share of the population that would say yes is unknown."""

from typing import Any

import numpyro
import numpyro.distributions as dist


def coin(y: Any) -> None:
    """Give every share the same chance before the data, and every person the share as the chance of a yes."""
    p = numpyro.sample("p", dist.Beta(1, 1))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("obs", dist.Bernoulli(p), obs=y)
