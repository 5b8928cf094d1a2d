"""Families where models go: studies, plans, runs, checkpoints."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import sfumato as sf
from sfumato import families as f
from sfumato.bounds import synthetic
from sfumato.errors import CheckpointError, InvalidInput, InvalidModel, Unsupported
from sfumato.study.target import make_study

RNG = np.random.default_rng(7)
N = 20_000
YES = {"y": RNG.random(N) < 0.3}
COVARIATES = RNG.uniform(-1, 1, (N, 2))
REGRESSION = f.LinearRegression(x=sf.Box(-1, 1, shape=(2,)), y=sf.Interval(-4, 4))


@pytest.fixture(autouse=True)
def private_state(tmp_path, monkeypatch):
    monkeypatch.setenv("SFUMATO_STATE", str(tmp_path / "state"))


# -- studies --------------------------------------------------------------------------------------------------------------


def test_a_family_brings_domain_and_exact_bounds():
    study = make_study(f.Poisson(max_count=9))
    assert study.domain == {"y": sf.Integers(0, 9)}
    assert study.bounds.kind == "exact" and study.bounds.proven
    assert make_study(f.MultivariateNormalMeanCovariance(y=sf.Box(-1, 1, shape=(6,)))).bounds.kind == "certified"


def test_a_domain_given_too_must_be_the_familys():
    make_study(f.Poisson(max_count=9), {"y": sf.Integers(0, 9)})
    with pytest.raises(InvalidInput, match="leave domain= out"):
        make_study(f.Poisson(max_count=9), {"y": sf.Integers(0, 10)})
    with pytest.raises(InvalidInput, match="Only a family"):
        make_study(lambda y: None)


def test_other_sensitivities_are_respected():
    assert make_study(f.Bernoulli(), sensitivity=sf.Clip(bound=0.1)).bounds.kind == "clipped"
    with pytest.raises(InvalidInput, match="sensitivity must be"):
        make_study(f.Bernoulli(), sensitivity="guess")


def test_exact_bounds_are_no_wider_than_certified_ones():
    def model(y):
        import numpyro

        rate = numpyro.sample("rate", dist.Gamma(1.0, 0.4))
        with numpyro.plate("records", y.shape[0]):
            numpyro.sample("obs", dist.Poisson(rate), obs=y)

    family = f.Poisson(max_count=10)
    lo, hi = sf.certify(model, family.domain, {"rate": 2.0}, {"rate": 2.3})
    with jax.enable_x64(True):
        ends = family.ratio_range({"rate": jnp.asarray(2.0)}, {"rate": jnp.asarray(2.3)})
    assert float(ends[0]) >= lo - 1e-9 and float(ends[1]) <= hi + 1e-9


# -- priors and identity --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "message"),
    [
        (f.Poisson(max_count=9, prior=dist.Normal(0.0, 1.0)), "must stay within"),
        (f.Poisson(max_count=9, prior={"lambda": dist.Gamma(1.0, 1.0)}), "name the sites"),
        (f.Categorical(3, prior=dist.Dirichlet(np.ones(4))), "shape"),
        (f.Gamma(lower=0.1, upper=2.0, prior=dist.Gamma(1.0, 1.0)), "dict with the sites"),
        (f.Bernoulli(prior={"p": 0.5}), "must be a NumPyro distribution"),
    ],
)
def test_priors_that_do_not_fit_are_refused(family, message):
    with pytest.raises(InvalidModel, match=message):
        family.to_model()


def test_fingerprints_tell_settings_and_priors_apart():
    same = [f.Poisson(max_count=9), f.Poisson(max_count=9)]
    others = [
        f.Poisson(max_count=10),
        f.Geometric(max_count=9),
        f.Poisson(max_count=9, prior=dist.Gamma(2.0, 1.0)),
        f.Poisson(max_count=9, prior=dist.Gamma(2.0, 1.5)),
        f.Poisson(max_count=9, prior=dist.LogNormal(2.0, 1.5)),
    ]
    prints = [family.source() for family in same + others]  # the model's fingerprint is its hash
    assert prints[0] == prints[1]
    assert len(set(prints)) == len(others) + 1
    assert repr(same[0]) == "Poisson(max_count=9)"


@pytest.mark.parametrize(
    "make",
    [
        lambda: f.Binomial(trials=0),
        lambda: f.Bernoulli(trials=2),
        lambda: f.Poisson(max_count=2.5),
        lambda: f.Categorical(1),
        lambda: f.Exponential(upper=0.0),
        lambda: f.Gamma(lower=0.0, upper=1.0),
        lambda: f.Beta(lower=0.1, upper=1.0),
        lambda: f.Normal(scale=0.0, lower=0, upper=1),
        lambda: f.NormalMeanScale(lower=1, upper=1),
        lambda: f.MultivariateNormal(np.eye(3), y=sf.Ball(1.0, dim=2)),
        lambda: f.MultivariateNormal(-np.eye(2), y=sf.Ball(1.0, dim=2)),
        lambda: f.MultivariateNormalMeanCovariance(y=sf.Interval(0, 1)),
        lambda: f.LinearRegression(x=sf.Box(-1, 1, shape=(2,)), y=sf.Ball(1.0, dim=1)),
        lambda: f.LogLinear({}),
        lambda: f.LogLinear({"a": 2}, interactions=[("a", "b")]),
        lambda: f.LogLinear({f"c{i}": 4 for i in range(7)}),
    ],
)
def test_settings_that_make_no_sense_are_refused(make):
    with pytest.raises(InvalidInput):
        make()


def test_what_a_family_does_not_have_is_said():
    with jax.enable_x64(True):
        values = {"coefficients": jnp.zeros(2), "scale": jnp.asarray(1.0)}
        with pytest.raises(Unsupported, match="moments_given"):
            REGRESSION.mean(values)
        with pytest.raises(Unsupported, match="no conjugate posterior"):
            f.Beta(lower=0.1, upper=0.9).posterior(jnp.zeros(2), 3)


# -- moments, densities over the natural parameter ------------------------------------------------------------------------


def test_moments_of_a_regression_given_the_covariates():
    family = f.LinearRegression(x=sf.Ball(2.0, dim=2), y=sf.Interval(-9, 9), intercept=True)
    with jax.enable_x64(True):
        values = {"coefficients": jnp.array([0.5, 1.0, -2.0]), "scale": jnp.asarray(0.7)}
        x, draws = jnp.array([0.3, -0.8]), 200_000
        y = 0.5 + x @ jnp.array([1.0, -2.0]) + 0.7 * jax.random.normal(jax.random.key(0), (draws,))
        statistics = np.asarray(jax.vmap(lambda one: family.statistic({"x": x, "y": one}))(y))
        mean, covariance = family.moments_given(values, x)
    assert np.allclose(mean, statistics.mean(0), atol=6 * statistics.std(0).max() / draws**0.5)
    assert np.allclose(covariance, np.cov(statistics.T), atol=0.03 * np.abs(covariance).max())


@pytest.mark.parametrize(
    ("family", "grid"),
    [(f.Bernoulli(), np.linspace(-30, 30, 4001)), (f.Exponential(upper=4.0), -np.geomspace(1e-9, 60, 8001)[::-1])],
)
def test_the_prior_over_the_natural_parameter_is_a_density(family, grid):
    with jax.enable_x64(True):
        density = np.exp(jax.vmap(family.log_prior_natural)(jnp.asarray(grid)[:, None]))
    assert np.trapezoid(density, grid) == pytest.approx(1.0, abs=1e-4)


# -- plans and runs -------------------------------------------------------------------------------------------------------


def test_a_family_that_was_used_can_be_pickled():
    family = f.NormalMeanScale(lower=-3, upper=2)
    with jax.enable_x64(True):
        drawn = family.sample(family.prior_draws(0)[0], jax.random.key(0), 5)
        copy = pickle.loads(pickle.dumps(family))  # noqa: S301 (just written)
        assert np.array_equal(copy.sample(copy.prior_draws(0)[0], jax.random.key(0), 5)["y"], drawn["y"])
    assert family.to_model().fingerprint() == copy.to_model().fingerprint()
    assert family.diameter() == copy.diameter()


def test_made_up_records_lie_in_the_domain():
    for family in (f.Poisson(max_count=3), REGRESSION, f.NormalMeanScale(lower=-0.1, upper=0.1)):
        model = family.to_model()
        with jax.enable_x64(True):
            theta = np.asarray(model.unconstrain(family.prior_draws(0)[0]))
            batch = synthetic.uniform(model, family.domain, theta, 500)
        assert all(column.contains(np.asarray(batch[name], float)).all() for name, column in family.domain.items())


@pytest.mark.parametrize(
    ("family", "truth", "guess", "records"),
    [
        (f.Poisson(max_count=12), {"rate": 3.0}, {"rate": 4.0}, {"y": RNG.poisson(3.0, N)}),
        (
            f.NormalMeanScale(lower=-4, upper=4),
            {"mean": 0.5, "scale": 1.0},
            {"mean": 0.0, "scale": 1.15},
            {"y": RNG.normal(0.5, 1.0, N)},
        ),
        (
            REGRESSION,
            {"coefficients": [1.0, -0.5], "scale": 0.8},
            {"coefficients": [0.5, 0.0], "scale": 0.9},
            {"x": COVARIATES, "y": COVARIATES @ [1.0, -0.5] + RNG.normal(0, 0.8, N)},
        ),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, f.Family) else "",
)
def test_a_sensible_guess_forecasts_within_a_factor_of_four(family, truth, guess, records):
    settings = {"n": N, "epsilon": 3.0, "delta": 1e-6, "kernel": "guided"}
    inside = {name: column.clamp(np.asarray(records[name], float))[:2000] for name, column in family.domain.items()}
    before = sf.plan(family, guess={k: np.asarray(v) for k, v in guess.items()}, **settings)
    known = sf.plan(family, guess={k: np.asarray(v) for k, v in truth.items()}, example=inside, **settings)
    assert "records drawn from the family" in before.assumptions
    assert 0.25 < before.forecast_ess / known.forecast_ess < 4


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of a family with the kernels that models use, and its checkpoint."""
    base = tmp_path_factory.mktemp("family")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SFUMATO_STATE", str(base / "state"))
        run = sf.sample(
            f.Bernoulli(), YES, epsilon=1.0, delta=1e-6, kernel="guided", seed=1, guess={"p": 0.4}, checkpoint=base / "run",
            progress=False,
        )  # fmt: skip
    return base, run


