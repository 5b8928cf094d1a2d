"""Attacks on sealed sums: whatever an analyst relays or asks, with c owners on its side, no honest number opens."""

import shutil

import numpy as np
import pytest
from scipy import stats

import sfumato as sf
from helpers import CAUGHT, FALSE_ALARM
from sealed_helpers import House, parts_of
from sfumato.auditor.bound import lower_bound
from sfumato.errors import BadAnswer, BudgetSpent, InvalidInput, KeysGone, LedgerError
from sfumato.owners.sealing import opened
from sfumato.privacy.budget import QUANTA_PER_UNIT
from sfumato.protocol.consortium import named
from sfumato.protocol.questions import Ratio, Release, Terms
from sfumato.study.target import make_study
from sfumato.vault.gaussian import ExactSource
from sfumato.vault.lattice import choose_gamma
from sfumato.vault.sealed.book import SealBook
from sfumato.vault.sealed.consortium import Consortium

STUDY = make_study(sf.families.Bernoulli(), kernel="guided")
N = 900
TABLE = {"y": (np.arange(N) % 10 < 3).astype(int)}
SHARES = [1 / 3] * 3
THERE = [[0.3]]


def terms(**changes):
    sigma = changes.get("sigma", 3.0)
    given = {"kernel": "walk", "chains": 1, "sigma": sigma, "gamma": choose_gamma(sigma / 3**0.5, N), "shares": SHARES}
    return Terms(**given | changes)


def ratio(theta=0.1, asked=True):
    return Ratio(theta=[[theta]], theta_prop=THERE, asked=[asked])


@pytest.fixture
def house():
    with House(STUDY, parts_of(TABLE, 3), sealed=True) as made:
        made.keyset = made.agree()
        for door in made.doors:
            door.begin(terms())
        yield made


def ask(house, question, name="0/ratio", doors=None):
    """What each owner sends."""
    return [door.ask(named(f"run/{name}", house.keyset), question) for door in doors or house.doors]


def numbers(replies):
    return np.array([reply.numbers for reply in replies], np.int64)


def is_noise(values):
    """Beyond anything an honest sum reaches: with 64 uniform bits that fails once in 2^20."""
    return bool(np.all(np.abs(np.asarray(values, float)) > 2.0**43))


def test_all_together_open_the_sum_and_each_alone_is_noise(house):
    replies = ask(house, ratio())
    total = opened(numbers(replies), np.ones(1, bool))
    assert abs(total[0] * replies[0].gamma) < 500 and is_noise(numbers(replies))


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_one_owner_asked_another_question_opens_nothing(house, odd):
    """Another parameter, or the same one with one chain left out: tags differ, and so do the masks."""
    replies = [ask(house, ratio(0.1 if i != odd else 0.11), doors=[door])[0] for i, door in enumerate(house.doors)]
    assert len({reply.tag for reply in replies}) == 2
    assert is_noise(numbers(replies).view(np.uint64).sum(axis=0).view(np.int64))
    with pytest.raises(BadAnswer, match="asked the same"):
        house.sealing._alike(replies)


@pytest.mark.parametrize(
    "changes",
    [{"sigma": 3.1}, {"gamma": choose_gamma(1.0, N) / 4}, {"shares": [0.5, 0.25, 0.25]}, {"shares": [0.3, 0.35, 0.35]}],
)
def test_one_owner_with_other_noise_lattice_or_shares_opens_nothing(house, changes):
    """Each charges for the noise that the terms name; where these differ, nothing opens that anybody has not paid for."""
    house.doors[1].begin(terms(**changes))
    replies = ask(house, ratio())
    assert len({reply.tag for reply in replies}) == 2
    assert is_noise(numbers(replies).view(np.uint64).sum(axis=0).view(np.int64))


def test_noise_that_is_shared_out_to_ones_own_side_is_not_what_an_owner_charges_for(house):
    """An analyst gives nearly all the noise to its accomplice: the honest ones charge for what is left without it."""
    costs = [ask(house, ratio())[0].quanta]
    unfair = [2.0**-10, 1 - 2.0**-9, 2.0**-10]
    gamma = choose_gamma(3.0 * 2.0**-5, N)
    house.doors[0].begin(terms(shares=unfair, gamma=gamma))
    costs.append(house.doors[0].ask(named("run/1/ratio", house.keyset), ratio()).quanta)
    assert costs[1] / costs[0] == pytest.approx((2 / 3) / 2.0**-9, rel=1e-3)
    for shares in ([0.0, 1.0, 0.0], [1e-5, 1 - 2e-5, 1e-5], [-1.0, 1.0, 1.0], [float("nan"), 0.5, 0.5], [1.0]):
        with pytest.raises(InvalidInput, match="shared out"):
            house.doors[0].begin(terms(shares=shares))
        with pytest.raises(InvalidInput, match="shared out"):
            ask(house, release(shares=shares), "pilot/0")


