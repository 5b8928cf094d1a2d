"""A run may be killed at any moment: nothing is counted twice, nothing goes uncounted, no paid draw is lost."""

import hashlib
import json
import os
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
from sfumato.errors import CheckpointError, InvalidInput, PlanTooWeak, SfumatoError
from sfumato.planner import budget_mu
from sfumato.privacy.budget import QUANTA_PER_UNIT, cap_quanta
from sfumato.run.journal import Journal

DOMAIN = {"y": sf.Binary()}
SETTINGS = {"epsilon": 4.0, "delta": 1e-5, "chains": 2, "seed": 3, "force": True, "max_iterations": 20_000}


def coin(y):
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(probs=p), obs=y)


def table(n=60_000):
    return {"y": (np.random.default_rng(0).random(n) < 0.3).astype(int)}


SCRIPT = textwrap.dedent(
    """
    import sys
    sys.path.insert(0, {tests!r})
    from chaos.test_resume import SETTINGS, DOMAIN, coin, table
    import sfumato as sf
    from sfumato.run import chain
    chain.CHUNK_TERMS = 2 * 2 * 40          # two kinds of record, two chains: chunks small enough to hit
    run = sf.sample(coin, table(), domain=DOMAIN, checkpoint={folder!r}, progress=False, **SETTINGS)
    print(run.stop_reason.name, run.iterations, flush=True)
    """
)


