"""Nodes that are one consortium: keys go through the analyst, sums are sealed, a restart makes new keys."""

from contextlib import ExitStack

import numpy as np
import pytest

import sfumato as sf
from node_helpers import Threaded, load, threaded
from sealed_helpers import prepare_members
from sfumato.errors import InvalidInput, OwnerRefused
from sfumato.owners.remote import RemoteDoor, connect
from sfumato.protocol.consortium import decode_message

TABLES = {name: (np.arange(n) % 10 < 3).astype(int) for name, n in (("Amber", 3000), ("Birch", 3500), ("Cedar", 2500))}
SETTINGS = {
    "epsilon": 4.0,
    "delta": 1e-6,
    "chains": 2,
    "seed": 3,
    "force": True,
    "pilot_share": 0.0,
    "guess": {"p": 0.3},
}


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """Three nodes; of every one what its folder is, and its tokens."""
    with ExitStack() as stack:
        made = prepare_members(tmp_path_factory.mktemp("coast"), TABLES)
        nodes = {name: stack.enter_context(threaded(place)) for name, (place, _) in made.items()}
        for name, node in nodes.items():
            node.tokens = made[name][1]
        yield nodes


def owners(house):
    return [connect(node.url, token=node.tokens["alice"]) for node in house.values()]


@pytest.mark.parametrize(("name", "kernel"), [("coin", "guided"), ("coin", "langevin"), ("bern", "langevin")])
def test_a_run_over_nodes_of_one_consortium_is_sealed(house, name, kernel):
    family = load(next(iter(house.values())).folder, name)
    run = sf.sample(family, owners(house)[::-1], kernel=kernel, iterations=40, **SETTINGS)
    assert run.plan.sealed and run.iterations == 40
    for owner in run.privacy.owners:
        assert owner.sealed.members == tuple(TABLES) and owner.sealed.colluders == 1
        assert owner.sealed.mu == pytest.approx(owner.mu * 2**0.5, rel=1e-6)
        assert 0 < owner.spent_mu <= owner.mu and owner.spent_mu < owner.sealed.spent_mu <= owner.sealed.mu
    assert "up to 1 (whichever) of the other 2 owners" in str(run.privacy)
    assert abs(run.draws["p"].mean() - 0.3) < 0.1


def test_pilot_and_estimate_are_sealed_as_well(house):
    coin = load(next(iter(house.values())).folder, "coin")
    found = sf.estimate(coin, owners(house), epsilon=2.0, delta=1e-6, guess={"p": 0.3}, seed=0)
    assert abs(found.draws["p"].mean() - 0.3) < 0.05
    assert all(owner.sealed for owner in found.privacy.owners)


def test_an_owner_that_answers_sealed_sums_alone_answers_nothing_else(house):
    family, those = load(next(iter(house.values())).folder, "bern"), owners(house)
    for some, sealed in ((those, False), (those[:2], None), (those[:1], None), (those[:2], True)):
        with pytest.raises(InvalidInput, match=r"sealed sums alone|missing"):
            sf.sample(family, some, sealed=sealed, **SETTINGS)
    approved, study, _ = those[0].study(family, kernel="langevin")
    with pytest.raises(OwnerRefused) as refused:
        those[0].door(approved, study.model.fingerprint(), epsilon=1.0, delta=1e-6, run_id="bare")
    assert refused.value.code == "sealed-only"


def test_keys_that_are_not_everybodys_are_refused_by_code(house):
    family, doors = load(next(iter(house.values())).folder, "bern"), []
    for owner in owners(house):
        approved, study, _ = owner.study(family, kernel="langevin")
        doors.append(
            owner.door(approved, study.model.fingerprint(), epsilon=1.0, delta=1e-6, run_id="keys", sealed=True)
        )
    messages = [door.key_message() for door in doors]
    assert [decode_message(body)[0].member for body in messages] == [0, 1, 2]
    for wrong in (
        messages[:2],
        messages[::-1],
        [messages[0], messages[1], messages[1]],
        [messages[0], b"x", messages[2]],
    ):
        with pytest.raises(OwnerRefused) as refused:
            doors[0].agree(wrong)
        assert refused.value.code == "bad-keys"
    assert len({door.agree(messages) for door in doors}) == 1
    for door in doors:
        door.close()


def test_a_node_that_is_started_again_signs_new_keys_and_the_run_finishes(tmp_path, monkeypatch):
    made = prepare_members(tmp_path, TABLES)
    running = {name: Threaded(place) for name, (place, _) in made.items()}
    family = load(tmp_path / "Amber", "coin")
    real, strikes, keysets = RemoteDoor.ask, {"9/ratio", "20/ratio"}, set()

    def ask(door, query_id, question):
        name, _, keyset = query_id.partition("/")[2].partition("~")
        keysets.add(keyset)
        if door.name == "Birch" and name in strikes:
            strikes.discard(name)
            running["Birch"].stop()
            running["Birch"] = Threaded(made["Birch"][0])
        return real(door, query_id, question)

    monkeypatch.setattr(RemoteDoor, "ask", ask)
    try:
        there = [connect(node.url, token=made[name][1]["alice"], patience=60.0) for name, node in running.items()]
        run = sf.sample(
            family, there, kernel="guided", iterations=30, checkpoint=tmp_path / "run", **SETTINGS, progress=False
        )
    finally:
        for node in running.values():
            node.stop()
    assert run.iterations == 30 and not strikes and len(keysets) == 3
    for name, (place, _) in made.items():
        with sf.Ledger(place / "owner.ledger") as ledger:
            assert ledger.verify().ok
            account = ledger.accounts()[-1]
            # Who was asked and lost nothing has answered a round twice, under two keysets, whenever another was killed.
            assert account.answers == 30 + (0 if name == "Birch" else 2)
