"""Budget in, plan out; forecasts before spending."""

from sfumato.planner.making import make_plan, replan
from sfumato.planner.pilot import Piloted, run_pilot
from sfumato.planner.plan import Plan
from sfumato.planner.tuning import build_kernel
from sfumato.privacy.budget import MAX_RELEASES
from sfumato.privacy.promise import budget_mu, lattice_slack

__all__ = [
    "MAX_RELEASES",
    "Piloted",
    "Plan",
    "budget_mu",
    "build_kernel",
    "lattice_slack",
    "make_plan",
    "replan",
    "run_pilot",
]
