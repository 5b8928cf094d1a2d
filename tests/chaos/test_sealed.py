"""An owner of a sealed sum is killed with -9 again and again: no overspend, no second noise under a tag, and the run finishes.

An ordinary run of the tests kills at three of the planted moments; SFUMATO_CHAOS_ROUNDS=50 as often as the design asks for.
"""

import os
import random
import threading
import time
from contextlib import ExitStack

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sfumato as sf
from chaos.test_node import Zygote
from node_helpers import load
from sealed_helpers import prepare_members
from sfumato.kernel import Guided, PublicStream, State
from sfumato.node.config import read_owner
from sfumato.owners import rounds
from sfumato.owners.local import LocalDoor, open_door
from sfumato.owners.remote import RemoteDoor, connect
from sfumato.owners.rounds import Rounds
from sfumato.owners.sealing import Sealing
from sfumato.planner import budget_mu
from sfumato.protocol.questions import decode_reply, encode
from sfumato.study.target import make_study
from sfumato.vault.ledger import Journal

MODES = ("key-made", "begun", "sealed", "key-noted", "agreed", "after-answer", "after-reserve")
ROUNDS = int(os.environ.get("SFUMATO_CHAOS_ROUNDS", "3"))
FEW = {"key-made": 1, "key-noted": 2, "agreed": 1, "after-reserve": 2}
"""How often a moment comes for sure after a start; six times, where nothing is said."""
TABLES = {name: (np.arange(n) % 10 < 3).astype(int) for name, n in (("Amber", 3000), ("Birch", 3500), ("Cedar", 2500))}


RUN, SIGMA, CHAINS, STEPS = "chaos", 30.0, 2, 40


@pytest.fixture
def coast(tmp_path, monkeypatch):
    """Two owners in this process, and a node that can be killed: one consortium, with durable ledgers and books."""
    monkeypatch.setenv("SFUMATO_STATE", str(tmp_path / "state"))
    made = prepare_members(tmp_path, TABLES)
    zygote = Zygote(tmp_path)
    zygote.serve(made["Cedar"][0])
    with ExitStack() as stack:
        study, doors = make_study(load(made["Amber"][0], "coin"), {"y": sf.Binary()}, kernel="guided"), []
        for name in ("Amber", "Birch"):
            ledger = stack.enter_context(sf.Ledger(tmp_path / f"{name}.sqlite", epsilon=8.0, delta=1e-5))
            house = read_owner(made[name][0] / "owner.toml").membership()
            door = open_door(
                study, {"y": TABLES[name]}, name=name, epsilon=4.0, delta=1e-6, mu=budget_mu(4.0, 1e-6), run_id=RUN,
                ledger=ledger, ledger_path=tmp_path / f"{name}-run.sqlite", consortium=house,
            )  # fmt: skip
            doors.append(door)
        yield made, zygote, study, doors
        zygote.close()


def remembered(real, said):
    """Every reply by its id: the same id never has another one."""

    def ask(door, query_id, question):
        body = encode(real(door, query_id, question))
        assert said.setdefault((door.name, query_id), body) == body
        return decode_reply(body)

    return ask


def test_owners_killed_in_key_exchange_and_rounds_spend_and_say_nothing_twice(coast, tmp_path, monkeypatch):
    made, zygote, study, doors = coast
    monkeypatch.setattr(rounds, "PAUSE", 0.01)
    rng, said, over, deaths = random.Random(1), {}, threading.Event(), []  # noqa: S311 (when to kill)

    for door in (LocalDoor, RemoteDoor):
        monkeypatch.setattr(door, "ask", remembered(door.ask, said))

    def kill_again_and_again():
        for round_ in range(ROUNDS):
            mode = MODES[round_ % len(MODES)]
            zygote.start(mode, rng.randint(1, FEW.get(mode, 6)), wait=False)
            while zygote.alive() and not over.is_set():
                time.sleep(0.01)
            if over.is_set():
                return
            deaths.append(mode)
        zygote.start(wait=False)

    zygote.start()
    cedar = connect(zygote.url, token=made["Cedar"][1]["alice"], patience=120.0)
    doors.append(cedar.door("coin", study.model.fingerprint(), epsilon=4.0, delta=1e-6, run_id=RUN, sealed=True))
    zygote.kill()
    killer = threading.Thread(target=kill_again_and_again)
    killer.start()
    access = Rounds(study.model, doors, run_id=RUN, sealing=Sealing(doors))
    kernel, stream, done = Guided(np.eye(1) * 0.05, 1.0), PublicStream(0, CHAINS), 0
    try:
        with jax.enable_x64(True):
            theta = jnp.full((CHAINS, 1), -0.85)
            states = State(theta, jax.vmap(study.model.log_prior)(theta), jnp.ones((CHAINS, 1)))
        access.begin(kernel, SIGMA, states)
        while killer.is_alive() or done < STEPS:
            chunk = access.chunk(states, stream.peek(kernel, 4), 4, 1)
            states, done = chunk.states, done + chunk.steps
            stream.consume(chunk.steps)
            assert np.all(np.abs(chunk.transcript.d_n_noisy) < 20 * SIGMA)
    finally:
        over.set()
        killer.join()
        access.close()
        zygote.kill()
    assert len(deaths) == ROUNDS and access.step == done
    assert {int(query_id.split("/")[1]) for _, query_id in said} == set(range(done))
    check_books(made, tmp_path, {name: sum(1 for who, _ in said if who == name) for name in TABLES})


def check_books(made, folder, told):
    """No cap is passed; and whoever answered a round under two keysets has drawn and paid for each, and for nothing else."""
    books = {"Cedar": made["Cedar"][0] / "owner.ledger"} | {n: folder / f"{n}.sqlite" for n in ("Amber", "Birch")}
    for path in [*books.values(), made["Cedar"][0] / "everybody.ledger", *folder.glob("ledger-everybody-*.sqlite")]:
        with sf.Ledger(path) as ledger:
            Journal(ledger).close()  # takes up what a dead node left
            assert ledger.verify().ok
            paying = [account for account in ledger.accounts() if account.about.get("kind") != "assumed"]
            assert paying and all(0 < account.spent <= account.cap for account in paying)
            for name in [name for name, book in books.items() if book == path]:
                assert told[name] <= ledger.accounts()[-1].answers <= told[name] + ROUNDS
