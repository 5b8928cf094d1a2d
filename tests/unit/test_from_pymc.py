"""PyMC models in: the numbers are PyMC's own, and what does not fit is refused by the name of its variable."""

import os
import subprocess
import sys
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import sfumato as sf
from helpers import FALSE_ALARM
from sfumato.errors import InvalidInput, InvalidModel
from sfumato.files.study import load_model
from sfumato.model import from_numpyro
from sfumato.model.base import theta_of

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing")
    import pymc as pm
import pytensor
import pytensor.tensor as pt

ONE = {"y": sf.Interval(-3, 3)}
DOMAIN = {"x": sf.Ball(1.0, dim=2), "y": sf.Binary()}


def column(name, *shape, whole=False):
    """A container with two stand-in records."""
    return pm.Data(name, np.zeros((2, *shape), dtype=int if whole else float))


class Case(NamedTuple):
    """A model in PyMC and in NumPyro, and two parameters.

    PyTensor keeps a number such as 2.0 in float32, and so its logarithm: a constant of the density, exact to eight digits only.
    The cases have numbers such as 2.1, which need float64.
    """

    domain: dict[str, Any]
    model: pm.Model
    twin: Any
    theta: dict[str, Any]
    theta_prop: dict[str, Any]


def logistic():
    with pm.Model() as model:
        x, y = column("x", 2), column("y", whole=True)
        beta = pm.Normal("beta", 0, 1, shape=2)
        pm.Bernoulli("outcome", logit_p=x @ beta, observed=y)

    def twin(x, y):
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("outcome", dist.Bernoulli(logits=x @ beta), obs=y)

    return Case(DOMAIN, model, twin, {"beta": np.array([0.1, -0.2])}, {"beta": np.array([0.3, 0.1])})


def bernoulli():
    with pm.Model() as model:
        p = pm.Beta("p", 2.1, 3.3)
        pm.Bernoulli("outcome", p=p, observed=column("y", whole=True))

    def twin(y):
        p = numpyro.sample("p", dist.Beta(2.1, 3.3))
        with numpyro.plate("records", y.shape[0]):
            numpyro.sample("outcome", dist.Bernoulli(probs=p), obs=y)

    return Case({"y": sf.Binary()}, model, twin, {"p": 0.3}, {"p": 0.4})


def normal():
    with pm.Model() as model:
        m, s = pm.Normal("m", 0, 2.1), pm.HalfNormal("s", 1.3)
        pm.Normal("outcome", m, s, observed=column("y"))

    def twin(y):
        m, s = numpyro.sample("m", dist.Normal(0, 2.1)), numpyro.sample("s", dist.HalfNormal(1.3))
        with numpyro.plate("records", y.shape[0]):
            numpyro.sample("outcome", dist.Normal(m, s), obs=y)

    return Case(ONE, model, twin, {"m": 0.3, "s": 1.0}, {"m": 0.4, "s": 1.1})


