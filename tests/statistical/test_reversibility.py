"""Detailed balance without sampling: integrate the noise out of the real kernel and compare both directions.

alpha(lambda) = E[min(1, exp(lambda + N(0, s^2) - s^2/2))] must satisfy alpha(lambda) = e^lambda alpha(-lambda).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sfumato.kernel import Componentwise, Draw, Guided, RandomWalk, State, Streams, log_alpha
from sfumato.paper import expected_acceptance

CASES = [(-3.0, 0.1), (-0.1, 1.0), (0.7, 1.0), (2.0, 2.5), (-40.0, 3.0)]
NOISE = np.linspace(-12, 12, 24_001)
WEIGHT = np.exp(-(NOISE**2) / 2) / np.exp(-(NOISE**2) / 2).sum()


def mean_alpha(step, lam, sigma):
    with jax.enable_x64(True):
        alpha = jnp.exp(step(lam + sigma * jnp.asarray(NOISE), 0.0, 0.0, sigma))
    return float(np.asarray(alpha) @ WEIGHT)


def imbalance(step):
    return max(abs(mean_alpha(step, lam, s) - np.exp(lam) * mean_alpha(step, -lam, s)) for lam, s in CASES)


def test_the_penalty_decision_is_reversible():
    assert imbalance(log_alpha) < 1e-6


def test_the_penalty_decision_has_the_papers_expected_acceptance():
    for lam, sigma in CASES:
        assert mean_alpha(log_alpha, lam, sigma) == pytest.approx(float(expected_acceptance(lam, sigma)), abs=1e-6)


@pytest.mark.parametrize("factor", [0.0, 0.8, 1.2, 2.0])
def test_a_wrong_penalty_is_not(factor):
    def sabotaged(d_n_noisy, prior, q, sigma):
        return jnp.minimum(0.0, d_n_noisy + prior + q - factor * sigma**2 / 2)

    assert imbalance(sabotaged) > 0.01


def flow(pi, sigma_of, a, b):
    """Probability flow from a to b for a symmetric proposal and noise sigma_of(a, b), noise integrated out."""
    return pi(a) * mean_alpha(log_alpha, float(np.log(pi(b) / pi(a))), sigma_of(a, b))


def test_sigma_may_depend_on_the_pair_if_symmetric_and_not_otherwise():
    def pi(x):
        return np.exp(-(x**2) / 2)

    pairs = [(0.0, 1.0), (-0.5, 2.0), (0.3, 0.4)]

    def worst(sigma_of):
        return max(abs(flow(pi, sigma_of, a, b) / flow(pi, sigma_of, b, a) - 1) for a, b in pairs)

    assert worst(lambda a, b: 1 + abs(a - b)) < 1e-6
    assert worst(lambda a, b: 1 + abs(a)) > 0.05


def states(theta, direction):
    return State(jnp.asarray(theta), jnp.zeros(()), jnp.asarray(direction))


@pytest.mark.parametrize("kernel", [RandomWalk, Componentwise])
def test_walks_are_symmetric_moves_and_their_mirror_images(kernel):
    """A draw and its negative undo each other, and both are equally likely: q is symmetric."""
    with jax.enable_x64(True):
        walk = kernel(np.array([[1.0, 0.0], [0.4, 0.7]]), 0.5)
        draw = walk.draw(Streams(np.random.SeedSequence(3)), 1)
        one = Draw(*(jnp.asarray(part[0]) for part in draw if part is not None))
        there = walk.propose(states([0.2, -0.1], [1.0, 1.0]), one)
        back = walk.propose(states(there, [1.0, 1.0]), one._replace(normal=-one.normal, length=-one.length))
        assert np.allclose(back, [0.2, -0.1], atol=1e-15)


def test_the_guided_walk_turned_round_goes_back():
    with jax.enable_x64(True):
        walk = Guided(np.array([[1.0, 0.0], [0.4, 0.7]]), 0.5)
        one = Draw(jnp.zeros(0), jnp.asarray(1), jnp.asarray(1.1), jnp.asarray(-0.1))
        start = states([0.2, -0.1], [1.0, -1.0])
        there = walk.propose(start, one)
        moved = walk.update(start, there, jnp.zeros(()), jnp.asarray(True), one)
        stayed = walk.update(start, there, jnp.zeros(()), jnp.asarray(False), one)
        assert moved.direction.tolist() == [1.0, -1.0]
        assert stayed.direction.tolist() == [1.0, 1.0]
        assert np.allclose(stayed.theta, start.theta)
        turned = moved._replace(direction=-moved.direction)
        assert np.allclose(walk.propose(turned, one), [0.2, -0.1], atol=1e-15)


def guided_imbalance(flip: bool):
    """Invariance of the lifted chain on a ring of five states, noise integrated out: pi x uniform must be kept."""
    log_pi, size, sigma = np.array([0.0, 0.7, -0.4, 1.1, 0.2]), 5, 1.3
    pi = np.exp(log_pi) / np.exp(log_pi).sum()
    transition = np.zeros((2 * size, 2 * size))
    for p, sign in enumerate((1, -1)):
        for x in range(size):
            ahead = (x + sign) % size
            alpha = mean_alpha(log_alpha, log_pi[ahead] - log_pi[x], sigma)
            transition[p * size + x, p * size + ahead] += alpha
            transition[p * size + x, (1 - p if flip else p) * size + x] += 1 - alpha
    joint = np.tile(pi, 2) / 2
    return np.abs(joint @ transition - joint).max()


def test_the_lifted_chain_keeps_the_posterior_only_if_rejection_turns_it_round():
    assert guided_imbalance(flip=True) < 1e-6
    assert guided_imbalance(flip=False) > 0.01


def test_truncated_steps_stay_within_the_papers_bound_and_are_symmetric():
    walk = RandomWalk(np.diag([0.5, 2.0]), 1.0, truncate=0.3)
    moves = walk.draw(Streams(np.random.SeedSequence(0)), 20_000).normal * np.array([0.5, 2.0])
    assert np.abs(moves).max() < 0.3
    assert np.abs(moves.mean(0)).max() < 5 * 0.3 / np.sqrt(20_000)
