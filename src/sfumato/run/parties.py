"""Who holds the records of a run: tables in this process (on Ray too), nodes, bundles. One is the same as several.

A party is an owner before it is opened: a name, a promise, how its records are read, and the study that is made of them. What it
is once it is open is an `Access` (`run.opening`).
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from sfumato.domain import Domain
from sfumato.errors import BudgetSpent, InvalidInput
from sfumato.families.base import Family
from sfumato.owners.base import AnsweringOwner, Door
from sfumato.owners.bundle import Bundle
from sfumato.owners.bundle_door import BundleDoor
from sfumato.owners.local import TableAccess, check_room, open_door, open_table
from sfumato.owners.owner import Owner
from sfumato.owners.sealed_bundle import gathered
from sfumato.planner import budget_mu
from sfumato.protocol.consortium import Seat
from sfumato.study.target import Study, make_study
from sfumato.tools.progress import Tick
from sfumato.vault.ledger import Ledger
from sfumato.vault.ray_table import RayTable

TABLE = "table"
"""What a table is called that was given as such: the only owner."""


@dataclass(frozen=True)
class TableParty:
    """Records in this process, or on the machines of its Ray cluster.

    `alone`: nobody else holds records of this run, and these are in this process: the chains are one compiled loop.
    """

    live: ClassVar[bool] = True
    owner: Owner
    epsilon: float
    delta: float
    alone: bool = False

    @property
    def name(self) -> str:
        """What the owner is called."""
        return self.owner.name

    @property
    def n(self) -> int | None:
        """Number of records, if it was told: nothing is opened to find out."""
        return self.owner.n

    @property
    def settings(self) -> dict[str, Any]:
        """How the records are read, and whether a ledger of the owner's guards them: a run goes on as it began."""
        owner = self.owner
        return {
            "outside": owner.outside, "precision": owner.precision, "own_ledger": owner.ledger is None,
            "columns": {k: raw if isinstance(raw, str) else list(raw) for k, raw in (owner.columns or {}).items()},
        }  # fmt: skip

    @property
    def analyst(self) -> str:
        """As whom the owner knows the one who asks: in this process, as nobody."""
        return ""

    def study(self, model: Any, domain: Mapping[str, Domain] | None, sensitivity: Any, kernel: str) -> Study:
        """The study of this owner's records."""
        own = self.owner.domain
        return make_study(model, own if own is not None else domain, sensitivity, kernel)

    def check_room(self) -> None:
        """Refuse a run for which the owner's ledger has too little left."""
        if self.owner.ledger is None:
            return
        try:
            check_room(self.owner.ledger, budget_mu(self.epsilon, self.delta), self.delta)
        except BudgetSpent as error:
            whose = "" if self.name == TABLE else f"owner {self.name!r}: "
            raise BudgetSpent(f"{whose}{error}", needed=error.needed, left=error.left, owner=self.name) from None

    def open_alone(self, study: Study, run_id: str, folder: Path | None, resuming: bool) -> TableAccess:
        """Open the records and the account, for chains that are one compiled loop."""
        return open_table(study, self.owner.data, **self._opening(run_id, folder, resuming))

    @property
    def seat(self) -> Seat | None:
        """The owner's place in a consortium, if it has one."""
        return None if self.owner.consortium is None else self.owner.consortium.seat

    def open(
        self, study: Study, run_id: str, folder: Path | None, resuming: bool, tick: Tick, sealed: bool = False
    ) -> Door:
        """Open the records and the account, for answers one round at a time."""
        consortium = self.owner.consortium if sealed else None
        own = None if folder is None else folder / f"ledger-everybody-{_file_name(self.name)}.sqlite"
        return open_door(
            study, self.owner.data, tick=tick, consortium=consortium, everybody_path=own,
            **self._opening(run_id, folder, resuming),
        )  # fmt: skip

    def _opening(self, run_id: str, folder: Path | None, resuming: bool) -> dict[str, Any]:
        owner = self.owner
        return {
            "name": owner.name, "epsilon": self.epsilon, "delta": self.delta, "mu": budget_mu(self.epsilon, self.delta),
            "run_id": run_id, "ledger": owner.ledger, "ledger_path": self._ledger_path(folder), "outside": owner.outside,
            "columns": owner.columns, "precision": owner.precision, "remembered": folder is not None, "resuming": resuming,
        }  # fmt: skip

    def _ledger_path(self, folder: Path | None) -> Any:
        """Where the run keeps a ledger of its own, if it keeps anything and the owner has none."""
        if folder is None or self.owner.ledger is not None:
            return None
        return folder / ("ledger.sqlite" if self.name == TABLE else f"ledger-{_file_name(self.name)}.sqlite")


