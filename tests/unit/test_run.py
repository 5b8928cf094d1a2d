"""A run on disk: what was saved comes back, and a file that was damaged is said to be."""

import numpy as np
import pytest

import sfumato as sf
from sfumato.errors import CheckpointError, InvalidInput
from unit.test_report import make_run


@pytest.fixture
def saved(tmp_path):
    run = make_run(steps=5)
    return run, run.save(tmp_path / "r.npz")


def test_a_saved_run_comes_back(saved):
    run, path = saved
    again = sf.load(path)
    assert (again.privacy, again.stop_reason, again.seed) == (run.privacy, run.stop_reason, run.seed)
    assert all(np.array_equal(again.draws[name], run.draws[name]) for name in run.draws)


def test_a_truncated_file_is_no_run(saved):
    _, path = saved
    body = path.read_bytes()
    for size in range(0, len(body), 97):
        path.write_bytes(body[:size])
        with pytest.raises(CheckpointError, match="damaged"):
            sf.load(path)


def test_a_flipped_bit_is_found_or_changes_nothing(saved):
    run, path = saved
    body = path.read_bytes()
    found = 0
    for position in np.random.default_rng(0).choice(len(body), 200, replace=False):
        damaged = bytearray(body)
        damaged[position] ^= 1 << (position % 8)
        path.write_bytes(damaged)
        try:
            again = sf.load(path)
        except CheckpointError:
            found += 1
        else:
            assert again.privacy == run.privacy
            assert all(np.array_equal(again.draws[name], run.draws[name]) for name in run.draws)
    assert found > 100


def test_other_files_are_no_runs(tmp_path):
    np.save(tmp_path / "o.npy", np.arange(3))
    np.savez(tmp_path / "o.npz", a=1)
    np.savez(tmp_path / "h.npz", header=np.array("[]"))
    np.savez(tmp_path / "k.npz", header=np.array('{"format": 1}'))
    (tmp_path / "t.npz").write_text("no archive")
    for name in ("o.npy", "o.npz", "h.npz", "k.npz", "t.npz", "."):
        with pytest.raises(CheckpointError, match=r"not a run that Run\.save wrote"):
            sf.load(tmp_path / name)
    np.savez(tmp_path / "f.npz", header=np.array('{"format": 99}'))
    with pytest.raises(CheckpointError, match="format 99"):
        sf.load(tmp_path / "f.npz")
    with pytest.raises(InvalidInput, match="no saved run"):
        sf.load(tmp_path / "absent.npz")


def test_a_run_without_draws_says_so():
    with pytest.raises(InvalidInput, match=r"needs draws, and this run has none \(budget spent\)"):
        make_run(steps=0).summary()
