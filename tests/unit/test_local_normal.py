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


def covered_with_rough_information(told, sets=400, seed=0):
    """The same where the information is released with noise of half its size, and the place is a prior away; by quadrature."""
    study = make_study(height, {"y": sf.Interval(-50.0, 50.0)})
    rng, grid = np.random.default_rng(seed), np.linspace(-14, 14, 2800)[:, None]
    information, rough, hits = 40.0, 8.0, 0
    density = local_normal._densities(study.model, False, False)
    with jax.enable_x64(True):
        for _ in range(sets):
            truth = PRIOR_SD * rng.standard_normal()
            score = information * truth + information**0.5 * rng.standard_normal() + rng.standard_normal()
            released = max(information + rough * rng.standard_normal(), 1.0)
            measured = heard(score, 1.0, information=released, rough=rough * told)
            heights = np.asarray(density(grid, local_normal._constants(study.model, 1, measured, None)))
            below = np.cumsum(np.exp(heights - heights.max()))
            hits += 0.05 < np.interp(truth, grid[:, 0], below / below[-1]) < 0.95
    return hits / sets


def test_the_noise_of_the_information_must_be_told():
    assert 0.85 < covered_with_rough_information(1.0) < 0.95
    assert covered_with_rough_information(1e-6) < 0.7  # the noise of the information ignored


def spread_out(y):
    scale = numpyro.sample("log_scale", dist.Normal(0.0, 1.0))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Normal(0.0, jax.numpy.exp(scale)), obs=y)


def test_information_that_outcomes_have_a_part_in_is_no_slope():
    """At a scale of one, of records whose scale is two: the score is 3n and the information 8n, whose quotient says nothing."""
    study, n = make_study(spread_out, {"y": sf.Interval(-60.0, 60.0)}), 400
    measured = heard(3.0 * n, 1e-3, information=8.0 * n, rough=1e-3)
    bent, sd = moments(study, measured, n)
    assert bent == pytest.approx(np.log(2.0), abs=0.06)
    assert sd == pytest.approx((2 * n) ** -0.5, rel=0.25)
    straight, _ = moments(study, measured, n, straight=True)
    assert straight < 0.5


def test_outcomes_that_an_owner_clamps_are_made_up_clamped():
    """Normal outcomes about 1.5 in a domain that ends at one: two thirds are clamped, and the score is what is left of it."""
    study, n = make_study(height, {"y": sf.Interval(-1.0, 1.0)}), 400
    y = np.random.default_rng(0).normal(1.5, 1.0, 400_000).clip(-1.0, 1.0)
    measured = heard(n * y.mean(), 1e-3, information=n, rough=1e-3)
    mean, _ = moments(study, measured, n)
    assert mean == pytest.approx(1.5, abs=0.15)
    assert moments(study, measured, n, straight=True)[0] < 1.0  # as if nothing had been clamped


def ten(y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([10]).to_event(1))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Normal(beta.sum(), 1.0), obs=y)


def narrow(points, width=0.05):
    """Log density of a normal in ten dimensions, a twentieth of the prior wide, a prior standard deviation away."""
    return -np.sum(((points - 1.0) / width) ** 2, axis=1) / 2


def test_the_sampler_finds_a_narrow_answer_in_ten_dimensions_from_a_wrong_first_guess():
    model = make_study(ten, {"y": sf.Interval(-50.0, 50.0)}).model
    found = local_normal._adapt(model, (np.full(10, 0.8), 0.1**2 * np.eye(10)), narrow, 0)
    assert found.effective > local_normal.LEAST
    np.testing.assert_allclose(found.weight @ found.theta, 1.0, atol=0.01)
    np.testing.assert_allclose(found.weight @ (found.theta - 1.0) ** 2, 0.05**2, rtol=0.2)


def test_walkers_take_over_from_a_population_that_is_no_good():
    rng = np.random.default_rng(0)
    poor = 1.0 + 0.1 * rng.standard_normal((600, 10))
    weight = np.exp(narrow(poor) - narrow(poor).max())
    weight /= weight.sum()
    found = local_normal._walked(local_normal.Population(poor, weight, float(1 / np.sum(weight**2))), narrow, 0)
    np.testing.assert_allclose(found.weight @ found.theta, 1.0, atol=0.015)
    np.testing.assert_allclose(found.weight @ (found.theta - 1.0) ** 2, 0.05**2, rtol=0.35)
