"""Langevin's statistics asked ahead: fewer messages, the same numbers, no draw lost at the end of a budget."""

import numpy as np
import pytest

from sfumato.access import ahead
from sfumato.access.ahead import Statistics
from sfumato.access.questions import AHEAD, Statistic, Terms
from sfumato.access.rounds import Rounds
from sfumato.errors import BudgetSpent, InvalidInput
from sfumato.kernel import PublicStream
from sfumato.vault import desk
from sfumato.vault.ledger import Ledger
from unit.owners.test_rounds import (
    CAP,
    CHAINS,
    STEPS,
    assert_same,
    by_rounds,
    door_of,
    drive,
    langevin_case,
    reference_case,
)


class Owner:
    """Tells the number of the step; its budget reaches up to a step."""

    def __init__(self, reaches=10**9):
        self.asked, self._reaches = [], reaches

    def __call__(self, name, question, size):
        first = int(name.split("/")[0])
        if first + question.steps > self._reaches:
            raise BudgetSpent("no", needed=1.0, left=0.0)
        self.asked.append(name)
        assert size == 2 * question.steps * 3
        return np.repeat(np.arange(first, first + question.steps), 6)


def walk(owner, steps, end, affordable=lambda count: True):
    statistics = Statistics(owner, 2, 3)
    for step in steps:
        assert (statistics.at(step, end, affordable) == step).all()
    return owner.asked


def test_a_message_fetches_the_steps_up_to_the_next_mark_and_none_beyond_the_end():
    assert walk(Owner(), range(40), 40) == ["0/statistics-16", "16/statistics-16", "32/statistics-8"]


def test_a_run_that_comes_back_asks_for_the_message_it_was_in_the_middle_of():
    assert walk(Owner(), range(37, 60), 60) == ["32/statistics-16", "48/statistics-12"]


def test_what_nobody_can_pay_for_is_not_fetched_ahead():
    """Steps 0 to 15 are afforded twice over; from then on each step asks for itself, and none is fetched again."""
    left = iter([True] + [False] * 100)
    assert walk(Owner(), range(19), 40, lambda count: next(left)) == [
        "0/statistics-16", "16/statistic", "17/statistic", "18/statistic"
    ]  # fmt: skip
    assert walk(Owner(reaches=18), range(18), 40) == ["0/statistics-16", "16/statistic", "17/statistic"]
    with pytest.raises(BudgetSpent):
        walk(Owner(reaches=18), range(19), 40)


def test_many_numbers_fetch_fewer_steps():
    assert Statistics(Owner(), 4096, 3).stride == ahead.AHEAD_NUMBERS // (4096 * 3) == 1


def test_a_chunk_may_end_anywhere():
    owner = Owner()
    statistics = Statistics(owner, 2, 3)
    for step in range(60):
        statistics.at(step, step - step % 10 + 10, lambda count: True)
    assert owner.asked[:4] == ["0/statistics-10", "10/statistics-6", "16/statistics-4", "20/statistics-10"]


@pytest.mark.parametrize("case", [langevin_case(), reference_case()], ids=["family", "reference"])
def test_one_by_one_gives_the_same_chain(case, monkeypatch):
    together = by_rounds(case)
    monkeypatch.setattr(ahead, "AHEAD", 1)
    assert_same(together, by_rounds(case))


def steps_and_messages(case, cap, expected):
    """How far a budget reaches, and how many questions were asked."""
    with Ledger.in_memory(CAP) as ledger:
        door, asked = door_of(case, ledger, cap=cap), []
        rounds, real = Rounds(case.study.model, [door], run_id="run"), door.ask
        door.ask = lambda query_id, question: (asked.append(query_id), real(query_id, question))[1]
        with pytest.raises(BudgetSpent):
            drive(case, rounds, PublicStream(1, CHAINS), [64] * 100, expected)
        spent = door.spent
        rounds.close()
        return rounds.step, len(asked), spent


def test_a_budget_reaches_for_as_many_steps_as_one_by_one(monkeypatch):
    case = langevin_case()
    with Ledger.in_memory(CAP) as ledger:
        rounds = Rounds(case.study.model, [door_of(case, ledger)], run_id="run")
        drive(case, rounds, PublicStream(1, CHAINS), [STEPS])
        per_step = ledger.spent / STEPS
    cap, expected = int(per_step * 100), int(per_step * 64 * 1.2)
    steps, messages, spent = steps_and_messages(case, cap, expected)
    monkeypatch.setattr(ahead, "AHEAD", 1)
    alone = steps_and_messages(case, cap, expected)
    assert (steps, spent) == (alone[0], alone[2])
    assert 60 < steps < 140
    assert messages < 0.8 * alone[1]


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
        monkeypatch.setattr(desk, "AHEAD_NUMBERS", AHEAD * CHAINS * 3 - 1)
        with pytest.raises(InvalidInput, match="at most 143 numbers, got 144"):
            door.ask("many", Statistic(chains=CHAINS, steps=AHEAD))
        assert door.left == left
        door.close()
