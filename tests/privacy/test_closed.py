"""Errors, reprs and files are releases too: a planted value must never be seen outside the vault."""

import copy
import importlib
import json
import logging
import pickle
import pkgutil

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest

import sfumato as sf
import sfumato.vault as vault_package
from sfumato.errors import InvalidData, InvalidInput, SfumatoError
from sfumato.study.target import make_study
from sfumato.vault import records
from sfumato.vault.engine import LocalEngine
from sfumato.vault.ledger import Ledger
from sfumato.vault.vault import Vault

CANARY = 7.312345678
DOMAIN = {"x": sf.Interval(0, 1), "y": sf.Binary()}


def model(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=b * x), obs=y)


def table(**changes):
    base = {"x": np.linspace(0, 1, 20), "y": np.arange(20) % 2}
    return base | changes


def bad_tables():
    x = np.linspace(0, 1, 20)
    outside, missing, infinite = x.copy(), x.copy(), x.copy()
    outside[3], missing[3], infinite[3] = CANARY, np.nan, np.inf
    yield "outside", table(x=outside)
    yield "missing value", table(x=missing)
    yield "infinite", table(x=infinite)
    yield "text", table(x=np.array([f"secret-{CANARY}"] * 20))
    yield "text among numbers", pd.DataFrame({"x": [f"secret-{CANARY}", *([0.5] * 19)], "y": np.arange(20) % 2})
    yield "fraction in binary", table(y=np.full(20, CANARY))
    yield "wrong shape", table(x=np.full((20, 3), CANARY))
    yield "lengths differ", table(x=np.linspace(0, 1, 19))
    yield "missing column", {"x": x}
    yield "extra column", table(z=x)
    yield "ragged", {"x": [[CANARY], [0.1, 0.2]], "y": [0, 1]}
    yield "ragged cells", pd.DataFrame({"x": [[CANARY], [0.1, 0.2]], "y": [0, 1]})
    yield "column twice", pd.DataFrame([[0.5, CANARY, 0], [0.5, CANARY, 1]], columns=["x", "x", "y"])
    yield "one record", {"x": np.array([0.5]), "y": np.array([1])}
    yield "empty", {"x": np.array([]), "y": np.array([])}
    yield "not a table", CANARY


@pytest.mark.parametrize(("name", "data"), list(bad_tables()), ids=lambda v: v if isinstance(v, str) else "")
def test_a_bad_table_is_refused_without_quoting_it(name, data):
    with pytest.raises(InvalidData) as caught:
        records.load(data, DOMAIN)
    assert str(CANARY)[:5] not in str(caught.value)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_clamping_moves_records_to_the_nearest_point_and_still_refuses_missing_ones():
    x = np.linspace(0, 1, 20)
    x[3], x[4] = CANARY, -np.inf
    loaded = records.load(table(x=x), DOMAIN, outside="clamp")
    assert loaded.columns["x"][3:5].tolist() == [1.0, 0.0]
    x[5] = np.nan
    with pytest.raises(InvalidData, match="missing values"):
        records.load(table(x=x), DOMAIN, outside="clamp")


def test_files_are_read_like_arrays(tmp_path):
    frame = pd.DataFrame({"x": np.linspace(0, 1, 20), "y": np.arange(20) % 2})
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_csv(tmp_path / "t.csv", index=False)
    for data in (frame, tmp_path / "t.parquet", str(tmp_path / "t.csv")):
        loaded = records.load(data, DOMAIN)
        assert loaded.n == 20
        assert np.allclose(loaded.columns["x"], frame["x"])
        assert loaded.columns["y"].dtype == np.int8


def test_vector_columns_are_gathered_from_named_columns(tmp_path):
    frame = pd.DataFrame({"a": np.linspace(0, 1, 20), "b": np.linspace(1, 0, 20), "y": np.arange(20) % 2})
    domain = {"x": sf.Box(0, 1, shape=(2,)), "y": sf.Binary()}
    frame.to_parquet(tmp_path / "t.parquet")
    for data in (frame, tmp_path / "t.parquet"):
        loaded = records.load(data, domain, columns={"x": ["a", "b"]})
        assert np.allclose(loaded.columns["x"], frame[["a", "b"]])


