"""Langevin on bundles: one copy becomes two that are independent, and the chain on them is exact."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import sfumato as sf
from helpers import CAUGHT, FALSE_ALARM
from sfumato.families.langevin import public_part
from sfumato.kernel import Langevin, PublicStream, State
from sfumato.kernel.langevin import SplitCopy
from sfumato.kernel.loop import compile_loop
from sfumato.run.copies import Corrections, TwoCopies
from sfumato.study.target import make_study

N, CHAINS, STEPS, XI = 400, 64, 3_000, 60.0
Y = (np.random.default_rng(3).random(N) < 0.3).astype(int)
FAMILY = sf.families.Bernoulli()
STUDY = make_study(FAMILY, kernel="langevin")
POSTERIOR = stats.beta(1 + Y.sum(), 1 + N - Y.sum())


ROUND = 0.01 * np.eye(2)
LONG = np.array([[3.0, 1.2], [1.2, 0.7]])


@pytest.mark.parametrize(("covariance", "variance"), [(ROUND, 0.03), (ROUND, 0.010001), (LONG, 3.6), (LONG, 90.0)])
def test_the_two_copies_are_independent_and_lose_nothing(covariance, variance):
    """Both are linear in the copy's noise and the public one: their covariance is read off the matrix, without sampling."""
    split, zero, root = SplitCopy(covariance, variance), np.zeros((2, 2)), np.linalg.cholesky(covariance)
    rows = [np.concatenate(pair) for pair in zip(split(root.T, zero), split(zero, np.eye(2)), strict=True)]
    first, second = rows  # from four standard normals, a row for each
    scale = float(np.abs(covariance).max())
    np.testing.assert_allclose(first.T @ second, 0.0, atol=1e-9 * scale)
    np.testing.assert_allclose(first.T @ first, variance * np.eye(2), atol=1e-9 * scale)
    np.testing.assert_allclose(second.T @ second, split.second_covariance, rtol=1e-6)
    precisions = np.eye(2) / variance + np.linalg.inv(split.second_covariance)
    np.testing.assert_allclose(precisions, np.linalg.inv(covariance), rtol=1e-6)
    assert np.array_equal(split(np.full(2, 7.0), np.zeros(2)), np.full((2, 2), 7.0))  # both are copies of the sum


@pytest.mark.parametrize("variance", [3.0, 3.51, np.nan])
def test_the_first_copy_must_be_the_noisier_one_in_every_direction(variance):
    with pytest.raises(sf.errors.InvalidInput, match="average more copies"):
        SplitCopy(LONG, variance)


def isotropic(copy, normal, variance, ratio):
    return SplitCopy(variance * np.eye(1), variance * (1 + 1 / ratio))(copy, normal)


def p_values(ratio=8.0, split=isotropic, copies_a_step=1):
    """t-tests across independent chains of mean, spread and tails of p against the Beta posterior."""
    step = 4 * copies_a_step / (XI * (1 + 1 / ratio))
    public = public_part(FAMILY, STUDY.model, N)
    kernel = Langevin(np.eye(1), step, public, copy_sigma=float(np.sqrt(4 * ratio / step)), averaged=1)
    stream, rng = PublicStream(2, CHAINS), np.random.default_rng(8)
    draws = stream.peek(kernel, STEPS)
    noise = rng.normal(0, np.sqrt(XI / copies_a_step), (STEPS, CHAINS, 1))
    fresh = TwoCopies(*split(Y.sum() + noise, draws.normal, XI / copies_a_step, ratio))
    with jax.enable_x64(True):
        theta = jnp.full((CHAINS, 1), -0.85)
        log_prior = jax.jit(jax.vmap(STUDY.model.log_prior))(theta)
        states = State(theta, log_prior, jnp.ones((CHAINS, 1)), jnp.full((CHAINS, 1), jnp.nan))
        source = Corrections(kernel, 1.0)
        loop = compile_loop(source, STUDY.model.log_prior, copies=True)
        looped, _ = loop(None, kernel, states, jnp.zeros((CHAINS, 0)), draws, fresh, STEPS, 0)
        draws = np.asarray(looped.transcript.theta)
    z = stats.norm.ppf(np.clip(POSTERIOR.cdf(1 / (1 + np.exp(-draws[STEPS // 5 :, :, 0]))), 1e-12, 1 - 1e-12))
    functions = [lambda x: x, lambda x: x**2, lambda x: (x > 1) * 1.0, lambda x: (x < -1) * 1.0]
    truths = [0.0, 1.0, stats.norm.sf(1), stats.norm.sf(1)]
    return [float(stats.ttest_1samp(f(z).mean(0), t).pvalue) for f, t in zip(functions, truths, strict=True)]


@pytest.mark.parametrize("ratio", [0.5, 8.0])
def test_it_is_exact_at_every_ratio(ratio):
    assert min(p_values(ratio)) > FALSE_ALARM / 4


def test_with_one_copy_in_both_places_it_is_not():
    """The copy that moves the chain decides as well: its noise is the proposal's."""

    def twice(copy, normal, variance, ratio):
        first, _ = isotropic(copy, normal, variance, ratio)
        return first, first

    assert min(p_values(1.0, split=twice)) < CAUGHT


def test_with_a_variance_that_is_not_the_copies_it_is_not():
    def wrong(copy, normal, variance, ratio):
        return isotropic(copy, normal, 3 * variance, ratio)

    assert min(p_values(8.0, split=wrong)) < CAUGHT


def test_a_run_on_a_bundle_takes_langevin_and_gets_most_of_the_limit():
    y = (np.random.default_rng(0).random(40_000) < 0.25).astype(int)
    bundle = sf.release(FAMILY, {"y": y}, epsilon=1.0, delta=1e-6, copies=12_000, progress=False)
    run = sf.sample(FAMILY, bundle, seed=4, progress=False)
    assert run.planned["kernel"] == "langevin" and run.planned["forecast_ess"] > 0.85 * run.planned["limit_ess"]
    posterior = stats.beta(1 + y.sum(), 1 + len(y) - y.sum())
    error = posterior.std() / np.sqrt(0.5 * run.planned["forecast_ess"])
    assert abs(run.draws["p"].mean() - posterior.mean()) < 5 * error
    assert run.verdict.level in ("good", "rough")
    used = run.pilot["copies"][0]
    assert used["used"] <= bundle.copies
    assert run.iterations * run.planned["chains"] * run.planned["averaged"] <= bundle.copies
    assert run.transcript["mu_squared"].sum() <= run.privacy.spent_mu**2 * (1 + 1e-9)
    assert np.array_equal(
        sf.sample(FAMILY, sf.Bundle(bundle._header, values=bundle._all()), seed=4, progress=False).draws["p"],
        run.draws["p"],
    )


def test_few_copies_are_left_to_a_walk():
    y = (np.random.default_rng(0).random(40_000) < 0.25).astype(int)
    bundle = sf.release(FAMILY, {"y": y}, epsilon=4.0, delta=1e-6, copies=300, progress=False)
    assert sf.sample(FAMILY, bundle, seed=4, force=True, progress=False).planned["kernel"] != "langevin"
    with pytest.raises(sf.errors.InvalidInput, match="ask its owner for more copies"):
        sf.sample(FAMILY, sf.Bundle(bundle._header, values=bundle._all()), kernel="langevin", progress=False)
