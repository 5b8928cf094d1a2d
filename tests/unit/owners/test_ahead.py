"""Langevin's statistics asked ahead: fewer messages, the same numbers, no draw lost at the end of a budget."""

import numpy as np
import pytest

import sfumato as sf
from sfumato.errors import BudgetSpent, InvalidInput, OwnerLost
from sfumato.kernel import PublicStream
from sfumato.owners import ahead
from sfumato.owners.ahead import Statistics, Summed
from sfumato.owners.rounds import Rounds
from sfumato.protocol.questions import AHEAD, Statistic, Terms
from sfumato.vault.ledger import Ledger
from sfumato.vault.queries import vector
from unit.owners.test_rounds import (
    CAP,
    CHAINS,
    STEPS,
    assert_same,
    by_rounds,
    copies_case,
    door_of,
    langevin_case,
    reference_case,
    states_of,
)


class Owner:
    """Tells the number of the step; its budget reaches up to a step."""

    def __init__(self, reaches=10**9):
        self.asked, self.refused, self._reaches = [], [], reaches

    def __call__(self, name, question, size):
        first = int(name.split("/")[0])
        if first + question.steps > self._reaches:
            self.refused.append(name)
            raise BudgetSpent("no", needed=1.0, left=0.0)
        self.asked.append(name)
        assert size == 2 * question.steps * 3
        return Summed(np.repeat(np.arange(first, first + question.steps), 6), np.ones(1))


def walk(owner, steps, until=10**9):
    statistics, marks = Statistics(owner, 2, 3, until), []
    for step in steps:
        assert (statistics.at(step) == step).all()
        marks.append(statistics.mark)
    return owner.asked, marks


def test_a_message_fetches_sixteen_steps_and_none_of_the_last_part():
    asked, marks = walk(Owner(), range(36), until=35)
    assert asked == ["0/statistics", "16/statistics", "32/statistic", "33/statistic", "34/statistic", "35/statistic"]
    assert marks == ["-ahead"] * 32 + [""] * 4


def test_a_run_that_comes_back_asks_for_the_message_it_was_in_the_middle_of():
    assert walk(Owner(), range(37, 60))[0] == ["32/statistics", "48/statistics"]
    assert walk(Owner(), range(37, 40), until=40)[0] == ["37/statistic", "38/statistic", "39/statistic"]


def test_after_a_message_that_somebody_cannot_pay_each_step_asks_for_itself():
    """The others pay for theirs: not again and again."""
    owner = Owner(reaches=18)
    assert walk(owner, range(18))[0] == ["0/statistics", "16/statistic", "17/statistic"]
    assert owner.refused == ["16/statistics"]
    with pytest.raises(BudgetSpent):
        walk(Owner(reaches=18), range(19))


def test_what_was_asked_for_and_not_used_is_counted():
    statistics = Statistics(Owner(), 2, 3, 10**9)
    assert statistics.unused(0) == 0
    statistics.at(0)
    assert [statistics.unused(step) for step in (1, 9, 16, 17)] == [15 * 6, 7 * 6, 0, 0]


def halves(y):
    """Two owners: one alone would be asked for nothing ahead."""
    return [sf.Owner({"y": part}, name=name, epsilon=2.0, delta=1e-6) for name, part in (("a", y[::2]), ("b", y[1::2]))]


def test_the_statement_counts_what_was_asked_for_ahead_of_an_end(monkeypatch):
    """A run that is stopped in the middle of a message: its statement has all that was released, its transcript what was used."""
    y, chunk = (np.arange(20_000) % 10 < 3).astype(int), Rounds.chunk

    def nine(rounds, states, draws, limit, *rest):
        if rounds.step:
            raise OwnerLost("gone", owner="a")
        return chunk(rounds, states, draws, min(limit, 9), *rest)

    monkeypatch.setattr(Rounds, "chunk", nine)
    run = sf.sample(
        sf.families.Bernoulli(), halves(y), kernel="langevin", chains=2, seed=3,
        force=True, pilot_share=0.0, guess={"p": 0.3}, max_iterations=100, progress=False,
    )  # fmt: skip
    assert run.iterations == 9
    for owner in run.privacy.owners:
        assert owner.releases == 2 * (9 + AHEAD)  # corrections of nine steps, statistics of sixteen


