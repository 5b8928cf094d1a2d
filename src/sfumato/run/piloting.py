"""From a plan to a start: one pilot after another until one arrives, for one table and for several owners alike.

A pilot that has not arrived stops its run before the chain spends (`NotArrived`). With a checkpoint the run goes on from
there: `resume(..., guess=...)` or `resume(..., pilot_share=...)` adds a pilot to the list in the run's terms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from sfumato.domain import Domain
from sfumato.errors import InvalidInput, NotArrived
from sfumato.model.base import theta_of
from sfumato.planner import Plan, run_pilot
from sfumato.planner.advice import ways_out
from sfumato.planner.belief import Belief
from sfumato.planner.forecast import EstimateForecast, forecast_estimate
from sfumato.planner.making import PILOT_SHARE
from sfumato.planner.pilot import DOUBT, FORGIVEN
from sfumato.run.journal import Journal
from sfumato.run.pilotlog import PilotLog
from sfumato.run.terms import Terms
from sfumato.study.target import Study

_ROOM = 0.999  # of the share that a pilot asks for: charges are rounded up


class Found(NamedTuple):
    """What the pilots found, and what a run keeps of them."""

    belief: Belief
    about: dict[str, Any]


def first_pilot(share: float, asked: float | None) -> list[dict[str, Any]]:
    """The list of pilots of a new run: one, with what is planned for it and what it may use at the most."""
    most = share if asked is not None or share == 0 else max(share, PILOT_SHARE)
    return [{"share": share, "most": most, "start": None}]


class NextPilot(NamedTuple):
    """What the analyst says to a run whose pilot did not arrive: see `sfumato.resume`."""

    guess: Mapping[str, Any] | None = None
    share: float | None = None

    def check_needed(self, terms: Terms) -> None:
        """Refuse words that would not be heard: the pilot has arrived and its chain goes on, or there will be no chain."""
        if terms.estimate and not (self.guess is None and self.share is None):
            raise InvalidInput(
                "guess= and pilot_share= are for a run with chains, and this is an estimate; leave them out."
            )
        if terms.plan is not None and not (self.guess is None and self.share is None):
            raise InvalidInput(
                "guess= and pilot_share= are for a run whose pilot did not arrive, and the pilot of this one has; leave them out."
            )

    def added_to(self, terms: Terms, study: Study, kept: Journal) -> Terms:
        """The run's terms; with one more pilot, durably, if the analyst said anything."""
        pilots = [dict(pilot) for pilot in terms.pilots]
        if self.guess is None and self.share is None:
            return terms
        if self.share is not None and not 0 < self.share < 1:
            raise InvalidInput(
                f"pilot_share must lie between 0 and 1, got {self.share!r}; it is a share of the whole budget."
            )
        start = None if self.guess is None else theta_of(study.model, self.guess, "guess").tolist()
        share = pilots[-1]["most"] if self.share is None else self.share
        pilots.append({"share": share, "most": share, "start": start})
        return kept.update_terms(pilots=pilots)


def find_start(
    study: Study,
    plan: Plan,
    release: PilotLog,
    pilots: Sequence[Mapping[str, Any]],
    *,
    bound: float = np.inf,
    others: Sequence[Mapping[str, Domain]] = (),
    force: bool = False,
) -> Found:
    """Run the pilots of the list until one arrives.

    Parameters
    ----------
    release
        Asks, and knows the answers of pilots that ran before the process was killed.
    bound, others
        See `planner.pilot.run_pilot`.
    force
        Whether the chain begins whatever the pilot finds: then no pilot stops early.
    """
    belief, spent = plan.belief, 0.0
    widest = np.inf if force else plan.mu / plan.enough_ess**0.5
    releases: list[dict[str, Any]] = []
    for pilot in pilots:
        if pilot["start"] is not None:
            belief = replace(belief, centre=np.array(pilot["start"]))
        with jax.enable_x64(True):
            found = run_pilot(
                study.model, study.domain, plan.n, belief.centre, _ROOM * pilot["share"] * plan.mu**2, release,
                known=study.knows_information, covariance=belief.covariance, bound=bound, others=others,
                most=_ROOM * pilot["most"] * plan.mu**2, widest=widest,
            )  # fmt: skip
        belief, releases, spent = found.belief, releases + found.releases, spent + found.spent / plan.mu**2
        if found.arrived:
            break
    about = {"releases": releases, "share": spent, "arrived": found.arrived, "off_by": found.off_by}
    about |= {"limit": (plan.mu / found.width) ** 2, "early": found.early}
    return Found(belief, about | {"error": belief.error, "lost": release.lost})


def refuse_unless_arrived(plan: Plan, found: Found, kept: Journal | None, study: Study | None = None) -> None:
    """Stop before the chain spends if the pilot has not arrived; of the `study` it is forecast what an estimate would give.

    Raises
    ------
    NotArrived
        With what is left, and how to go on.
    """
    about = found.about
    if about.get("arrived", True):
        return
    spent = about["share"]
    numbers = {"off_by": about["off_by"], "spent": spent * plan.mu**2, "left": (1 - spent) * plan.mu**2}
    paid = f"{spent:.1%} of the budget (epsilon={plan.epsilon:g}, delta={plan.delta:g}) is spent, the rest is left."
    limit, wanted = about["limit"], plan.enough_ess
    estimate = None if study is None else _forecast(study, found.belief, (1 - spent) * plan.mu**2)
    words = replace(plan, estimate=estimate).instead(spent)
    offer = {"limit": limit, "estimate": estimate, "instead": words, **numbers}
    if about["early"] or limit < wanted / DOUBT:
        epsilon, n = plan.would_do(wanted / limit)
        when = " early on" if about["early"] else ""
        raise NotArrived(
            f"a chain needs {wanted:g} effective draws in all, and the pilot saw{when} that no sampler can get more "
            f"than about {limit:.2g} from this budget. {paid}",
            f"{words}{ways_out(epsilon, n, plan.hint, fewer_chains=plan.fewer_chains_would_do)} force=True samples all the same.",
            **offer,
        )
    way_on = (
        f"Go on with sf.resume({str(kept.folder)!r}, data, guess=...) if you know roughly where the parameters are, or with "
        f"pilot_share={min(2 * spent, 0.5):.2g}"
        if kept is not None
        else "Start a new run with a guess= of where the parameters are, or with a larger pilot_share= (checkpoint= would have "
        "kept this one)"
    )
    where = (
        f"is up to {about['off_by']:.3g} posterior standard deviations off"
        if about["off_by"] > FORGIVEN
        else "is not where it believed to be: its last gradient is longer than noise and the step before it explain"
    )
    raise NotArrived(
        f"a chain starts near the posterior, and the pilot {where}. {paid}",
        f"{way_on}; a larger epsilon, more records or a tighter domain help too. {words}force=True samples all the same.",
        **offer,
    )


def _forecast(study: Study, belief: Belief, mu_squared: float) -> EstimateForecast:
    with jax.enable_x64(True):
        return forecast_estimate(study, belief, mu_squared)
