"""Ctrl-C before there are draws: what is paid for is kept, and whoever pressed it hears so, and how to go on."""

import gc
import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import numpy as np
import pytest

import sfumato as sf
from chaos.test_pilot_killed import FAMILY, SETTINGS, Y, price, stop_at
from sfumato.cli import endings, main
from sfumato.errors import Interrupted
from sfumato.run.holding import progress_so_far
from sfumato.run.journal import Journal

STUDY = """
[study]
name = "a coin"
model = "model.py:coin"
epsilon = 4.0
delta = 1e-5
chains = 2
force = true
max_iterations = 40
{more}
[data]
path = "people.csv"

[domain.y]
kind = "binary"
"""


@pytest.fixture(autouse=True)
def private_state(tmp_path, monkeypatch):
    monkeypatch.setenv("SFUMATO_STATE", str(tmp_path / "state"))


# -- in Python --------------------------------------------------------------------------------------------------------


def owners():
    return [sf.Owner({"y": part}, name=name) for name, part in (("a", Y[:2000]), ("b", Y[2000:]))]


def interrupted(monkeypatch, folder, data, note, written):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt) as stop:
        stop_at(patch, note, written)
        sf.sample(FAMILY, data, checkpoint=folder, **SETTINGS)
    return stop.value


# Two notes a release: what is asked, what was answered.
MOMENTS = [(1, False, 0, False), (1, True, 0, True), (2, False, 0, True), (2, True, 1, False), (4, False, 1, True)]


@pytest.mark.parametrize(("note", "written", "answers", "under_way"), MOMENTS)
@pytest.mark.parametrize("data", [lambda: {"y": Y}, owners], ids=["table", "owners"])
def test_it_says_what_is_kept_and_how_to_go_on(tmp_path, monkeypatch, note, written, answers, under_way, data):
    folder = tmp_path / "run"
    stop = interrupted(monkeypatch, folder, data(), note, written)
    assert isinstance(stop, Interrupted) and not isinstance(stop, Exception)
    assert stop.folder == folder and stop.so_far in str(stop)
    assert f"sf.resume({str(folder)!r}, data, model=...)" in str(stop)
    assert ("no answer yet" in stop.so_far) == (not answers)
    assert (f"{answers} answer so far (about" in stop.so_far) == bool(answers)
    assert ("One more was under way" in stop.so_far) == under_way
    if answers:
        assert ("of every owner's budget" in stop.so_far) == (data is owners)


def test_the_share_it_states_is_what_the_ledger_has(tmp_path, monkeypatch):
    stop = interrupted(monkeypatch, tmp_path / "run", {"y": Y}, 4, True)
    with sf.Ledger(tmp_path / "run" / "ledger.sqlite") as ledger:
        share = ledger.spent / ledger.cap
    stated = float(stop.so_far.split("about ")[1].split("%")[0]) / 100
    assert stated == pytest.approx(share, rel=0.06)  # two digits


def test_a_release_that_was_lost_and_paid_for_again_counts_twice(tmp_path, monkeypatch):
    interrupted(monkeypatch, tmp_path / "run", {"y": Y}, 2, False)
    with monkeypatch.context() as patch, pytest.raises(Interrupted) as stop:
        stop_at(patch, 2, True)
        sf.resume(tmp_path / "run", {"y": Y}, model=FAMILY)
    run = sf.resume(tmp_path / "run", {"y": Y}, model=FAMILY)
    stated = float(stop.value.so_far.split("about ")[1].split("%")[0]) / 100
    assert stated == pytest.approx(2 * price(run) / run.planned["mu"] ** 2, rel=0.06)


@pytest.mark.parametrize("share", [None, 0.0])
def test_between_the_pilot_and_the_chains(tmp_path, monkeypatch, share):
    from sfumato.run import sampling as sampler

    def pressed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(Interrupted) as stop:
        patch.setattr(sampler, "start", pressed)
        sf.sample(FAMILY, {"y": Y}, checkpoint=tmp_path / "run", pilot_share=share, **SETTINGS)
    assert ("is paid for and kept" if share is None else "no pilot") in stop.value.so_far
    assert "Nothing is drawn yet" in stop.value.so_far
    run = sf.resume(tmp_path / "run", {"y": Y}, model=FAMILY)
    assert f"{run.iterations} draws of every chain are kept" in progress_so_far(Journal(tmp_path / "run"))


def test_before_anything_could_be_spent_there_is_nothing_to_say(tmp_path, monkeypatch):
    from sfumato.run import sampling as sampler

    def pressed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(sampler, "make_plan", pressed)
    with pytest.raises(KeyboardInterrupt) as stop:
        sf.sample(FAMILY, {"y": Y}, checkpoint=tmp_path / "run", **SETTINGS)
    assert not isinstance(stop.value, Interrupted) and not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_read_promises_nothing(tmp_path, monkeypatch):
    interrupted(monkeypatch, tmp_path / "run", {"y": Y}, 2, True)
    (tmp_path / "run" / "pilot-000.json").write_text("{")
    assert progress_so_far(Journal(tmp_path / "run")) == ""


