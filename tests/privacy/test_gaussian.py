"""The exact sampler: its law, its error bound, its rare paths, and saboteurs that the same checks must catch."""

import os
from fractions import Fraction

import numpy as np
import pytest
from mpmath import mp
from noise_laws import LARGE_SCALE_LAWS, exact_law, low_bits, moments, normal_shape

from helpers import FALSE_ALARM
from sfumato.errors import InvalidInput
from sfumato.vault import gaussian
from sfumato.vault.gaussian import ExactSource

SMALL_SCALES = (0.7, 1.5, 3.0, 10.5)
LARGE_SCALE = 2.0**30 * 1.37
ALL_SCALES = (2.0**-4, *SMALL_SCALES, 63.9, 64.0, 1000.1, LARGE_SCALE, 2.0**45 * 1.9, 2.0**50)
MANY = 2**20


def exponent(magnitude: int, scale: float) -> mp.mpf:
    return mp.mpf(magnitude) ** 2 / (2 * mp.mpf(scale) ** 2)


# ---- the law -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SMALL_SCALES)
def test_small_scales_have_the_exact_law(scale):
    assert exact_law(ExactSource(scale).draw(MANY), scale) > FALSE_ALARM


@pytest.mark.parametrize("scale", [63.9, 64.0, 200.3])
def test_the_law_is_exact_on_both_sides_of_the_first_wide_bucket(scale):
    assert exact_law(ExactSource(scale).draw(MANY), scale) > FALSE_ALARM


@pytest.mark.parametrize("law", LARGE_SCALE_LAWS)
@pytest.mark.parametrize("scale", [LARGE_SCALE, 2.0**45 * 1.9])
def test_large_scales_look_normal_with_uniform_low_bits(law, scale):
    assert law(ExactSource(scale).draw(MANY), scale) > FALSE_ALARM


@pytest.mark.parametrize("scale", [1.5, 10.5, 200.3])
def test_the_tail_has_the_exact_law_when_it_starts_early(monkeypatch, scale):
    monkeypatch.setattr(gaussian, "REACH", 1)  # a third of the draws come from the tail instead of one in 2^47
    assert exact_law(ExactSource(scale).draw(20_000), scale) > FALSE_ALARM


@pytest.mark.parametrize("scale", [0.7, 100.3])
def test_the_exact_path_has_the_exact_law_when_every_comparison_takes_it(monkeypatch, scale):
    monkeypatch.setattr(gaussian, "GUARD", 2.0)
    assert exact_law(ExactSource(scale).draw(20_000), scale) > FALSE_ALARM


@pytest.mark.parametrize("size", [0, 1, 7, gaussian.CHUNK - 1, gaussian.CHUNK, 3 * gaussian.CHUNK + 5])
def test_a_draw_has_the_size_asked_for(size):
    draws = ExactSource(LARGE_SCALE).draw(size)
    assert draws.shape == (size,)
    assert draws.dtype == np.int64


def test_two_draws_share_nothing():
    source = ExactSource(2.0**50)  # 2^11 draws collide by chance once in 2^31
    draws = np.concatenate([source.draw(1000), source.draw(1000)])
    assert np.unique(draws).size == draws.size


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), 2.0**-5, 2.0**51])
def test_scales_out_of_range_are_refused(scale):
    with pytest.raises(InvalidInput, match="scale of the noise"):
        ExactSource(scale)


def test_nothing_is_truncated():
    assert gaussian.TRUNCATION == 0.0


# ---- the envelope, without sampling --------------------------------------------------------------------------------


def bucket_shares(cut, alias) -> list[int]:
    """Tickets out of 2^64 that an alias table gives to each bucket."""
    full = 2**gaussian.TICKET_BITS
    shares = [0] * len(cut)
    for cell, (threshold, other) in enumerate(zip(cut, alias, strict=True)):
        shares[cell] += int(threshold)
        shares[int(other)] += full - int(threshold)
    return shares


