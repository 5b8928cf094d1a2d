"""The posterior given a noisy score and the information: closed forms where there are any, and saboteurs that must be caught."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sfumato as sf
from sfumato.analysis import local_normal
from sfumato.planner.placing import Asked
from sfumato.study.target import make_study

PRIOR_SD = 3.2
HERE, ONE = np.zeros(1), np.eye(1)


def height(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, PRIOR_SD))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def counts(y):
    rate = numpyro.sample("log_rate", dist.Normal(0.0, 1.0))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Poisson(jax.numpy.exp(rate)), obs=y)


@pytest.fixture(scope="module")
def study():
    return make_study(height, {"y": sf.Interval(-50.0, 50.0)})


def heard(score, noise, information=1.0, rough=1e-9, place=HERE):
    asked = [
        Asked("information", place, ONE, rough, np.array([information])),
        Asked("gradient", place, ONE, noise, np.array([score])),
    ]
    return local_normal.hear(asked, np.zeros(1, bool))


def moments(study, measured, n=1, **options):
    with jax.enable_x64(True):
        found = local_normal.answer(study.model, study.domain, n, measured, **options)
    mean = float(found.weight @ found.theta[:, 0])
    return mean, float(np.sqrt(found.weight @ (found.theta[:, 0] - mean) ** 2))


@pytest.mark.parametrize("straight", [True, False], ids=["straight", "bent"])
@pytest.mark.parametrize("variance", [0.01, 1.0, 100.0, 1e8])
def test_a_normal_model_has_the_closed_form_and_tends_to_the_prior(study, variance, straight):
    mean, sd = moments(study, heard(1.0, variance**0.5), straight=straight)
    precision = PRIOR_SD**-2 + 1 / (1 + variance)
    assert sd == pytest.approx(precision**-0.5, rel=0.05)
    assert mean == pytest.approx(1 / (1 + variance) / precision, abs=0.15 * precision**-0.5)


def test_the_noise_is_in_the_covariance_as_it_should_be(study):
    """Prior sd 3.2, information one, noise variance 100: 3.0, and not the 9.1 that adding the noise to the posterior gives."""
    _, sd = moments(study, heard(0.0, 10.0), straight=True)
    assert sd == pytest.approx(3.05, rel=0.04)


def test_rough_information_enters_as_if_it_were_integrated_out(study):
    """Twenty percent of noise in the information, the place three posterior standard deviations off: by quadrature."""
    information, rough, noise, score = 400.0, 80.0, 2.0, 60.0
    mean, sd = moments(study, heard(score, noise, information, rough), straight=True)
    theta, slope = np.meshgrid(
        np.linspace(-1, 2, 3001), np.linspace(information - 6 * rough, information + 6 * rough, 601)
    )
    log = -((score - slope * theta) ** 2) / (2 * (information + noise**2)) - (slope - information) ** 2 / (2 * rough**2)
    weight = np.exp(log - theta**2 / (2 * PRIOR_SD**2))
    weight /= weight.sum()
    there = float(np.sum(weight * theta))
    assert mean == pytest.approx(there, abs=0.1 * sd)
    assert sd == pytest.approx(float(np.sqrt(np.sum(weight * (theta - there) ** 2))), rel=0.05)
    _, sure = moments(study, heard(score, noise, information), straight=True)
    assert sd > 1.2 * sure


def test_silent_coordinates_are_told_by_the_prior_alone():
    """Records speak of the first coordinate only: what is heard in the other is noise, and tells of the noise in the first."""
    matrix = np.array([[1.0, 0.0], [0.5, 1.0]])
    rng = np.random.default_rng(0)
    score, answers = np.array([2.0, 0.0]), []
    for _ in range(4000):
        answer = matrix.T @ score + rng.standard_normal(2)
        asked = [
            Asked("information", np.zeros(2), matrix, 0.1, np.zeros(3)),
            Asked("gradient", np.zeros(2), matrix, 1.0, answer),
        ]
        found = local_normal.hear(asked, np.array([False, True]))
        answers.append(np.linalg.solve(found.root.T, found.score)[0])
    back = np.linalg.inv(found.root.T)
    assert np.mean(answers) == pytest.approx(2.0, abs=0.08)
    assert np.var(answers) == pytest.approx((back @ found.noise @ back.T)[0, 0], rel=0.1)


def test_the_mean_of_a_score_bends_as_the_model_says():
    """A Poisson rate of one at the place, of e at the truth: the score there is n(e - 1), which a straight line misses."""
    study, n = make_study(counts, {"y": sf.Integers(0, 60)}), 400
    expected = n * (np.e - 1)
    measured = heard(expected, 1e-3, information=n, rough=1e-3)
    bent, _ = moments(study, measured, n)
    straight, _ = moments(study, measured, n, straight=True)
    assert bent == pytest.approx(1.0, abs=0.12)
    assert straight > 1.5


def covered(noise_told, information_told, seed=0):
    """Share of 90 % intervals that hold the truth, truths from the prior: normal model, closed form of the same density."""
    rng = np.random.default_rng(seed)
    information, noise, hits, sets = 4.0, 3.0, 0, 400
    for _ in range(sets):
        truth = PRIOR_SD * rng.standard_normal()
        score = information * truth + information**0.5 * rng.standard_normal() + noise * rng.standard_normal()
        measured = heard(score, noise * noise_told, information=information * information_told)
        spread = measured.information[0, 0] + measured.noise[0, 0]
        precision = PRIOR_SD**-2 + measured.information[0, 0] ** 2 / spread
        mean = measured.information[0, 0] * measured.score[0] / spread / precision
        hits += abs(truth - mean) < 1.645 * precision**-0.5
    return hits / sets


def test_the_law_covers_and_saboteurs_do_not():
    assert 0.85 < covered(1.0, 1.0) < 0.95
    assert covered(1e-3, 1.0) < 0.8  # the noise left out of the covariance
    assert covered(1.0, 2.0) < 0.8  # the information counted twice