def release(shares=SHARES):
    return Release(what="gradient", theta=[0.0], matrix=[[1.0]], radius=1.0, sigma=8.0, shares=list(shares))


def test_nothing_is_answered_unsealed_in_a_sealed_run_or_sealed_in_another(house):
    with pytest.raises(InvalidInput, match="Nothing is answered unsealed"):
        ask(house, release(shares=[]), "pilot/0")
    with pytest.raises(InvalidInput, match="Nothing is answered unsealed"):
        house.doors[0].begin(terms(shares=[]))
    with House(STUDY, parts_of(TABLE, 3), sealed=False) as bare:
        for words in (lambda: bare.doors[0].begin(terms()), lambda: bare.doors[0].ask("run/pilot/0", release())):
            with pytest.raises(InvalidInput, match="not sealed"):
                words()


def test_an_old_round_again_gives_its_bytes_and_with_another_content_nothing(house):
    first, again = ask(house, ratio()), ask(house, ratio())
    assert numbers(first).tolist() == numbers(again).tolist()
    spent = [door.spent for door in house.doors]
    with pytest.raises(LedgerError, match="other content"):
        ask(house, ratio(0.2))
    assert spent == [door.spent for door in house.doors]


def test_keys_that_are_gone_answer_nothing_new_and_what_was_answered_as_before(house):
    before, old = ask(house, ratio()), house.keyset
    house.doors[1]._desk._keys.expire()
    house.keyset = house.agree()
    assert house.keyset != old
    stored = [door.ask(named("run/0/ratio", old), ratio()) for door in house.doors]
    assert numbers(stored).tolist() == numbers(before).tolist()
    with pytest.raises(KeysGone):
        house.doors[0].ask(named("run/1/ratio", old), ratio())
    again = ask(house, ratio())  # the same round under new keys: another attempt, other noise, another charge
    assert opened(numbers(again), np.ones(1, bool))[0] != opened(numbers(before), np.ones(1, bool))[0]


def test_a_crash_between_charge_and_store_kills_the_tag(house, monkeypatch):
    """The charge stays; under that tag nothing is ever drawn again; under new keys the round is answered."""
    door, desk = house.doors[0], house.doors[0]._desk
    real, spent = desk._answers.record, door.spent

    def full_disk(*a, **k):
        raise LedgerError("no space")

    monkeypatch.setattr(desk._answers, "record", full_disk)
    with pytest.raises(LedgerError, match="no space"):
        ask(house, ratio(), doors=[door])
    monkeypatch.setattr(desk._answers, "record", real)
    assert door.spent > spent
    for _ in range(2):
        with pytest.raises(KeysGone):
            ask(house, ratio(), doors=[door])
    house.keyset = house.agree()
    assert opened(numbers(ask(house, ratio())), np.ones(1, bool))[0] is not None


