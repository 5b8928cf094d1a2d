"""One run in a checkpoint folder at a time, in threads and in processes; the lock dies with whoever holds it."""

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import sfumato as sf
from chaos.test_pilot_killed import FAMILY, SETTINGS, Y
from chaos.test_resume import check_account
from sfumato.errors import CheckpointError, SfumatoError
from sfumato.privacy.budget import QUANTA_PER_UNIT
from sfumato.run import folderlock
from sfumato.run.folderlock import FolderLock
from sfumato.run.journal import Journal

RULE = "held by one run at a time, and .* wait until that run has ended, or end it"


@pytest.fixture(autouse=True)
def private_state(tmp_path, monkeypatch):
    monkeypatch.setenv("SFUMATO_STATE", str(tmp_path / "state"))


def whole():
    return {"y": Y}


def owners():
    return [sf.Owner({"y": part}, name=name) for name, part in (("a", Y[:2000]), ("b", Y[2000:]))]


def check_free(folder):
    """Nobody holds the folder, and nothing is left of the lock."""
    assert not folderlock._held
    assert not (folder / folderlock.NAME).exists()
    if folder.exists():
        FolderLock(folder).release()
        assert not (folder / folderlock.NAME).exists()


# -- threads ----------------------------------------------------------------------------------------------------------


class Pause:
    """A progress function that stops a run in its pilot until it is told to go on."""

    def __init__(self):
        self.there, self.go_on = threading.Event(), threading.Event()

    def __call__(self, done, total, text):
        if text == "pilot":
            self.there.set()
            assert self.go_on.wait(120)


@contextmanager
def running(folder, data):
    """A run in another thread, in its pilot; afterwards it ends by itself."""
    pause = Pause()
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(sf.sample, FAMILY, data(), checkpoint=folder, **SETTINGS | {"progress": pause})
        try:
            assert pause.there.wait(120), run.result(0)
            yield run
        finally:
            pause.go_on.set()


@pytest.mark.parametrize("data", [whole, owners])
def test_the_second_of_two_threads_is_refused_and_the_first_goes_on(tmp_path, data):
    folder = tmp_path / "run"
    with running(folder, data) as run:
        before = sorted(path.name for path in folder.iterdir())
        with pytest.raises(CheckpointError, match=f"{RULE}.*") as refused:
            sf.resume(folder, data(), model=FAMILY)
        assert str(folder) in str(refused.value) and "another run in this process" in str(refused.value)
        with pytest.raises(CheckpointError, match=RULE):
            sf.sample(FAMILY, data(), checkpoint=folder, **SETTINGS)
        assert sorted(path.name for path in folder.iterdir()) == before
        assert Journal(folder).terms().seed == SETTINGS["seed"]  # whoever reads needs no lock
    first = run.result()
    check_free(folder)
    again = sf.resume(folder, data(), model=FAMILY)  # a finished run is handed over as before
    assert np.array_equal(again.transcript["theta"], first.transcript["theta"])
    check_free(folder)


def test_the_second_thread_is_refused_without_flock_too(tmp_path, monkeypatch):
    """As on Windows: there this is all that holds."""
    monkeypatch.setattr(folderlock, "fcntl", None)
    with running(tmp_path / "run", whole) as run, pytest.raises(CheckpointError, match=RULE):
        sf.resume(tmp_path / "run", whole(), model=FAMILY)
    assert run.result().iterations > 0
    check_free(tmp_path / "run")


def test_without_the_lock_two_threads_would_both_go_on(tmp_path, monkeypatch):
    """The saboteur: a lock that everybody gets. Both pay, one's chunks are written over, and neither statement says it all."""
    monkeypatch.setattr(FolderLock, "__init__", lambda self, folder: None)
    monkeypatch.setattr(FolderLock, "release", lambda self: None)
    with running(tmp_path / "run", whole) as run:
        second = sf.resume(tmp_path / "run", whole(), model=FAMILY)
    first = run.result()
    assert not np.array_equal(first.transcript["theta"], second.transcript["theta"])
    assert sum(len(saved.transcript["accepted"]) for saved in Journal(tmp_path / "run").read()) < (
        first.iterations + second.iterations
    )
    with sf.Ledger(tmp_path / "run" / "ledger.sqlite") as ledger:
        assert ledger.spent / QUANTA_PER_UNIT > second.privacy.spent_mu**2 * (1 + 1e-6)


