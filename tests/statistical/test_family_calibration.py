"""Simulation-based calibration of every family: parameters from the prior, records from the family, ranks among the draws.

The true parameter is itself a draw from the posterior, so the chain is started there and is stationary from the first step.
It is run forwards and backwards in time, and the truth put at a random place of the joined sequence: its rank among the
others (ties broken at random) is then uniform *exactly*, however slowly the chain mixes (Gandy & Scott 2020). Langevin is its
own reversal; the guided walk's is the same walk with its direction turned round. The vault's compiled loops are used as they
are, with the sums of statistics as their argument, so that one compilation serves all replications.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import sfumato as sf
from helpers import CAUGHT, FALSE_ALARM
from sfumato.families.langevin import public_part
from sfumato.kernel import Draw, Guided, Langevin, State, Streams, penalty
from sfumato.kernel.loop import compile_loop
from sfumato.model.trials import as_model_input
from sfumato.study.target import make_study
from sfumato.tools.quick_jit import quick_jit
from sfumato.vault import lattice
from sfumato.vault.blocks import Evaluation, Fresh, Rows
from sfumato.vault.gaussian import ExactSource
from sfumato.vault.queries import linear
from sfumato.vault.queries.linear import LangevinSource, WalkSource

f = sf.families
N, REPLICATIONS, THIN, OTHERS, BINS = 25, 600, 5, 20, 7
PART = 100  # chains to a call
STEPS = THIN * OTHERS
# Priors are informative and domains wide: a record that had to be clamped would not be the family's.
REGRESSION_PRIOR = {"scale": dist.LogNormal(0.0, 0.3), "coefficients": dist.Normal(0.0, 1.0).expand([2]).to_event(1)}
FAMILIES = {
    "bernoulli": f.Bernoulli(prior=dist.Beta(4.0, 6.0)),
    "bernoullis": f.Bernoullis(3, prior=dist.Beta(4.0, 6.0).expand([3]).to_event(1)),
    "binomial": f.Binomial(trials=5, prior=dist.Beta(6.0, 10.0)),
    "categorical": f.Categorical(3, prior=dist.Dirichlet(np.array([3.0, 4.0, 5.0]))),
    "poisson": f.Poisson(max_count=60, prior=dist.Gamma(6.0, 2.0)),
    "geometric": f.Geometric(max_count=400, prior=dist.Beta(9.0, 9.0)),
    "exponential": f.Exponential(upper=80.0, prior=dist.Gamma(9.0, 6.0)),
    "gamma": f.Gamma(1e-6, 200.0, prior={"concentration": dist.LogNormal(1.0, 0.3), "rate": dist.LogNormal(0.0, 0.3)}),
    "beta": f.Beta(
        1e-9, 1 - 1e-9, prior={"concentration1": dist.LogNormal(1.0, 0.3), "concentration0": dist.LogNormal(1.0, 0.3)}
    ),
    "normal": f.Normal(scale=2.0, lower=-40, upper=40, prior=dist.Normal(0.0, 1.0)),
    "mean and scale": f.NormalMeanScale(
        -40, 40, prior={"mean": dist.Normal(0.0, 1.0), "scale": dist.LogNormal(0.0, 0.3)}
    ),
    "vector": f.MultivariateNormal(
        [[1.0, 0.3], [0.3, 0.5]], y=sf.Ball(20.0, dim=2), prior=dist.Normal(0.0, 0.5).expand([2]).to_event(1)
    ),
    "vector and covariance": f.MultivariateNormalMeanCovariance(
        y=sf.Ball(60.0, dim=1),  # two dimensions pass as well, and take a minute to compile
        prior={
            "mean": dist.Normal(0.0, 0.5).expand([1]).to_event(1),
            "covariance": dist.InverseWishart(20.0, scale_matrix=17.0 * np.eye(1)),
        },
    ),
    "regression": f.LinearRegression(x=sf.Box(-1, 1, shape=(2,)), y=sf.Interval(-60, 60), prior=REGRESSION_PRIOR),
    "table": f.LogLinear({"a": 2, "b": 3}, prior=dist.Normal(0.0, 0.5).expand([3]).to_event(1)),
}


@pytest.fixture(autouse=True)
def no_charge(monkeypatch):
    """Domains too wide to bind cost more than 64 bits can count; charges are tested elsewhere."""
    monkeypatch.setattr(linear, "cost_quanta", lambda mu_squared: 1)
    monkeypatch.setattr(lattice, "QUANTA_PER_UNIT", 2.0**-20)


def draw_worlds(family, model):
    """Parameters from the prior, n records of each: (replication, dimension), {column: (replication, n, ...)}."""
    keys = jax.random.split(jax.random.key(7), REPLICATIONS)
    thetas = quick_jit(lambda k: jax.lax.map(model.sample_prior, k))(keys)
    values = quick_jit(jax.vmap(model.constrain))(thetas)
    if isinstance(family, f.LinearRegression):  # the covariates are the same in all worlds
        x = jnp.asarray(family.x.sample(np.random.default_rng(0), N))
        mean = jnp.einsum("nd,rd->rn", x, values["coefficients"])
        noise = np.random.default_rng(1).standard_normal((REPLICATIONS, N))
        drawn = {"x": jnp.broadcast_to(x, (REPLICATIONS, *x.shape)), "y": mean + values["scale"][:, None] * noise}
    else:
        drawn = quick_jit(lambda v, k: jax.lax.map(lambda a: family.draw(a[0], a[1], N), (v, k)))(values, keys)
    for name, column in family.domain.items():
        assert column.contains(np.asarray(drawn[name], float).reshape(-1, *column.shape)).all()
    return thetas, {name: jnp.asarray(as_model_input(d, np.asarray(drawn[name]))) for name, d in family.domain.items()}


def whitening(family, model, thetas):
    """A root of a typical posterior covariance: fixed, so that one compilation serves all worlds."""
    middle = jnp.median(thetas, axis=0)
    jacobian = np.asarray(quick_jit(jax.jacfwd(lambda t: family.natural(model.constrain(t))))(middle))
    if family.regular:
        information = np.asarray(quick_jit(lambda t: family.covariance(model.constrain(t)))(middle))
    else:  # regression: from the curvature of log g, its covariates having mean square 1/3
        unit = float(family.y.hi)  # of y in the statistic
        information = np.diag([1 / 3, 1 / 3, 1 / 3, unit**-2, unit**-2, 2 * unit**-4])
    prior = np.linalg.inv(np.atleast_2d(np.cov(np.asarray(thetas).T)))
    return np.linalg.cholesky(np.linalg.inv(N * jacobian.T @ information @ jacobian + prior))


def both_ways(thetas, size):
    """Each world twice: once for the past of its truth, once for the future."""
    return jnp.repeat(thetas, 2, axis=0)[:, None, :], 2 * size


def draws_for(kernel, worlds):
    chains = [kernel.draw(Streams(s), STEPS) for s in np.random.SeedSequence(3).spawn(worlds)]
    return Draw(*(jnp.asarray(np.stack(part)[:, :, None]) for part in zip(*(c[:4] for c in chains), strict=True)))


def noise_for(scale, *shape):
    return jnp.asarray(ExactSource(scale).draw(int(np.prod(shape))).reshape(shape))


def in_parts(run, *arguments):
    """Run some worlds at a time: theta and decisions, (world, step, ...)."""
    vectorised = quick_jit(jax.vmap(lambda *a: run(*a, STEPS, 2**62)[0]))
    worlds = len(jax.tree.leaves(arguments)[0])
    thetas, decisions = [], []
    for start in range(0, worlds, PART):
        answered = vectorised(*jax.tree.map(lambda a, start=start: a[start : start + PART], arguments))
        assert int(answered.steps.min()) == STEPS
        thetas.append(np.asarray(answered.transcript.theta)[:, :, 0])
        decisions.append(np.asarray(answered.transcript.accepted)[:, :, 0])
    return np.concatenate(thetas), np.concatenate(decisions)


def statistics_of(study, query, columns):
    """Exact sums of many tables at once."""
    total = query.program(Evaluation(study.model, study.domain, "float64"))
    return jax.vmap(lambda table: total(Rows(table), *query[1:]))(columns)


def run_langevin(family, study, thetas, columns, h, sigma, noise_factor=1.0):
    kernel = Langevin(whitening(family, study.model, thetas), h, public_part(family, study.model, N))
    source = LangevinSource(family, kernel, sigma, N, 1)
    sums = statistics_of(study, source.statistic, columns)
    start, worlds = both_ways(thetas, REPLICATIONS)
    dim = start.shape[-1]
    states = State(
        start,
        quick_jit(jax.vmap(jax.vmap(study.model.log_prior)))(start),
        jnp.ones_like(start),
        jnp.full_like(start, jnp.nan),
    )
    loop = compile_loop(source, study.model.log_prior)
    fresh = Fresh(
        vectors=noise_for(source.noises[0][0] * noise_factor, worlds, STEPS, 1, dim),
        scalars=noise_for(source.noises[1][0], worlds, STEPS, 1),
    )
    return in_parts(
        partial(run_loop, loop, kernel), jnp.repeat(sums, 2, axis=0), states, draws_for(kernel, worlds), fresh
    )


def run_loop(loop, kernel, total, states, draws, fresh, limit, allowance):
    return loop(total, kernel, states, jnp.zeros((1, 0)), draws, fresh, limit, allowance)


def run_guided(family, study, thetas, columns, step, sigma):
    kernel = Guided(whitening(family, study.model, thetas), step)
    source = WalkSource(family, study.model, study.bounds.range, sigma, N)
    sums = statistics_of(study, source.linear.statistic, columns)
    start, worlds = both_ways(thetas, REPLICATIONS)
    dim = start.shape[-1]
    sign = np.random.default_rng(5).choice([-1.0, 1.0], (REPLICATIONS, 1, dim))
    direction = jnp.asarray(np.stack([-sign, sign], axis=1).reshape(worlds, 1, dim))
    states = State(start, quick_jit(jax.vmap(jax.vmap(study.model.log_prior)))(start), direction)
    noise = Fresh(noise_for(source.noises[0][0], worlds, STEPS, 1))
    loop = compile_loop(source, study.model.log_prior)
    return in_parts(
        partial(run_loop, loop, kernel), jnp.repeat(sums, 2, axis=0), states, draws_for(kernel, worlds), noise
    )


def rank_p_values(name, run, kernel, **tuning):
    """Chi-square of the truth's ranks, coordinate by coordinate; and the mean acceptance."""
    family = FAMILIES[name]
    study = make_study(family, kernel=kernel)
    with jax.enable_x64(True):
        thetas, columns = draw_worlds(family, study.model)
        chain, decisions = run(family, study, thetas, columns, **tuning)
        truth = np.asarray(thetas)
    rng = np.random.default_rng(9)
    before = rng.integers(0, OTHERS + 1, REPLICATIONS)[:, None]
    position = np.arange(OTHERS)[None]
    kept = np.concatenate(
        [position < before, position < OTHERS - before], axis=1
    )  # as many of the past, then the future
    others = chain[:, THIN - 1 :: THIN].reshape(REPLICATIONS, 2 * OTHERS, -1)[kept].reshape(REPLICATIONS, OTHERS, -1)
    below, equal = (others < truth[:, None]).sum(1), (others == truth[:, None]).sum(1)
    rank = below + np.floor(rng.random(equal.shape) * (equal + 1)).astype(int)
    counts = [np.bincount(r * BINS // (OTHERS + 1), minlength=BINS) for r in rank.T]
    return [float(stats.chisquare(c).pvalue) for c in counts], float(decisions.mean())


@pytest.mark.parametrize("name", [name for name in FAMILIES if FAMILIES[name].regular])
def test_langevin_is_calibrated(name):
    p, accepted = rank_p_values(name, run_langevin, "langevin", h=0.4, sigma=0.5)
    assert accepted > 0.3
    assert min(p) > FALSE_ALARM / len(p)


@pytest.mark.parametrize("name", [name for name in FAMILIES if not FAMILIES[name].regular])
def test_the_guided_walk_is_calibrated_where_langevin_cannot_run(name):
    p, accepted = rank_p_values(name, run_guided, "guided", step=0.5, sigma=1.5)
    assert accepted > 0.2
    assert min(p) > FALSE_ALARM / len(p)


def test_langevin_without_its_correction_is_not(monkeypatch):
    monkeypatch.setattr(penalty, "accepts", lambda draw, d, ratio, q, sigma: jnp.ones_like(ratio, bool))
    p, _ = rank_p_values("normal", run_langevin, "langevin", h=3.0, sigma=0.5)
    assert min(p) < CAUGHT


def test_langevin_with_less_noise_than_it_says_is_not():
    p, _ = rank_p_values("normal", run_langevin, "langevin", h=0.4, sigma=0.5, noise_factor=0.6)
    assert min(p) < FALSE_ALARM


def test_a_walk_without_its_penalty_is_not(monkeypatch):
    monkeypatch.setattr(penalty, "accepts", lambda draw, d, ratio, q, sigma: draw.log_u < d + ratio)
    p, _ = rank_p_values("normal", run_guided, "guided", step=1.0, sigma=3.5)
    assert min(p) < CAUGHT
