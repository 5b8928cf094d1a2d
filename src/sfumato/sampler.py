"""The loop: plan, pilot, chunks, endings.

The loop fetches and never computes; the kernel computes and never fetches; the vault alone reads records, and pays
before it speaks. Each chunk is made durable (if there is a checkpoint) before its unspent reservation is given back.
"""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sfumato import watch
from sfumato.access.base import Access
from sfumato.access.local import Opened, check_room, open_vault, rows_ahead
from sfumato.begun import check_computes, check_goes_on, check_model, common_terms, find_model, stated_domain
from sfumato.checkpoint import Checkpoint, Saved
from sfumato.domain import Domain
from sfumato.errors import BudgetSpent, CheckpointError, InvalidInput, OwnerLost, PlanTooWeak, SfumatoError
from sfumato.families.base import Family
from sfumato.families.langevin import public_part
from sfumato.haste import hastily
from sfumato.interruption import check as check_interrupted
from sfumato.interruption import until_asked as _interrupts
from sfumato.kernel import Kernel, Langevin, PublicStream, ReferenceLangevin, State
from sfumato.model import Model
from sfumato.piloting import Again, find_start, first_pilot, refuse_unless_arrived
from sfumato.pilotlog import PilotLog
from sfumato.planner import MAX_RELEASES, Plan, budget_mu, lattice_slack, make_plan, replan, truncated
from sfumato.planner.forecast import Picture, prior_precision, reference_kernel
from sfumato.planner.plan import asked_steps, iteration_limit
from sfumato.privacy.budget import QUANTA_PER_UNIT
from sfumato.privacy.joint import JointStatement
from sfumato.privacy.statement import PERHAPS_CUT, Statement
from sfumato.progress import Tick, ticker
from sfumato.run import Run, StopReason
from sfumato.study import Study, computed, make_study
from sfumato.underway import under_way
from sfumato.vault.ledger import Block, Ledger
from sfumato.vault.trim import forget_compiled
from sfumato.verdict import visible_transient

FIELDS = ("theta", "theta_prop", "d_n_noisy", "sensitivity", "accepted", "sigma")
_CHUNK_TERMS = 40_000_000  # record evaluations per compiled call: a fraction of a second, so that progress moves
_FEWEST = 32  # steps per compiled call at the least
_HEADROOM = 1.2  # reserved over expected cost of a chunk: rarely a second reservation, little to forfeit in a crash


@dataclass
class Chain:
    """A run under way: what has been released so far."""

    study: Study
    plan: Plan
    kernel: Kernel
    stream: PublicStream
    states: State
    parts: list[dict[str, np.ndarray]] = field(default_factory=list)
    steps: int = 0
    releases: int = 0
    spent: int = 0
    pilot: dict[str, Any] = field(default_factory=dict)
    stop_owner: str = ""
    marks: list[float] = field(default_factory=list)
    """Share of the plan that was done after each part: of its steps or of its budget, whichever is more."""


