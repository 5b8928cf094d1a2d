"""Errors, reprs and files are releases too: a planted value must never be seen outside the vault."""

import copy
import json
import logging
import pickle

import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest

import sfumato as sf
from sfumato.errors import InvalidData, SfumatoError
from sfumato.study import make_study
from sfumato.vault import records
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


def test_nothing_of_the_vault_can_be_printed_copied_or_pickled():
    study = make_study(model, DOMAIN)
    loaded = records.load(table(), DOMAIN)
    with Ledger.in_memory(10**6) as ledger:
        vault = Vault(loaded, study.model, study.domain, study.bounds, ledger.account("a", 10**6))
        assert repr(vault) == "<Vault sealed>"
        assert repr(loaded) == "<Records sealed>"
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises((TypeError, SfumatoError)):
                attempt(vault)


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
    assert needle_text not in json.dumps({k: str(v) for k, v in run.plan.items()})
