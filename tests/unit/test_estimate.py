"""`sf.estimate`: an answer at every budget, whoever holds the records, that says what it is."""

from dataclasses import replace

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sfumato as sf
from sfumato.errors import CheckpointError, InvalidInput
from sfumato.planner import placing
from sfumato.run.journal import Journal


def height(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 2.0), obs=y)


DOMAIN = {"y": sf.Interval(-10.0, 10.0)}
TABLE = {"y": np.random.default_rng(0).normal(3.0, 2.0, 4_000).clip(-10, 10)}
BUDGET = {"epsilon": 1.0, "delta": 1e-6}
QUIET = {"progress": False, "seed": 1}


@pytest.fixture(scope="module", autouse=True)
def private_state(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SFUMATO_STATE", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("estimate") / "kept"
    return folder, sf.estimate(height, TABLE, domain=DOMAIN, **BUDGET, checkpoint=folder, **QUIET)


def test_it_spends_the_whole_budget_and_is_as_wide_as_its_noise(kept):
    _, found = kept
    assert 0.99 < found.privacy.spent_mu / found.privacy.mu <= 1.0
    assert found.privacy.releases == sum(len(r["answer"]) for r in found.pilot["releases"])
    last = found.pilot["releases"][-1]
    assert last["what"] == "gradient"
    share = (20.0 / 2.0**2 * last["matrix"][0][0] / last["sigma"] / found.privacy.mu) ** 2
    assert share > 0.7  # of the budget: most of it is in the last release
    without = 2.0 / np.sqrt(len(TABLE["y"]))
    one_shot = 20.0 / len(TABLE["y"]) / found.privacy.mu  # of the mean of 4 000 numbers between -10 and 10
    assert np.hypot(without, one_shot) < found.draws["mean"].std() < np.hypot(without, 1.3 * one_shot)
    assert abs(found.draws["mean"].mean() - 3.0) < 4 * found.draws["mean"].std()


def test_every_first_line_says_that_it_is_an_approximation_and_by_what(kept, tmp_path):
    _, found = kept
    assert str(found).splitlines()[0].startswith("An approximation, by local asymptotic normality: it rests on")
    assert "An approximation" in repr(found.summary()).splitlines()[0]
    assert "approximation" in repr(found)
    page = found.report(tmp_path / "report.html").read_text()
    assert page.index("An approximation, by local") < page.index('id="promise"')
    assert found.to_arviz().attrs["label"] == found.label
    assert "no exact posterior" in str(found.privacy)


def test_it_is_saved_loaded_and_drawn_from_again(kept, tmp_path):
    _, found = kept
    again = sf.load(found.save(tmp_path / "estimate.npz"))
    assert isinstance(again, sf.Estimate) and again.verdict == found.verdict and again.privacy == found.privacy
    np.testing.assert_array_equal(again.draws["mean"], found.draws["mean"])
    more = again.more(20_000, seed=3)["mean"]
    assert more.shape == (20_000,)
    assert more.std() == pytest.approx(found.draws["mean"].std(), rel=0.1)


def test_a_finished_estimate_is_made_again_from_what_is_kept_and_costs_nothing(kept):
    folder, found = kept
    again = sf.resume(folder, TABLE, model=height, progress=False)
    np.testing.assert_array_equal(again.draws["mean"], found.draws["mean"])
    assert again.privacy.spent_mu == found.privacy.spent_mu


def test_a_stopped_estimate_goes_on_with_what_it_has_paid_for(tmp_path, monkeypatch):
    real, notes = Journal.note_release, []

    def note_release(self, number, entry):
        real(self, number, entry)
        notes.append(number)
        if len(notes) == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Journal, "note_release", note_release)
        sf.estimate(height, TABLE, domain=DOMAIN, **BUDGET, checkpoint=tmp_path / "kept", **QUIET)
    noted = Journal(tmp_path / "kept").releases()
    found = sf.resume(tmp_path / "kept", TABLE, model=height, progress=False)
    assert [r["answer"] for r in found.pilot["releases"][: len(noted)]] == [r["answer"] for r in noted]
    assert found.privacy.spent_mu <= found.privacy.mu
    with pytest.raises(CheckpointError, match="already holds a run"):
        sf.estimate(height, TABLE, domain=DOMAIN, **BUDGET, checkpoint=tmp_path / "kept", **QUIET)


def test_several_owners_give_one_estimate():
    halves = [
        sf.Owner({"y": TABLE["y"][part]}, name=name) for part, name in ((slice(2_000), "a"), (slice(2_000, None), "b"))
    ]
    found = sf.estimate(height, halves, domain=DOMAIN, **BUDGET, **QUIET)
    assert len(found.privacy.owners) == 2
    assert all(0.98 < owner.spent_mu / owner.mu <= 1.0 for owner in found.privacy.owners)
    assert abs(found.draws["mean"].mean() - 3.0) < 4 * found.draws["mean"].std()