def start(folder: Path) -> subprocess.Popen:
    code = SCRIPT.format(tests=str(Path(__file__).parents[1]), folder=str(folder))
    environment = os.environ | {"SFUMATO_STATE": str(folder.parent / "state")}
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def wait_for_chunks(folder: Path, count: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 240
    while len(list(folder.glob("chunk-*.npz"))) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def check_account(folder: Path, run: sf.Run, lost: float = 0.0) -> None:
    """The ledger covers at least what the transcript cost, and what was lost, and never passes the cap."""
    terms = Journal(folder).terms()
    with sf.Ledger(folder / "ledger.sqlite") as ledger:
        assert ledger.verify().ok
        assert ledger.spent <= cap_quanta(terms.owners[0].promise[2])
        realised = run.transcript["mu_squared"].sum() + lost
        pilot = sum((2 * r["radius"] / r["sigma"]) ** 2 for r in run.pilot["releases"])
        assert realised + pilot <= ledger.spent / QUANTA_PER_UNIT * (1 + 1e-12)
        assert run.privacy.spent_mu**2 == pytest.approx(ledger.spent / QUANTA_PER_UNIT)


@pytest.fixture(autouse=True)
def private_state(tmp_path, monkeypatch):
    monkeypatch.setenv("SFUMATO_STATE", str(tmp_path / "state"))


def test_kill_9_then_resume_keeps_every_durable_draw_and_the_account(tmp_path):
    folder = tmp_path / "run"
    process = start(folder)
    wait_for_chunks(folder, 3, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = [saved.transcript["theta"] for saved in Journal(folder).read()]
    run = sf.resume(folder, table(), model=coin)
    assert run.stop_reason in (sf.StopReason.FINISHED, sf.StopReason.BUDGET_SPENT)
    kept = np.swapaxes(np.concatenate(before), 0, 1)
    assert np.array_equal(run.transcript["theta"][:, : kept.shape[1]], kept)
    assert run.iterations > kept.shape[1]
    check_account(folder, run)


def test_ctrl_c_returns_the_chain_so_far_and_it_can_go_on(tmp_path):
    folder = tmp_path / "run"
    process = start(folder)
    wait_for_chunks(folder, 2, process)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    reason, iterations = output.split()
    assert reason == "INTERRUPTED"
    assert 0 < int(iterations) < SETTINGS["max_iterations"]
    run = sf.resume(folder, table(), model=coin)
    assert run.iterations > int(iterations)
    check_account(folder, run)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A short finished run, copied by the tests that damage it."""
    base = tmp_path_factory.mktemp("base")
    os.environ["SFUMATO_STATE"] = str(base / "state")
    settings = SETTINGS | {"max_iterations": 60}
    sf.sample(coin, table(3000), domain=DOMAIN, checkpoint=base / "run", progress=False, **settings)
    return base


@pytest.fixture
def copy(finished, tmp_path, monkeypatch):
    import shutil

    monkeypatch.setenv("SFUMATO_STATE", str(finished / "state"))
    return Path(shutil.copytree(finished / "run", tmp_path / "copy"))


def test_resuming_a_finished_run_changes_nothing(copy):
    with sf.Ledger(copy / "ledger.sqlite") as ledger:
        before = ledger.spent
    steps = sum(len(saved.transcript["accepted"]) for saved in Journal(copy).read())
    run = sf.resume(copy, table(3000), model=coin)
    assert run.iterations == steps > 0
    with sf.Ledger(copy / "ledger.sqlite") as ledger:
        assert ledger.spent == before


def test_a_corrupt_chunk_is_found(copy):
    chunk = next(copy.glob("chunk-*.npz"))
    body = bytearray(chunk.read_bytes())
    body[len(body) // 2] ^= 1
    chunk.write_bytes(bytes(body))
    with pytest.raises(CheckpointError, match="corrupt"):
        sf.resume(copy, table(3000), model=coin)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format": 2}', '{"format": 2, "terms": [], "digest": ""}'])
def test_corrupt_terms_are_found(copy, text):
    (copy / "run.json").write_text(text)
    with pytest.raises(CheckpointError, match="corrupt"):
        sf.resume(copy, table(3000), model=coin)


def test_terms_of_another_version_are_told_apart_from_damage(copy):
    (copy / "run.json").write_text('{"format": 1, "epsilon": 4.0}')
    with pytest.raises(CheckpointError, match="format 1"):
        sf.resume(copy, table(3000), model=coin)


def edit(folder, *, seal, **changes):
    """Change the terms of a run, with a checksum that fits (`seal`) or as an editor would."""
    file = json.loads((folder / "run.json").read_text())
    promise = file["terms"]["owners"][0]["promise"]
    for position, name in enumerate(("epsilon", "delta", "mu")):
        promise[position] = changes.pop(name, promise[position])
    file["terms"] |= changes
    if seal:
        file["digest"] = hashlib.sha256(json.dumps(file["terms"], sort_keys=True).encode()).hexdigest()
    (folder / "run.json").write_text(json.dumps(file))


def test_an_edited_promise_is_never_stated(copy):
    """The ledger enforces mu; a smaller epsilon beside it would be a promise that nobody keeps."""
    edit(copy, seal=False, epsilon=0.01)
    with pytest.raises(CheckpointError, match="edited"):
        sf.resume(copy, table(3000), model=coin)
    edit(copy, seal=True, epsilon=0.01)
    with pytest.raises(CheckpointError, match="those of its cap"):
        sf.resume(copy, table(3000), model=coin)
    edit(copy, seal=True, mu=budget_mu(0.01, SETTINGS["delta"]))
    with pytest.raises(CheckpointError, match="promise it was started with"):
        sf.resume(copy, table(3000), model=coin)


@pytest.mark.parametrize(
    "gone", [["ledger.sqlite"], ["ledger.sqlite", "chunk-000000.npz"]], ids=["ledger", "and chunks"]
)
def test_without_its_ledger_a_run_is_over(copy, gone):
    """A ledger made anew would pay for the whole budget a second time."""
    for name in gone:
        (copy / name).unlink()
    with pytest.raises(CheckpointError, match="is missing"):
        sf.resume(copy, table(3000), model=coin)
    assert not (copy / "ledger.sqlite").exists()


def test_another_ledger_in_its_place_is_refused(copy):
    terms = Journal(copy).terms()
    (copy / "ledger.sqlite").unlink()
    sf.Ledger.with_cap(copy / "ledger.sqlite", cap_quanta(terms.owners[0].promise[2])).close()
    with pytest.raises(CheckpointError, match="no account of this run"):
        sf.resume(copy, table(3000), model=coin)
    with sf.Ledger(copy / "ledger.sqlite") as ledger:
        assert ledger.accounts() == []


def test_deleting_chunks_gives_no_budget_back(copy):
    """What the message about a corrupt chunk advises is safe: the ledger keeps what the chunks cost."""
    with sf.Ledger(copy / "ledger.sqlite") as ledger:
        before = ledger.spent
    cost = sum(saved.spent for saved in Journal(copy).read())
    for chunk in copy.glob("chunk-*.npz"):
        chunk.unlink()
    run = sf.resume(copy, table(3000), model=coin)
    assert run.iterations > 0
    check_account(copy, run)
    with sf.Ledger(copy / "ledger.sqlite") as ledger:
        assert ledger.spent == before + sum(saved.spent for saved in Journal(copy).read()) > before + cost / 2


def refusals():
    outside = table(3000)
    outside["y"][0] = 2
    yield "records outside the domain", outside, {}
    yield "no such precision", table(3000), {"precision": "float16"}
    yield "no such kernel", table(3000), {"kernel": "hmc"}


@pytest.mark.parametrize(("data", "changes"), [pytest.param(d, c, id=name) for name, d, c in refusals()])
@pytest.mark.parametrize("owners", [False, True], ids=["table", "owner"])
def test_a_refused_run_leaves_the_folder_free(tmp_path, data, changes, owners):
    family, settings = sf.families.Bernoulli(), SETTINGS | {"max_iterations": 20, "progress": False} | changes
    precision = {"precision": settings.pop("precision")} if owners and "precision" in settings else {}
    wrapped = sf.Owner(data, name="amber", **precision) if owners else data
    with pytest.raises(SfumatoError):
        sf.sample(family, wrapped, checkpoint=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_a_refusal_leaves_the_files_of_others_alone(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(InvalidInput, match="columns"):
        sf.sample(sf.families.Bernoulli(), {"x": [0, 1]}, checkpoint=tmp_path / "run", **SETTINGS)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"]


def test_what_the_pilot_paid_for_stays(tmp_path, monkeypatch):
    """After the pilot a refusal has cost something: its ledger is the record of it."""
    from sfumato.run import sampling as sampler

    def weak(plan, pilot):
        raise PlanTooWeak("too weak", plan)

    monkeypatch.setattr(sampler, "_refuse_after_pilot", weak)
    settings = SETTINGS | {"max_iterations": 200, "force": False, "epsilon": 8.0}
    with pytest.raises(PlanTooWeak):
        sf.sample(sf.families.Bernoulli(), table(60_000), checkpoint=tmp_path / "run", progress=False, **settings)
    with sf.Ledger(tmp_path / "run" / "ledger.sqlite") as ledger:
        assert ledger.spent > 0
    with pytest.raises(CheckpointError, match="already holds a run"):
        Journal(tmp_path / "run").create({})


@pytest.mark.parametrize("over_owners", [False, True])
def test_what_was_refused_after_the_pilot_does_not_begin_by_being_resumed(tmp_path, over_owners):
    settings = SETTINGS | {"max_iterations": 20, "epsilon": 0.2, "kernel": "guided"}
    data = table(500)
    if over_owners:
        epsilon, delta = settings.pop("epsilon"), settings.pop("delta")
        data = [sf.Owner(data, epsilon=epsilon, delta=delta, name="north")]
    folder = tmp_path / "run"
    assert sf.sample(coin, data, domain=DOMAIN, checkpoint=folder, progress=False, **settings).planned["hopeless"]
    for chunk in folder.glob("chunk-*.npz"):
        chunk.unlink()  # as it stood when the pilot was done
    edit(folder, seal=True, force=False)
    with pytest.raises(PlanTooWeak, match="The pilot was paid for"):
        sf.resume(folder, data, model=coin, progress=False)
    assert not list(folder.glob("chunk-*.npz"))
    sf.resume(folder, data, model=coin, force=True, progress=False)


def test_a_refusal_leaves_a_ledger_that_was_there_before(tmp_path):
    with sf.Ledger(tmp_path / "ledger.sqlite", epsilon=5.0, delta=1e-5) as ledger:
        for given in ({"ledger": ledger}, {}):
            with pytest.raises(SfumatoError):
                sf.sample(
                    sf.families.Bernoulli(), table(3000), checkpoint=tmp_path, **SETTINGS | {"kernel": "hmc"} | given
                )
            assert not (tmp_path / "run.json").exists()
        assert ledger.verify().ok


OUTSIDE = {"prior": 1.0, "link": 1.0}
"""What `tilted` looks at besides its arguments: its text does not show the numbers."""


def tilted(y):
    b = numpyro.sample("b", dist.Normal(0.0, OUTSIDE["prior"]))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=OUTSIDE["link"] * b), obs=y)


@pytest.mark.parametrize("over_owners", [False, True])
def test_a_model_that_computes_something_else_does_not_go_on(tmp_path, monkeypatch, over_owners):
    """A chain whose first half had another prior, or another likelihood, is a draw from no posterior."""
    settings = SETTINGS | {"max_iterations": 20, "pilot_share": 0.0, "kernel": "guided"}
    data = table(2000)
    if over_owners:
        epsilon, delta = settings.pop("epsilon"), settings.pop("delta")
        data = [sf.Owner(data, epsilon=epsilon, delta=delta, name=name) for name in ("north", "south")]
    sf.sample(tilted, data, domain=DOMAIN, checkpoint=tmp_path / "run", progress=False, **settings)
    for name in OUTSIDE:
        with monkeypatch.context() as now:
            now.setitem(OUTSIDE, name, 0.5)
            with pytest.raises(CheckpointError, match="computes something else"):
                sf.resume(tmp_path / "run", data, model=tilted, progress=False)
    assert sf.resume(tmp_path / "run", data, model=tilted, progress=False).iterations == 20


@pytest.mark.parametrize("left", ["run.json", "chunk-000000.npz"])
def test_the_remains_of_a_run_are_not_built_upon(copy, left):
    for path in copy.iterdir():
        if path.name != left:
            path.unlink()
    with pytest.raises(CheckpointError, match="already holds a run"):
        Journal(copy).create({})
    assert (copy / left).exists()


def test_a_family_is_not_found_by_name(copy):
    edit(copy, seal=True, model_name=["sfumato.families.counts", ""])
    with pytest.raises(InvalidInput, match="a family, say.* pass the same one as model="):
        sf.resume(copy, table(3000))


def test_other_records_other_models_and_other_ledgers_are_refused(copy, tmp_path):
    other = table(3000)
    other["y"][0] ^= 1
    with pytest.raises(CheckpointError, match="not the records"):
        sf.resume(copy, other, model=coin)

    def other_coin(y):
        p = numpyro.sample("p", dist.Beta(2.0, 1.0))
        with numpyro.plate("records", y.shape[0]):
            numpyro.sample("y", dist.Bernoulli(probs=p), obs=y)

    with pytest.raises(CheckpointError, match="model is not the one"):
        sf.resume(copy, table(3000), model=other_coin)
    with (
        sf.Ledger(tmp_path / "other.sqlite", epsilon=5, delta=1e-5) as ledger,
        pytest.raises(InvalidInput, match="ledger"),
    ):
        sf.resume(copy, table(3000), model=coin, ledger=ledger)


def test_another_sensitivity_is_refused(copy):
    """Else draws that were clipped would end up in a statement that calls them exact."""
    with pytest.raises(InvalidInput, match="sensitivity it was started with"):
        sf.resume(copy, table(3000), model=coin, sensitivity=sf.Clip(per_step=0.05))


def test_a_folder_without_a_run_or_with_one_already_is_refused(copy, tmp_path):
    with pytest.raises(CheckpointError, match=r"no run\.json"):
        sf.resume(tmp_path, table(3000), model=coin)
    with pytest.raises(CheckpointError, match="already holds a run"):
        sf.sample(coin, table(3000), domain=DOMAIN, checkpoint=copy, **SETTINGS)


def test_a_full_disk_loses_nothing_that_was_paid_for(tmp_path):
    """A real limit on file size: the first chunk cannot be written; the error carries the draws."""
    code = textwrap.dedent(
        """
        import sys, resource, signal
        sys.path.insert(0, {tests!r})
        from chaos.test_resume import SETTINGS, DOMAIN, coin, table
        import sfumato as sf
        from sfumato.run import journal
        from sfumato.errors import CheckpointError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        write = journal.Journal._write
        def full(self, name, body, *kept):
            if name.startswith("chunk"):
                resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
            write(self, name, body, *kept)
        journal.Journal._write = full
        try:
            sf.sample(coin, table(3000), domain=DOMAIN, checkpoint={folder!r}, progress=False, **SETTINGS)
        except CheckpointError as error:
            print(error.run.iterations, error.run.stop_reason.name, error)
        """
    ).format(tests=str(Path(__file__).parents[1]), folder=str(tmp_path / "run"))
    environment = os.environ | {"SFUMATO_STATE": str(tmp_path / "state")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    iterations, reason, *_ = done.stdout.split()
    assert int(iterations) > 0
    assert reason == "INTERRUPTED"
    assert "free some space" in done.stdout
