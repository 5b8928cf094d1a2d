"""The audit: honest runs pass, saboteurs are caught, and what it reports is a bound."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import sfumato as sf
from helpers import FALSE_ALARM
from sfumato.auditor import Attack, Audit
from sfumato.auditor.attack import attack, prepared, several
from sfumato.auditor.bound import SET_ASIDE, lower_bound, trade_off, upper_limits
from sfumato.auditor.neighbours import furthest, make_crowd, make_neighbours
from sfumato.auditor.terms import Terms
from sfumato.errors import InvalidInput
from sfumato.kernel import ReferenceLangevin
from sfumato.planner import Plan, budget_mu
from sfumato.planner.belief import Belief
from sfumato.study.target import make_study
from sfumato.vault import lattice, records
from sfumato.vault.gaussian import ExactSource
from sfumato.vault.noise import BLOCK

EPSILON, DELTA, N = 1.0, 1e-6, 400
MU = budget_mu(EPSILON, DELTA)
FAMILY = sf.families.Bernoulli()


def logistic(x, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 2.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


class Sabotaged(ExactSource):
    """Noise that is so many times too small."""

    times = 1

    def draw(self, size):
        return super().draw(size) // type(self).times


def plan_for(kernel, dim, sd, step, sigma, pilot_share=0.0):
    """A plan as the planner would make it for runs of about twelve steps, without waiting for the planner."""
    matrix = sd * np.eye(dim)
    return Plan(
        kernel=kernel, sigma=sigma, step=step, iterations=12, chains=2, n=N, epsilon=EPSILON, delta=DELTA, mu=MU,
        pilot_share=pilot_share, forecast_ess=1.0, limit_ess=1.0, assumptions=(), matrix=matrix,
        belief=Belief(np.linspace(0.11, 0.23, dim), matrix @ matrix.T, "made up"),
    )  # fmt: skip


CASES = {
    "guided walk on a NumPyro model": lambda: (
        make_study(logistic, {"x": sf.Ball(1.0, dim=2), "y": sf.Binary()}, kernel="guided"),
        plan_for("guided", 2, sd=0.1, step=0.8, sigma=1.7),
    ),
    "pilot, then a random walk on a family": lambda: (
        make_study(FAMILY, kernel="random-walk"),
        plan_for("random-walk", 1, sd=0.1, step=0.8, sigma=1.7, pilot_share=0.5),
    ),
    "Langevin on a family": lambda: (
        make_study(sf.families.Bernoullis(2), kernel="langevin"),
        plan_for("langevin", 2, sd=0.1, step=0.3, sigma=0.5),
    ),
    "Langevin around a reference point": lambda: (
        make_study(logistic, {"x": sf.Ball(1.0, dim=2), "y": sf.Binary()}, kernel="langevin"),
        plan_for("langevin", 2, sd=0.2, step=0.2, sigma=1.0),
    ),
}


# -- whole attacks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_an_honest_study_passes_and_saboteurs_are_caught(case, monkeypatch):
    """All behind one wall: compiling is most of what such a test costs."""
    study, plan = CASES[case]()
    with prepared(study, plan, seed=1, source=Sabotaged) as everything:
        assert everything.counts == (1, several(MU, N)) == (1, 11)  # one record, as the promise says, and several
        ready = everything._replace(counts=everything.counts[-1:])  # the sharper pair of tables is enough here

        honest = attack(ready, trials=100, confidence=1 - FALSE_ALARM)
        assert honest.passed, str(honest)
        assert (honest.pilot > 2) if "pilot" in case else (honest.pilot == 0)
        # Sharp enough to mean something: most of the promise was within reach, and some of it was found.
        assert 0.85 * MU < honest.mu_at_stake <= MU
        assert honest.mu_lower > 0.1 * MU

        monkeypatch.setattr(ready.vault, "_cap", 16 * ready.vault._cap)  # a filter that lets too much through
        caught = attack(ready, trials=200, confidence=0.99)
        assert caught.mu_lower > MU and caught.epsilon_lower > EPSILON
        assert caught.undercharged and not caught.passed
        assert "more than was charged" in caught.verdict
        monkeypatch.undo()

        monkeypatch.setattr(Sabotaged, "times", 2)
        for pool in ready.vault._chain.pools:
            pool.take(8 * BLOCK)  # what was drawn ahead was honest
        caught = attack(ready, trials=250, confidence=0.99)
        assert caught.mu_lower > MU and not caught.passed
        assert not caught.undercharged  # every charge was right: only the attack could notice
        assert "told apart" in caught.verdict


def too_small():
    """A declared width five times smaller than the truth."""
    study = make_study(FAMILY, None, sf.Lipschitz(0.1), kernel="guided")
    return prepared(study, plan_for("guided", 1, sd=0.1, step=0.8, sigma=0.3), seed=1)


def test_a_width_that_is_declared_too_small_costs_no_privacy_because_the_vault_clamps():
    with too_small() as everything:
        found = attack(everything, trials=100, confidence=1 - FALSE_ALARM)
    assert found.passed and [a.replaced for a in found.attacks] == [1, 11]
    assert found.mu_at_stake > 0.85 * MU


def test_a_vault_that_does_not_clamp_is_caught(monkeypatch):
    def unclamped(terms, clamp, gamma):
        return jnp.round(terms.astype(jnp.float64) * (1.0 / gamma)).astype(jnp.int64)

    monkeypatch.setattr(lattice, "to_lattice", unclamped)
    with too_small() as everything:
        found = attack(everything, trials=100, confidence=0.99)
    assert found.mu_lower > MU and not found.passed


def test_the_auditor_takes_no_kink_for_a_leak():
    """At a logit of exactly zero automatic differentiation gives y x in place of (y - 1/2) x; the vault is right there."""
    study = make_study(logistic, {"x": sf.Ball(1.0, dim=5), "y": sf.Binary()}, kernel="langevin")
    across, centre = np.array([0.5, -0.5, 0.5, -0.5, 0.0]), np.full(5, 0.125)
    pair = {"x": np.stack([across, -across]), "y": np.ones(2, np.int64)}
    with jax.enable_x64(True):
        kernel = ReferenceLangevin(0.1 * np.eye(5), 0.2, study.model.log_prior, centre, np.eye(5), 12.0)
        first = Terms(study, kernel, N).first(pair)
    apart = np.linalg.norm(first[0] - first[1])
    assert apart == pytest.approx(0.1)  # half of each, whitened by a tenth
    assert apart <= study.reference_bounds.at(centre, kernel.matrix).gradients.diameter


# -- the two records --------------------------------------------------------------------------------------------------


def test_the_furthest_records_are_found_also_where_corners_do_not_show_them():
    """In a ball of ten dimensions no drawn point is near the one that is wanted."""
    domain = {"x": sf.Ball(2.0, dim=10), "y": sf.Interval(-1, 3)}
    model = make_study(logistic, {"x": sf.Ball(2.0, dim=10), "y": sf.Binary()}, sf.Clip(1.0)).model
    direction = np.linspace(-1, 1, 10)

    def features(batch):
        return np.stack([np.asarray(batch["x"]) @ direction, 2 * np.asarray(batch["y"])], axis=1)

    one, other = furthest(features, model, domain, np.zeros(10))
    apart = np.linalg.norm(features(one) - features(other))
    best = np.hypot(4 * np.linalg.norm(direction), 8)
    assert 0.97 * best < apart <= best * (1 + 1e-9)


def test_tables_differ_in_the_records_replaced_and_in_nothing_else():
    domain = {"x": sf.Categories(["low", "middle", "high"]), "y": sf.Binary()}

    def model(x, y):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with numpyro.plate("records", y.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=theta[x]), obs=y)

    study = make_study(model, domain, sf.Clip(1.0))
    crowd = make_crowd(study.model, domain, np.zeros(3))
    pair = ({"x": np.array([0]), "y": np.array([0])}, {"x": np.array([2]), "y": np.array([1])})
    neighbours = make_neighbours(domain, crowd, pair, n=101, replaced=7)
    tables = [
        records.load(neighbours.table(k), domain).columns for k in (0, 1, 7)
    ]  # as an owner would: labels, not codes
    for table, changed in zip(tables, (0, 1, 7), strict=True):
        assert all(len(column) == 101 for column in table.values())
        differs = (table["x"] != tables[0]["x"]) | (table["y"] != tables[0]["y"])
        assert differs.sum() == changed and not differs[7:].any()
        assert np.all(table["x"][:changed] == 2) and np.all(table["x"][changed:7] == 0)


# -- the bound --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.1, 0.005, 1e-5])
def test_the_upper_limit_covers_every_rate_exactly(alpha):
    """No sampling: the chance that the limit falls below the rate, summed over all counts."""
    runs = 60
    limits = upper_limits(runs, alpha)
    assert len(limits) == runs + 1
    assert limits[-1] == 1.0 and np.all(np.diff(limits) > 0)
    assert limits[0] == pytest.approx(1 - alpha ** (1 / runs))
    for rate in np.linspace(0.01, 0.99, 99):
        assert stats.binom.pmf(np.flatnonzero(limits < rate), runs, rate).sum() <= alpha * (1 + 1e-9)


def test_the_bound_comes_near_the_truth_with_many_runs_and_knows_nothing_from_few():
    mu, runs = 2.5, 10**5
    wrong = round(runs * stats.norm.cdf(-mu / 2))
    assert 0.98 * mu < trade_off(wrong, wrong, runs, 0.01) < mu
    assert trade_off(wrong, round(runs / 2), runs, 0.01) < mu
    assert trade_off(0, 0, 3, 0.01) == trade_off(5, 5, 5, 0.01) == trade_off(3, 3, 6, 0.01) == 0.0


@pytest.mark.parametrize("law", ["normal", "laplace"])
def test_the_bound_is_wrong_no_more_often_than_it_says(law):
    """Scores of a mechanism whose mu is known: normal ones; and ones with heavier tails, whose mu is that of the worst test."""
    rng, alpha, audits, runs, mu = np.random.default_rng(0), 0.1, 2000, 250, 1.2
    draw = getattr(rng, law)
    here, there = draw(0.0, 1.0, (2, audits, runs))
    there += mu if law == "normal" else 0.5
    if law == "laplace":  # the worst threshold of a Laplace shift lies in its tail: mu of all of them, on a grid
        t = np.linspace(-8, 8, 4001)
        mu = float(np.max(stats.norm.isf(stats.laplace.sf(t)) - stats.norm.ppf(stats.laplace.cdf(t - 0.5))))
    found = np.array([lower_bound(a, b, alpha).mu_lower for a, b in zip(here, there, strict=True)])
    assert np.sum(found > mu) <= stats.binom.isf(FALSE_ALARM, audits, alpha)
    assert found.mean() > (0.6 if law == "normal" else 0.2) * mu


def test_the_bound_would_be_wrong_if_the_threshold_were_chosen_on_the_runs_it_is_tried_on():
    """The saboteur: without setting runs aside, noise alone looks like a leak."""
    rng, alpha = np.random.default_rng(1), 0.5
    here, there = rng.normal(size=(2, 400, 40))
    tried = np.linspace(-2, 2, 41)
    false_alarms = (here[..., None] > tried).sum(axis=1)
    misses = (there[..., None] <= tried).sum(axis=1)
    cheated = trade_off(false_alarms, misses, 40, alpha).max(axis=1)
    honest = np.array([lower_bound(a, b, alpha).mu_lower for a, b in zip(here, there, strict=True)])
    assert np.mean(cheated > 0) > 0.5 > np.mean(honest > 0)
    assert 0 < SET_ASIDE < 0.5


# -- what is said -----------------------------------------------------------------------------------------------------


def result(mu_lower=0.2, at_stake=0.23):
    attacks = (Attack(1, 80, 30, 31, 0.0, at_stake), Attack(11, 80, 8, 9, mu_lower, at_stake))
    return Audit(EPSILON, DELTA, MU, 0.99, 100, "guided", N, 2, 6, attacks)


def test_an_audit_reads_well_and_counts_as_passed_only_below_the_promise():
    good = result()
    assert good.passed and good.mu_lower == 0.2
    assert good.epsilon_lower == pytest.approx(float(sf.gdp.epsilon(0.2, DELTA)))
    text = str(good)
    for piece in (
        "epsilon = 1 at delta = 1e-06",
        "99 % confidence",
        "11 records replaced",
        "nobody's budget",
        "Passed",
    ):
        assert piece in text
    assert good.to_dict()["passed"] is True and len(good.to_dict()["attacks"]) == 2
    for bad in (result(mu_lower=MU * 1.001), result(at_stake=MU * 1.001)):
        assert not bad.passed and "FAILED" in str(bad) and "Release nothing" in bad.verdict


def test_what_makes_no_audit_is_refused():
    given = {"epsilon": 1.0, "delta": 1e-6}
    for wrong, words in (({"trials": 5}, "at least 20 runs"), ({"n": 1}, "two records"), ({"confidence": 1.0}, "0.99")):
        with pytest.raises(InvalidInput, match=words):
            sf.audit(FAMILY, **given, **wrong)
    with pytest.raises(InvalidInput, match="must be a domain"):  # records in the place of the domain
        sf.audit(logistic, {"x": np.zeros((3, 2)), "y": np.zeros(3)}, **given)
