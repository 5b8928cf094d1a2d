"""Langevin's stationary law without sampling: the transition operator on a grid, the noise integrated out.

The kernel's own `propose` and `known` make the operator; the second query's noise enters through the expected acceptance
(which `test_reversibility` shows to be that of the real decision). At h = 0.5 and at h = 0.02 the variance must be the
posterior's to within 1 %; without the correction it is not.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import polygamma

import sfumato as sf
from sfumato.families.langevin import public_part
from sfumato.kernel import Langevin, State
from sfumato.paper import expected_acceptance
from sfumato.study.target import make_study

N, S_N, SIGMA = 400, 121.0, 0.3
POINTS = 401


def variance_ratio(h, corrected=True):
    """Variance of the chain's stationary law over that of the posterior, and the worst imbalance of probability flows."""
    family = sf.families.Bernoulli()
    study = make_study(family, kernel="langevin")
    tau = float(np.sqrt(polygamma(1, 1 + S_N) + polygamma(1, 1 + N - S_N)))
    grid = np.log(S_N / (N - S_N)) + tau * np.linspace(-7.5, 7.5, POINTS)
    with jax.enable_x64(True):
        public = public_part(family, study.model, N)
        kernel = Langevin(np.eye(1) * tau, h, public)
        theta = jnp.asarray(grid)[:, None]
        w_n = jnp.asarray([tau * S_N])
        middle = jax.vmap(lambda t: kernel.propose(State(t, 0.0, jnp.ones(1)), None, w_n))(theta)[:, 0]
        known = jax.jit(jax.vmap(jax.vmap(kernel.known, (None, 0)), (0, None)))(theta, theta)
        log_ratio = np.asarray(known.log_ratio - known.along @ w_n)
        log_posterior = np.asarray(jax.vmap(public)(theta)) + grid * S_N
    density = stats.norm.pdf(grid[None, :], np.asarray(middle)[:, None], tau * h**0.5) * (grid[1] - grid[0])
    step = density * (expected_acceptance(log_ratio, SIGMA) if corrected else 1.0)
    np.fill_diagonal(step, 0.0)
    step += np.diag(1 - step.sum(axis=1))
    found = np.linalg.solve(
        step.T - np.eye(POINTS) + 1.0, np.ones(POINTS)
    )  # pi (P - I) = 0 and pi 1 = 1, in one system
    posterior = np.exp(log_posterior - log_posterior.max())
    posterior /= posterior.sum()
    flow = posterior[:, None] * step
    return _variance(found, grid) / _variance(posterior, grid), float(np.max(np.abs(flow - flow.T)) / flow.max())


def _variance(weight, grid):
    mean = weight @ grid
    return float(weight @ (grid - mean) ** 2)


@pytest.mark.parametrize("h", [0.02, 0.5])
def test_the_variance_is_the_posteriors_at_every_step_size(h):
    ratio, imbalance = variance_ratio(h)
    assert abs(ratio - 1) < 1e-6
    assert imbalance < 1e-10


def test_without_the_correction_it_is_not():
    ratio, imbalance = variance_ratio(0.5, corrected=False)
    assert ratio > 1.05
    assert imbalance > 1e-3
