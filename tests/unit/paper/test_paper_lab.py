"""The finite-state laboratory: Propositions 1 to 3 and Lemma 1, computed entry by entry."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato import paper
from sfumato.errors import InvalidInput
from sfumato.paper import lab


def random_chain(seed, size=9):
    """A target and a lopsided proposal: nothing symmetric to lean on."""
    rng = np.random.default_rng(seed)
    q = rng.gamma(0.7, size=(size, size)) + 1e-3
    return lab.target(3 * rng.normal(size=size)), q / q.sum(axis=1, keepdims=True), rng


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), sigma=st.floats(0, 8))
def test_reversible_peskun_minorised(seed, sigma):
    pi, q, _ = random_chain(seed)
    exact, noisy = lab.metropolis(pi, q), lab.penalty(pi, q, sigma)
    np.testing.assert_allclose(noisy.sum(axis=1), 1, atol=1e-13)
    assert lab.imbalance(pi, noisy) < 1e-12
    assert lab.invariance_error(pi, noisy) < 1e-12
    assert lab.peskun_excess(noisy, exact) <= 1e-15
    for kind in ("printed", "proof", "sharp"):
        kappa = paper.kappa(sigma**2, kind)
        assert np.all(noisy >= kappa * exact - 1e-15), "T_sigma >= kappa T, diagonal included"
        bound = paper.rejection_bound(np.clip(lab.rejection(exact, q), 0, 1), sigma**2, kind)
        assert np.all(lab.rejection(noisy, q) <= bound + 1e-12)
    assert lab.minorisation(noisy) >= paper.kappa(sigma**2) * lab.minorisation(exact) - 1e-15


def test_noise_may_differ_between_pairs_if_symmetric():
    pi, q, rng = random_chain(1)
    sigma = rng.uniform(0, 3, size=q.shape)
    symmetric = np.maximum(sigma, sigma.T)
    noisy = lab.penalty(pi, q, symmetric)
    assert lab.imbalance(pi, noisy) < 1e-12
    assert lab.minorisation_ratio(noisy, lab.metropolis(pi, q)) >= paper.kappa(symmetric.max() ** 2)
    with pytest.raises(InvalidInput, match="symmetric"):
        lab.penalty(pi, q, sigma)


def test_saboteur_without_the_penalty_is_caught():
    """Accept with min(1, exp(noisy ratio)), no penalty: the laboratory must see that balance is gone."""
    pi, q, _ = random_chain(2)
    # Without -sigma^2/2 the expected acceptance is alpha_sigma evaluated at lambda + sigma^2/2.
    moves = q * paper.expected_acceptance(lab.log_ratios(pi, q) + 0.5, 1.0)
    np.fill_diagonal(moves, 0)
    sabotaged = moves + np.diag(1 - moves.sum(axis=1))
    assert lab.imbalance(pi, sabotaged) > 1e-3


def test_the_sharp_kappa_is_attained_on_a_flat_target():
    pi, q = lab.target(np.zeros(7)), lab.walk(7, 1)
    for sigma in (0.3, 1.0, 2.4):
        off = ~np.eye(7, dtype=bool)
        exact, noisy = lab.metropolis(pi, q), lab.penalty(pi, q, sigma)
        ratios = noisy[off & (exact > 0)] / exact[off & (exact > 0)]
        np.testing.assert_allclose(ratios, paper.kappa(sigma**2), rtol=1e-13)
        assert lab.minorisation_ratio(noisy, exact) == pytest.approx(paper.kappa(sigma**2), rel=1e-13)


def test_more_noise_is_slower_in_every_sense():
    pi, q = lab.normal_target(31, 5.0), lab.walk(31, 6)
    chains = [lab.penalty(pi, q, sigma) for sigma in (0, 0.5, 1.0, 2.0, 4.0)]
    for faster, slower in zip(chains, chains[1:], strict=False):
        assert lab.peskun_excess(slower, faster) <= 0
        assert lab.efficiency(pi, slower) < lab.efficiency(pi, faster)
        assert lab.asymptotic_variance(pi, slower, np.arange(31)) > lab.asymptotic_variance(pi, faster, np.arange(31))
        assert 0 < lab.spectral_gap(pi, slower) < lab.spectral_gap(pi, faster)


@pytest.mark.parametrize("sigma", [0.0, 1.0, 2.4])
def test_uniform_ergodicity_at_the_rate_of_prop2(sigma):
    pi = lab.normal_target(25, 4.0)
    q = lab.independent(lab.normal_target(25, 6.0))
    exact, noisy = lab.metropolis(pi, q), lab.penalty(pi, q, sigma)
    rate = 1 - paper.kappa(sigma**2) * lab.minorisation(exact)
    distance = lab.total_variation(pi, noisy, 40)
    assert np.all(distance <= rate ** np.arange(41) + 1e-12)
    assert distance[-1] < distance[0]
    assert lab.total_variation(pi, noisy, 5, start=3).shape == (6,)


def test_geometric_ergodicity_survives():
    """Prop. 3 on a finite space: a gap stays a gap, shrunk at most by the sharp kappa."""
    for seed in range(5):
        pi, q, _ = random_chain(seed)
        exact, noisy = lab.metropolis(pi, q), lab.penalty(pi, q, 1.5)
        right = [1 - np.sort(np.linalg.eigvals(t).real)[-2] for t in (exact, noisy)]
        assert right[1] >= paper.kappa(1.5**2) * right[0] - 1e-12
        assert lab.spectral_gap(pi, noisy) > 0


def test_asymptotic_variance_of_independent_draws():
    pi = lab.normal_target(11, 2.0)
    perfect = lab.independent(pi)
    assert lab.efficiency(pi, lab.metropolis(pi, perfect)) == pytest.approx(1.0)
    assert lab.efficiency(pi, (perfect + np.eye(11)) / 2) == pytest.approx(1 / 3)


def test_guided_walk_is_exact_and_worth_it():
    pi = lab.normal_target(121, 12.0)
    lifted, position = np.tile(pi, 2) / 2, np.tile(np.arange(121.0), 2)
    weights = np.array([0, 0, 1.0, 1.0, 1.0])
    chain = lab.guided(pi, weights, 1.7)
    np.testing.assert_allclose(chain.sum(axis=1), 1, atol=1e-13)
    assert lab.invariance_error(lifted, chain) < 1e-15
    assert lab.imbalance(lifted, chain) > 1e-6, "a lifted chain is not reversible"
    plain = lab.penalty(pi, lab.steps(121, weights), 1.7)
    assert lab.efficiency(lifted, chain, position) > 1.4 * lab.efficiency(pi, plain)


def test_the_planner_figures_of_small_steps():
    """Share of the one-shot limit, sigma^2 eff / s^2: 0.07 at s = sigma = 2.4, 0.22 at s = 1, towards 0.33 below."""
    pi = lab.normal_target(161, 16.0)

    def share(s, sigma):
        lengths = np.exp(-0.5 * (np.arange(140) / (16 * s)) ** 2)
        lengths[0] /= 2  # a step of zero has one way to happen, the others two
        return lab.efficiency(pi, lab.penalty(pi, lab.steps(161, lengths), sigma)) * (sigma / s) ** 2

    assert share(2.4, 1.0) == pytest.approx(0.033, abs=0.003)
    assert share(2.4, 2.4) == pytest.approx(0.071, abs=0.003)
    assert share(1.0, 2.4) == pytest.approx(0.22, abs=0.01)
    assert share(0.25, 2.4) == pytest.approx(0.325, abs=0.01)


@pytest.mark.parametrize(
    "call",
    [
        lambda: lab.target([0.0, -np.inf]),
        lambda: lab.steps(5, [-1.0, 2.0]),
        lambda: lab.penalty([0.5, 0.6], np.eye(2), 1.0),
        lambda: lab.penalty([0.5, 0.5], np.ones((2, 2)), 1.0),
        lambda: lab.penalty([0.5, 0.5], np.eye(3), 1.0),
    ],
)
def test_refusals(call):
    with pytest.raises(InvalidInput):
        call()