def test_a_run_goes_on_from_the_last_chunk_of_whoever_let_go_just_now(tmp_path):
    """What is in the folder is counted once it is held, not before."""
    folder = tmp_path / "run"
    first = sf.sample(FAMILY, whole(), checkpoint=folder, **SETTINGS)
    kept = Journal(folder)
    saved = list(kept.read())
    late = Journal(folder)
    with kept.held():
        kept.add(saved[-1])
    with late.held():
        late.add(saved[-1])
    assert len(list(folder.glob("chunk-*.npz"))) == len(saved) + 2
    assert first.iterations > 0


# -- every ending lets go ---------------------------------------------------------------------------------------------


def ends():
    outside = {"y": np.where(np.arange(len(Y)) == 0, 2, Y)}
    yield "finished", Y, {}, None
    yield "budget spent", Y, {"iterations": 1_000_000, "epsilon": 0.3}, None
    yield "records outside the domain", outside["y"], {}, SfumatoError
    yield "no such kernel", Y, {"kernel": "hmc"}, SfumatoError
    yield "plan too weak", Y[:50], {"force": False, "epsilon": 0.01}, SfumatoError


@pytest.mark.parametrize(("y", "changes", "error"), [pytest.param(*rest, id=name) for name, *rest in ends()])
@pytest.mark.parametrize("wrap", [dict, lambda y: sf.Owner(y, name="amber")], ids=["table", "owner"])
def test_every_ending_lets_go(tmp_path, y, changes, error, wrap):
    folder, settings = tmp_path / "run", SETTINGS | changes
    if error is None:
        sf.sample(FAMILY, wrap({"y": y}), checkpoint=folder, **settings)
    else:
        with pytest.raises(error):
            sf.sample(FAMILY, wrap({"y": y}), checkpoint=folder, **settings)
        assert not folder.exists()
    check_free(folder)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_error_in_the_pilot_lets_go_and_the_run_goes_on(tmp_path, error):
    def pressed(done, total, text):
        raise error

    with pytest.raises(error):
        sf.sample(FAMILY, whole(), checkpoint=tmp_path / "run", **SETTINGS | {"progress": pressed})
    check_free(tmp_path / "run")
    with pytest.raises(error):
        sf.resume(tmp_path / "run", whole(), model=FAMILY, progress=pressed)
    check_free(tmp_path / "run")
    assert sf.resume(tmp_path / "run", whole(), model=FAMILY).iterations > 0


def test_a_refused_start_leaves_the_run_that_is_there_alone(tmp_path):
    sf.sample(FAMILY, whole(), checkpoint=tmp_path / "run", **SETTINGS)
    with pytest.raises(CheckpointError, match="already holds a run"):
        sf.sample(FAMILY, whole(), checkpoint=tmp_path / "run", **SETTINGS)
    check_free(tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"no run\.json"):
        sf.resume(tmp_path / "typo", whole(), model=FAMILY)
    assert not (tmp_path / "typo").exists()


# -- processes --------------------------------------------------------------------------------------------------------

SCRIPT = textwrap.dedent(
    """
    import os, subprocess, sys, time, warnings
    sys.path.insert(0, {tests!r})
    warnings.filterwarnings("ignore", message="os.fork")
    from chaos.test_pilot_killed import FAMILY, SETTINGS, Y
    import sfumato as sf
    from sfumato.run import folderlock

    def tick(done, total, text):
        {sabotage}
        program = subprocess.Popen(["sleep", "300"], close_fds=False, stdout=subprocess.DEVNULL)
        child = os.fork()
        if not child:
            os.close(1)
            time.sleep(300)
            os._exit(0)
        print(program.pid, child, flush=True)
        time.sleep(300)

    sf.sample(FAMILY, {{"y": Y}}, checkpoint={folder!r}, **SETTINGS | {{"progress": tick}})
    """
)