def sample(
    model: Model | Family | Callable[..., Any],
    data: Any,
    *,
    domain: Mapping[str, Domain] | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    n: int | None = None,
    kernel: str = "auto",
    sensitivity: Any = "certify",
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
    progress: bool | Tick | None = None,
) -> Run:
    """Draw from the exact posterior under (epsilon, delta)-differential privacy.

    Parameters
    ----------
    model
        A NumPyro model function whose arguments are the columns, a `Model` (`from_pymc` makes one), or a family such as
        `families.Bernoulli()`.
    data
        Dict of arrays, DataFrame, or path of a Parquet or CSV file (columns of these two that the domain does not name are
        ignored; a dict that has others is refused, unless `columns` is given). Or a `Bundle`, or a list of them, one per
        owner: then the model is their family, and everything about records and budget was settled when they were released.
        Or a list of owners, each private against all the others: `Owner` (records in this process), what `connect` gives,
        bundles, in any mix; or one of them.
    domain
        The set each column's values live in: public, declared by the owner. A family brings its own.
    epsilon, delta
        The guarantee for everything this run releases. The owner must choose; only a bundle has its own.
    n
        Number of records, where it was stated beforehand (it is public): a table that has another is refused.
    kernel
        "auto", "guided", "componentwise", "random-walk" or "langevin".
    sensitivity
        "certify", or `Clip`, `Lipschitz`, `Range`.
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
        Share of the budget for the pilot (a tenth; less for Langevin on a family); 0 starts at the guess with what made-up
        records say about scale.
    truncate
        For the random walk: a bound on every (unconstrained) coordinate's move, as the paper's Assumption 4 wants it. The
        walk then moves coordinates independently, whatever their correlation.
    precision
        "float64" or "float32" evaluation of records.
    force
        Sample even if the plan says that the chain cannot mix.
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
    from sfumato.algorithm3 import as_bundles, sample_bundles
    from sfumato.consortium import Wishes, as_owners, sample_owners

    steps = asked_steps(iterations, max_iterations)
    if (owners := as_owners(data, epsilon, delta, ledger, outside, columns, precision)) is not None:
        if n is not None:
            raise InvalidInput("n is each owner's own; pass it to sf.Owner, or leave it out.")
        wishes = Wishes(
            kernel=kernel, sensitivity=sensitivity, chains=chains, seed=seed, guess=guess, example=example,
            iterations=steps, pilot_share=pilot_share, truncate=truncate, force=force,
        )  # fmt: skip
        return sample_owners(model, owners, domain, wishes, checkpoint=checkpoint, progress=progress)
    if (bundles := as_bundles(data)) is not None:
        _refuse_with_bundles({"epsilon": epsilon, "delta": delta, "n": n, "ledger": ledger, "checkpoint": checkpoint})
        return sample_bundles(
            model, bundles, kernel=kernel, chains=chains, seed=seed, guess=guess,
            iterations=steps, pilot_share=0.1 if pilot_share is None else pilot_share, truncate=truncate, force=force,
            progress=progress,
        )  # fmt: skip
    if epsilon is None or delta is None:
        raise InvalidInput("epsilon and delta must be given: the owner chooses the guarantee, there is no default.")
    kernel = truncated.check(truncate, kernel)
    mu = budget_mu(epsilon, delta)
    if ledger is not None:
        check_room(ledger, mu, delta)
    study = make_study(model, domain, sensitivity, kernel)
    stream = PublicStream(seed, chains)
    run_id = secrets.token_hex(8)
    kept = Checkpoint(checkpoint) if checkpoint is not None else None
    terms = _terms(run_id, stream.seed, epsilon, delta, mu, chains, kernel, precision, outside)
    terms |= common_terms(model, study, study.domain, sensitivity)
    limit = iteration_limit(study, steps)
    terms |= {"limit": limit, "columns": dict(columns or {}), "own_ledger": ledger is None}
    plan_for = partial(
        make_plan, study, epsilon=epsilon, delta=delta, kernel=kernel, chains=chains, guess=guess, example=example,
        max_iterations=limit, pilot_share=pilot_share, truncate=truncate,
    )  # fmt: skip
    with under_way(kept), ExitStack() as refused, ExitStack() as stack:
        if kept is not None:
            kept.create(terms | {"computes": computed(study)})
            refused.callback(kept.abandon)
        ahead = _plan_ahead(plan_for, rows_ahead(study, data, columns))
        opened = open_vault(
            study, data, mu=mu, run_id=run_id, ledger=ledger, ledger_path=kept and kept.ledger_path, outside=outside,
            columns=columns, precision=precision,
        )  # fmt: skip
        stack.enter_context(_closing(opened))
        check_number(n, opened.vault.n)
        tick = stack.enter_context(ticker(progress))
        plan = ahead if ahead is not None and ahead.n == opened.vault.n else plan_for(n=opened.vault.n)
        if not force:
            plan.refuse_if_weak()
        pilots = first_pilot(plan.pilot_share, pilot_share)
        if kept is not None:
            kept.update_terms(first_plan=_plan_terms(plan), force=force, pilots=pilots)
        refused.pop_all()  # from here on something may be spent: the checkpoint stays, its ledger is the record of it
        plan, pilot = _pilot(study, plan, opened, kernel, limit, kept, tick, pilots, force=force)
        chain = _start(study, plan, stream, pilot)
        return _finish(chain, opened, terms, kept, tick)


def resume(
    folder: str | Path,
    data: Any,
    *,
    model: Model | Family | Callable[..., Any] | None = None,
    ledger: Ledger | None = None,
    sensitivity: Any = "certify",
    guess: Mapping[str, Any] | None = None,
    pilot_share: float | None = None,
    force: bool = False,
    progress: bool | Tick | None = None,
) -> Run:
    """Go on with a run that was killed, interrupted, stopped by a full disk, or whose pilot did not arrive.

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
    kept = Checkpoint(folder)
    kept.check_there()  # before there is a lock in the folder
    with under_way(kept):
        terms = kept.terms()  # once nobody else can add to them
        terms |= {"force": force or terms.get("force", False)}
        again = Again(guess, pilot_share)
        again.check_needed(terms)
        if "owners" in terms:
            from sfumato.consortium import resume_owners

            return resume_owners(
                kept, terms, model, data, sensitivity=sensitivity, ledger=ledger, again=again, progress=progress
            )
        return _resume_table(
            kept, terms, model, data, sensitivity=sensitivity, ledger=ledger, again=again, progress=progress
        )


