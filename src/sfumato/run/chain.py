"""The chains of a run: where they start, how they are drawn chunk after chunk, and the run that comes out.

The loop fetches and never computes; the kernel computes and never fetches; the vault alone reads records, and pays
before it speaks. Each chunk is made durable (if there is a checkpoint) before its unspent reservation is given back.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.analysis import watch
from sfumato.analysis.facts import made_today
from sfumato.analysis.result import Run, StopReason
from sfumato.analysis.verdict import visible_transient
from sfumato.errors import BudgetSpent, OwnerLost
from sfumato.kernel import Kernel, PublicStream, State
from sfumato.kernel.langevin import asked_sigma
from sfumato.model import Model
from sfumato.owners.base import Chunks
from sfumato.planner import MAX_RELEASES, Plan, build_kernel
from sfumato.planner.belief import prior_precision
from sfumato.privacy import gdp
from sfumato.privacy.budget import QUANTA_PER_UNIT
from sfumato.privacy.joint import JointStatement
from sfumato.privacy.statement import AS_FAR_AS_SEARCHED, PERHAPS_CUT, Statement
from sfumato.run.interruption import until_asked
from sfumato.run.journal import Journal, Saved
from sfumato.study.target import Study
from sfumato.tools import progress
from sfumato.tools.progress import Tick
from sfumato.tools.quick_jit import quick_jit

FIELDS = ("theta", "theta_prop", "d_n_noisy", "sensitivity", "accepted", "sigma")
CHUNK_TERMS = 40_000_000
"""Record evaluations per compiled call: a fraction of a second, so that progress moves."""
FEWEST = 32
"""Steps per compiled call at the least."""
LOOK_SECONDS = 2.0
"""How often whoever watches is told how many effective draws there are."""
LOOKED_AT = 20
"""Parameters that are looked at for that."""
FIRST_TERMS = 4_000_000
"""Record evaluations of the first compiled call: draws are there a moment after it was compiled."""
CHEAP_CHUNK = 4096
"""Steps per compiled call where a step makes no pass over the records."""
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
    first_plan: Mapping[str, Any] | None = None
    marks: list[float] = field(default_factory=list)
    """Share of the plan that was done after each part: of its steps or of its budget, whichever is more."""


def start(study: Study, plan: Plan, stream: PublicStream, pilot: Mapping[str, Any]) -> Chain:
    """Starting states, one per chain, drawn from what is believed of the posterior."""
    kernel = build_kernel(study, plan)
    log_prior = jax.vmap(study.model.log_prior)

    @quick_jit
    def states_at(theta: Any, centre: Any, directions: Any) -> State:
        outside = ~jnp.isfinite(log_prior(theta))[:, None]
        theta = jnp.where(outside, jnp.broadcast_to(centre, theta.shape), theta)
        pending = jnp.full(theta.shape, jnp.nan, theta.dtype) if kernel.first else None
        return State(theta, log_prior(theta), directions, pending)

    with jax.enable_x64(True):
        theta = stream.starts(plan.belief.centre, plan.belief.start)
        states = states_at(theta, plan.belief.centre, stream.directions(plan.matrix.shape[1]))
    coordinates = sum(len(r["answer"]) for r in pilot["releases"]) + pilot.get("lost", 0)
    return Chain(study, plan, kernel, stream, states, releases=coordinates, pilot=dict(pilot))


def draw(
    chain: Chain, access: Chunks, limit: int, kept: Journal | None, tick: Tick, *, watched: bool = True
) -> StopReason:
    """Chunk after chunk, of chains that have begun, until the steps, the budget or the patience end, or an alarm is raised."""
    chains = chain.plan.chains
    cheap = chain.kernel.second == "linear" or chain.study.sums_statistics  # no pass over the records a step
    size = CHEAP_CHUNK if cheap else int(max(CHUNK_TERMS // (access.rows * chains), FEWEST))
    size = min(size, access.longest, max(int(chain.plan.iterations * watch.FIRST_LOOK), FEWEST))
    per_step, needed, so_far = _expected_cost(chain), 1, SoFar()
    numbers = chains * chain.kernel.numbers_a_step
    hard = min(limit, chain.steps + (MAX_RELEASES - chain.releases) // numbers)
    size = min(size, max(hard - chain.steps, 1))  # noise that is not used is thrown away
    with until_asked() as interrupted:
        while chain.steps < hard:
            if interrupted():
                return StopReason.INTERRUPTED
            if watched and alarmed(chain):  # also the first thing that is asked of a chain that was taken up again
                return StopReason.NOT_MIXING
            want = min(size, hard - chain.steps)
            if not (chain.steps or cheap):
                want = min(want, max(FIRST_TERMS // (access.rows * chains), 1))
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
            tick(chain.steps, expected, so_far.words(chain) if progress.watched() else "sampling")
    return StopReason.FINISHED


class SoFar:
    """What a chain has come to, in a few words for whoever watches: computed from what was released, now and then."""

    def __init__(self) -> None:
        self._told, self._next = "", 0.0

    def words(self, chain: Chain) -> str:
        """Budget that was used and effective draws so far, the least of all parameters."""
        now = time.monotonic()
        if now >= self._next:
            self._told, self._next = self._worth(chain), now + LOOK_SECONDS
        plan = chain.plan
        spent = chain.spent / QUANTA_PER_UNIT + chain.pilot.get("share", 0.0) * plan.mu**2
        used = float(gdp.epsilon(max(min(spent, plan.mu**2), 1e-12) ** 0.5, plan.delta))
        return f"sampling, epsilon {used:.2g} of {plan.epsilon:g} used{self._told}"

    def _worth(self, chain: Chain) -> str:
        from sfumato.analysis.diagnostics import effective_draws

        theta = np.concatenate([part["theta"] for part in chain.parts]).swapaxes(0, 1)
        if theta.shape[1] < FEWEST:
            return ""
        worth = min(effective_draws(theta[..., j]) for j in range(min(theta.shape[2], LOOKED_AT)))
        return f", ESS {worth:,.0f} so far" if np.isfinite(worth) else ""


def alarmed(chain: Chain) -> bool:
    """Whether the chain looks at itself after its latest part, and sees that there is no use in going on: see `watch`."""
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
    return watched_terms(chain.plan, model, kernel.public_part(model.log_prior)) | {"trust": kernel.trust_radius}


def watched_terms(plan: Plan, model: Model, public: Callable[[Any], Any]) -> dict[str, Any]:
    """The plan as plain values, with public numbers at its centre, in its coordinates.

    `slope`: the gradient of what is public of the log posterior, zero where it has none. `prior_share`: how much of the planned
    precision is the prior's, coordinate by coordinate.
    """
    root = np.linalg.cholesky(plan.belief.covariance)
    with jax.enable_x64(True):
        gradient = quick_jit(jax.grad(public))(jnp.asarray(plan.belief.centre))
        prior = prior_precision(model, plan.belief.centre)
    slope = root.T @ np.asarray(gradient)
    share = np.clip(np.diag(root.T @ prior @ root), 0.0, 1.0)
    return plan.written() | {
        "slope": np.where(np.isfinite(slope), slope, 0.0).tolist(),
        "prior_share": share.tolist(),
        "trust": None,
    }


def _expected_cost(chain: Chain) -> float:
    """Quanta per step of all chains, from the plan."""
    plan = chain.plan
    return max(1.0, plan.mu**2 * QUANTA_PER_UNIT / max(plan.iterations, 1))


def _keep(chain: Chain, chunk: Any, kept: Journal | None) -> None:
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


def take_up(chain: Chain, saved: Saved) -> None:
    """Go on from one durable chunk."""
    _count(chain, saved.transcript, saved.spent)
    with jax.enable_x64(True):  # outside of it JAX would halve the precision of the state
        chain.states = State(*(None if part is None else jnp.asarray(part) for part in saved.states))
    chain.stream.skip(chain.kernel, len(saved.transcript["accepted"]))


def exactness(chain: Chain, proven: bool, outside: str, *, searched: bool = False) -> str:
    """Whether the draws come from the exact posterior, in one sentence."""
    posterior = "posterior" if chain.study.model.loss is None else "generalised posterior"
    model = "the stated model given the clamped records" if outside == "clamp" else "the stated model"
    if not (proven or searched or chain.kernel.trust_radius is not None):
        return PERHAPS_CUT
    within = ""
    if chain.kernel.trust_radius is not None:
        within = (
            f", restricted to parameters within {chain.kernel.trust_radius:.1f} planned posterior standard deviations of the "
            "pilot's centre"
        )
    return f"The draws come from the exact {posterior} of {model}{within}{AS_FAR_AS_SEARCHED if searched else ''}."


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
        planned=chain_terms(chain),
        pilot=chain.pilot | {"outside": outside},
        coordinates=tuple(model.coordinate_names()),
        seed=chain.stream.seed,
        waited_share=waited,
        study=chain.study,
        stop_owner=chain.stop_owner,
        discarded=discarded,
        facts=made_today(chain.study, chain.first_plan),
    )


def first_cost(kernel: Kernel, study: Study) -> float:
    """Mu squared of the first query of a Langevin step, if one owner adds all noise that is asked for; walks have none."""
    return (study.first_width(kernel) / asked_sigma(kernel)) ** 2


def _blank(name: str, chain: Chain) -> np.ndarray:
    shape = (0, chain.plan.chains, chain.study.model.dim) if name.startswith("theta") else (0, chain.plan.chains)
    return np.zeros(shape, bool if name == "accepted" else float)