@pytest.mark.parametrize("scale", ALL_SCALES)
def test_the_alias_table_draws_exactly_the_weights(scale):
    envelope = ExactSource(scale)._envelope
    assert sum(envelope.weights) == 2**64
    assert bucket_shares(envelope.cut, envelope.alias) == list(envelope.weights)
    shared = np.flatnonzero(envelope.alias != np.arange(envelope.alias.size))[0]
    envelope.cut[shared] += np.uint64(1)  # one ticket in 2^64 astray is seen
    assert bucket_shares(envelope.cut, envelope.alias) != list(envelope.weights)


@pytest.mark.parametrize("scale", ALL_SCALES)
def test_no_acceptance_probability_exceeds_one(scale):
    e = ExactSource(scale)._envelope
    with mp.workprec(300):
        for k in range(e.buckets):
            assert e.constant * mp.exp(-exponent(k << e.shift, scale)) <= e.weights[k]
        for j in range(60):
            start = (e.buckets << e.shift) + (j << e.tail_shift)
            top = e.constant * mp.exp(-exponent(start, scale)) * mp.mpf(2) ** (j + 1 + e.tail_shift - e.shift)
            assert top <= e.weights[e.buckets]


@pytest.mark.parametrize("scale", ALL_SCALES)
def test_few_candidates_are_wasted(scale):
    e = ExactSource(scale)._envelope
    kept = sum(float(h) * w for h, w in zip(e.height[: e.buckets], e.weights[: e.buckets], strict=True))
    assert kept > 0.999 * 2**64


# ---- the float comparison ------------------------------------------------------------------------------------------


def worst_error(scale: float, acceptance) -> float:
    """Largest distance of `acceptance` from the truth over buckets and offsets, the extreme ones included."""
    e = ExactSource(scale)._envelope
    spread = np.linspace(0, 2**e.shift - 1, 7).astype(np.int64)
    bucket = np.repeat(np.unique(np.linspace(0, e.buckets - 1, 40).astype(np.intp)), spread.size)
    offset = np.resize(spread, bucket.size)
    with mp.workprec(200):
        truth = [
            e.constant * mp.exp(-exponent((int(k) << e.shift) + int(r), scale)) / e.weights[k]
            for k, r in zip(bucket, offset, strict=True)
        ]
        return max(float(abs(mp.mpf(float(a)) - t)) for a, t in zip(acceptance(e, bucket, offset), truth, strict=True))


def float32_acceptance(envelope, bucket, offset):
    """Compute the square in float32: wrong in the 24th digit."""
    m = ((bucket << envelope.shift) + offset).astype(np.float32)
    a = (bucket << envelope.shift).astype(np.float32)
    s = np.float32(envelope.scale)
    return envelope.height[bucket] * np.exp(-((m / s) ** 2 - (a / s) ** 2) / 2)


@pytest.mark.parametrize("scale", ALL_SCALES)
def test_the_float_stays_within_its_proven_error(scale):
    assert worst_error(scale, gaussian._float_acceptance) <= gaussian.GUARD / 2


def test_a_float32_square_breaks_the_bound():
    assert worst_error(LARGE_SCALE, float32_acceptance) > gaussian.GUARD / 2


class Script:
    """Bytes prepared by a test, handed out in order; `rest` is what nobody asked for."""

    def __init__(self, *pieces: tuple[int, int]) -> None:
        self.rest = b"".join(value.to_bytes(size, "little") for value, size in pieces)

    def __call__(self, size: int) -> bytes:
        assert len(self.rest) >= size, "more randomness asked for than the test prepared"
        head, self.rest = self.rest[:size], self.rest[size:]
        return head


def ticket_for(envelope, bucket: int) -> int:
    """Return a first word that selects `bucket`."""
    full = 2**gaussian.TICKET_BITS
    if envelope.cut[bucket]:
        return bucket * full
    cell = int(np.flatnonzero((envelope.alias == bucket) & (envelope.cut < full))[0])
    return cell * full + full - 1


def first_digits(value: mp.mpf, places: int) -> int:
    return int(mp.floor(value * mp.mpf(2) ** places))


