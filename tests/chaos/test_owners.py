"""A run over several owners may be killed at any moment: every owner's account holds, no paid draw is lost."""

import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sfumato as sf
from chaos.test_node import Zygote
from node_helpers import load, prepare
from sfumato.owners import rounds
from sfumato.owners.remote import RemoteDoor, connect
from sfumato.privacy.budget import QUANTA_PER_UNIT
from sfumato.protocol.questions import AHEAD
from sfumato.run.journal import Journal

SETTINGS = {"chains": 2, "seed": 3, "force": True, "max_iterations": 600, "kernel": "guided", "pilot_share": 0.0}
SETTINGS |= {"guess": {"p": 0.3}, "domain": {"y": sf.Binary()}, "progress": False}


def coin(y):
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(probs=p), obs=y)


def owners(folder):
    rng = np.random.default_rng(0)
    return [
        sf.Owner(
            {"y": (rng.random(n) < 0.3).astype(int)}, name=name, epsilon=4.0, delta=1e-5,
            ledger=sf.Ledger(folder / f"{name}.sqlite", epsilon=8.0, delta=1e-5),
        )
        for name, n in (("amber", 20_000), ("birch", 30_000))
    ]  # fmt: skip


SCRIPT = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    sys.path.insert(0, {tests!r})
    from chaos.test_owners import SETTINGS, coin, owners
    import sfumato as sf
    from sfumato.run import chain
    chain.CHUNK_TERMS = 2 * 2 * 40          # small chunks, so that there is something between them to hit
    folder = Path({folder!r})
    sf.sample(coin, owners(folder), checkpoint=folder / "run", **SETTINGS)
    """
)


@pytest.fixture(autouse=True)
def private_state(tmp_path, monkeypatch):
    monkeypatch.setenv("SFUMATO_STATE", str(tmp_path / "state"))


def steps_of(name):
    """The steps whose statistics a query asks for."""
    first, kind = name.split("/")
    count = {"statistics": AHEAD, "statistic": 1}.get(kind, 0)
    return range(int(first), int(first) + count)


def test_a_node_that_is_killed_and_started_again_costs_no_overspend_and_the_run_finishes(tmp_path, monkeypatch):
    """One owner in this process, one node. Killed once with an impatient client, once with a patient one."""
    folder, steps = tmp_path / "node", 150
    tokens = prepare(folder, studies=("bern",), name="Cedar")
    family, zygote = load(folder, "bern"), Zygote(folder)
    zygote.serve(folder)
    settings = {"kernel": "langevin", "chains": 2, "seed": 3, "force": True, "pilot_share": 0.0, "guess": {"p": 0.3}}
    monkeypatch.setattr(rounds, "PAUSE", 0.01)
    real, strikes, asked, told = RemoteDoor.ask, {}, set(), set()

    def ask(door, query_id, question):
        name = query_id.partition("/")[2]
        asked.add(name)
        if (strike := strikes.pop(name, None)) is not None:
            strike()
        reply = real(door, query_id, question)
        told.add(name)
        return reply

    def kill_and_start_again():
        zygote.kill()
        threading.Timer(1.0, zygote.start).start()

    def parties(patience):
        amber = {"y": (np.arange(20_000) % 10 < 3).astype(int)}
        there = connect(zygote.url, token=tokens["alice"], patience=60.0)
        there._line.patience = patience
        return [
            sf.Owner(amber, name="Amber", epsilon=4.0, delta=1e-6),
            sf.Owner(there, name="Cedar", epsilon=4.0, delta=1e-6),
        ]

    monkeypatch.setattr(RemoteDoor, "ask", ask)
    try:
        zygote.start()
        strikes["48/statistics"] = zygote.kill
        part = sf.sample(
            family, parties(0.2), max_iterations=steps, checkpoint=tmp_path / "run", progress=False, **settings
        )
        assert (part.stop_reason, part.stop_owner) == (sf.StopReason.OWNER_LOST, "Cedar")
        assert part.iterations in (48, 64)  # that question may have been answered before the blow
        zygote.start()
        strikes["80/statistics"] = kill_and_start_again
        whole = sf.resume(tmp_path / "run", parties(120.0), model=family)
        assert not strikes
    finally:
        zygote.kill(signal.SIGTERM)
        zygote.close()
    # The plan uses the whole budget, and each death forfeits what was left of a block: the last steps may be missing.
    ending = whole.stop_reason, whole.stop_owner
    assert ending in ((sf.StopReason.FINISHED, ""), (sf.StopReason.BUDGET_SPENT, "Cedar"))
    assert whole.iterations > 0.8 * steps
    assert np.array_equal(whole.transcript["theta"][:, : part.iterations], part.transcript["theta"])
    for path in (folder / "owner.ledger", *(tmp_path / "run").glob("*Amber*.sqlite")):
        with sf.Ledger(path) as ledger:
            assert ledger.verify().ok
            account = ledger.accounts()[-1]
            assert account.spent <= account.cap
            # What was asked, and answered, and nothing twice. (Amber answers what Cedar can no longer pay for, too.)
            assert len(told) <= account.answers <= len(asked)
    fetched = [step for name in told for step in steps_of(name)]
    assert sorted(fetched) == list(range(whole.iterations))


def test_kill_9_in_the_middle_costs_no_overspend_and_the_run_finishes(tmp_path):
    code = SCRIPT.format(tests=str(Path(__file__).parents[1]), folder=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 240
    while len(list((tmp_path / "run").glob("chunk-*.npz"))) < 3:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = np.concatenate([saved.transcript["theta"] for saved in Journal(tmp_path / "run").read()])
    again = owners(tmp_path)
    assert all(owner.ledger.accounts()[0].answers >= len(before) for owner in again)
    run = sf.resume(tmp_path / "run", again, model=coin)
    assert (run.stop_reason, run.iterations) == (sf.StopReason.FINISHED, 600)
    assert np.array_equal(run.transcript["theta"][:, : len(before)], np.swapaxes(before, 0, 1))
    for i, owner in enumerate(again):
        assert owner.ledger.verify().ok
        (account,) = owner.ledger.accounts()
        # One answer a round for ever: rounds after the last checkpoint were asked again and answered from the ledger.
        assert account.answers == 600
        assert account.spent <= account.cap
        share = run.planned["owners"][i]["share"]
        realised = ((run.transcript["widths"][..., i] / run.planned["sigma"]) ** 2 / share).sum()
        assert realised * QUANTA_PER_UNIT <= account.spent * (1 + 1e-12)
        owner.ledger.close()