# -- in a shell: a real process, a real signal ------------------------------------------------------------------------

COMMAND = textwrap.dedent(
    """
    import sys, time
    from sfumato.cli import main
    from sfumato.vault.vault import Vault

    answers, real = [], Vault.release

    def release(self, *asked):
        answers.append(real(self, *asked))
        if len(answers) == 2:
            time.sleep(300)
        return answers[-1]

    Vault.release = release
    sys.exit(main())
    """
)


def make_study(folder, more=""):
    folder.mkdir()
    np.savetxt(folder / "people.csv", Y, fmt="%d", header="y", comments="")
    (folder / "model.py").write_text(
        "import numpyro\nimport numpyro.distributions as dist\n\n\ndef coin(y):\n"
        '    p = numpyro.sample("p", dist.Beta(1.0, 1.0))\n'
        '    with numpyro.plate("people", y.shape[0]):\n'
        '        numpyro.sample("y", dist.Bernoulli(probs=p), obs=y)\n'
    )
    (folder / "study.toml").write_text(STUDY.format(more=more))
    return folder / "study.toml"


def press_in_pilot(checkpoint, *arguments, cwd):
    """Run a command, press Ctrl-C in the second release of its pilot."""
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd,
    )  # fmt: skip
    deadline = time.monotonic() + 240
    while not (checkpoint / "pilot-001.json").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def test_ctrl_c_in_the_pilot_of_a_command(tmp_path, capsys, monkeypatch):
    study, out = make_study(tmp_path / "s"), tmp_path / "my output"
    code, said, err = press_in_pilot(out / "checkpoint", "run", study, "--out", out, cwd=tmp_path)
    assert code == endings.INTERRUPTED and said.startswith("\nPlan: ")  # it is shown before anything is spent
    assert "Traceback" not in err
    assert err.startswith("Interrupted. The pilot has 1 answer so far (about ")
    assert "paid for, and kept. One more was under way" in err
    assert err.rstrip().endswith("Go on with: sfumato resume 'my output'")
    assert not (out / "checkpoint" / "run.lock").exists()
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(err.split("sfumato ")[-1])) == 0  # what it said to do is what there is to do
    assert sf.load(out / "run.npz").pilot["lost"] == 1
    assert "Posterior" in capsys.readouterr().out


def test_ctrl_c_in_the_pilot_of_a_resumed_run_whose_checkpoint_is_elsewhere(tmp_path, capsys, monkeypatch):
    study, out = make_study(tmp_path / "s", 'checkpoint = "kept"'), tmp_path / "out"
    kept = study.parent / "kept"
    code, said, _ = press_in_pilot(kept, "run", study, "--out", out, "--json", cwd=tmp_path)
    answer = json.loads(said)
    assert code == endings.INTERRUPTED and (answer["ok"], answer["code"]) == (False, "interrupted")
    assert "The pilot has 1 answer so far" in answer["error"]
    go_on = shlex.split(answer["error"].split("Go on with: sfumato ")[1])
    assert go_on == ["resume", "s/kept", "--study", "out/study.toml", "--out", "out"]
    monkeypatch.chdir(tmp_path)
    assert main(go_on) == 0
    assert (out / "run.npz").exists()


def test_ctrl_c_without_a_checkpoint_says_that_there_is_no_way_on(tmp_path, capsys, monkeypatch):
    from sfumato.run import pilotlog

    def pressed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(pilotlog.PilotLog, "__call__", pressed)
    study = make_study(tmp_path / "s", "checkpoint = false")
    assert main(["run", str(study), "--out", str(tmp_path / "out")]) == endings.INTERRUPTED
    assert "Without a checkpoint there is nothing to go on with" in capsys.readouterr().err


def test_ctrl_c_before_the_run_begins_says_that_nothing_was_spent(tmp_path, capsys, monkeypatch):
    from sfumato.run import sampling as sampler

    def pressed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(sampler, "make_plan", pressed)
    study = make_study(tmp_path / "s")
    assert main(["run", str(study), "--out", str(tmp_path / "out")]) == endings.INTERRUPTED
    assert "Interrupted. The run had not begun, and nothing was spent." in capsys.readouterr().err


