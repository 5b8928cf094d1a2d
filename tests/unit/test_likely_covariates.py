"""Covariates that have the released information: where a reweighting would do, where it would not, and what none explains."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sfumato as sf
from sfumato.analysis.likely_covariates import RARE, SPREAD, Wanted, laws, likely
from sfumato.bounds import compiled
from sfumato.model.derivatives import matrix_to_triangle
from sfumato.study.target import make_study

COLUMNS, N, SIZE = 6, 1000, 1024


def line(x, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([COLUMNS]).to_event(1))
    scale = numpyro.sample("log_scale", dist.Normal(0.0, 0.5))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Normal(x @ beta, jax.numpy.exp(scale)), obs=y)


@pytest.fixture(scope="module")
def study():
    return make_study(line, {"x": sf.Box(-1.0, 1.0, shape=(COLUMNS,)), "y": sf.Interval(-20.0, 20.0)})


def wanted_of(study, x, noise=0.02):
    """The information that records with these covariates have at zero: x'x and, of a scale of one, two; in a whitened unit."""
    dim = COLUMNS + 1
    mean = np.zeros((dim, dim))
    mean[:COLUMNS, :COLUMNS], mean[-1, -1] = x.T @ x / len(x), 2.0
    root = np.linalg.inv(np.linalg.cholesky(N * (mean + 1e-3 * np.eye(dim)))).T
    numbers = matrix_to_triangle(N * root.T @ mean @ root)
    return Wanted("information", np.zeros(dim), root, np.ones(len(numbers), bool), numbers, noise)


def found(study, wanted, law, at=None, size=SIZE):
    with jax.enable_x64(True):
        about = np.zeros(COLUMNS + 1) if at is None else at
        return likely(study.model, study.domain, N, wanted, about, size, 0, loose=0.02, law=law)


def second_moments(covariates):
    weight = np.exp(covariates.log_weight) / np.sum(np.exp(covariates.log_weight))
    return (weight[:, None] * covariates.batch["x"]).T @ covariates.batch["x"]


def test_draws_are_led_to_skewed_columns_that_no_reweighting_of_uniform_ones_would_reach(study):
    x = 2 * np.random.default_rng(0).beta(0.8, 6.0, (4000, COLUMNS)) - 1
    wanted = wanted_of(study, x)
    covariates = found(study, wanted, SPREAD)
    assert np.all(np.abs(covariates.batch["x"]) <= 1.0)
    # Uniform columns have a second moment of a third, and none with each other: off by 0.6.
    np.testing.assert_allclose(second_moments(covariates), x.T @ x / len(x), atol=0.12)
    assert np.abs(np.eye(COLUMNS) / 3 - x.T @ x / len(x)).max() > 0.3


def test_rare_columns_are_explained_by_the_law_of_rare_ones(study):
    x = (np.random.default_rng(1).random((4000, COLUMNS)) < 0.03).astype(float)
    covariates = found(study, wanted_of(study, x), RARE)
    assert set(np.unique(covariates.batch["x"])) <= {-1.0, 0.0, 1.0}
    np.testing.assert_allclose(
        second_moments(covariates), x.T @ x / len(x), atol=0.06
    )  # the law itself has two thirds on the diagonal


def test_no_covariate_is_chosen_by_what_only_outcomes_move(study):
    """Outcomes drawn at a scale that is too small: the information of the scale is off, and covariates cannot mend that."""
    x = np.random.default_rng(2).uniform(-1.0, 1.0, (4000, COLUMNS))
    wrong = np.zeros(COLUMNS + 1)
    wrong[-1] = -0.3
    covariates = found(study, wanted_of(study, x), SPREAD, wrong)
    assert covariates.follows and covariates.apart > 0.02
    np.testing.assert_allclose(np.diag(second_moments(covariates)), 1 / 3, atol=0.06)


def test_both_laws_are_asked_where_a_column_is_continuous_and_one_where_all_are_whole_numbers(study):
    def coded(x, y):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=slope * x), obs=y)

    other = make_study(coded, {"x": sf.Binary(), "y": sf.Binary()})
    with jax.enable_x64(True):
        assert laws(study.model, study.domain, np.zeros(COLUMNS + 1), 28) == (SPREAD, RARE)
        assert laws(study.model, study.domain, np.zeros(COLUMNS + 1), 200) == (SPREAD,)  # too many to be led by
        assert laws(other.model, other.domain, np.zeros(1), 1) == (SPREAD,)


@pytest.mark.parametrize("what", ["gradient", "information", "outer"])
def test_vectors_of_many_records_are_those_of_each(study, what):
    from sfumato.bounds import synthetic
    from sfumato.model.derivatives import vector_function

    rng = np.random.default_rng(3)
    with jax.enable_x64(True):
        theta, matrix = 0.3 * rng.standard_normal(COLUMNS + 1), rng.standard_normal((COLUMNS + 1, COLUMNS + 1))
        batch = synthetic.uniform(study.model, study.domain, theta, size=5)
        all_of_them = compiled.vectors(study.model, what)(theta, matrix, batch)
        for i in range(5):
            record = {name: values[i] for name, values in batch.items()}
            one = vector_function(what, study.model, theta, matrix)(record)
            np.testing.assert_allclose(all_of_them[i], np.asarray(one), rtol=1e-9, atol=1e-9)
