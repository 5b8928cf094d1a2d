"""A plan names the two made-up records that set its price, and what would lower it, each with its draws."""

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sfumato as sf
from sfumato.planner.influence import Influence

DOMAIN = {"x": sf.Interval(-1, 1), "y": sf.Interval(-20, 20)}
PROMISE = {"n": 50_000, "domain": DOMAIN, "epsilon": 1.0, "delta": 1e-6, "guess": {"a": 0.3, "b": 0.5}}


def line(outcome):
    def model(x, y):
        a, b = numpyro.sample("a", dist.Normal(0, 2)), numpyro.sample("b", dist.Normal(0, 2))
        with numpyro.plate("records", len(x)):
            numpyro.sample("y", outcome(a + b * x), obs=y)

    return model


@pytest.fixture(scope="module")
def plan():
    return sf.plan(line(lambda mean: dist.Normal(mean, 1.0)), kernel="guided", **PROMISE)


def test_the_pair_attains_the_limit_and_is_at_the_ends_of_the_domain(plan):
    one, other = plan.influence.one, plan.influence.other
    assert {abs(float(one["y"])), abs(float(other["y"]))} == {20.0}
    scores = [(r["y"] - 0.3 - 0.5 * r["x"]) * np.array([1.0, r["x"]]) for r in (one, other)]
    root = np.linalg.cholesky(plan.belief.covariance)
    apart = np.linalg.norm(root.T @ (scores[0] - scores[1]))
    assert plan.mu**2 / apart**2 == pytest.approx(plan.limit_ess, rel=0.05)
    assert "in place of" in plan.table() and "y = " in plan.influence.price


def test_what_would_lower_the_price_keeps_its_promise(plan):
    ways = {way.words: way.draws for way in plan.influence.ways}
    narrow = next(words for words in ways if words.startswith("if y lies within"))
    low, high = (float(end) for end in narrow.split("[")[1].split("]")[0].split(", "))
    assert -6 < low < -2 < 2.5 < high < 6
    narrower = sf.plan(
        line(lambda mean: dist.Normal(mean, 1.0)),
        kernel="guided",
        **PROMISE | {"domain": DOMAIN | {"y": sf.Interval(low, high)}},
    )
    assert narrower.forecast_ess == pytest.approx(ways[narrow], rel=0.2)
    robust = next(words for words in ways if "sf.robust" in words)
    other = sf.plan(line(lambda mean: sf.robust(dist.Normal(mean, 1.0), beta=0.2)), kernel="guided", **PROMISE)
    assert other.limit_ess * plan.share_of_limit == pytest.approx(ways[robust], rel=0.2)
    assert other.limit_ess > 20 * plan.limit_ess
    assert not any("sf.robust" in way.words for way in other.influence.ways)


def test_it_survives_being_written_down(plan):
    again = Influence.from_dict(plan.influence.to_dict())
    assert (again.price, again.cure) == (plan.influence.price, plan.influence.cure)
    assert type(plan).read(plan.written()).influence.cure == plan.influence.cure