@pytest.mark.parametrize("scale", [3.0, 200.3, LARGE_SCALE, 2.0**45 * 1.9])
@pytest.mark.parametrize("share", [0.03, 0.4, 0.9])
@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize("step", [-1, 1])
def test_an_ambiguous_comparison_is_decided_as_mpmath_does(scale, share, rounds, step):
    """U agrees with the acceptance probability in all of its first digits and leaves it `step` units further on."""
    e = ExactSource(scale)._envelope
    bucket, offset = max(1, int(share * e.buckets)), int(share * (2**e.shift - 1))
    magnitude = (bucket << e.shift) + offset
    with mp.workprec(600):
        a = e.constant * mp.exp(-exponent(magnitude, scale)) / e.weights[bucket]
        places = gaussian.DIGITS + 64 * rounds
        u = first_digits(a, places) + step
        assert u >> 64 == first_digits(a, places - 64), "the step must not carry; choose another candidate"
        truth = mp.mpf(u) / mp.mpf(2) ** places < a
    extension = [((u >> 64 * i) & (2**64 - 1), 8) for i in reversed(range(rounds))]
    script = Script((ticket_for(e, bucket), 8), (offset, 8), (u >> 64 * rounds << 11, 8), *extension)
    kept = gaussian._kept(e, 1, script)
    assert kept.tolist() == ([magnitude] if truth else [])
    assert truth == (step < 0)
    assert script.rest == b""


