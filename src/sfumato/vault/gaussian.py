r"""An exact, vectorised sampler of the discrete Gaussian.

The law is :math:`P(X = x) = f(|x|)/\sum_z f(|z|)` over the integers, :math:`f(m) = \exp(-m^2/(2s^2))`, for a scale
:math:`s` given as a float64 and taken exactly. Randomness is `os.urandom` and nothing else. The result is *exact*: no
tail is cut off, no probability is rounded. Floating point only ever decides comparisons that it provably gets right;
the others, about one in :math:`2^{45}`, go to exact arithmetic. `docs/proofs/discrete-gaussian.md` has the proof: an envelope of
buckets drawn by an alias table of whole numbers, acceptance by a uniform number whose digits are drawn as they are needed.

References
----------
Canonne, Kamath & Steinke 2020, "The discrete Gaussian for differential privacy"; Karney 2016, "Sampling exactly from
the normal distribution" (lazy digits); Walker 1977 and Vose 1991 (alias tables).
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_EVEN, Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from math import ceil, factorial, floor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InvalidInput
from sfumato.vault.closed import closed

TRUNCATION = 0.0
"""Mass of the law that the sampler cannot reach: none; what accounting has to add to delta."""

MIN_SCALE = 2.0**-4
MAX_SCALE = 2.0**50
"""Scales that are supported, in lattice units; a draw that leaves 64 bits (2^13 scales away) raises OverflowError."""

GUARD = 2.0**-46
"""A float comparison closer than this is settled by exact arithmetic: twice the error bound of the float."""

CELL_BITS = 10
TICKET_BITS = 64 - CELL_BITS
DIGITS = 53  # binary digits of U that are drawn at first
STEPS = 32  # least number of buckets per scale, where the scale allows it
REACH = 8  # scales covered by buckets; beyond is the tail
DEGREE = 12  # of the Taylor polynomial of exp(-e) on [0, 0.2505]: remainder below 2^-58
CHUNK = 1 << 14  # candidates at a time: the arrays stay in the cache
TAYLOR = tuple((-1) ** j / factorial(j) for j in range(DEGREE, -1, -1))

_PRECISION = 60  # decimal digits for the tables
_ROUNDING_UP = Decimal(1) + Decimal(10) ** (10 - _PRECISION)  # more than the tables' relative error

Bits = Callable[[int], bytes]
"""A function like `os.urandom`; a parameter of private functions only, so that tests can reach the rare paths."""


@dataclass(frozen=True, slots=True)
class _Envelope:
    """The proposal for one scale: `cut` and `alias` draw the bucket, `height` is what a bucket keeps at its start."""

    scale: Fraction
    shift: int  # b: buckets are 2^b wide
    buckets: int  # K: also the index of the tail; larger indices mean "nothing"
    tail_shift: int  # blocks of the tail are 2^tail_shift wide
    constant: int  # c
    weights: tuple[int, ...]  # W_0 .. W_K, then what is left of 2^64
    cut: NDArray[np.uint64]
    alias: NDArray[np.intp]
    height: NDArray[np.float64]  # c f(kw)/W_k, correctly rounded; -1 for "nothing"
    curvature: float  # 1/(2 t^2), correctly rounded


@closed("unused noise")
class _Candidates(NamedTuple):
    """Raw proposals: bucket, offset in it, first digits of U, sign."""

    bucket: NDArray[np.intp]
    offset: NDArray[np.int64]
    digits: NDArray[np.int64]
    negative: NDArray[np.bool_]


def checked_scale(scale: float) -> float:
    """Return `scale` as a float if a source can have it; zero, which would mean no noise, is out of range."""
    if not MIN_SCALE <= scale <= MAX_SCALE:
        raise InvalidInput(
            f"the scale of the noise must lie in [2^-4, 2^50] lattice units, got {scale}; "
            "choose the lattice spacing near 2^-30 sigma."
        )
    return float(scale)


class ExactSource:
    r"""Discrete Gaussian draws, exact and in blocks: about 0.1 microseconds a draw.

    .. math:: P(X = x) \propto \exp(-x^2/(2 s^2)), \quad x \in \mathbb{Z}

    Parameters
    ----------
    scale
        Standard deviation parameter s in lattice units, in [2^-4, 2^50]; the float is meant exactly.

    Notes
    -----
    Time depends on the values drawn, if very little (a rare comparison takes longer): draw ahead, with
    `sfumato.vault.noise.NoisePool`. There is no state between calls, so nothing is inherited by a forked process.
    """

    def __init__(self, scale: float) -> None:
        self.scale = checked_scale(scale)
        self._envelope = _envelope(Fraction(self.scale))

    def draw(self, size: int) -> NDArray[np.int64]:
        """Return `size` independent draws; what a chunk yields beyond that is discarded unseen."""
        return _draw(self._envelope, size, os.urandom)


def _draw(envelope: _Envelope, size: int, bits: Bits) -> NDArray[np.int64]:
    """Return the first `size` kept candidates of an unending i.i.d. sequence."""
    out = np.empty(size, dtype=np.int64)
    filled = 0
    while filled < size:
        missing = size - filled
        kept = _kept(envelope, min(CHUNK, missing + missing // 32 + 16), bits)[:missing]
        out[filled : filled + kept.size] = kept
        filled += kept.size
    return out


def _kept(envelope: _Envelope, count: int, bits: Bits) -> NDArray[np.int64]:
    """Propose `count` candidates and return those that are kept, in their order."""
    candidates = _candidates(envelope, count, bits)
    margin = _float_acceptance(envelope, candidates.bucket, candidates.offset)
    margin -= candidates.digits * 2.0**-DIGITS
    keep = margin >= GUARD
    magnitude = (candidates.bucket << envelope.shift) + candidates.offset
    unsure = np.abs(margin) < GUARD
    unsure |= candidates.bucket == envelope.buckets
    for i in np.flatnonzero(unsure):
        kept = _exactly(envelope, int(candidates.bucket[i]), int(candidates.offset[i]), int(candidates.digits[i]), bits)
        keep[i] = kept is not None
        magnitude[i] = kept or 0
    keep &= ~(candidates.negative & (magnitude == 0))
    return np.where(candidates.negative, -magnitude, magnitude)[keep]


def _candidates(envelope: _Envelope, count: int, bits: Bits) -> _Candidates:
    """Draw `count` proposals from three words each: bucket; offset; digits of U and sign."""
    words = np.frombuffer(bits(24 * count), dtype=np.uint64).reshape(3, count)
    cell = (words[0] >> np.uint64(TICKET_BITS)).astype(np.intp)
    ticket = words[0] & np.uint64(2**TICKET_BITS - 1)
    bucket = np.where(ticket < envelope.cut[cell], cell, envelope.alias[cell])
    offset = (words[1] & np.uint64(2**envelope.shift - 1)).astype(np.int64)
    digits = (words[2] >> np.uint64(64 - DIGITS)).astype(np.int64)
    negative = (words[2] & np.uint64(1)).astype(np.bool_)
    return _Candidates(bucket, offset, digits, negative)


def _float_acceptance(envelope: _Envelope, bucket: NDArray[np.intp], offset: NDArray[np.int64]) -> NDArray[np.float64]:
    r"""Probability of keeping, in float64, within :math:`2^{-47}`; below -0.7 for "nothing".

    With :math:`u = 2^{-53}`: :math:`\rho` is exact (a 45-bit integer times a power of two); :math:`2k + \rho`, the two
    products and the rounded constant :math:`1/(2t^2)` give :math:`e` a relative error below :math:`4.01u`, and
    :math:`e \le 8/t + 1.5/t^2 < 0.2515`, so an absolute one below :math:`1.1u`. Horner's rule of degree 12 with rounded
    coefficients errs by at most :math:`\gamma_{25} e^{0.2515} < 32.3u` (Higham 2002, section 5.1), the Taylor remainder
    is below :math:`0.2515^{13}/13! < 0.1u`, and the rounded height with its product adds :math:`2.01u`. In sum below
    :math:`40u < 2^{-47}`. Only additions and products are used, which IEEE 754 rounds correctly: no library's `exp`
    has to be trusted.
    """
    rho = offset * 2.0**-envelope.shift
    e = rho + 2.0 * bucket
    e *= rho
    e *= envelope.curvature
    value = np.full_like(e, TAYLOR[0])
    for coefficient in TAYLOR[1:]:
        value *= e
        value += coefficient
    value *= envelope.height[bucket]
    return value


def _exactly(envelope: _Envelope, bucket: int, offset: int, digits: int, bits: Bits) -> int | None:
    """Settle one candidate in exact arithmetic: its magnitude, or None if it is rejected."""
    factor = Fraction(envelope.constant, envelope.weights[bucket])
    magnitude = (bucket << envelope.shift) + offset
    if bucket == envelope.buckets:
        block = _geometric(bits)
        magnitude = (bucket << envelope.shift) + (block << envelope.tail_shift) + _uniform(envelope.tail_shift, bits)
        factor *= Fraction(2) ** (block + 1 + envelope.tail_shift - envelope.shift)
    exponent = Fraction(magnitude**2) / (2 * envelope.scale**2)
    return magnitude if _accepts(digits, factor, exponent, bits) else None


def _accepts(digits: int, factor: Fraction, exponent: Fraction, bits: Bits) -> bool:
    r"""Decide :math:`U < a = \text{factor} \cdot e^{-\text{exponent}}` where `digits` are the first 53 of U.

    With p digits known, U lies in :math:`[D/2^p, (D+1)/2^p)`; a is computed to an interval as well. When the two
    overlap, 64 more digits are drawn and the precision follows. The loop ends with probability one.
    """
    known = DIGITS
    while True:
        low, high = _interval(factor * 2**known, exponent, known)
        if digits + 1 <= low:
            return True
        if digits >= high:
            return False
        digits = (digits << 64) | _uniform(64, bits)
        known += 64


def _interval(factor: Fraction, exponent: Fraction, known: int) -> tuple[Fraction, Fraction]:
    r"""Bounds on :math:`\text{factor} \cdot e^{-\text{exponent}}`, about `known` + 30 binary digits apart.

    `Decimal.exp` rounds correctly. At precision D, rounding the argument x errs by :math:`x 10^{1-D}` at most, hence
    the result by a relative :math:`2x 10^{1-D}`; the rounding of the result adds :math:`10^{1-D}`.
    """
    size = ceil(exponent) + 1
    precision = ceil(known * 0.302) + len(str(size)) + 10
    with localcontext(_context(precision)):
        value = factor * Fraction((-Decimal(exponent.numerator) / Decimal(exponent.denominator)).exp())
    error = value * Fraction(4 * size, 10 ** (precision - 1))
    return value - error, value + error


def _context(precision: int) -> Context:
    return Context(prec=precision, rounding=ROUND_HALF_EVEN, Emin=MIN_EMIN, Emax=MAX_EMAX)


def _uniform(width: int, bits: Bits) -> int:
    """Draw an integer of `width` fair bits."""
    return int.from_bytes(bits((width + 7) // 8), "little") & ((1 << width) - 1)


def _geometric(bits: Bits) -> int:
    """Count fair coins before the first that shows zero: j with probability 2^-(j+1)."""
    count = 0
    while _uniform(1, bits):
        count += 1
    return count


@lru_cache(maxsize=32)
def _envelope(scale: Fraction) -> _Envelope:
    """Build the tables for one scale, in exact integers and 60-digit decimals. They are public and take milliseconds: kept."""
    shift = max(0, floor(scale / STEPS).bit_length() - 1)
    steps = scale / 2**shift
    buckets = ceil(REACH * steps)
    tail_shift = _tail_shift(scale, buckets << shift)
    with localcontext(_context(_PRECISION)):
        density = [_density(k, steps) for k in range(buckets + 1)]
        density[buckets] *= Decimal(2) ** (tail_shift - shift + 1)  # what W_K has to cover, in units of c
        # Each weight is rounded up by less than two, so the sum stays below 2^64.
        constant = int((2**64 - 2 * (buckets + 2)) / (sum(density) * _ROUNDING_UP**2))
        weights = [int(constant * d * _ROUNDING_UP) + 1 for d in density]
        height = [float(constant * d / w) for d, w in zip(density, weights, strict=True)]
    weights.append(2**64 - sum(weights))
    weights.extend([0] * (2**CELL_BITS - len(weights)))
    cut, alias = _alias_table(weights)
    height[buckets] = -1.0  # the tail never uses its float
    height.extend([-1.0] * (2**CELL_BITS - len(height)))
    return _Envelope(
        scale=scale,
        shift=shift,
        buckets=buckets,
        tail_shift=tail_shift,
        constant=constant,
        weights=tuple(weights),
        cut=np.array(cut, dtype=np.uint64),
        alias=np.array(alias, dtype=np.intp),
        height=np.array(height),
        curvature=float(1 / (2 * steps**2)),
    )


def _density(k: int, steps: Fraction) -> Decimal:
    exponent = Fraction(k**2) / (2 * steps**2)
    return (-Decimal(exponent.numerator) / Decimal(exponent.denominator)).exp()


def _tail_shift(scale: Fraction, start: int) -> int:
    """Exponent of the least power of two v with v T >= s^2 (T = `start`): the envelope halves from block to block."""
    return (ceil(scale**2 / start) - 1).bit_length()


def _alias_table(weights: list[int]) -> tuple[list[int], list[int]]:
    """Walker's alias table in integers: cell i means i for tickets below `cut[i]`, else `alias[i]`.

    `weights` has 2^CELL_BITS entries that sum to 2^64; each cell holds 2^TICKET_BITS tickets.
    """
    full = 2**TICKET_BITS
    left = list(weights)
    cut, alias = [full] * len(left), list(range(len(left)))
    small = [i for i, weight in enumerate(left) if weight < full]
    large = [i for i, weight in enumerate(left) if weight >= full]
    while small:
        poor, rich = small.pop(), large[-1]
        cut[poor], alias[poor] = left[poor], rich
        left[rich] -= full - left[poor]
        if left[rich] < full:
            small.append(large.pop())
    return cut, alias
