"""Plain NumPy penalty chains for the figures: what the paper describes, run for real on made-up records.

Here the noise comes from a seeded generator, which a private release must never do. It is right in this file because
the records are synthetic and public: nothing here may be used on data that somebody wants to protect. Many chains run
side by side so that errors can be shown.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Coins:
    """Synthetic Bernoulli records with the logit as parameter and a flat prior; a record moves d_n by the step."""

    n: int
    heads: int

    @property
    def centre(self) -> float:
        """Posterior mode."""
        return float(np.log(self.heads / (self.n - self.heads)))

    @property
    def scale(self) -> float:
        """Posterior standard deviation, to leading order."""
        p = self.heads / self.n
        return float((self.n * p * (1 - p)) ** -0.5)

    def log_likelihood(self, theta: Array) -> Array:
        """Log-likelihood of all records, up to a constant."""
        return np.asarray(self.heads * theta - self.n * np.logaddexp(0.0, theta))


class Chains(NamedTuple):
    """Draws, exact log ratios and decisions, each of shape (iterations, chains)."""

    theta: Array
    log_ratio: Array
    accepted: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Walk:
    """A random walk in units of the posterior scale: lengths uniform on (`shortest`, `longest`), or half-normal.

    ``guided`` keeps the direction after an acceptance and flips it after a rejection.
    """

    longest: float
    shortest: float = 0.0
    guided: bool = False
    law: Literal["uniform", "normal"] = "uniform"

    def lengths(self, rng: np.random.Generator, chains: int) -> Array:
        """Draw one step length per chain."""
        if self.law == "normal":
            return np.abs(rng.normal(0.0, self.longest, chains))
        return rng.uniform(self.shortest, self.longest, chains)


def run(rng: np.random.Generator, coins: Coins, walk: Walk, sigmas: Array, *, iterations: int, chains: int) -> Chains:
    """Run penalty chains; `sigmas` holds one standard deviation per data owner (Algorithm 2; one owner: Algorithm 1).

    Parameters
    ----------
    rng
        Seeded generator, for proposals, decisions and, the records being synthetic, the noise.
    coins
        The records.
    walk
        The proposal.
    sigmas
        Noise of each owner; the penalty is half the sum of their squares.
    iterations, chains
        Size of the run.

    Returns
    -------
    Chains
    """
    noise = np.asarray(sigmas, dtype=float)
    penalty = float(np.sum(noise**2)) / 2
    theta = coins.centre + coins.scale * rng.normal(size=chains)
    level = coins.log_likelihood(theta)
    direction = rng.choice([-1.0, 1.0], size=chains)
    out = Chains(*(np.empty((iterations, chains), dtype=kind) for kind in (float, float, bool)))
    for t in range(iterations):
        if not walk.guided:
            direction = rng.choice([-1.0, 1.0], size=chains)
        theta_prop = theta + direction * coins.scale * walk.lengths(rng, chains)
        level_prop = coins.log_likelihood(theta_prop)
        log_ratio = level_prop - level
        log_ratio_noisy = log_ratio + (rng.normal(size=(chains, noise.size)) * noise).sum(axis=1)
        accepted = np.log(rng.uniform(size=chains)) < log_ratio_noisy - penalty
        theta, level = np.where(accepted, theta_prop, theta), np.where(accepted, level_prop, level)
        if walk.guided:
            direction = np.where(accepted, direction, -direction)
        out.theta[t], out.log_ratio[t], out.accepted[t] = theta, log_ratio, accepted
    return out


def measured_efficiency(coins: Coins, chains: Chains) -> tuple[float, float]:
    """Effective draws per iteration from the spread of the chains' means, and its standard error.

    Parameters
    ----------
    coins
        The records, for the posterior scale.
    chains
        A run much longer than its correlation time.

    Returns
    -------
    tuple of float
    """
    iterations, count = chains.theta.shape
    spread = float(np.var(chains.theta.mean(axis=0), ddof=1))
    value = coins.scale**2 / (iterations * spread)
    return value, value * (2 / (count - 1)) ** 0.5