def choice():
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1, shape=3)
        pm.Categorical("outcome", logit_p=column("x")[:, None] * a, observed=column("y", whole=True))

    def twin(x, y):
        a = numpyro.sample("a", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("outcome", dist.Categorical(logits=x[:, None] * a), obs=y)

    domain = {"x": sf.Interval(-1, 1), "y": sf.Categories(3)}
    return Case(domain, model, twin, {"a": np.array([0.2, 0.3, 0.5])}, {"a": np.array([0.25, 0.3, 0.45])})


CASES = {"logistic": logistic, "bernoulli": bernoulli, "normal": normal, "choice": choice}


def rich():
    """Transforms of all kinds, a support that moves, public evidence, two observed variables, a vector of numbers."""
    domain = {
        "x": sf.Box(-1, 1, shape=(3,)), "g": sf.Categories(2), "y": sf.Integers(0, 9), "z": sf.Box(-2, 2, shape=(2,))
    }  # fmt: skip
    with pm.Model(coords={"group": ["a", "b"]}) as model:
        x, y = pm.Data("x", np.zeros((4, 3)), dims=("people", "feature")), pm.Data("y", np.zeros(4, int), dims="people")
        g, z = column("g", whole=True), column("z", 2)
        weights = pm.Dirichlet("weights", np.ones(3))
        top = pm.HalfNormal("top", 1.0)
        rate = pm.Uniform("rate", 0, 1 + top)
        effect = pm.Normal("effect", 0, 1, dims="group")
        pm.Deterministic("share", rate / top)
        pm.Potential("evidence", pm.logp(pm.Normal.dist(0.2, 1.0), rate))
        pm.Poisson("counts", rate * pt.exp(x @ weights + effect[g]), observed=y, dims="people")
        pm.Normal("pair", effect, 1.0, observed=z)
    return domain, model


def records(domain, size, seed=0):
    rng = np.random.default_rng(seed)
    drawn = {name: d.sample(rng, size) for name, d in domain.items()}
    return {name: values.astype(np.int64) if domain[name].discrete else values for name, values in drawn.items()}


# -- the numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*CASES, "rich"])
def test_densities_and_values_are_pymcs_own(name):
    domain, model = rich() if name == "rich" else CASES[name]()[:2]
    built = sf.from_pymc(model, domain)
    table = records(domain, 5)
    with model:
        pm.set_data(table)
    point = model.initial_point(0)
    rng = np.random.default_rng(1)
    compiled = {"inputs": model.value_vars, "mode": "FAST_COMPILE", "on_unused_input": "ignore"}
    prior = model.compile_fn(model.logp(vars=[*model.free_RVs, *model.potentials]), **compiled)
    terms = model.compile_fn(model.logp(vars=model.observed_RVs, sum=False), **compiled)
    values = model.compile_fn(model.replace_rvs_by_values(model.free_RVs), **compiled)
    with jax.enable_x64(True):
        likelihood = jax.jit(jax.vmap(built.log_likelihood, (None, 0)))
        for _ in range(3):
            point = {value: rng.normal(scale=0.7, size=np.shape(start)) for value, start in point.items()}
            theta = jnp.asarray(np.concatenate([np.ravel(value) for value in point.values()]))
            assert float(built.log_prior(theta)) == pytest.approx(float(prior(point)), rel=1e-12)
            theirs = sum(term.reshape(5, -1).sum(axis=1) for term in terms(point))
            np.testing.assert_allclose(likelihood(theta, table), theirs, rtol=1e-10, atol=1e-12)
            ours = built.constrain(theta)
            assert list(ours) == [rv.name for rv in model.free_RVs]
            for mine, theirs in zip(ours.values(), values(point), strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=1e-12)
            np.testing.assert_allclose(built.unconstrain(ours), theta, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_the_numpyro_twin_computes_the_same_and_is_certified_the_same(name):
    case = CASES[name]()
    ours, theirs = sf.from_pymc(case.model, case.domain), from_numpyro(case.twin, case.domain)
    assert ours.sites == theirs.sites
    table = records(case.domain, 20)
    theta = theta_of(ours, case.theta, "theta")
    with jax.enable_x64(True):
        np.testing.assert_allclose(theta, theirs.unconstrain(case.theta), rtol=1e-12)
        assert float(ours.log_prior(theta)) == pytest.approx(float(theirs.log_prior(theta)), rel=1e-12)
        terms = [jax.vmap(model.log_likelihood, (None, 0))(theta, table) for model in (ours, theirs)]
        np.testing.assert_allclose(*terms, rtol=1e-10)
    ranges = [sf.certify(model, case.domain, case.theta, case.theta_prop) for model in (ours, theirs)]
    np.testing.assert_allclose(*ranges, rtol=1e-6)


def test_draws_from_the_prior_have_its_law():
    with pm.Model() as model:
        s = pm.HalfNormal("s", 2.0)
        pm.Normal("outcome", 0.0, s, observed=column("y"))
    built = sf.from_pymc(model, ONE)
    with jax.enable_x64(True):
        drawn = jax.vmap(built.sample_prior)(jax.random.split(jax.random.key(0), 4000))
        table = np.unique(jax.vmap(built.constrain)(drawn)["s"])
    assert stats.kstest(table, stats.halfnorm(scale=2.0).cdf).pvalue > FALSE_ALARM


def test_the_stand_in_records_are_not_read_and_the_precision_of_jax_is_left_alone():
    before = jax.config.jax_enable_x64
    first, second = logistic().model, logistic().model
    with second:
        pm.set_data({"x": np.full((7, 2), np.nan), "y": np.ones(7, int)})
    built = [sf.from_pymc(model, DOMAIN) for model in (first, second)]
    assert built[0].fingerprint() == built[1].fingerprint()
    assert jax.config.jax_enable_x64 == before


def test_the_fingerprint_is_that_of_what_is_computed():
    def with_scale(scale, table):
        with pm.Model() as model:
            m = pm.Normal("m", 0, scale)
            pm.Normal("outcome", m + pt.as_tensor(table)[column("k", whole=True)], 1.0, observed=column("y"))
        return sf.from_pymc(model, ONE | {"k": sf.Categories(2)}).fingerprint()

    prints = [with_scale(1, [0.0, 1.0]), with_scale(2, [0.0, 1.0]), with_scale(1, [0.0, 1.5])]
    assert len(set(prints)) == 3
    assert with_scale(1, [0.0, 1.0]) == prints[0]


def test_another_process_imports_pymc_when_asked_and_finds_the_same_fingerprint():
    """Whatever the order of its sets: a run is resumed, and a node is asked, by another process."""
    program = (
        f"import sys; sys.path[:0] = {sys.path!r}; import sfumato as sf; sf.from_pymc, sf.sample; "
        "print(sorted({'pymc', 'pytensor'} & set(sys.modules))); import test_from_pymc; "
        "domain, model = test_from_pymc.rich(); print(sf.from_pymc(model, domain).fingerprint())"
    )
    domain, model = rich()
    other = os.environ | {"PYTHONHASHSEED": str(hash("a") % 1000 + 1)}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], env=other, capture_output=True, check=True)
    assert done.stdout.decode().split() == ["[]", sf.from_pymc(model, domain).fingerprint()]


