"""One run, whoever holds the records: plan, pilot, chains, and what comes out. `sample`, `resume` and `plan` are here.

Before anyone spends, what the owners mean is compared and the plan is looked at. From then on everything that was released is
durable, if there is a checkpoint, before the next question is asked.
"""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.analysis.estimate import Estimate
from sfumato.analysis.result import Run, StopReason
from sfumato.bounds.bounds import SEARCHED_SENTENCE
from sfumato.domain import Domain
from sfumato.errors import CheckpointError, InvalidInput, OwnerError, PlanTooWeak, SfumatoError
from sfumato.families.base import Family
from sfumato.kernel import PublicStream, State
from sfumato.kernel.shared_programs import shared_program
from sfumato.model import Model
from sfumato.owners.local import rows_ahead
from sfumato.owners.rounds import Rounds
from sfumato.planner import Plan, budget_mu, make_plan, replan
from sfumato.planner.choice import Task
from sfumato.planner.making import MAX_FAMILY_ITERATIONS, MAX_ITERATIONS, iteration_limit, pilot_fraction
from sfumato.planner.owners import Copies, beside_copies, relative_widths, share_out, share_sealed
from sfumato.privacy.budget import MAX_MU
from sfumato.privacy.coalition import left_of
from sfumato.privacy.joint import JointStatement, join
from sfumato.privacy.statement import Statement
from sfumato.run.chain import Chain, draw, exactness, first_cost, join_parts, make_run, start, take_up
from sfumato.run.copies import prepare, used_copies
from sfumato.run.estimating import go_on
from sfumato.run.holding import under_way
from sfumato.run.interruption import check as check_interrupted
from sfumato.run.journal import Journal
from sfumato.run.opening import (
    Opened,
    asks_ahead,
    check_unchanged,
    domain_key,
    make_studies,
    open_parties,
    seals_of,
)
from sfumato.run.parties import (
    TABLE,
    BundleParty,
    Given,
    LiveParty,
    Party,
    TableParty,
    as_parties,
    is_list_of_owners,
    seated,
)
from sfumato.run.piloting import NextPilot, find_start, first_pilot, refuse_unless_arrived
from sfumato.run.pilotlog import PilotLog
from sfumato.run.request import Request, make_request
from sfumato.run.settling import box, promised, set_shares, settle
from sfumato.run.terms import Terms, find_model, make_terms
from sfumato.study.target import Study, make_study
from sfumato.tools.kept_programs import kept_programs
from sfumato.tools.progress import Tick, show_plan, stage, ticker
from sfumato.tools.quick_jit import quick_jit
from sfumato.vault.ledger import Ledger
from sfumato.vault.memory import forget_compiled

ASKED_AHEAD = 0.8
"""Share of the planned steps whose statistics Langevin asks for ahead: the budget may end a little before the plan does."""


