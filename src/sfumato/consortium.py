"""Algorithm 2: several owners infer one theta together, each private against all the others and the analyst.

Every owner adds its own noise to its own answer and keeps its own account; the answers add up, the penalty is half the sum of
the variances (`access/rounds.py`). Before anyone spends, versions, fingerprints and the order of parameters are compared.

References
----------
Yıldırım 2016, Section 3.3, Algorithm 2.
"""

import hashlib
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from sfumato import sampler
from sfumato.access.base import Door
from sfumato.access.bundle import BundleDoor
from sfumato.access.local import check_room, open_door
from sfumato.access.questions import PROTOCOL, Facts
from sfumato.access.rounds import Rounds
from sfumato.begun import check_computes, check_goes_on, check_model, common_terms, find_model, promises, stated_domain
from sfumato.bundle import Bundle
from sfumato.checkpoint import Checkpoint
from sfumato.domain import Domain
from sfumato.errors import BudgetSpent, CheckpointError, InvalidInput, OwnerError
from sfumato.families.base import Family
from sfumato.haste import hastily
from sfumato.kernel import Langevin, PublicStream, State
from sfumato.noise_aware import check_distinct
from sfumato.owner import Owner
from sfumato.piloting import Again, find_start, first_pilot, refuse_unless_arrived
from sfumato.pilotlog import PilotLog
from sfumato.planner import Plan, budget_mu, lattice_slack, make_plan, replan, truncated
from sfumato.planner.owners import Copies, choose_beside_copies, relative_widths, share_out
from sfumato.planner.plan import MAX_FAMILY_ITERATIONS, MAX_ITERATIONS, pilot_fraction
from sfumato.privacy.budget import QUANTA_PER_UNIT
from sfumato.privacy.joint import JointStatement, join
from sfumato.privacy.statement import Statement
from sfumato.progress import Tick, ticker
from sfumato.raytable import RayTable
from sfumato.run import Run, StopReason
from sfumato.study import Study, computed, make_study
from sfumato.underway import under_way
from sfumato.vault.ledger import Ledger

TABLE = "table"
"""What a table in shards is called where it is the only owner."""
ASKED_AHEAD = 0.8
"""Share of the planned steps whose statistics Langevin asks for ahead: the budget may end a little before the plan does."""


@dataclass(frozen=True)
class Wishes:
    """What the analyst asks of a run; see `sfumato.sample`."""

    kernel: str = "auto"
    sensitivity: Any = "certify"
    chains: int = 4
    seed: int | None = None
    guess: Mapping[str, Any] | None = None
    example: Mapping[str, Any] | None = None
    iterations: int | None = None
    pilot_share: float | None = None
    truncate: float | None = None
    force: bool = False


# -- the owners -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Local:
    """Records in this process."""

    owner: Owner
    epsilon: float
    delta: float

    @property
    def name(self) -> str:
        """What the owner is called."""
        return self.owner.name

    @property
    def n(self) -> int | None:
        """Number of records, if it was told: nothing is opened to find out."""
        return self.owner.n

    def settings(self) -> dict[str, Any]:
        """How the records are read, and whether a ledger of the owner's guards them: a run goes on as it began."""
        owner = self.owner
        return {
            "outside": owner.outside, "precision": owner.precision, "own_ledger": owner.ledger is None,
            "columns": {k: raw if isinstance(raw, str) else list(raw) for k, raw in (owner.columns or {}).items()},
        }  # fmt: skip

    def study(self, model: Any, domain: Mapping[str, Domain] | None, sensitivity: Any, kernel: str) -> Study:
        """The study of this owner's records."""
        own = self.owner.domain
        return make_study(model, own if own is not None else domain, sensitivity, kernel)

    def open(self, study: Study, run_id: str, kept: Checkpoint | None, resuming: bool, tick: Tick) -> Door:
        """Open the records and the account."""
        owner = self.owner
        own = kept is not None and owner.ledger is None
        if owner.ledger is not None and not resuming:
            _check_room(owner.name, owner.ledger, self.epsilon, self.delta)
        door = open_door(
            study, owner.data, name=owner.name, epsilon=self.epsilon, delta=self.delta,
            mu=budget_mu(self.epsilon, self.delta), run_id=run_id, ledger=owner.ledger,
            ledger_path=kept.folder / f"ledger-{_file_name(owner.name)}.sqlite" if kept is not None and own else None,
            outside=owner.outside, columns=owner.columns, precision=owner.precision, remembered=kept is not None,
            resuming=resuming, tick=tick,
        )  # fmt: skip
        try:
            sampler.check_number(owner.n, door.facts.n, f"the table of {owner.name!r}")
        except InvalidInput:
            door.close()
            raise
        return door


