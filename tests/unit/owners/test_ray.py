"""Shards on a Ray cluster: the same whole numbers as one table, whoever dies in between."""

import contextlib
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import numpyro
import numpyro.distributions as dist
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sfumato as sf
from node_helpers import YES, free_port, load, prepare, process, threaded
from node_helpers import N as PEOPLE
from sfumato.errors import CheckpointError, InvalidData, InvalidInput
from sfumato.families.langevin import public_part
from sfumato.kernel import Langevin, PublicStream
from sfumato.owners.local import LocalDoor, facts_of
from sfumato.owners.remote import connect
from sfumato.owners.rounds import Rounds
from sfumato.protocol.questions import Statistic
from sfumato.vault import records
from sfumato.vault.desk import Desk
from sfumato.vault.engine import LocalEngine
from sfumato.vault.ledger import Ledger
from sfumato.vault.queries.ratio import RatioSum
from sfumato.vault.queries.vector import PilotSum
from sfumato.vault.ray_engine import RayEngine
from sfumato.vault.ray_shards import RayShards
from sfumato.vault.shards import Piece, deal_out, find_files, pieces_of, read_shard
from unit.node.test_remote import door_for, local
from unit.node.test_remote import drive as drive_remote
from unit.node.test_several_nodes import kernel_for
from unit.owners.fixed_noise import Fixed
from unit.owners.test_rounds import (
    CAP,
    CHAINS,
    DOMAIN,
    LOGISTIC,
    STEPS,
    TABLE,
    assert_same,
    compiled,
    drive,
    reference_case,
    walk_case,
)

# Ray starts its processes by fork, which Python and JAX warn about; the children run no JAX of ours.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore:.*fork.*:RuntimeWarning", "ignore::ResourceWarning"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The table in two files of several row groups."""
    where = tmp_path_factory.mktemp("parquet")
    columns = {f"x_{i}": TABLE["x"][:, i] for i in range(4)} | {"y": TABLE["y"]}
    for number, part in enumerate((slice(0, 700), slice(700, None))):
        pq.write_table(
            pa.table({k: v[part] for k, v in columns.items()}), where / f"{number}.parquet", row_group_size=150
        )
    return where