@contextmanager
def elsewhere(folder, sabotage="pass"):
    """A run in another process, in its pilot, with a program and a forked child that outlive it."""
    code = SCRIPT.format(tests=str(Path(__file__).parents[1]), folder=str(folder), sabotage=sabotage)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    survivors = []
    try:
        survivors = [int(pid) for pid in process.stdout.readline().split()]
        assert len(survivors) == 2, process.wait()
        yield process
    finally:
        for pid in [process.pid, *survivors] if process.poll() is None else survivors:
            os.kill(pid, signal.SIGKILL)
        process.communicate()


def test_the_second_of_two_processes_is_refused_and_kill_9_leaves_the_folder_free(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    with elsewhere(folder) as process:
        with pytest.raises(CheckpointError, match=RULE) as refused:
            sf.resume(folder, whole(), model=FAMILY)
        assert f"process {process.pid} on" in str(refused.value)
        with monkeypatch.context() as patch:  # the saboteur; and what holds between processes on Windows: nothing
            patch.setattr(folderlock, "fcntl", None)
            lock = FolderLock(folder)
            lock._file.close()
            folderlock._held.clear()
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (folder / folderlock.NAME).exists()
        run = sf.resume(folder, whole(), model=FAMILY)  # at once, though what it started is still there
    assert run.iterations > 0
    check_account(folder, run)
    check_free(folder)


def test_a_forked_child_that_kept_its_copy_would_be_found(tmp_path):
    """The saboteur: the process forgets what its children must let go of."""
    with elsewhere(tmp_path / "run", sabotage="folderlock._held.clear()") as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        with pytest.raises(CheckpointError, match=RULE):
            sf.resume(tmp_path / "run", whole(), model=FAMILY)


def in_child(work):
    """What a forked child makes of it, as its exit code."""
    child = os.fork()
    if not child:
        code = 1
        try:
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:os.fork")
def test_a_forked_child_neither_holds_the_lock_nor_lets_go_of_it(tmp_path):
    lock = FolderLock(tmp_path)

    def child():
        lock.release()  # as a `with` that it inherited would
        try:
            FolderLock(tmp_path)
        except CheckpointError:
            return 0
        return 2

    assert in_child(child) == 0
    assert (tmp_path / folderlock.NAME).exists()
    with pytest.raises(CheckpointError, match=RULE):
        FolderLock(tmp_path)
    lock.release()
    lock.release()
    check_free(tmp_path)


# -- the lock itself --------------------------------------------------------------------------------------------------


def test_a_lock_that_is_removed_between_opening_and_locking_is_not_the_lock(tmp_path, monkeypatch):
    real, tries = folderlock._flock, []

    def flock(file, path):
        tries.append(file)
        if len(tries) == 1:
            path.unlink()  # its holder let go just now
        real(file, path)

    monkeypatch.setattr(folderlock, "_flock", flock)
    lock = FolderLock(tmp_path)
    assert len(tries) == 2 and tries[0].closed
    with pytest.raises(CheckpointError, match=RULE):
        FolderLock(tmp_path)
    lock.release()
    check_free(tmp_path)


def test_the_same_folder_by_another_name_is_the_same_folder(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "run")
    lock = FolderLock(tmp_path / "run")
    with pytest.raises(CheckpointError, match=RULE):
        FolderLock(tmp_path / "link")
    lock.release()
    check_free(tmp_path / "link")


def test_a_disk_without_locks_is_refused(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(folderlock.fcntl, "flock", flock)
    with pytest.raises(CheckpointError, match="knows no locks.*choose a folder on another disk"):
        FolderLock(tmp_path)
    assert not folderlock._held


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / folderlock.NAME).mkdir()
    with pytest.raises(CheckpointError, match="cannot be written"):
        FolderLock(tmp_path)
    assert not folderlock._held