@kept_programs()
def sample(
    model: Model | Family | Callable[..., Any],
    data: Any,
    *,
    domain: Mapping[str, Domain] | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    n: int | None = None,
    kernel: str = "auto",
    sensitivity: Any = "auto",
    outside: str = "refuse",
    chains: int = 4,
    seed: int | None = None,
    ledger: Ledger | None = None,
    checkpoint: str | Path | None = None,
    columns: Mapping[str, str | Sequence[str]] | None = None,
    guess: Mapping[str, Any] | None = None,
    example: Mapping[str, Any] | None = None,
    iterations: int | None = None,
    max_iterations: int | None = None,
    pilot_share: float | None = None,
    truncate: float | None = None,
    precision: str = "float64",
    force: bool = False,
    sealed: bool | None = None,
    progress: bool | Tick | None = None,
) -> Run:
    """Draw from the exact posterior under (epsilon, delta)-differential privacy.

    Parameters
    ----------
    model
        A NumPyro model function whose arguments are the columns, a `Model` (`from_pymc` makes one), or a family such as
        `families.Bernoulli()`.
    data
        A dict of arrays, a DataFrame, or the path of a Parquet or CSV file. Columns of a DataFrame or a file that the domain
        does not name are ignored. A dict with such columns is refused, unless `columns` is given. Or a `Bundle`, or a list of
        them, one per owner: then the model is their family, and records and budget were settled when they were released. Or
        an owner, or a list of owners, each private against all the others: `Owner` (records in this process), what `connect`
        gives, and bundles, in any mix.
    domain
        The set each column's values live in: public, declared by the owner. A family brings its own.
    epsilon, delta
        The guarantee for everything this run releases. The owner must choose; only a bundle has its own.
    n
        Number of records, if it was stated beforehand (it is public). A table with another number is refused.
    kernel
        "auto", or a name: "langevin", "guided", "componentwise", "random-walk", or a kernel that was registered besides.
    sensitivity
        How far one record can move an answer. "auto": proven if the program has rules for a proof, else searched for over the
        domain, with a margin; enforced either way. "certify" insists on a proof. `Clip`, `Lipschitz`, `Range` state the width.
    outside
        "refuse" or "clamp": what happens to records outside the domain.
    chains, seed
        The seed drives proposals and decisions only; noise is never seedable.
    ledger
        A budget shared by many runs on the same records.
    checkpoint
        A folder: every chunk is durable, and `resume` goes on after any crash.
    columns
        Which raw columns of a table make up each name.
    guess, example
        Public knowledge for planning: a parameter value; made-up or public records that look like the private ones.
    iterations
        Steps per chain at the most, from 1 (with `max_iterations`, the smaller of the two); otherwise until the budget is
        spent.
    pilot_share
        Share of the budget for the pilot; by default the plan chooses, a tenth at the most. With 0 there is no pilot: the
        chain starts at the guess, and made-up records say what scale to expect.
    truncate
        For the random walk: a bound on every (unconstrained) coordinate's move, as the paper's Assumption 4 asks. The walk then
        moves coordinates independently, whatever their correlation.
    precision
        "float64" or "float32" evaluation of records.
    force
        Sample even if the plan says that the chain cannot mix.
    sealed
        Whether owners answer with sealed sums, which nobody can open but all together, and share the noise: by default where
        they are all members of one consortium (`Owner(..., consortium=...)`, or nodes that have one).
    progress
        None: a bar on a terminal; True or False; or a function (done, expected, text).

    Returns
    -------
    Run

    Raises
    ------
    PlanTooWeak
        Before anything is spent, or after the pilot (which has then been paid for).
    CheckpointError
        The checkpoint folder has a run already, or another run holds it.
    Interrupted
        Ctrl-C before the chains began (a KeyboardInterrupt): with a checkpoint it says what is kept, and how to go on. Later,
        Ctrl-C ends the run after the chunk under way, with what was drawn.
    """
    request = make_request(
        kernel=kernel, truncate=truncate, iterations=(iterations, max_iterations), sensitivity=sensitivity, chains=chains,
        seed=seed, guess=guess, example=example, pilot_share=pilot_share, force=force,
    )  # fmt: skip
    given = Given(
        epsilon=epsilon, delta=delta, n=n, ledger=ledger, outside=outside, columns=columns, precision=precision
    )
    parties, sealing = seated(as_parties(data, given), sealed)
    for party in parties:
        if isinstance(party, TableParty):
            party.check_room()
    stage("checking the model, and proving how far one record reaches")
    studies = make_studies(model, parties, domain, request)
    if not any(party.live for party in parties):
        return _sample_bundles(model, parties, studies, request, checkpoint, progress)
    study = studies[0]
    stream = PublicStream(request.seed, request.chains)
    limit = _limit(study, parties, request)
    share = pilot_fraction(study, request.pilot_share)
    pilot_copies = {party.name: party.pilot_copies(share) for party in parties if isinstance(party, BundleParty)}
    kept = Journal(checkpoint) if checkpoint is not None else None
    terms = make_terms(
        model, study, parties, domain, request, run_id=secrets.token_hex(8), seed=stream.seed, kernel=request.kernel, limit=limit,
        pilot_copies=pilot_copies, durable=kept is not None, sealed=sealing,
    )  # fmt: skip
    with under_way(kept), ExitStack() as refused, ExitStack() as stack, ticker(progress) as tick:
        if kept is not None:
            kept.create(terms)
            refused.callback(kept.abandon)
        stage("planning: nothing is spent")
        planned = _Planner(request, terms)
        planned.look_ahead(parties, study)
        stage("reading the records")
        opened = open_parties(
            stack, model, parties, studies, run_id=terms.run_id, chains=terms.chains, pilot_copies=pilot_copies,
            folder=None if kept is None else kept.folder, tick=tick, seed=stream.seed, seals=seals_of(terms, kept),
        )  # fmt: skip
        terms = terms.with_facts(opened.access.facts)
        stage("planning: nothing is spent")
        plan = planned.first_plan(opened)
        show_plan(plan)
        if not request.force:
            plan.refuse_if_weak()
        settled = {
            "owners": terms.owners, "pilots": first_pilot(plan.pilot_share, request.pilot_share),
            "first_plan": plan.written(), "shares": list(opened.access.shares),
        }  # fmt: skip
        terms = settle(terms, kept, **settled)
        refused.pop_all()  # from here on something may be spent: the checkpoint stays, its ledger is the record of it
        plan, pilot = _pilot(opened, plan, terms, kept, tick)
        chain = start(study, plan, stream, pilot)
        chain.first_plan = terms.first_plan
        _bring_inside(chain, opened.access.theta_bound)
        return _finish(chain, opened, limit, kept, tick)


