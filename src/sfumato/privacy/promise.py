"""What a promise of (epsilon, delta) is worth: mu of the cap, with the lattice's slack taken off delta."""

import numpy as np

from sfumato.errors import InvalidInput
from sfumato.privacy import gdp
from sfumato.privacy.budget import MAX_RELEASES, RELATIVE_LOG2

MOST_EPSILON = 60.0
"""Beyond it nothing is promised."""


def budget_mu(epsilon: float, delta: float) -> float:
    """Mu of the cap: for delta less the lattice slack of `MAX_RELEASES` releases, so that delta as asked is met."""
    _check_budget(epsilon, delta)
    slack = lattice_slack(epsilon)
    if slack > delta / 2:
        raise InvalidInput(
            f"delta must exceed twice the lattice slack, {slack:.2g} at epsilon={epsilon:g}; got {delta:g}. "
            "Choose a smaller epsilon or a larger delta."
        )
    return float(gdp.mu(epsilon, delta - slack))


def epsilon_of(mu: float, delta: float) -> float:
    """Epsilon of a cap at delta, with the lattice's slack at that epsilon in it; infinite where the slack takes half of delta."""
    most = float(gdp.epsilon(mu, delta / 2))
    if most > MOST_EPSILON or (slack := lattice_slack(most)) > delta / 2:
        return float("inf")
    return float(gdp.epsilon(mu, delta - slack))  # at most `most`, so its own slack is no larger


def lattice_slack(epsilon: float) -> float:
    """Delta that the discreteness of the noise adds, for as many releases as a run may make."""
    return float(gdp.lattice_slack(MAX_RELEASES, epsilon, 2.0**RELATIVE_LOG2))


def _check_budget(epsilon: float, delta: float) -> None:
    if not (isinstance(epsilon, int | float | np.number) and np.isfinite(epsilon) and epsilon > 0):
        raise InvalidInput(f"epsilon must be a positive number, got {epsilon!r}; values between 0.1 and 10 are usual.")
    if not (isinstance(delta, int | float | np.number) and np.isfinite(delta) and 0 < delta < 1):
        raise InvalidInput(f"delta must lie strictly between 0 and 1, got {delta!r}; take it well below 1/n.")
