"""One place where loose arguments become typed objects: what every public function does first."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sfumato.domain import Domain, check_record_domain
from sfumato.errors import InvalidInput
from sfumato.families.base import Family
from sfumato.families.langevin import natural_bounds, natural_model
from sfumato.kernel import Langevin
from sfumato.model import Model, from_numpyro
from sfumato.sensitivity import Bounds, bounds_for
from sfumato.sensitivity.reference import Reference


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
    built = model if isinstance(model, Model) else from_numpyro(model, checked)
    bounds = bounds_for(built, checked, sensitivity)
    near = Reference(built, checked) if certified else None
    if near is not None and kernel == Langevin.name:
        near.check()
    return Study(built, checked, bounds, near=near)


def _own_domain(family: Family, domain: Mapping[str, Domain] | None) -> dict[str, Domain]:
    own = check_record_domain(family.domain)
    if domain is not None and _plain(check_record_domain(domain)) != _plain(own):
        raise InvalidInput(f"{family!r} has the domain {own}; leave domain= out, or give the same one.")
    return own


def _natural_study(family: Family, domain: Mapping[str, Domain] | None) -> Study:
    return Study(natural_model(family), _own_domain(family, domain), natural_bounds(family), family, natural=True)


def _family_study(family: Family, domain: Mapping[str, Domain] | None, sensitivity: Any) -> Study:
    own = _own_domain(family, domain)
    built = family.to_model()
    bounds = family.bounds() if isinstance(sensitivity, str) and sensitivity == "certify" else None
    return Study(built, own, bounds or bounds_for(built, own, sensitivity), family)


def _plain(domain: Mapping[str, Domain]) -> dict[str, Any]:
    return {name: column.to_dict() for name, column in domain.items()}