@dataclass
class Remote:
    """A node: what `sfumato.connect` gives."""

    node: Any
    epsilon: float
    delta: float
    approved: str = ""
    n: int | None = None

    @property
    def name(self) -> str:
        """What the owner is called."""
        return str(self.node.name)

    def study(self, model: Any, domain: Mapping[str, Domain] | None, sensitivity: Any, kernel: str) -> Study:
        """The study that the node has approved for this model."""
        self.approved, found, self.n = self.node.study(model, domain, sensitivity, kernel)
        return cast(Study, found)

    def open(self, study: Study, run_id: str, kept: Checkpoint | None, resuming: bool, tick: Tick) -> Door:
        """Open the run there."""
        fingerprint = study.model.fingerprint()
        door = self.node.door(self.approved, fingerprint, epsilon=self.epsilon, delta=self.delta, run_id=run_id)
        return cast(Door, door)


def as_owners(
    data: Any,
    epsilon: float | None,
    delta: float | None,
    ledger: Ledger | None = None,
    outside: str = "refuse",
    columns: Any = None,
    precision: str = "float64",
    promises: Mapping[str, tuple[float, float]] | None = None,
) -> list[Local | Remote | Bundle] | None:
    """Owners, if that is what the data are: one, or a list with at least one who answers live."""
    if isinstance(data, RayTable):
        data = Owner(data, name=TABLE, outside=outside, ledger=ledger, columns=columns, precision=precision)
        return [Local(data, *_promised(TABLE, *(promises or {}).get(TABLE, (epsilon, delta))))]
    items = list(data) if isinstance(data, list | tuple) else [data]
    if not any(_is_live(item) for item in items):
        return None
    if ledger is not None:
        raise InvalidInput("each owner has its own ledger; pass ledger= to sf.Owner, not to sf.sample.")
    if outside != "refuse" or columns or precision != "float64":
        raise InvalidInput("outside=, columns= and precision= are each owner's own; pass them to sf.Owner.")
    parties: list[Local | Remote | Bundle] = []
    known = promises or {}
    for item in items:
        if isinstance(item, Bundle):
            parties.append(item)
        elif isinstance(item, Owner):
            promise = (item.epsilon, item.delta) if item.epsilon is not None else known.get(item.name, (epsilon, delta))
            stated = _promised(item.name, *promise)
            parties.append(Remote(item.data, *stated) if _is_node(item.data) else Local(item, *stated))
        elif _is_node(item):
            parties.append(Remote(item, *_promised(item.name, *known.get(item.name, (epsilon, delta)))))
        else:
            raise InvalidInput(
                f"a list of owners holds sf.Owner, what sf.connect gives, or bundles, got {type(item).__name__}; wrap a table "
                "as sf.Owner(table, name=...)."
            )
    names = [party_name(party) for party in parties]
    if len(set(names)) < len(names):
        raise InvalidInput(f"every owner needs a name of its own, got {', '.join(sorted(names))}.")
    return parties


def party_name(party: Local | Remote | Bundle) -> str:
    """What an owner is called."""
    return f"bundle {party.id}" if isinstance(party, Bundle) else party.name


def _is_node(item: Any) -> bool:
    return not isinstance(item, Owner) and hasattr(item, "door") and hasattr(item, "study")


def _is_live(item: Any) -> bool:
    return isinstance(item, Owner) or _is_node(item)


def _promised(name: str, epsilon: float | None, delta: float | None) -> tuple[float, float]:
    if epsilon is None or delta is None:
        raise InvalidInput(
            f"epsilon and delta must be given for owner {name!r}, there or in sf.sample: there is no default."
        )
    budget_mu(epsilon, delta)
    return float(epsilon), float(delta)


