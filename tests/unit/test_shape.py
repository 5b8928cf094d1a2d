"""The shape of a release's noise: an ellipsoid that a search finds, used only where it is forecast to help."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sfumato as sf
from sfumato.analysis import local_normal
from sfumato.bounds import compiled
from sfumato.bounds.reach import MARGIN, Search
from sfumato.planner import shape
from sfumato.planner.belief import assumed_belief, mean_information, prior_precision
from sfumato.planner.placing import Asked, place
from sfumato.study.target import make_study


def trial(treatment, x, y):
    treated = numpyro.sample("treated", dist.Normal(0.0, 2.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 2.0).expand([3]).to_event(1))
    sigma = numpyro.sample("sigma", dist.LogNormal(0.0, 0.5))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Normal(treated * treatment + x @ beta, sigma), obs=y)


N, MU_SQUARED = 5_000, 0.05
THETA = np.array([0.3, 0.1, -0.2, 0.2, -0.7])


@pytest.fixture(scope="module")
def known():
    study = make_study(trial, {"treatment": sf.Binary(), "x": sf.Box(-1, 1, shape=(3,)), "y": sf.Interval(-3, 3)})
    with jax.enable_x64(True):
        belief = assumed_belief(study.model, study.domain, N, THETA, None, "here")
        prior = prior_precision(study.model, THETA)
    return study, np.linalg.cholesky(belief.covariance), prior


def variances(known, matrix, search):
    """Posterior variances, in units of those without noise, after a release with this matrix."""
    _, root, prior = known
    radius = search.reach("gradient", THETA, matrix).radius
    noise = 4 * radius**2 / MU_SQUARED * np.linalg.inv(matrix @ matrix.T)
    information = np.linalg.inv(root @ root.T) - prior
    heard = information @ np.linalg.solve(information + noise, information)
    return np.diag(np.linalg.inv(prior + heard)) / np.sum(root**2, axis=1)


def test_the_error_of_what_is_in_focus_falls_and_of_all_together_too(known):
    study, root, prior = known
    with jax.enable_x64(True):
        search = Search(study.model, [study.domain])
        plain = variances(known, root, search)
        names = study.model.coordinate_names()
        everything = shape.coordinate_weights(names, None)
        every = variances(known, shape.shaped(search, THETA, root, prior, everything, MU_SQUARED), search)
        focus = shape.coordinate_weights(names, ["treated"])
        named = variances(known, shape.shaped(search, THETA, root, prior, focus, MU_SQUARED), search)
    assert every.sum() < shape.WORTH * plain.sum()
    assert named[0] < 0.8 * plain[0] and named[0] < every[0]
    assert named.max() < 1e3  # what is not in focus is heard, too


def test_no_other_shape_is_better_by_much(known):
    study, root, prior = known
    weight, rng = np.ones(5), np.random.default_rng(0)
    with jax.enable_x64(True):
        search = Search(study.model, [study.domain])
        best = shape.shaped(search, THETA, root, prior, weight, MU_SQUARED)
        least = variances(known, best, search).sum()
        others = [best @ (np.eye(5) + 0.25 * rng.standard_normal((5, 5))) for _ in range(40)]
        assert min(variances(known, other, search).sum() for other in others) > 0.93 * least


def test_a_ball_stays_a_ball():
    """Counts of flips: one coordinate, nothing to shape; and two alike."""

    def flips(y):
        p = numpyro.sample("p", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("y", dist.Normal(p, 1.0).to_event(1), obs=y)

    study = make_study(flips, {"y": sf.Ball(3.0, dim=2)})
    root, prior = 0.01 * np.eye(2), np.eye(2)
    with jax.enable_x64(True):
        search = Search(study.model, [study.domain])
        assert shape.shaped(search, np.zeros(2), root, prior, np.ones(2), 0.1) is root


def test_privacy_rests_on_the_ball_that_vectors_are_cut_to(known):
    """Whatever the shape: the radius asked for is what is charged, and the whole budget is not passed."""
    study, root, _ = known
    rng, asked = np.random.default_rng(1), []

    def release(what, theta, matrix, radius, sigma, centre):
        asked.append((2 * radius / sigma) ** 2)
        if what == "gradient":
            vectors = Search(study.model, [study.domain]).vectors(what, theta, matrix)
            assert np.linalg.norm(vectors - centre, axis=1).max() < MARGIN * radius
        size = len(theta) if what == "gradient" else len(theta) * (len(theta) + 1) // 2
        return sigma * rng.standard_normal(size)

    with jax.enable_x64(True):
        weight = shape.coordinate_weights(study.model.coordinate_names(), ["treated"])
        placed = place(
            study.model, study.domain, N, THETA, MU_SQUARED, release, covariance=root @ root.T, weight=weight
        )
    assert sum(asked) <= MU_SQUARED
    assert placed.asked[-1].what == "gradient"


def test_names_in_focus_are_sites_or_coordinates():
    names = ["treated", "beta[0]", "beta[1]", "beta_sd"]
    np.testing.assert_allclose(shape.coordinate_weights(names, ["beta"]) == 1, [False, True, True, False])
    np.testing.assert_allclose(shape.coordinate_weights(names, ["beta[1]", "treated"]) == 1, [True, False, True, False])


def answers(known, weight, sets):
    """Errors of answers to simulated releases, beside the standard deviations that they state: shape (sets, coordinates)."""
    study, root, prior = known
    rng, budget = np.random.default_rng(2), 0.2
    search = Search(study.model, [study.domain])
    matrix = root if weight is None else shape.shaped(search, THETA, root, prior, weight, budget)
    reach = search.reach("gradient", THETA, matrix)
    sigma, errors = 2 * reach.radius / budget**0.5, []
    for _ in range(sets):
        truth = THETA + root @ rng.standard_normal(5)
        treatment, x = rng.integers(0, 2, N), rng.uniform(-1, 1, (N, 3))
        y = truth[0] * treatment + x @ truth[1:4] + np.exp(truth[4]) * rng.standard_normal(N)
        batch = {"treatment": treatment, "x": x, "y": y.clip(-3, 3)}
        scores = np.asarray(compiled.scores(study.model)(THETA, batch)) @ matrix
        assert np.linalg.norm(scores - reach.centre, axis=1).max() < reach.radius  # no record is cut
        asked = [Asked("gradient", THETA, matrix, sigma, scores.sum(axis=0) + sigma * rng.standard_normal(5))]
        information = N * mean_information(study.model, THETA, batch)
        heard = local_normal.hear(asked, np.zeros(5, bool), information=information)
        mode, covariance = local_normal.normal_answer(study.model, heard)
        errors.append(np.stack([mode - truth, np.sqrt(np.diag(covariance))]))
    return np.swapaxes(np.array(errors), 0, 1)


def test_measured_errors_fall_as_forecast_and_intervals_still_cover(known):
    focus = shape.coordinate_weights(known[0].model.coordinate_names(), ["treated"])
    with jax.enable_x64(True):
        plain, _ = answers(known, None, 200)
        named, stated = answers(known, focus, 200)
    ratio = np.sqrt(np.mean(named[:, 0] ** 2) / np.mean(plain[:, 0] ** 2))
    assert ratio < 0.85
    covers = np.mean(np.abs(named) < 1.645 * stated, axis=1)
    assert abs(covers.mean() - 0.9) < 0.02 + 3 * covers.std() / 200**0.5
