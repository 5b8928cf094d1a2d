r"""Exact private Langevin for any model, by a public reference point :math:`\theta^*`.

The statistic is the sum of gradients at :math:`\theta^*`; a second query, of second order in the step, keeps the chain exact.
:math:`\theta^*`, the information J and the preconditioner M need not be good: they cost efficiency, never exactness
(`docs/proofs/langevin.md`).
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtr

from sfumato.kernel.base import as_tree
from sfumato.kernel.kinds import register
from sfumato.kernel.langevin import Langevin
from sfumato.kernel.penalty import Array, Draw, State, Weighed


@register
@as_tree("matrix", "step", "centre", "information", "trust", "free")
@dataclass(frozen=True)
class ReferenceLangevin(Langevin):
    r"""Langevin steps around a reference point; `public` is the log prior.

    Parameters
    ----------
    step
        h, in (0, 2]: two makes every proposal independent of the present point, if the plan is good.
    centre
        :math:`\theta^*`, public and fixed before the chain starts.
    information
        J: a public guess of minus the hessian of the log-likelihood of all records.
    trust
        Radius of the trust region in units of A around the centre: where the prior is taken to be positive. Outside, bounds
        on one record may be useless; a proposal there is rejected without a query, so the target is the posterior on it.

    Where coordinates move freely (`free`), the paid step moves the others alone, given these: then A must not mix the two, and
    the trust region is about the others. Its drift has the prior as a straight line at the centre, with its bend in J: where
    hyperparameters make the prior narrow, its own gradient would throw proposals far off, and those are dear.
    """

    second: ClassVar[str] = "remainder"
    chain_by_chain: ClassVar[bool] = True
    largest_step: ClassVar[float] = 2.0
    centre: np.ndarray
    information: np.ndarray
    trust: float

    @property
    def proposal_sigma(self) -> float:
        """Standard deviation of the noise in each coordinate of the first query: the root of 4/h - 1."""
        return float(np.sqrt(4.0 / self.step - 1.0))

    @property
    def trust_radius(self) -> float | None:
        """Of the trust region."""
        return self.trust

    def drift(self, theta: Array) -> Array:
        """c: the drift without its data. The chain is exact for any function of theta here."""
        centre = jnp.asarray(self.centre)
        pull = -jnp.asarray(self.information) @ (theta - centre)
        if self.free is None:
            return jax.grad(self.public)(theta) + pull
        return jnp.where(self.free.spoken, jax.grad(self.public)(centre) + pull, 0.0)

    def propose(self, state: State, draw: Draw, first: Array) -> Array:
        """Move by the noisy statistic, which knows nothing of what moves freely."""
        theta_prop = super().propose(state, draw, first)
        return theta_prop if self.free is None else jnp.where(self.free.spoken, theta_prop, state.theta)

    def known(self, theta: Array, theta_prop: Array) -> Weighed:
        """Public part of the log ratio, and v: the second query asks for the scalars that go with it."""
        root, h = jnp.asarray(self.matrix), self.step
        kappa = 1.0 / (2.0 - h / 2.0)
        delta = theta_prop - theta
        here, there = self.drift(theta), self.drift(theta_prop)
        white_here, white_there = root.T @ here, root.T @ there
        log_ratio = self.public(theta_prop) - self.public(theta) - kappa * (delta @ (here + there))
        log_ratio -= kappa * h / 4 * (jnp.sum(white_there**2) - jnp.sum(white_here**2))
        return Weighed(log_ratio, 2 * kappa * delta + kappa * h / 2 * (root @ (white_there - white_here)))

    def inside(self, theta: Array) -> Array:
        """Whether a parameter lies in the trust region."""
        away = theta - jnp.asarray(self.centre)
        if self.free is not None:
            away = jnp.where(self.free.spoken, away, 0.0)
        return jnp.sum(jnp.linalg.solve(jnp.asarray(self.matrix), away) ** 2) <= self.trust**2

    @classmethod
    def log_ratio_variance(cls, steps: np.ndarray, roughness: float) -> float:
        """On a normal posterior there is none, but for the covariance that is known roughly."""
        step = float(steps[0])
        return roughness**2 * step * (1 - step / 4)


def autoregression_worth(h: float, sigma: float) -> float:
    r"""Effective draws per step of Langevin around a reference point, on a normal posterior.

    The proposal :math:`x' = \rho x + \sqrt{1-\rho^2} z`, :math:`\rho = 1 - h/2`, leaves the posterior invariant, so only noise
    rejects: with chance :math:`1 - a`, :math:`a = 2\Phi(-\sigma/2)`, whatever the move. The chain's autocorrelation is
    :math:`1 - a(1-\rho)` to the power of the lag, so a step is worth :math:`a(1-\rho)/(2 - a(1-\rho))`.
    """
    move = 2 * ndtr(-sigma / 2) * h / 2
    return float(move / (2 - move))
