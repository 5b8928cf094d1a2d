"""A pilot that did not arrive stops its run before the chain spends; with a checkpoint the run goes on from there."""

from types import SimpleNamespace

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sfumato as sf
from sfumato.errors import InvalidInput, NotArrived
from sfumato.privacy.budget import QUANTA_PER_UNIT
from sfumato.run import piloting


def height(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 30.0))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 2.0), obs=y)


DOMAIN = {"y": sf.Interval(-10.0, 10.0)}
TABLE = {"y": np.random.default_rng(0).normal(3.0, 2.0, 40_000).clip(-10, 10)}
BUDGET = {"epsilon": 3.0, "delta": 1e-6}
SHORT = {"max_iterations": 400, "chains": 2, "progress": False}


def test_a_pilot_that_cannot_arrive_stops_the_run_and_says_what_is_left(tmp_path):
    with sf.Ledger(tmp_path / "ledger.sqlite", **BUDGET) as ledger:
        with pytest.raises(NotArrived, match="posterior standard deviations off") as caught:
            sf.sample(height, TABLE, domain=DOMAIN, **BUDGET, pilot_share=0.002, ledger=ledger, **SHORT)
        spent = ledger.spent / QUANTA_PER_UNIT
    error = caught.value
    assert error.off_by > 3
    assert error.spent == pytest.approx(spent, rel=0.02)  # the chain has spent nothing
    assert error.spent + error.left == pytest.approx(sf.gdp.mu(3.0, 1e-6) ** 2, rel=1e-3)
    assert "force=True" in str(error) and "guess=" in str(error)


def test_a_pilot_that_is_near_by_its_own_reckoning_says_that_its_last_gradient_contradicts_it():
    plan = sf.plan(height, n=40_000, domain=DOMAIN, **BUDGET)
    about = {"arrived": False, "share": 0.1, "off_by": 1.4, "limit": 99.0, "early": False}
    with pytest.raises(NotArrived, match="its last gradient is longer than") as caught:
        piloting.refuse_unless_arrived(plan, piloting.Found(plan.belief, about), None)
    assert "1.4 posterior" not in str(caught.value) and caught.value.off_by == 1.4
    with pytest.raises(NotArrived, match=r"up to 3\.6 posterior standard deviations off"):
        piloting.refuse_unless_arrived(plan, piloting.Found(plan.belief, about | {"off_by": 3.6}), None)


@pytest.mark.parametrize("owners", [False, True], ids=["table", "owners"])
def test_a_run_whose_limit_is_hopeless_stops_early_and_says_what_would_do(owners):
    """The plan hopes for covariates that fill their domain; these hardly do, so ten times as few draws are to be had."""

    def slope(x, y):
        beta = numpyro.sample("beta", dist.Normal(0.0, 2.0))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=beta * x), obs=y)

    rng = np.random.default_rng(3)
    x = rng.normal(0.0, 0.02, 20_000).clip(-1, 1)
    table = {"x": x, "y": (rng.random(20_000) < 1 / (1 + np.exp(-x))).astype(int)}
    half = [sf.Owner({k: v[i::2] for k, v in table.items()}, name=str(i)) for i in range(2)]
    domain = {"x": sf.Interval(-1.0, 1.0), "y": sf.Binary()}
    with pytest.raises(NotArrived, match="no sampler can get more than about") as caught:
        sf.sample(slope, half if owners else table, domain=domain, epsilon=2.0, delta=1e-6, **SHORT)
    error = caught.value
    # The limit that it saw is noisy; what stops it is that twenty draws, which a run must promise, are out of reach.
    assert error.limit < 20 and error.spent < 0.08 * (error.spent + error.left)
    assert "epsilon" in str(error) and "records" in str(error)


def test_no_pilot_gives_up_by_what_it_sees_from_far_away():
    """Where the scale is unknown, scores are many times as long 50 standard deviations off; the limit is about 30 draws."""

    def scaled(y):
        mean, scale = numpyro.sample("mean", dist.Normal(0.0, 30.0)), numpyro.sample("scale", dist.HalfNormal(5.0))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("y", dist.Normal(mean, scale), obs=y)

    for _ in range(8):  # one in three gave up
        with pytest.raises(NotArrived) as caught:
            sf.sample(
                scaled,
                TABLE,
                domain=DOMAIN,
                epsilon=4.0,
                delta=1e-6,
                pilot_share=0.01,
                max_iterations=50,
                progress=False,
            )
        assert "no sampler" not in str(caught.value) and caught.value.limit > 15


def test_forced_to_go_on_the_run_says_do_not_use():
    run = sf.sample(height, TABLE, domain=DOMAIN, **BUDGET, pilot_share=0.002, force=True, **SHORT)
    assert run.verdict.level == "unusable"
    assert "did not arrive" in str(run.verdict)


@pytest.mark.parametrize("owners", [False, True], ids=["table", "owners"])
@pytest.mark.parametrize("said", [{}, {"guess": {"mean": 3.5}}], ids=["share", "guess"])
def test_a_checkpoint_goes_on_with_a_guess_or_a_larger_share(tmp_path, owners, said):
    half = len(TABLE["y"]) // 2
    parts = [
        sf.Owner({"y": TABLE["y"][part]}, name=name) for name, part in (("a", slice(half)), ("b", slice(half, None)))
    ]
    data = parts if owners else TABLE
    folder = tmp_path / "run"
    with pytest.raises(NotArrived, match=r"sf\.resume"):
        sf.sample(height, data, domain=DOMAIN, **BUDGET, pilot_share=0.002, checkpoint=folder, **SHORT)
    notes = len(list(folder.glob("pilot-*.json")))
    with pytest.raises(NotArrived) as again:  # nothing new was said: nothing is asked, nothing is spent
        sf.resume(folder, data, model=height, progress=False)
    assert len(list(folder.glob("pilot-*.json"))) == notes
    run = sf.resume(folder, data, model=height, progress=False, pilot_share=0.1, **said)
    assert len(list(folder.glob("pilot-*.json"))) > notes
    assert run.pilot["arrived"] and run.pilot["share"] > again.value.spent / sf.gdp.mu(3.0, 1e-6) ** 2
    assert run.verdict.usable
    mean = run.summary().loc["mean"]
    assert abs(mean["mean"] - TABLE["y"].mean()) < 5 * mean["mcse_mean"] + 0.3 * mean["sd"]
    with pytest.raises(InvalidInput, match="the pilot of this one has"):
        sf.resume(folder, data, model=height, progress=False, pilot_share=0.1, **said)


def test_words_that_make_no_pilot_are_refused():
    with pytest.raises(InvalidInput, match="pilot_share must lie between 0 and 1"):
        piloting.NextPilot(share=2.0).added_to(
            SimpleNamespace(pilots=[{"share": 0.1, "most": 0.1, "start": None}]), None, None
        )


def test_the_share_may_grow_only_where_the_user_did_not_say():
    assert piloting.first_pilot(0.03, None)[0]["most"] == pytest.approx(0.1)
    assert piloting.first_pilot(0.03, 0.03)[0]["most"] == pytest.approx(0.03)
    assert piloting.first_pilot(0.0, 0.0)[0]["most"] == 0.0
