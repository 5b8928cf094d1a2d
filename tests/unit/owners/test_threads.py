"""A table in parts on threads gives the whole numbers of one table, whatever the parts."""

import gc
import pickle
import threading

import numpy as np
import pytest

import sfumato as sf
from sfumato.kernel import PublicStream
from sfumato.owners.local import LocalDoor, facts_of
from sfumato.owners.rounds import Rounds
from sfumato.study.target import make_study
from sfumato.vault import records, threads
from sfumato.vault.desk import Desk
from sfumato.vault.engine import LocalEngine
from sfumato.vault.ledger import Ledger
from sfumato.vault.queries.ratio import RatioSum
from sfumato.vault.queries.vector import PilotSum
from sfumato.vault.threads import ThreadedEngine
from unit.owners.fixed_noise import Fixed
from unit.owners.test_rounds import (
    CAP,
    CHAINS,
    LOGISTIC,
    STEPS,
    TABLE,
    assert_same,
    by_rounds,
    copies_case,
    drive,
    langevin_case,
    reference_case,
    walk_case,
)


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(threads, "LEAST", 50)
    monkeypatch.setattr(threads, "PART", 150)


def over_parts(case, threads):
    with Ledger.in_memory(CAP) as ledger:
        engine = ThreadedEngine(records.load(case.table, case.study.domain), case.study, threads=threads)
        desk = Desk(engine, case.study, ledger.account("a", CAP), source=Fixed, own=True)
        door = LocalDoor(desk, facts_of(case.study, desk, "a", 1.0, 1e-6, 1.0, "refuse", "float64", True))
        rounds = Rounds(case.study.model, [door], run_id="run")
        return drive(case, rounds, PublicStream(1, CHAINS), [STEPS]), engine


@pytest.mark.parametrize("case", [walk_case, langevin_case, copies_case, reference_case])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_chain_is_that_of_one_table_to_the_last_bit(small_parts, case, threads):
    before = threading.active_count()
    result, engine = over_parts(case(), threads)
    assert_same(by_rounds(case()), result)
    assert engine._parts and threading.active_count() <= before


def test_what_is_not_kept_is_summed_all_the_same(small_parts, monkeypatch):
    """Beyond a size of the whole table nothing is kept, though each part is small."""
    kept = by_rounds(walk_case()), by_rounds(reference_case())
    monkeypatch.setattr("sfumato.vault.engine.CACHE_TERMS", 400 * CHAINS)
    for one, case in zip(kept, (walk_case, reference_case), strict=True):
        result, engine = over_parts(case(), 2)
        assert_same(one, result)
        assert all(part._kept is None for part in engine._parts)


def test_parts_of_one_size_share_what_is_compiled(small_parts):
    engine = ThreadedEngine(records.load(TABLE, LOGISTIC.domain), LOGISTIC, threads=2)
    sizes = [part.rows for part in engine._parts]
    assert (len(sizes), sum(sizes), len(set(sizes))) == (8, engine.n, 2)
    theta = np.zeros((2, 4))
    engine.sum(RatioSum(theta, theta + 0.1, np.full(2, -9), np.full(2, 9), 1.0))
    assert len({id(part._compiled["ratio"]) for part in engine._parts}) == 1
    whole = LocalEngine(records.load(TABLE, LOGISTIC.domain), LOGISTIC)
    asked = PilotSum("information", np.zeros(4), np.eye(4), np.linspace(0, 0.2, 10), 1.0, 2.0**-40)
    assert np.array_equal(engine.sum(asked), whole.sum(asked))
    assert engine.rows == whole.rows == len(TABLE["y"])
    engine.close()


def test_small_tables_and_kinds_of_record_are_not_cut():
    for table, study in ((TABLE, LOGISTIC), ({"y": TABLE["y"]}, make_study(sf.families.Bernoulli(), kernel="guided"))):
        engine = ThreadedEngine(records.load(table, study.domain), study, threads=4)
        assert len(engine._parts) == 1 and engine._threads is None
        assert engine.rows == LocalEngine(records.load(table, study.domain), study).rows


@pytest.mark.parametrize(
    ("rows", "workers", "wanted"), [(10_000, 2, 1), (30_000, 2, 2), (300_000, 2, 10), (300_000, 64, 36), (70_000, 8, 8)]
)
def test_every_thread_has_as_many_parts_and_none_is_too_small(rows, workers, wanted):
    sizes = threads._sizes(rows, workers)
    assert (len(sizes), sum(sizes)) == (wanted, rows)
    assert len(set(sizes[:-1])) <= 1 and sizes[-1] > 0.7 * sizes[0]
    assert max(sizes) < threads.PART + threads.ALIGNED
    assert all(start % threads.ALIGNED == 0 for start in np.cumsum(sizes[:-1]))


def test_the_table_is_not_copied():
    """Parts are views of the very memory that was read."""
    rows = 40_000
    x = np.ascontiguousarray(np.random.default_rng(0).uniform(-1, 1, (rows, 4)))
    table = records.load({"x": x, "y": (x[:, 0] > 0).astype(np.int8)}, LOGISTIC.domain)
    engine = ThreadedEngine(table, LOGISTIC, threads=2)
    start = table.columns["x"].ctypes.data
    places = [part._records.columns["x"].unsafe_buffer_pointer() - start for part in engine._parts]
    assert len(places) == 2 and start % 64 == 0
    assert places == [0, engine._parts[0].rows * 4 * 8]
    engine.close()


def test_a_part_that_fails_ends_the_sum_when_all_have_ended(small_parts, monkeypatch):
    engine, ended = ThreadedEngine(records.load(TABLE, LOGISTIC.domain), LOGISTIC, threads=3), []

    def fails(part, *asked):
        ended.append(part)
        if part is engine._parts[1]:
            raise MemoryError
        return np.zeros(CHAINS, np.int64)

    monkeypatch.setattr(LocalEngine, "sum", fails)
    with pytest.raises(MemoryError):
        engine.sum(None)
    assert len(ended) >= len(engine._parts) - len(engine._shares[1]) + 1
    engine.close()


def test_it_tells_nothing_and_is_never_serialised():
    engine = ThreadedEngine(records.load(TABLE, LOGISTIC.domain), LOGISTIC)
    assert repr(engine) == "<ThreadedEngine closed>"
    with pytest.raises(TypeError, match="never serialised"):
        pickle.dumps(engine)
    engine.close()
    gc.collect()
    with pytest.raises(sf.errors.InvalidInput, match="closed"):
        engine.sum(PilotSum("gradient", np.zeros(4), np.eye(4), np.zeros(4), 1.0, 2.0**-40))