def _check_room(name: str, ledger: Ledger, epsilon: float, delta: float) -> None:
    try:
        check_room(ledger, budget_mu(epsilon, delta), delta)
    except BudgetSpent as error:
        raise BudgetSpent(f"owner {name!r}: {error}", needed=error.needed, left=error.left, owner=name) from None


def _file_name(name: str) -> str:
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in name)
    return f"{kept[:40]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


# -- a run ------------------------------------------------------------------------------------------------------------


@dataclass
class Table:
    """Everyone round the table: owners, their studies, their doors."""

    parties: list[Local | Remote | Bundle]
    studies: list[Study]
    rounds: Rounds

    @property
    def live(self) -> list[int]:
        """Positions of those who answer live."""
        return [i for i, party in enumerate(self.parties) if not isinstance(party, Bundle)]

    def budgets(self) -> list[float]:
        """Mu squared that each live owner has left."""
        doors = self.rounds.doors
        return [max(min(doors[i].left, doors[i].facts.cap), 1) / QUANTA_PER_UNIT for i in self.live]


def sample_owners(
    model: Any,
    parties: list[Local | Remote | Bundle],
    domain: Mapping[str, Domain] | None,
    wishes: Wishes,
    *,
    checkpoint: str | Path | None = None,
    progress: bool | Tick | None = None,
) -> Run:
    """Run Algorithm 2: what `sfumato.sample` does with owners."""
    kernel = _kernel_for(truncated.check(wishes.truncate, wishes.kernel), parties)
    if wishes.truncate is not None and any(isinstance(party, Bundle) for party in parties):
        raise InvalidInput("truncate= is for bundles alone or for owners who answer live, not for a mix; leave it out.")
    studies = _studies(model, parties, domain, wishes.sensitivity, kernel)
    study = studies[0]
    stream = PublicStream(wishes.seed, wishes.chains)
    run_id = secrets.token_hex(8)
    limit = _limit(study, wishes)
    share = pilot_fraction(study, wishes.pilot_share)
    kept = Checkpoint(checkpoint) if checkpoint is not None else None
    terms: dict[str, Any] = {
        "run_id": run_id,
        "seed": stream.seed,
        "chains": wishes.chains,
        "kernel": kernel,
        "limit": limit,
    }
    terms |= common_terms(model, study, domain, wishes.sensitivity)
    terms["bundles"] = _bundle_terms(parties, share)
    terms["promises"] = _promises(parties)
    terms["tables"] = {p.name: p.settings() for p in parties if isinstance(p, Local)}
    terms["analysts"] = _analysts(parties)
    with under_way(kept), ExitStack() as refused, ExitStack() as stack, ticker(progress) as tick:
        if kept is not None:
            kept.create(terms | {"owners": [party_name(party) for party in parties], "computes": computed(study)})
            refused.callback(kept.abandon)
        doors = [_open(stack, i, parties, studies, model, terms, kept, tick) for i in range(len(parties))]
        check_agree([door.facts for door in doors], study)
        terms["facts"] = {door.name: door.facts.settled() for door in doors}
        table = Table(parties, studies, Rounds(study.model, doors, run_id=run_id))
        stack.callback(table.rounds.close)
        plan = _first_plan(table, wishes, kernel, limit, share)
        if not wishes.force:
            plan.refuse_if_weak()
        terms |= {"force": wishes.force, "share": share, "pilots": first_pilot(share, wishes.pilot_share)}
        if kept is not None:
            settled = {name: terms[name] for name in ("facts", "force", "share", "pilots")}
            kept.update_terms(first_plan=sampler._plan_terms(plan), shares=table.rounds.shares, **settled)
        refused.pop_all()  # from here on something may be spent: the checkpoint stays
        plan, pilot = _pilot(table, plan, terms, kept, tick)
        chain = sampler._start(study, plan, stream, pilot)
        _bring_inside(chain, table.rounds.theta_bound)
        return _finish(chain, table, terms, kept, tick)


