"""A run over several owners may be killed at any moment: every owner's account holds, no paid draw is lost."""

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sfumato as sf
from sfumato.checkpoint import Checkpoint
from sfumato.privacy.budget import QUANTA_PER_UNIT

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
    from sfumato import sampler
    sampler._CHUNK_TERMS = 2 * 2 * 40          # small chunks, so that there is something between them to hit
    folder = Path({folder!r})
    sf.sample(coin, owners(folder), checkpoint=folder / "run", **SETTINGS)
    """
)


@pytest.fixture(autouse=True)
def private_state(tmp_path, monkeypatch):
    monkeypatch.setenv("SFUMATO_STATE", str(tmp_path / "state"))


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
    before = np.concatenate([saved.transcript["theta"] for saved in Checkpoint(tmp_path / "run").read()])
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
        share = run.plan["owners"][i]["share"]
        realised = ((run.transcript["widths"][..., i] / run.plan["sigma"]) ** 2 / share).sum()
        assert realised * QUANTA_PER_UNIT <= account.spent * (1 + 1e-12)
        owner.ledger.close()
