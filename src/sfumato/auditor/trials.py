"""Runs on made-up tables, one after another: the real path, from the pilot's questions to the last step that can be paid.

The first run is an ordinary one: plan, pilot, plan again. All others ask the same questions of the pilot (planning again after
every pilot would compile anew for every run) and then sample with the same kernel, each until its own account is empty. That
is no loss: the promise is for all questions, also for those that somebody else thought of.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.analysis.result import StopReason
from sfumato.auditor.terms import Terms
from sfumato.bounds.synthetic import Batch
from sfumato.kernel import PublicStream
from sfumato.planner import Plan, build_kernel, replan
from sfumato.privacy.budget import QUANTA_PER_UNIT
from sfumato.protocol.questions import Release
from sfumato.run.chain import Chain, draw, start
from sfumato.run.interruption import check as check_interrupted
from sfumato.run.interruption import listening
from sfumato.run.piloting import find_start, first_pilot
from sfumato.run.pilotlog import PilotLog
from sfumato.study.target import Study
from sfumato.vault.audit_vault import AuditVault

STEPS = 16
"""Steps a run is planned for: the fewer, the cheaper an audit; the last step that does not fit is what it cannot see."""
MOST_STEPS = 8 * STEPS


class Released(NamedTuple):
    """All that the runs on one table released, steps of all runs one after another. Public.

    Attributes
    ----------
    pilot
        Answers to each of the pilot's questions: (run, k).
    run, theta, theta_prop, d_n_noisy
        Of each step of each chain: which run it is of, the pair, the answer (NaN: not asked).
    first_run, first
        The same for Langevin's first queries, whose answers are vectors.
    """

    pilot: list[np.ndarray]
    run: np.ndarray
    theta: np.ndarray
    theta_prop: np.ndarray
    d_n_noisy: np.ndarray
    first_run: np.ndarray
    first: np.ndarray


@dataclass(frozen=True)
class Rehearsed:
    """What the first run settled for all others: the plan, the pilot's questions, the chains before their first step."""

    plan: Plan
    pilot: list[Release]
    chain: Chain
    terms: Terms


def rehearse(study: Study, plan: Plan, vault: AuditVault, pool: Batch, seed: int | None) -> Rehearsed:
    """Make the first run, up to its chain.

    Parameters
    ----------
    vault
        The vault, with a made-up table in it.
    pool
        Made-up records among which the worst two are looked for.
    """
    account, pilots = vault.open_account(), first_pilot(plan.pilot_share, plan.pilot_share)
    pilot: dict[str, Any] = {"releases": [], "share": 0.0}
    if plan.pilot_share > 0:
        found = find_start(study, plan, PilotLog(vault.release, None), pilots, force=True)
        vault.forget()
        left, pilot = account.left / QUANTA_PER_UNIT / plan.mu**2, found.about
        plan = replan(plan, study, found.belief, left, kernel=plan.kernel, max_iterations=STEPS)
    plan = aim(study, plan, pool)
    chain = start(study, plan, PublicStream(seed, plan.chains), pilot)
    vault.begin(chain.kernel, plan.sigma, chain.states)
    return Rehearsed(plan, list(vault.asked), chain, Terms(study, chain.kernel, plan.n))


def aim(study: Study, plan: Plan, pool: Batch) -> Plan:
    """Let a walk move along one direction only: the one in which two records differ by the largest share of the width.

    One pair of records cannot be the worst one in all directions. An analyst may choose the questions; so may the auditor.
    """
    dim = len(plan.matrix)
    kernel, here = build_kernel(study, plan), np.tile(plan.belief.centre, (dim, 1))
    if kernel.first or dim == 1:
        return plan
    there = here + plan.step * plan.matrix.T
    change = Terms(study, kernel, plan.n).step(pool, here, there)
    change = np.where(np.isfinite(change), change, np.nan)
    with jax.enable_x64(True):
        ranges = jax.jit(jax.vmap(study.bounds.range_for(plan.n)))(jnp.asarray(here), jnp.asarray(there))
        low, high = (np.asarray(end) for end in ranges)
    seen = (np.nanmax(change, axis=1) - np.nanmin(change, axis=1)) / np.maximum(high - low, 1e-300)
    column = plan.matrix[:, int(np.nanargmax(seen))]
    scale = dim**-0.5 if kernel.whole else 1.0  # its step is a combination of all columns
    return replace(plan, matrix=np.repeat(scale * column[:, None], dim, axis=1))


