"""What is inferred: a prior over global parameters and one likelihood term per record.

A `Model` is pure and public. It knows no data: only how to score one record, and how to score a parameter.
The parameter travels as one flat *unconstrained* vector theta; `constrain` gives the sites their own shapes and
supports back. Densities are over the unconstrained space, so `log_prior` includes the log-Jacobian of the bijections.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from sfumato.domain import Domain, joined
from sfumato.errors import InvalidInput, InvalidModel

Array: TypeAlias = Any
Record: TypeAlias = Mapping[str, Array]


def input_spec(dim: int, domain: Mapping[str, Domain]) -> tuple[Any, dict[str, Any]]:
    """Shape and type of theta and of one record, for tracing what a model computes. Call with 64 bits enabled."""
    spec: Any = jax.ShapeDtypeStruct
    return spec((dim,), np.float64), {name: spec(d.shape, d.dtype) for name, d in domain.items()}


class Site(NamedTuple):
    """One global latent variable: its name, its shape as the user sees it, its length in theta."""

    name: str
    shape: tuple[int, ...]
    size: int


class Observation(NamedTuple):
    """One observed factor of a record: a NumPyro distribution, the value it scores, a log-density multiplier."""

    name: str
    distribution: Any
    value: Array
    scale: float


class Loss(NamedTuple):
    """A density-power loss in place of a log-likelihood (`sfumato.robust`): what is sampled is a generalised posterior.

    `betas`: by observed site; `weight`: what the loss is multiplied by; `place`: where that number comes from, in words.
    """

    betas: tuple[tuple[str, float], ...]
    weight: float
    place: str


@dataclass(frozen=True)
class Model:
    """A Bayesian model of independent records.

    Parameters
    ----------
    sites
        The global latent variables, in the order in which they are laid out in theta.
    log_prior
        theta -> log prior density over the unconstrained space.
    log_likelihood
        (theta, record) -> log p(record given theta), a scalar; `record` maps column names to one record's values.
    constrain
        theta -> {site: value} in each site's own support.
    unconstrain
        {site: value} -> theta; the inverse.
    sample_prior
        (jax key) -> theta, one draw from the prior.
    columns
        Names of the columns a record must have.
    observations
        (theta, record) -> observed factors as NumPyro distributions, where they are known: lets the certifier use a
        closed form for each of them. None: the certifier works on `log_likelihood` alone.
    source
        Text that identifies the model; its hash is the fingerprint two sides compare.
    sample_records
        (theta, jax key, size) -> made-up records inside the declared domain, where the model can draw whole records; the
        planner prefers them to records uniform over the domain. Not traced.
    loss
        What stands in place of a log-likelihood, where that is no log-likelihood.
    """

    sites: tuple[Site, ...]
    log_prior: Callable[[Array], Array]
    log_likelihood: Callable[[Array, Record], Array]
    constrain: Callable[[Array], dict[str, Array]]
    unconstrain: Callable[[Mapping[str, Array]], Array]
    sample_prior: Callable[[Array], Array]
    columns: tuple[str, ...]
    observations: Callable[[Array, Record], list[Observation]] | None = None
    source: str = ""
    sample_records: Callable[[Array, Array, int], dict[str, Any]] | None = None
    loss: Loss | None = None

    @property
    def dim(self) -> int:
        """Length of theta."""
        return sum(site.size for site in self.sites)

    def fingerprint(self) -> str:
        """Hash of what the model is: its text, its sites, its columns."""
        text = repr((self.source, self.sites, self.columns))
        return hashlib.sha256(text.encode()).hexdigest()

    def coordinate_names(self) -> list[str]:
        """One name per entry of theta, such as ``beta[2]``."""
        names: list[str] = []
        for site in self.sites:
            names += (
                [site.name] if site.size == 1 and not site.shape else [f"{site.name}[{i}]" for i in range(site.size)]
            )
        return names

    def __repr__(self) -> str:
        return f"Model({', '.join(site.name for site in self.sites)}; columns {', '.join(self.columns)})"


def on_joined(model: Model, domain: Mapping[str, Domain]) -> Model:
    """The same model of records whose columns are cut to those that they never exceed; itself, where none is declared."""
    if not any(column.at_most for column in domain.values()):
        return model
    observations = model.observations
    return replace(
        model,
        log_likelihood=lambda theta, record: model.log_likelihood(theta, joined(domain, record)),
        observations=None
        if observations is None
        else lambda theta, record: observations(theta, joined(domain, record)),
    )


def check_values(values: Mapping[str, Array], sites: tuple[Site, ...], what: str = "a parameter") -> None:
    """Refuse values by site that are not one for each site, of its shape."""
    names = [site.name for site in sites]
    if set(values) != set(names):
        raise InvalidModel(f"{what} must name the sites {names}, got {sorted(values)}.")
    for site in sites:
        if np.shape(values[site.name]) != site.shape:
            raise InvalidModel(
                f"{what}: site {site.name!r} has shape {site.shape}, got {np.shape(values[site.name])}.", site=site.name
            )


def theta_of(model: Model, values: Mapping[str, Any], what: str) -> np.ndarray:
    """Theta of values by site that a user gave, checked: names, shapes, numbers, and inside every support.

    Inside is what comes back from the bijections as it went in; `what` is how messages call the values.
    """
    if not isinstance(values, Mapping):
        wanted = ", ".join(f"{site.name!r}: ..." for site in model.sites)
        raise InvalidInput(f"{what} must map sites to values, as {{{wanted}}}, got {values!r:.80}.")
    try:
        given = {name: np.asarray(value, dtype=np.float64) for name, value in values.items()}
    except (TypeError, ValueError):
        raise InvalidInput(f"{what} must hold numbers, got {values!r:.200}.") from None
    check_values(given, model.sites, what)
    with jax.enable_x64(True):
        theta = np.asarray(model.unconstrain(given), dtype=np.float64)
        back = {name: np.asarray(value) for name, value in model.constrain(theta).items()}
    wrong = [name for name in given if not np.allclose(back[name], given[name], rtol=1e-5, atol=1e-8)]
    if wrong or not np.all(np.isfinite(theta)):
        name = wrong[0] if wrong else model.sites[0].name
        raise InvalidInput(
            f"{what} must lie inside the support of every site, not on its edge, and {name!r} does not: got "
            f"{given[name].tolist()!r:.80}. Choose a value that the prior allows."
        )
    return theta
