"""The terms of a run, as they are written down: what a run that goes on must share with the one that was begun.

The ledgers enforce what may be spent. This is about what would be said: a chain whose first half was clipped and whose second
half was proven is not exact, whatever the second half's statement says.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from sfumato.bounds import Range
from sfumato.domain import Domain, from_dict
from sfumato.errors import CheckpointError, InvalidInput
from sfumato.planner import budget_mu
from sfumato.run.parties import TABLE, Party
from sfumato.run.request import Request
from sfumato.study.target import Study, computed, computes_alike


class OwnerTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What a run settled with one owner.

    Attributes
    ----------
    promise
        Epsilon, delta and mu; None for a bundle, whose promise was kept before.
    settings
        How records in this process are read, and whether a ledger of the owner's guards them.
    analyst
        As whom a node knows the one who asks.
    pilot_copies
        Copies of a bundle that the pilot averages.
    facts
        What the owner said of itself: no other answers may follow.
    """

    name: str
    promise: tuple[float, float, float] | None = None
    settings: dict[str, Any] = {}
    analyst: str = ""
    pilot_copies: int = 0
    facts: dict[str, Any] = {}


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """All terms of a run. Those with a default are settled on the way.

    Attributes
    ----------
    model, model_name, computes
        Fingerprint of the model, where it was defined, and numbers that tell one program from another.
    limit
        Steps per chain at the most.
    share
        Share of the budget for the pilot, if it was asked for.
    first_plan, pilots, shares
        The plan before the pilot, the pilots to run (`run.piloting`), each owner's share of the noise.
    plan, pilot
        The plan after the pilot, and what the pilot found.
    estimate
        Whether the pilot spends everything and there are no chains (`run.estimating`); `limit` are then draws.
    sealed, keysets
        Whether the owners' sums are sealed, and the keysets they had, oldest first.
    """

    run_id: str
    seed: int
    chains: int
    kernel: str
    limit: int
    model: str
    model_name: tuple[str, str]
    computes: list[float | None]
    domain: dict[str, Any] | None
    sensitivity: str
    owners: list[OwnerTerms]
    share: float | None = None
    force: bool = False
    first_plan: dict[str, Any] | None = None
    pilots: list[dict[str, Any]] = []
    shares: list[float] = []
    plan: dict[str, Any] | None = None
    pilot: dict[str, Any] | None = None
    estimate: bool = False
    sealed: bool = False
    keysets: list[str] = []

    @property
    def promises(self) -> dict[str, tuple[float, float]]:
        """Epsilon and delta that were promised, by owner."""
        return {owner.name: owner.promise[:2] for owner in self.owners if owner.promise is not None}

    @property
    def facts(self) -> dict[str, dict[str, Any]]:
        """What each owner said of itself."""
        return {owner.name: owner.facts for owner in self.owners}

    @property
    def pilot_copies(self) -> dict[str, int]:
        """Copies that the pilot averages, by owner."""
        return {owner.name: owner.pilot_copies for owner in self.owners}

    @property
    def alone(self) -> bool:
        """Whether the records were given as one table."""
        return [owner.name for owner in self.owners] == [TABLE]

    @property
    def stated_domain(self) -> dict[str, Domain] | None:
        """The domain that was given when the run was begun."""
        return None if self.domain is None else {name: from_dict(spec) for name, spec in self.domain.items()}

    def with_facts(self, facts: Sequence[Any]) -> "Terms":
        """The same with what owners said of themselves when they were opened."""
        told = zip(self.owners, facts, strict=True)
        return msgspec.structs.replace(
            self, owners=[msgspec.structs.replace(owner, facts=said.settled()) for owner, said in told]
        )

    # -- going on -----------------------------------------------------------------------------------------------------

    def check_goes_on(self, where: Any, sensitivity: Any) -> None:
        """Refuse to go on with a run that never began, that promises what its cap does not, or under another sensitivity.

        Raises
        ------
        CheckpointError
            There is nothing to go on with, or the terms were edited.
        InvalidInput
            The sensitivity is another one.
        """
        if self.plan is None and self.first_plan is None:
            raise CheckpointError(
                f"{where} stopped before its run had a plan: there is nothing to go on with, and nothing was spent. Start a "
                "new run in another folder."
            )
        for owner in self.owners:
            if owner.promise is not None:
                _check_promise(*owner.promise, where)
        if (now := method(sensitivity)) != self.sensitivity:
            raise InvalidInput(
                f"a run must be resumed with the sensitivity it was started with, {self.sensitivity}, and this one is {now}; "
                "pass the same sensitivity=."
            )

    def check_parties(self, parties: Sequence[Party]) -> None:
        """Refuse other owners, in another order, under another promise, or read in another way."""
        names, begun = [party.name for party in parties], [owner.name for owner in self.owners]
        if names != begun:
            raise CheckpointError(
                f"a run goes on with the owners it was started with, {', '.join(begun)}, in that order; got {', '.join(names)}."
            )
        for party, owner in zip(parties, self.owners, strict=True):
            _check_party(party, owner)

    def check_model(self, study: Study) -> None:
        """Refuse another model than the run was begun with."""
        if study.model.fingerprint() != self.model:
            raise CheckpointError("the model is not the one the run was started with; pass the same model=.")

    def check_computes(self, study: Study) -> None:
        """Refuse a model of the same text that computes something else, on the domain that the run was begun with."""
        if not computes_alike(study, self.computes):
            raise CheckpointError(
                "the model is written as the one the run was started with, and computes something else: a variable outside of "
                "the function has changed (a prior's scale, a constant?). Set it as it was, or start a new run."
            )


