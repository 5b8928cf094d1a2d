"""The noise-aware posterior: calibrated where a chain cannot mix, equal to its own grid, honest about what it is."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats
from scipy.optimize import minimize

import sfumato as sf
from helpers import FALSE_ALARM
from sfumato.analysis import noise_aware
from sfumato.analysis.local_normal import _adapt
from sfumato.errors import InvalidInput, Unsupported
from sfumato.planner.belief import positive, safe_inverse
from sfumato.vault.statistics import shape_of

LEVEL = 0.9
GRID = np.linspace(-12, 12, 601)
SETS = 1000


def posterior_grid(family, n, z, variance, grid, normal=False):
    """Posterior weights on a grid of theta for many measurements at once, shape (sets, grid)."""
    model = family.to_model()
    with jax.enable_x64(True):

        def column(theta):
            values = model.constrain(theta[None])
            law = noise_aware.moments_of(family, False)(values)
            total = n * law[1][0, 0] + variance
            return model.log_prior(theta[None]) - (z - n * law[0][0]) ** 2 / (2 * total) - jnp.log(total) / 2

        def mixture(theta):
            values = model.constrain(theta[None])
            s = np.arange(0.0, n * float(family.domain["y"].hi) + 1)[: noise_aware.MAX_COUNTS]
            mass = noise_aware.log_base(family, n, s) + family.natural(values)[0] * s + n * family.log_g(values)
            noise = -((z[:, None] - s) ** 2) / (2 * variance)
            return model.log_prior(theta[None]) + jax.scipy.special.logsumexp(mass + noise, axis=1)

        values = np.asarray(jax.lax.map(column if normal else mixture, jnp.asarray(grid))).T
    weight = np.exp(values - values.max(axis=1, keepdims=True))
    return weight / weight.sum(axis=1, keepdims=True)


def ranks(family, n, truth, sums, sd, grid, normal, rng) -> np.ndarray:
    """Posterior probability below the truth, one per data set: uniform if the posterior is calibrated."""
    z = sums + sd * rng.standard_normal(len(sums))
    weight = posterior_grid(family, n, z, sd**2, grid, normal)
    return np.array([w[grid <= t].sum() for w, t in zip(weight, truth, strict=True)])


def covered(below: np.ndarray) -> int:
    """How many of the central 90 % intervals hold the truth."""
    return int(np.sum((below > (1 - LEVEL) / 2) & (below < (1 + LEVEL) / 2)))


def in_band(hits: int, sets: int) -> bool:
    """88 to 92 of a hundred. Seeds are fixed here: no false alarm between one run and the next."""
    return abs(hits / sets - LEVEL) <= 0.02


def bernoulli_sets(rng, n):
    p = rng.beta(1, 1, SETS)
    return np.log(p / (1 - p)), rng.binomial(n, p).astype(float)


@pytest.mark.parametrize("normal", [False, True], ids=["exact counts", "central limit"])
def test_intervals_cover_what_they_say_where_a_chain_has_less_than_one_effective_draw(normal):
    rng = np.random.default_rng(1)
    family, n, mu = sf.families.Bernoulli(), 300, 0.1
    assert mu**2 * n / 4 < 1  # the one-shot limit of ESS, at its largest
    truth, sums = bernoulli_sets(rng, n)
    below = ranks(family, n, truth, sums, 1 / mu, GRID, normal, rng)
    assert in_band(covered(below), SETS)


def test_a_posterior_that_forgets_the_noise_is_caught():
    rng = np.random.default_rng(2)
    family, n = sf.families.Bernoulli(), 300
    truth, sums = bernoulli_sets(rng, n)
    z = np.clip(sums + 10 * rng.standard_normal(SETS), 0, n)
    weight = posterior_grid(family, n, z, 1e-2, GRID)
    below = np.array([w[GRID <= t].sum() for w, t in zip(weight, truth, strict=True)])
    assert not in_band(covered(below), SETS)


def test_small_counts_are_calibrated_with_the_exact_mixture():
    """n = 1000 at p near e^-6."""
    rng = np.random.default_rng(3)
    family, n = sf.families.Bernoulli(prior=dist.Beta(2.0, 800.0)), 1000
    p = rng.beta(2.0, 800.0, SETS)
    truth, sums = np.log(p / (1 - p)), rng.binomial(n, p).astype(float)
    below = ranks(family, n, truth, sums, 0.5, np.linspace(-14, -3, 551), False, rng)
    assert stats.kstest(below, "uniform").pvalue > FALSE_ALARM


def test_small_counts_need_the_exact_mixture():
    """The normal approximation is visibly off where counts are few, and as good as exact where they are many."""
    family, n, grid = sf.families.Bernoulli(), 1000, np.linspace(-20, 4, 2401)
    z = np.array([0.0, 1.0, np.exp(-6) * n, 250.0])
    exact, normal = (posterior_grid(family, n, z, 0.25, grid, approximate) for approximate in (False, True))
    apart = np.abs(exact - normal).sum(axis=1) / 2  # total variation
    assert np.all(apart[:3] > 0.05)
    assert apart[3] < 0.01


CASES = {
    "bernoulli, counts": (sf.families.Bernoulli(), 1000, 250.0, 20.0, -4, 2),
    "poisson, rare": (sf.families.Poisson(5), 1000, 2.5, 3.0, -12, -3),
    "normal": (sf.families.Normal(1.0, -4, 4), 500, 120.0, 60.0, -3, 3),
}


@pytest.mark.parametrize("case", CASES)
def test_nuts_agrees_with_the_grid(case):
    family, n, z, sd, lo, hi = CASES[case]
    found = noise_aware.sample_posterior(
        family, noise_aware.from_copies(np.array([z]), sd**2, n), None, draws=1000, warmup=300, seed=1
    )
    grid = np.linspace(lo, hi, 2001)
    weight = posterior_grid(family, n, np.array([z]), sd**2, grid, normal=case == "normal")[0]
    theta = found.theta[..., 0]
    mean = grid @ weight
    scale = ((grid - mean) ** 2 @ weight) ** 0.5
    import arviz

    for function in (lambda x: (x - mean) / scale, lambda x: ((x - mean) / scale) ** 2):
        error = arviz.mcse(function(theta)).item()
        assert abs(function(theta).mean() - function(grid) @ weight) < stats.norm.isf(FALSE_ALARM / 4) * error
    assert ("exact law" in found.label) == (case != "normal")


def test_singular_precision_is_never_inverted():
    """Answers along one direction of three: the posterior there is right, elsewhere it is the prior's."""
    rng = np.random.default_rng(4)
    v = np.array([1.0, -2.0, 0.5])
    answers = v @ np.array([30.0, 10.0, 4.0]) + 2 * rng.standard_normal(40)
    found = noise_aware.from_answers(np.tile(v, (40, 1)), answers, np.full(40, 2.0), 100)
    assert found.basis.shape == (3, 1)
    unit = v / np.linalg.norm(v)
    assert np.allclose(np.abs(found.basis[:, 0]), np.abs(unit))
    sign = np.sign(found.basis[:, 0] @ unit)
    assert found.value[0] * sign == pytest.approx(answers.mean() / np.linalg.norm(v))
    assert found.variance[0] == pytest.approx(4 / 40 / (v @ v))


