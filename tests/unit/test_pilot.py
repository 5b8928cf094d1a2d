"""What the pilot makes of its releases: post-processing, so anything may be tested with made-up noise."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sfumato as sf
from sfumato.kernel import PublicStream
from sfumato.model.derivatives import matrix_to_triangle
from sfumato.planner.compiled import prior_draws
from sfumato.planner.forecast import Picture
from sfumato.planner.pilot import FAMILY_SCHEDULE, Answered, _information, _place, _straight, run_pilot
from sfumato.study import make_study

REPEATS = 400


def noisy_gradients(rng, mode, covariance, sigmas, starts):
    """Gradients of a normal log posterior, with the noise a pilot has: whitened by the covariance."""
    root = np.linalg.cholesky(covariance)
    noise = np.linalg.inv(root).T
    slopes = [np.linalg.solve(covariance, mode - start) for start in starts]
    return [
        Answered(start, slope + noise @ (sigma * rng.standard_normal(len(mode))), sigma * noise)
        for start, slope, sigma in zip(starts, slopes, sigmas, strict=True)
    ]


def test_all_gradients_place_the_centre_together():
    rng = np.random.default_rng(0)
    covariance = np.array([[2.0, 0.9], [0.9, 1.0]])
    white = np.linalg.inv(np.linalg.cholesky(covariance))
    mode, sigmas = np.array([1.0, -2.0]), (1.0, 0.5)
    starts = [mode + [1.0, 0.0], mode + [0.0, 0.5]]
    off, told = [], set()
    for _ in range(REPEATS):
        centre, error = _place(noisy_gradients(rng, mode, covariance, sigmas, starts), covariance)
        off.append(white @ (centre - mode))
        told.add(round(error, 9))
    expected = sum(s**-2 for s in sigmas) ** -0.5
    assert told == {round(expected, 9)}
    assert np.sqrt(np.mean(np.square(off))) == pytest.approx(expected, rel=0.1)


def test_gradients_from_where_the_posterior_is_no_parabola_are_not_heard():
    rng = np.random.default_rng(0)
    mode = np.zeros(2)
    answers = noisy_gradients(
        rng, mode, np.eye(2), (1.0, 1.0, 1.0, 1.0), [mode + 50.0, mode + 3.0, mode + 1.0, mode + 9.0]
    )
    far, bent, near, last = answers

    def bend(theta):
        return 0.05 * theta**2

    assert _straight(answers, mode, bend, np.eye(2)) == [near, last]
    assert _straight(answers, mode, np.zeros_like, np.eye(2)) == [bent, near, last]


def released(rng, truth, sigma):
    triangle = matrix_to_triangle(truth)
    return triangle + sigma * rng.standard_normal(len(triangle))


@pytest.mark.parametrize("spread", [0.0, 0.05, 1.0])
def test_stein_never_makes_the_information_worse_nor_calls_it_better_than_it_is(spread):
    rng = np.random.default_rng(1)
    dim, sigma = 8, 0.02
    truth = np.eye(dim) + spread * np.diag(np.linspace(-0.5, 0.5, dim))
    losses, said, raw = [], [], sigma * (dim * (dim + 1) / 2) ** 0.5
    for _ in range(REPEATS):
        found, rough = _information(released(rng, truth, sigma), np.eye(dim), sigma)
        losses.append(np.sum((found - truth) ** 2))
        said.append(rough**2)
    loss = np.mean(losses) ** 0.5
    assert loss < raw * (1.01 if spread == 1.0 else 0.9)
    assert 0.9 * loss < np.mean(said) ** 0.5 < 1.1 * raw
    if spread == 1.0:
        assert np.mean(said) ** 0.5 == pytest.approx(loss, rel=0.1)


def test_one_parameter_has_nothing_to_draw_together():
    found, rough = _information(np.array([1.3]), np.eye(1), 0.1)
    assert found == pytest.approx(1.3)
    assert rough == pytest.approx(0.1)


@pytest.mark.parametrize("error", [0.0, 0.4, 0.9])
def test_starts_are_as_far_from_the_mode_as_draws(error):
    """Over pilots and starts together; about a centre that is off by `error`, starts with the whole covariance are not."""
    rng = np.random.default_rng(2)
    covariance = np.array([[2.0, 0.9], [0.9, 1.0]])
    root = np.linalg.cholesky(covariance)
    pictures = [Picture(root @ (error * rng.standard_normal(2)), covariance, "", error) for _ in range(4000)]
    starts = np.stack([PublicStream(i, 1).starts(p.centre, p.start)[0] for i, p in enumerate(pictures)])
    assert np.cov(starts.T) == pytest.approx(covariance, rel=0.12)


def test_chains_never_start_at_one_point():
    picture = Picture(np.zeros(1), np.eye(1), "", error=3.0)
    assert 0 < picture.start[0, 0] < 0.1


def test_however_small_the_budget_the_centre_stays_where_the_prior_believes():
    """Answers that are nothing but noise: no single one, nor all of them together, may carry the centre away."""
    rng = np.random.default_rng(3)
    family = sf.families.Bernoulli()
    model = family.to_model()

    def release(what, theta, matrix, radius, sigma):
        return sigma * rng.standard_normal(1)

    with jax.enable_x64(True):
        found = run_pilot(model, family.domain, 1000, np.zeros(1), 1e-12, release, schedule=FAMILY_SCHEDULE)
    spread = np.diff(np.quantile(prior_draws(model), [0.16, 0.84]))[0] / 2
    assert np.abs(found.picture.centre).max() <= 3 * 4 * spread
    assert found.picture.error > 1e3


def level(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def test_records_of_an_owner_with_a_wider_domain_are_not_cut_off():
    """The radius of every release covers what any owner's records may say."""
    narrow, wide = ({"y": sf.Interval(-b, b)} for b in (1.0, 2.0))
    model = make_study(level, narrow).model

    def first_radius(domain, others=()):
        seen = []

        def release(what, theta, root, radius, sigma):
            seen.append(radius)
            return np.zeros(1)

        with jax.enable_x64(True):
            run_pilot(model, domain, 1000, np.zeros(1), 0.01, release, FAMILY_SCHEDULE, others=others)
        return seen[0]

    radii = first_radius(narrow), first_radius(narrow, (wide,)), first_radius(wide)
    assert radii[0] == pytest.approx(radii[1] / 2) and radii[1] == pytest.approx(radii[2])