def test_no_budget_is_passed_against_the_coalition_or_against_everybody():
    """The second filter has a cap of its own, and ends a run when the first would not."""
    with House(STUDY, parts_of(TABLE, 3), sealed=True, cap=QUANTA_PER_UNIT // 4) as house:
        house.keyset = house.agree()
        for door in house.doors:
            door.begin(terms())
        with pytest.raises(BudgetSpent):
            for i in range(10_000):
                ask(house, ratio(), f"{i}/ratio")
        for door in house.doors:
            assert 0 < door.left < QUANTA_PER_UNIT // 4 and door.left_for_everybody < door.left
            assert door.spent_for_everybody <= QUANTA_PER_UNIT // 4
            assert door.spent_for_everybody == pytest.approx(2 * door.spent, rel=1e-6)


# -- members ------------------------------------------------------------------------------------------------------------------


def test_an_extra_or_a_missing_member_is_another_roster():
    """A Sybil that the analyst adds to one owner's list, or a list that is one short: no key message passes."""
    three, four = (Consortium.among(names, colluders=1) for names in ("abc", "abcd"))
    mine = three["a"].run("run", "m", 10, SealBook())
    others = [
        house[name].run("run", "m", 10, SealBook()).message()
        for house, name in ((three, "b"), (three, "c"), (four, "d"))
    ]
    message = mine.message()
    for wrong in ([message, *others], [message, others[0]], [message, others[0], others[2]]):
        with pytest.raises(InvalidInput, match=r"all 3 members|not signed"):
            mine.agree(wrong)


def test_a_node_rolled_back_to_a_copy_of_its_disk_is_refused_by_the_others(tmp_path):
    members = Consortium.among("ab", colluders=1)
    theirs = members["b"].run("run", "m", 10, SealBook(tmp_path / "b"))
    mine = members["a"].run("run", "m", 10, SealBook(tmp_path / "a"))
    mine.message()
    shutil.copy(tmp_path / "a", tmp_path / "copy")
    mine.expire()
    messages = [mine.message(), theirs.message()]
    mine.agree(messages)
    theirs.agree(messages)
    shutil.copy(tmp_path / "copy", tmp_path / "a")
    back = members["a"].run("run", "m", 10, SealBook(tmp_path / "a"))
    with pytest.raises(LedgerError, match="put back from a copy"):
        theirs.agree([back.message(), theirs.message()])


def test_two_runs_have_nothing_in_common(house):
    """Another run's key messages are refused; its masks are others."""
    with House(STUDY, parts_of(TABLE, 3), sealed=True, members=house.members, run="other") as other:
        messages = [door.key_message() for door in other.doors]
        with pytest.raises(InvalidInput, match="another run"):
            house.doors[0].agree([house.doors[0].key_message(), *messages[1:]])
        other.keyset = other.agree()
        for door in other.doors:
            door.begin(terms())
        one, two = numbers(ask(house, ratio())), numbers(ask(other, ratio()))
    mixed = (one[:1].view(np.uint64) - two[:1].view(np.uint64)).view(np.int64)
    assert is_noise(mixed)


def test_masks_do_not_follow_from_what_is_public(house):
    """The same question, keys and numbers, asked of the same people twice with fresh keys: no bit in common beyond chance."""
    bits = []
    for i in range(40):
        house.doors[0]._desk._keys.expire()
        house.keyset = house.agree()
        bits.append(np.unpackbits(numbers(ask(house, ratio(), f"{i}/ratio")).view(np.uint8)))
    each = np.mean(bits, axis=0)
    limit = stats.norm.isf(FALSE_ALARM / 2 / each.size) * 0.5 / 40**0.5
    assert np.all(np.abs(each - 0.5) < limit + 1 / 40)


# -- what the coalition sees -----------------------------------------------------------------------------------------------------


ROUNDS, SIGMA = 3000, 0.45


class Silence:
    """An owner that adds no noise."""

    def __init__(self, scale):
        self.scale = scale

    def draw(self, size):
        return np.arange(size) % 2  # in units of the lattice: nothing, but no constant, which a pool refuses


def view(table, against):
    """What is left of every round's sum for the analyst and whoever is on its side; and what an honest owner paid a round."""
    silent = against == "silent"
    source = (lambda scale, owner: Silence(scale) if owner == 1 else ExactSource(scale)) if silent else None
    with House(STUDY, parts_of(table, 3), sealed=True, source=source, cap=2**61) as house:
        house.keyset, seen = house.agree(), []
        for door in house.doors:
            door.begin(terms(sigma=SIGMA))
        for i in range(ROUNDS):
            replies = ask(house, ratio(), f"{i}/ratio")
            total = int(opened(numbers(replies), np.ones(1, bool))[0])
            colluders = {"silent": [], "one": [2], "two": [1, 2]}[against]
            known = sum(unmasked(house.doors[j]._desk, replies[j]) for j in colluders)
            seen.append((total - known) * replies[0].gamma)
        door = house.doors[0]
        paid = door.spent / ROUNDS, door.spent_for_everybody / ROUNDS
    return np.array(seen), [(quanta / QUANTA_PER_UNIT) ** 0.5 for quanta in paid]


def unmasked(desk, reply):
    """What an owner sent without its masks: its own sum and noise, which it knows."""
    masks = desk._keys._masks.of(bytes.fromhex(reply.tag), 1)
    return int((np.array(reply.numbers, np.int64).view(np.uint64) - masks).view(np.int64)[0])


@pytest.mark.parametrize("against", ["one", "silent", "two"])
def test_a_distinguisher_with_all_that_a_coalition_sees_gains_no_more_than_was_charged(against):
    """One record of owner a turned over; the auditor's own bound, from every round's view. One owner was assumed to collude.

    One does; or one adds no noise, which counts as one that does. If two do, the promise to one coalition is broken, which the
    same distinguisher finds, and the second one, against everybody, is kept.
    """
    other = {"y": TABLE["y"].copy()}
    other["y"][0] = 1 - other["y"][0]
    (here, paid), (there, _) = view(TABLE, against), view(other, against)
    sign, charged = np.sign(np.median(there) - np.median(here)), paid[against == "two"]
    assert 0.1 < lower_bound(sign * here, sign * there, FALSE_ALARM).mu_lower < charged
    # And as a law: the views differ by just what was charged, in units of what noise is left.
    gained = abs(there.mean() - here.mean()) / np.sqrt((here.var() + there.var()) / 2)
    error = (2 / ROUNDS + gained**2 / (4 * ROUNDS)) ** 0.5
    assert abs(gained - charged) < stats.norm.isf(FALSE_ALARM / 2) * error
    assert paid[1] == pytest.approx(2**0.5 * paid[0], rel=1e-6)
    if against == "two":
        assert gained - paid[0] > stats.norm.isf(CAUGHT) * error