def _resume_table(
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
    """Go on with a run on one table; `sfumato.consortium.resume_owners` is its twin for owners."""
    check_goes_on(terms, kept, sensitivity)
    if (ledger is None) != terms["own_ledger"]:
        raise InvalidInput("a run must be resumed with the ledger it was started with: pass ledger= as then.")
    model = model if model is not None else find_model(terms)
    study = make_study(model, stated_domain(terms), sensitivity, terms["kernel"])
    check_model(terms, study)
    check_computes(terms, study)
    stream = PublicStream(terms["seed"], terms["chains"])
    opened = open_vault(
        study, data, mu=terms["mu"], run_id=terms["run_id"], ledger=ledger, ledger_path=kept.ledger_path,
        outside=terms["outside"], columns=terms["columns"] or None, precision=terms["precision"], resuming=True,
    )  # fmt: skip
    with _closing(opened), ticker(progress) as tick:
        if "plan" in terms:
            plan, pilot = _plan_from(terms["plan"]), terms["pilot"]
        else:  # it was stopped in its pilot
            first, force, pilots = _plan_from(terms["first_plan"]), terms["force"], again.pilots(study, terms, kept)
            plan, pilot = _pilot(study, first, opened, terms["kernel"], terms["limit"], kept, tick, pilots, force=force)
        chain = _start(study, plan, stream, pilot)
        _replay(chain, kept, opened)
        refuse_weak_start(chain, terms)
        return _finish(chain, opened, terms, kept, tick)


def check_number(stated: int | None, there: int, whose: str = "the table") -> None:
    """Refuse a table that has not as many records as was stated: a plan for another number, or another table."""
    if stated is not None and stated != there:
        raise InvalidInput(
            f"the number of records that was stated must be that of the table: n = {stated:,}, and {whose} has {there:,} "
            "records. Correct n, or the path of the table."
        )


def _refuse_with_bundles(given: Mapping[str, Any]) -> None:
    stated = [name for name, value in given.items() if value is not None]
    if stated:
        raise InvalidInput(
            f"a bundle's records and budget were settled when it was released; leave out {', '.join(stated)}. (A run on a "
            "bundle needs no checkpoint: the same seed on the same file draws the same chain.)"
        )


# -- before the chain -------------------------------------------------------------------------------------------------


def _plan_ahead(plan_for: Callable[..., Plan], n: int | None) -> Plan | None:
    """Plan before a large table is read: what planning compiles and the records are then never in memory at once.

    None where n is not known yet, or where there is no plan to make: that is said in its turn, after bad data are refused.
    """
    if n is None:
        return None
    try:
        return plan_for(n=n)
    except SfumatoError:
        return None
    finally:
        forget_compiled()


def _pilot(
    study: Study, plan: Plan, opened: Opened, kernel: str, limit: int, kept: Checkpoint | None, tick: Tick,
    pilots: Sequence[Mapping[str, Any]], *, force: bool,
) -> tuple[Plan, dict[str, Any]]:  # fmt: skip
    """Run the pilots, then plan again for what is left; refuse to go on from nowhere, or with too little."""
    plan, pilot = _run_pilot(study, plan, opened, kernel, limit, kept, tick, pilots, force=force)
    if kept is not None:
        kept.update_terms(plan=_plan_terms(plan), pilot=pilot)
    if not force:
        _refuse_after_pilot(plan, pilot)
    return plan, pilot


def _run_pilot(
    study: Study, plan: Plan, opened: Opened, kernel: str, max_iterations: int, kept: Checkpoint | None, tick: Tick,
    pilots: Sequence[Mapping[str, Any]], *, force: bool,
) -> tuple[Plan, dict[str, Any]]:  # fmt: skip
    if plan.pilot_share == 0:
        return plan, {"releases": [], "share": 0.0}
    tick(0, plan.iterations, "pilot")
    found = find_start(study, plan, PilotLog(opened.vault.release, kept), pilots, force=force)
    if not force:
        refuse_unless_arrived(plan, found.about, kept)
    opened.vault.forget()
    left = opened.account.left / QUANTA_PER_UNIT / plan.mu**2
    return replan(plan, study, found.picture, left, kernel=kernel, max_iterations=max_iterations), found.about


def _refuse_after_pilot(plan: Plan, pilot: Mapping[str, Any]) -> None:
    try:
        plan.refuse_if_weak()
    except PlanTooWeak as error:
        raise PlanTooWeak(
            f"{error} (The pilot was paid for: {pilot['share']:.0%} of the budget is spent.)", plan
        ) from None


def refuse_weak_start(chain: Chain, terms: Mapping[str, Any]) -> None:
    """Refuse again what was refused after the pilot: a chain that has not begun does not begin by being resumed."""
    if not chain.steps and not terms["force"]:
        _refuse_after_pilot(chain.plan, chain.pilot)


def _build_kernel(study: Study, plan: Plan) -> Kernel:
    """The kernel of the plan; Langevin needs public functions of the model besides."""
    if plan.kernel != Langevin.name:
        return plan.build_kernel()
    if study.family is not None:
        public = public_part(study.family, study.model, plan.n)
        return Langevin(plan.matrix, plan.step, public, copy_sigma=plan.copy_sigma)
    with jax.enable_x64(True):
        return reference_kernel(study.model, plan.picture, plan.matrix, plan.step)


def _start(study: Study, plan: Plan, stream: PublicStream, pilot: Mapping[str, Any]) -> Chain:
    """Starting states, one per chain, drawn from the picture of the posterior."""
    kernel = _build_kernel(study, plan)
    log_prior = jax.vmap(study.model.log_prior)

    @hastily
    def states_at(theta: Any, centre: Any, directions: Any) -> State:
        outside = ~jnp.isfinite(log_prior(theta))[:, None]
        theta = jnp.where(outside, jnp.broadcast_to(centre, theta.shape), theta)
        pending = jnp.full(theta.shape, jnp.nan, theta.dtype) if isinstance(kernel, Langevin) else None
        return State(theta, log_prior(theta), directions, pending)

    with jax.enable_x64(True):
        theta = stream.starts(plan.picture.centre, plan.picture.start)
        states = states_at(theta, plan.picture.centre, stream.directions(plan.matrix.shape[1]))
    coordinates = sum(len(r["answer"]) for r in pilot["releases"]) + pilot.get("lost", 0)
    return Chain(study, plan, kernel, stream, states, releases=coordinates, pilot=dict(pilot))


# -- the chain --------------------------------------------------------------------------------------------------------


def _finish(chain: Chain, opened: Opened, terms: Mapping[str, Any], kept: Checkpoint | None, tick: Tick) -> Run:
    """Run to the end and wrap up; a checkpoint that cannot be written still hands over what was drawn."""
    began = time.perf_counter()
    try:
        reason = _drive(chain, opened.vault, terms["limit"], kept, tick)
    except CheckpointError as error:
        error.run = _wrap(chain, terms, opened, StopReason.INTERRUPTED, 0.0)  # type: ignore[attr-defined]
        raise
    waited = opened.vault.waited / max(time.perf_counter() - began, 1e-9)
    return _wrap(chain, terms, opened, reason, waited)


def _drive(chain: Chain, access: Access, limit: int, kept: Checkpoint | None, tick: Tick) -> StopReason:
    """Begin the chains and draw them to their end."""
    check_interrupted()
    access.begin(chain.kernel, chain.plan.sigma, chain.states)
    return draw(chain, access, limit, kept, tick)


def draw(
    chain: Chain, access: Access, limit: int, kept: Checkpoint | None, tick: Tick, *, watched: bool = True
) -> StopReason:
    """Chunk after chunk, of chains that have begun, until the steps, the budget or the patience end, or an alarm is raised."""
    chains = chain.plan.chains
    langevin = isinstance(chain.kernel, Langevin)
    reference = isinstance(chain.kernel, ReferenceLangevin)
    cheap = (langevin and not reference) or chain.study.bounds.statistic  # no pass over the records a step
    size = 4096 if cheap else int(max(_CHUNK_TERMS // (access.rows * chains), _FEWEST))
    size = min(size, access.longest, max(int(chain.plan.iterations * watch.FIRST_LOOK), _FEWEST))
    per_step, needed = _expected_cost(chain), 1
    numbers = chains * _numbers_a_step(chain.kernel)
    hard = min(limit, chain.steps + (MAX_RELEASES - chain.releases) // numbers)
    size = min(size, max(hard - chain.steps, 1))  # noise that is not used is thrown away
    with _interrupts() as interrupted:
        while chain.steps < hard:
            if interrupted():
                return StopReason.INTERRUPTED
            if watched and alarmed(chain):  # also the first thing that is asked of a chain that was taken up again
                return StopReason.NOT_MIXING
            want = min(size, hard - chain.steps)
            try:
                chunk = access.chunk(
                    chain.states,
                    chain.stream.peek(chain.kernel, size),
                    want,
                    int(per_step * want * _HEADROOM) + 1,
                    needed,
                )
            except (BudgetSpent, OwnerLost) as error:
                chain.stop_owner = error.owner
                return StopReason.BUDGET_SPENT if isinstance(error, BudgetSpent) else StopReason.OWNER_LOST
            _keep(chain, chunk, kept)
            chunk.settle()
            needed = chunk.needed if chunk.steps < want else 1
            if chunk.steps:
                per_step = max(1.0, chunk.spent / chunk.steps)
            expected = min(hard, chain.steps + int(access.left / max(per_step, 1)))
            tick(chain.steps, expected, "sampling")
    return StopReason.FINISHED


def alarmed(chain: Chain) -> bool:
    """Whether the chain looks at itself after its latest part, and sees that there is no use in going on: see `sfumato.watch`."""
    look = watch.due(*[0.0, 0.0, *chain.marks][-2:])
    if look == 0:
        return False
    transcript = join_parts(chain)
    return bool(watch.alarms(transcript, chain_terms(chain), watch.level(look)))


def chain_terms(chain: Chain) -> dict[str, Any]:
    """The plan as plain values, with what the chain's own answers are compared with.

    See `watched_terms`. `trust` is the radius of the trust region, where there is one.
    """
    kernel, model = chain.kernel, chain.study.model
    public = kernel.public if isinstance(kernel, Langevin) else model.log_prior
    return watched_terms(chain.plan, model, public) | {
        "trust": kernel.trust if isinstance(kernel, ReferenceLangevin) else None
    }


def watched_terms(plan: Plan, model: Model, public: Callable[[Any], Any]) -> dict[str, Any]:
    """The plan as plain values, with public numbers at its centre, in its coordinates.

    `slope`: the gradient of what is public of the log posterior, zero where it has none. `prior_share`: how much of the planned
    precision is the prior's, coordinate by coordinate.
    """
    root = np.linalg.cholesky(plan.picture.covariance)
    with jax.enable_x64(True):
        gradient = hastily(jax.grad(public))(jnp.asarray(plan.picture.centre))
        prior = prior_precision(model, plan.picture.centre)
    slope = root.T @ np.asarray(gradient)
    share = np.clip(np.diag(root.T @ prior @ root), 0.0, 1.0)
    return _plan_terms(plan) | {
        "slope": np.where(np.isfinite(slope), slope, 0.0).tolist(),
        "prior_share": share.tolist(),
        "trust": None,
    }


def _numbers_a_step(kernel: Kernel) -> int:
    """Numbers that a step of one chain releases."""
    if not isinstance(kernel, Langevin):
        return 1
    dim = len(kernel.matrix)
    return 2 * dim if kernel.copy_sigma else 1 + dim


def _expected_cost(chain: Chain) -> float:
    """Quanta per step of all chains, from the plan."""
    plan = chain.plan
    return max(1.0, plan.mu**2 * QUANTA_PER_UNIT / max(plan.iterations, 1))


def _keep(chain: Chain, chunk: Any, kept: Checkpoint | None) -> None:
    part = {name: np.asarray(value) for name, value in chunk.transcript._asdict().items() if value is not None}
    _count(chain, part, chunk.spent)
    chain.states = chunk.states
    chain.stream.consume(chunk.steps)
    if kept is not None:
        kept.add(Saved(part, chunk.states, chunk.spent, chunk.block.number, chunk.block.quanta))


def _count(chain: Chain, part: dict[str, np.ndarray], spent: int) -> None:
    """Add a part of the transcript, and what was released with it."""
    chain.parts.append(part)
    chain.steps += len(part["accepted"])
    chain.spent += spent
    budget = chain.plan.mu**2 * QUANTA_PER_UNIT
    chain.marks.append(max(chain.steps / max(chain.plan.iterations, 1), chain.spent / budget))
    # A correction made from a second copy is no release of its own: the copy is.
    scalars = 0 if "copy_noisy" in part else int(np.sum(part["sensitivity"] > 0))
    chain.releases += scalars + sum(part[name].size for name in ("t_noisy", "copy_noisy") if name in part)


def _replay(chain: Chain, kept: Checkpoint, opened: Opened) -> None:
    """Take up every durable chunk; settle the last one if the crash came between writing and settling."""
    for saved in kept.read():
        take_up(chain, saved)
        Block(opened.account, saved.block, saved.reserved).settle(saved.spent)


def take_up(chain: Chain, saved: Saved) -> None:
    """Go on from one durable chunk."""
    _count(chain, saved.transcript, saved.spent)
    with jax.enable_x64(True):  # outside of it JAX would halve the precision of the state
        chain.states = State(*(None if part is None else jnp.asarray(part) for part in saved.states))
    chain.stream.skip(chain.kernel, len(saved.transcript["accepted"]))


# -- after the chain --------------------------------------------------------------------------------------------------


def _wrap(chain: Chain, terms: Mapping[str, Any], opened: Opened, reason: StopReason, waited: float) -> Run:
    bounds, plan = chain.study.bounds, chain.plan
    transcript = join_parts(chain)
    transcript["mu_squared"] = (transcript["sensitivity"] / plan.sigma) ** 2 + first_cost(chain.kernel, chain.study)
    statement = Statement(
        epsilon=terms["epsilon"],
        delta=terms["delta"],
        mu=plan.mu,
        releases=chain.releases,
        spent_mu=float(np.sqrt(opened.account.spent / QUANTA_PER_UNIT)),
        n=opened.vault.n,
        lattice_slack=lattice_slack(terms["epsilon"]),
        sensitivity=bounds.describe(),
        exact=exactness(chain, bounds.proven, terms["outside"]),
        precision=terms["precision"],
        shared_ledger=not terms["own_ledger"],
        outside=terms["outside"],
    )
    return make_run(chain, transcript, statement, reason, waited, terms["outside"])


def exactness(chain: Chain, proven: bool, outside: str) -> str:
    """Whether the draws come from the exact posterior, in one sentence."""
    model = "the stated model given the clamped records" if outside == "clamp" else "the stated model"
    if isinstance(chain.kernel, ReferenceLangevin):
        return (
            f"The draws come from the exact posterior of {model}, restricted to parameters within "
            f"{chain.kernel.trust:.1f} planned posterior standard deviations of the pilot's centre."
        )
    if proven:
        return f"The draws come from the exact posterior of {model}."
    return PERHAPS_CUT


def join_parts(chain: Chain) -> dict[str, np.ndarray]:
    """The transcript so far in one piece, arrays (chain, draw, ...)."""
    parts = chain.parts or [{name: _blank(name, chain) for name in FIELDS}]
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return {name: np.swapaxes(array, 0, 1) for name, array in joined.items()}


def make_run(
    chain: Chain, transcript: Mapping[str, np.ndarray], privacy: Statement | JointStatement, reason: StopReason,
    waited: float, outside: str,
) -> Run:  # fmt: skip
    """A run from what was released."""
    model = chain.study.model
    with jax.enable_x64(True):
        constrained = jax.jit(jax.vmap(jax.vmap(model.constrain)))(jax.device_put(transcript["theta"]))
    discarded = visible_transient(transcript["theta"])
    return Run(
        draws={name: np.asarray(value)[:, discarded:] for name, value in constrained.items()},
        transcript=transcript,
        privacy=privacy,
        stop_reason=reason,
        plan=chain_terms(chain),
        pilot=chain.pilot | {"outside": outside},
        coordinates=tuple(model.coordinate_names()),
        seed=chain.stream.seed,
        waited_share=waited,
        family=chain.study.family,
        stop_owner=chain.stop_owner,
        discarded=discarded,
    )


def first_cost(kernel: Kernel, study: Study) -> float:
    """Mu squared of the first query of a Langevin step, if one owner adds all of its noise; walks have none."""
    if isinstance(kernel, ReferenceLangevin) and study.near is not None:
        return (study.near.at(kernel.centre, kernel.matrix).gradients.diameter / kernel.proposal_sigma) ** 2
    if not isinstance(kernel, Langevin) or study.family is None:
        return 0.0
    return (study.family.known_diameter(kernel.matrix) / kernel.proposal_sigma) ** 2


def _blank(name: str, chain: Chain) -> np.ndarray:
    shape = (0, chain.plan.chains, chain.study.model.dim) if name.startswith("theta") else (0, chain.plan.chains)
    return np.zeros(shape, bool if name == "accepted" else float)


@contextmanager
def _closing(opened: Opened) -> Iterator[None]:
    try:
        yield
    finally:
        opened.vault.close()
        if opened.own_ledger is not None:
            opened.own_ledger.close()


# -- terms of a run, as they are written down -------------------------------------------------------------------------


def _terms(
    run_id: str, seed: int, epsilon: float, delta: float, mu: float, chains: int, kernel: str, precision: str, outside: str
) -> dict[str, Any]:  # fmt: skip
    return {
        "run_id": run_id,
        "seed": seed,
        "epsilon": float(epsilon),
        "delta": float(delta),
        "mu": mu,
        "chains": chains,
        "kernel": kernel,
        "precision": precision,
        "outside": outside,
    }


def _plan_terms(plan: Plan) -> dict[str, Any]:
    picture = {
        "centre": plan.picture.centre.tolist(),
        "covariance": plan.picture.covariance.tolist(),
        "origin": plan.picture.origin,
        "error": plan.picture.error,
        "roughness": plan.picture.roughness,
    }
    return plan.to_dict() | {"picture": picture}


def _plan_from(written: Mapping[str, Any]) -> Plan:
    raw = dict(written)
    picture = raw.pop("picture")
    for derived in ("share_of_limit", "weak", "hopeless"):
        raw.pop(derived)
    raw["assumptions"], raw["owners"] = tuple(raw["assumptions"]), tuple(raw.get("owners", ()))
    raw["matrix"] = np.array(raw["matrix"])
    for pairs in ("considered", "missing"):
        raw[pairs] = tuple((name, value) for name, value in raw[pairs])
    raw["band"] = tuple(raw["band"]) if raw.get("band") else None
    centre, covariance = (np.array(picture[name]) for name in ("centre", "covariance"))
    raw["picture"] = Picture(centre, covariance, picture["origin"], picture["error"], picture["roughness"])
    return Plan(**raw)


def plan(
    model: Model | Family | Callable[..., Any],
    owner: Any = None,
    *,
    n: int | None = None,
    domain: Mapping[str, Domain] | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    kernel: str = "auto",
    sensitivity: Any = "certify",
    chains: int = 4,
    guess: Mapping[str, Any] | None = None,
    example: Mapping[str, Any] | None = None,
    max_iterations: int | None = None,
    pilot_share: float | None = None,
    truncate: float | None = None,
) -> Plan:
    """Plan a study: what (epsilon, delta) will buy on n records. Spends nothing and sees no data.

    `owner` is what `connect` gave: the number of records and the domain then come from there. Or a list of owners, as for
    `sample`; of those with records in this process, n must be stated (`Owner(..., n=...)`). See `sample` for the other
    parameters.
    """
    if owner is not None and not (hasattr(owner, "study") and hasattr(owner, "door")):
        return _plan_list(
            model, owner, n, domain, epsilon, delta, kernel=kernel, sensitivity=sensitivity, chains=chains, guess=guess,
            example=example, iterations=asked_steps(None, max_iterations), pilot_share=pilot_share,
            truncate=truncate,
        )  # fmt: skip
    if owner is not None:
        _, study, there = owner.study(model, domain, sensitivity, kernel)
        if n not in (None, there):
            raise InvalidInput(
                f"n is the owner's to say, and {owner.name!r} has {there:,} records, not {n}; leave n= out."
            )
        n = there
    elif n is None:
        raise InvalidInput("a plan needs the number of records: n=..., or an owner from sf.connect.")
    else:
        study = make_study(model, domain, sensitivity, kernel)
    if epsilon is None or delta is None:
        raise InvalidInput("epsilon and delta must be given: the owner chooses the guarantee, there is no default.")
    return make_plan(
        study, n=n, epsilon=epsilon, delta=delta, kernel=kernel, chains=chains,
        guess=guess, example=example, max_iterations=max_iterations, pilot_share=pilot_share, truncate=truncate,
    )  # fmt: skip


def _plan_list(
    model: Any, owners: Any, n: int | None, domain: Mapping[str, Domain] | None, epsilon: float | None, delta: float | None,
    **wishes: Any,
) -> Plan:  # fmt: skip
    from sfumato.consortium import Wishes, as_owners, plan_owners

    parties = as_owners(owners, epsilon, delta)
    if parties is None:
        raise InvalidInput(
            f"a plan sees no data; give n= and domain=, or an owner from sf.connect, or a list of owners. Got "
            f"{type(owners).__name__}."
        )
    if n is not None:
        raise InvalidInput("n is the owners' to say; leave n= out, or state it for each: sf.Owner(..., n=...).")
    return plan_owners(model, parties, domain, Wishes(**wishes))