def test_other_columns_of_a_table_are_not_read(tmp_path):
    """A real table has many columns. Those that the domain does not name are ignored, whatever is in them."""
    other = [f"secret-{CANARY}", "", *["x"] * 18]
    frame = pd.DataFrame({"name": other, "x": np.linspace(0, 1, 20), "y": np.arange(20) % 2, "z": np.full(20, np.nan)})
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_csv(tmp_path / "t.csv", index=False)
    for data in (frame, tmp_path / "t.parquet", tmp_path / "t.csv"):
        loaded = records.load(data, DOMAIN)
        assert sorted(loaded.columns) == ["x", "y"]
        assert np.allclose(loaded.columns["x"], frame["x"])


def test_only_the_columns_wanted_are_taken_from_a_frame():
    class Frame:
        columns = ("x", "y", "z")

        def to_numpy(self):
            raise AssertionError

        def __getitem__(self, name):
            assert name != "z"
            return table()[name]

    assert records.load(Frame(), DOMAIN).n == 20


def test_a_dict_has_the_columns_of_the_domain_and_no_others_unless_it_is_said_which():
    data = table(z=np.zeros(20), yes=np.arange(20) % 2)
    with pytest.raises(InvalidData, match=r"no others, got \['z', 'yes'\]"):
        records.load(data, DOMAIN)
    loaded = records.load(data, DOMAIN, columns={"y": "yes"})
    assert sorted(loaded.columns) == ["x", "y"]


def test_a_vector_is_found_in_lists_and_in_numbered_columns(tmp_path):
    x = np.random.default_rng(0).random((20, 2))
    domain = {"x": sf.Box(0, 1, shape=(2,))}
    frame = pd.DataFrame({"x": x.tolist()})
    frame.to_parquet(tmp_path / "t.parquet")
    for data in (frame, tmp_path / "t.parquet", {"x": x}, {"x_0": x[:, 0], "x_1": x[:, 1]}):
        assert np.array_equal(records.load(data, domain).columns["x"], x)


