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
from sfumato.access.rounds import Rounds
from sfumato.checkpoint import Checkpoint
from sfumato.errors import CheckpointError
from sfumato.vault.vault import Vault

FAMILY, RELEASES = sf.families.Bernoulli(), 3
Y = (np.random.default_rng(0).random(5_000) < 0.3).astype(int)
SETTINGS = {"epsilon": 4.0, "delta": 1e-5, "chains": 2, "seed": 3, "force": True, "iterations": 40, "progress": False}


@pytest.fixture(autouse=True)
def private_state(tmp_path, monkeypatch):
    monkeypatch.setenv("SFUMATO_STATE", str(tmp_path / "state"))


def stop_at(patch, note, written):
    """Stop when the pilot makes its so-manieth note, after it is on the disk or before."""
    real, notes = Checkpoint.note_release, []

    def note_release(self, number, entry):
        notes.append(number)
        if len(notes) == note and not written:
            raise KeyboardInterrupt
        real(self, number, entry)
        if len(notes) == note:
            raise KeyboardInterrupt

    patch.setattr(Checkpoint, "note_release", note_release)


def stopped(monkeypatch, folder, data, note, written):
    """A run that was stopped there; what it had noted."""
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_at(patch, note, written)
        sf.sample(FAMILY, data, checkpoint=folder, **SETTINGS)
    return Checkpoint(folder).releases()


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
    assert len(asked) == RELEASES - len(answered)
    assert [release["answer"] for release in run.pilot["releases"]][: len(answered)] == answered
    assert len(run.pilot["releases"]) == RELEASES
    assert run.pilot["lost"] == lost
    assert run.iterations > 0
    dim, chains = 1, SETTINGS["chains"]
    assert run.privacy.releases == RELEASES + lost + run.iterations * chains * (1 + dim)
    check_account(tmp_path / "run", run)
    again = sf.resume(tmp_path / "run", {"y": Y}, model=FAMILY)  # from now on it is a run like any other
    assert np.array_equal(again.transcript["theta"], run.transcript["theta"])
    assert again.privacy.releases == run.privacy.releases


def test_stopped_twice_at_the_same_release_counts_twice(tmp_path, monkeypatch):
    stopped(monkeypatch, tmp_path / "run", {"y": Y}, 4, False)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_at(patch, 2, False)
        sf.resume(tmp_path / "run", {"y": Y}, model=FAMILY)
    run = sf.resume(tmp_path / "run", {"y": Y}, model=FAMILY)
    assert (run.pilot["lost"], len(run.pilot["releases"])) == (2, RELEASES)
    check_account(tmp_path / "run", run)


def test_kill_9_between_an_answer_and_its_note(tmp_path):
    """The real thing: the process is gone with the answer, the ledger has its price."""
    script = textwrap.dedent(
        f"""
        import os, signal, sys
        sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        from chaos.test_pilot import FAMILY, SETTINGS, Y
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
    before = Checkpoint(tmp_path / "run").releases()
    assert [entry["answer"] is None for entry in before] == [False, True]
    run = sf.resume(tmp_path / "run", {"y": Y}, model=FAMILY)
    assert run.pilot["lost"] == 1
    assert run.pilot["releases"][0]["answer"] == before[0]["answer"]
    check_account(tmp_path / "run", run)
    with sf.Ledger(tmp_path / "run" / "ledger.sqlite") as ledger:
        assert ledger.spent > paid


@pytest.mark.parametrize(("note", "written"), [(2, False), (3, True), (6, True)])
def test_owners_give_the_answer_again_that_they_gave(tmp_path, monkeypatch, note, written):
    """Under the same query id: nobody pays twice, whether or not the answer had arrived."""

    def owners():
        return [
            sf.Owner({"y": part}, name=name, epsilon=4.0, delta=1e-5)
            for name, part in (("a", Y[:2000]), ("b", Y[2000:]))
        ]

    heard, real = [], Rounds.release

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
    assert sorted(by_number) == list(range(RELEASES))
    assert [r["answer"] for r in run.pilot["releases"]] == [by_number[i] for i in range(RELEASES)]
    for path in (tmp_path / "run").glob("ledger*.sqlite"):
        with sf.Ledger(path) as ledger:
            assert ledger.verify().ok
            (account,) = ledger.accounts()
            assert account.spent <= account.cap


def test_a_pilot_that_cannot_be_followed_or_read_is_refused(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    before = stopped(monkeypatch, folder, {"y": Y}, 4, True)
    Checkpoint(folder).note_release(1, before[1] | {"theta": [before[1]["theta"][0] + 0.1]})
    with pytest.raises(CheckpointError, match="would ask another"):
        sf.resume(folder, {"y": Y}, model=FAMILY)
    whole = (folder / "pilot-00.json").read_text()
    for text in (whole[:-9], whole.replace("gradient", "gradieut"), "[]"):
        (folder / "pilot-00.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"pilot-00\.json or the one before it is corrupt or missing"):
            sf.resume(folder, {"y": Y}, model=FAMILY)
    (folder / "pilot-00.json").unlink()
    with pytest.raises(CheckpointError, match=r"pilot-01\.json or the one before it"):
        sf.resume(folder, {"y": Y}, model=FAMILY)
    with pytest.raises(CheckpointError, match="already holds a run"):
        sf.sample(FAMILY, {"y": Y}, checkpoint=folder, **SETTINGS)


def test_a_run_that_was_stopped_before_its_plan_has_spent_nothing(tmp_path):
    Checkpoint(tmp_path / "run").create({"kernel": "auto"})
    with pytest.raises(CheckpointError, match="nothing was spent"):
        sf.resume(tmp_path / "run", {"y": Y}, model=FAMILY)
