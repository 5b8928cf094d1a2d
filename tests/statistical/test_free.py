"""Free moves leave the posterior as it is: pair by pair without sampling, and in chains on a real vault."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sfumato as sf
from helpers import CAUGHT, FALSE_ALARM
from sfumato.kernel import FreeMoves, Guided, PublicStream, ReferenceLangevin, free
from sfumato.study.target import make_study
from statistical.harness import moment_p_values, run_chains

N, CHAINS, STEPS = 12, 48, 700


def hierarchy(y):
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    effect = numpyro.sample("effect", dist.Normal(0.0, spread))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=effect), obs=y)


STUDY = make_study(hierarchy, {"y": sf.Binary()})
DATA = {"y": (np.arange(N) < 9).astype(int)}
EFFECT, SPREAD = (STUDY.model.coordinate_names().index(name) for name in ("effect", "spread"))
LOG_U = np.log((np.arange(20_000) + 0.5) / 20_000)


def theta_of(effect, spread):
    """Points of theta, whatever the order of its coordinates."""
    out = np.zeros((*np.shape(spread), 2))
    out[..., EFFECT], out[..., SPREAD] = effect, spread
    return out


def flow_gap(log_prior, lengths=(0.3, 1.1, 4.0)):
    """Largest gap between the flows a -> b and b -> a along the free direction, the deciding uniform integrated out."""
    moves = FreeMoves(theta_of(0.0, np.array(1.0))[:, None])
    with jax.enable_x64(True):
        density = jax.jit(jax.vmap(STUDY.model.log_prior))

        @jax.jit
        @jax.vmap
        def rate(theta, length):
            drawn = jnp.stack([jnp.full(len(LOG_U), length), jnp.asarray(LOG_U)], axis=-1)
            here = log_prior(theta)
            after = jax.vmap(lambda row: moves.move(log_prior, theta, here, row[None])[0])(drawn)
            return jnp.mean(jnp.any(after != theta, axis=-1))

        spread, length = (part.ravel() for part in np.meshgrid(np.linspace(-2, 1, 7), lengths))
        a, b = (theta_of(0.6, at) for at in (spread, spread + length))
        there = np.exp(density(a)) * rate(a, length)
        back = np.exp(density(b)) * rate(b, -length)
        return float(np.abs(there - back).max() / np.max(there))


def test_a_free_move_is_reversible():
    assert flow_gap(STUDY.model.log_prior) < 1e-4


def test_one_that_looks_at_half_the_density_is_not():
    assert flow_gap(lambda theta: STUDY.model.log_prior(theta) / 2) > 0.05


# -- chains -------------------------------------------------------------------------------------------------------------


def grid():
    """Points and probabilities of each coordinate under the posterior, by quadrature in both."""
    effect, spread = np.linspace(-4, 7, 401), np.linspace(-9, 3, 601)
    with jax.enable_x64(True):
        points = jnp.asarray(theta_of(*np.meshgrid(effect, spread, indexing="ij")).reshape(-1, 2))
        density = jax.jit(lambda at: jax.lax.map(STUDY.model.log_prior, at, batch_size=4096))(points)
    likelihood = 9 * effect - N * np.logaddexp(0, effect)
    log = np.asarray(density).reshape(401, 601) + likelihood[:, None]
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    return {EFFECT: (effect, weight.sum(1)), SPREAD: (spread, weight.sum(0))}


MARGINALS = grid()


def langevin(moves):
    root = np.diag(np.where(np.arange(2) == EFFECT, 0.6, 0.7))
    information = np.diag(np.where(np.arange(2) == EFFECT, 2.8, 0.0))
    return ReferenceLangevin(
        root, 0.6, STUDY.model.log_prior, theta_of(0.8, np.array(-0.2)), information, 12.0, free=moves
    )


def p_values(kernel, steps=STEPS):
    draws = run_chains(STUDY, DATA, kernel, sigma=0.5, chains=CHAINS, steps=steps, start=theta_of(0.8, np.array(-0.2)))
    return [p for axis, marginal in MARGINALS.items() for p in moment_p_values(draws[steps // 5 :, :, axis], *marginal)]


MOVES = FreeMoves(theta_of(0.0, np.array(0.7))[:, None])


@pytest.mark.parametrize(
    "kernel", [langevin(MOVES), Guided(np.diag([0.7, 0.7]), 1.0, free=MOVES)], ids=["langevin", "guided"]
)
def test_chains_with_free_moves_have_the_posterior(kernel):
    assert min(p_values(kernel)) > FALSE_ALARM / 16


def test_chains_whose_free_moves_are_always_taken_have_not(monkeypatch):
    real = FreeMoves.draw
    monkeypatch.setattr(FreeMoves, "draw", lambda self, rng, size: real(self, rng, size) - [0.0, 1e6])
    assert min(p_values(langevin(MOVES), 300)) < CAUGHT


def test_chains_whose_free_moves_are_longer_upwards_have_not(monkeypatch):
    """A length that is not symmetric: the proposals of a move and of its reverse differ, and nothing corrects it."""
    real = FreeMoves.draw
    monkeypatch.setattr(FreeMoves, "draw", lambda self, rng, size: real(self, rng, size) + [0.5, 0.0])
    assert min(p_values(langevin(MOVES), 300)) < CAUGHT


# -- the public stream ----------------------------------------------------------------------------------------------------


def test_a_resumed_stream_goes_on_where_it_stopped_and_walks_draw_what_they_drew_before():
    kernel = Guided(np.eye(2), 1.0, free=MOVES)
    whole = PublicStream(3, 2).peek(kernel, 40)
    assert whole.free.shape == (40, 2, free.SUBSTEPS, 2)
    later = PublicStream(3, 2)
    later.peek(kernel, 5)
    later.consume(5)
    again = PublicStream(3, 2)
    again.skip(kernel, 17)
    for stream, start in ((later, 5), (again, 17)):
        assert np.array_equal(stream.peek(kernel, 20).free, whole.free[start : start + 20])
    without = PublicStream(3, 2).peek(replace(kernel, free=None), 40)
    assert all(np.array_equal(one, other) for one, other in zip(without[:4], whole[:4], strict=True))