@kept_programs()
def resume(
    folder: str | Path,
    data: Any,
    *,
    model: Model | Family | Callable[..., Any] | None = None,
    ledger: Ledger | None = None,
    sensitivity: Any = "auto",
    guess: Mapping[str, Any] | None = None,
    pilot_share: float | None = None,
    force: bool = False,
    progress: bool | Tick | None = None,
) -> Run | Estimate:
    """Go on with a run or an estimate that was killed, interrupted, stopped by a full disk, or whose pilot did not arrive.

    Parameters
    ----------
    folder
        The checkpoint folder.
    data
        The same records (checked by a keyed digest that stays on this machine's private side).
    model
        The same model; may be left out if it can be imported by the name it was defined under.
    ledger
        The same ledger, if the run was started with one.
    guess, pilot_share
        Only for a run whose pilot did not arrive (`NotArrived`): another pilot is run, from the guess or from where the last one
        stopped, for this share of the whole budget.
    force
        Begin the chain even if its run was refused after the pilot.

    Raises
    ------
    NotArrived
        The pilot is still not near the posterior; without `guess` and `pilot_share` nothing more was spent.
    PlanTooWeak
        What the pilot left still promises too little; nothing more was spent.
    CheckpointError
        There is nothing to go on with, or another run is going on in this folder: one at a time.
    """
    kept = Journal(folder)
    kept.check_there()  # before there is a lock in the folder
    with under_way(kept):
        terms = kept.terms()  # once nobody else can add to them
        again = NextPilot(guess, pilot_share)
        again.check_needed(terms)
        terms.check_goes_on(kept.folder, sensitivity)
        if force:
            terms = settle(terms, None, force=True)
        parties, _ = seated(as_parties(data, _given_again(terms, data, ledger)), terms.sealed)
        terms.check_parties(parties)
        model = model if model is not None else find_model(terms)
        request = Request(kernel=terms.kernel, sensitivity=sensitivity, chains=terms.chains, force=terms.force)
        studies = make_studies(model, parties, terms.stated_domain, request)
        terms.check_model(studies[0])
        stage("reading the records, and what was kept")
        if terms.estimate:
            return go_on(model, parties, studies, terms, kept, progress)
        stream = PublicStream(terms.seed, terms.chains)
        steps = sum(len(saved.transcript["accepted"]) for saved in kept.read())
        with ExitStack() as stack, ticker(progress) as tick:
            opened = open_parties(
                stack, model, parties, studies, run_id=terms.run_id, chains=terms.chains,
                pilot_copies=terms.pilot_copies, folder=kept.folder, tick=tick, shares=terms.shares, steps=steps,
                seed=terms.seed, seals=seals_of(terms, kept),
            )  # fmt: skip
            answered = terms.pilot["releases"] if terms.pilot else [e for e in kept.releases() if e["answer"]]
            check_unchanged(opened, terms.facts, bool(steps or answered))
            terms.check_computes(studies[0])
            if terms.plan is not None and terms.pilot is not None:
                plan, pilot = Plan.read(terms.plan), terms.pilot
            else:  # it was stopped in its pilot
                terms = again.added_to(terms, studies[0], kept)
                plan, pilot = _pilot(opened, Plan.read(terms.first_plan or {}), terms, kept, tick)
            chain = start(studies[0], plan, stream, pilot)
            chain.first_plan = terms.first_plan
            for saved in kept.read():
                take_up(chain, saved)
                opened.access.settle(saved.block, saved.reserved, saved.spent)
            if not chain.steps:
                _bring_inside(chain, opened.access.theta_bound)
                if not terms.force:  # a chain that was refused after its pilot does not begin by being resumed
                    _refuse_after_pilot(plan, pilot)
            return _finish(chain, opened, terms.limit, kept, tick)


