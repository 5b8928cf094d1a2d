r"""The lattice: how a record's real-valued term becomes a whole number, and what a release then costs.

Floating-point sums have a sensitivity nobody can bound cheaply, and floating-point noise leaks (Mironov 2012;
Casacuberta et al. 2022). So every term is rounded to a multiple of a power of two :math:`\gamma`, **then** clamped as
an integer into :math:`[\mathrm{round}(lo/\gamma), \mathrm{round}(hi/\gamma)]`, summed in 64-bit integers (exact, the
same in any order), and met by integer noise. The width charged is exactly the clamped one, so no bound is trusted that
is not also enforced.
"""

from math import floor, log2
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import lax

from sfumato.errors import InvalidInput
from sfumato.kernel import Heard
from sfumato.kernel.loop import Priced
from sfumato.privacy.budget import QUANTA_PER_UNIT, RELATIVE_LOG2, ROUNDING_GUARD

Array: TypeAlias = Any

ROUNDING_LOG2 = -10
"""n gamma / 2 <= 2^-10: rounding the terms moves d_n by less than a thousandth."""
TERM_LIMIT = 2.0**51
"""Largest integer term: float64 still counts in halves there, so rounding is exact."""
BEYOND = 2**63 - 1
"""A charge that no allowance can meet."""
LARGEST_COST = 2**62
"""Beyond any cap (`privacy.budget.MAX_MU`): two such costs still add up in 64 bits."""
SUM_LIMIT = 2.0**61
"""Largest sum of n clamped terms; noise fits beside it in 64 bits."""


class Clamp(NamedTuple):
    """Integer range a term is clamped into, and whether such a query can be answered at all."""

    lo: Array
    hi: Array
    admissible: Array


def choose_gamma(sigma: float, n: int) -> float:
    r"""Power of two :math:`\gamma \le \min(2^{-36}\sigma, 2^{-9}/n)`."""
    bound = min(sigma * 2.0**RELATIVE_LOG2, 2.0 ** (ROUNDING_LOG2 + 1) / n)
    return float(2.0 ** floor(log2(bound)))


class Box(NamedTuple):
    """Integer range of each coordinate of one record's vector, and what is taken off it before it is added. Public."""

    lo: Array
    hi: Array
    middle: Array


def box_of(lo: np.ndarray, hi: np.ndarray, gamma: float) -> Box:
    """The smallest that holds a range; its middle is what is taken off."""
    low, high = np.floor(lo / gamma).astype(np.int64), np.ceil(hi / gamma).astype(np.int64)
    return Box(low, high, (low + high) // 2)


def clamp_for(lo: Array, hi: Array, gamma: float, n: int) -> Clamp:
    """Turn a proven range into an integer range.

    A pair whose range is not finite, or whose sum could leave 64 bits, is not admissible: it is rejected without a
    query. The rule is symmetric in (theta, theta'), so rejecting on it keeps the chain reversible.
    """
    lo_int, hi_int = jnp.round(lo / gamma), jnp.round(hi / gamma)
    largest = jnp.maximum(jnp.abs(lo_int), jnp.abs(hi_int))
    admissible = (largest <= TERM_LIMIT) & (largest * n <= SUM_LIMIT) & (lo_int <= hi_int)
    safe_lo, safe_hi = jnp.where(admissible, lo_int, 0.0), jnp.where(admissible, hi_int, 0.0)
    return Clamp(safe_lo.astype(jnp.int64), safe_hi.astype(jnp.int64), admissible)


def answerable(lo: Array, hi: Array) -> Clamp:
    """Integer ranges that were found admissible before."""
    return Clamp(lo, hi, jnp.ones(lo.shape, bool))


def to_lattice(terms: Array, clamp: Clamp, gamma: float) -> Array:
    """Round real terms to integers, then clamp the integers.

    NaN becomes some integer and is clamped like any other: private, but no draw from a posterior. So a study whose records can
    have such a term is refused when it is made (`model/support.py`); where theta alone makes one, its range is not finite.
    """
    scaled = jnp.clip(terms.astype(jnp.float64) * (1.0 / gamma), -TERM_LIMIT, TERM_LIMIT)
    return jnp.clip(jnp.round(scaled).astype(jnp.int64), clamp.lo, clamp.hi)


def width(clamp: Clamp, gamma: float) -> Array:
    """The sensitivity charged: the width of the integer range, as a real number (exact: it fits 53 bits)."""
    return (clamp.hi - clamp.lo).astype(jnp.float64) * gamma


def cost(clamp: Clamp, gamma: float, sigma: float) -> Array:
    r"""Whole quanta of :math:`\sum \mu^2 = \sum (\Delta/\sigma)^2` over all chains, each rounded up.

    A pair that is not asked costs nothing. A sum beyond 64 bits saturates: it is more than any allowance.
    """
    return quanta_of(width(clamp, gamma), clamp.admissible, sigma)


def quanta_of(widths: Array, answered: Array, sigma: float) -> Array:
    """Whole quanta of scalars of these widths, those that are answered, all together."""
    mu = widths / sigma
    quanta = jnp.maximum(jnp.ceil(mu * mu * (ROUNDING_GUARD * QUANTA_PER_UNIT)), 1.0)
    quanta = jnp.where(answered, quanta, 0.0)
    fits = quanta.sum() < 2.0**62
    return jnp.where(fits, jnp.where(fits, quanta, 0.0).astype(jnp.int64).sum(), BEYOND)


def priced(clamp: Clamp, possible: Array, gamma: float, sigma: float) -> Priced:
    """Widths and cost of scalars in these ranges; of moves that are not possible nothing is asked."""
    clamp = clamp._replace(admissible=clamp.admissible & possible)
    widths = jnp.where(clamp.admissible, width(clamp, gamma), 0.0)
    return Priced(widths, clamp.admissible, cost(clamp, gamma, sigma), clamp)


def heard(noisy: Array, answered: Array, gamma: float, sigma: Array) -> Heard:
    """Noisy whole numbers of all chains as what they stand for; not a number where nothing was asked."""
    value = jnp.where(answered, noisy.astype(jnp.float64) * gamma, jnp.nan)
    return Heard(value, jnp.broadcast_to(jnp.asarray(sigma, jnp.float64), answered.shape), answered)


def shifted(heard: Heard, along: Array, shift: Array) -> Heard:
    """The same, less `along` times what the statistic was shifted by, chain by chain: both are public.

    The product stands alone, so that it is the same to the last bit in whatever program it is part of.
    """
    along = lax.optimization_barrier(jnp.where(heard.answered[:, None], along, 0.0))  # type: ignore[no-untyped-call]
    product = lax.optimization_barrier(along @ shift)  # type: ignore[no-untyped-call]
    return heard._replace(d_n_noisy=heard.d_n_noisy - product)


def first_of_all(quanta: int, chains: int) -> int:
    """Quanta of the first queries of all chains; refused where no account could pay for them."""
    if quanta * chains > LARGEST_COST:
        raise InvalidInput(
            f"the first query of a step must be affordable, and {chains} of them cost mu^2 = "
            f"{quanta * chains / QUANTA_PER_UNIT:.3g}; use a smaller step or a smaller matrix."
        )
    return quanta * chains
