"""What a kernel is tuned for, and what tuning gives."""

from dataclasses import dataclass, field, replace

import numpy as np

from sfumato.planner.belief import Belief
from sfumato.study.target import Study


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a kernel is tuned for.

    Attributes
    ----------
    mu
        Gaussian-DP parameter of what the chains may spend.
    truncate
        Bound on every coordinate's move, if the random walk was asked to keep one.
    ahead
        Whether answers take long to come, so that Langevin on a family asks for all it needs ahead.
    """

    study: Study = field(repr=False)
    belief: Belief
    mu: float
    n: int
    chains: int
    max_iterations: int
    truncate: float | None = None
    ahead: bool = False

    def for_share(self, share: float) -> "Task":
        """The same for a share of the budget."""
        return replace(self, mu=self.mu * share**0.5)

    def buys(self, cost: float, worth: float) -> tuple[int, float]:
        """Steps per chain that the budget buys at this cost (mu squared of one chain's step), and what all are worth."""
        iterations = int(min(self.mu**2 / max(cost, 1e-300) / self.chains, self.max_iterations))
        return iterations, self.chains * iterations * worth


@dataclass(frozen=True)
class Choice:
    """A kernel with its tuning and forecast; `averaged` and `lent` say what bundles bring, where there are any (`Plan`)."""

    kernel: str
    matrix: np.ndarray
    step: float
    sigma: float
    iterations: int
    ess: float
    copy_sigma: float = 0.0
    averaged: int = 0
    lent: float = 0.0


def longest_steps(options: list[Choice], enough: float) -> Choice:
    """Of all that promise nearly as much as the best, the one with the longest steps: they save compute."""
    top = max(option.ess for option in options)
    return max((o for o in options if o.ess >= enough * top), key=lambda o: (o.step, o.ess))