# -- sampling ---------------------------------------------------------------------------------------------------------


def on_a_grid(log_density, *axes):
    """Posterior means of functions of the parameters, by plain summation."""
    grid = np.meshgrid(*axes, indexing="ij")
    weight = log_density(*grid)
    weight = np.exp(weight - weight.max())
    return [np.sum(axis * weight) / weight.sum() for axis in grid]


def posterior(name):
    """Records, the coordinates to look at, and their exact posterior means."""
    rng, n = np.random.default_rng(4), 3_000 if name == "logistic" else 10_000
    if name == "bernoulli":
        y = (rng.random(n) < 0.35).astype(int)
        return {"y": y}, lambda draws: [draws["p"]], [(2.1 + y.sum()) / (5.4 + n)]
    if name == "normal":
        y = np.clip(rng.normal(0.5, 0.8, n), -3, 3)

        def density(m, s):
            square = np.sum(y**2) - 2 * m * np.sum(y) + n * m**2
            return -(m**2) / 8.82 - s**2 / 3.38 - n * np.log(s) - square / (2 * s**2)

        grid = np.linspace(0.4, 0.6, 201), np.linspace(0.7, 0.9, 201)
        return {"y": y}, lambda draws: [draws["m"], draws["s"]], on_a_grid(density, *grid)
    x = sf.Ball(1.0, dim=2).sample(rng, n)
    y = (rng.random(n) < 1 / (1 + np.exp(-x @ [1.0, -1.0]))).astype(int)

    def density(a, b):
        eta = a[..., None] * x[:, 0] + b[..., None] * x[:, 1]
        return -(a**2 + b**2) / 2 + np.sum(y * eta - np.logaddexp(0, eta), axis=-1)

    grid = np.linspace(0.5, 1.5, 41), np.linspace(-1.5, -0.5, 41)
    return {"x": x, "y": y}, lambda draws: [draws["beta"][..., 0], draws["beta"][..., 1]], on_a_grid(density, *grid)


