"""The approved studies: the owner's own Python files, loaded at start. An analyst names one and sends numbers, never code."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from sfumato.errors import InvalidInput
from sfumato.families.base import Family
from sfumato.files.study import load_model
from sfumato.kernel import AUTO, Guided
from sfumato.node.catalogue import Refusal
from sfumato.node.config import OwnerFile, StudyEntry
from sfumato.planner import make_plan
from sfumato.planner.advice import as_commands
from sfumato.protocol.frames import Approved
from sfumato.protocol.questions import LANGEVIN, Linear, Question, Ratio, Release, Remainder, Statistic, Terms
from sfumato.study.target import Study, computed, make_study

_PLAIN, _AUTO = Guided.name, AUTO  # kernels for which a family is studied in its own and in its natural parameter


class ApprovedStudy:
    """One approved study, in each of the forms it may be studied in.

    Parameters
    ----------
    name, entry
        What the owner's file says.
    model
        The function, model or family of the owner's file.
    domain
        Where records live: the columns this study is about.
    n
        Number of records.
    """

    def __init__(self, name: str, entry: StudyEntry, model: Any, domain: Mapping[str, Any], n: int) -> None:
        self.name, self.entry, self.n = name, entry, n
        kernels = (_AUTO, _PLAIN) if isinstance(model, Family) else (_AUTO,)
        forms = [make_study(model, domain, entry.sensitivity.method(), kernel) for kernel in kernels]
        self.forms: dict[str, Study] = {form.model.fingerprint(): form for form in forms}
        self._main = forms[0]
        self._computes = [computed(form) for form in self.forms.values()]
        # Settled now, not at the first question: whether its model can be bounded around a reference point.
        self._reference = self._main.can_answer("remainder")
        self.plan: Callable[..., dict[str, Any]] = lru_cache(maxsize=256)(self._plan)

    def form(self, fingerprint: str) -> Study:
        """The form an analyst means, by the fingerprint of their own model."""
        if fingerprint not in self.forms:
            raise Refusal("other-model", f"study {self.name}: fingerprint {fingerprint[:64]!r}")
        return self.forms[fingerprint]

    def public(self) -> Approved:
        """What the handshake says of it."""
        main = self._main
        return Approved(
            name=self.name, models=list(self.forms), domain={k: column.to_dict() for k, column in main.domain.items()},
            n=self.n, sensitivity=main.bounds.describe(), sigma_floor=self.entry.sigma_floor,
            theta_bound=self.entry.theta_bound, reference=self._reference, computes=self._computes,
        )  # fmt: skip

    def _plan(self, epsilon: float, delta: float, n: int) -> dict[str, Any]:
        """Forecast for the console: public quantities only."""
        guess = self.entry.guess or None
        made = make_plan(self._main, n=n, epsilon=epsilon, delta=delta, guess=guess, ahead=True)
        return made.to_dict() | {"remedy": as_commands(made.remedy)}

    # -- what may be asked ----------------------------------------------------------------------------------------

    def check_terms(self, terms: Terms, most_chains: int) -> None:
        """Refuse noise below the floor, and more chains than the owner allows."""
        least = _least(terms.shares)
        self.check_sigma(terms.sigma * least)
        if terms.kernel == LANGEVIN:
            self.check_sigma(terms.proposal_sigma * least)
            _check_finite(terms.matrix)
            self._check_theta([terms.centre])
        if not 1 <= terms.chains <= most_chains:
            raise Refusal("bad-number", f"{terms.chains} chains")

    def check_sigma(self, sigma: float) -> None:
        """Refuse noise below the floor; NaN and infinity are no numbers."""
        if not np.isfinite(sigma):
            raise Refusal("bad-number", "sigma is not finite")
        if sigma < self.entry.sigma_floor:
            raise Refusal("sigma-too-small", f"sigma {sigma:.3g}, floor {self.entry.sigma_floor:.3g}")

    def check_question(self, question: Question) -> None:
        """Refuse parameters outside the declared support, and numbers that are none."""
        if isinstance(question, Statistic):
            return
        if isinstance(question, Release):
            self._check_theta([question.theta])
            _check_finite([*question.matrix, [question.radius, question.sigma]])
            if not question.radius > 0:
                raise Refusal("bad-number", "radius is not positive")
            least = _least(question.shares)
            self.check_sigma(
                question.sigma * least / question.radius
            )  # vectors are in units of their own: the ratio counts
        elif isinstance(question, Ratio):
            self._check_theta(question.theta)
            self._check_theta(question.theta_prop)
        elif isinstance(question, Linear):
            _check_finite(question.direction)
        elif isinstance(question, Remainder):
            self._check_theta(question.theta)
            self._check_theta(question.theta_prop)
            _check_finite(question.slope)

    def _check_theta(self, rows: list[list[float]]) -> None:
        bound = self.entry.theta_bound
        for row in rows:
            for x in row:
                if not -bound <= x <= bound:  # also refuses NaN
                    code = "outside-support" if abs(x) > bound and x - x == 0 else "bad-number"
                    raise Refusal(code, f"theta {x!r:.30} where the bound is {bound:g}")


def _least(shares: list[float]) -> float:
    """The smallest noise that any owner adds to a sealed sum, in units of all of it; one where it is not sealed."""
    if not shares:
        return 1.0
    _check_finite([shares])
    return float(max(min(shares), 0.0) ** 0.5)


def _check_finite(rows: list[list[float]]) -> None:
    for row in rows:
        for x in row:
            if x - x != 0:  # NaN and infinities
                raise Refusal("bad-number", "a number is not finite")


def load_studies(file: OwnerFile, prepare: Callable[[list[dict[str, Any]]], int]) -> dict[str, ApprovedStudy]:
    """Run the owner's model files and settle every study; `prepare` checks their columns and gives the number of records."""
    models = {name: load_model(entry.model, file.base) for name, entry in file.studies.items()}
    domain = file.domains()  # after the models: their files may define domains of their own
    found: dict[str, tuple[Any, dict[str, Any]]] = {}
    for name, entry in file.studies.items():
        model = models[name]
        wanted = entry.columns or (list(model.domain) if isinstance(model, Family) else list(domain))
        missing = [column for column in wanted if column not in domain]
        if missing:
            raise InvalidInput(f"study {name!r} is about {missing}, which [domain] does not declare; add them there.")
        found[name] = model, {column: domain[column] for column in wanted}
    n = prepare([part for _, part in found.values()])
    return {name: ApprovedStudy(name, file.studies[name], model, part, n) for name, (model, part) in found.items()}