@dataclass
class NodeParty:
    """A node, or any other owner who is asked over a line of its own."""

    live: ClassVar[bool] = True
    node: AnsweringOwner
    epsilon: float
    delta: float
    approved: str = ""
    n: int | None = None

    @property
    def name(self) -> str:
        """What the owner is called."""
        return self.node.name

    @property
    def settings(self) -> dict[str, Any]:
        """Nothing that the analyst chooses."""
        return {}

    @property
    def analyst(self) -> str:
        """As whom the node knows the one who asks: the run's account there is in that name."""
        return str(getattr(self.node, "analyst", ""))

    def study(self, model: Any, domain: Mapping[str, Domain] | None, sensitivity: Any, kernel: str) -> Study:
        """The study that the node has approved for this model."""
        self.approved, found, self.n = self.node.study(model, domain, sensitivity, kernel)
        return found

    def check_room(self) -> None:
        """The node refuses a run that it has no budget for."""

    @property
    def seat(self) -> Seat | None:
        """The node's place in a consortium, if it has one."""
        return getattr(self.node, "seat", None)

    def open(
        self, study: Study, run_id: str, folder: Path | None, resuming: bool, tick: Tick, sealed: bool = False
    ) -> Door:
        """Open the run there."""
        how = {"sealed": True} if sealed else {}
        fingerprint = study.model.fingerprint()
        return self.node.door(self.approved, fingerprint, epsilon=self.epsilon, delta=self.delta, run_id=run_id, **how)


@dataclass(frozen=True)
class BundleParty:
    """A bundle: its answers are paid for."""

    live: ClassVar[bool] = False
    bundle: Bundle

    @property
    def name(self) -> str:
        """What the owner is called."""
        return f"bundle {self.bundle.id}"

    @property
    def n(self) -> int:
        """Number of records."""
        return self.bundle.n

    @property
    def seat(self) -> Seat | None:
        """Nobody is asked."""
        return None

    @property
    def settings(self) -> dict[str, Any]:
        """All settled when it was released."""
        return {}

    @property
    def analyst(self) -> str:
        """Nobody is asked."""
        return ""

    def pilot_copies(self, share: float) -> int:
        """Copies that the pilot averages."""
        return max(1, int(self.bundle.left * share)) if share > 0 else 0

    def open(
        self, family: Family, study: Study, *, chains: int, pilot_copies: int, seed: int, position: int
    ) -> BundleDoor:
        """A door whose answers are the bundle's copies; the public noise that splits them follows from seed and position."""
        return BundleDoor(
            self.bundle, family, study.model, name=self.name, chains=chains, pilot_copies=pilot_copies, seed=seed,
            position=position,
        )  # fmt: skip


LiveParty: TypeAlias = TableParty | NodeParty
Party: TypeAlias = LiveParty | BundleParty


@dataclass(frozen=True, kw_only=True)
class Given:
    """What `sfumato.sample` was given about the owner of a single table; each of several owners has its own.

    `promises`: what a run that goes on was begun under, by owner; they stand in for epsilon and delta that are not given again.
    """

    epsilon: float | None = None
    delta: float | None = None
    n: int | None = None
    ledger: Ledger | None = None
    outside: str = "refuse"
    columns: Any = None
    precision: str = "float64"
    promises: Mapping[str, tuple[float, float]] | None = None

    def promise(self, name: str, own: tuple[float | None, float | None] = (None, None)) -> tuple[float, float]:
        """Epsilon and delta of an owner: its own, those of the run that goes on, or those given for all."""
        known = (self.promises or {}).get(name, (self.epsilon, self.delta))
        epsilon, delta = own if own[0] is not None else known
        if epsilon is None or delta is None:
            whose = "" if name == TABLE else f" for owner {name!r}, there or in sf.sample"
            reason = "the owner chooses the guarantee, there is no default" if name == TABLE else "there is no default"
            raise InvalidInput(f"epsilon and delta must be given{whose}: {reason}.")
        budget_mu(epsilon, delta)
        return float(epsilon), float(delta)

    def refuse_with_owners(self) -> None:
        """Refuse what is each owner's own to say."""
        if self.ledger is not None:
            raise InvalidInput("each owner has its own ledger; pass ledger= to sf.Owner, not to sf.sample.")
        if self.outside != "refuse" or self.columns or self.precision != "float64":
            raise InvalidInput("outside=, columns= and precision= are each owner's own; pass them to sf.Owner.")
        if self.n is not None:
            raise InvalidInput("n is each owner's own; pass it to sf.Owner, or leave it out.")

    def refuse_with_bundles(self) -> None:
        """Refuse what was settled when bundles were released."""
        given = {"epsilon": self.epsilon, "delta": self.delta, "n": self.n, "ledger": self.ledger}
        if stated := [name for name, value in given.items() if value is not None]:
            raise InvalidInput(
                f"a bundle's records and budget were settled when it was released; leave out {', '.join(stated)}."
            )


