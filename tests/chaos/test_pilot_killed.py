"""A run may be killed in its pilot: it goes on with what the pilot paid for, and whatever may have left is counted."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import sfumato as sf
from chaos.test_resume import check_account
from node_helpers import load, prepare, threaded
from sfumato.errors import BudgetSpent, CheckpointError
from sfumato.owners.local import LocalDoor
from sfumato.owners.remote import connect
from sfumato.owners.rounds import Rounds
from sfumato.privacy.budget import QUANTA_PER_UNIT
from sfumato.protocol.questions import Release
from sfumato.run.journal import Journal
from sfumato.run.terms import Terms
from sfumato.vault.vault import Vault

FAMILY = sf.families.Bernoulli()
Y = (np.random.default_rng(0).random(5_000) < 0.3).astype(int)
SETTINGS = {"epsilon": 4.0, "delta": 1e-5, "chains": 2, "seed": 3, "force": True, "iterations": 40, "progress": False}


@pytest.fixture(autouse=True)
def private_state(tmp_path, monkeypatch):
    monkeypatch.setenv("SFUMATO_STATE", str(tmp_path / "state"))


def stop_at(patch, note, written):
    """Stop when the pilot makes its so-manieth note, after it is on the disk or before."""
    real, notes = Journal.note_release, []

    def note_release(self, number, entry):
        notes.append(number)
        if len(notes) == note and not written:
            raise KeyboardInterrupt
        real(self, number, entry)
        if len(notes) == note:
            raise KeyboardInterrupt

    patch.setattr(Journal, "note_release", note_release)


def price(run, number=0):
    """Mu squared of a release of the pilot, at the least."""
    release = run.pilot["releases"][number]
    return (2 * release["radius"] / release["sigma"]) ** 2


def stopped(monkeypatch, folder, data, note, written):
    """A run that was stopped there; what it had noted."""
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_at(patch, note, written)
        sf.sample(FAMILY, data, checkpoint=folder, **SETTINGS)
    return Journal(folder).releases()


# Two notes a release: what is asked, what was answered.
MOMENTS = [(1, False, 0), (1, True, 1), (2, False, 1), (2, True, 0), (4, False, 1), (6, True, 0)]


@pytest.mark.parametrize(("note", "written", "lost"), MOMENTS)
def test_a_run_goes_on_from_any_moment_of_its_pilot(tmp_path, monkeypatch, note, written, lost):
    """Nothing that was noted is asked again; a release that may have left unnoted counts, and stays paid."""
    before = stopped(monkeypatch, tmp_path / "run", {"y": Y}, note, written)
    answered = [entry["answer"] for entry in before if entry["answer"] is not None]
    asked, real = [], Vault.release
    monkeypatch.setattr(Vault, "release", lambda self, *a: (asked.append(a[0]), real(self, *a))[1])
    run = sf.resume(tmp_path / "run", {"y": Y}, model=FAMILY)
    releases = len(run.pilot["releases"])
    assert releases > 3 and len(asked) == releases - len(answered)
    assert [release["answer"] for release in run.pilot["releases"]][: len(answered)] == answered
    assert run.pilot["lost"] == lost
    assert run.iterations > 0
    dim, chains = 1, SETTINGS["chains"]
    assert run.privacy.releases == releases + lost + run.iterations * chains * (1 + dim)
    check_account(tmp_path / "run", run, 0.0 if written else lost * price(run, note // 2 - 1))
    again = sf.resume(tmp_path / "run", {"y": Y}, model=FAMILY)  # from now on it is a run like any other
    assert np.array_equal(again.transcript["theta"], run.transcript["theta"])
    assert again.privacy.releases == run.privacy.releases


def test_stopped_twice_at_the_same_release_counts_twice(tmp_path, monkeypatch):
    stopped(monkeypatch, tmp_path / "run", {"y": Y}, 4, False)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_at(patch, 2, False)
        sf.resume(tmp_path / "run", {"y": Y}, model=FAMILY)
    run = sf.resume(tmp_path / "run", {"y": Y}, model=FAMILY)
    assert run.pilot["lost"] == 2
    check_account(tmp_path / "run", run, 2 * price(run, 1))


def test_kill_9_between_an_answer_and_its_note(tmp_path):
    """The real thing: the process is gone with the answer, the ledger has its price."""
    script = textwrap.dedent(
        f"""
        import os, signal, sys
        sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        from chaos.test_pilot_killed import FAMILY, SETTINGS, Y
        import sfumato as sf
        from sfumato.vault.vault import Vault

        answers, real = [], Vault.release

        def release(self, *asked):
            answers.append(real(self, *asked))
            if len(answers) == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return answers[-1]

        Vault.release = release
        sf.sample(FAMILY, {{"y": Y}}, checkpoint={str(tmp_path / "run")!r}, **SETTINGS)
        """
    )
    done = subprocess.run([sys.executable, "-c", script], env=os.environ, timeout=240, check=False)
    assert done.returncode == -signal.SIGKILL
    with sf.Ledger(tmp_path / "run" / "ledger.sqlite") as ledger:
        paid = ledger.spent
    before = Journal(tmp_path / "run").releases()
    assert [entry["answer"] is None for entry in before] == [False, True]
    run = sf.resume(tmp_path / "run", {"y": Y}, model=FAMILY)
    assert run.pilot["lost"] == 1
    assert run.pilot["releases"][0]["answer"] == before[0]["answer"]
    check_account(tmp_path / "run", run, price(run, 1))
    assert paid >= (price(run, 0) + price(run, 1)) * QUANTA_PER_UNIT


@pytest.mark.parametrize(("note", "written"), [(2, False), (3, True), (6, True)])
def test_owners_give_the_answer_again_that_they_gave(tmp_path, monkeypatch, note, written):
    """Under the same query id: nobody pays twice, whether or not the answer had arrived."""

    def owners():
        return [
            sf.Owner({"y": part}, name=name, epsilon=4.0, delta=1e-5)
            for name, part in (("a", Y[:2000]), ("b", Y[2000:]))
        ]

    heard, real, asked_in_chain, answer = [], Rounds.release, [], LocalDoor.ask
    monkeypatch.setattr(
        LocalDoor,
        "ask",
        lambda self, name, q: (isinstance(q, Release) or asked_in_chain.append(name), answer(self, name, q))[1],
    )

    def release(self, *asked):
        heard.append((self._released, real(self, *asked).tolist()))
        return np.array(heard[-1][1])

    monkeypatch.setattr(Rounds, "release", release)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_at(patch, note, written)
        sf.sample(FAMILY, owners(), checkpoint=tmp_path / "run", **SETTINGS)
    run = sf.resume(tmp_path / "run", owners(), model=FAMILY)
    assert run.iterations > 0
    by_number = {}
    for number, answer in heard:
        assert by_number.setdefault(number, answer) == answer
    releases = len(run.pilot["releases"])
    assert sorted(by_number) == list(range(releases))
    assert [r["answer"] for r in run.pilot["releases"]] == [by_number[i] for i in range(releases)]
    numbers = releases + run.iterations * SETTINGS["chains"] * 2
    # Of a last step whose correction the budget was not enough for, the statistics were released all the same.
    assert {owner.releases for owner in run.privacy.owners} in ({numbers}, {numbers + SETTINGS["chains"]})
    for path in (tmp_path / "run").glob("ledger*.sqlite"):
        with sf.Ledger(path) as ledger:
            assert ledger.verify().ok
            (account,) = ledger.accounts()
            assert account.spent <= account.cap
            # Of the last question the budget may not have been enough.
            assert releases + len(asked_in_chain) // 2 - account.answers in (0, 1)


def test_a_pilot_that_cannot_be_followed_or_read_is_refused(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    before = stopped(monkeypatch, folder, {"y": Y}, 4, True)
    for name in ("theta", "matrix", "sigma"):
        Journal(folder).note_release(1, before[1] | {name: (1.001 * np.array(before[1][name])).tolist()})
        with pytest.raises(CheckpointError, match="would ask another"):
            sf.resume(folder, {"y": Y}, model=FAMILY)
    whole = (folder / "pilot-000.json").read_text()
    for text in (whole[:-9], whole.replace("gradient", "gradieut"), "[]"):
        (folder / "pilot-000.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"pilot-000\.json or the one before it is corrupt or missing"):
            sf.resume(folder, {"y": Y}, model=FAMILY)
    (folder / "pilot-000.json").unlink()
    with pytest.raises(CheckpointError, match=r"pilot-001\.json or the one before it"):
        sf.resume(folder, {"y": Y}, model=FAMILY)
    with pytest.raises(CheckpointError, match="already holds a run"):
        sf.sample(FAMILY, {"y": Y}, checkpoint=folder, **SETTINGS)


def test_a_run_that_was_stopped_before_its_plan_has_spent_nothing(tmp_path):
    nothing = {"model": "", "model_name": ("", ""), "computes": [], "domain": None, "owners": []}
    settled = {"run_id": "a", "seed": 1, "chains": 2, "kernel": "auto", "limit": 9, "sensitivity": "certify"}
    Journal(tmp_path / "run").create(Terms(**settled, **nothing))
    with pytest.raises(CheckpointError, match="nothing was spent"):
        sf.resume(tmp_path / "run", {"y": Y}, model=FAMILY)


def test_a_release_that_cannot_be_paid_for_again_ends_the_run_and_says_so(tmp_path, monkeypatch):
    real, half = Journal.note_release, 0.5 * sf.gdp.mu(4.0, 1e-5) ** 2

    def note_release(self, number, entry):
        if entry["answer"] is not None and (2 * entry["radius"] / entry["sigma"]) ** 2 > half:  # the last, and dearest
            raise KeyboardInterrupt
        real(self, number, entry)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Journal, "note_release", note_release)
        sf.sample(FAMILY, {"y": Y}, checkpoint=tmp_path / "run", pilot_share=0.9, **SETTINGS)
    with pytest.raises(BudgetSpent, match="this run is over"):
        sf.resume(tmp_path / "run", {"y": Y}, model=FAMILY)


def test_a_full_disk_in_the_pilot_says_what_is_kept(tmp_path, monkeypatch):
    real = Journal._write

    def write(self, name, body, *kept):
        if name == "pilot-001.json":
            monkeypatch.setattr("os.fsync", full)
        real(self, name, body, *kept)

    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_write", write)
        with pytest.raises(CheckpointError, match=r"No space left .* The answers noted so far are kept\."):
            sf.sample(FAMILY, {"y": Y}, checkpoint=tmp_path / "run", **SETTINGS)
    monkeypatch.undo()
    monkeypatch.setenv("SFUMATO_STATE", str(tmp_path / "state"))
    assert sf.resume(tmp_path / "run", {"y": Y}, model=FAMILY).iterations > 0


def test_over_a_node_the_run_goes_on_as_the_analyst_who_began_it(tmp_path, monkeypatch):
    """Also where it was stopped in its first release: under another token it would have a whole cap of its own."""
    folder = tmp_path / "node"
    tokens = prepare(folder, studies=("coin",))
    with threaded(folder) as running:
        model = load(folder, "coin")
        people = {who: connect(running.url, token=tokens[who]) for who in ("alice", "bob")}
        settings = SETTINGS | {"kernel": "guided", "iterations": 5}
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            stop_at(patch, 2, False)
            sf.sample(model, people["alice"], checkpoint=tmp_path / "run", **settings)
        with pytest.raises(CheckpointError, match="as the analyst who began it"):
            sf.resume(tmp_path / "run", people["bob"], model=model)
        run = sf.resume(tmp_path / "run", people["alice"], model=model)
        assert len(run.pilot["releases"]) > 3
    with sf.Ledger(folder / "owner.ledger") as ledger:
        (account,) = [account for account in ledger.accounts() if account.answers]
        assert account.spent <= account.cap
        assert account.answers >= len(run.pilot["releases"])
