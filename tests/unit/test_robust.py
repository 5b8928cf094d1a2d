"""Density-power losses: the formulas, the weight, what a search must find inside of a domain, and that everything says so."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import integrate

import sfumato as sf
from sfumato.bounds import searched, synthetic
from sfumato.bounds.climbing import Climber
from sfumato.bounds.reach import Search, diameter
from sfumato.bounds.searched import SearchedReference
from sfumato.errors import InvalidInput, InvalidModel
from sfumato.model.power_integral import log_power_integral
from sfumato.model.robust import Robust, plain, target_of
from sfumato.planner import Plan
from sfumato.planner.belief import assumed_belief
from sfumato.planner.limit import limit_ess
from sfumato.privacy import gdp
from sfumato.study.target import make_study

BETA = 0.2
DOMAIN = {"x": sf.Box(-1, 1, shape=(2,)), "y": sf.Interval(-8, 8)}


def line(robust=True, scale=False, beta=BETA, weight=None, sd=1.0):
    def model(x, y):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1.0)) if scale else sd
        with numpyro.plate("records", y.shape[0]):
            d = dist.Normal(x @ slope, sigma)
            numpyro.sample("y", sf.robust(d, beta=beta, weight=weight) if robust else d, obs=y)

    return model


@cache
def study_of(robust=True, scale=False):
    return make_study(line(robust, scale), DOMAIN)


# -- formulas -----------------------------------------------------------------------------------------------------------

REAL = [
    (dist.Normal(0.3, 1.7), -40, 40), (dist.LogNormal(0.3, 0.7), 0, 200), (dist.HalfNormal(1.3), 0, 30),
    (dist.StudentT(3.0, 0.2, 1.4), -np.inf, np.inf), (dist.Cauchy(0.1, 0.5), -np.inf, np.inf),
    (dist.Laplace(0.0, 0.8), -60, 60), (dist.Logistic(0.1, 0.8), -60, 60), (dist.Exponential(1.7), 0, 40),
    (dist.Gamma(2.2, 1.3), 0, 60), (dist.Gamma(0.7, 1.3), 0, 60), (dist.Weibull(1.3, 1.8), 0, 60), (dist.Beta(2.0, 3.0), 0, 1),
]  # fmt: skip
COUNTED = [
    (dist.Bernoulli(probs=0.3), 2), (dist.Bernoulli(logits=-2.0), 2), (dist.Categorical(probs=np.array([0.2, 0.5, 0.3])), 3),
    (dist.Categorical(logits=np.array([0.2, 0.5, -1.0])), 3), (dist.OrderedLogistic(0.3, np.array([-1.0, 0.4, 2.0])), 4),
    (dist.Binomial(7, probs=0.3), 8), (dist.Binomial(7, logits=0.3), 8), (dist.Poisson(3.7), 10**5),
    (dist.Poisson(1e-3), 10**5), (dist.Poisson(1900.0), 10**5), (dist.Poisson(20_000.0), 10**5),
    (dist.NegativeBinomial2(3.0, 1.4), 10**5), (dist.NegativeBinomial2(300.0, 0.4), 10**5),
    (dist.NegativeBinomialLogits(2.0, logits=0.3), 10**5), (dist.GeometricProbs(0.3), 10**5),
    (dist.ZeroInflatedPoisson(0.3, rate=2.0), 10**5), (dist.ZeroInflatedNegativeBinomial2(2.0, 3.0, gate=0.4), 10**5),
]  # fmt: skip


@pytest.mark.parametrize(("distribution", "low", "high"), REAL, ids=lambda d: type(d).__name__)
def test_integrals_of_powers_are_those_of_quadrature(distribution, low, high):
    with jax.enable_x64(True):
        one = jax.jit(distribution.log_prob)
        for beta in (0.1, 1.0):
            wanted = integrate.quad(lambda y, b=beta: np.exp((1 + b) * float(one(y))), low, high, limit=200)[0]
            assert float(log_power_integral(distribution, beta)) == pytest.approx(np.log(wanted), abs=1e-6)


@pytest.mark.parametrize(("distribution", "outcomes"), COUNTED, ids=lambda d: type(d).__name__)
def test_sums_of_powers_are_those_over_all_outcomes(distribution, outcomes):
    with jax.enable_x64(True):
        log_density = np.asarray(distribution.log_prob(np.arange(outcomes)))
        for beta in (0.1, 1.0):
            wanted = np.log(np.exp((1 + beta) * log_density).sum())
            assert float(log_power_integral(distribution, beta)) == pytest.approx(wanted, abs=1e-6)


def test_an_integral_that_diverges_is_infinite_and_its_loss_impossible():
    tiny = dist.Gamma(0.1, 1.0)
    assert float(log_power_integral(tiny, 0.5)) == np.inf
    assert float(sf.robust(tiny, beta=0.5).log_prob(1.0)) == -np.inf
    assert np.isfinite(float(sf.robust(tiny, beta=0.05).log_prob(1.0)))


def test_the_loss_tends_to_the_log_density():
    with jax.enable_x64(True):
        y = np.linspace(-5, 5, 11)
        d = dist.Normal(0.3, 1.7)
        assert np.allclose(sf.robust(d, beta=1e-6).log_prob(y), d.log_prob(y), atol=1e-4)


@pytest.mark.parametrize(
    "distribution",
    [lambda t: dist.Normal(t, 1.3), lambda t: dist.Poisson(jnp.exp(t)), lambda t: dist.Gamma(2.0, jnp.exp(t))],
)
def test_the_largest_mean_loss_is_at_the_truth(distribution):
    with jax.enable_x64(True):
        truth = 0.4
        y = distribution(truth).sample(jax.random.key(0), (200_000,))
        slope = jax.vmap(jax.grad(lambda t, v: sf.robust(distribution(t)).log_prob(v)), (None, 0))(truth, y)
        assert abs(float(slope.mean())) < 4.5 * float(slope.std()) / np.sqrt(len(y))


def test_wrapped_distributions_are_seen_through():
    y = jnp.array([[0.1, -2.0, 3.0], [0.4, 0.0, 9.0]])
    each = Robust(dist.Normal(0.0, 1.0), BETA, None)
    assert np.allclose(sf.robust(dist.Normal(0.0, 1.0).expand([2, 3])).log_prob(y), each.log_prob(y))
    assert np.allclose(each.expand((2, 3)).to_event(1).log_prob(y), each.log_prob(y).sum(1))
    # One event of three is one outcome: its density is a product, and it is forgotten as a whole.
    joint = sf.robust(dist.Normal(0.0, 1.0).expand([2, 3]).to_event(1))
    full = sf.robust(dist.MultivariateNormal(jnp.zeros(3), jnp.eye(3)))
    assert np.allclose(joint.log_prob(y), full.log_prob(y), atol=1e-6)
    masked = sf.robust(dist.Normal(0.0, 1.0).expand([2, 3]).mask(y < 2))
    assert np.allclose(masked.log_prob(y), jnp.where(y < 2, each.log_prob(y), 0.0))
    assert isinstance(plain(each.expand((2, 3)).to_event(1)).base_dist.base_dist, dist.Normal)


@pytest.mark.parametrize("beta", [0.0, -0.1, 1.5, True, "0.2", jnp.float32(0.2)])
def test_beta_is_a_plain_number(beta):
    with pytest.raises(InvalidInput, match="beta"):
        sf.robust(dist.Normal(), beta=beta)


def test_a_distribution_without_a_formula_is_refused_by_name():
    with pytest.raises(InvalidInput, match="Gumbel"):
        sf.robust(dist.Gumbel())
    with pytest.raises(InvalidInput, match="weight"):
        sf.robust(dist.Normal(), weight=0.0)


def test_an_outcome_outside_of_the_support_is_refused_as_ever():
    def model(y):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
        with numpyro.plate("records", y.shape[0]):
            numpyro.sample("y", sf.robust(dist.Exponential(rate)), obs=y)

    with pytest.raises(InvalidModel, match="Exponential"):
        make_study(model, {"y": sf.Interval(-1, 5)})


# -- the weight -----------------------------------------------------------------------------------------------------------


def test_the_weight_of_a_line_is_the_known_one():
    found = study_of().model.loss
    wanted = (2 * np.pi) ** (BETA / 2) * ((1 + 2 * BETA) / (1 + BETA)) ** 1.5
    assert found.weight == pytest.approx(wanted, rel=0.03)
    assert "prior" in found.place
    with jax.enable_x64(True):
        target = target_of(study_of().model, DOMAIN, np.array([0.5, -0.5]), "there")
    efficiency = (1 + 2 * BETA) ** 1.5 / (1 + BETA) ** 3  # 0.959
    assert np.allclose(list(target.ratios.values()), 1.0, atol=0.04)
    assert np.allclose(list(target.efficiency.values()), efficiency, atol=0.03)


def test_a_weight_that_is_stated_is_taken_and_one_of_two_is_refused():
    model = make_study(line(weight=3.0), DOMAIN).model
    record = {"x": np.array([0.3, 0.2]), "y": 1.0}
    with jax.enable_x64(True):
        own = study_of().model
        ratio = model.log_likelihood(jnp.zeros(2), record) / own.log_likelihood(jnp.zeros(2), record)
        target = target_of(model, DOMAIN, np.zeros(2), "there")
    assert float(ratio) == pytest.approx(3.0 / own.loss.weight)
    assert target.uncalibrated and f"weight={target.here:g}" in target.sentence
    assert max(target.ratios.values()) < 0.8  # twice the weight: intervals are too narrow by the root of two

    def two(y, z):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        with numpyro.plate("records", y.shape[0]):
            numpyro.sample("y", sf.robust(dist.Normal(mean, 1.0)), obs=y)
            numpyro.sample("z", sf.robust(dist.Normal(mean, 1.0), weight=2.0), obs=z)

    with pytest.raises(InvalidModel, match="one weight"):
        make_study(two, {"y": sf.Interval(-5, 5), "z": sf.Interval(-5, 5)})


def test_a_site_beside_a_plain_one_is_weighed_alone():
    def two(y, z):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        with numpyro.plate("records", y.shape[0]):
            numpyro.sample("y", sf.robust(dist.Normal(mean, 1.0)), obs=y)
            numpyro.sample("z", dist.Normal(mean, 1.0), obs=z)

    model = make_study(two, {"y": sf.Interval(-5, 5), "z": sf.Interval(-5, 5)}).model
    with jax.enable_x64(True):
        first, second = model.observations(jnp.array([0.1]), {"y": 1.0, "z": 2.0})
    assert first.scale == pytest.approx(1.51, rel=0.04)
    assert second.scale == 1.0


# -- what a search must find ------------------------------------------------------------------------------------------------


def dense(study, number=401):
    """All corners of x, and every y: the furthest record is among them, as near as no matter."""
    y = np.linspace(-8, 8, number)
    corners = np.array([[a, b] for a in (-1.0, 1.0) for b in (-1.0, 1.0)])
    return {"x": np.repeat(corners, number, axis=0), "y": np.tile(y, 4)}


def place(study):
    theta = np.array([0.5, -0.4] + [np.log(0.9)] * (study.model.dim - 2))
    with jax.enable_x64(True):
        return theta, assumed_belief(study.model, study.domain, 100_000, theta, None, "")


def white_scores(study, theta, root):
    with jax.enable_x64(True):
        scores = jax.vmap(jax.grad(study.model.log_likelihood), (None, 0))(theta, dense(study))
    return np.asarray(scores) @ root


def reach_is_enough(study):
    """Whether balls and ranges that a search finds hold every record of a dense grid."""
    theta, belief = place(study)
    root = np.linalg.cholesky(belief.covariance)
    reference = SearchedReference(study.model, study.domain)
    with jax.enable_x64(True):
        found = reference.at(theta, root)
        cut = np.asarray(jax.vmap(lambda r: reference.whitened(found.body, root, r))(dense(study)))
        held = [np.allclose(cut, white_scores(study, theta, root), rtol=1e-9, atol=1e-12)]
        rng = np.random.default_rng(7)
        scores = jax.vmap(jax.grad(study.model.log_likelihood), (None, 0))(theta, dense(study))
        for step in (0.1, 1.0):
            here = theta + root @ rng.standard_normal(len(theta))
            there = here + step**0.5 * root @ rng.standard_normal(len(theta))
            low, high = reference.range(found.anchor, here, there, jnp.zeros(len(theta)))
            density = jax.vmap(study.model.log_likelihood, (None, 0))
            rest = density(there, dense(study)) - density(here, dense(study)) - scores @ (there - here)
            held.append(bool((rest >= low).all() and (rest <= high).all()))
    return all(held)


@pytest.mark.parametrize("scale", [False, True])
def test_a_search_finds_the_furthest_record_inside_of_the_domain(scale):
    study = study_of(scale=scale)
    theta, belief = place(study)
    root = np.linalg.cholesky(belief.covariance)
    widest = diameter(white_scores(study, theta, root))
    with jax.enable_x64(True):
        met = diameter(Search(study.model, [study.domain]).vectors("gradient", theta, root))
        corners = diameter(
            np.asarray(
                jax.vmap(jax.grad(study.model.log_likelihood), (None, 0))(theta, synthetic.extreme(study.domain))
            )
            @ root
        )
    assert 0.97 * widest < met < 1.001 * widest
    assert corners < 0.5 * widest  # the record that sets the price lies one to two sds off, not at the ends
    assert reach_is_enough(study)


def test_a_search_over_corners_alone_is_caught(monkeypatch):
    study = study_of()

    def corners(domain, size):
        return synthetic.extreme(domain, size)

    monkeypatch.setattr(searched, "mixed", lambda domain, rng, size: corners(domain, size))
    monkeypatch.setattr(
        synthetic, "uniform", lambda model, domain, theta, size=synthetic.SIZE, *a, **k: corners(domain, size)
    )
    monkeypatch.setattr(Climber, "step", lambda self, value, record: (dict(record), value(record)))
    assert not reach_is_enough(study)


@pytest.mark.parametrize(("scale", "times"), [(False, 5), (True, 15)])
def test_bounded_influence_lifts_the_limit(scale, times):
    found, mu = [], gdp.mu(2.0, 1e-6)
    for robust in (False, True):
        study = study_of(robust, scale)
        theta, belief = place(study)
        found.append(limit_ess(study.model, study.domain, belief, mu))
        widest = diameter(white_scores(study, theta, np.linalg.cholesky(belief.covariance)))
        assert found[-1] == pytest.approx(mu**2 / widest**2, rel=0.06)
    assert found[1] > times * found[0]


# -- everything says so -------------------------------------------------------------------------------------------------------


def test_owners_whose_domains_give_other_weights_are_refused():
    rng = np.random.default_rng(0)

    def owner(name, most):
        x = rng.uniform(-1, 1, (500, 2))
        table = {"x": x, "y": np.clip(rng.normal(size=500), -8, 8)}
        domain = {"x": sf.Box(-1, 1, shape=(2,)), "y": sf.Interval(-8, 8), "z": sf.Interval(0.1, most)}
        return sf.Owner(table | {"z": rng.uniform(0.1, most, 500)}, name=name, domain=domain)

    def model(x, y, z):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("records", y.shape[0]):
            numpyro.sample("y", sf.robust(dist.Normal(x @ slope, z), beta=0.5), obs=y)

    with pytest.raises(InvalidInput, match=r"weight of sf\.robust"):
        sf.sample(model, [owner("a", 1.0), owner("b", 9.0)], epsilon=1.0, delta=1e-6)


@cache
def drawn():
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, (30_000, 2))
    table = {"x": x, "y": np.clip(x @ [0.5, -0.4] + rng.standard_normal(30_000), -8, 8)}
    return sf.sample(line(), table, domain=DOMAIN, epsilon=6.0, delta=1e-6, chains=2, seed=1, max_iterations=300)


def test_plan_statement_verdict_summary_and_report_say_that_it_is_a_generalised_posterior(tmp_path):
    plan = sf.plan(line(), n=30_000, domain=DOMAIN, epsilon=6.0, delta=1e-6, chains=2)
    assert "target" in dict(plan.rows()) and "generalised posterior" in plan.table()
    assert Plan.read(plan.written()).target == plan.target
    run = drawn()
    assert "generalised posterior" in run.verdict.reasons[0]
    assert "generalised posterior" in repr(run.summary()).replace("\n", " ").split(". ")[0]
    said = str(run.privacy)
    assert "exact generalised posterior" in said
    assert "slope[0] " in said and "slope[1] " in said  # each parameter's ratio
    run.save(tmp_path / "run.npz")
    assert sf.load(tmp_path / "run.npz").verdict.reasons[0] == run.verdict.reasons[0]
    assert "generalised posterior" in run.report(tmp_path / "run.html").read_text()


def test_an_estimate_says_so():
    rng = np.random.default_rng(2)
    x = rng.uniform(-1, 1, (30_000, 2))
    table = {"x": x, "y": np.clip(x @ [0.5, -0.4] + rng.standard_normal(30_000), -8, 8)}
    found = sf.estimate(line(), table, domain=DOMAIN, epsilon=2.0, delta=1e-6, draws=500, seed=1)
    assert "generalised posterior" in found.verdict.reasons[1]
    assert "generalised posterior" in str(found.privacy)
    mean = found.draws["slope"].reshape(-1, 2)
    assert np.all(np.abs(mean.mean(0) - [0.5, -0.4]) < 5 * mean.std(0))


def test_intervals_that_are_not_calibrated_make_a_run_rough():
    run = drawn()
    wide = replace(
        run, planned=run.planned | {"target": run.planned["target"] | {"ratios": {"slope[0]": 0.7, "slope[1]": 1.0}}}
    )
    assert wide.verdict.level != "good"
    assert any("not calibrated" in reason for reason in wide.verdict.reasons)