@pytest.mark.parametrize("name", ["logistic", "bernoulli", "normal"])
def test_a_run_draws_from_the_posterior(name):
    """Means of independent chains, by Student's t, against the posterior on a grid: false alarms at the declared rate."""
    case = CASES[name]()
    data, coordinates, exact = posterior(name)
    run = sf.sample(
        sf.from_pymc(case.model, case.domain), data, domain=case.domain, epsilon=20.0, delta=1e-5, kernel="guided",
        chains=12, seed=1, max_iterations=500, force=True, progress=False,
    )  # fmt: skip
    for drawn, mean in zip(coordinates(run.draws), exact, strict=True):
        means = drawn[:, drawn.shape[1] // 2 :].mean(axis=1)
        assert stats.ttest_1samp(means, mean).pvalue > FALSE_ALARM / len(exact)


def test_a_plan_a_clip_and_a_study_file_take_it_like_any_other(tmp_path):
    case = bernoulli()
    built = sf.from_pymc(case.model, case.domain)
    terms = {"n": 1000, "domain": case.domain, "epsilon": 5.0, "delta": 1e-5, "kernel": "guided"}
    proven, clipped = sf.plan(built, **terms), sf.plan(built, **terms, sensitivity=sf.Clip(bound=1.0))
    assert proven.forecast_ess > clipped.forecast_ess > 0
    (tmp_path / "model.py").write_text(
        "import numpy as np, pymc as pm, sfumato as sf\n"
        "with pm.Model() as coin:\n"
        "    pm.Bernoulli('outcome', p=pm.Beta('p', 2.1, 3.3), observed=pm.Data('y', np.zeros(2, int)))\n"
        "model = sf.from_pymc(coin, {'y': sf.Binary()})\n"
    )
    assert load_model("model.py:model", tmp_path).fingerprint() == built.fingerprint()


# -- refusals ---------------------------------------------------------------------------------------------------------


def local_latent(y):
    z = pm.Normal("z", 0, 1, size=y.shape[0])
    pm.Normal("outcome", z, 1.0, observed=y)


def local_by_its_mean(y):
    b = pm.Normal("b", 0, 1)
    z = pm.Normal("z", b * y, 1.0)
    pm.Normal("outcome", z, 1.0, observed=y)


def as_long_as_the_stand_ins(y):
    z = pm.Normal("z", 0, 1, shape=2)
    pm.Normal("outcome", z, 1.0, observed=y)


def an_offset_for_each_stand_in(y):
    b = pm.Normal("b", 0, 1)
    pm.Normal("outcome", b + np.array([0.5, 1.0]), 1.0, observed=y)


def discrete_latent(y):
    k = pm.Bernoulli("k", 0.5)
    pm.Normal("outcome", k, 1.0, observed=y)


def prior_sees_the_records(y):
    b = pm.Normal("b", y.mean(), 1)
    pm.Normal("outcome", b, 1.0, observed=y)


def prior_counts_the_records(y):
    b = pm.Normal("b", 0, 1 / pt.sqrt(y.shape[0]))
    pm.Normal("outcome", b, 1.0, observed=y)


def transform_sees_the_records(y):
    interval = pm.distributions.transforms.Interval(bounds_fn=lambda *inputs: (0.0, 9.0 + y.max()))
    b = pm.HalfNormal("b", 1, transform=interval)
    pm.Normal("outcome", b, 1.0, observed=y)


def potential_sees_the_records(y):
    b = pm.Normal("b", 0, 1)
    pm.Potential("penalty", -pt.sum((y - b) ** 2))
    pm.Normal("outcome", b, 1.0, observed=y)


def mean_of_the_records(y):
    b = pm.Normal("b", 0, 1)
    pm.Normal("outcome", b + y.mean(), 1.0, observed=y)


def sorted_records(y):
    b = pm.Normal("b", 0, 1)
    pm.Normal("outcome", b, 1.0, observed=pt.sort(y) * pt.arange(y.shape[0]))


def neighbour(y):
    b = pm.Normal("b", 0, 1)
    pm.Normal("outcome", b * pt.roll(y, 1), 1.0, observed=y)


def one_density_for_all(y):
    b = pm.Normal("b", 0, 1)
    pm.MvNormal("outcome", b * pt.ones(y.shape[0]), cov=pt.eye(y.shape[0]), observed=y)


def records_along_the_last_axis(y):
    b = pm.Normal("b", 0, 1, shape=3)
    pm.Normal("outcome", b[:, None] + 0 * y, 1.0, observed=pt.stack([y, y, y]))


def its_own_data(y):
    b = pm.Normal("b", 0, 1)
    pm.Normal("outcome", b, 1.0, observed=np.zeros(2))


def missing_values(y):
    b = pm.Normal("b", 0, 1)
    pm.Normal("outcome", b, 1.0, observed=np.ma.masked_array(np.zeros(2), [True, False]))


def minibatch(y):
    b = pm.Normal("b", 0, 1)
    pm.Normal("outcome", b, 1.0, observed=y, total_size=100)


def nothing_observed(y):
    pm.Normal("b", 0, 1)


def nothing_free(y):
    pm.Normal("outcome", 0, 1.0, observed=y)


def improper(y):
    b = pm.Flat("b")
    pm.Normal("outcome", b, 1.0, observed=y)


def other_data(y):
    b = pm.Normal("b", 0, 1)
    pm.Normal("outcome", b + pm.Data("w", np.zeros(2)), 1.0, observed=y)


def random_within(y):
    b = pm.Normal("b", 0, 1)
    pm.Normal("outcome", b + pm.Normal.dist(0, 1), 1.0, observed=y)


def simulated(y):
    b = pm.Normal("b", 0, 1)
    pm.Simulator("outcome", lambda rng, b, size: rng.normal(b, 1.0, size=size), b, epsilon=1.0, observed=y)


def prints(y):
    b = pm.Normal("b", 0, 1)
    pm.Normal("outcome", b * pytensor.printing.Print("records")(y), 1.0, observed=y)


def not_in_jax(y):
    b = pm.Normal("b", 0, 1)
    pm.Normal("outcome", b + pt.erfcx(y), 1.0, observed=y)


def a_shape_that_may_be_negative(y):
    a = pm.Normal("a", 1.0, 1.0)
    pm.Gamma("outcome", alpha=a, beta=1.0, observed=pm.math.exp(y))


def a_shape_that_is_hardly_ever_negative(y):
    a = pm.Normal("a", 3.0, 0.5)  # six sd from zero: no draw of the prior is beyond, a posterior may be
    pm.Gamma("outcome", alpha=a, beta=1.0, observed=pm.math.exp(y))


@pytest.mark.filterwarnings("ignore:Data in .* contains missing values")
@pytest.mark.parametrize(
    ("write", "site", "rule", "way_out"),
    [
        (local_latent, "z", "local latent variable", "marginalise it out"),
        (local_by_its_mean, "z", "local latent variable", "marginalise it out"),
        (as_long_as_the_stand_ins, "z", "one log-density per record", "no latent variable"),
        (an_offset_for_each_stand_in, "outcome", "one log-density per record", "no constant"),
        (discrete_latent, "k", "discrete latent variable", "marginalise it out"),
        (prior_sees_the_records, "b", "depends on the records", "as plain numbers"),
        (prior_counts_the_records, "b", "depends on the records", "as plain numbers"),
        (transform_sees_the_records, "b", "depends on the records", "as plain numbers"),
        (potential_sees_the_records, "penalty", "looks at the records", "observed variable"),
        (mean_of_the_records, "outcome", "depends on other records", "public constants"),
        (sorted_records, "outcome", "depends on other records", "public constants"),
        (neighbour, "outcome", "depends on other records", "public constants"),
        (one_density_for_all, "outcome", "one log-density per record", "first axis"),
        (records_along_the_last_axis, "outcome", "one log-density per record", "first axis"),
        (its_own_data, "outcome", "holds its data inside", "observed=pm.Data"),
        (missing_values, "outcome_observed", "holds its data inside", "observed=pm.Data"),
        (minibatch, "outcome", "total_size", "Leave total_size= out"),
        (nothing_observed, None, "must have an observed variable", "observed="),
        (nothing_free, None, "at least one free", "nothing to infer"),
        (improper, "b", "must be proper", "pm.Normal"),
        (other_data, "w", "does not declare ['w']", "domain="),
        (random_within, None, "a model must run in JAX", "Random variables"),
        (simulated, None, "draws random numbers", "give each random variable a name"),
        (prints, None, "No JAX conversion for the given `Op`: Print", "without it"),
        (not_in_jax, None, "No JAX implementation", "without it"),
        (a_shape_that_may_be_negative, "outcome", "can be out of its range", "pm.HalfNormal"),
        (a_shape_that_is_hardly_ever_negative, "outcome", "can be out of its range", "pm.HalfNormal"),
    ],
)
def test_models_that_do_not_fit_are_refused_by_the_name_of_the_variable(write, site, rule, way_out):
    with pm.Model() as model:
        write(column("y"))
    with pytest.raises(InvalidModel) as caught:
        sf.from_pymc(model, ONE)
    message = str(caught.value)
    assert caught.value.site == site
    assert site is None or repr(site) in message
    assert rule in message and way_out in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("container", "domain", "words"),
    [
        (np.zeros((2, 3)), sf.Box(-1, 1, shape=(2,)), "it holds an array of shape (2, 3)"),
        (np.zeros(()), sf.Interval(0, 1), "one row for each record"),
        (np.zeros(2, int), sf.Interval(0, 1), "cut the numbers"),
        (np.zeros(2, np.int8), sf.Integers(0, 1000), "cannot hold all"),
        (np.zeros(2, bool), sf.Integers(0, 2), "cannot hold all"),
    ],
)
def test_a_container_must_hold_what_its_domain_says(container, domain, words):
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1)
        x = pytensor.shared(container, "x")
        model.register_data_var(x)
        pm.Normal("outcome", b * x.sum(), 1.0, observed=column("y"))
    with pytest.raises(InvalidModel) as caught:
        sf.from_pymc(model, ONE | {"x": domain})
    assert words in str(caught.value)
    assert caught.value.site == "x"


