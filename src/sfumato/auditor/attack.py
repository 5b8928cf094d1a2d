"""The audit: two made-up tables, many real runs on each, and the best test of one against the other.

The promise is that nobody can tell from what a run releases whether a record was replaced, up to (epsilon, delta). So the
auditor tries: it makes two records up that are as far apart as the model and the domain allow, builds tables that differ in
them, runs the real thing on each many times (vault, noise, charges, filter), and tests the transcripts. What it can do at
least, anybody can.

Tables differ in one record, as the promise says, and in several. Where one record is protected by mu, k of them are by k mu:
a test of k records pins mu down k times as sharply, and most of what could be wrong shows there first.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from sfumato.auditor import trials as running
from sfumato.auditor.bound import lower_bound
from sfumato.auditor.neighbours import Neighbours, furthest, join, make_crowd, make_neighbours
from sfumato.auditor.result import Attack, Audit
from sfumato.auditor.score import Digester, Scores, score
from sfumato.auditor.terms import Terms
from sfumato.bounds import synthetic
from sfumato.domain import Domain
from sfumato.errors import InvalidInput
from sfumato.families.base import Family
from sfumato.model import Model
from sfumato.owners.local import open_audit_vault
from sfumato.planner import Plan, make_plan
from sfumato.study.target import Study, make_study
from sfumato.tools.kept_programs import kept_programs
from sfumato.tools.progress import Tick, ticker
from sfumato.vault.audit_vault import AuditVault

RECORDS = 1_000
"""Made-up records in a table, if nothing is said."""
MOST_RECORDS = 20_000
"""Made-up records at the most: the promise does not depend on their number, the time does."""
APART = 2.5
"""The tables that differ in several records differ in so many that k mu is about this: where a test is sharpest."""
FEWEST_TRIALS = 20


@kept_programs()
def audit(
    model: Model | Family | Callable[..., Any],
    domain: Mapping[str, Domain] | None = None,
    *,
    epsilon: float,
    delta: float,
    kernel: str = "auto",
    sensitivity: Any = "auto",
    n: int = RECORDS,
    chains: int = 2,
    trials: int = 1_000,
    confidence: float = 0.99,
    guess: Mapping[str, Any] | None = None,
    pilot_share: float | None = None,
    seed: int | None = None,
    progress: bool | Tick | None = None,
) -> Audit:
    """Attack the guarantee of a study on made-up records, and bound from below what it loses.

    Takes no data and spends nobody's budget. The audit passes if the bound does not exceed the promise. A pass does not prove
    the promise; a failure refutes it (with the stated confidence).

    Parameters
    ----------
    model, domain, kernel, sensitivity, guess, pilot_share
        The study, as for `sample`.
    epsilon, delta
        The promise that is attacked.
    n
        Number of records of the study; tables have as many made-up ones, up to 20 000.
    chains
        Chains of each run.
    trials
        Runs on each table. The distance of the bound from the truth falls like one over the root of this number.
    confidence
        Chance that an honest study does not fail, at least.
    seed
        For proposals and decisions; noise has none.
    progress
        None: a bar on a terminal; True or False; or a function (done, expected, text).

    Returns
    -------
    Audit
    """
    check_counts(n, trials, confidence)
    study, n = make_study(model, domain, sensitivity, kernel), min(int(n), MOST_RECORDS)
    with ticker(progress) as tick:
        terms: dict[str, Any] = {"n": n, "epsilon": epsilon, "delta": delta, "chains": chains, "guess": guess}
        terms["pilot_share"] = pilot_share
        if kernel == "auto":  # what a run would take, with all the steps that it may make
            kernel = make_plan(study, kernel=kernel, **terms).kernel
        plan = make_plan(study, kernel=kernel, max_iterations=running.STEPS, **terms)
        with prepared(study, plan, seed=seed) as ready:
            return attack(ready, trials=trials, confidence=confidence, tick=tick)


def check_counts(n: int, trials: int, confidence: float) -> None:
    """Refuse what no audit can be made of."""
    if not (isinstance(n, int | np.integer) and n >= 2):
        raise InvalidInput(f"n must be a whole number of at least two records, got {n!r}.")
    if not (isinstance(trials, int | np.integer) and trials >= FEWEST_TRIALS):
        raise InvalidInput(f"trials must be a whole number of at least {FEWEST_TRIALS} runs, got {trials!r}.")
    if not 0 < confidence < 1:
        raise InvalidInput(f"confidence must lie between 0 and 1, got {confidence!r}; 0.99 is usual.")


class Prepared(NamedTuple):
    """Everything in place for an attack: the vault, what the first run settled, the records, how many of them to replace."""

    study: Study
    vault: AuditVault
    rehearsed: running.Rehearsed
    neighbours: Neighbours
    counts: tuple[int, ...]


@contextmanager
def prepared(
    study: Study, plan: Plan, *, seed: int | None = None, source: Callable[[float], Any] | None = None
) -> Iterator[Prepared]:
    """Make the first run and find the two records; `source` is for tests alone, as in `Vault`."""
    counts = tuple(sorted({1, several(plan.mu, plan.n)}))
    crowd = make_crowd(study.model, study.domain, plan.belief.centre)
    someone = {name: values[:1] for name, values in crowd.items()}
    anybody = make_neighbours(study.domain, crowd, (someone, someone), plan.n, counts[-1])
    vault = open_audit_vault(study, anybody.table(0), mu=plan.mu, source=source)
    try:
        rehearsed = running.rehearse(study, plan, vault, join(synthetic.extreme(study.domain), crowd), seed)
        pair = furthest(running.typical(rehearsed), study.model, study.domain, rehearsed.plan.belief.centre)
        yield Prepared(study, vault, rehearsed, make_neighbours(study.domain, crowd, pair, plan.n, counts[-1]), counts)
    finally:
        vault.leave()


def attack(ready: Prepared, *, trials: int, confidence: float, tick: Tick = lambda done, total, text: None) -> Audit:
    """Run, test, and put the bounds beside the promise."""
    tables, released = (0, *ready.counts), []

    def count(done: int) -> None:
        tick(done, len(tables) * trials, "attacking")

    for done, replaced in enumerate(tables):
        ready.vault.show(ready.neighbours.table(replaced))
        numbers = range(done * trials, (done + 1) * trials)
        released.append(running.run_trials(ready.rehearsed, ready.vault, numbers, count))
    return _judge(ready, released, trials, confidence)


def several(mu: float, n: int) -> int:
    """How many records to replace: so many that tables are easy, but not too easy, to tell apart."""
    return max(1, min(round(APART / mu), n // 2))


def _judge(ready: Prepared, released: list[running.Released], trials: int, confidence: float) -> Audit:
    plan, kernel = ready.rehearsed.plan, ready.rehearsed.chain.kernel
    kinds = [ready.rehearsed.terms]
    if not ready.study.bounds.proven:  # here the vault's clamping is all there is: would it show if it did not?
        kinds.append(Terms(ready.study, kernel, plan.n, clamped=False))
    digesters = [Digester(terms, ready.neighbours, ready.rehearsed.pilot, kernel, plan.sigma) for terms in kinds]
    here, *others = ([digester.digest(part) for digester in digesters] for part in released)
    # The confidence holds for all attacks together, so each may be wrong for a part of the rest.
    alpha = (1 - confidence) / len(ready.counts)
    attacks = []
    for replaced, there in zip(ready.counts, others, strict=True):
        one, other = (score(table, ready.neighbours, replaced, trials) for table in (here, there))
        attacks.append(_test(one, other, replaced, alpha))
    return Audit(
        epsilon_promised=plan.epsilon, delta=plan.delta, mu_promised=plan.mu, confidence=float(confidence),
        trials=trials, kernel=plan.kernel, n=plan.n, chains=plan.chains, pilot=len(ready.rehearsed.pilot),
        attacks=tuple(attacks),
    )  # fmt: skip


def _test(here: Scores, there: Scores, replaced: int, alpha: float) -> Attack:
    bound = lower_bound(here.log_ratio, there.log_ratio, alpha)
    most = max(float(here.at_stake.max()), float(there.at_stake.max())) ** 0.5
    return Attack(replaced, bound.tested, bound.false_alarms, bound.misses, bound.mu_lower / replaced, most / replaced)
