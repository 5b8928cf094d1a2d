"""The chain has the right law: against grid posteriors, through the vault, with saboteurs that must be caught.

All tests here share one declared false-alarm rate; a test of m statistics uses its m-th part.
"""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sfumato as sf
from helpers import CAUGHT, FALSE_ALARM
from sfumato.kernel import Componentwise, Guided, RandomWalk, penalty
from sfumato.vault.gaussian import ExactSource
from statistical.harness import grid_posterior, moment_p_values, run_chains, study_of

CHAINS, STEPS, BURN = 64, 6_000, 1_000


def bernoulli(y):
    p = numpyro.sample("p", dist.Beta(2.0, 3.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(probs=p), obs=y)


def poisson(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(0.5 + b * x)), obs=y)


def normal_scale(y):
    s = numpyro.sample("s", dist.HalfNormal(2.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Normal(0.3, s), obs=y)


def student(y):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.StudentT(4.0, m, 0.5), obs=y)


rng = np.random.default_rng(20)
CASES = {
    "bernoulli": (bernoulli, {"y": sf.Binary()}, {"y": (rng.random(60) < 0.3).astype(int)}, -3.5, 2.5, -0.8, 0.28),
    "poisson": (
        poisson,
        {"x": sf.Interval(-1, 1), "y": sf.Integers(0, 6)},
        {"x": rng.uniform(-1, 1, 50), "y": rng.poisson(1.6, 50).clip(0, 6)},
        -1.5,
        1.5,
        0.0,
        0.18,
    ),
    "normal-scale": (
        normal_scale,
        {"y": sf.Interval(-3, 3)},
        {"y": rng.normal(0.3, 0.8, 40).clip(-3, 3)},
        -1,
        0.9,
        -0.2,
        0.11,
    ),
    "student": (student, {"y": sf.Interval(-4, 4)}, {"y": (rng.standard_t(4, 40) / 2).clip(-4, 4)}, -1, 1, 0.0, 0.1),
}
KERNELS = {"random-walk": RandomWalk, "componentwise": Componentwise, "guided": Guided}


def p_values(case: str, kernel: str, sigma: float = 1.3, source=None) -> list[float]:
    model, domain, data, lo, hi, start, scale = CASES[case]
    study = study_of(model, domain)
    draws = run_chains(
        study, data, KERNELS[kernel](np.eye(1) * scale, 1.2), sigma=sigma, chains=CHAINS, steps=STEPS,
        start=np.array([start]), source=source,
    )  # fmt: skip
    points, weight = grid_posterior(study, data, lo, hi)
    return moment_p_values(draws[BURN:, :, 0], points, weight)


# Every likelihood once, every walk at least once: a likelihood does not know which walk asks.
@pytest.mark.parametrize(
    ("case", "kernel"), list(zip(CASES, ["random-walk", "componentwise", "guided", "guided"], strict=True))
)
def test_the_chain_draws_from_the_grid_posterior(case, kernel):
    assert min(p_values(case, kernel)) > FALSE_ALARM / 4


def test_large_noise_is_as_exact_as_small_noise():
    assert min(p_values("bernoulli", "random-walk", sigma=3.0)) > FALSE_ALARM / 4


def no_penalty(d_n_noisy, log_prior_ratio, log_q_ratio, sigma):
    return jnp.minimum(0.0, d_n_noisy + log_prior_ratio + log_q_ratio)


def double_penalty(d_n_noisy, log_prior_ratio, log_q_ratio, sigma):
    return jnp.minimum(0.0, d_n_noisy + log_prior_ratio + log_q_ratio - sigma**2)


@pytest.mark.parametrize("saboteur", [no_penalty, double_penalty])
def test_a_wrong_penalty_is_caught(saboteur, monkeypatch):
    monkeypatch.setattr(penalty, "log_alpha", saboteur)
    assert min(p_values("bernoulli", "random-walk")) < CAUGHT


@pytest.mark.parametrize("factor", [1.2**0.5, 0.8**0.5])
def test_noise_misreported_by_a_fifth_of_its_variance_is_caught(factor):
    assert (
        min(p_values("bernoulli", "random-walk", sigma=2.0, source=lambda s: ExactSource(s * factor))) < FALSE_ALARM / 4
    )


def test_a_guided_walk_that_forgets_to_turn_is_caught(monkeypatch):
    monkeypatch.setattr(
        Guided, "update", lambda self, state, theta_prop, log_prior_prop, accepted, draw: state._replace(
            theta=jnp.where(accepted, theta_prop, state.theta),
            log_prior=jnp.where(accepted, log_prior_prop, state.log_prior),
            direction=jnp.where(accepted, state.direction, state.direction),
        )
    )  # fmt: skip
    assert min(p_values("bernoulli", "guided")) < CAUGHT