def make_terms(
    model: Any, study: Study, parties: Sequence[Party], domain: Mapping[str, Domain] | None, request: Request, *,
    run_id: str, seed: int, kernel: str, limit: int, pilot_copies: Mapping[str, int], durable: bool, sealed: bool = False,
) -> Terms:  # fmt: skip
    """The terms of a new run; what its model computes is noted only where it is `durable`."""
    owners = [
        OwnerTerms(
            name=party.name, promise=_promise(party), settings=party.settings, analyst=party.analyst,
            pilot_copies=pilot_copies.get(party.name, 0),
        )
        for party in parties
    ]  # fmt: skip
    alone = [party.name for party in parties] == [TABLE]
    stated = study.domain if alone else domain  # a family's own
    return Terms(
        run_id=run_id,
        seed=seed,
        chains=request.chains,
        kernel=kernel,
        limit=limit,
        model=study.model.fingerprint(),
        model_name=(getattr(model, "__module__", ""), getattr(model, "__qualname__", "")),
        computes=computed(study) if durable else [],
        domain=None if stated is None else {name: column.to_dict() for name, column in stated.items()},
        sensitivity=method(request.sensitivity),
        owners=owners,
        share=request.pilot_share,
        force=request.force,
        sealed=sealed,
    )


def find_model(terms: Terms) -> Any:
    """Import the model by the name it was defined under."""
    import importlib

    module, name = terms.model_name
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        called = f"the model {module}.{name}" if name else "a model that is no plain function (a family, say)"
        raise InvalidInput(f"{called} cannot be found by name; pass the same one as model=.") from None


def method(sensitivity: Any) -> str:
    """How the sensitivity is known, as a run's terms record it (of a user's own function, that it is one)."""
    if isinstance(sensitivity, str):
        return sensitivity
    return type(sensitivity).__name__ if isinstance(sensitivity, Range) else repr(sensitivity)


def _promise(party: Party) -> tuple[float, float, float] | None:
    """Epsilon, delta and mu of an owner who answers live."""
    if not party.live:
        return None
    epsilon, delta = party.epsilon, party.delta  # type: ignore[union-attr]
    return epsilon, delta, budget_mu(epsilon, delta)


def _check_party(party: Party, owner: OwnerTerms) -> None:
    now = _promise(party)
    if now is not None and owner.promise is not None and now[:2] != owner.promise[:2]:
        # Also one of the same mu: its statement would be another.
        raise CheckpointError(
            f"a run goes on under the promise it was started with, and {party.name!r} promised {owner.promise[:2]}, not "
            f"{now[:2]} (epsilon, delta); give the same."
        )
    if party.settings != owner.settings:
        raise InvalidInput(
            "a run must be resumed with the ledger it was started with: pass ledger= as then."
            if party.name == TABLE
            else f"a run goes on with the ledger and the settings it was started with, and those of {party.name!r} differ: pass "
            "the same ledger=, outside=, columns= and precision=."
        )
    if party.analyst != owner.analyst:  # it would have a whole cap of its own there
        raise CheckpointError(
            f"a run goes on as the analyst who began it, and {party.name!r} knew them as {owner.analyst!r}; your token is that "
            f"of {party.analyst!r}. Connect with theirs, or start a new run."
        )


def _check_promise(epsilon: float, delta: float, stated: float, where: Any) -> None:
    """Refuse terms whose epsilon and delta are not those of the cap: the statement would promise what nobody enforces."""
    mu = budget_mu(epsilon, delta)
    if not np.isclose(mu, stated, rtol=1e-9, atol=0):
        raise CheckpointError(
            f"the epsilon and delta of a run are those of its cap, and {where / 'run.json'} promises "
            f"({epsilon:g}, {delta:g}), mu = {mu:.6g}, for a cap of mu = {stated:.6g}: it was edited. Restore it from a backup."
        )


def read_terms(written: dict[str, Any], where: Any) -> Terms:
    """Terms from plain values."""
    try:
        return msgspec.convert(written, Terms)
    except msgspec.ValidationError:
        raise CheckpointError(
            f"{where} was begun with another version of sfumato; go on with that one, or start a new run. The ledger still knows "
            "what was spent."
        ) from None
