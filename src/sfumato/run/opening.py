"""Everyone who holds records of a run, opened: what they mean is compared before anyone spends."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sfumato.domain import Domain
from sfumato.errors import CheckpointError, InvalidInput
from sfumato.families.base import Family
from sfumato.owners.base import Access, Door
from sfumato.owners.bundle import check_distinct
from sfumato.owners.rounds import Rounds
from sfumato.owners.sealing import Sealing
from sfumato.protocol.questions import PROTOCOL, Facts
from sfumato.run.copies import CopiesAccess
from sfumato.run.journal import Journal
from sfumato.run.parties import TABLE, BundleParty, NodeParty, Party, TableParty
from sfumato.run.request import Request
from sfumato.run.terms import Terms
from sfumato.study.target import Study, make_study
from sfumato.tools.progress import Tick


class Seals(NamedTuple):
    """Keysets of a run whose sums are sealed: those it had, and how later ones are made durable."""

    known: list[str]
    remember: Callable[[list[str]], Any]


def seals_of(terms: Terms, kept: Journal | None) -> Seals | None:
    """Those of a run; None where its sums are not sealed."""
    if not terms.sealed:
        return None
    return Seals(terms.keysets, lambda all_: None if kept is None else kept.update_terms(keysets=all_))


@dataclass
class Opened:
    """Owners, their studies, and the way to ask them."""

    parties: list[Party]
    studies: list[Study]
    access: Access

    @property
    def study(self) -> Study:
        """The study that plans are made for: the first live owner's."""
        return self.studies[0]

    @property
    def live(self) -> list[int]:
        """Positions of those who answer live."""
        return [i for i, party in enumerate(self.parties) if party.live]

    @property
    def prepaid(self) -> bool:
        """Whether somebody answers by a bundle."""
        return len(self.live) < len(self.parties)

    @property
    def sealed(self) -> bool:
        """Whether the owners' sums are sealed."""
        return isinstance(self.access, Rounds) and self.access.sealing is not None

    @property
    def ahead(self) -> bool:
        """Whether somebody has to be waited for, so that a family's chain should ask for all it needs ahead.

        A second copy costs a little more than the scalar that it stands for, and a message saved in this process saves nothing.
        """
        return asks_ahead(self.parties)


def asks_ahead(parties: Sequence[Party]) -> bool:
    """Whether an owner has to be waited for."""
    return any(isinstance(party, NodeParty) for party in parties)


def make_studies(
    model: Any, parties: Sequence[Party], domain: Mapping[str, Domain] | None, request: Request
) -> list[Study]:
    """One study per owner; owners with the same domain share one. The first live owner's is the plan's."""
    bundles = [party.bundle for party in parties if isinstance(party, BundleParty)]
    if bundles:
        if not isinstance(model, Family):
            raise InvalidInput(f"bundles are sampled with the family they were released for, got {model!r}.")
        check_distinct(model, bundles)
        if len(bundles) == len(parties):
            return [make_study(model, None, "certify", request.kernel)] * len(parties)
    check_mix(request, parties)
    own = [
        None if isinstance(party, BundleParty) else party.study(model, domain, request.sensitivity, request.kernel)
        for party in parties
    ]
    _check_one_target(own)
    # Langevin around a reference point is for lists in which everybody answers for it.
    everybody = all(study.has_reference for study in own if study is not None)
    made: dict[str, Study] = {}

    def shared(study: Study) -> Study:
        kept = study if everybody else study.without_reference()
        return made.setdefault(domain_key(study) + study.model.fingerprint(), kept)

    found = [None if study is None else shared(study) for study in own]
    first = next(study for study in found if study is not None)
    # The plan is made for the first study in the list, so it must be a live owner's.
    return [first if study is None else study for study in found]


def _check_one_target(studies: Sequence[Study | None]) -> None:
    """Refuse owners whose domains give a density-power loss different weights: together they would make no stated target."""
    losses = [study.model.loss for study in studies if study is not None]
    if len(set(losses)) > 1:
        weights = sorted({loss.weight for loss in losses if loss is not None})
        raise InvalidInput(
            f"the owners' domains differ, and with them the weight of sf.robust ({', '.join(f'{w:g}' for w in weights)}); "
            f"all must have one: state it in the model, sf.robust(..., weight={weights[0]:g})."
        )


def domain_key(study: Study) -> str:
    """What tells domains apart."""
    return repr({name: column.to_dict() for name, column in study.domain.items()})


def check_mix(request: Request, parties: Sequence[Party]) -> None:
    """Refuse what bundles and owners who answer live cannot do together."""
    mixed = len({party.live for party in parties}) > 1
    if mixed and request.truncate is not None:
        raise InvalidInput("truncate= is for bundles alone or for owners who answer live, not for a mix; leave it out.")


