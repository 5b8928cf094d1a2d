r"""Discrete variables of each record are summed over: a record's term is the log of a sum over all of their values.

.. math:: \log p(y\mid\theta) = \log\sum_z p(z\mid\theta)\,p(y\mid z,\theta)

So the idiom of enumeration (``z ~ Categorical(w)`` in the plate, then ``Normal(locs[z], 1)``) is the mixture that it means.
"""

import itertools
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpyro.distributions as dist

from sfumato.errors import InvalidModel

Array: TypeAlias = Any

MOST_STATES = 64
"""Joint values of all such variables of one record: a term is computed once for each."""
MOST_COMPONENTS = 16
"""Joint values up to which the mixture is written out as one distribution."""


def states(trace: Mapping[str, Any], summed: list[str]) -> dict[str, np.ndarray]:
    """Every joint value of the variables of one record, as columns that run in parallel."""
    values: list[np.ndarray] = []
    for name in summed:
        listed = np.ravel(np.asarray(trace[name]["fn"].enumerate_support(expand=False)))
        if len(set(listed.tolist())) * max(map(len, values), default=1) > MOST_STATES:
            raise InvalidModel(
                f"site {name!r} is a discrete latent variable of each record, and can be summed over only if all of them "
                f"together "
                f"have at most {MOST_STATES} values; marginalise it out of the model.",
                site=name,
            )
        values.append(listed)
    joint = list(itertools.product(*values))
    if len(joint) > MOST_STATES:
        raise InvalidModel(
            f"the discrete latent variables of each record, {summed}, have {len(joint)} values together, and can be summed "
            f"over only "
            f"if these are at most {MOST_STATES}; marginalise them out of the model.",
            site=summed[0],
        )
    return {name: np.array([state[i] for state in joint]) for i, name in enumerate(summed)}


def mixture(log_weights: Array, components: list[Any]) -> Any:
    """One distribution with everything summed over, of components with one batch shape: so outcomes can be drawn from it."""
    return dist.MixtureGeneral(dist.Categorical(logits=log_weights), components)