def test_the_exit_code_survives_a_compiler_that_is_still_busy(tmp_path):
    """JAX goes on compiling in a thread of its own, which crashed when the interpreter ended under it."""
    script = textwrap.dedent(
        """
        import atexit, sys
        from sfumato import cli

        atexit.register(print, "the interpreter's own ending")
        cli._run = lambda given: cli.endings.INTERRUPTED
        print("said before")
        sys.exit(cli.main())
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=os.environ, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (endings.INTERRUPTED, "said before\n", "")


# -- where an exception is lost ---------------------------------------------------------------------------------------


def in_the_collector(press):
    def callback(phase, info):
        try:
            press()
        finally:
            gc.callbacks.remove(callback)

    gc.callbacks.append(callback)
    gc.collect()


def in_a_finaliser(press):
    class Last:
        def __del__(self):
            press()

    Last()


def in_a_weak_reference(press):
    class Seen:
        pass

    seen = Seen()
    watched = weakref.ref(seen, lambda _: press())
    del seen
    assert watched() is None


@pytest.fixture
def unraisable(monkeypatch):
    """What Python printed and forgot."""
    lost = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: lost.append(what.exc_type))
    return lost


PLACES = [(in_the_collector, False), (in_a_finaliser, False), (in_a_weak_reference, True)]


@pytest.mark.parametrize(("place", "raised"), PLACES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_ctrl_c_that_python_would_forget_ends_the_run_at_its_next_step(
    tmp_path, monkeypatch, unraisable, place, raised
):
    """JAX has a callback with the garbage collector: an exception there is printed, and the run went on to spend."""
    from sfumato.vault.vault import Vault

    before, release, answers = signal.getsignal(signal.SIGINT), Vault.release, []

    def released(vault, *asked):
        answers.append(release(vault, *asked))
        place(lambda: signal.raise_signal(signal.SIGINT))
        return answers[-1]

    monkeypatch.setattr(Vault, "release", released)
    with pytest.raises(Interrupted, match="1 answer so far"):
        sf.sample(FAMILY, {"y": Y}, checkpoint=tmp_path / "run", **SETTINGS)
    assert len(answers) == 1
    assert unraisable == [KeyboardInterrupt] * raised  # where it can be told, nothing is raised in vain
    assert signal.getsignal(signal.SIGINT) is before


def test_a_ctrl_c_that_is_lost_as_the_pilot_ends_does_not_begin_the_chains(tmp_path, monkeypatch, unraisable):
    from sfumato.run import sampling as sampler

    start = sampler.start

    def started(*given):
        in_a_weak_reference(lambda: signal.raise_signal(signal.SIGINT))
        return start(*given)

    monkeypatch.setattr(sampler, "start", started)
    with pytest.raises(Interrupted, match="Nothing is drawn yet"):
        sf.sample(FAMILY, {"y": Y}, checkpoint=tmp_path / "run", **SETTINGS)


def test_while_chains_are_drawn_one_ctrl_c_is_a_request_and_two_are_an_order(tmp_path, monkeypatch, unraisable):
    from sfumato.vault.vault import Vault

    chunk = Vault.chunk

    def pressed(times):
        def chunked(vault, *given):
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
            return chunk(vault, *given)

        return chunked

    def lost(vault, *given):
        in_the_collector(lambda: signal.raise_signal(signal.SIGINT))
        return chunk(vault, *given)

    for replaced in (pressed(1), lost):
        monkeypatch.setattr(Vault, "chunk", replaced)
        run = sf.sample(FAMILY, {"y": Y}, pilot_share=0.0, **SETTINGS | {"iterations": 9_000})
        assert run.stop_reason is sf.StopReason.INTERRUPTED and run.iterations > 0
    monkeypatch.setattr(Vault, "chunk", pressed(2))
    with pytest.raises(KeyboardInterrupt):
        sf.sample(FAMILY, {"y": Y}, pilot_share=0.0, **SETTINGS)
    assert unraisable == []


def test_a_ctrl_c_as_a_run_ends_takes_its_handler_away_all_the_same(monkeypatch):
    """Python hears pending signals before it changes a handler: raised there, the old one would stay for good."""
    from sfumato.run.interruption import check, listening

    before, real = signal.getsignal(signal.SIGINT), signal.signal

    def pressed(number, handler):
        if handler is before:
            signal.raise_signal(signal.SIGINT)
        return real(number, handler)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt), listening():
        patch.setattr(signal, "signal", pressed)
    assert signal.getsignal(signal.SIGINT) is before
    with listening():
        check()  # nothing is left of it


def test_an_ignored_ctrl_c_stays_ignored_and_other_threads_leave_it_alone():
    from sfumato.run.interruption import check, listening, until_asked

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with listening(), until_asked() as asked:
            signal.raise_signal(signal.SIGINT)
            check()
            assert not asked()
    finally:
        signal.signal(signal.SIGINT, before)
    seen = []

    def elsewhere():
        with listening(), until_asked() as asked:
            check()
            seen.append((asked(), signal.getsignal(signal.SIGINT)))

    with listening(), until_asked() as asked:
        hearing = signal.getsignal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert asked()
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert seen == [(False, hearing)]
