import numpy as np
import pytest

from sfumato.errors import InvalidInput
from sfumato.kernel import Componentwise, Guided, PublicStream, RandomWalk

KERNELS = [cls(np.eye(2) * 0.3, 0.7) for cls in (RandomWalk, Componentwise, Guided)]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_the_same_seed_gives_the_same_numbers_however_they_are_cut(kernel):
    whole = PublicStream(5, 3).peek(kernel, 100)
    cut = PublicStream(5, 3)
    parts = []
    for size, used in [(40, 40), (30, 7), (50, 50), (3, 3)]:
        parts.append([part[:used] for part in cut.peek(kernel, size)])
        cut.consume(used)
    for field, pieces in zip(whole, zip(*parts, strict=True), strict=True):
        assert np.array_equal(np.concatenate(pieces), field[:100])


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_skipping_goes_on_where_a_run_stopped(kernel):
    first, second = PublicStream(5, 3), PublicStream(5, 3)
    first.peek(kernel, 70_000)
    first.consume(70_000)
    second.skip(kernel, 70_000)
    for a, b in zip(first.peek(kernel, 10), second.peek(kernel, 10), strict=True):
        assert np.array_equal(a, b)


def test_what_is_shown_but_not_used_is_shown_again():
    stream = PublicStream(1, 2)
    before = stream.peek(KERNELS[0], 10)
    again = stream.peek(KERNELS[0], 10)
    assert np.array_equal(before.normal, again.normal)


def test_chains_and_seeds_are_independent():
    draw = PublicStream(1, 2).peek(KERNELS[0], 1000).normal
    assert abs(np.corrcoef(draw[:, 0, 0], draw[:, 1, 0])[0, 1]) < 0.15
    assert not np.array_equal(draw, PublicStream(2, 2).peek(KERNELS[0], 1000).normal)
    assert PublicStream(None, 2).seed != PublicStream(None, 2).seed


def test_a_seed_is_a_whole_number():
    for seed in (-1, 1.5, "one"):
        with pytest.raises(InvalidInput):
            PublicStream(seed, 2)
