"""The truncated random walk of the paper's Assumption 4: every coordinate's move is bounded, the law is the posterior's."""

import arviz
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import sfumato as sf
from helpers import FALSE_ALARM
from sfumato.errors import InvalidInput
from sfumato.kernel import RandomWalk
from sfumato.planner import truncated
from statistical.harness import grid_posterior, moment_p_values, run_chains, study_of


def coin(y):
    p = numpyro.sample("p", dist.Beta(2.0, 3.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(probs=p), obs=y)


def logistic(x, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


COIN = {"y": sf.Binary()}
LOGISTIC = {"x": sf.Box(-1, 1, shape=(2,)), "y": sf.Binary()}


def correlated(n):
    """Two covariates that say much the same: a posterior that no diagonal step follows."""
    rng = np.random.default_rng(8)
    first = rng.uniform(-1, 1, n)
    x = np.stack([first, (0.6 * first + 0.4 * rng.uniform(-1, 1, n))], axis=1)
    return {"x": x, "y": (rng.random(n) < 1 / (1 + np.exp(-x @ [0.8, -0.4]))).astype(int)}


def moves(run):
    """Moves proposed from the second step on."""
    return np.abs(run.transcript["theta_prop"][:, 1:] - run.transcript["theta"][:, :-1])


def test_a_hard_bound_changes_the_pace_and_not_the_law():
    study, data = study_of(coin, COIN), {"y": (np.random.default_rng(0).random(60) < 0.3).astype(int)}
    walk = RandomWalk(np.eye(1) * 0.28, 1.2, truncate=0.25)  # cut at three quarters of a standard deviation
    draws = run_chains(study, data, walk, sigma=1.3, chains=64, steps=6_000, start=np.array([-0.8]))
    points, weight = grid_posterior(study, data, -3.5, 2.5)
    assert min(moment_p_values(draws[1_000:, :, 0], points, weight)) > FALSE_ALARM / 4


def test_no_move_of_a_run_passes_the_bound_and_the_forecast_holds():
    data, bound = correlated(40_000), 0.04
    run = sf.sample(
        logistic, data, domain=LOGISTIC, epsilon=20.0, delta=1e-6, truncate=bound, chains=4, seed=1, max_iterations=8_000,
        progress=False,
    )  # fmt: skip
    assert run.planned["kernel"] == "random-walk" and run.planned["truncate"] == bound
    assert 0.8 * bound < moves(run).max() < bound
    assert run.planned["matrix"][0][1] == run.planned["matrix"][1][0] == 0
    achieved = float(np.mean([arviz.ess(run.transcript["theta"][..., i], method="mean") for i in range(2)]))
    assert run.planned["forecast_ess"] / 1.5 < achieved < run.planned["forecast_ess"] * 1.5


def test_a_narrow_bound_is_forecast_to_cost_draws():
    plans = [sf.plan(coin, n=20_000, domain=COIN, epsilon=2.0, delta=1e-6, truncate=b) for b in (1e-3, 1e-2, 1.0)]
    free = sf.plan(coin, n=20_000, domain=COIN, epsilon=2.0, delta=1e-6, kernel="random-walk")
    assert plans[0].forecast_ess < 0.5 * min(plans[1].forecast_ess, plans[2].forecast_ess)
    assert plans[2].forecast_ess == pytest.approx(free.forecast_ess, rel=0.05)  # a bound nobody meets changes nothing
    assert "no coordinate by more than 0.001" in plans[0].table()
    assert plans[0].to_dict()["truncate"] == 1e-3


def test_several_owners_keep_the_bound():
    y = (np.random.default_rng(0).random(5_000) < 0.3).astype(int)
    owners = [
        sf.Owner({"y": part}, name=name, epsilon=4.0, delta=1e-6) for part, name in ((y[:2_000], "a"), (y[2_000:], "b"))
    ]
    run = sf.sample(
        coin, owners, domain=COIN, truncate=0.02, chains=2, seed=1, iterations=100, pilot_share=0.0, guess={"p": 0.3},
        force=True, progress=False,
    )  # fmt: skip
    assert moves(run).max() < 0.02


def test_a_killed_run_goes_on_with_its_bound(tmp_path):
    data = {"y": (np.random.default_rng(0).random(5_000) < 0.3).astype(int)}
    whole = sf.sample(
        coin, data, domain=COIN, epsilon=2.0, delta=1e-6, truncate=0.02, chains=2, seed=3, pilot_share=0.0,
        guess={"p": 0.3}, checkpoint=tmp_path / "run", iterations=300, force=True, progress=False,
    )  # fmt: skip
    sorted((tmp_path / "run").glob("chunk*"))[-1].unlink()
    again = sf.resume(tmp_path / "run", data, model=coin, progress=False)
    assert moves(again).max() < 0.02
    assert again.planned["truncate"] == whole.planned["truncate"] == 0.02


@pytest.mark.parametrize("bound", [0.0, -1.0, np.inf, np.nan, True, "0.1"])
def test_a_bound_must_be_a_positive_number(bound):
    with pytest.raises(InvalidInput, match="truncate must be a positive bound"):
        sf.plan(coin, n=1000, domain=COIN, epsilon=1.0, delta=1e-6, truncate=bound)


@pytest.mark.parametrize("kernel", ["guided", "componentwise", "langevin"])
def test_it_is_the_random_walks_alone(kernel):
    with pytest.raises(InvalidInput, match=r"truncate= is for kernel='random-walk'.*leave one of the two out"):
        sf.plan(coin, n=1000, domain=COIN, epsilon=1.0, delta=1e-6, kernel=kernel, truncate=0.1)


def test_owners_and_bundles_in_one_list_are_refused():
    family, y = sf.families.Bernoulli(), (np.arange(400) % 3 == 0).astype(int)
    bundle = sf.release(family, {"y": y}, epsilon=1.0, delta=1e-6, copies=100)
    owner = sf.Owner({"y": y}, name="a", epsilon=1.0, delta=1e-6)
    with pytest.raises(InvalidInput, match="not for a mix"):
        sf.sample(family, [owner, bundle], truncate=0.1)


@pytest.mark.parametrize("cut", [1e-4, 0.0099, 0.0101, 0.3, 2.0, 40.0])
def test_the_variance_of_a_cut_normal(cut):
    assert truncated._variance(np.array([cut]))[0] == pytest.approx(stats.truncnorm.var(-cut, cut), rel=1e-4)


def test_the_slowest_direction_is_the_one_of_least_precision():
    covariance = np.array([[1.0, 0.9], [0.9, 1.0]])
    matrix = truncated.step_matrix(covariance)
    assert np.diag(matrix) == pytest.approx(np.sqrt(1 - 0.81))
    least, total = truncated.slowest(covariance, matrix, 1.0, 100.0)
    assert (least, total) == pytest.approx(((1 - 0.81) / 1.9, 2.0))
