"""Langevin on a density-power loss, without sampling: its operator on a grid keeps the generalised posterior.

A location with outliers among its records. The kernel's own `propose` and `known`, and each record's vector as the vault cuts it,
make the operator, the noise integrated out; the second query's noise enters through the expected acceptance.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import sfumato as sf
from sfumato.bounds.searched import SearchedReference
from sfumato.kernel import ReferenceLangevin, State
from sfumato.paper import expected_acceptance
from sfumato.study.target import make_study

N, SIGMA, POINTS = 300, 0.4, 301


def location(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", sf.robust(dist.Normal(mean, 1.0), beta=0.5), obs=y)


def imbalance(h, corrected=True):
    """How far the chain's mean is from the posterior's, in its sds; and the worst imbalance of probability flows."""
    study = make_study(location, {"y": sf.Interval(-8, 8)})
    rng = np.random.default_rng(3)
    y = np.where(rng.random(N) < 0.1, 6.0, rng.standard_normal(N))
    tau = 1.5 / N**0.5
    with jax.enable_x64(True):
        centre, root = np.array([0.3 * tau]), np.eye(1) * tau
        reference = SearchedReference(study.model, study.domain)
        body = reference.at(centre, root).body
        kernel = ReferenceLangevin(root, h, study.model.log_prior, centre, np.eye(1) / tau**2, np.inf)
        vectors = jax.vmap(lambda v: reference.vector(body, {"y": v}))(y)
        grid = tau * np.linspace(-7, 7, POINTS)
        theta = jnp.asarray(grid)[:, None]
        middle = jax.vmap(lambda t: kernel.propose(State(t, 0.0, jnp.ones(1)), None, root.T @ vectors.sum(0)))(theta)[
            :, 0
        ]
        known = jax.jit(jax.vmap(jax.vmap(kernel.known, (None, 0)), (0, None)))(theta, theta)
        each = jax.vmap(jax.vmap(study.model.log_likelihood, (None, 0)), (0, None))(theta, {"y": y}).sum(1)
        scalar = each[None, :] - each[:, None] - known.along @ vectors.sum(0)
        log_ratio = np.asarray(known.log_ratio + scalar)
        log_target = np.asarray(each + jax.vmap(study.model.log_prior)(theta))
    # (h/2)^2 times the owner's noise of 4/h - 1.
    spread = tau * np.sqrt(h * (1 - h / 4))
    density = stats.norm.pdf(grid[None, :], np.asarray(middle)[:, None], spread) * (grid[1] - grid[0])
    step = density * (expected_acceptance(log_ratio, SIGMA) if corrected else 1.0)
    np.fill_diagonal(step, 0.0)
    step += np.diag(1 - step.sum(axis=1))
    found = np.linalg.solve(step.T - np.eye(POINTS) + 1.0, np.ones(POINTS))
    target = np.exp(log_target - log_target.max())
    target /= target.sum()
    sd = np.sqrt(target @ grid**2 - (target @ grid) ** 2)
    flow = target[:, None] * step
    return abs(float(found @ grid - target @ grid)) / sd, float(np.max(np.abs(flow - flow.T)) / flow.max())


@pytest.mark.parametrize("h", [0.1, 1.0])
def test_the_generalised_posterior_is_kept(h):
    off, worst = imbalance(h)
    assert off < 1e-6
    assert worst < 1e-10


def test_without_the_correction_it_is_not():
    off, worst = imbalance(1.0, corrected=False)
    assert off > 0.05 or worst > 1e-3