def test_many_numbers_fetch_fewer_steps():
    assert Statistics(Owner(), 4096, 3, 100).stride == ahead.AHEAD_NUMBERS // (4096 * 3) == 1
    assert Statistics(Owner(), 2, 3, 100).stride == AHEAD


CASES = pytest.mark.parametrize(
    "case", [langevin_case(), copies_case(), reference_case()], ids=["family", "copies", "reference"]
)


@CASES
def test_one_by_one_gives_the_same_chain(case):
    assert_same(by_rounds(case), by_rounds(case, sizes=(7, STEPS - 7), ahead=STEPS))


@CASES
@pytest.mark.parametrize("done", [20, 30])
def test_a_run_that_was_killed_in_a_chunk_asks_again_with_the_same_ids_and_pays_nothing(case, done):
    """Its first chunk is durable, the second was answered and is not; chunks end in the middle of messages."""
    with Ledger.in_memory(CAP) as ledger:
        access, stream = (
            Rounds(case.study.model, [door_of(case, ledger)], run_id="run", ahead=STEPS),
            PublicStream(1, CHAINS),
        )
        states = states_of(case, stream)
        access.begin(case.kernel, case.sigma, states)
        draws = stream.peek(case.kernel, STEPS)
        first = access.chunk(states, draws, done, 1)
        rest = type(draws)(*(np.asarray(part)[done:] for part in draws))
        lost = access.chunk(first.states, rest, STEPS - done, 1)
        access.close()
        spent = ledger.spent
        again = Rounds(case.study.model, [door_of(case, ledger)], run_id="run", step=done, ahead=STEPS)
        again.begin(case.kernel, case.sigma, states)
        found = again.chunk(first.states, rest, STEPS - done, 1)
        again.close()
        assert ledger.spent == spent
    for name in ("theta", "t_noisy", "d_n_noisy", "accepted"):
        assert np.array_equal(
            getattr(found.transcript, name), getattr(lost.transcript, name), equal_nan=name == "d_n_noisy"
        )


def test_a_run_over_owners_asks_ahead_for_most_of_its_steps(monkeypatch):
    names = []
    real = Rounds.add

    def add(rounds, name, *rest):
        names.append(name)
        return real(rounds, name, *rest)

    monkeypatch.setattr(Rounds, "add", add)
    y = (np.arange(20_000) % 10 < 3).astype(int)
    run = sf.sample(
        sf.families.Bernoulli(), halves(y), kernel="langevin", chains=2, seed=3,
        force=True, pilot_share=0.0, guess={"p": 0.3}, max_iterations=100, progress=False,
    )  # fmt: skip
    ahead_ = [name for name in names if name.endswith("/statistics")]
    alone = [name for name in names if name.endswith("/statistic")]
    assert ahead_ == [f"{first}/statistics" for first in range(0, 80, AHEAD)]
    assert alone == [f"{step}/statistic" for step in range(80, 80 + len(alone))]
    assert len(alone) - (run.iterations - 80) in (0, 1)  # of a last step whose second query nobody could pay


def test_a_desk_gives_statistics_for_a_few_steps_at_a_time_and_charges_for_each(monkeypatch):
    case = langevin_case()
    with Ledger.in_memory(CAP) as ledger:
        door = door_of(case, ledger)
        door.begin(
            Terms(
                kernel="langevin", chains=CHAINS, sigma=0.4, gamma=2.0**-40, matrix=case.kernel.matrix.tolist(),
                proposal_sigma=case.kernel.proposal_sigma, proposal_gamma=2.0**-40,
            )
        )  # fmt: skip
        one, many = (door.ask(f"q{k}", Statistic(chains=CHAINS, steps=k)) for k in (1, AHEAD))
        assert many.quanta == AHEAD * one.quanta
        assert len(many.numbers) == AHEAD * len(one.numbers) == AHEAD * CHAINS * 3
        left = door.left
        for bad in (0, -1, AHEAD + 1):
            with pytest.raises(InvalidInput, match="steps"):
                door.ask(f"bad{bad}", Statistic(chains=CHAINS, steps=bad))
        monkeypatch.setattr(vector, "AHEAD_NUMBERS", AHEAD * CHAINS * 3 - 1)
        with pytest.raises(InvalidInput, match="at most 143 numbers, got 144"):
            door.ask("many", Statistic(chains=CHAINS, steps=AHEAD))
        assert door.left == left
        door.close()
