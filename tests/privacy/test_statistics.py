"""The private side of bundles: what is charged, when, and that no record moves the sum further than that."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sfumato as sf
from sfumato.errors import BudgetSpent, InvalidInput
from sfumato.owners.local import open_statistics
from sfumato.planner import budget_mu
from sfumato.privacy.budget import QUANTA_PER_UNIT, cap_quanta, cost_quanta
from sfumato.study.target import make_study
from sfumato.vault import records, statistics
from sfumato.vault.ledger import Ledger
from sfumato.vault.noise import OpenDPSource

FAMILIES = {
    "bernoulli": (sf.families.Bernoulli(), lambda r, n: {"y": r.integers(0, 2, n)}),
    "poisson": (sf.families.Poisson(9), lambda r, n: {"y": r.integers(0, 10, n)}),
    "normal, far from zero": (sf.families.Normal(1.0, 1e6, 1e6 + 3), lambda r, n: {"y": r.uniform(1e6, 1e6 + 3, n)}),
    "mean and scale": (sf.families.NormalMeanScale(-2, 5), lambda r, n: {"y": r.uniform(-2, 5, n)}),
    "vector on a ball": (
        sf.families.MultivariateNormal(np.eye(3).tolist(), sf.Ball(2.0, dim=3)),
        lambda r, n: {"y": sf.Ball(2.0, dim=3).extremes(r, n)},
    ),
    "regression": (
        sf.families.LinearRegression(sf.Box(-1, 1, shape=(2,)), sf.Interval(-2, 2), intercept=True),
        lambda r, n: {"x": r.uniform(-1, 1, (n, 2)), "y": r.uniform(-2, 2, n)},
    ),
}


class Silence:
    """No noise at all: what a test needs to see the sum itself. Nothing public accepts such a source."""

    def __init__(self, scale: float) -> None:
        self.scale = min(scale, 0.5)  # below one, where a constant block is not suspicious

    def draw(self, size: int) -> np.ndarray:
        return np.zeros(size, np.int64)


def opened(family, data, copies=1, source=None, xi=None, ledger=None, epsilon=1.0):
    mu = budget_mu(epsilon, 1e-6)
    return open_statistics(
        make_study(family), data, mu=mu, copies=copies, xi=xi, ledger=ledger, source=source, outside="refuse"
    )


def noiseless(family, data):
    ready = opened(family, data, source=Silence)
    try:
        return ready.terms, next(iter(ready.release()))[0]
    finally:
        ready.close()


@pytest.mark.parametrize("name", FAMILIES)
def test_the_charge_is_the_whole_bundles(name):
    family, make = FAMILIES[name]
    data = make(np.random.default_rng(0), 500)
    ready = opened(family, data, copies=700)
    terms, d = ready.terms, family.size
    assert terms.sensitivity == pytest.approx(family.diameter() + terms.gamma * d**0.5, rel=1e-6)
    assert terms.sensitivity >= family.diameter() + terms.gamma * d**0.5
    assert terms.charge == cost_quanta(700 * (terms.sensitivity / terms.sd) ** 2)
    assert terms.charge <= cap_quanta(budget_mu(1.0, 1e-6))
    assert terms.charge >= 0.999999 * cap_quanta(budget_mu(1.0, 1e-6))  # and nothing is wasted
    assert terms.gamma <= 2.0**-36 * terms.sd
    ready.close()


@pytest.mark.parametrize("name", FAMILIES)
@settings(deadline=None, max_examples=4)
@given(seed=st.integers(0, 2**32 - 1))
def test_one_record_moves_the_sum_by_no_more_than_is_charged(name, seed):
    family, make = FAMILIES[name]
    rng = np.random.default_rng(seed)
    data, other = make(rng, 7), make(rng, 1)
    neighbour = {key: value.copy() for key, value in data.items()}
    for key, column in neighbour.items():
        column[3] = other[key][0]
    (terms, here), (_, there) = noiseless(family, data), noiseless(family, neighbour)
    # A released value is a float64 near n times the centre: reading the difference back costs a few units in the last place.
    readout = 4e-16 * float(np.linalg.norm(np.maximum(np.abs(here), np.abs(there))))
    assert np.linalg.norm(here - there) <= terms.sensitivity + readout


@pytest.mark.parametrize("name", FAMILIES)
def test_the_sum_is_the_sum(name):
    import jax

    family, make = FAMILIES[name]
    data = make(np.random.default_rng(1), 400)
    terms, total = noiseless(family, data)
    with jax.enable_x64(True):
        exact = np.asarray(jax.vmap(family.statistic)(data)).sum(axis=0)
    assert np.all(np.abs(total - exact) <= 400 * terms.gamma + 1e-12 * np.abs(exact))


def test_records_that_rounding_left_outside_a_ball_are_put_back():
    family, _ = FAMILIES["vector on a ball"]
    outside = np.tile([2.0 * (1 + 9e-7), 0.0, 0.0], (4, 1))  # the loader forgives a relative 1e-6
    opposite = outside.copy()
    opposite[0] *= -1
    (terms, here), (_, there) = noiseless(family, {"y": outside}), noiseless(family, {"y": opposite})
    assert np.linalg.norm(here - there) <= terms.sensitivity


def test_the_charge_is_reserved_before_the_first_copy_and_never_given_back(tmp_path):
    family = sf.families.Bernoulli()
    with Ledger(tmp_path / "l.sqlite", epsilon=3.0, delta=1e-5) as ledger:
        ready = opened(family, {"y": np.arange(50) % 2}, copies=100_000, ledger=ledger)
        assert ledger.spent == 0
        blocks = ready.release()
        assert ledger.spent == ready.terms.charge  # paid, and nothing is drawn yet
        next(blocks)
        blocks.close()  # broken off
        assert ledger.spent == ready.terms.charge
        assert ledger.verify().ok


def test_a_killed_release_has_paid(tmp_path):
    code = (
        "import os, sys, numpy as np, sfumato as sf\n"
        "ledger = sf.Ledger(sys.argv[1], epsilon=3.0, delta=1e-5)\n"
        "def die(done, total, text): os._exit(9)\n"
        "sf.release(sf.families.Bernoulli(), {'y': np.arange(50) % 2}, epsilon=1.0, delta=1e-6, copies=100_000,\n"
        "           path=sys.argv[2], ledger=ledger, progress=die)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "l", tmp_path / "b.parquet"], capture_output=True, check=False
    )
    assert done.returncode == 9
    assert not (tmp_path / "b.parquet").exists()
    with Ledger(tmp_path / "l") as ledger:
        cap = cap_quanta(budget_mu(1.0, 1e-6))
        assert 0.999999 * cap <= ledger.spent <= cap


def test_a_ledger_that_cannot_pay_refuses_and_nothing_is_drawn(tmp_path):
    with Ledger(tmp_path / "l.sqlite", epsilon=0.5, delta=1e-6) as ledger:
        with pytest.raises(BudgetSpent):
            sf.release(
                sf.families.Bernoulli(), {"y": np.arange(50) % 2}, epsilon=1.0, delta=1e-6, copies=10, ledger=ledger,
                path=tmp_path / "b.parquet",
            )  # fmt: skip
        assert ledger.spent == 0
    assert not list(tmp_path.glob("*parquet*"))


def test_an_xi_that_costs_more_than_the_budget_is_refused():
    with pytest.raises(InvalidInput, match="xi of at least"):
        sf.release(sf.families.Bernoulli(), {"y": np.arange(50) % 2}, epsilon=1.0, delta=1e-6, copies=100, xi=1.0)


def test_the_noise_is_the_reference_law():
    from scipy import stats

    from helpers import FALSE_ALARM

    family, data = sf.families.Poisson(9), {"y": np.full(30, 4)}
    for source in (None, OpenDPSource):
        ready = opened(family, data, copies=4000, source=source)
        z = (np.concatenate(list(ready.release()))[:, 0] - 120) / ready.terms.sd
        ready.close()
        assert stats.kstest(z, "norm").pvalue > FALSE_ALARM


def test_the_privacy_of_neighbours_is_not_beaten_by_an_attack():
    """The best test of two neighbouring data sets, a threshold on the mean of all copies, stays under the curve of mu."""
    from scipy import stats

    from helpers import FALSE_ALARM

    family, copies, trials = sf.families.Bernoulli(), 16, 3000
    data = [{"y": np.r_[np.zeros(9, int), last]} for last in (0, 1)]
    table = [records.load(d, family.domain) for d in data]
    mu = budget_mu(2.0, 1e-5)
    terms = statistics.terms_for(family, 10, copies * trials, mu * trials**0.5)  # each trial alone has mu
    means = []
    for t in table:
        values = np.concatenate(list(statistics.StatisticsVault(t, family).release(terms, _Free())))
        means.append(values.reshape(trials, copies).mean(axis=1))
    power, level = (means[1] > 0.5).mean(), (means[0] > 0.5).mean()
    best = stats.norm.cdf(stats.norm.ppf(level) + mu)  # Gaussian DP's trade-off
    assert power - best < stats.norm.isf(FALSE_ALARM) * 2 * (0.25 / trials) ** 0.5
    assert terms.charge / QUANTA_PER_UNIT == pytest.approx(trials * mu**2, rel=1e-6)


class _Free:
    def reserve(self, quanta):
        return self

    def settle(self, quanta):
        pass


def test_the_vault_of_statistics_shows_nothing():
    ready = opened(sf.families.Bernoulli(), {"y": np.arange(50) % 2})
    assert repr(ready.vault) == "<StatisticsVault closed>"
    with pytest.raises(TypeError, match="never serialised"):
        import pickle

        pickle.dumps(ready.vault)
    ready.close()