def test_full_rank_answers_give_weighted_least_squares():
    rng = np.random.default_rng(5)
    v, sigma, truth = (
        rng.standard_normal((200, 3)) * [1, 1e4, 1e-3],
        rng.uniform(0.5, 3, 200),
        np.array([3.0, 1e-3, 40.0]),
    )
    answers = v @ truth + sigma * rng.standard_normal(200)
    found = noise_aware.from_answers(v, answers, sigma, 10)
    precision = (v / sigma[:, None] ** 2).T @ v
    expected = np.linalg.solve(precision, (v / sigma[:, None] ** 2).T @ answers)
    assert np.allclose(found.basis @ found.value, expected, rtol=1e-7)
    assert np.allclose(found.basis @ np.diag(found.variance) @ found.basis.T, np.linalg.inv(precision), rtol=1e-6)


def test_a_run_and_its_bundle_tell_the_same():
    family = sf.families.Bernoulli()
    y = (np.random.default_rng(6).random(2000) < 0.3).astype(int)
    bundle = sf.release(family, {"y": y}, epsilon=1.0, delta=1e-6, copies=2000)
    run = sf.sample(family, bundle, seed=0, force=True, kernel="random-walk")
    from sfumato.analysis.noise_aware import _answers

    directions, answers, sigma = _answers(run, family)
    chain = noise_aware.from_answers(directions, answers, sigma, 2000)
    # Nine tenths of the copies went to the chain, and in one dimension each of its answers is worth a whole copy.
    assert chain.variance[0] == pytest.approx(bundle.xi / len(answers))
    assert len(answers) >= 1796 - 4
    found = noise_aware.from_run(run, family, draws=200, warmup=200, chains=2)
    assert found.measurement.variance[0] == pytest.approx(bundle.xi / 2000, rel=0.01)
    assert (
        abs(found.measurement.basis[0, 0] * found.measurement.value[0] - bundle.mean()[0])
        < 0.2 * (bundle.xi / 2000) ** 0.5
    )
    with pytest.raises(InvalidInput, match="family"):
        replace(run, study=None).noise_aware()


