"""A large table is planned for before it is read, and what was compiled is dropped between stages: nothing else changes."""

import sys
from pathlib import Path

import jax
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import sfumato as sf
from sfumato.errors import InvalidData, InvalidInput, PlanTooWeak
from sfumato.run import parties
from sfumato.run import sampling as sampler
from sfumato.vault import records, vault
from sfumato.vault.memory import release_memory

FAMILY = sf.families.Bernoulli()
N = 400


@pytest.fixture
def calls(monkeypatch):
    """The order in which a run plans and reads, and drops what was compiled: a run of the real thing is below."""
    seen = []

    def noted(module, name, real):
        monkeypatch.setattr(module, name, lambda *a, **k: (seen.append(name), real(*a, **k))[1])

    for module, name in ((sampler, "make_plan"), (parties, "open_table"), (sampler, "replan")):
        noted(module, name, getattr(module, name))
    for module in (sampler, vault):
        noted(module, "forget_compiled", lambda: None)  # other tests of this process would compile everything again
    return seen


@pytest.fixture
def all_are_large(monkeypatch, calls):
    for module in (records, vault):
        monkeypatch.setattr(module, "LARGE", 1)


def write(path, **columns):
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def run(path, **changes):
    asked = {"epsilon": 1.0, "delta": 1e-5, "seed": 1, "iterations": 20, "force": True, "progress": False}
    return sf.sample(FAMILY, path, **asked | changes)


def test_a_small_file_is_read_first(tmp_path, calls):
    run(write(tmp_path / "a.parquet", y=np.arange(N) % 2))
    assert calls == ["open_table", "make_plan", "replan"]


def test_a_large_file_is_planned_for_first_and_once(tmp_path, calls, all_are_large):
    drawn = run(write(tmp_path / "a.parquet", y=np.arange(N) % 2))
    dropped = "forget_compiled"
    assert calls == ["make_plan", dropped, "open_table", dropped, "replan", dropped]
    assert drawn.planned["n"] == N and drawn.iterations > 0


def test_the_plan_is_that_of_the_table_in_memory(tmp_path, all_are_large):
    y = np.arange(N) % 2
    assert run(write(tmp_path / "a.parquet", y=y), pilot_share=0.0).planned == run({"y": y}, pilot_share=0.0).planned


def test_bad_records_are_refused_before_a_weak_plan(tmp_path, all_are_large):
    weak = {"epsilon": 1e-4, "force": False}
    with pytest.raises(InvalidData):
        run(write(tmp_path / "bad.parquet", y=np.full(N, 7)), **weak)
    with pytest.raises(PlanTooWeak):
        run(write(tmp_path / "good.parquet", y=np.arange(N) % 2), **weak)


def test_what_cannot_be_planned_is_said_after_the_records_were_checked(tmp_path, all_are_large):
    with pytest.raises(InvalidData):
        run(write(tmp_path / "bad.parquet", y=np.full(N, 7)), pilot_share=2.0)
    with pytest.raises(InvalidInput, match="pilot_share"):
        run(write(tmp_path / "good.parquet", y=np.arange(N) % 2), pilot_share=2.0)


def test_only_a_large_parquet_file_of_the_domain_is_counted_ahead(tmp_path, monkeypatch):
    path = write(tmp_path / "a.parquet", y=np.arange(N) % 2)
    text = tmp_path / "a.csv"
    text.write_text("y\n0\n1\n")
    broken = tmp_path / "b.parquet"
    broken.write_bytes(b"no table")
    assert records.rows_ahead(path, FAMILY.domain) is None
    monkeypatch.setattr(records, "LARGE", N)
    assert records.rows_ahead(str(path), FAMILY.domain) == N
    others = [write(tmp_path / "z.parquet", z=np.arange(N)), text, broken, tmp_path / "none.parquet", {"y": [0, 1]}, 7]
    assert [records.rows_ahead(other, FAMILY.domain) for other in others] == [None] * len(others)


def test_a_run_that_really_drops_everything_between_its_stages(tmp_path, monkeypatch):
    """And a function of the caller's that was compiled before works afterwards."""
    double = jax.jit(lambda x: 2 * x)
    assert double(3) == 6
    for module in (records, vault):
        monkeypatch.setattr(module, "LARGE", 1)
    drawn = run(write(tmp_path / "a.parquet", y=np.arange(N) % 2), epsilon=8.0)
    assert drawn.iterations > 0 and 0.3 < drawn.draws["p"].mean() < 0.7
    assert double(4) == 8


@pytest.mark.skipif(sys.platform != "linux", reason="only there are pages of code let go of")
def test_code_is_let_go_of_and_runs_on_when_it_is_needed():
    def file_pages():
        return next(
            int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if "RssFile" in line
        )

    jax.jit(lambda x: x @ x.T)(np.eye(7))
    before = file_pages()
    release_memory(code=True)
    assert file_pages() < 0.7 * before
    assert float(jax.jit(lambda x: (x @ x.T).sum())(np.eye(11))) == 11