def _given_again(terms: Terms, data: Any, ledger: Ledger | None) -> Given:
    """What was given about the owners when the run was begun: of one table, how it is read."""
    promises, settings = terms.promises, dict(terms.owners[0].settings) if terms.alone else {}
    settings.pop("own_ledger", None)
    if terms.alone == is_list_of_owners(data):
        words = "on one table; pass the same one" if terms.alone else "over owners; pass the same list of them"
        raise InvalidInput(f"this run was started {words}.")
    return Given(ledger=ledger, promises=promises, **settings | {"columns": settings.get("columns") or None})


@kept_programs()
def plan(
    model: Model | Family | Callable[..., Any],
    owner: Any = None,
    *,
    n: int | None = None,
    domain: Mapping[str, Domain] | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    kernel: str = "auto",
    sensitivity: Any = "auto",
    chains: int = 4,
    guess: Mapping[str, Any] | None = None,
    example: Mapping[str, Any] | None = None,
    max_iterations: int | None = None,
    pilot_share: float | None = None,
    truncate: float | None = None,
    sealed: bool | None = None,
) -> Plan:
    """Plan a study: what (epsilon, delta) will buy on n records. Spends nothing and sees no data.

    `owner` is what `connect` gave; the number of records and the domain then come from its node. Or `owner` is a list of owners,
    as for `sample`. An owner with records in this process needs `n`: `Owner(..., n=...)`. See `sample` for the other parameters.
    """
    request = make_request(
        kernel=kernel, truncate=truncate, iterations=(None, max_iterations), sensitivity=sensitivity, chains=chains,
        guess=guess, example=example, pilot_share=pilot_share,
    )  # fmt: skip
    if owner is None:
        if n is None:
            raise InvalidInput("a plan needs the number of records: n=..., or an owner from sf.connect.")
        study, given = make_study(model, domain, sensitivity, kernel), Given(epsilon=epsilon, delta=delta)
        promise = given.promise(TABLE)
        return _plan(study, n, *promise, budget_mu(*promise), request, iteration_limit(study, request.iterations))
    parties: list[Party] = []
    sealing = False
    if not _is_data(owner):
        parties, sealing = seated(as_parties(owner, Given(epsilon=epsilon, delta=delta)), sealed)
    live = [party for party in parties if party.live]
    if not live:
        raise InvalidInput(
            f"a plan sees no data; give n= and domain=, or an owner from sf.connect, or a list of owners. Got "
            f"{type(owner).__name__}."
        )
    if len(live) < len(parties):
        raise InvalidInput(
            "a plan is made for owners who answer live, and there are bundles in the list; leave them out. (sf.sample plans "
            "with them before anyone spends.)"
        )
    return _plan_owners(model, live, domain, request, n, sealing)