@pytest.mark.parametrize("scale", [0.7, 3.0, LARGE_SCALE, 2.0**45 * 1.9])
@pytest.mark.parametrize("block", [0, 1, 5])
@pytest.mark.parametrize("accepted", [True, False])
def test_the_tail_is_decided_as_mpmath_does(scale, block, accepted):
    e, rounds = ExactSource(scale)._envelope, 4
    inside = 2**e.tail_shift // 3
    magnitude = (e.buckets << e.shift) + (block << e.tail_shift) + inside
    with mp.workprec(600):
        tickets = mp.mpf(2) ** (block + 1 + e.tail_shift - e.shift)
        a = e.constant * tickets * mp.exp(-exponent(magnitude, scale)) / e.weights[e.buckets]
        places = gaussian.DIGITS + 64 * rounds
        u = first_digits(a, places) + (-1 if accepted else 1)
        truth = mp.mpf(u) / mp.mpf(2) ** places < a
        assert truth == accepted
    coins = [(1, 1)] * block + [(0, 1)]
    position = [(inside, (e.tail_shift + 7) // 8)]
    word = (u >> 64 * rounds << 11) | 1  # the sign bit set: a negative draw
    extension = [((u >> 64 * i) & (2**64 - 1), 8) for i in reversed(range(rounds))]
    script = Script((ticket_for(e, e.buckets), 8), (0, 8), (word, 8), *coins, *position, *extension)
    kept = gaussian._kept(e, 1, script)
    assert kept.tolist() == ([-magnitude] if truth else [])


@pytest.mark.parametrize("scale", [3.0, LARGE_SCALE])
def test_the_last_ticket_of_a_cell_and_the_first_of_its_alias(scale):
    e = ExactSource(scale)._envelope
    shared = np.flatnonzero((e.alias != np.arange(e.alias.size)) & (e.cut > 0))
    for cell in shared[:5].tolist():
        start, cut = cell << gaussian.TICKET_BITS, int(e.cut[cell])
        for ticket, bucket in ((0, cell), (cut - 1, cell), (cut, e.alias[cell]), (2**54 - 1, e.alias[cell])):
            script = Script((start + ticket, 8), (0, 8), (0, 8))
            assert gaussian._candidates(e, 1, script).bucket.tolist() == [bucket]


def test_the_candidate_that_means_nothing_is_never_kept():
    e = ExactSource(LARGE_SCALE)._envelope
    nothing = e.buckets + 1
    script = Script((ticket_for(e, nothing), 8), (0, 8), (0, 8))
    assert gaussian._kept(e, 1, script).size == 0


def test_minus_zero_is_rejected_and_zero_is_kept():
    e = ExactSource(3.0)._envelope
    for sign, expected in ((0, [0]), (1, [])):
        assert gaussian._kept(e, 1, Script((0, 8), (0, 8), (sign, 8))).tolist() == expected


@pytest.mark.parametrize("nudge", [Fraction(1, 2**60), -Fraction(1, 2**60)])
@pytest.mark.parametrize("extension", [0, 5, 40, 2**64 - 40, 2**64 - 6, 2**64 - 1])
def test_a_probability_next_to_a_whole_number_of_digits(nudge, extension):
    """At exponent zero the probability is rational, so it can be put inside the decimal interval's own width."""
    digits = 2**52 + 12345
    a = (digits + (nudge < 0) + nudge) / 2**gaussian.DIGITS
    u = Fraction((digits << 64) + extension, 2 ** (gaussian.DIGITS + 64))
    assert gaussian._accepts(digits, a, Fraction(0), Script((extension, 8))) == (u < a)


@pytest.mark.parametrize("known", [53, 117, 501])
@pytest.mark.parametrize("x", [Fraction(0), Fraction(1, 3), Fraction(32), Fraction(10**6, 7)])
def test_the_interval_holds_the_truth_and_is_narrow(known, x):
    low, high = gaussian._interval(Fraction(3, 7), x, known)
    with mp.workprec(4000):
        truth = mp.mpf(3) / 7 * mp.exp(-mp.mpf(x.numerator) / x.denominator)
        assert mp.mpf(low.numerator) / low.denominator <= truth <= mp.mpf(high.numerator) / high.denominator
    assert high - low <= high / 2 ** (known + 20)


# ---- saboteurs: each breaks one thing, and the checks above see it --------------------------------------------------


def test_a_scale_one_percent_off_is_caught():
    assert moments(ExactSource(1.01 * LARGE_SCALE).draw(MANY), LARGE_SCALE) < FALSE_ALARM
    assert exact_law(ExactSource(1.01 * 10.5).draw(MANY), 10.5) < FALSE_ALARM


def test_tails_cut_at_three_scales_are_caught():
    draws = ExactSource(LARGE_SCALE).draw(MANY)
    assert moments(draws[np.abs(draws) <= 3 * LARGE_SCALE], LARGE_SCALE) < FALSE_ALARM


def test_modulo_bias_is_caught():
    draws = ExactSource(LARGE_SCALE).draw(MANY)
    nine_bits = np.frombuffer(os.urandom(2 * MANY), dtype=np.uint16) % 512
    biased = (draws & ~255) + (nine_bits % 384) % 256
    assert low_bits(biased.astype(np.int64), LARGE_SCALE) < FALSE_ALARM


def test_a_flat_bucket_is_caught(monkeypatch):
    """Forget the rejection inside buckets: the density is a staircase above the curve."""
    monkeypatch.setattr(gaussian, "_float_acceptance", lambda e, k, r: np.where(k <= e.buckets, 2.0, -2.0))
    draws = ExactSource(LARGE_SCALE).draw(4 * MANY)  # the variance is then 15 standard errors off
    assert moments(draws, LARGE_SCALE) < FALSE_ALARM


def test_a_doubled_zero_is_caught():
    draws = ExactSource(3.0).draw(MANY)
    zeros = np.flatnonzero(draws == 0)
    doubled = np.concatenate([draws, draws[zeros]])
    assert exact_law(doubled, 3.0) < FALSE_ALARM


def test_repeated_draws_are_caught():
    draws = ExactSource(LARGE_SCALE).draw(MANY // 2)
    assert moments(np.repeat(draws, 2), LARGE_SCALE) < FALSE_ALARM


def test_a_uniform_of_the_right_variance_is_caught():
    words = np.frombuffer(os.urandom(8 * MANY), dtype=np.uint64).astype(np.float64) * 2.0**-64
    assert normal_shape((words - 0.5) * np.sqrt(12) * LARGE_SCALE, LARGE_SCALE) < FALSE_ALARM