def plan_owners(
    model: Any, parties: list[Local | Remote | Bundle], domain: Mapping[str, Domain] | None, wishes: Wishes
) -> Plan:
    """Plan a run over owners: what `sfumato.plan` does with them. Spends nothing and opens no table."""
    live = [party for party in parties if not isinstance(party, Bundle)]
    if len(live) < len(parties):
        raise InvalidInput(
            "a plan is made for owners who answer live, and there are bundles in the list; leave them out. (sf.sample plans "
            "with them before anyone spends.)"
        )
    kernel = truncated.check(wishes.truncate, wishes.kernel)
    studies = _studies(model, parties, domain, wishes.sensitivity, kernel)
    sizes = [_size(party) for party in live]
    mus = [budget_mu(party.epsilon, party.delta) for party in live]
    shares, mu = share_out([mu**2 for mu in mus], [1.0] * len(mus))
    plan = make_plan(
        studies[0], n=sum(sizes), epsilon=max(p.epsilon for p in live), delta=max(p.delta for p in live), mu=mu,
        kernel=kernel, chains=wishes.chains, guess=wishes.guess, example=wishes.example,
        max_iterations=_limit(studies[0], wishes), pilot_share=wishes.pilot_share, truncate=wishes.truncate,
        ahead=_ahead(parties),
    )  # fmt: skip
    facts = zip(live, sizes, mus, shares, strict=True)
    return replace(
        plan,
        owners=tuple(
            {"name": party.name, "n": n, "epsilon": party.epsilon, "delta": party.delta, "mu": mu, "share": share}
            for party, n, mu, share in facts
        ),
    )


def _ahead(parties: Sequence[Local | Remote | Bundle]) -> bool:
    """Whether somebody has to be waited for, so that a family's chain should ask for all it needs ahead.

    A second copy costs a little more than the scalar that it stands for, and a message saved in this process saves nothing.
    """
    return any(isinstance(party, Remote) for party in parties)


def _limit(study: Study, wishes: Wishes) -> int:
    """Steps per chain at the most."""
    # An owner's desk passes over its records for every step of a walk, also on a family.
    most = MAX_FAMILY_ITERATIONS if study.natural else MAX_ITERATIONS
    return most if wishes.iterations is None else wishes.iterations


def _size(party: Local | Remote) -> int:
    if party.n is None:
        raise InvalidInput(
            f"a plan opens no table and needs the number of records of {party.name!r}; state it: sf.Owner(..., n=...), or n in "
            "its [[owners]] of a study file."
        )
    return party.n


def resume_owners(
    kept: Checkpoint,
    terms: dict[str, Any],
    model: Any,
    data: Any,
    *,
    sensitivity: Any,
    ledger: Ledger | None,
    again: Again,
    progress: bool | Tick | None,
) -> Run:
    """Go on with a run over owners: what `sfumato.resume` does with them."""
    check_goes_on(terms, kept, sensitivity)
    settings = dict(terms["tables"].get(TABLE, {})) if isinstance(data, RayTable) else {}
    settings.pop("own_ledger", None)
    promised = {name: (epsilon, delta) for name, (epsilon, delta, _) in promises(terms).items()}
    found = as_owners(data, None, None, ledger, promises=promised, **settings)
    if found is None:
        raise InvalidInput("this run was started over owners; pass the same list of them.")
    names = [party_name(party) for party in found]
    if names != terms["owners"]:
        raise CheckpointError(
            f"a run goes on with the owners it was started with, {', '.join(terms['owners'])}, in that order; got "
            f"{', '.join(names)}."
        )
    for party in found:
        if isinstance(party, Local) and party.settings() != terms["tables"][party.name]:
            raise InvalidInput(
                f"a run goes on with the ledger and the settings it was started with, and those of {party.name!r} differ: pass "
                "the same ledger=, outside=, columns= and precision=."
            )
    _check_promises(found, promised)
    _check_analysts(found, terms)
    model = model if model is not None else find_model(terms)
    studies = _studies(model, found, stated_domain(terms), sensitivity, terms["kernel"])
    study = studies[0]
    check_model(terms, study)
    stream = PublicStream(terms["seed"], terms["chains"])
    with ExitStack() as stack, ticker(progress) as tick:
        steps = sum(len(saved.transcript["accepted"]) for saved in kept.read())
        doors = [_open(stack, i, found, studies, model, terms, kept, tick, steps) for i in range(len(found))]
        check_agree([door.facts for door in doors], study)
        _check_facts(doors, terms["facts"])
        check_computes(terms, study)
        rounds = Rounds(study.model, doors, run_id=terms["run_id"], shares=terms["shares"], step=steps)
        stack.callback(rounds.close)
        table = Table(found, studies, rounds)
        answered = terms["pilot"]["releases"] if "plan" in terms else [e for e in kept.releases() if e["answer"]]
        if steps or answered:
            _check_paid([door for party, door in zip(found, doors, strict=True) if isinstance(party, Remote)])
        if "plan" in terms:
            plan, pilot = sampler._plan_from(terms["plan"]), terms["pilot"]
        else:  # it was stopped in its pilot
            terms |= {"pilots": again.pilots(study, terms, kept)}
            plan, pilot = _pilot(table, sampler._plan_from(terms["first_plan"]), terms, kept, tick)
        chain = sampler._start(study, plan, stream, pilot)
        for saved in kept.read():
            sampler.take_up(chain, saved)
        sampler.refuse_weak_start(chain, terms)
        if not chain.steps:
            _bring_inside(chain, rounds.theta_bound)
        return _finish(chain, table, terms, kept, tick)