@pytest.mark.parametrize(
    "lists",
    [[[0.0], [0.2, 0.4, 0.6], [1.0, 1.0]], [[0.0, 1.0], None, [0.1, 0.2, 0.3, 0.4]], [[0.0, 1.0], None]],
    ids=str,
)
def test_one_records_values_never_end_up_in_another_record(tmp_path, lists):
    """Lists of different lengths, laid end to end, can have the right length all together."""
    pd.DataFrame({"x": lists}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(InvalidData, match="same number of values"):
        records.load(tmp_path / "t.parquet", {"x": sf.Box(0, 1, shape=(2,))})


@pytest.mark.parametrize(
    "text", ["y\n1\n\n0\n1\n", "y\r\n1\r\n0\r\n\r\n", 'y\n1\n""\n0\n'], ids=["blank", "at the end", "quoted"]
)
def test_a_blank_line_in_a_table_of_one_column_is_a_missing_value(tmp_path, text):
    (tmp_path / "t.csv").write_text(text, newline="")
    with pytest.raises(InvalidData, match="missing values"):
        records.load(tmp_path / "t.csv", {"y": sf.Binary()})


def test_a_blank_line_between_records_of_several_columns_is_no_record(tmp_path):
    (tmp_path / "t.csv").write_text("x,y\n0.5,1\n\n0.25,0\n\n")
    assert records.load(tmp_path / "t.csv", DOMAIN).n == 2


def test_a_record_at_a_bound_that_float32_cannot_hold_is_kept_inside_it(tmp_path):
    frame = pd.DataFrame({"x": np.array([0.1, 0.05, 0.0], np.float32)})
    frame.to_parquet(tmp_path / "t.parquet")
    for data in ({"x": frame["x"].to_numpy()}, tmp_path / "t.parquet"):
        for outside in ("refuse", "clamp"):
            column = records.load(data, {"x": sf.Interval(0, 0.1)}, outside=outside).columns["x"]
            assert column.dtype == np.float32
            assert column.astype(np.float64).max() <= 0.1
            assert np.abs(column - frame["x"]).max() < 1e-8


@pytest.mark.parametrize("name", ["t.parquet", "t.csv", "t.txt", "t.weird"])
def test_broken_files_are_refused(tmp_path, name):
    path = tmp_path / name
    for body in (b"", f"x,y\n{CANARY},secret\n\x00\xff".encode("latin-1")):
        path.write_bytes(body)
        with pytest.raises(InvalidData) as caught:
            records.load(path, DOMAIN)
        assert str(CANARY) not in str(caught.value)
    with pytest.raises(InvalidData, match="no data file"):
        records.load(tmp_path / "absent.parquet", DOMAIN)


@pytest.mark.parametrize("precision", ["float16", "double", None])
def test_records_are_evaluated_in_a_precision_that_a_statement_can_name(precision):
    with pytest.raises(InvalidInput, match="precision must be one of"):
        LocalEngine(records.load(table(), DOMAIN), make_study(sf.families.Bernoulli()), precision=precision)


def test_nothing_of_the_vault_can_be_printed_copied_or_pickled():
    study = make_study(model, DOMAIN)
    loaded = records.load(table(), DOMAIN)
    with Ledger.in_memory(10**6) as ledger:
        vault = Vault(loaded, study, ledger.account("a", 10**6))
        assert repr(vault) == "<Vault closed>"
        assert repr(loaded) == "<Records closed>"
        with jax.enable_x64(True):
            rows = loaded.on_device()
        assert repr(rows) == "<Rows closed>"  # a traceback with local variables would show it
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            for thing in (vault, loaded, rows, {"table": loaded}, [rows]):
                if not (attempt is copy.copy and isinstance(thing, dict | list)):  # that copies the dict alone
                    with pytest.raises((TypeError, SfumatoError), match="never serialised"):
                        attempt(thing)


PUBLIC = """
blocks.Evaluation engine.Engine engine.Query gaussian._Envelope
gaussian.ExactSource identity.Digested lattice.Box lattice.Clamp ledger.account.Account ledger.account.Block
ledger.account.Level ledger.answers.Answer ledger.book.AccountState ledger.book.Ledger ledger.chain.Head ledger.chain.Row
ledger.journal._Known ledger.journal.Journal ledger.journal.JournalledAccount ledger.store.Store ledger.verify.Verification
ledger.verify._Account ledger.verify._Block ledger.verify._Batch ledger.verify._Replay noise.Source noise.OpenDPSource
queries.base.Answer queries.base.Rounds queries.linear.Corrections queries.linear.LangevinSource queries.linear.Linear
queries.linear.WalkSource queries.ratio.CoveredRatioSum queries.ratio.RatioSource queries.ratio.RatioSum
queries.remainder.RemainderSource queries.remainder.RemainderSum queries.vector.PilotSum
queries.vector.ScoreSum queries.vector.StatisticSum
sealed.book.SealBook sealed.identity._Primitives sealed.session.Agreement purse.Purse
ray_table.RayTable shards.Piece shards.Shard statistics.Terms statistics.Shape vault.Chunk vault.LoopSource
"""
"""Classes of the vault that hold questions, prices, what was released, or nothing: no record, no exact sum, no unused noise."""


def test_every_class_of_the_vault_is_closed_or_known_to_be_public():
    """Whoever adds one has to say which it is."""
    found = []
    for module in pkgutil.walk_packages(vault_package.__path__, f"{vault_package.__name__}."):
        for name, kind in vars(importlib.import_module(module.name)).items():
            if isinstance(kind, type) and kind.__module__ == module.name and kind.__reduce__ is object.__reduce__:
                found.append(f"{module.name.removeprefix('sfumato.vault.')}.{name}")
    assert sorted(found) == sorted(PUBLIC.split())


def test_a_run_and_its_checkpoint_hold_no_record(tmp_path, caplog):
    """Canary records: no file that a run writes, and no log line, contains them or the exact sum."""
    rng = np.random.default_rng(0)
    x = rng.random(3000)
    x[17] = CANARY / 10
    y = (rng.random(3000) < 0.5).astype(int)
    with caplog.at_level(logging.DEBUG):
        run = sf.sample(
            model, {"x": x, "y": y}, domain=DOMAIN, epsilon=5, delta=1e-5, chains=2, seed=0, force=True,
            max_iterations=200, checkpoint=tmp_path / "c",
        )  # fmt: skip
    run.save(tmp_path / "run.npz")
    needle_text, needle_bytes = str(CANARY / 10)[:9], np.float64(CANARY / 10).tobytes()
    for path in [p for p in tmp_path.rglob("*") if p.is_file()]:
        body = path.read_bytes()
        assert needle_text.encode() not in body, path
        assert needle_bytes not in body, path
    assert needle_text not in caplog.text
    assert needle_text not in json.dumps({k: str(v) for k, v in run.planned.items()})
