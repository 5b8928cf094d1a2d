"""Shards on a Ray cluster: the same whole numbers as one table, whoever dies in between."""

import os
import signal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sfumato as sf
from sfumato.access.local import LocalDoor, facts_of
from sfumato.access.rounds import Rounds
from sfumato.errors import InvalidData, InvalidInput
from sfumato.kernel import PublicStream
from sfumato.vault import ray_engine, records
from sfumato.vault.desk import Desk
from sfumato.vault.engine import LocalEngine, Spot
from sfumato.vault.ledger import Ledger
from sfumato.vault.shards import Piece, deal_out, find_files, pieces_of, read_shard
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

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(num_cpus=5, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def engine(cluster, folder):
    made = ray_engine.RayEngine(sf.RayTable(folder / "*.parquet", workers=2), LOGISTIC)
    yield made
    made.close()


def kill(ray, engine, number):
    pid = ray.get(engine._actors[number].__ray_call__.remote(lambda self: os.getpid()))
    os.kill(pid, signal.SIGKILL)


def test_a_chain_on_ray_is_the_compiled_one_also_when_an_actor_is_killed(cluster, engine):
    """Draw for draw, to the last bit; the killed actor's shard is read again, the sum asked again, nothing paid twice."""
    case = walk_case()
    with Ledger.in_memory(CAP) as ledger:
        desk = Desk(engine, case.study, ledger.account("a", CAP), source=Fixed)
        facts = facts_of(case.study, desk, "a", 1.0, 1e-6, 1.0, "refuse", "float64", True)
        door = LocalDoor(desk, facts)
        real, asked = door.ask, []

        def ask(query_id, question):
            asked.append(query_id)
            if len(asked) == STEPS // 2:
                kill(cluster, engine, 0)
            return real(query_id, question)

        door.ask = ask
        before = list(engine._actors)
        result = drive(case, Rounds(case.study.model, [door], run_id="run"), PublicStream(1, CHAINS), [STEPS])
        assert engine._actors[0] is not before[0]
        assert engine._actors[1] is before[1]
        paid = ledger.spent
    assert len(asked) == STEPS
    assert_same(compiled(case), result)
    with Ledger.in_memory(CAP) as ledger:
        table = records.load(TABLE, DOMAIN)
        desk = Desk(LocalEngine(table, case.study), case.study, ledger.account("a", CAP), source=Fixed)
        door = LocalDoor(desk, facts)
        drive(case, Rounds(case.study.model, [door], run_id="run"), PublicStream(1, CHAINS), [STEPS])
        assert ledger.spent == paid


def test_sums_do_not_depend_on_the_number_of_shards(engine):
    """Local engines on one, three and seven shards, and the cluster, give the same integers."""
    rng = np.random.default_rng(1)
    theta = rng.normal(size=(CHAINS, 4)) * 0.3
    spot = Spot(theta, theta + 0.05, np.full(CHAINS, -(2**40)), np.full(CHAINS, 2**40), 2.0**-36)
    vector = ("information", theta[0], np.eye(4) * 0.1, 0.02, 2.0**-40)
    whole = LocalEngine(records.load(TABLE, DOMAIN), LOGISTIC)
    pieces = pieces_of(sorted({p.path for shard in engine.shards for p in shard.pieces}))
    for workers in (3, 7):
        shards = deal_out(pieces, workers)
        assert len(shards) == workers
        parts = [LocalEngine(read_shard(shard, DOMAIN, {}, "refuse"), LOGISTIC) for shard in shards]
        assert sum(part.n for part in parts) == whole.n
        assert np.array_equal(sum(part.ratio(spot) for part in parts), whole.ratio(spot))
    assert np.array_equal(engine.ratio(spot), whole.ratio(spot))
    assert np.array_equal(engine.vector(*vector), whole.vector(*vector))
    assert engine.n == whole.n


def test_the_statistic_of_a_family_on_ray_is_that_of_one_table(cluster, tmp_path):
    """Through the public function: Langevin on a family, two workers."""
    y = np.random.default_rng(2).integers(0, 2, 4000).astype(np.int8)
    pq.write_table(pa.table({"y": y}), tmp_path / "t.parquet", row_group_size=500)
    seen = []
    run = sf.sample(
        sf.families.Bernoulli(), sf.RayTable(tmp_path / "*.parquet", workers=2), epsilon=4.0, delta=1e-5, chains=2,
        seed=0, max_iterations=30, force=True, progress=lambda done, total, text: seen.append((done, total, text)),
    )  # fmt: skip
    assert (run.plan["kernel"], run.privacy.n, run.iterations) == ("langevin", 4000, 30)
    assert (4000, 4000, "loading") in seen
    assert abs(run.draws["p"].mean() - y.mean()) < 0.1


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
    study = sf.study.make_study(sf.families.Bernoulli(), kernel="guided")
    with pytest.raises(InvalidData, match="outside its domain") as caught:
        ray_engine.RayEngine(sf.RayTable(tmp_path / "*.parquet", workers=1), study)
    assert str(canary) not in str(caught.value)
    (tmp_path / "worse.parquet").write_bytes(b"no parquet at all")
    with pytest.raises(InvalidData, match=r"worse\.parquet could not be read"):
        pieces_of(find_files(str(tmp_path / "*.parquet")))
    with pytest.raises(InvalidInput, match="workers"):
        sf.RayTable("x", workers=0)


def test_more_workers_than_the_cluster_has_cores_are_refused(cluster, folder):
    """They would wait for each other for ever."""
    with pytest.raises(InvalidInput, match="5 cores"):
        ray_engine.RayEngine(sf.RayTable(folder / "*.parquet", workers=6), LOGISTIC)


def test_nothing_of_an_engine_can_be_printed_or_pickled(engine):
    import pickle

    assert repr(engine) == "<RayEngine sealed>"
    with pytest.raises(TypeError, match="never serialised"):
        pickle.dumps(engine)
