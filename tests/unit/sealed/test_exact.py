"""Sealed sums are the unsealed ones, bit for bit: masks add nothing, and the same noise gives the same chain."""

import numpy as np
import pytest

from sealed_helpers import House, parts_of
from sfumato.kernel import PublicStream
from sfumato.owners.rounds import Rounds
from sfumato.protocol.questions import Release
from unit.owners.fixed_noise import Fixed
from unit.owners.test_rounds import (
    CHAINS,
    assert_same,
    copies_case,
    drive,
    free_case,
    langevin_case,
    reference_case,
    walk_case,
)

STEPS = 12
SHARES = [0.5, 0.2, 0.3]


def owned(scale, owner):
    return Fixed(scale, seed=owner)


def transcript(case, sealed, sizes=(STEPS,), ahead=0, colluders=1):
    with House(case.study, parts_of(case.table, 3), sealed=sealed, source=owned, colluders=colluders) as house:
        rounds = Rounds(case.study.model, house.doors, run_id="run", shares=SHARES, ahead=ahead, sealing=house.sealing)
        return drive(case, rounds, PublicStream(1, CHAINS), sizes)


@pytest.mark.parametrize(
    "case", [walk_case, langevin_case, copies_case, reference_case, free_case], ids=lambda c: c.__name__
)
def test_a_sealed_transcript_is_the_unsealed_one_bit_for_bit(case):
    sealed = transcript(case(), True)
    assert_same(transcript(case(), False), sealed)
    assert sealed["accepted"].any() and np.isfinite(sealed["d_n_noisy"]).any()


def test_statistics_asked_ahead_are_sealed_as_well():
    assert_same(
        transcript(copies_case(), False, ahead=STEPS), transcript(copies_case(), True, (5, STEPS - 5), ahead=STEPS)
    )


@pytest.mark.parametrize("what", ["gradient", "information", "outer"])
def test_a_pilots_release_is_sealed_as_well(what):
    case, found = walk_case(), []
    for sealed in (False, True):
        with House(
            case.study, parts_of(case.table, 3), sealed=sealed, source=lambda scale, owner: Fixed(0.0, owner)
        ) as house:
            rounds = Rounds(case.study.model, house.doors, run_id="run", shares=SHARES, sealing=house.sealing)
            found.append(rounds.release(what, np.full(4, 0.1), np.eye(4), 2.0, 8.0))
    assert np.allclose(found[0], found[1], rtol=0, atol=1e-5 * np.abs(found[0]).max()) and np.abs(found[0]).max() > 1


def test_what_one_owner_sends_is_noise_and_no_smaller_sum_opens():
    """Of one question, what each sends; masks are 64 uniform bits, so every sum but the whole one is as large as numbers go."""
    case = walk_case()
    question = Release(
        what="gradient", theta=[0.0] * 4, matrix=np.eye(4).tolist(), radius=2.0, sigma=8.0, shares=SHARES
    )
    with House(case.study, parts_of(case.table, 3), sealed=True) as house:
        keyset = house.agree()
        replies = [door.ask(f"run/pilot/0~{keyset.hex()[:24]}", question) for door in house.doors]
    rows = np.array([reply.numbers for reply in replies], np.int64).view(np.uint64)
    whole = rows.sum(axis=0).view(np.int64)
    assert np.abs(whole).max() * replies[0].gamma < 2 * 1003
    for missing in range(3):
        some = np.delete(rows, missing, axis=0).sum(axis=0).view(np.int64)
        assert np.abs(some.astype(float)).max() * replies[0].gamma > 1e6
    assert len({reply.tag for reply in replies}) == 1