def as_parties(data: Any, given: Given) -> list[Party]:
    """Whatever `sfumato.sample` takes, as a list of parties."""
    if not is_list_of_owners(data):
        on_ray = isinstance(data, RayTable)
        owner = Owner(
            data, name=TABLE, outside=given.outside, ledger=given.ledger, columns=given.columns, precision=given.precision,
            n=given.n,
        )  # fmt: skip
        return [TableParty(owner, *given.promise(TABLE), alone=not on_ray)]
    items = list(data) if isinstance(data, list | tuple) else [data]
    if not items:
        raise InvalidInput("a run needs at least one owner, got an empty list.")
    bundles = [item for item in items if isinstance(item, Bundle)]
    if len(bundles) == len(items):
        given.refuse_with_bundles()
        items = gathered(bundles)
    else:
        given.refuse_with_owners()
    if len(bundles) < len(items) and any(bundle.sealed is not None for bundle in bundles):
        raise InvalidInput("sealed bundles only add up among themselves; leave the owners who answer live out.")
    parties = [_party(item, given) for item in items]
    if len(parties) == 1 and isinstance(parties[0], TableParty):
        parties = [replace(parties[0], alone=not isinstance(parties[0].owner.data, RayTable))]
    names = [party.name for party in parties if party.live]
    if len(set(names)) < len(names):
        raise InvalidInput(f"every owner needs a name of its own, got {', '.join(sorted(names))}.")
    return parties


def _party(item: Any, given: Given) -> Party:
    if isinstance(item, Bundle):
        return BundleParty(item)
    if isinstance(item, Owner):
        promise = given.promise(item.name, (item.epsilon, item.delta))
        return NodeParty(item.data, *promise) if _answers(item.data) else TableParty(item, *promise)
    if _answers(item):
        return NodeParty(item, *given.promise(item.name))
    raise InvalidInput(
        f"a list of owners holds sf.Owner, what sf.connect gives, or bundles, got {type(item).__name__}; wrap a table as "
        "sf.Owner(table, name=...)."
    )


def seated(parties: list[Party], sealed: bool | None) -> tuple[list[Party], bool]:
    """Whether a run is sealed, and if so its owners in the roster's order.

    Parameters
    ----------
    sealed
        What the analyst asks for; None: sealed where all owners have one roster and are all of it.

    Raises
    ------
    InvalidInput
        It cannot be sealed as asked; or an owner that answers sealed sums alone would be asked for something else.
    """
    seats = [party.seat for party in parties]
    why = _why_unsealed(parties, seats)
    if sealed and why:
        raise InvalidInput(f"{why} Leave sealed=True out, or ask the members of one consortium, all of them.")
    if sealed is not False and not why:
        order = sorted(range(len(parties)), key=lambda i: seats[i].position)  # type: ignore[union-attr]
        return [parties[i] for i in order], True
    for party, seat in zip(parties, seats, strict=True):
        if seat is not None and not seat.unsealed:
            raise InvalidInput(
                f"{party.name!r} answers sealed sums alone, with all members of {seat.consortium!r}: {', '.join(seat.members)}. "
                f"{why or 'Leave sealed=False out.'}"
            )
    return parties, False


def _why_unsealed(parties: Sequence[Party], seats: Sequence[Seat | None]) -> str:
    """Why a run of these owners cannot be sealed; nothing where it can."""
    lacking = [party.name for party, seat in zip(parties, seats, strict=True) if seat is None]
    known = [seat for seat in seats if seat is not None]
    if lacking or not known:
        return f"A run is sealed by members of one consortium who answer live, and {', '.join(lacking)} has no seat in one."
    if len({seat.roster for seat in known}) > 1:
        return "All members must have the same roster, to the letter, and these owners have different ones."
    missing = sorted({*known[0].members} - {party.name for party in parties})
    if missing or len(parties) != len(known[0].members) or len({seat.position for seat in known}) < len(known):
        return f"A sum opens with all members of {known[0].consortium!r}, and {', '.join(missing) or 'one'} is missing."
    return ""


def is_list_of_owners(data: Any) -> bool:
    """Whether owners were given, one or several, and not a table."""
    return isinstance(data, list | tuple | Owner | Bundle) or _answers(data)


def _answers(item: Any) -> bool:
    """Whether this is an `AnsweringOwner`."""
    return not isinstance(item, Owner) and hasattr(item, "door") and hasattr(item, "study")


def _file_name(name: str) -> str:
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in name)
    return f"{kept[:40]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