def _promises(parties: Sequence[Local | Remote | Bundle]) -> dict[str, list[float]]:
    """Epsilon, delta and mu of every owner who answers live."""
    live = [party for party in parties if not isinstance(party, Bundle)]
    return {party.name: [party.epsilon, party.delta, budget_mu(party.epsilon, party.delta)] for party in live}


def _check_promises(parties: Sequence[Local | Remote | Bundle], begun: Mapping[str, tuple[float, float]]) -> None:
    """Refuse another promise than the run was begun under, also one of the same mu: its statement would be another."""
    for name, (epsilon, delta, _) in _promises(parties).items():
        if (epsilon, delta) != begun[name]:
            raise CheckpointError(
                f"a run goes on under the promise it was started with, and {name!r} promised {begun[name]}, not "
                f"{(epsilon, delta)} (epsilon, delta); give the same."
            )


def _analysts(parties: Sequence[Local | Remote | Bundle]) -> dict[str, str]:
    """As whom nodes know the one who asks: a run's account there is in that name."""
    return {party.name: str(getattr(party.node, "analyst", "")) for party in parties if isinstance(party, Remote)}


def _check_analysts(parties: Sequence[Local | Remote | Bundle], terms: Mapping[str, Any]) -> None:
    """Refuse another name than the run was begun under: it would have a whole cap of its own there."""
    for owner, analyst in _analysts(parties).items():
        begun = terms.get("analysts", {}).get(owner, analyst)
        if begun != analyst:
            raise CheckpointError(
                f"a run goes on as the analyst who began it, and {owner!r} knew them as {begun!r}; your token is that of "
                f"{analyst!r}. Connect with theirs, or start a new run."
            )


def _check_paid(doors: Sequence[Door]) -> None:
    """Refuse a node whose account of this run is untouched: what the run released was paid for somewhere else.

    Another analyst's token, or a ledger that was made anew: with a whole cap of its own the statement would promise too much.
    """
    for door in doors:
        if door.left >= door.facts.cap:
            raise CheckpointError(
                f"a run goes on with the account that it paid from, and {door.name!r} has nothing spent on this run under your "
                "token; connect as the analyst who began it, or start a new run."
            )


def _check_facts(doors: Sequence[Door], begun: Mapping[str, Any]) -> None:
    """Refuse owners who have other records, or answer for them in another way, than when the run was begun."""
    for door in doors:
        then, now = begun[door.name], door.facts.settled()
        if now["n"] != then["n"]:
            raise CheckpointError(
                f"these are not the records the run was started with: {door.name!r} has {now['n']:,}, then it had "
                f"{then['n']:,}. Resume with the same tables, or start a new run."
            )
        if changed := [name for name in now if now[name] != then[name]]:
            told = "; ".join(f"{name} = {now[name]!r:.80}, then {then[name]!r:.80}" for name in changed)
            raise CheckpointError(
                f"a chain has one target and one way of bounding it, and {door.name!r} now has {told}. Ask for what it was, or "
                "start a new run."
            )