def _is_data(owner: Any) -> bool:
    """Whether records themselves were given, which no plan looks at."""
    return isinstance(owner, Mapping | str | Path) or hasattr(owner, "columns")


def _plan_owners(
    model: Any,
    parties: Sequence[Any],
    domain: Mapping[str, Domain] | None,
    request: Request,
    n: int | None,
    sealed: bool,
) -> Plan:
    """Plan a run over owners: opens no table."""
    studies = make_studies(model, parties, domain, request)
    if n is not None and not (len(parties) == 1 and parties[0].n == n):
        if len(parties) == 1 and parties[0].n is not None:
            there = f"{parties[0].name!r} has {parties[0].n:,} records, not {n}"
            raise InvalidInput(f"n is the owner's to say, and {there}; leave n= out.")
        raise InvalidInput("n is the owners' to say; leave n= out, or state it for each: sf.Owner(..., n=...).")
    sizes = [_size(party) for party in parties]
    mus = [budget_mu(party.epsilon, party.delta) for party in parties]
    budgets, widths = [mu**2 for mu in mus], [1.0] * len(mus)
    shares, mu = apart, mu_apart = share_out(budgets, widths)
    if sealed:
        seats = [party.seat for party in parties]
        everybody = [seat.everybody_mu(mu, MAX_MU) ** 2 for seat, mu in zip(seats, mus, strict=True)]
        shares, mu = share_sealed(budgets, everybody, widths, [seat.colluders for seat in seats])
    weakest = max(party.epsilon for party in parties), max(party.delta for party in parties)
    limit = _limit(studies[0], parties, request)
    plan = _plan(studies[0], sum(sizes), *weakest, mu, request, limit, ahead=asks_ahead(parties))
    if len(parties) == 1:
        return plan
    if sealed:
        beside = _plan(studies[0], sum(sizes), *weakest, mu_apart, request, limit, ahead=asks_ahead(parties))
        plan = replace(plan, sealed=True, unsealed_ess=beside.forecast_ess)
    facts = zip(parties, sizes, mus, shares, strict=True)
    told = tuple(
        {"name": party.name, "n": n, "epsilon": party.epsilon, "delta": party.delta, "mu": mu, "share": share}
        for party, n, mu, share in facts
    )
    return replace(plan, owners=told)


def _size(party: LiveParty) -> int:
    if party.n is None:
        raise InvalidInput(
            f"a plan opens no table and needs the number of records of {party.name!r}; state it: sf.Owner(..., n=...), or n in "
            "its [[owners]] of a study file."
        )
    return party.n


def _plan(
    study: Study, n: int, epsilon: float, delta: float, mu: float, request: Request, limit: int, ahead: bool = False
) -> Plan:
    numbers = n, epsilon, delta, mu, request.chains, limit
    asked = request.kernel, request.pilot_share, request.truncate, ahead
    if request.guess is not None or request.example is not None:
        return _made(study, *numbers, *asked, request.guess, request.example)
    return deepcopy(_remembered(study, *numbers, *asked))


def _made(
    study: Study, n: int, epsilon: float, delta: float, mu: float, chains: int, limit: int, kernel: str,
    pilot_share: float | None, truncate: float | None, ahead: bool, guess: Any = None, example: Any = None,
) -> Plan:  # fmt: skip
    return make_plan(
        study, n=n, epsilon=epsilon, delta=delta, mu=mu, kernel=kernel, chains=chains, guess=guess, example=example,
        max_iterations=limit, pilot_share=pilot_share, truncate=truncate, ahead=ahead,
    )  # fmt: skip


_remembered = shared_program(_made)
"""A plan follows from public numbers alone: the run after a plan, and the next run of a study, need not make it again."""


