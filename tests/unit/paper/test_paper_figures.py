"""The figures: all drawn, quickly, from chains whose law is right."""

import time

import numpy as np
import pytest

from sfumato import paper
from sfumato.errors import InvalidInput
from sfumato.paper import figures, simulation


def test_all_figures_are_drawn_in_under_three_minutes(tmp_path):
    start = time.process_time()  # what it costs, however busy the machine is
    paths = figures.draw(tmp_path)
    assert time.process_time() - start < 180
    assert [p.stem for p in paths] == list(figures.FIGURES)
    assert all(p.read_bytes().startswith(b"\x89PNG") and p.stat().st_size < 200_000 for p in paths)


def test_vector_output_and_refusals(tmp_path):
    (path,) = figures.draw(tmp_path, ["kappa"], "svg")
    assert "<svg" in path.read_text(encoding="utf-8")
    with pytest.raises(InvalidInput, match="unknown figure"):
        figures.draw(tmp_path, ["kapa"])
    with pytest.raises(InvalidInput, match="suffix"):
        figures.draw(tmp_path, ["kappa"], "gif")


@pytest.mark.parametrize(
    ("walk", "sigmas"),
    [
        (simulation.Walk(2.0), [1.0]),
        (simulation.Walk(1.0, law="normal"), [1.2, 1.2]),
        (simulation.Walk(1.2, 0.8, guided=True), [1.7]),
    ],
)
def test_simulated_chains_have_the_right_law(walk, sigmas):
    coins = simulation.Coins(20_000, 9_000)
    chains = simulation.run(np.random.default_rng(5), coins, walk, np.array(sigmas), iterations=1500, chains=300)
    efficiency, _ = simulation.measured_efficiency(coins, chains)
    error = coins.scale / np.sqrt(efficiency * chains.theta.size)
    assert abs(chains.theta.mean() - coins.centre) < 5 * error + 0.01 * coins.scale
    assert chains.theta.std() == pytest.approx(coins.scale, rel=0.03)
    total = float(np.sqrt(np.sum(np.square(sigmas))))
    expected = paper.expected_acceptance(chains.log_ratio, total).mean()
    spread = np.sqrt(expected / chains.accepted.size)
    assert abs(chains.accepted.mean() - expected) < 5 * spread
