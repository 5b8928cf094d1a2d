"""`run.noise_aware()`: what a run's releases say, for any model, whether or not its chain has mixed."""

from dataclasses import replace

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import sfumato as sf
from helpers import FALSE_ALARM
from sfumato.analysis.verdict import HEARD, may_be_heard
from sfumato.errors import InvalidInput

N, NOISE_SD = 3_000, 2.0


def height(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, NOISE_SD), obs=y)


DOMAIN = {"y": sf.Interval(-10.0, 10.0)}
TABLE = {"y": np.random.default_rng(0).normal(3.0, NOISE_SD, N).clip(-10, 10)}
SHORT = {"epsilon": 1.0, "delta": 1e-6, "force": True, "progress": False, "chains": 2, "max_iterations": 60}


@pytest.fixture(scope="module", autouse=True)
def private_state(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SFUMATO_STATE", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="module")
def weak():
    return sf.sample(height, TABLE, domain=DOMAIN, kernel="langevin", seed=1, **SHORT)


def test_a_chain_that_did_not_mix_tells_the_posterior_by_its_scores(weak):
    assert not weak.verdict.usable and weak.verdict.reasons[-1] == HEARD
    found = weak.noise_aware()
    assert str(found).startswith(
        "An approximation, by local asymptotic normality, from the average of the noisy scores"
    )
    assert "no independent evidence" in found.label and "no exact posterior" in str(found.privacy)
    assert found.verdict.usable and found.privacy.epsilon == weak.privacy.epsilon
    assert abs(found.draws["mean"].mean() - TABLE["y"].mean()) < 5 * found.draws["mean"].std()
    scores = weak.transcript["t_noisy"]
    root = np.array(weak.planned["matrix"])[0, 0]
    noise = NOISE_SD**2 / N * np.sqrt((4 / weak.planned["step"] - 1) / scores.size) / root
    assert found.draws["mean"].std() == pytest.approx(np.hypot(NOISE_SD / N**0.5, noise), rel=0.15)


def test_its_intervals_cover_and_those_that_forget_the_noise_do_not(weak):
    """The released average is drawn anew many times: around the truth, with the records' noise and thrice that of the owner."""
    rng, level, sets = np.random.default_rng(5), 0.9, 50
    plan = weak.planned | {"step": 0.2}
    centre, root = plan["belief"]["centre"][0], plan["matrix"][0][0]
    noise = np.sqrt((4 / plan["step"] - 1) / 2)  # of the average of two chains with one step each

    def share_inside(told: float) -> float:
        """Share of intervals that hold the truth, where the run is told a noise so many times the one there is."""
        inside = 0
        for _ in range(sets):
            truth = centre + rng.normal() * NOISE_SD / N**0.5
            total = N / NOISE_SD**2 * (truth - centre) + rng.normal() * N**0.5 / NOISE_SD
            mean = root * total + rng.normal() * noise
            made = np.full((2, int(1 / told**2), 1), mean)
            run = replace(weak, planned=plan, transcript={**weak.transcript, "t_noisy": made})
            low, high = np.quantile(run.noise_aware().draws["mean"], [0.5 - level / 2, 0.5 + level / 2])
            inside += low < truth < high
        return inside / sets

    chance = stats.binom(sets, level).ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2]) / sets
    assert chance[0] <= share_inside(1.0) <= chance[1]
    assert share_inside(0.05) < chance[0]


def test_a_walk_is_told_by_its_pilot_alone_and_says_so(weak):
    run = sf.sample(height, TABLE, domain=DOMAIN, kernel="random-walk", seed=1, **SHORT)
    found = run.noise_aware()
    assert "from the pilot's releases alone" in found.label
    assert abs(found.draws["mean"].mean() - TABLE["y"].mean()) < 5 * found.draws["mean"].std()
    assert found.draws["mean"].std() > 1.5 * weak.noise_aware().draws["mean"].std()


def test_a_loaded_run_needs_its_model_again_and_no_other(weak, tmp_path):
    loaded = sf.load(weak.save(tmp_path / "run.npz"))
    assert loaded.heard is None and weak.heard is not None
    with pytest.raises(InvalidInput, match="does not know its model"):
        loaded.noise_aware()
    again = loaded.noise_aware(height, domain=DOMAIN)
    np.testing.assert_allclose(again.draws["mean"], weak.noise_aware().draws["mean"])
    with pytest.raises(InvalidInput, match="whose parameters are mean"):
        loaded.noise_aware(sf.families.Bernoulli())


def test_a_run_without_a_pilot_has_nothing_to_tell():
    run = sf.sample(height, TABLE, domain=DOMAIN, kernel="random-walk", pilot_share=0.0, seed=1, **SHORT)
    assert not may_be_heard(run)
    with pytest.raises(InvalidInput, match=r"pilot_share=0"):
        run.noise_aware()


def test_several_owners_tell_one_posterior():
    halves = [sf.Owner({"y": TABLE["y"][i::2]}, name=name) for i, name in enumerate("ab")]
    run = sf.sample(height, halves, domain=DOMAIN, kernel="langevin", seed=1, **SHORT)
    found = run.noise_aware()
    assert len(found.privacy.owners) == 2
    assert all("no exact posterior" in owner.exact for owner in found.privacy.owners)
    assert abs(found.draws["mean"].mean() - TABLE["y"].mean()) < 5 * found.draws["mean"].std()


def test_a_family_without_a_law_of_its_own_is_told_by_scores():
    rng = np.random.default_rng(2)
    x = rng.uniform(-1, 1, (4_000, 1))
    family = sf.families.LinearRegression(sf.Box(-1, 1, shape=(1,)), sf.Interval(-3, 3))
    table = {"x": x, "y": (0.5 * x[:, 0] + rng.normal(0, 0.5, 4_000)).clip(-3, 3)}
    run = sf.sample(family, table, seed=1, **SHORT | {"epsilon": 2.0})
    found = run.noise_aware()
    assert found.label.startswith("An approximation")
    for name, values in found.draws.items():
        assert np.all(np.isfinite(values)), name
