r"""The unit of account: whole quanta of :math:`\mu^2`.

Gaussian releases compose by adding :math:`\mu_t^2 = (\Delta_t/\sigma_t)^2`. Sums of floats round; sums of integers do
not. So budgets are counted in quanta of :math:`2^{-50}`: a cost is rounded **up** to whole quanta, a cap **down**,
and everything in between is exact 64-bit integer addition, in Python, in SQLite and inside a compiled scan.
"""

from math import ceil, floor, isfinite

from sfumato.errors import InvalidInput

QUANTA_PER_UNIT = 2**50
MAX_RELEASES = 10_000_000
"""Numbers one run may release at most; the lattice slack of so many is already inside the delta of the cap."""
MAX_MU = 64.0
"""Largest cap that is accounted for: mu = 64 is no privacy at all, and its square is 2^62 quanta."""
RELATIVE_LOG2 = -36
"""gamma <= 2^-36 sigma: the discrete Gaussian is then a rounded continuous one to within (gamma/sigma)^2/40."""

# One float64 product and one division err by less than this, relatively; costs are inflated by it before the ceiling.
ROUNDING_GUARD = 1.0 + 2.0**-48


def cap_quanta(mu: float) -> int:
    """Quanta that a cap of `mu` allows: mu squared, rounded down."""
    if not (isfinite(mu) and 0 < mu <= MAX_MU):
        raise InvalidInput(f"mu of a cap must lie in (0, {MAX_MU:g}], got {mu}; choose a smaller epsilon.")
    return floor(mu * mu / ROUNDING_GUARD * QUANTA_PER_UNIT)


def cost_quanta(mu_squared: float) -> int:
    """Quanta that a release of `mu_squared` costs: rounded up, at least one."""
    if not (isfinite(mu_squared) and mu_squared >= 0):
        raise InvalidInput(f"the cost of a release must be finite and not negative, got {mu_squared}.")
    return max(1, ceil(mu_squared * ROUNDING_GUARD * QUANTA_PER_UNIT))


def mu_squared(quanta: int) -> float:
    """Convert quanta back to units of mu squared, for showing."""
    return quanta / QUANTA_PER_UNIT
