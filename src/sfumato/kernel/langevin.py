r"""Exact private Langevin for exponential families: the owner's noise is the proposal's noise.

A noisy statistic :math:`\hat T = A^\top S_n + N(0, \tfrac4h I)` moves the chain; a second answer, of
:math:`-u^\top A^\top S_n`, or a second copy of the statistic, decides. `docs/proofs/langevin.md` has the ratio, and
why it is exact.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.errors import InvalidInput
from sfumato.kernel.base import Kernel, Streams, as_tree, move_if
from sfumato.kernel.free import FreeMoves
from sfumato.kernel.kinds import OnNormal, register
from sfumato.kernel.penalty import Array, Draw, State, Weighed


@register
@as_tree("matrix", "step", "free")
@dataclass(frozen=True)
class Langevin:
    """Langevin steps in the natural parameter.

    Parameters
    ----------
    matrix
        A, with A A' = M the preconditioner (the posterior covariance, when the plan is good).
    step
        h. In whitened coordinates the chain contracts by 1 - h/2 a step; keep it below 2.
    public
        B: the part of the log posterior that needs no data, log prior minus n times the log-partition.
    copy_sigma
        Noise in each coordinate of a second copy of the statistic, the root of xi_2, where corrections are made from
        such copies; 0 where they are asked for as scalars.
    averaged
        Copies that a step averages of every bundle; 0 without bundles. Where nobody answers live, a step draws the public noise
        that makes two of their average (`SplitCopy`).
    lent
        Noise variance in each coordinate of the first answer that bundles bring beside owners who answer live: those add the
        rest of 4/h.
    free
        How coordinates that no record speaks of are moved after every step.
    """

    name: ClassVar[str] = "langevin"
    first: ClassVar[bool] = True
    second: ClassVar[str] = "linear"
    chain_by_chain: ClassVar[bool] = False
    whole: ClassVar[bool] = True
    persistent: ClassVar[bool] = False
    ordinary_share: ClassVar[float] = 0.85
    matrix: np.ndarray
    step: float
    public: Callable[[Array], Array]
    copy_sigma: float = field(default=0.0, kw_only=True)
    averaged: int = field(default=0, kw_only=True)
    lent: float = field(default=0.0, kw_only=True)
    free: FreeMoves | None = field(default=None, kw_only=True)

    @property
    def proposal_sigma(self) -> float:
        """Standard deviation of the noise in each coordinate of the first query: the root of 4/h."""
        return float(2.0 / np.sqrt(self.step))

    @property
    def numbers_a_step(self) -> int:
        """A statistic and a scalar, or two copies of the statistic."""
        dim = len(self.matrix)
        return 2 * dim if self.copy_sigma else 1 + dim

    @property
    def trust_radius(self) -> float | None:
        """It goes everywhere."""
        return None

    def public_part(self, log_prior: Callable[[Array], Array]) -> Callable[[Array], Array]:
        """B, which has the prior in it."""
        return self.public

    def draw(self, rng: Streams, size: int) -> Draw:
        """The decision is random on the public side, and what splits a copy; the proposal's noise is the owner's."""
        normal = rng.steps.standard_normal((size, len(self.matrix) if self.averaged and self.copy_sigma else 0))
        return Draw(normal, np.zeros(size, np.int32), np.zeros(size), rng.log_u(size))

    def drift(self, theta: Array) -> Array:
        """b: the part of the drift that needs no data."""
        return jax.grad(self.public)(theta)

    def propose(self, state: State, draw: Draw, first: Array) -> Array:
        """Move by the noisy statistic (whitened: A' S_n plus noise)."""
        root = jnp.asarray(self.matrix)
        return state.theta + self.step / 2 * (root @ (root.T @ self.drift(state.theta) + first))

    def known(self, theta: Array, theta_prop: Array) -> Weighed:
        """Public part of the log ratio, and u: the second query asks for minus u' (A' S_n)."""
        root, h = jnp.asarray(self.matrix), self.step
        b_here, b_there = self.drift(theta), self.drift(theta_prop)
        w_here, w_there = root.T @ b_here, root.T @ b_there
        log_ratio = self.public(theta_prop) - self.public(theta) - (theta_prop - theta) @ (b_here + b_there) / 2
        log_ratio -= h / 8 * (jnp.sum(w_there**2) - jnp.sum(w_here**2))
        return Weighed(log_ratio, h / 4 * (w_there - w_here))

    def weigh(self, state: State, theta_prop: Array, log_prior_prop: Array) -> Weighed:
        """The same, of a proposed move: the prior is part of what is public."""
        return self.known(state.theta, theta_prop)

    def inside(self, theta: Array) -> Array:
        """Everywhere."""
        return jnp.asarray(True)

    def update(self, state: State, theta_prop: Array, log_prior_prop: Array, accepted: Array, draw: Draw) -> State:
        """Move if accepted."""
        return move_if(accepted, state, theta_prop, log_prior_prop)

    def correct(self, direction: Array, copy: Array) -> tuple[Array, Array]:
        """From a second copy: the noisy correction, and the standard deviation of its noise (the same for -direction)."""
        return -(direction @ copy), self.copy_sigma * jnp.sqrt(jnp.sum(direction**2))

    @classmethod
    def on_normal(cls, x: np.ndarray, step: float) -> OnNormal:
        r"""Moves :math:`x' \sim N((1 - h/2)x, h)` at the log ratio :math:`-\tfrac h8 (x'^2 - x^2)`."""
        z = np.linspace(-5, 5, 51)
        after = (1 - step / 2) * x + np.sqrt(step) * z
        weight = np.exp(-(z**2) / 2) / np.exp(-(z**2) / 2).sum()
        return OnNormal(after, weight, -step / 8 * (after**2 - x**2))

    @classmethod
    def others(cls, step: float, dim: int) -> float:
        r"""Variance :math:`(d-1)(h^3/16 + h^6/512)` of the other coordinates' log ratios."""
        return (dim - 1) * (step**3 / 16 + step**6 / 512)

    @classmethod
    def log_ratio_variance(cls, steps: np.ndarray, roughness: float) -> float:
        """The same of all coordinates."""
        return float(np.sum(steps**3 / 16 + steps**6 / 512))


def asked_sigma(kernel: Kernel) -> float:
    """Noise in each coordinate of the first answer that owners who answer live add together; bundles may lend the rest."""
    if isinstance(kernel, Langevin) and kernel.lent:
        return float(np.sqrt(4.0 / kernel.step - kernel.lent))
    return kernel.proposal_sigma


class SplitCopy:
    r"""Makes two independent noisy copies from one, by public noise.

    Of :math:`\hat S \sim N(S_n, \Sigma)` and a public :math:`z \sim N(0, I)`, with :math:`B = (cI - \Sigma)^{1/2}` the two sums

    .. math:: \hat S + Bz \sim N(S_n, cI), \qquad \hat S - \Sigma B^{-1}z \sim N(S_n, c\,\Sigma(cI - \Sigma)^{-1})

    are jointly normal with covariance :math:`\Sigma - B B^{-1}\Sigma = 0`, hence independent. Their precisions add up to that of
    the one they were made from: nothing is lost. The first has the noise of a proposal, whatever the shape of the copy's.

    Parameters
    ----------
    covariance
        Sigma, (d, d).
    variance
        c: noise of the first copy in each coordinate, larger than any of the one copy's.
    """

    def __init__(self, covariance: np.ndarray, variance: float) -> None:
        spread, turn = np.linalg.eigh(covariance)
        added = variance - spread
        if not added.min() > 0:
            raise InvalidInput(
                f"the first of two copies must be noisier than the one they are made from, and variance = {variance:.4g} is "
                f"not above {spread.max():.4g}; average more copies, or take a shorter step."
            )
        self._first, self._second = ((turn * part) @ turn.T for part in (np.sqrt(added), spread / np.sqrt(added)))
        self.second_covariance = (turn * (variance * spread / added)) @ turn.T

    def __call__(self, copy: np.ndarray, normal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Split copies, by public noise of the same shape, (..., d)."""
        return copy + normal @ self._first, copy - normal @ self._second
