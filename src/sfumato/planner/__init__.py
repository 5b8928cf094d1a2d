"""Budget in, plan out; forecasts before spending."""

from sfumato.planner.pilot import Piloted, run_pilot
from sfumato.planner.plan import Plan, budget_mu, lattice_slack, make_plan, replan
from sfumato.privacy.budget import MAX_RELEASES

__all__ = ["MAX_RELEASES", "Piloted", "Plan", "budget_mu", "lattice_slack", "make_plan", "replan", "run_pilot"]