def open_parties(
    stack: ExitStack, model: Any, parties: list[Party], studies: list[Study], *, run_id: str, chains: int,
    pilot_copies: Mapping[str, int], folder: Path | None, tick: Tick, shares: Sequence[float] | None = None,
    steps: int | None = None, seed: int = 0, seals: Seals | None = None,
) -> Opened:  # fmt: skip
    """Open all of them; what is held is let go of with the stack.

    Parameters
    ----------
    pilot_copies
        Copies of each bundle that the pilot averages, by owner.
    shares, steps
        Of a run that goes on: shares of the noise, and steps that it has taken.
    seed
        What the public noise that splits bundles' copies follows from.
    seals
        Of a run whose sums are sealed: its keysets so far.
    """
    resuming, first = steps is not None, parties[0]
    if isinstance(first, TableParty) and first.alone:
        access: Access = first.open_alone(studies[0], run_id, folder, resuming)
        stack.callback(access.close)
        _check_numbers(parties, access.facts)
        return Opened(parties, studies, access)
    doors: list[Door] = []
    for position, (party, study) in enumerate(zip(parties, studies, strict=True)):
        if isinstance(party, BundleParty):
            copies = pilot_copies.get(party.name, 0)
            doors.append(party.open(model, study, chains=chains, pilot_copies=copies, seed=seed, position=position))
        else:
            doors.append(party.open(study, run_id, folder, resuming, tick, seals is not None))
            stack.callback(doors[-1].close)
    facts = [door.facts for door in doors]
    check_agree(facts, studies[0])
    if not any(party.live for party in parties):
        bundles = [party.bundle for party in parties if isinstance(party, BundleParty)]
        return Opened(parties, studies, CopiesAccess(model, studies[0].model, bundles, facts, chains))
    _check_numbers(parties, facts)
    sealing = None if seals is None else Sealing(doors, seals.known, seals.remember)
    rounds = Rounds(studies[0].model, doors, run_id=run_id, shares=shares, step=steps or 0, sealing=sealing)
    stack.callback(rounds.close)
    return Opened(parties, studies, rounds)


def _check_numbers(parties: Sequence[Party], facts: Sequence[Facts]) -> None:
    """Refuse a table that has not as many records as was stated: a plan for another number, or another table."""
    for party, said in zip(parties, facts, strict=True):
        if isinstance(party, TableParty) and party.n is not None and party.n != said.n:
            whose = "the table" if party.name == TABLE else f"the table of {party.name!r}"
            raise InvalidInput(
                f"the number of records that was stated must be that of the table: n = {party.n:,}, and {whose} has "
                f"{said.n:,} records. Correct n, or the path of the table."
            )


def check_agree(facts: Sequence[Facts], study: Study) -> None:
    """Compare versions, models and the order of parameters before anyone spends.

    Raises
    ------
    InvalidInput
        Names the owner that differs, and in what.
    """
    mine = {"protocol": PROTOCOL, "model": study.model.fingerprint(), "coordinates": study.model.coordinate_names()}
    words = {
        "protocol": "speaks another version of the protocol",
        "model": "has another model (its fingerprint differs)",
        "coordinates": "has other parameters, or in another order",
    }
    for owner in facts:
        for field, wanted in mine.items():
            if getattr(owner, field) != wanted:
                raise InvalidInput(
                    f"all owners must mean the same thing before anyone spends, and {owner.name!r} {words[field]}: "
                    f"{getattr(owner, field)!r:.80}, not {wanted!r:.80}. Use the same sfumato and the same model everywhere."
                )
        if owner.n < 1 or not owner.mu > 0:
            raise InvalidInput(f"an owner needs records and a budget, and {owner.name!r} says it has none.")


def check_unchanged(opened: Opened, begun: Mapping[str, Any], anything_paid: bool) -> None:
    """Refuse owners who have other records, or answer for them in another way, than when the run was begun.

    A node whose account of this run is untouched although something was paid is refused too: another analyst's token, or a ledger
    that was made anew. With a whole cap of its own the statement would promise too much.
    """
    for number, facts in enumerate(opened.access.facts):
        then, now = begun[facts.name], facts.settled()
        if now["n"] != then["n"]:
            raise CheckpointError(
                f"these are not the records the run was started with: {facts.name!r} has {now['n']:,}, then it had "
                f"{then['n']:,}. Resume with the same tables, or start a new run."
            )
        if changed := [name for name in now if now[name] != then[name]]:
            told = "; ".join(f"{name} = {now[name]!r:.80}, then {then[name]!r:.80}" for name in changed)
            raise CheckpointError(
                f"a chain has one target and one way of bounding it, and {facts.name!r} now has {told}. Ask for what it was, or "
                "start a new run."
            )
        if anything_paid and isinstance(opened.parties[number], NodeParty) and opened.access.spent(number) <= 0:
            raise CheckpointError(
                f"a run goes on with the account that it paid from, and {facts.name!r} has nothing spent on this run under your "
                "token; connect as the analyst who began it, or start a new run."
            )
