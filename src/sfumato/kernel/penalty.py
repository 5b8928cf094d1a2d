r"""The penalty step: accept or reject on a noisy log-likelihood ratio, exactly.

With :math:`\hat d = d_n + N(0, \sigma^2)` and :math:`\sigma` symmetric in :math:`(\theta, \theta')`, accepting with
probability :math:`\min\{1, \exp(\hat d + \log r_0 - \sigma^2/2)\}`, where :math:`r_0` collects the prior and proposal
ratios, leaves the posterior exactly invariant (Ceperley & Dewing 1999; Yıldırım 2016, Section 2).
"""

from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp

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
    """

    normal: Array
    index: Array
    length: Array
    log_u: Array


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