def typical(rehearsed: Rehearsed) -> Callable[[Batch], np.ndarray]:
    """Function of records to what they add to the answers of a typical run, in units of the noise: (record, feature)."""
    plan, terms, kernel = rehearsed.plan, rehearsed.terms, rehearsed.chain.kernel
    answers = plan.iterations * plan.chains

    def features(batch: Batch) -> np.ndarray:
        parts = [terms.pilot(question, batch) / question.sigma for question in rehearsed.pilot]
        if kernel.first:
            parts.append(terms.first(batch) / kernel.proposal_sigma * answers**0.5)
        else:
            places = plan.belief.centre + np.linspace(-1, 1, 3)[:, None] * plan.matrix[:, 0]
            change = terms.step(batch, places, places + plan.step * plan.matrix[:, 0])
            parts.append(change.T / plan.sigma * (answers / len(places)) ** 0.5)
        return np.concatenate(parts, axis=1)

    return features


@listening()
def run_trials(rehearsed: Rehearsed, vault: AuditVault, numbers: range, tick: Callable[[int], None]) -> Released:
    """Run the study, once for every number, on the table that is behind the wall: each run with an account of its own.

    The number also gives a run its own public randomness: runs are independent of each other.

    Raises
    ------
    KeyboardInterrupt
        If the user asked to stop.
    """
    pilot: list[list[np.ndarray]] = [[] for _ in rehearsed.pilot]
    steps, firsts = [], []
    for trial, number in enumerate(numbers):
        check_interrupted()
        vault.open_account()
        for answers, question in zip(pilot, rehearsed.pilot, strict=True):
            theta, matrix, centre = (np.array(part) for part in (question.theta, question.matrix, question.centre))
            answers.append(vault.release(question.what, theta, matrix, question.radius, question.sigma, centre))
        stream = PublicStream(rehearsed.chain.stream.seed + 1 + number, rehearsed.plan.chains)
        chain = replace(rehearsed.chain, stream=stream, parts=[], steps=0, spent=0, marks=[])
        vault.again(chain.states)
        # Unwatched: an alarm only ends a run early, and an attacker who sees more of it is the stronger one.
        if draw(chain, vault, MOST_STEPS, None, _silent, watched=False) is StopReason.INTERRUPTED:
            raise KeyboardInterrupt
        steps.append(_steps(trial, chain, rehearsed.chain))
        firsts.append(_firsts(trial, chain))
        tick(number + 1)
    joined = [np.concatenate(parts) for parts in (*zip(*steps, strict=True), *zip(*firsts, strict=True))]
    return Released([np.array(answers) for answers in pilot], *joined)


def _steps(trial: int, chain: Chain, before: Chain) -> tuple[np.ndarray, ...]:
    """Pairs and answers of one run, chains one after another within a step."""
    dim, start = chain.study.model.dim, np.asarray(before.states.theta)
    theta, theta_prop, d_n_noisy = (_joined(chain, name) for name in ("theta", "theta_prop", "d_n_noisy"))
    here = np.concatenate([start[None], theta.reshape(-1, *start.shape)])[:-1]  # what is kept is theta after the step
    pairs = here.reshape(-1, dim), theta_prop.reshape(-1, dim)
    return np.full(d_n_noisy.size, trial), *pairs, d_n_noisy.reshape(-1)


def _firsts(trial: int, chain: Chain) -> tuple[np.ndarray, np.ndarray]:
    """Answers to the first queries of one run, with that of a step whose second query could not be paid any more."""
    if not chain.kernel.first:
        return np.zeros(0, int), np.zeros((0, 0))
    dim, pending = len(chain.kernel.matrix), np.asarray(chain.states.pending)
    answers = np.concatenate([_joined(chain, "t_noisy").reshape(-1, dim), pending[np.isfinite(pending).all(axis=1)]])
    return np.full(len(answers), trial), answers


def _joined(chain: Chain, name: str) -> np.ndarray:
    return np.concatenate([part[name] for part in chain.parts]) if chain.parts else np.zeros(0)


def _silent(done: int, total: int, text: str) -> None:
    """Nobody watches a single run."""