def test_a_live_run_of_a_family_offers_it_too():
    family = sf.families.Bernoulli()
    y = (np.random.default_rng(7).random(3000) < 0.3).astype(int)
    run = sf.sample(
        family, {"y": y}, epsilon=2.0, delta=1e-6, seed=0, force=True, kernel="random-walk", max_iterations=300
    )
    found = run.noise_aware(draws=300)
    assert str(found).startswith("By the exact law of the counts")
    assert abs(found.draws["p"].mean() - y.mean()) < 5 * found.draws["p"].std()
    assert found.draws["p"].std() < 0.2


def test_it_says_what_it_is():
    family = sf.families.Normal(1.0, -4, 4)
    y = np.random.default_rng(8).normal(0.5, 1, 500).clip(-4, 4)
    bundle = sf.release(family, {"y": y}, epsilon=1.0, delta=1e-6, copies=10)
    found = bundle.noise_aware(draws=100, warmup=200, chains=2)
    assert "approximation: central limit theorem for S_n; not independent evidence to pool with the chain" in repr(
        found
    )
    assert found.to_arviz().attrs["label"] == found.label
    assert "mean" in found.summary().columns
    assert found.privacy.epsilon == 1.0
    assert bundle.left == 10  # post-processing uses no copy up


def test_clamped_records_get_the_moments_of_clamped_records():
    key = jax.random.key(0)
    for family, values in (
        (sf.families.Poisson(3), {"rate": 2.5}),
        (sf.families.Normal(1.0, -0.5, 1.5), {"mean": 0.9}),
        (sf.families.Geometric(4), {"p": 0.3}),
    ):
        with jax.enable_x64(True):
            mean, covariance = noise_aware.moments_of(family, True)(values)
            drawn = family.sample(values, key, 400_000)["y"].astype(float)
        assert abs(drawn.mean() - float(mean[0])) < 6 * drawn.std() / 400_000**0.5
        assert drawn.var() == pytest.approx(float(covariance[0, 0]), rel=0.02)


def test_families_without_moments_are_refused():
    class Silent(sf.families.Bernoulli):
        def mean(self, values):
            raise Unsupported("no mean")

    with pytest.raises(Unsupported, match="mean and covariance of the sum of S"):
        noise_aware.require_moments(Silent())


# -- linear regression: covariates without a law --------------------------------------------------------------------------


def regression(reach=3.0):
    prior = {
        "coefficients": dist.Normal(0.0, jnp.array([0.5, reach])).to_event(1),
        "scale": dist.LogNormal(-0.7, 0.3),
    }
    return sf.families.LinearRegression(sf.Box(-1, 1, shape=(1,)), sf.Interval(-6, 6), intercept=True, prior=prior)


def covariates(kind, n, rng):
    if kind == "narrow":  # in a part of the domain: noise in X'X is as large as X'X
        return rng.uniform(-0.15, 0.15, (n, 1))
    return 2 * rng.beta(0.8, 4.0, (n, 1)) - 1 if kind == "skewed" else rng.uniform(-1, 1, (n, 1))


def regression_coverage(kind, n, epsilon, sets, saboteur=False, coordinate=None):
    """Share of 90 % intervals, of one coordinate or of all, that hold the truth, and its standard error."""
    family, rng = regression(10.0 if kind == "narrow" else 1.0), np.random.default_rng(9)
    model = family.to_model()
    sd = shape_of(family).diameter / sf.gdp.mu(epsilon, 1e-6)

    def density(theta, rest, beside):
        mean, covariance = family.moments_of_sum(model.constrain(theta), n, beside)
        law = dist.MultivariateNormal(
            rest.basis.T @ mean, rest.basis.T @ covariance @ rest.basis + jnp.eye(len(rest.value))
        )
        value = model.log_prior(theta) + law.log_prob(rest.value)
        return jnp.where(jnp.isnan(value), -jnp.inf, value)

    hits = []
    with jax.enable_x64(True):
        sums = jax.jit(lambda x, y: jax.vmap(family.statistic)({"x": x, "y": y}).sum(0))
        heights = jax.jit(lambda points, *given: jax.lax.map(lambda t: density(t, *given), points, batch_size=50))
        curvature = jax.jit(jax.hessian(lambda t, *given: -density(t, *given)))
        slope = jax.jit(jax.value_and_grad(lambda t, *given: -density(t, *given)))
        for number in range(sets):
            truth = np.asarray(model.sample_prior(jax.random.key(number)))
            values, x = model.constrain(truth), covariates(kind, n, rng)
            y = family.design(x) @ values["coefficients"] + values["scale"] * rng.standard_normal(n)
            total = np.asarray(sums(x, np.clip(y, -6, 6)))
            copies = noise_aware.from_copies(total + sd * rng.standard_normal(len(total)), sd**2, n)
            rest, beside = family.beside(copies)
            if saboteur:
                beside = beside._replace(covariance=0 * beside.covariance)
            given = (rest._replace(n=0), beside)
            found = minimize(lambda t, *g: [np.asarray(v) for v in slope(t, *g)], truth, given, "BFGS", jac=True)
            start = found.x, safe_inverse(positive(np.asarray(curvature(found.x, *given))))
            points = _adapt(model, start, lambda p, g=given: np.asarray(heights(p, *g)), number)
            below = points.weight @ (points.theta < truth)
            hits.append((below > (1 - LEVEL) / 2) & (below < (1 + LEVEL) / 2))
    each = np.mean(hits, axis=1) if coordinate is None else np.array(hits)[:, coordinate]
    return float(np.mean(each)), float(np.std(each) / sets**0.5)


