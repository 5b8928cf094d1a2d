"""Algorithm 3 has the right law: against conjugate and grid posteriors, on real copies, with saboteurs that must be caught."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import sfumato as sf
from helpers import CAUGHT, FALSE_ALARM
from sfumato.kernel import Componentwise, Guided, PublicStream, RandomWalk, State, penalty
from sfumato.kernel.loop import compile_loop
from sfumato.owners.bundle import Bundle
from sfumato.run.copies import Copies, Question
from sfumato.run.copies import take as take_copies
from statistical.harness import moment_p_values

CHAINS, STEPS, BURN = 64, 6_000, 1_000
KERNELS = {"random-walk": RandomWalk, "componentwise": Componentwise, "guided": Guided}

rng = np.random.default_rng(30)
# family, records, posterior sd of theta (unconstrained), start, xi that makes sigma of order one
CASES = {
    "bernoulli": (sf.families.Bernoulli(), {"y": (rng.random(60) < 0.3).astype(int)}, 0.28, -0.8, 16.0),
    "poisson": (sf.families.Poisson(6), {"y": rng.poisson(1.6, 50).clip(0, 6)}, 0.11, 0.5, 100.0),
    "normal": (sf.families.Normal(0.8, -3, 3), {"y": rng.normal(0.3, 0.8, 40).clip(-3, 3)}, 0.127, 0.3, 30.0),
}


def fake(family, data, xi: float, count: int) -> Bundle:
    """More copies than any budget buys: the same vault, on an account that always pays."""
    from sfumato.vault import records, statistics

    table = records.load(data, family.domain)
    terms = statistics._terms(statistics.shape_of(family), family.size, table.n, count, xi**0.5)
    values = np.concatenate(list(statistics.StatisticsVault(table, family).release(terms, Endless())))
    small = sf.release(family, data, epsilon=1.0, delta=1e-6, copies=2)
    return Bundle(
        small._header | {"copies": count, "xi": terms.xi, "id": str(id(values))}, values=values, family=family
    )


class Endless:
    def reserve(self, quanta: int) -> "Endless":
        return self

    def settle(self, quanta: int) -> None:
        pass


def chain(family, bundles, kernel, start, take=None, xi=None, chains=CHAINS, steps=STEPS):
    model = family.to_model()
    stream = PublicStream(3, chains)
    with jax.enable_x64(True):
        theta = jnp.broadcast_to(jnp.asarray(start, dtype=float), (chains, model.dim))
        states = State(
            theta, jax.jit(jax.vmap(model.log_prior))(theta), jnp.asarray(stream.directions(kernel.matrix.shape[1]))
        )
    total = sum(b.xi for b in bundles)
    question = Question(family, model, kernel, sum(b.n for b in bundles), xi or total, 1.0)
    copies = (take or (lambda count: take_copies(bundles, count)))(steps * chains).reshape(steps, chains, -1)
    with jax.enable_x64(True):
        source = Copies(question)
        loop, kept = compile_loop(source, model.log_prior), jax.jit(source.natural)(theta)
        looped, _ = loop(None, kernel, states, kept, stream.peek(kernel, steps), copies, steps, 0)
    assert int(looped.steps) == steps
    return jax.tree.map(np.asarray, looped.transcript)


def grid(family, data, lo: float, hi: float):
    """Posterior of a one-dimensional family on a grid of theta."""
    model = family.to_model()
    with jax.enable_x64(True):
        total = jax.vmap(family.statistic)({k: jnp.asarray(v) for k, v in data.items()}).sum(0)
        n = len(next(iter(data.values())))

        def log_density(t):
            values = model.constrain(t[None])
            return model.log_prior(t[None]) + n * family.log_g(values) + family.natural(values) @ total

        points = jnp.linspace(lo, hi, 20_001)
        values = jax.vmap(log_density)(points)
        weight = jnp.exp(values - values.max())
        return np.asarray(points), np.asarray(weight / weight.sum())


def p_values(
    case: str, kernel: str = "random-walk", noise: float = 1.0, take=None, misreport: float = 1.0
) -> list[float]:
    family, data, sd, start, xi = CASES[case]
    bundle = fake(family, data, xi * noise, CHAINS * STEPS)
    source = None if take is None else take(bundle)
    walk = KERNELS[kernel](np.eye(1) * sd, 1.2)
    rows = chain(family, [bundle], walk, [start], take=source, xi=bundle.xi * misreport)
    points, weight = grid(family, data, start - 12 * sd, start + 12 * sd)
    return moment_p_values(rows.theta[BURN:, :, 0], points, weight)


@pytest.mark.parametrize(("case", "kernel"), list(zip(CASES, KERNELS, strict=True)))
def test_the_chain_draws_from_the_posterior(case, kernel):
    assert min(p_values(case, kernel)) > FALSE_ALARM / 4


def test_a_family_of_two_parameters_agrees_with_its_conjugate_posterior():
    family = sf.families.NormalMeanScale(-3, 3)
    y = np.random.default_rng(4).normal(0.3, 0.8, 60).clip(-3, 3)
    bundle = fake(family, {"y": y}, 12.0, CHAINS * STEPS)
    rows = chain(family, [bundle], RandomWalk(np.diag([0.1, 0.09]), 0.8), [0.3, -0.2])
    with jax.enable_x64(True):
        posterior = family.posterior(np.array([y.sum(), (y**2).sum()]), len(y))
        keys = jax.random.split(jax.random.key(0), 1_000_000)
        truth = {k: np.asarray(v) for k, v in jax.jit(jax.vmap(posterior.sample))(keys).items()}
    drawn = {"mean": rows.theta[BURN:, :, 0], "scale": np.exp(rows.theta[BURN:, :, 1])}
    p = []
    for name, exact in truth.items():
        z = (drawn[name] - exact.mean()) / exact.std()
        reference = (exact - exact.mean()) / exact.std()
        for f in (lambda x: x, lambda x: x**2):
            p.append(stats.ttest_1samp(f(z).mean(axis=0), f(reference).mean()).pvalue)
    assert min(p) > FALSE_ALARM / 4


def test_reused_copies_are_caught():
    def take(bundle):
        fresh = bundle.take(CHAINS * STEPS // 10).reshape(-1, CHAINS, 1)
        worn = iter(np.repeat(fresh, 10, axis=0))  # every copy judges ten steps in a row
        return lambda count: np.concatenate([next(worn) for _ in range(count // CHAINS)])

    assert min(p_values("bernoulli", noise=2.0, take=take)) < CAUGHT


def test_a_dropped_penalty_is_caught(monkeypatch):
    monkeypatch.setattr(penalty, "log_alpha", lambda d, prior, q, sigma: jnp.minimum(0.0, d + prior + q))
    assert min(p_values("bernoulli")) < CAUGHT


@pytest.mark.parametrize("factor", [1.2, 0.8])
def test_a_variance_misreported_by_a_fifth_is_caught(factor):
    assert min(p_values("bernoulli", noise=2.5, misreport=factor)) < FALSE_ALARM / 4


def test_owners_add_up_with_unequal_shares_and_noise():
    family, data, sd, start, xi = CASES["bernoulli"]
    y = data["y"]
    parts = [
        fake(family, {"y": y[:25]}, xi * 0.3, CHAINS * STEPS),
        fake(family, {"y": y[25:]}, xi * 0.7, CHAINS * STEPS),
    ]
    rows = chain(family, parts, Guided(np.eye(1) * sd, 1.0), [start])
    points, weight = grid(family, data, start - 12 * sd, start + 12 * sd)
    assert min(moment_p_values(rows.theta[BURN:, :, 0], points, weight)) > FALSE_ALARM / 4


def test_two_halves_have_the_law_of_one_bundle_with_their_total_variance():
    family, count = sf.families.Poisson(6), 20_000
    y = np.random.default_rng(5).poisson(2.0, 400).clip(0, 6)
    halves = [
        sf.release(family, {"y": part}, epsilon=e, delta=1e-6, copies=count)
        for part, e in ((y[:150], 1.0), (y[150:], 2.0))
    ]
    total, xi = take_copies(halves, count)[:, 0], sum(b.xi for b in halves)
    z = (total - y.sum()) / xi**0.5
    assert stats.kstest(z, "norm").pvalue > FALSE_ALARM / 3
    assert abs(z.mean() * count**0.5) < stats.norm.isf(FALSE_ALARM / 6)
    assert stats.chi2.cdf(np.sum(z**2), count) > FALSE_ALARM / 6
    assert stats.chi2.sf(np.sum(z**2), count) > FALSE_ALARM / 6


def test_corollary_1_bounds_sigma_on_every_step_of_a_run_that_uses_its_xi():
    n, alpha, c, sigma = 5_000, 0.5, 2.0, 4.0
    family = sf.families.Bernoulli()
    given = sf.paper.corollary1(n, 4.0, alpha, 0.5, c, sigma, family.diameter())
    y = (np.random.default_rng(6).random(n) < 0.3).astype(int)
    bundle = sf.release(family, {"y": y}, epsilon=6.0, delta=1e-3, copies=given.iterations, xi=given.xi)
    assert bundle.xi == pytest.approx(given.xi, rel=1e-12)
    bound = c * n**-alpha  # Assumption 4: the natural parameter (the log odds, which is theta here) moves by less
    run = sf.sample(family, bundle, truncate=bound, chains=2, seed=0, force=True, progress=False)
    sigma_squared = run.transcript["sigma"] ** 2
    assert sigma_squared.shape == (2, (given.iterations - int(0.03 * given.iterations)) // 2)
    assert np.all(np.isfinite(run.transcript["d_n_noisy"]))
    assert np.all(sigma_squared <= given.sigma_squared_bound)
    assert np.max(sigma_squared) > given.sigma_squared_bound / 4  # and the bound is not idle


def test_the_forecast_of_ess_is_met():
    family, (count, owners) = sf.families.Bernoulli(), (40_000, 24)
    y = (np.random.default_rng(7).random(20_000) < 0.25).astype(int)
    bundle = sf.release(family, {"y": y}, epsilon=2.0, delta=1e-6, copies=count)
    run = sf.sample(family, bundle, chains=owners, seed=0, force=True)
    with jax.enable_x64(True):
        exact = replace(family).posterior(np.array([y.sum()]), len(y))["p"]
        mean, sd = float(exact.mean), float(exact.variance) ** 0.5
    squared = ((run.draws["p"].mean(axis=1) - mean) / sd) ** 2
    ess = owners / squared.mean()
    # Chain averages are near normal: the sum of squares over its mean is chi-squared; a factor 1.5 is left to start and shape.
    low, high = (stats.chi2.ppf(q, owners) / owners for q in (FALSE_ALARM / 2, 1 - FALSE_ALARM / 2))
    assert run.planned["forecast_ess"] / high / 1.5 < ess < run.planned["forecast_ess"] / low * 1.5
