"""One place where loose arguments become typed objects: what every public function does first."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import isfinite
from typing import Any, NamedTuple

import jax
import numpy as np

from sfumato.bounds import CERTIFY, FROM_THE_MODEL, Bounds, bounds_for
from sfumato.bounds.program import canonical_log_likelihood
from sfumato.bounds.reference import Reference, ReferenceBounds
from sfumato.bounds.searched import BestReference
from sfumato.domain import Domain, check_record_domain
from sfumato.errors import InvalidInput, Unsupported
from sfumato.families.base import Family
from sfumato.families.langevin import natural_bounds, natural_jacobian, natural_model, public_part
from sfumato.kernel import AUTO, Kernel, Kind, ReferenceLangevin, asks_first, kinds
from sfumato.model import Model, from_numpyro
from sfumato.model.base import input_spec
from sfumato.model.program import digest
from sfumato.model.trials import as_model_input, check_densities
from sfumato.model.whole import check_whole
from sfumato.tools.quick_jit import quick_jit

_TRIED = 4  # parameters, and made-up records at each of them, at which two models are compared
_SAME = 1e-6  # how far, relatively, two computations of one model may be apart: another machine may round otherwise
_KEPT = 16  # studies remembered, as many as the planner remembers models


class Study(NamedTuple):
    """A model, the domain of its records, and how far one record can move an answer: all public.

    Attributes
    ----------
    family, natural
        The exponential family, where the model is one; and whether theta is its natural parameter.
    reference_bounds
        What holds around a reference point; None for a family, and where the study rests on stated bounds.
    """

    model: Model
    domain: dict[str, Domain]
    bounds: Bounds
    family: Family | None = None
    natural: bool = False
    reference_bounds: ReferenceBounds | None = None

    # -- which kernels it can have --------------------------------------------------------------------------------

    def can_answer(self, second: str) -> bool:
        """Whether a kernel with this second query ("ratio", "linear", "remainder") can be had."""
        if second == "remainder":
            return self.reference_bounds is not None and self.reference_bounds.possible
        return second == "ratio" or (second == "linear" and self.natural)

    def why_not(self, second: str) -> str:
        """Why such a kernel cannot be had, in a sentence; empty where it can, and where another form of it stands in."""
        if second != "remainder" or self.family is not None:
            return ""
        if self.reference_bounds is None:
            return "its bounds follow from the model, and the sensitivity here is stated"
        return self.reference_bounds.why_not

    def kernels(self, name: str = AUTO) -> tuple[list[type[Kind]], dict[str, str]]:
        """Kernels of a name that it can have, and why it cannot have the others; of "auto", all that come into question.

        In a natural parameter nothing is worth as much as a step by the statistic: walks are not looked at.
        """
        named = [kind for kind in kinds(name) if not (name == AUTO and self.natural) or kind.second == "linear"]
        found = [kind for kind in named if self.can_answer(kind.second)]
        refused = {kind.name: self.why_not(kind.second) for kind in named if kind not in found}
        return found, {name: why for name, why in refused.items() if why}

    @property
    def has_reference(self) -> bool:
        """Whether bounds around a reference point are looked for at all."""
        return self.reference_bounds is not None

    def without_reference(self) -> "Study":
        """The same, where somebody does not answer for a reference point."""
        return self._replace(reference_bounds=None)

    # -- what is known of its statistic -----------------------------------------------------------------------------

    @property
    def sums_statistics(self) -> bool:
        """Whether the sum of a family's statistics answers in place of the records."""
        return self.bounds.statistic

    @property
    def knows_information(self) -> bool:
        """Whether the information at a parameter needs no data: a family whose statistic has a law of its own."""
        return self.family is not None and self.family.regular and self.bounds.statistic

    def public_part(self, n: int) -> Callable[[Any], Any]:
        """What is public of the log posterior in the natural parameter."""
        return public_part(self._the_family, self.model, n)

    def statistic_diameter(self, root: np.ndarray) -> float:
        """Largest distance between two records' statistics, whitened by a root."""
        return float(self._the_family.known_diameter(root))

    def natural_jacobian(self, theta: np.ndarray) -> np.ndarray:
        """Derivative of the natural parameter in theta, shape (k, d)."""
        return natural_jacobian(self._the_family, self.model, theta)

    def score_diameter(self, theta: np.ndarray, root: np.ndarray) -> float | None:
        """Largest distance between two records' scores at theta, whitened by a root; None where it must be searched for."""
        if not self.knows_information or not self._the_family.exact_diameter:
            return None
        return self.statistic_diameter(self.natural_jacobian(theta) @ root)

    def first_width(self, kernel: Kernel) -> float:
        """What one record can move the answer to a kernel's first query by; 0 where it asks none."""
        if not kernel.first:
            return 0.0
        if isinstance(kernel, ReferenceLangevin) and self.reference_bounds is not None:
            return self.reference_bounds.at(kernel.centre, kernel.matrix).gradients.diameter
        return self.statistic_diameter(kernel.matrix)

    @property
    def certified(self) -> bool:
        """Whether nothing is searched for around a reference point: there is a proof, or nothing."""
        return not isinstance(self.reference_bounds, BestReference)

    def searched_around(self, kernel: Kernel, otherwise: bool) -> bool:
        """Whether the range of a kernel's last query is searched for; `otherwise`, where that is a log ratio."""
        if not isinstance(kernel, ReferenceLangevin) or self.reference_bounds is None:
            return otherwise
        return bool(self.reference_bounds.at(kernel.centre, kernel.matrix).searched)

    @property
    def _the_family(self) -> Family:
        if self.family is None:
            raise Unsupported("only an exponential family has a statistic, and this model is none; use a walk.")
        return self.family