@pytest.mark.parametrize(
    ("kind", "n", "epsilon"),
    [("uniform", 300, 0.2), ("skewed", 2000, 1.0), ("narrow", 20_000, 2.0), ("skewed", 20_000, 8.0)],
)
def test_a_regression_covers_what_it_says_at_small_and_large_budgets(kind, n, epsilon):
    covered, error = regression_coverage(kind, n, epsilon, 150)
    assert LEVEL - 0.02 - 2 * error < covered < LEVEL + 0.02 + 2 * error


def test_a_regression_that_forgets_the_noise_of_the_covariates_is_caught():
    honest, _ = regression_coverage("narrow", 20_000, 2.0, 100, coordinate=1)
    covered, error = regression_coverage("narrow", 20_000, 2.0, 100, saboteur=True, coordinate=1)
    assert covered < LEVEL - 0.02 - 3 * error < honest


def test_a_regression_given_all_of_its_sums_has_the_conjugate_posterior():
    """Without noise to speak of the law is that of y given X'X, and the conjugate posterior's first two moments follow."""
    rng, n = np.random.default_rng(10), 4000
    family = sf.families.LinearRegression(sf.Box([18.0, 0.0], [90.0, 2e5]), sf.Interval(0.0, 100.0), intercept=True)
    x = np.column_stack([rng.uniform(18, 90, n), rng.gamma(2.0, 2e4, n).clip(0, 2e5)])
    y = (20 + 0.4 * x[:, 0] + 1e-4 * x[:, 1] + rng.normal(0, 6, n)).clip(0, 100)
    with jax.enable_x64(True):
        total = np.asarray(jax.vmap(family.statistic)({"x": x, "y": y}).sum(0))
        found = noise_aware.sample_posterior(family, noise_aware.from_copies(total, 1e-4, n), None, draws=500, seed=2)
        law = family.posterior(jnp.asarray(total), n)
        exact = np.asarray(jax.vmap(law.sample)(jax.random.split(jax.random.key(0), 4000))["coefficients"])
    drawn = found.draws["coefficients"].reshape(-1, 3)
    assert np.all(np.abs(drawn.mean(0) - exact.mean(0)) < 0.15 * exact.std(0))
    assert np.allclose(drawn.std(0), exact.std(0), rtol=0.1)


def test_a_bundle_of_a_regression_is_as_good_in_raw_units():
    """Age in years, income in money: the release measures both from the middle of their domain, in half lengths."""
    raw = sf.families.LinearRegression(sf.Box([18.0, 0.0], [90.0, 2e5]), sf.Interval(0.0, 100.0), intercept=True)
    scaled = sf.families.LinearRegression(sf.Box(-1, 1, shape=(2,)), sf.Interval(-1, 1), intercept=True)
    assert shape_of(raw).diameter == pytest.approx(shape_of(scaled).diameter)
    x, y = np.array([[33.0, 5e4]]), np.array([70.0])
    with jax.enable_x64(True):
        a = raw.statistic({"x": x[0], "y": y[0]})
        b = scaled.statistic({"x": (x[0] - [54.0, 1e5]) / [36.0, 1e5], "y": (y[0] - 50.0) / 50.0})
    np.testing.assert_allclose(a, b, rtol=1e-12)


def test_where_little_is_heard_sums_of_covariates_stay_sums_of_squares():
    family = sf.families.LinearRegression(sf.Box(-1, 1, shape=(3,)), sf.Interval(-6, 6), intercept=True)
    rng, n = np.random.default_rng(11), 500
    for sd in (1.0, 60.0, 600.0):
        z = sd * rng.standard_normal(family.size)  # as if all covariates had been zero
        _, beside = family.beside(noise_aware.from_copies(z, sd**2, n))
        gram = family.unpack_gram(jnp.asarray(beside.mean), n)
        assert np.linalg.eigvalsh(gram)[0] > 0
        assert np.all(np.diag(gram)[1:] < n) and np.linalg.eigvalsh(beside.covariance)[0] > 0
