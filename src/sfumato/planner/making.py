"""Budget in, plan out: before a single answer is paid for.

`make_plan` needs the model, the number of records and the domain, all public, and spends nothing. What it cannot know it
assumes, and says so. `replan` does the same sum again with what a pilot paid to learn.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from sfumato.bounds import synthetic
from sfumato.errors import InvalidInput, Unsupported
from sfumato.kernel import AUTO, KINDS, asks_first
from sfumato.model.robust import target_of
from sfumato.planner import truncated
from sfumato.planner.advice import advice
from sfumato.planner.belief import Belief, assumed_belief
from sfumato.planner.centre import assumed_centre
from sfumato.planner.choice import Task
from sfumato.planner.forecast import forecast_estimate
from sfumato.planner.influence import influence
from sfumato.planner.limit import limit_band, limit_ess, one_shot_limit
from sfumato.planner.pilot import PLACING
from sfumato.planner.plan import Plan
from sfumato.planner.tuning import choose, tune
from sfumato.privacy.budget import MAX_RELEASES
from sfumato.privacy.promise import budget_mu
from sfumato.study.target import Study

PILOT_SHARE = 0.1
"""Share of the budget (of mu squared) that the pilot may spend."""
PILOT_SHARES = (0.03, 0.05, 0.07, 0.1)
"""Shares that are tried where the chain will be Langevin around the pilot's centre."""
FAMILY_PILOT_SHARE = 0.03
"""The same for a regular family, whose information is public: three gradients are enough."""
MAX_ITERATIONS = 10_000
"""Default limit on steps per chain where each is a pass over the records."""
MAX_FAMILY_ITERATIONS = 50_000
"""Default limit where the sum of statistics answers."""


def first_belief(study: Study, n: int, guess: Mapping[str, Any] | None, example: Mapping[str, Any] | None) -> Belief:
    """The public belief that everything starts from: a guess or a point of the prior, and the scale of made-up records."""
    shown = None if example is None else synthetic.given(study.domain, example)
    with jax.enable_x64(True):
        centre, origin = assumed_centre(study.model, guess)
        return assumed_belief(study.model, study.domain, n, centre, shown, origin)


def make_plan(
    study: Study,
    *,
    n: int,
    epsilon: float,
    delta: float,
    kernel: str = "auto",
    chains: int = 4,
    guess: Mapping[str, Any] | None = None,
    example: Mapping[str, Any] | None = None,
    max_iterations: int | None = None,
    pilot_share: float | None = None,
    mu: float | None = None,
    truncate: float | None = None,
    ahead: bool = False,
) -> Plan:
    """Plan from public quantities alone; `mu`, if given, is what the budget is worth (that of several owners together).

    `ahead`: answers take long to come, so Langevin on a family asks for all it needs ahead (`Task.ahead`).
    """
    kernel = truncated.check(truncate, kernel)
    mu = budget_mu(epsilon, delta) if mu is None else mu
    max_iterations, share = iteration_limit(study, max_iterations), pilot_fraction(study, pilot_share)
    check_counts(n, chains, max_iterations, kernel, share)
    shown = None if example is None else synthetic.given(study.domain, example)
    belief = first_belief(study, n, guess, example)
    centre, origin = belief.centre, belief.origin
    made_up = (
        "records uniform over the domain" if study.model.sample_records is None else "records drawn from the family"
    )
    source = "public example records" if example is not None else made_up
    assumptions = (f"theta near {origin}", source, "a posterior close to normal")
    whole = Task(
        study=study, belief=belief, mu=mu, n=n, chains=chains, max_iterations=max_iterations, truncate=truncate,
        ahead=ahead,
    )  # fmt: skip
    if pilot_share is None:
        share = _best_share(whole, kernel, share)
    promised = _Promised(epsilon, delta, kernel, assumptions)
    plan = _assemble(_after_pilot(whole, share), promised, 1 - share, share)
    if pilot_share is None and share != PILOT_SHARE and not (asks_first(plan.kernel) or study.natural):
        plan = _assemble(whole, promised, 1 - PILOT_SHARE, PILOT_SHARE)
    # At a place where one record could move everything no kernel gets its share; elsewhere it will.
    hoped = max(*(kind.ordinary_share for kind in study.kernels(kernel)[0]), plan.share_of_limit)
    band = limit_band(study, n, centre, shown, mu, guess is not None)
    low, high = band[0] * plan.share_of_limit, band[1] * hoped
    with jax.enable_x64(True):
        estimate = forecast_estimate(study, plan.belief, mu**2, (band[0] / plan.limit_ess, band[1] / plan.limit_ess))
        priced = influence(study, plan.belief, n, mu, plan.share_of_limit, shown, weak=plan.weak)
    ends = (min(low, plan.forecast_ess), max(high, plan.forecast_ess))
    return replace(plan, band=ends, estimate=estimate, influence=priced)


