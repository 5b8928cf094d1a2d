"""What a plan says to a new user: columns that want scaling, deltas that protect nobody, and no numbers that nobody has."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.scipy.special import log_ndtr

import sfumato as sf
from sfumato.analysis.result import StopReason
from sfumato.errors import BudgetSpent, InvalidInput, PlanTooWeak
from sfumato.kernel import PublicStream, RandomWalk
from sfumato.model import from_numpyro
from sfumato.planner.advice import advice
from sfumato.privacy.budget import QUANTA_PER_UNIT
from sfumato.study.target import make_study
from sfumato.vault.ledger import Ledger
from sfumato.vault.ledger.account import MAX_CAP
from sfumato.vault.queries.vector import pilot_gamma
from sfumato.vault.records import load
from sfumato.vault.vault import Vault
from statistical.harness import starting_states


def readmitted(age, income, y):
    base, by_age, by_income = (numpyro.sample(name, dist.Normal(0, 1)) for name in ("base", "by_age", "by_income"))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("outcome", dist.Bernoulli(logits=base + by_age * age + by_income * income), obs=y)


RAW = {"age": sf.Interval(18, 90), "income": sf.Interval(-0.5, 0.5), "y": sf.Binary()}


@pytest.fixture(scope="module")
def raw():
    return sf.plan(readmitted, n=500, domain=RAW, epsilon=0.1, delta=1e-6, kernel="random-walk")


def test_a_weak_plan_names_the_columns_that_want_scaling(raw):
    assert raw.weak
    for text in (raw.table(), str(pytest.raises(PlanTooWeak, raw.refuse_if_weak).value)):
        assert "irst centre and scale age (its domain is [18, 90]): write (age - 54) / 36 in the model" in text
        assert "income (its domain" not in text  # is on scale


def test_numbers_that_nobody_has_are_not_printed(raw):
    hopeless = dataclasses.replace(raw, forecast_ess=0.0)
    for text in (hopeless.table(), str(pytest.raises(PlanTooWeak, hopeless.refuse_if_weak).value)):
        assert "o epsilon that protects anybody and no number of records that anybody has would do" in text
        assert "000,000,000" not in text
    near = dataclasses.replace(raw, forecast_ess=10.0, epsilon=1.0, mu=0.24)
    assert "about 1,100 records at the same epsilon would do" in near.table()


def test_an_outcome_is_not_told_to_be_scaled():
    def visits(y):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("outcome", dist.Poisson(rate), obs=y)

    assert advice(make_study(visits, {"y": sf.Integers(0, 50)}), np.array([0.3])) is None


@pytest.mark.parametrize(
    ("term", "wanted"),
    [
        (lambda b, x: b[0] * x, True),
        (lambda b, x: b[0] * x + b[1] * x**2, True),
        (lambda b, x: jnp.stack([x, x], -1) @ b, False),  # a design matrix of its own: not followed, nothing claimed
        (lambda b, x: b[0] * (x - 200) / 50, False),  # is scaled already
        (lambda b, x: b[0] * jnp.log(x / 200), False),
        (lambda b, x: b[0], False),  # is not used
    ],
)
def test_only_a_column_that_a_parameter_multiplies_as_it_stands_wants_scaling(term, wanted):
    def model(x, y):
        b = numpyro.sample("b", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("outcome", dist.Normal(term(b, x), 1.0), obs=y)

    domain = {"x": sf.Integers(100, 300), "y": sf.Interval(-3, 3)}
    study = SimpleNamespace(model=from_numpyro(model, domain), domain=domain, family=None)
    assert (advice(study, np.array([0.3, 0.1])) is not None) == wanted


def test_a_delta_of_one_in_n_is_a_loud_line_of_the_plan(raw):
    assert "WARNING" not in raw.table()
    careless = dataclasses.replace(raw, delta=0.002)
    assert "WARNING   delta = 0.002 is not below 1/n = 0.002" in careless.table()
    owner = {"name": "Amber", "n": 500, "epsilon": 1.0, "delta": 0.01, "mu": 0.2, "share": 1.0}
    assert "WARNING   Amber: delta = 0.01" in dataclasses.replace(raw, owners=(owner,)).table()


def test_log_ndtr_of_a_column_has_a_bound():
    def model(x, y):
        b = numpyro.sample("b", dist.Normal(0, 1))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("outcome", dist.Normal(b * log_ndtr(x), 1.0), obs=y)

    domain = {"x": sf.Interval(-2, 2), "y": sf.Interval(-1, 1)}
    low, high = sf.certify(model, domain, {"b": 0.0}, {"b": 0.1})
    x, y = np.meshgrid(np.linspace(-2, 2, 41), np.linspace(-1, 1, 41))
    with jax.enable_x64(True):
        mean = np.asarray(0.1 * log_ndtr(jnp.asarray(x)))
    change = (y**2 - (y - mean) ** 2) / 2
    assert low <= change.min() and change.max() <= high
    assert high - low < 2 * np.ptp(change)


# -- force ----------------------------------------------------------------------------------------------------------------


def test_long_vectors_get_a_coarser_lattice_and_never_one_coarser_than_the_noise_allows():
    """A pilot of a hopeless plan asks for sums of vectors as long as its noise is wide: that fits 64 bits."""
    fine = pilot_gamma(1000, 1.0, 20.0)
    assert fine <= 2.0**-36 * 20 and fine <= 2.0**-9 / 1000
    far = pilot_gamma(1000, 1e20, 2e21)
    assert far <= 2.0**-36 * 2e21 and 1000 * 1e20 / far <= 2.0**61
    with pytest.raises(InvalidInput, match="must fit 64 bits"):
        pilot_gamma(1000, 1e20, 1.0)


def test_a_chunk_may_expect_more_than_any_account_has():
    def coin(y):
        p = numpyro.sample("p", dist.Normal(0, 1))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("outcome", dist.Bernoulli(logits=p), obs=y)

    study = make_study(coin, {"y": sf.Binary()})
    kernel, chains = RandomWalk(np.eye(1), 0.1), 2
    stream = PublicStream(0, chains)
    with Ledger.in_memory(QUANTA_PER_UNIT) as ledger:
        account = ledger.account("run", QUANTA_PER_UNIT)
        vault = Vault(load({"y": [0, 1] * 20}, study.domain), study, account)
        states = starting_states(study, kernel, stream, np.zeros(1), chains)
        vault.begin(kernel, 5.0, states)
        try:
            chunk = vault.chunk(states, stream.peek(kernel, 4), 4, 10 * MAX_CAP)
            assert chunk.steps == 4
            chunk.settle()
            with pytest.raises(BudgetSpent):
                vault.chunk(states, stream.peek(kernel, 4), 4, 10 * MAX_CAP, MAX_CAP)
        finally:
            vault.close()


def test_a_forced_run_of_a_hopeless_plan_ends_and_says_how():
    """Its one step was expected to cost the whole budget, and ten thousand of them more than an account can hold."""
    rng = np.random.default_rng(0)
    domain = RAW | {"age": sf.Interval(18, 9e12)}
    data = {"age": rng.uniform(18, 9e12, 200), "income": rng.uniform(-0.5, 0.5, 200), "y": rng.integers(0, 2, 200)}
    run = sf.sample(
        readmitted,
        data,
        domain=domain,
        epsilon=7,
        delta=1e-6,
        kernel="guided",
        pilot_share=0.0,
        force=True,
        outside="clamp",
        progress=False,
    )
    assert (run.stop_reason, run.iterations) == (StopReason.BUDGET_SPENT, 0)
    assert run.privacy.outside == "clamp" and run.privacy.exact.endswith("model given the clamped records.")
