r"""The penalty step: propose, ask, decide. Every chain of this library takes it, wherever its answers come from.

With :math:`\hat d = d_n + N(0, \sigma^2)` and :math:`\sigma` symmetric in :math:`(\theta, \theta')`, accepting with
probability :math:`\min\{1, \exp(\hat d + \log r_0 - \sigma^2/2)\}`, where :math:`r_0` collects the prior and proposal
ratios, leaves the posterior exactly invariant (Ceperley & Dewing 1999; Yıldırım 2016, Section 2).

`propose` gives a `Move`, of which everything is public; whoever drives the chain asks for what the move still lacks, and
`decide` takes the answer, a `Heard`. The driver is a compiled loop (`kernel.loop`) or the analyst's own, one round a step.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax.numpy as jnp

if TYPE_CHECKING:
    from sfumato.kernel.base import Kernel

Array: TypeAlias = Any


class State(NamedTuple):
    """What the next step needs. Public: no likelihood value sits here.

    Attributes
    ----------
    theta
        Current parameter, unconstrained, shape (d,).
    log_prior
        Log prior density at theta.
    direction
        Sign of travel along each column of the step matrix (guided walk); carried along unchanged by the others.
    pending
        Langevin only: a noisy statistic that was released and paid for, but whose second query did not fit any more;
        NaN if there is none. Released, hence public.
    """

    theta: Array
    log_prior: Array
    direction: Array
    pending: Array = None


class Draw(NamedTuple):
    """Public random numbers of one step, from the seeded stream.

    Attributes
    ----------
    normal
        Step in units of the step matrix, shape (m,).
    index
        Which column a one-direction kernel moves along.
    length
        Length of a one-direction step, positive for the guided walk, signed for the componentwise one.
    log_u
        Logarithm of the uniform that decides.
    free
        What the moves of free coordinates need, shape (sub-steps, 2): see `kernel.free`. The stream adds it.
    """

    normal: Array
    index: Array
    length: Array
    log_u: Array
    free: Array = None


class Weighed(NamedTuple):
    """What is known of a move without asking.

    Attributes
    ----------
    log_ratio
        The public part of the log acceptance ratio: prior, proposal, whatever needs no record.
    along
        The direction that the second query of a Langevin step asks about; None for walks.
    """

    log_ratio: Array
    along: Array = None


class Move(NamedTuple):
    """A proposed move of one chain, before it is decided: all public.

    `possible` is false where the answer is known without asking: outside the prior's support or the kernel's own region. The
    rule is the same in both directions of a move, so a chain that stays there is reversible.
    """

    theta_prop: Array
    log_prior_prop: Array
    log_ratio: Array
    along: Array
    possible: Array


class Heard(NamedTuple):
    """What was answered about a move: the noisy log ratio, the standard deviation of its noise, and whether it was answered.

    What was not is a rejection that cost nothing: not possible, or beyond what the owner answers for (in both directions alike).
    `copy`: the second copy of the statistic that the answer was made from, if it was.
    """

    d_n_noisy: Array
    sigma: Array
    answered: Array
    copy: Array = None


def propose(kernel: "Kernel", log_prior: Callable[[Array], Array], state: State, draw: Draw, first: Array) -> Move:
    """Propose a move of one chain; `first` is the answer to the kernel's first query, None for walks."""
    theta_prop = kernel.propose(state, draw, first)
    log_prior_prop = log_prior(theta_prop)
    known = kernel.weigh(state, theta_prop, log_prior_prop)
    possible = jnp.isfinite(log_prior_prop) & jnp.isfinite(known.log_ratio) & jnp.all(jnp.isfinite(theta_prop))
    return Move(theta_prop, log_prior_prop, *known, possible & kernel.inside(theta_prop))


def decide(
    kernel: "Kernel", log_prior: Callable[[Array], Array], state: State, draw: Draw, move: Move, heard: Heard
) -> tuple[State, Array]:
    """Take the move of one chain or stay, then move what is free: the next state, and whether the move was taken."""
    zero = jnp.zeros_like(move.log_ratio)
    accepted = accepts(draw, heard.d_n_noisy, move.log_ratio, zero, heard.sigma) & heard.answered
    moved = kernel.update(state, move.theta_prop, move.log_prior_prop, accepted, draw)
    if kernel.free is not None:
        theta, density = kernel.free.move(log_prior, moved.theta, moved.log_prior, draw.free)
        moved = moved._replace(theta=theta, log_prior=density)
    return moved, accepted


def log_alpha(d_n_noisy: Array, log_prior_ratio: Array, log_q_ratio: Array, sigma: Array) -> Array:
    r"""Log acceptance probability :math:`\min\{0, \hat d + \log r_0 - \sigma^2/2\}`.

    Parameters
    ----------
    d_n_noisy
        Released log-likelihood ratio.
    log_prior_ratio, log_q_ratio
        Exact public ratios of prior and proposal densities, in logs.
    sigma
        Standard deviation of the noise inside `d_n_noisy` (of all owners together: root of the sum of squares).
    """
    return jnp.minimum(0.0, d_n_noisy + log_prior_ratio + log_q_ratio - sigma**2 / 2)


def accepts(draw: Draw, d_n_noisy: Array, log_prior_ratio: Array, log_q_ratio: Array, sigma: Array) -> Array:
    """Whether the step is taken. A NaN anywhere compares false: the chain stays."""
    return draw.log_u < log_alpha(d_n_noisy, log_prior_ratio, log_q_ratio, sigma)