def _bring_inside(chain: sampler.Chain, bound: float) -> None:
    """Move a start that the owners do not answer for to the plan's centre, which they do."""
    log_prior_of = jax.vmap(chain.study.model.log_prior)

    @hastily
    def moved(states: State, centre: np.ndarray) -> State:
        outside = jnp.any(jnp.abs(states.theta) > bound, axis=-1)
        theta = jnp.where(outside[:, None], centre, states.theta)
        log_prior = jnp.where(outside, log_prior_of(theta), states.log_prior)
        return State(theta, log_prior, states.direction, states.pending)

    if np.isfinite(bound):
        with jax.enable_x64(True):
            chain.states = moved(chain.states, chain.plan.picture.centre)


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


def _kernel_for(kernel: str, parties: Sequence[Any]) -> str:
    if not any(isinstance(party, Bundle) for party in parties):
        return kernel
    if kernel == Langevin.name:
        raise InvalidInput("kernel='langevin' needs owners who answer live; with bundles in the list use 'auto'.")
    return "guided" if kernel == "auto" else kernel


def _studies(
    model: Any, parties: Sequence[Local | Remote | Bundle], domain: Mapping[str, Domain] | None, sensitivity: Any, kernel: str
) -> list[Study]:  # fmt: skip
    """One study per owner; owners with the same domain share one. The first live owner's is the plan's."""
    bundles = [party for party in parties if isinstance(party, Bundle)]
    if bundles:
        if not isinstance(model, Family):
            raise InvalidInput(f"bundles are sampled with the family they were released for, got {model!r}.")
        check_distinct(model, bundles)
    own = [None if isinstance(party, Bundle) else party.study(model, domain, sensitivity, kernel) for party in parties]
    # Langevin around a reference point is for lists in which everybody answers for it.
    near = all(study.near is not None for study in own if study is not None)
    made: dict[str, Study] = {}

    def shared(study: Study) -> Study:
        kept = study if near else study._replace(near=None)
        return made.setdefault(repr(_plain(study.domain)) + study.model.fingerprint(), kept)

    found = [None if study is None else shared(study) for study in own]
    first = next(study for study in found if study is not None)
    # The plan is made for the first study in the list, so it must be a live owner's.
    return [first if study is None else study for study in found]


def _open(
    stack: ExitStack, i: int, parties: Sequence[Local | Remote | Bundle], studies: Sequence[Study], model: Any,
    terms: Mapping[str, Any], kept: Checkpoint | None, tick: Tick, steps: int | None = None,
) -> Door:  # fmt: skip
    party = parties[i]
    if isinstance(party, Bundle):
        pilot = terms["bundles"][party.id]
        return BundleDoor(
            party, model, studies[i].model, name=party_name(party), chains=terms["chains"], pilot_copies=pilot,
            skip=steps or 0,
        )  # fmt: skip
    door = party.open(studies[i], terms["run_id"], kept, steps is not None, tick)
    stack.callback(door.close)
    return door


def _bundle_terms(parties: Sequence[Any], share: float) -> dict[str, int]:
    """Copies of each bundle that the pilot averages."""
    return {b.id: max(1, int(b.left * share)) if share > 0 else 0 for b in parties if isinstance(b, Bundle)}


# -- before the chain -------------------------------------------------------------------------------------------------


def _owner_facts(table: Table) -> tuple[dict[str, Any], ...]:
    return tuple(
        {"name": d.facts.name, "n": d.facts.n, "epsilon": d.facts.epsilon, "delta": d.facts.delta, "mu": d.facts.mu, "share": s}
        for d, s in zip(table.rounds.doors, table.rounds.shares, strict=True)
    )  # fmt: skip


def _set_shares(table: Table, widths: Sequence[float]) -> float:
    """Give each live owner its share; returns mu of the owner that all together are worth."""
    live, mu = share_out(table.budgets(), widths)
    shares = [0.0] * len(table.parties)
    for position, share in zip(table.live, live, strict=True):
        shares[position] = share
    table.rounds.shares = shares
    return mu


