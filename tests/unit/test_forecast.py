"""What a plan foretells of an estimate: bounded by the posterior without privacy on one side, by the prior on the other."""

import re

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sfumato as sf
from sfumato.errors import NotArrived, PlanTooWeak
from sfumato.planner import Plan

N, PRIOR_SD, NOISE_SD, REACH = 4_000, 5.0, 2.0, 10.0


def height(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, PRIOR_SD))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, NOISE_SD), obs=y)


DOMAIN = {"y": sf.Interval(-REACH, REACH)}
EPSILONS = (1e-4, 0.01, 0.2, 1.0, 8.0)


@pytest.fixture(scope="module")
def plans():
    return [sf.plan(height, n=N, domain=DOMAIN, epsilon=epsilon, delta=1e-6) for epsilon in EPSILONS]


def test_a_normal_mean_is_foretold_as_its_algebra_says(plans):
    """The noisy mean has variance tau^2/n + (2R/(n mu))^2 / w; the prior's precision adds."""
    without = 1 / (1 / PRIOR_SD**2 + N / NOISE_SD**2)
    for plan in plans:
        score = 0.69 * plan.mu**2  # what is left when the place was found and the information asked for
        noisy = NOISE_SD**2 / N + (2 * REACH / N) ** 2 / score
        width = (1 / (1 / PRIOR_SD**2 + 1 / noisy) / without) ** 0.5
        # The ball that the score is cut to has a margin of five hundredths.
        assert plan.estimate.width_ratio == pytest.approx(width, rel=0.06)
        assert plan.estimate.error_sd == pytest.approx((plan.estimate.width_ratio**2 - 1) ** 0.5)
        low, high = plan.estimate.band
        assert 1 <= low <= plan.estimate.width_ratio <= high <= PRIOR_SD / without**0.5 + 1e-9
    widths = [plan.estimate.width_ratio for plan in plans]
    assert widths == sorted(widths, reverse=True) and widths[-1] < 1.01
    assert plans[0].estimate.mostly_prior and "mostly prior" in plans[0].table()
    assert not plans[2].estimate.mostly_prior


def test_hopeless_plans_carry_it_and_their_refusal_offers_it(plans):
    for plan in plans:
        assert str(plan.estimate) in plan.table()
        assert plan.to_dict()["estimate"]["width_ratio"] == plan.estimate.width_ratio
        assert Plan.read(plan.written()).estimate == plan.estimate
    weak = plans[2]
    assert weak.hopeless
    with pytest.raises(
        PlanTooWeak, match=re.escape(f"sf.estimate answers at this budget: {weak.estimate}. ")
    ) as caught:
        weak.refuse_if_weak()
    assert caught.value.plan.estimate is weak.estimate


def test_a_pilot_that_did_not_arrive_offers_what_it_left():
    table = {"y": np.random.default_rng(0).normal(3.0, NOISE_SD, 40_000).clip(-REACH, REACH)}
    with pytest.raises(NotArrived) as caught:
        sf.sample(
            height, table, domain=DOMAIN, epsilon=3.0, delta=1e-6, pilot_share=0.002, chains=2, max_iterations=400, progress=False
        )  # fmt: skip
    error = caught.value
    left = float(
        re.search(r"sf\.estimate answers with what is left \(epsilon=(\S+) at the same delta\)", str(error))[1]
    )
    assert 0.99 * error.left < sf.gdp.mu(left, 1e-6) ** 2 <= error.left
    assert error.estimate.band is None and 1 < error.estimate.width_ratio < 1.1
    assert str(error.estimate) in error.instead


def test_a_plan_on_bundles_promises_no_estimate():
    y = (np.arange(2_000) % 3 == 0).astype(int)
    bundle = sf.release(sf.families.Bernoulli(), {"y": y}, epsilon=0.1, delta=1e-6, copies=100)
    with pytest.raises(PlanTooWeak) as caught:
        sf.sample(sf.families.Bernoulli(), bundle)
    assert caught.value.plan.estimate is None and "sf.estimate" not in str(caught.value)
