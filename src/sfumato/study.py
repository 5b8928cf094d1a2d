"""One place where loose arguments become typed objects: what every public function does first."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import jax

from sfumato.domain import Domain, check_record_domain
from sfumato.errors import InvalidInput
from sfumato.families.base import Family
from sfumato.families.langevin import natural_bounds, natural_model
from sfumato.kernel import Langevin
from sfumato.model import Model, from_numpyro
from sfumato.model.base import input_spec
from sfumato.model.program import digest
from sfumato.model.trials import check_densities
from sfumato.model.whole import check_whole
from sfumato.sensitivity import Bounds, bounds_for
from sfumato.sensitivity.certifier import canonical_log_likelihood
from sfumato.sensitivity.reference import Reference

_KEPT = 16  # studies remembered, as many as the planner remembers models


class Study(NamedTuple):
    """A model, the domain of its records, and how far one record can move an answer: all public.

    `near` proves what Langevin around a reference point needs; None where the study rests on stated bounds.
    """

    model: Model
    domain: dict[str, Domain]
    bounds: Bounds
    family: Family | None = None
    natural: bool = False
    near: Reference | None = None


def make_study(
    model: Model | Family | Callable[..., Any],
    domain: Mapping[str, Domain] | None = None,
    sensitivity: Any = "certify",
    kernel: str = "",
) -> Study:
    """Check and assemble a study; a family brings its own domain and its own exact bounds.

    For the kernels "langevin" and "auto" a regular family is studied in its natural parameter, where Langevin works.
    """
    certified = isinstance(sensitivity, str) and sensitivity == "certify"
    if isinstance(model, Family):
        if kernel == Langevin.name or (kernel == "auto" and certified and model.regular):
            return _natural_study(model, domain)
        return _family_study(model, domain, sensitivity)
    if kernel == Langevin.name and not certified:
        raise InvalidInput(
            "kernel='langevin' needs proven bounds: leave sensitivity= at 'certify', or use kernel='guided'."
        )
    if domain is None:
        raise InvalidInput(
            "a model needs domain={'y': ...}: the set its records live in. Only a family brings its own."
        )
    checked = check_record_domain(domain)
    if isinstance(model, Model):
        check_densities(model, checked)
        program = _Program(repr(_plain(checked)), model, checked, own=model)
    else:
        program = _program(from_numpyro(model, checked), checked)
    check_whole(program.model, checked)
    if not certified:
        return Study(_first(program), checked, bounds_for(_first(program), checked, sensitivity))
    study = _proven(program)
    if study.near is not None and kernel == Langevin.name:
        study.near.check()
    return study


# -- the same program, the same study -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Program:
    """A model on a domain, known by what it computes: two that compute the same are equal, whoever wrote them.

    `own` is a model that was given as such: it is known by its functions.
    """

    digest: str
    model: Model = field(compare=False)
    domain: dict[str, Domain] = field(compare=False)
    own: Model | None = None


def _program(model: Model, domain: dict[str, Domain]) -> _Program:
    """Trace what a model computes for a record of the domain.

    A plan, the run after it and the run that goes on with it are given the same function; proofs and compiled programs are
    most of what they cost. The function alone would not do as a key: it may look at a global variable that has changed.
    """

    def everything(theta: Any, record: Any) -> Any:
        densities = model.log_prior(theta), model.log_likelihood(theta, record)
        return densities, model.constrain(theta), model.sample_prior(jax.random.key(0))

    with jax.enable_x64(True):
        theta, record = input_spec(model.dim, domain)
        # What is bounded has operations of its own.
        programs = [jax.make_jaxpr(part)(theta, record) for part in (everything, canonical_log_likelihood(model))]
    return _Program(repr((model.fingerprint(), _plain(domain), digest(*programs))), model, domain)


@lru_cache(maxsize=_KEPT)
def _first(program: _Program) -> Model:
    """The first model seen that computes the same."""
    return program.model


@lru_cache(maxsize=_KEPT)
def _proven(program: _Program) -> Study:
    model, domain = _first(program), program.domain
    return Study(model, domain, bounds_for(model, domain), near=Reference(model, domain))


# -- families -----------------------------------------------------------------------------------------------------------


def _own_domain(family: Family, domain: Mapping[str, Domain] | None) -> dict[str, Domain]:
    own = check_record_domain(family.domain)
    if domain is not None and _plain(check_record_domain(domain)) != _plain(own):
        raise InvalidInput(f"{family!r} has the domain {own}; leave domain= out, or give the same one.")
    return own


def _natural_study(family: Family, domain: Mapping[str, Domain] | None) -> Study:
    model, bounds = _natural(family)
    return Study(model, _own_domain(family, domain), bounds, family, natural=True)


@lru_cache(maxsize=_KEPT)
def _natural(family: Family) -> tuple[Model, Bounds]:
    return natural_model(family), natural_bounds(family)


def _family_study(family: Family, domain: Mapping[str, Domain] | None, sensitivity: Any) -> Study:
    own = _own_domain(family, domain)
    built = family.to_model()
    bounds = _exact(family) if isinstance(sensitivity, str) and sensitivity == "certify" else None
    return Study(built, own, bounds or bounds_for(built, own, sensitivity), family)


@lru_cache(maxsize=_KEPT)
def _exact(family: Family) -> Bounds:
    return family.bounds()


def _plain(domain: Mapping[str, Domain]) -> dict[str, Any]:
    return {name: column.to_dict() for name, column in domain.items()}