def test_a_run_finds_the_conjugate_posterior(finished):
    _, run = finished
    with jax.enable_x64(True):
        exact = f.Bernoulli().posterior(jnp.array([float(YES["y"].sum())]), N)["p"]
        mean, sd = float(exact.mean), float(exact.variance) ** 0.5
    draws = run.draws["p"]
    ess = run.planned["forecast_ess"]
    assert abs(draws.mean() - mean) < 6 * sd / (ess / 4) ** 0.5
    assert 0.5 < draws.std() / sd < 2.0
    assert "exact range" in run.privacy.sensitivity


def test_a_forecast_holds_in_the_run(finished):
    import arviz

    _, run = finished
    planned = sf.plan(f.Bernoulli(), n=N, epsilon=1.0, delta=1e-6, kernel="guided", guess={"p": 0.4})
    assert 0.25 < planned.forecast_ess / float(arviz.ess(run.draws["p"])) < 4


def test_a_run_is_resumed_by_passing_the_family(finished, monkeypatch):
    base, run = finished
    monkeypatch.setenv("SFUMATO_STATE", str(base / "state"))
    again = sf.resume(base / "run", YES, model=f.Bernoulli(), progress=False)
    assert np.array_equal(again.transcript["theta"][:, : run.iterations], run.transcript["theta"])
    with pytest.raises(CheckpointError, match="not the one"):
        sf.resume(base / "run", YES, model=f.Bernoulli(prior=dist.Beta(2.0, 2.0)))
    with pytest.raises(InvalidInput, match="pass the same one as model="):
        sf.resume(base / "run", YES)