def _first_plan(table: Table, wishes: Wishes, kernel: str, limit: int, share: float) -> Plan:
    facts = [door.facts for door in table.rounds.doors]
    mu = _set_shares(table, [1.0] * len(table.live))
    plan = make_plan(
        table.studies[0], n=table.rounds.n, epsilon=max(f.epsilon for f in facts), delta=max(f.delta for f in facts),
        kernel=kernel, chains=wishes.chains, guess=wishes.guess, example=wishes.example, max_iterations=limit,
        pilot_share=share, mu=mu, truncate=wishes.truncate, ahead=_ahead(table.parties),
    )  # fmt: skip
    # A guess outside the owners' box could not be asked about: the nearest point of the box takes its place.
    bound = table.rounds.theta_bound
    picture = replace(plan.picture, centre=np.clip(plan.picture.centre, -bound, bound))
    return _beside_bundles(table, replace(plan, owners=_owner_facts(table), picture=picture), kernel, 1 - share, limit)


def _beside_bundles(table: Table, plan: Plan, kernel: str, share: float, limit: int) -> Plan:
    bundles = [party for party in table.parties if isinstance(party, Bundle)]
    if not bundles:
        return plan
    copies = Copies(sum(b.xi for b in bundles), min(b.left for b in bundles) // plan.chains)
    choice = choose_beside_copies(
        table.studies[0], plan.picture, plan.mu * share**0.5, copies, kernel="auto" if kernel == "guided" else kernel,
        chains=plan.chains, max_iterations=limit,
    )  # fmt: skip
    return replace(
        plan, kernel=choice.kernel, matrix=choice.matrix, step=choice.step, sigma=choice.sigma, forecast_ess=choice.ess,
        iterations=choice.iterations,
    )  # fmt: skip


def _pilot(
    table: Table, plan: Plan, terms: Mapping[str, Any], kept: Checkpoint | None, tick: Tick
) -> tuple[Plan, dict[str, Any]]:
    """Spend the pilot's share of every budget, then share out what is left and plan again."""
    plan, pilot = _run_pilot(table, plan, terms, kept, tick)
    if kept is not None:
        kept.update_terms(plan=sampler._plan_terms(plan), pilot=pilot, shares=table.rounds.shares)
    if not terms["force"]:
        sampler._refuse_after_pilot(plan, pilot)
    return plan, pilot


def _run_pilot(
    table: Table, plan: Plan, terms: Mapping[str, Any], kept: Checkpoint | None, tick: Tick
) -> tuple[Plan, dict[str, Any]]:
    study, rounds = table.studies[0], table.rounds
    if terms["share"] == 0:
        return plan, {"releases": [], "share": 0.0, "owners": _shares(table)}
    # A question that was asked before is asked again under its id: whoever has answered it gives the same answer. (An owner that
    # lost it, with its machine's power, answers anew and pays again.)
    release = PilotLog(rounds.release, kept, rounds.pass_over)
    tick(0, plan.iterations, "pilot")
    domains = {repr(_plain(other.domain)): other.domain for other in table.studies}
    domains.pop(repr(_plain(study.domain)))
    found = find_start(
        study,
        plan,
        release,
        terms["pilots"],
        bound=rounds.theta_bound,
        others=tuple(domains.values()),
        force=terms["force"],
    )
    if not terms["force"]:
        refuse_unless_arrived(plan, found.about, kept)
    pilot = found.about | {"owners": _shares(table), "lost": 0}  # owners give the answer again that they gave
    widths = relative_widths([table.studies[i] for i in table.live], found.picture)
    mu = _set_shares(table, widths)
    again = replan(
        replace(plan, mu=mu),
        study,
        found.picture,
        1.0,
        kernel=terms["kernel"],
        max_iterations=terms["limit"],
        ahead=_ahead(table.parties),
    )
    again = replace(again, owners=_owner_facts(table))
    return _beside_bundles(table, again, terms["kernel"], 1.0, terms["limit"]), pilot


def _shares(table: Table) -> dict[str, float]:
    """Share of the noise that each owner added in the pilot."""
    return {door.name: share for door, share in zip(table.rounds.doors, table.rounds.shares, strict=True)}


# -- after the chain --------------------------------------------------------------------------------------------------


def _finish(chain: sampler.Chain, table: Table, terms: Mapping[str, Any], kept: Checkpoint | None, tick: Tick) -> Run:
    began = time.perf_counter()
    # A step that asks for all it needs at once costs the same wherever it goes: the plan knows how many there will be.
    table.rounds.ahead = int((1.0 if chain.plan.copy_sigma else ASKED_AHEAD) * chain.plan.iterations)
    try:
        reason = sampler._drive(chain, table.rounds, terms["limit"], kept, tick)
    except (CheckpointError, OwnerError) as error:
        error.run = _wrap(chain, table, StopReason.INTERRUPTED, 0.0)  # type: ignore[union-attr]
        raise
    return _wrap(chain, table, reason, table.rounds.waited / max(time.perf_counter() - began, 1e-9))


def _wrap(chain: sampler.Chain, table: Table, reason: StopReason, waited: float) -> Run:
    transcript = sampler.join_parts(chain)
    if "widths" not in transcript:  # not a step was taken
        transcript["widths"] = np.zeros((*transcript["d_n_noisy"].shape, len(table.parties)))
    costs = [_cost(chain, table, transcript, i) for i in range(len(table.parties))]
    transcript["mu_squared"] = np.max(costs, axis=0)
    outside = "clamp" if any(door.facts.outside == "clamp" for door in table.rounds.doors) else "refuse"
    return sampler.make_run(chain, transcript, _statement(chain, table), reason, waited, outside)


def _cost(chain: sampler.Chain, table: Table, transcript: Mapping[str, np.ndarray], i: int) -> np.ndarray:
    """Mu squared that each step cost owner i."""
    party, share = table.parties[i], table.rounds.shares[i]
    if isinstance(party, Bundle):
        return np.full_like(transcript["sigma"], party.sensitivity**2 / party.xi)
    first = sampler.first_cost(chain.kernel, table.studies[i])
    return ((transcript["widths"][..., i] / (chain.plan.copy_sigma or chain.plan.sigma)) ** 2 + first) / share


def _statement(chain: sampler.Chain, table: Table) -> Statement | JointStatement:
    statements = []
    for party, door in zip(table.parties, table.rounds.doors, strict=True):
        facts = door.facts
        if isinstance(party, Bundle):
            statements.append(replace(party.privacy, owner=facts.name, exact=party.privacy.exact + _box(table)))
            continue
        statements.append(
            Statement(
                epsilon=facts.epsilon,
                delta=facts.delta,
                mu=facts.mu,
                releases=chain.releases + table.rounds.unused,
                spent_mu=float(np.sqrt(_spent(door) / QUANTA_PER_UNIT)),
                n=facts.n,
                lattice_slack=lattice_slack(facts.epsilon),
                sensitivity=facts.sensitivity,
                exact=sampler.exactness(chain, facts.proven, facts.outside) + _box(table),
                precision=facts.precision,
                shared_ledger=facts.shared_ledger,
                owner=facts.name if len(table.parties) > 1 else "",
                outside=facts.outside,
            )  # fmt: skip
        )
    return join(statements)


def _box(table: Table) -> str:
    """What the owners' box does to the target, in a sentence; nothing where there is none."""
    bound = table.rounds.theta_bound
    if not np.isfinite(bound):
        return ""
    return (
        f" The posterior is restricted to parameters with no coordinate beyond {bound:g} on the unconstrained scale: a proposal "
        "outside the box that the owners answer for is rejected unasked."
    )


def _spent(door: Door) -> int:
    try:
        spent = getattr(door, "spent", None)
        return int(spent if spent is not None else max(door.facts.cap - door.left, 0))
    except (OSError, OwnerError):  # a lost owner cannot say; its whole cap is what it promised
        return door.facts.cap


# -- terms of a run, as they are written down -------------------------------------------------------------------------


def _plain(domain: Mapping[str, Domain]) -> dict[str, Any]:
    return {name: column.to_dict() for name, column in domain.items()}
