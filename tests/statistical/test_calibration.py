"""Simulation-based calibration: parameters from the prior, records from the model, ranks of the one among the draws.

The ranks must be uniform (Talts et al. 2018). The compiled loop of the vault is used as it is, with records as its
argument, so that one compilation serves all replications.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import sfumato as sf
from helpers import FALSE_ALARM
from sfumato.kernel import Guided, PublicStream, RandomWalk, State, penalty
from sfumato.kernel.loop import compile_loop
from sfumato.study.target import make_study
from sfumato.vault import lattice
from sfumato.vault.blocks import Evaluation, Fresh, Rows
from sfumato.vault.gaussian import ExactSource
from sfumato.vault.queries.ratio import RatioSource

N, REPLICATIONS, STEPS, BURN, BINS = 60, 320, 3_000, 600, 16
CHAINS = 4


def logistic(x, y):
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=a + b * x), obs=y)


def normal(y):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    s = numpyro.sample("s", dist.LogNormal(-0.7, 0.3))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Normal(m, s), obs=y)


def logistic_records(theta, rng):
    x = rng.uniform(-1, 1, N)
    y = (rng.random(N) < 1 / (1 + np.exp(-theta["a"] - theta["b"] * x))).astype(np.int32)
    return {"x": x, "y": y}


def normal_records(theta, rng):
    return {"y": rng.normal(theta["m"], theta["s"], N)}


MODELS = {
    "logistic": (logistic, {"x": sf.Interval(-1, 1), "y": sf.Binary()}, logistic_records, [0.35, 0.55]),
    "normal": (normal, {"y": sf.Interval(-12, 12)}, normal_records, [0.07, 0.09]),
}


@pytest.fixture(autouse=True)
def no_charge(monkeypatch):
    """A clip too wide to bind costs more than 64 bits can count; charges are tested elsewhere."""
    monkeypatch.setattr(lattice, "QUANTA_PER_UNIT", 2.0**-20)


def ranks(name, kernel_class, noise_factor=1.0, sigma=1.5):
    """Rank of each true coordinate among thinned draws, one row per replication."""
    model, domain, make_records, scales = MODELS[name]
    study = make_study(model, domain, sf.Clip(bound=1e4))
    kernel = kernel_class(np.diag(scales), 1.2)
    gamma = lattice.choose_gamma(sigma, N)
    rng = np.random.default_rng(7)
    with jax.enable_x64(True):
        how = Evaluation(study.model, study.domain, "float64")
        source = RatioSource(how, study.bounds.range, gamma, sigma, N, cached=True)
        run = compile_loop(source, study.model.log_prior, options=source.options)
        start_terms = jax.jit(how.terms_of_all)
        log_prior = jax.jit(jax.vmap(study.model.log_prior))
        prior, constrain = jax.jit(study.model.sample_prior), jax.jit(study.model.constrain)
        drawn = ExactSource(sigma / gamma * noise_factor)
        out = []
        for replication in range(REPLICATIONS):
            truth = prior(jax.random.key(replication))
            table = make_records({k: float(v) for k, v in constrain(truth).items()}, rng)
            data = Rows({k: jnp.asarray(v) for k, v in table.items()})
            stream = PublicStream(replication, CHAINS)
            theta = jnp.broadcast_to(truth, (CHAINS, study.model.dim))
            states = State(theta, log_prior(theta), jnp.asarray(stream.directions(study.model.dim)))
            noise = Fresh(jnp.asarray(drawn.draw(STEPS * CHAINS).reshape(STEPS, CHAINS)))
            draws = stream.peek(kernel, STEPS)
            answered, _ = run(data, kernel, states, start_terms(data, theta), draws, noise, STEPS, lattice.BEYOND)
            steps = int(answered.steps)
            kept = np.asarray(answered.transcript.theta)[BURN:steps:60].reshape(-1, study.model.dim)
            out.append((kept < np.asarray(truth)).mean(0))
    return np.array(out)


def uniformity_p_values(rank):
    """Chi-square of the ranks, coordinate by coordinate."""
    counts = [np.histogram(column, bins=np.linspace(0, 1 + 1e-9, BINS + 1))[0] for column in rank.T]
    return [float(stats.chisquare(c).pvalue) for c in counts]


@pytest.mark.parametrize(("name", "kernel"), [("logistic", Guided), ("normal", RandomWalk)])
def test_ranks_are_uniform(name, kernel):
    assert min(uniformity_p_values(ranks(name, kernel))) > FALSE_ALARM / 2


@pytest.mark.parametrize(("saboteur", "sigma"), [(0.0, 3.5), (2.0, 3.5)])
def test_a_wrong_penalty_fails_calibration(saboteur, sigma, monkeypatch):
    def wrong(d_n_noisy, prior, q, sigma):
        return jnp.minimum(0.0, d_n_noisy + prior + q - saboteur * sigma**2 / 2)

    monkeypatch.setattr(penalty, "log_alpha", wrong)
    assert min(uniformity_p_values(ranks("logistic", RandomWalk, sigma=sigma))) < FALSE_ALARM / 2