def test_what_is_no_pymc_model_and_what_the_domain_has_too_much_is_told():
    case = normal()
    with pytest.raises(InvalidModel, match=r"takes a pymc.Model, got function"):
        sf.from_pymc(case.twin, case.domain)
    with pytest.raises(InvalidModel, match=r"no pm.Data of the model"):
        sf.from_pymc(case.model, case.domain | {"w": sf.Binary()})
    with pytest.raises(InvalidInput, match="domain must map"):
        sf.from_pymc(case.model, None)
    with pytest.raises(InvalidModel, match=r"sf.from_pymc\(model, domain\)"):
        sf.certify(case.model, case.domain, {}, {})


def test_single_precision_is_refused(monkeypatch):
    monkeypatch.setattr(pytensor.config, "floatX", "float32")
    with pytest.raises(InvalidInput, match="float64"):
        sf.from_pymc(normal().model, ONE)


def test_a_multivariate_normal_outcome_is_certified():
    domain = {"z": sf.Box(-1, 1, shape=(2,))}
    with pm.Model() as model:
        m = pm.Normal("m", 0, 1, shape=2)
        pm.MvNormal("outcome", m, cov=np.eye(2) + 0.3, observed=column("z", 2))
    built = sf.from_pymc(model, domain)
    low, high = sf.certify(built, domain, {"m": np.zeros(2)}, {"m": np.ones(2)})
    z = np.random.default_rng(0).uniform(-1, 1, (500, 2))
    met = (z - 0.5) @ np.linalg.solve(np.eye(2) + 0.3, np.ones(2))  # the log ratio of two means is linear in the record
    assert low <= met.min() < met.max() <= high
    assert high - low < 2 * 2.5  # between the corners it moves by 2.5


def test_without_the_extra_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymc", None)
    with pytest.raises(InvalidInput, match=r"pip install 'sfumato\[pymc\]'"):
        sf.from_pymc(object(), ONE)


def test_probabilities_that_need_not_add_up_are_refused_and_those_that_do_are_taken():
    """The formula of a categorical outcome takes any numbers for probabilities, and would reward large ones."""
    for probabilities, fits in ((pm.math.exp, False), (pm.math.softmax, True)):
        with pm.Model() as model:
            w = pm.Normal("w", 0, 1, shape=3)
            pm.Categorical("outcome", p=probabilities(w), observed=pm.Data("k", np.zeros(2, dtype=int)))
        if fits:
            assert sf.from_pymc(model, {"k": sf.Integers(0, 2)}).dim == 3
        else:
            with pytest.raises(InvalidModel, match="'outcome' can be out of its range"):
                sf.from_pymc(model, {"k": sf.Integers(0, 2)})