def _best_share(whole: Task, kernel: str, usual: float) -> float:
    """The pilot's share with the best forecast for kernels around its centre: a better one makes the second query cheaper."""
    around = [kind for kind in whole.study.kernels(kernel)[0] if kind.second == "remainder"]

    def ess(share: float) -> float:
        return max(tune(kind, _after_pilot(whole, share).for_share(1 - share)).ess for kind in around)

    if not around:
        return usual
    try:
        return max(PILOT_SHARES, key=ess)
    except Unsupported:
        return PILOT_SHARE


def _after_pilot(whole: Task, share: float) -> Task:
    """The same with the error that a pilot of this share will leave in the centre."""
    study, belief = whole.study, whole.belief
    if share == 0 or not study.can_answer("remainder"):
        return whole
    with jax.enable_x64(True):
        limit = limit_ess(study.model, study.domain, belief, whole.mu)
    return replace(whole, belief=replace(belief, error=(PLACING * share * limit) ** -0.5))


def replan(
    plan: Plan,
    study: Study,
    belief: Belief,
    share_left: float,
    *,
    kernel: str,
    max_iterations: int | None,
    ahead: bool = False,
) -> Plan:
    """Plan again with what the pilot found, for the share of the budget that is left."""
    whole = Task(
        study=study, belief=belief, mu=plan.mu, n=plan.n, chains=plan.chains,
        max_iterations=iteration_limit(study, max_iterations), truncate=plan.truncate, ahead=ahead,
    )  # fmt: skip
    assumptions = (belief.origin, "a posterior close to normal")
    return _assemble(whole, _Promised(plan.epsilon, plan.delta, kernel, assumptions), share_left, 0.0)


class _Promised(NamedTuple):
    """What a plan says of itself and does not compute: the guarantee, the kernel that was asked for, what it rests on."""

    epsilon: float
    delta: float
    kernel: str
    assumptions: tuple[str, ...]


def _assemble(whole: Task, promised: _Promised, share: float, pilot_share: float) -> Plan:
    """Tune for a share of the budget, and compare with the limit of all of it."""
    study, belief = whole.study, whole.belief
    choices, missing = choose(whole.for_share(share), promised.kernel)
    with jax.enable_x64(True):
        limit = max(one_shot_limit(study, belief, whole.mu), choices[0].ess)  # what a kernel gets, records attain
        forecast = forecast_estimate(
            study, belief, (share + pilot_share) * whole.mu**2
        )  # it has the pilot's share, too
        target = target_of(study.model, study.domain, belief.centre, belief.origin.replace("releases", "centre"))
    choice, considered = choices[0], tuple((c.kernel, c.ess / limit) for c in choices)
    plan = Plan(
        kernel=choice.kernel, sigma=choice.sigma, step=choice.step, iterations=choice.iterations, chains=whole.chains,
        n=whole.n, epsilon=float(promised.epsilon), delta=float(promised.delta), mu=whole.mu, pilot_share=pilot_share,
        forecast_ess=choice.ess, limit_ess=limit, assumptions=promised.assumptions, belief=belief, matrix=choice.matrix,
        family=study.family is not None, considered=considered, truncate=whole.truncate, copy_sigma=choice.copy_sigma,
        missing=tuple(missing.items()), target=target,
        estimate=forecast,
    )  # fmt: skip
    return replace(plan, hint=(advice(study, belief.centre) if plan.weak else None) or "")


def pilot_fraction(study: Study, asked: float | None) -> float:
    """Share of the budget for the pilot."""
    if asked is not None:
        return asked
    return FAMILY_PILOT_SHARE if study.knows_information else PILOT_SHARE


def asked_steps(*asked: int | None) -> int | None:
    """Steps per chain at the most, as asked: the smallest of those given; None where none is."""
    for value in asked:
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1):
            raise InvalidInput(
                f"iterations and max_iterations must be whole numbers of at least 1, got {value!r}; leave them out to sample "
                "until the budget is spent."
            )
    return min((int(value) for value in asked if value is not None), default=None)


def iteration_limit(study: Study, asked: int | None) -> int:
    """Steps per chain at the most."""
    if asked is not None:
        return asked
    return MAX_FAMILY_ITERATIONS if study.sums_statistics else MAX_ITERATIONS


def check_counts(n: int, chains: int, max_iterations: int, kernel: str, pilot_share: float) -> None:
    """Refuse counts and names that no plan can be made for."""
    if not (isinstance(n, int | np.integer) and n >= 2):
        raise InvalidInput(f"n must be a whole number of at least two records, got {n!r}.")
    if not (isinstance(chains, int | np.integer) and chains >= 1):
        raise InvalidInput(f"chains must be a whole number of at least one, got {chains!r}.")
    if not (isinstance(max_iterations, int | np.integer) and 1 <= max_iterations * chains <= MAX_RELEASES // 2):
        raise InvalidInput(
            f"max_iterations must lie between 1 and {MAX_RELEASES // 2 // chains:,} for {chains} chains, got {max_iterations!r}."
        )
    if kernel not in (AUTO, *KINDS):
        raise InvalidInput(f"kernel must be one of {', '.join((AUTO, *KINDS))}, got {kernel!r}.")
    if not 0 <= pilot_share < 1:
        raise InvalidInput(f"pilot_share must lie in [0, 1), got {pilot_share!r}.")
