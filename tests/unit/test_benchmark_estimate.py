"""The benchmark of estimates: its releases, and what it counts as a failure."""

import sys
from pathlib import Path

import jax
import numpy as np
import pytest

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture(scope="module")
def bench():
    """The script as a module."""
    sys.path.insert(0, BENCHMARKS)
    try:
        import estimate

        yield estimate
    finally:
        sys.path.remove(BENCHMARKS)


@pytest.fixture(scope="module")
def records(bench):
    study = bench.study_of("logistic", 3)
    cell = bench.Cell("logistic", 3, 50, 1.0, "uniform")
    with jax.enable_x64(True):
        yield study, bench.table_of(study, cell, np.zeros(3), np.random.default_rng(0))


def asked(bench, records, owners, cap, sigma=4.0, times=400):
    release = bench.Release(*records, np.random.default_rng(1), cap=cap, owners=owners)
    with jax.enable_x64(True):
        answers = [release("gradient", np.zeros(3), np.eye(3), 10.0, sigma, np.zeros(3)) for _ in range(times)]
        exact = bench.sums(records[0].model, "gradient")(records[1], np.zeros(3), np.eye(3), 10.0, np.zeros(3))
    return release, np.array(answers) - np.asarray(exact)


@pytest.mark.parametrize("owners", [1, 3])
def test_all_owners_noise_together_is_what_was_asked_for_and_each_pays_for_its_own(bench, records, owners):
    release, noise = asked(bench, records, owners, cap=np.inf)
    assert noise.std() == pytest.approx(4.0, rel=0.1)
    assert release.spent == pytest.approx(400 * owners * (20.0 / 4.0) ** 2)


def test_an_owner_that_would_pass_its_budget_ends_the_benchmark(bench, records):
    with pytest.raises(RuntimeError, match="may spend"):
        asked(bench, records, 3, cap=2.9 * 25.0, times=1)
    asked(bench, records, 1, cap=2.9 * 25.0, times=1)


def test_a_cell_that_does_not_cover_or_is_too_far_off_is_told(bench, capsys):
    def row(name, covered, limit=0.1, over=1.0):
        return bench.Row(name, 400, covered, 0.005, limit, over, 0.5, {"good": 400}, {"good": covered}, "")

    assert not bench.missed([row("a", 0.9), row("b", 0.9, 5.0, 1.2)])
    assert bench.missed([row("narrow", 0.8), row("wide", 0.98)])
    assert bench.missed([row("far", 0.9, 5.0, 1.4)])
    said = capsys.readouterr().out
    assert "narrow, wide" in said and "far (1.40)" in said