def make_study(
    model: Model | Family | Callable[..., Any],
    domain: Mapping[str, Domain] | None = None,
    sensitivity: Any = AUTO,
    kernel: str = "",
) -> Study:
    """Check and assemble a study; a family brings its own domain and its own exact bounds.

    For kernels that move by the statistic, and for "auto", a regular family is studied in its natural parameter.
    """
    from_the_model = isinstance(sensitivity, str) and sensitivity in FROM_THE_MODEL
    by_statistic = kernel != AUTO and asks_first(kernel)
    if isinstance(model, Family):
        if by_statistic or (kernel == AUTO and from_the_model and model.regular):
            return _natural_study(model, domain)
        return _family_study(model, domain, sensitivity)
    if by_statistic and not from_the_model:
        raise InvalidInput(
            f"kernel={kernel!r} needs bounds that follow from the model: leave sensitivity= at 'auto', or use kernel='guided'."
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
    if not from_the_model:
        return Study(_first(program), checked, bounds_for(_first(program), checked, sensitivity))
    study = _bounded(program, sensitivity)
    if study.reference_bounds is not None and by_statistic:
        study.reference_bounds.check()
    return study


# -- what a model computes, whatever its text says ------------------------------------------------------------------------


def computed(study: Study) -> list[float | None]:
    """Densities at a few fixed parameters and made-up records, and the parameters as users see them, for `computes_alike`.

    The text of a model does not show the variables outside of it that it looks at; these numbers do.
    """
    records, turn = {}, 0.0
    for name, d in study.domain.items():
        turn += 0.618034  # every entry has another place in its range, in every record
        share = turn + np.arange(1, _TRIED + 1)[:, None] * 0.381966 + np.arange(d.size) * 0.754878
        records[name] = as_model_input(d, d.clamp(d.lo + (d.hi - d.lo) * (share % 1.0).reshape(_TRIED, *d.shape)))
    thetas = 0.5 * np.sin(np.arange(_TRIED)[:, None] + np.arange(1, study.model.dim + 1))

    def everything(theta: Any) -> Any:
        terms = jax.vmap(study.model.log_likelihood, (None, 0))(theta, records)
        return study.model.log_prior(theta), terms, study.model.constrain(theta)

    with jax.enable_x64(True):
        found = quick_jit(jax.vmap(everything))(jax.device_put(thetas))
    numbers = (float(x) for part in jax.tree.leaves(found) for x in np.ravel(part))
    return [x if isfinite(x) else None for x in numbers]


def computes_alike(study: Study, noted: Sequence[float | None]) -> bool:
    """Whether a study computes what was noted of another one, up to rounding."""
    mine, theirs = (np.array(numbers, dtype=np.float64) for numbers in (computed(study), noted))
    return mine.shape == theirs.shape and np.allclose(mine, theirs, rtol=_SAME, atol=_SAME, equal_nan=True)


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
def _bounded(program: _Program, sensitivity: str) -> Study:
    """The study of a program whose bounds follow from it: all proven, or searched for where there is no proof."""
    model, domain = _first(program), program.domain
    reference: ReferenceBounds = Reference(model, domain) if sensitivity == CERTIFY else BestReference(model, domain)
    return Study(model, domain, bounds_for(model, domain, sensitivity), reference_bounds=reference)


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
    built = _built(family)
    bounds = _exact(family) if isinstance(sensitivity, str) and sensitivity in FROM_THE_MODEL else None
    return Study(built, own, bounds or bounds_for(built, own, sensitivity), family)


@lru_cache(maxsize=_KEPT)
def _built(family: Family) -> Model:
    return family.to_model()


@lru_cache(maxsize=_KEPT)
def _exact(family: Family) -> Bounds:
    return family.bounds()


def _plain(domain: Mapping[str, Domain]) -> dict[str, Any]:
    return {name: column.to_dict() for name, column in domain.items()}