def _limit(study: Study, parties: Sequence[Party], request: Request) -> int:
    """Steps per chain at the most."""
    if request.iterations is not None:
        return request.iterations
    first = parties[0]
    if isinstance(first, TableParty) and first.alone:
        return iteration_limit(study, None)
    # An owner's desk passes over its records for every step of a walk, also on a family.
    return MAX_FAMILY_ITERATIONS if study.natural else MAX_ITERATIONS


# -- bundles alone ----------------------------------------------------------------------------------------------------


def _sample_bundles(
    family: Any, parties: list[Party], studies: list[Study], request: Request, checkpoint: Any, progress: bool | Tick | None
) -> Run:  # fmt: skip
    """Run Algorithm 3: everything is paid for, so nothing has to survive."""
    if checkpoint is not None:
        raise InvalidInput(
            "a bundle's records and budget were settled when it was released; leave out checkpoint. (A run on a bundle needs no "
            "checkpoint: the same seed on the same file draws the same chain.)"
        )
    bundles = [party.bundle for party in parties if isinstance(party, BundleParty)]
    stream = PublicStream(request.seed, request.chains)
    with under_way(None), ExitStack() as stack, ticker(progress) as tick:
        stage("planning: nothing is spent")
        plan, pilot, steps = prepare(family, studies[0], bundles, request)
        show_plan(plan)
        opened = open_parties(
            stack, family, parties, studies, run_id="", chains=request.chains, pilot_copies={}, folder=None, tick=tick
        )
        chain = start(studies[0], plan, stream, pilot)
        run = _finish(chain, opened, steps, None, tick)
    return replace(run, pilot=used_copies(bundles, dict(run.pilot)))


# -- before the chain -------------------------------------------------------------------------------------------------


@dataclass
class _Planner:
    """Plans before anything is spent."""

    request: Request
    terms: Terms
    ahead: Plan | None = None

    def look_ahead(self, parties: Sequence[Party], study: Study) -> None:
        """Plan before a large table is read: what planning compiles and the records are then never in memory at once.

        Nothing where n is not known yet, or where there is no plan to make: that is said in its turn, after bad data are refused.
        """
        party = parties[0]
        if not (isinstance(party, TableParty) and party.alone):
            return
        n = rows_ahead(study, party.owner.data, party.owner.columns)
        if n is None:
            return
        try:
            promise = party.epsilon, party.delta
            self.ahead = _plan(study, n, *promise, budget_mu(*promise), self.request, self.terms.limit)
        except SfumatoError:
            self.ahead = None
        finally:
            forget_compiled()

    def first_plan(self, opened: Opened) -> Plan:
        """The plan for what all owners together have to spend."""
        access, request = opened.access, self.request
        if self.ahead is not None and self.ahead.n == access.n:
            return self.ahead
        facts = access.facts
        mu = set_shares(opened, [1.0] * len(opened.live)) if isinstance(access, Rounds) else facts[0].mu
        if isinstance(access, Rounds):
            # Bundles have set copies aside for the pilot before anyone was asked.
            request = replace(request, pilot_share=pilot_fraction(opened.study, request.pilot_share))
        request = replace(request, kernel=self.terms.kernel)
        epsilon, delta = max(f.epsilon for f in facts), max(f.delta for f in facts)
        plan = _plan(opened.study, access.n, epsilon, delta, mu, request, self.terms.limit, ahead=opened.ahead)
        # A guess outside the owners' box could not be asked about: the nearest point of the box takes its place.
        bound = access.theta_bound
        belief = replace(plan.belief, centre=np.clip(plan.belief.centre, -bound, bound))
        plan = replace(plan, owners=_owner_facts(opened), belief=belief, sealed=self.terms.sealed)
        return _beside_bundles(opened, plan, self.terms, 1 - plan.pilot_share)


def _owner_facts(opened: Opened) -> tuple[dict[str, Any], ...]:
    """What a plan tells of several owners."""
    if not isinstance(opened.access, Rounds):
        return ()
    told = zip(opened.access.facts, opened.access.shares, strict=True)
    return tuple(
        {"name": f.name, "n": f.n, "epsilon": f.epsilon, "delta": f.delta, "mu": f.mu, "share": share}
        for f, share in told
    )