@pytest.fixture(scope="module")
def cluster():
    """One cluster for all tests; engines find it and leave it running."""
    import warnings

    import ray

    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init("local", num_cpus=5, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def shards(cluster, folder):
    """The table, read once by two workers, for all runs below."""
    made = RayShards(sf.RayTable(folder / "*.parquet", workers=2), DOMAIN)
    yield made
    made.close()


@pytest.fixture
def engine(shards):
    made = RayEngine(shards, LOGISTIC)
    yield made
    made.close()


def kill(ray, shards, number):
    pid = ray.get(shards._actors[number].__ray_call__.remote(lambda self: os.getpid()))
    os.kill(pid, signal.SIGKILL)


def over(engine, case, ledger, at_step=None, then=None):
    """A chain over an engine, with fixed noise; `then` happens when the last question of some step is asked."""
    desk = Desk(engine, case.study, ledger.account("a", CAP), source=Fixed)
    door = LocalDoor(desk, facts_of(case.study, desk, "a", 1.0, 1e-6, 1.0, "refuse", "float64", True))
    real, asked = door.ask, []

    def ask(query_id, question):
        asked.append(query_id)
        if then is not None and query_id.startswith(f"run/{at_step}/") and not isinstance(question, Statistic):
            then()
        return real(query_id, question)

    door.ask = ask
    result = drive(case, Rounds(case.study.model, [door], run_id="run"), PublicStream(1, CHAINS), [STEPS])
    assert len(asked) == len(set(asked))
    return result, ledger.spent


def in_process(case):
    with Ledger.in_memory(CAP) as ledger:
        return over(LocalEngine(records.load(case.table, case.study.domain), case.study), case, ledger)


def test_runs_that_share_the_shards_are_those_of_one_process_also_when_an_actor_is_killed(cluster, shards):
    """A walk and Langevin around a reference point at the same time: draw for draw, to the last bit, and at the same price.

    The killed actor's shard is read again by a new one, which knows both runs; the sums are asked again, nothing is paid twice.
    """
    before, killed = list(shards._actors), threading.Event()

    def strike():
        kill(cluster, shards, 0)
        killed.set()

    def run(case, then):
        engine = RayEngine(shards, case.study)
        with Ledger.in_memory(CAP) as ledger:
            result = over(engine, case, ledger, STEPS // 2, then)
        engine.close()
        return result

    with ThreadPoolExecutor(2) as both:
        cases = walk_case(), reference_case()
        running = [both.submit(run, cases[0], killed.wait), both.submit(run, cases[1], strike)]
        results = [future.result(120) for future in running]
    assert shards._actors[0] is not before[0]
    assert shards._actors[1] is before[1]
    for case, (result, paid) in zip(cases, results, strict=True):
        alone, price = in_process(case)
        assert_same(alone, result)
        assert paid == price
        assert 0.1 < result["accepted"].mean() < 1.0


def test_langevin_on_a_family_on_ray_is_the_compiled_one(shards):
    """On one column of the same shards: a study need not be about all of them."""
    family = sf.families.Bernoulli()
    study = sf.study.target.make_study(family, kernel="langevin")
    kernel = Langevin(np.eye(1) * 0.07, 0.4, public_part(family, study.model, len(TABLE["y"])))
    case = SimpleNamespace(study=study, table={"y": TABLE["y"]}, kernel=kernel, sigma=0.4)
    engine = RayEngine(shards, study)
    with Ledger.in_memory(CAP) as ledger:
        result, _ = over(engine, case, ledger)
    assert_same(compiled(case), result)
    case.kernel = replace(kernel, copy_sigma=6.0)  # as over nodes: corrections from second copies
    with Ledger.in_memory(CAP) as ledger:
        copied, paid = over(engine, case, ledger)
    alone, price = in_process(case)
    assert_same(alone, copied)
    assert paid == price
    engine.close()
    with pytest.raises(InvalidInput, match="could not evaluate"):
        engine.sum(None)  # the workers have let go of this run


def test_sums_do_not_depend_on_the_number_of_shards(engine):
    """Local engines on one, two, three and eight shards, and the cluster, give the same integers."""
    rng = np.random.default_rng(1)
    theta = rng.normal(size=(CHAINS, 4)) * 0.3
    ratio = RatioSum(theta, theta + 0.05, np.full(CHAINS, -(2**40)), np.full(CHAINS, 2**40), 2.0**-36)
    vector = PilotSum("information", theta[0], np.eye(4) * 0.1, np.linspace(0, 0.01, 10), 0.02, 2.0**-40)
    whole = LocalEngine(records.load(TABLE, DOMAIN), LOGISTIC)
    pieces = pieces_of(sorted({p.path for shard in engine._shards.shards for p in shard.pieces}))
    for workers in (2, 3, 8):
        shards = deal_out(pieces, workers)
        assert len(shards) == workers
        parts = [LocalEngine(read_shard(shard, DOMAIN, {}, "refuse"), LOGISTIC) for shard in shards]
        assert sum(part.n for part in parts) == whole.n
        assert np.array_equal(sum(part.sum(ratio) for part in parts), whole.sum(ratio))
    assert np.array_equal(engine.sum(ratio), whole.sum(ratio))
    assert np.array_equal(engine.sum(vector), whole.sum(vector))
    assert engine.n == whole.n


def test_the_statistic_of_a_family_on_ray_is_that_of_one_table(cluster, tmp_path, monkeypatch):
    """Through the public function: Langevin on a family, two workers."""
    y = np.random.default_rng(2).integers(0, 2, 4000).astype(np.int8)
    pq.write_table(pa.table({"y": y}), tmp_path / "t.parquet", row_group_size=500)
    seen = []
    monkeypatch.setenv("SFUMATO_STATE", str(tmp_path / "state"))
    run = sf.sample(
        sf.families.Bernoulli(), sf.RayTable(tmp_path / "*.parquet", workers=2), epsilon=4.0, delta=1e-5, chains=2,
        seed=0, max_iterations=30, force=True, progress=lambda done, total, text: seen.append((done, total, text)),
        checkpoint=tmp_path / "run", outside="clamp",
    )  # fmt: skip
    assert (run.planned["kernel"], run.privacy.n, run.iterations) == ("langevin", 4000, 30)
    assert (4000, 4000, "loading") in seen
    assert abs(run.draws["p"].mean() - y.mean()) < 0.1
    one = sf.RayTable(tmp_path / "*.parquet", workers=1)
    again = sf.resume(tmp_path / "run", one, model=sf.families.Bernoulli())
    assert np.array_equal(again.transcript["theta"], run.transcript["theta"])
    assert (again.privacy.epsilon, again.pilot["outside"], again.privacy.outside) == (4.0, "clamp", "clamp")
    assert "given the clamped records" in again.privacy.exact
    pq.write_table(pa.table({"y": 1 - y}), tmp_path / "t.parquet", row_group_size=500)
    with pytest.raises(CheckpointError, match="not the records"):
        sf.resume(tmp_path / "run", one, model=sf.families.Bernoulli())


def test_an_estimate_of_a_table_on_ray_is_that_of_its_records(cluster, tmp_path, monkeypatch):
    y = (np.random.default_rng(2).random(4000) < 0.3).astype(np.int8)
    pq.write_table(pa.table({"y": y}), tmp_path / "t.parquet", row_group_size=500)
    monkeypatch.setenv("SFUMATO_STATE", str(tmp_path / "state"))

    def coin(y):
        p = numpyro.sample("p", dist.Beta(1, 1))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("obs", dist.Bernoulli(p), obs=y)

    given = {"epsilon": 0.5, "delta": 1e-6, "domain": {"y": sf.Binary()}, "progress": False, "seed": 0}
    table = sf.RayTable(tmp_path / "*.parquet", workers=2)
    found = sf.estimate(coin, table, checkpoint=tmp_path / "kept", **given)
    assert abs(found.draws["p"].mean() - y.mean()) < 5 * found.draws["p"].std() < 0.2
    again = sf.resume(tmp_path / "kept", table, model=coin, progress=False)
    np.testing.assert_array_equal(again.draws["p"], found.draws["p"])


def test_pieces_are_dealt_out_by_bytes(folder):
    pieces = [Piece("f", i, 10, size) for i, size in enumerate((900, 100, 500, 450, 50))]
    assert sorted(shard.size for shard in deal_out(pieces, 2)) == [1000, 1000]
    assert len(deal_out(pieces, 9)) == 5
    found = pieces_of(find_files(f"file://{folder}/*.parquet"))
    assert sum(piece.rows for piece in found) == len(TABLE["y"])


def test_bad_shards_and_missing_files_are_refused_without_quoting_a_record(cluster, tmp_path):
    with pytest.raises(InvalidData, match="no file fits"):
        find_files(str(tmp_path / "*.parquet"))
    canary = 7.3123
    pq.write_table(pa.table({"y": np.full(50, canary)}), tmp_path / "bad.parquet")
    study = sf.study.target.make_study(sf.families.Bernoulli(), kernel="guided")
    with pytest.raises(InvalidData, match="outside its domain") as caught:
        RayShards(sf.RayTable(tmp_path / "*.parquet", workers=1), study.domain)
    assert str(canary) not in str(caught.value)
    (tmp_path / "worse.parquet").write_bytes(b"no parquet at all")
    with pytest.raises(InvalidData, match=r"worse\.parquet could not be read"):
        pieces_of(find_files(str(tmp_path / "*.parquet")))
    with pytest.raises(InvalidInput, match="workers"):
        sf.RayTable("x", workers=0)


def test_more_workers_than_the_cluster_has_cores_are_refused(cluster, folder):
    """They would wait for each other for ever."""
    with pytest.raises(InvalidInput, match="5 cores"):
        RayShards(sf.RayTable(folder / "*.parquet", workers=6), DOMAIN)


def test_nothing_of_an_engine_can_be_printed_or_pickled(engine):
    import pickle

    assert (repr(engine), repr(engine._shards)) == ("<RayEngine closed>", "<RayShards closed>")
    for closed in (engine, engine._shards):
        with pytest.raises(TypeError, match="never serialised"):
            pickle.dumps(closed)


# -- a node over shards -----------------------------------------------------------------------------------------------


def prepare_shards(folder):
    """An owner's folder whose table lies in two Parquet files, for the workers of a Ray cluster."""
    tokens = prepare(folder, studies=("coin",))
    for number, part in enumerate((slice(0, 1100), slice(1100, None))):
        pq.write_table(pa.table({"said_yes": YES[part]}), folder / f"people-{number}.parquet", row_group_size=400)
    text = (folder / "owner.toml").read_text()
    shards = 'path = "people-*.parquet"\nengine = "ray"\nworkers = 2'
    (folder / "owner.toml").write_text(text.replace('path = "people.csv"', shards))
    (folder / "people.csv").unlink()
    return tokens


def test_a_node_over_shards_draws_what_one_process_draws_and_reads_its_table_once(cluster, tmp_path):
    tokens = prepare_shards(tmp_path)
    with threaded(tmp_path, source=Fixed) as running:
        shards = running.node._house._shards
        before = list(shards._actors)
        alice = connect(running.url, token=tokens["alice"])
        for kind, run_id in (("guided", "walk"), ("langevin", "reference")):
            study, door = door_for(alice, (tmp_path, tokens), "coin", kind, run_id=run_id, epsilon=4.0)
            kernel, sigma = kernel_for(run_id, study)
            rounds = Rounds(study.model, [door], run_id=run_id)
            remote = drive_remote(study, kernel, sigma, rounds, PublicStream(3, CHAINS))
            assert not running.node.runs[f"run alice/{run_id}"]._light  # the workers are waited for on a thread
            assert_same(local(study, kernel, sigma), remote)
        assert shards._actors == before
        assert len(shards._studies) == 2
    assert not shards._actors
    assert cluster.is_initialized()  # it was there before the node
    assert "3,000 of 3,000 records" in (tmp_path / "node.log").read_text()


def test_a_node_starts_a_cluster_that_nobody_else_can_reach_and_ends_it_with_itself(tmp_path):
    """A real process, and the sockets of everything it started."""
    tokens = prepare_shards(tmp_path)
    with process(tmp_path) as running:
        run = sf.sample(
            load(tmp_path, "coin"), connect(running.url, token=tokens["alice"]), epsilon=4.0, delta=1e-6, chains=2,
            kernel="guided", max_iterations=5, pilot_share=0.0, guess={"p": 0.3}, force=True, progress=False,
        )  # fmt: skip
        # The plan spends the whole budget in five steps: dear proposals may leave nothing for the last.
        assert run.privacy.n == PEOPLE
        assert 1 <= run.iterations <= 5
        family = descendants(running.process.pid)
        names = " ".join(Path(f"/proc/{pid}/cmdline").read_text() for pid in family)
        assert "raylet" in names and "gcs_server" in names and "ray::Worker" in names
        heard = listening([running.process.pid, *family])
        assert len(heard) > 3
        assert all(address.is_loopback for address in heard), heard
        running.stop()
        until = time.monotonic() + 20
        while any(Path(f"/proc/{pid}").exists() for pid in family) and time.monotonic() < until:
            time.sleep(0.1)
        assert not [pid for pid in family if Path(f"/proc/{pid}").exists()]
    with Ledger(tmp_path / "owner.ledger") as ledger:
        assert ledger.verify().ok
        assert ledger.accounts()[-1].answers == run.iterations


@pytest.fixture
def elsewhere(tmp_path):
    """Address of a cluster that somebody else started; it wants to see the token that Ray keeps at home."""
    port = free_port()
    here = str(Path(__file__).parents[2])
    known = os.environ | {"RAY_AUTH_MODE": "token", "PYTHONPATH": os.pathsep.join([here, *filter(None, sys.path)])}
    command = [
        str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={port}", "--num-cpus=2",
        "--include-dashboard=false", "--disable-usage-stats", "--node-ip-address=127.0.0.1",
    ]  # fmt: skip
    with (tmp_path / "cluster.log").open("w") as log:
        started = subprocess.Popen(command, env=known, stdout=log, stderr=log, start_new_session=True)
    until = time.monotonic() + 60
    while "Ray runtime started" not in (tmp_path / "cluster.log").read_text():
        assert started.poll() is None and time.monotonic() < until, (tmp_path / "cluster.log").read_text()
        time.sleep(0.2)
    yield f"127.0.0.1:{port}", known
    started.terminate()
    try:
        started.wait(30)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)


def test_a_cluster_that_was_there_before_is_used_by_its_address_and_left_running(folder, elsewhere):
    address, known = elsewhere
    script = Path(__file__).with_name("existing_cluster.py")
    command = [sys.executable, str(script), str(folder / "*.parquet"), address]
    done = subprocess.run(command, env=known, capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout.endswith("the same whole numbers\n"), done.stderr
    host, port = address.split(":")
    socket.create_connection((host, int(port)), timeout=5).close()  # it is still there


def test_where_no_cluster_answers_the_message_says_what_it_may_want(folder, monkeypatch):
    import ray

    def nobody(**where):
        raise ConnectionError("Ray tries for minutes before it says so")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", nobody)
    with pytest.raises(InvalidInput, match=r"no Ray cluster can be used at 10\.0\.0\.9:6379 .*RAY_AUTH_MODE=token"):
        RayShards(sf.RayTable(folder / "*.parquet", address="10.0.0.9:6379"), DOMAIN)


def descendants(pid):
    """Processes that a process started, and theirs."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found, new = [], [pid]
    while new:
        new = [child for child, parent in parents.items() if parent in new]
        found += new
    return found


def listening(pids):
    """Addresses that any of these processes listens on, from the kernel's own tables."""
    inodes = set()
    for pid in pids:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            try:
                inodes.add(os.readlink(fd))
            except OSError:
                continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                raw = fields[1].partition(":")[0]
                words = [bytes.fromhex(raw[i : i + 8])[::-1] for i in range(0, len(raw), 8)]
                address = ipaddress.ip_address(b"".join(words))
                found.append(getattr(address, "ipv4_mapped", None) or address)
    return found
