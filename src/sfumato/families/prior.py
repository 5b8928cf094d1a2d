"""Priors and conjugate posteriors: one NumPyro distribution per site, some of them given the sites before."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Distribution

from sfumato.errors import InvalidModel

Array: TypeAlias = Any
Values: TypeAlias = Mapping[str, Array]
Factor: TypeAlias = Distribution | Callable[[Values], Distribution]


@dataclass(frozen=True, eq=False)
class Joint(Mapping[str, Factor]):
    r"""A joint law of the sites, one factor after the other.

    .. math:: \eta(\theta) = \prod_j \eta_j(\theta_j \mid \theta_1, \dots, \theta_{j-1})

    Parameters
    ----------
    factors
        Site -> NumPyro distribution, or a function {earlier site: value} -> NumPyro distribution, in order: how a mean
        is given its variance in a conjugate prior. The support of a factor must not depend on other sites.
    """

    factors: Mapping[str, Factor]

    def __getitem__(self, name: str) -> Factor:
        return self.factors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.factors)

    def __len__(self) -> int:
        return len(self.factors)

    def given(self, name: str, values: Values) -> Distribution:
        """Give the distribution of one site, given the values of the sites before it."""
        factor = self.factors[name]
        return factor if isinstance(factor, Distribution) else factor(values)

    def log_prob(self, values: Values) -> Array:
        """Joint log density of constrained values."""
        return sum(jnp.sum(self.given(name, values).log_prob(values[name])) for name in self.factors)

    def sample(self, key: Array) -> dict[str, Array]:
        """One draw of all sites."""
        values: dict[str, Array] = {}
        for name, sub in zip(self.factors, jax.random.split(key, len(self.factors)), strict=True):
            values[name] = self.given(name, values).sample(sub)
        return values

    def describe(self) -> list[list[str]]:
        """Say what the law is, in plain text: part of a family's fingerprint."""
        return [[name, _describe(factor)] for name, factor in self.factors.items()]


def as_joint(prior: Any, sites: tuple[str, ...]) -> Joint:
    """Read a user's prior: a `Joint`, a mapping site -> factor, or one distribution where there is one site."""
    if isinstance(prior, Distribution) and len(sites) == 1:
        return Joint({sites[0]: prior})
    if not isinstance(prior, Mapping):
        raise InvalidModel(
            f"a prior must be a NumPyro distribution (families of one site) or a dict with the sites {list(sites)}, "
            f"got {type(prior).__name__}."
        )
    if set(prior) != set(sites):
        raise InvalidModel(f"a prior must name the sites {list(sites)}, got {sorted(prior)}.")
    for name, factor in prior.items():
        if not isinstance(factor, Distribution) and not callable(factor):
            raise InvalidModel(
                f"the prior of site {name!r} must be a NumPyro distribution, or a function of earlier sites that gives "
                f"one; got {type(factor).__name__}.",
                site=name,
            )
    return Joint(dict(prior))


def _describe(factor: Any) -> str:
    if not isinstance(factor, Distribution):
        try:
            return inspect.getsource(factor)
        except (OSError, TypeError):
            return repr(getattr(factor, "__qualname__", type(factor)))
    names, inner = [type(factor).__name__], factor
    while (inner := getattr(inner, "base_dist", None)) is not None:
        names.append(type(inner).__name__)
    parameters = [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(factor)]
    return f"{' of '.join(names)} {parameters} {factor.batch_shape} {factor.event_shape}"