def _beside_bundles(opened: Opened, plan: Plan, terms: Terms, share: float) -> Plan:
    """Plan for owners who answer live and others with copies, all of which a step needs."""
    bundles = [party.bundle for party in opened.parties if isinstance(party, BundleParty)]
    if not bundles:
        return plan
    copies = Copies(sum(b.xi for b in bundles), min(b.left for b in bundles) // plan.chains)
    task = Task(
        study=opened.study, belief=plan.belief, mu=plan.mu, n=plan.n, chains=plan.chains, max_iterations=terms.limit
    )
    return beside_copies(plan, task.for_share(share), copies, terms.kernel)


def _pilot(opened: Opened, plan: Plan, terms: Terms, kept: Journal | None, tick: Tick) -> tuple[Plan, dict[str, Any]]:
    """Run the pilots, then plan again for what is left; refuse to go on from nowhere, or with too little."""
    plan, pilot = run_pilots(opened, plan, terms, kept, tick)
    if kept is not None:
        kept.update_terms(plan=plan.written(), pilot=pilot, shares=list(opened.access.shares))
    if not terms.force:
        _refuse_after_pilot(plan, pilot)
    return plan, pilot


def run_pilots(
    opened: Opened, plan: Plan, terms: Terms, kept: Journal | None, tick: Tick
) -> tuple[Plan, dict[str, Any]]:
    """Spend the pilot's share of every budget, then share out what is left and plan again."""
    access, study, several = opened.access, opened.study, isinstance(opened.access, Rounds)
    about = {"owners": _noise_shares(opened)} if several else {}
    if plan.pilot_share == 0:
        return plan, {"releases": [], "share": 0.0} | about
    # A question that was asked before is asked again under its id: whoever has answered it gives the same answer. (An owner that
    # lost it, with its machine's power, answers anew and pays again.)
    release = PilotLog(access.release, kept, access.pass_over)
    tick(0, plan.iterations, "pilot")
    stage("pilot: the first answer")
    domains = {domain_key(other): other.domain for other in opened.studies}
    domains.pop(domain_key(study))
    found = find_start(
        study, plan, release, terms.pilots, bound=access.theta_bound, others=tuple(domains.values()), force=terms.force
    )
    if not terms.force:
        refuse_unless_arrived(plan, found, kept, None if opened.prepaid else study)
    access.forget()
    stage("planning again, with what the pilot found")
    pilot = found.about | about | ({"lost": 0} if several else {})  # owners give the answer again that they gave
    mu = set_shares(opened, relative_widths([opened.studies[i] for i in opened.live], found.belief))
    again = replan(
        plan, study, found.belief, mu**2 / plan.mu**2, kernel=terms.kernel, max_iterations=terms.limit,
        ahead=opened.ahead,
    )  # fmt: skip
    again = replace(again, owners=_owner_facts(opened), sealed=terms.sealed)
    return _beside_bundles(opened, again, terms, mu**2 / plan.mu**2), pilot


def _noise_shares(opened: Opened) -> dict[str, float]:
    """Share of the noise that each owner added in the pilot."""
    return {facts.name: share for facts, share in zip(opened.access.facts, opened.access.shares, strict=True)}


def _refuse_after_pilot(plan: Plan, pilot: Mapping[str, Any]) -> None:
    try:
        plan.refuse_if_weak(pilot["share"])
    except PlanTooWeak as error:
        raise PlanTooWeak(
            f"{error} (The pilot was paid for: {pilot['share']:.0%} of the budget is spent.)", plan
        ) from None


def _bring_inside(chain: Chain, bound: float) -> None:
    """Move a start that the owners do not answer for to the plan's centre, which they do."""
    log_prior_of = jax.vmap(chain.study.model.log_prior)

    @quick_jit
    def moved(states: State, centre: np.ndarray) -> State:
        outside = jnp.any(jnp.abs(states.theta) > bound, axis=-1)
        theta = jnp.where(outside[:, None], centre, states.theta)
        log_prior = jnp.where(outside, log_prior_of(theta), states.log_prior)
        return State(theta, log_prior, states.direction, states.pending)

    if np.isfinite(bound):
        with jax.enable_x64(True):
            chain.states = moved(chain.states, chain.plan.belief.centre)


# -- the chain, and what comes out ------------------------------------------------------------------------------------


def _finish(chain: Chain, opened: Opened, limit: int, kept: Journal | None, tick: Tick) -> Run:
    """Run to the end and wrap up; a checkpoint that cannot be written still hands over what was drawn."""
    began, access = time.perf_counter(), opened.access
    check_interrupted()
    # A step that asks for all it needs at once costs the same wherever it goes: the plan knows how many there will be.
    access.expect(int((1.0 if chain.plan.copy_sigma else ASKED_AHEAD) * chain.plan.iterations))
    stage("compiling the chain")
    try:
        access.begin(chain.kernel, chain.plan.sigma, chain.states)
        reason = draw(chain, access, limit, kept, tick)
    except (CheckpointError, OwnerError) as error:
        error.run = _wrap(chain, opened, StopReason.INTERRUPTED, 0.0)  # type: ignore[union-attr]
        raise
    return _wrap(chain, opened, reason, access.waited / max(time.perf_counter() - began, 1e-9))


def _wrap(chain: Chain, opened: Opened, reason: StopReason, waited: float) -> Run:
    transcript, facts = join_parts(chain), opened.access.facts
    owners = len(opened.parties)
    if isinstance(opened.access, Rounds):  # also if not a step was taken
        transcript.setdefault("widths", np.zeros((*transcript["d_n_noisy"].shape, owners)))
    costs = [_cost(chain, opened, transcript, i) for i in range(owners)]
    transcript["mu_squared"] = np.max(costs, axis=0)
    outside = "clamp" if any(said.outside == "clamp" for said in facts) else "refuse"
    return make_run(chain, transcript, _statement(chain, opened), reason, waited, outside)


def _cost(chain: Chain, opened: Opened, transcript: Mapping[str, np.ndarray], i: int) -> np.ndarray:
    """Mu squared that each step cost owner i."""
    party, share, plan = opened.parties[i], opened.access.shares[i], chain.plan
    if isinstance(party, BundleParty):
        return np.full_like(transcript["sigma"], max(plan.averaged, 1) * party.bundle.sensitivity**2 / party.bundle.xi)
    widths = transcript["widths"][..., i] if "widths" in transcript else transcript["sensitivity"]
    first = first_cost(chain.kernel, opened.studies[i])
    if opened.sealed:
        share = left_of(opened.access.shares, i, opened.access.facts[i].colluders)
    return ((widths / (plan.copy_sigma or plan.sigma)) ** 2 + first) / share


def _statement(chain: Chain, opened: Opened) -> Statement | JointStatement:
    return join([_promised(chain, opened, i) for i in range(len(opened.parties))])


def _searched(chain: Chain, opened: Opened, i: int) -> bool:
    """Whether an owner searched for the range of the last query: by its own word, or by that of its study in this process."""
    if isinstance(opened.access, Rounds) and opened.access.searched:
        return opened.access.searched[i]
    return opened.studies[i].searched_around(chain.kernel, opened.access.facts[i].searched)


def _promised(chain: Chain, opened: Opened, i: int) -> Statement:
    """What one owner promised, and whether its part of the draws is exact."""
    facts = opened.access.facts[i]
    searched = _searched(chain, opened, i)
    exact = exactness(chain, facts.proven, facts.outside, searched=searched) + box(opened)
    statement = promised(opened, i, chain.releases + opened.access.unused, exact, chain.plan.target)
    return replace(statement, sensitivity=SEARCHED_SENTENCE) if searched else statement