def test_a_family_of_counts_has_its_exact_law():
    y = (np.random.default_rng(2).random(300) < 0.03).astype(int)
    found = sf.estimate(sf.families.Bernoulli(), {"y": y}, **BUDGET, **QUIET)
    assert found.label.startswith("By the exact law of the counts")
    assert 0 < found.draws["p"].min() and found.verdict.level == "good"


def test_a_tiny_budget_is_said_to_be_mostly_prior():
    few = {"y": TABLE["y"][:50]}
    found = sf.estimate(height, few, domain=DOMAIN, epsilon=0.05, delta=1e-6, **QUIET)
    assert found.verdict.level == "rough" and "mostly prior" in str(found.verdict)
    assert found.draws["mean"].std() == pytest.approx(5.0, rel=0.2)


def test_columns_in_raw_units_are_named_where_the_answer_is_mostly_prior():
    def ill(age, y):
        beta = numpyro.sample("beta", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=beta[0] + beta[1] * age), obs=y)

    rng = np.random.default_rng(3)
    table = {"age": rng.integers(18, 91, 2_000), "y": (rng.random(2_000) < 0.03).astype(int)}
    domain = {"age": sf.Integers(18, 90), "y": sf.Binary()}
    found = sf.estimate(ill, table, domain=domain, epsilon=0.1, delta=1e-6, **QUIET)
    assert "mostly prior" in str(found.verdict)
    assert "First centre and scale age (its domain is [18, 90])" in found.verdict.reasons[-1]


def test_a_search_that_did_not_arrive_is_unusable(monkeypatch):
    real = placing.run_pilot

    def lost(*args, **options):
        found = real(*args, **options)
        return found._replace(belief=replace(found.belief, centre=found.belief.centre - 9.0))

    monkeypatch.setattr(placing, "run_pilot", lost)
    found = sf.estimate(height, TABLE, domain=DOMAIN, **BUDGET, **QUIET)
    assert found.verdict.level == "unusable" and "did not arrive" in str(found.verdict)
    assert np.isnan(found.summary()["mean"]).all()


def test_bundles_and_wrong_numbers_of_draws_are_refused():
    bundle = sf.release(sf.families.Bernoulli(), {"y": np.ones(100, int)}, **BUDGET, copies=10)
    with pytest.raises(InvalidInput, match="noise_aware"):
        sf.estimate(sf.families.Bernoulli(), bundle)
    with pytest.raises(InvalidInput, match="draws must be"):
        sf.estimate(height, TABLE, domain=DOMAIN, **BUDGET, draws=0)


def test_a_linear_regression_is_as_good_in_raw_units_as_scaled_by_hand():
    rng, n = np.random.default_rng(4), 20_000
    age, income = rng.uniform(18, 90, n), rng.gamma(2.0, 25_000, n).clip(0, 2e5)
    y = (20 + 0.3 * age + 1e-4 * income + rng.normal(0, 5, n)).clip(0, 120)
    raw, middle, half = np.column_stack([age, income]), np.array([54.0, 1e5]), np.array([36.0, 1e5])
    regression = sf.families.LinearRegression
    tables = {
        "raw": (regression(sf.Box([18.0, 0.0], [90.0, 2e5]), sf.Interval(0.0, 120.0), intercept=True), raw, y),
        "scaled": (
            regression(sf.Box(-1, 1, shape=(2,)), sf.Interval(-1, 1), intercept=True), (raw - middle) / half, (y - 60) / 60,
        ),
    }  # fmt: skip
    spread = {}
    for name, (family, x, outcome) in tables.items():
        found = sf.estimate(family, {"x": x, "y": outcome}, **BUDGET, **QUIET)
        unit = 60 / half if name == "scaled" else np.ones(2)
        slopes = found.draws["coefficients"].reshape(-1, 3)[:, 1:] * unit
        spread[name] = slopes.std(0)
        assert np.all(np.abs(slopes.mean(0) - [0.3, 1e-4]) < 5 * spread[name])
        assert found.verdict.level == "good" and "central limit" in found.label
        assert 0.99 < found.privacy.spent_mu / found.privacy.mu <= 1.0
    assert np.all(spread["raw"] < 1.25 * spread["scaled"])
    assert np.all(spread["raw"] < [0.02, 2e-5])


def test_a_focus_is_kept_and_names_that_are_unknown_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match="focus must name sites or coordinates"):
        sf.estimate(height, TABLE, domain=DOMAIN, focus=["meen"], **BUDGET, **QUIET)
    found = sf.estimate(height, TABLE, domain=DOMAIN, focus=["mean"], checkpoint=tmp_path / "kept", **BUDGET, **QUIET)
    again = sf.resume(tmp_path / "kept", TABLE, model=height, progress=False)
    np.testing.assert_array_equal(again.draws["mean"], found.draws["mean"])
