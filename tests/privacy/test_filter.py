"""The filter: no adaptive sequence of answers passes the cap, and what is reported is the cap."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sfumato as sf
from sfumato.errors import BudgetSpent
from sfumato.kernel import PublicStream, RandomWalk, State
from sfumato.planner import budget_mu, lattice_slack
from sfumato.privacy import gdp
from sfumato.privacy.budget import QUANTA_PER_UNIT, cap_quanta, cost_quanta, mu_squared
from sfumato.study.target import make_study
from sfumato.vault import records
from sfumato.vault.ledger import Ledger
from sfumato.vault.vault import Vault


def coin(y):
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(probs=p), obs=y)


STUDY = make_study(coin, {"y": sf.Binary()})
TABLE = records.load({"y": np.arange(40) % 2}, STUDY.domain)
CHAINS = 3


@pytest.fixture(scope="module")
def compiled():
    """One vault whose account is swapped, so that hypothesis does not compile a loop per example."""
    with Ledger.in_memory(cap_quanta(1.0)) as ledger:
        vault = Vault(TABLE, STUDY, ledger.account("x", cap_quanta(1.0)))
        kernel = RandomWalk(np.eye(1) * 0.5, 1.0)
        with jax.enable_x64(True):
            theta = jax.numpy.zeros((CHAINS, 1))
            states = State(theta, jax.jit(jax.vmap(STUDY.model.log_prior))(theta), jax.numpy.ones((CHAINS, 1)))
        vault.begin(kernel, 1.5, states)
        yield vault, kernel, states
        vault.close()


def test_no_step_is_taken_beyond_the_noise_that_was_drawn(compiled):
    vault, kernel, states = compiled
    with Ledger.in_memory(cap_quanta(8.0)) as ledger:
        vault._account = ledger.account("run", cap_quanta(8.0))
        chunk = vault.chunk(states, PublicStream(0, CHAINS).peek(kernel, 5), 50, cap_quanta(8.0))
        assert chunk.steps == 5
        chunk.settle()


@given(
    st.integers(0, 2**31),
    st.floats(0.05, 3.0),
    st.lists(st.integers(1, 30), min_size=1, max_size=12),
    st.floats(0.0, 2.0),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_sequence_of_chunks_passes_the_cap(compiled, seed, mu, limits, greed):
    vault, kernel, states = compiled
    cap = cap_quanta(mu)
    with Ledger.in_memory(cap) as ledger:
        vault._account = ledger.account("run", cap)
        stream = PublicStream(seed, CHAINS)
        paid = 0.0
        for limit in limits:
            try:
                chunk = vault.chunk(states, stream.peek(kernel, 30), limit, int(greed * cap / len(limits)) + 1)
            except BudgetSpent:
                break
            states = chunk.states
            stream.consume(chunk.steps)
            realised = float(((chunk.transcript.sensitivity / 1.5) ** 2).sum())
            assert realised <= mu_squared(chunk.spent) * (1 + 1e-12)
            chunk.settle()
            paid += realised
            assert len(chunk.transcript.theta) == chunk.steps <= limit
        assert paid <= mu**2
        assert ledger.spent <= cap
        assert ledger.verify().ok


def test_nothing_is_answered_once_the_cap_is_met(compiled):
    vault, kernel, states = compiled
    with Ledger.in_memory(1000) as ledger:
        account = ledger.account("run", 1000)
        account.reserve(1000)
        vault._account = account
        with pytest.raises(BudgetSpent):
            vault.chunk(states, PublicStream(0, CHAINS).peek(kernel, 30), 30, 1)
        with pytest.raises(BudgetSpent):
            vault.release("gradient", np.zeros(1), np.eye(1), 1.0, 1.0)


def test_a_step_that_does_not_fit_is_not_taken_and_says_what_it_needs(compiled):
    vault, kernel, states = compiled
    with Ledger.in_memory(5) as ledger:
        vault._account = ledger.account("run", 5)
        chunk = vault.chunk(states, PublicStream(0, CHAINS).peek(kernel, 30), 30, 5)
        assert (chunk.steps, chunk.spent) == (0, 0)
        assert chunk.needed > 5


def test_a_release_is_charged_by_the_diameter_of_its_ball_before_it_is_computed(compiled):
    vault, *_ = compiled
    cap = cap_quanta(5.0)
    with Ledger.in_memory(cap) as ledger:
        vault._account = ledger.account("run", cap)
        answer = vault.release("gradient", np.array([0.3]), np.eye(1), 0.8, 2.0)
        assert answer.shape == (1,)
        assert ledger.spent >= (2 * 0.8 / 2.0) ** 2 * QUANTA_PER_UNIT
        assert ledger.spent <= cost_quanta((2 * 0.8 / 2.0) ** 2 * (1 + 1e-5))


def test_the_mean_of_many_releases_is_the_clipped_sum(compiled):
    """Checks the sum itself: at p = 0.5 the gradient of a Bernoulli in its logit is y - 0.5, clipped to 0.3."""
    vault, *_ = compiled
    cap = cap_quanta(60.0)
    with Ledger.in_memory(cap) as ledger:
        vault._account = ledger.account("run", cap)
        answers = [vault.release("gradient", np.array([0.0]), np.eye(1), 0.3, 0.5)[0] for _ in range(40)]
    y = np.arange(40) % 2
    truth = np.clip(y - 0.5, -0.3, 0.3).sum()
    assert abs(np.mean(answers) - truth) < 5 * 0.5 / np.sqrt(40)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_the_lattice_slack_is_inside_the_delta_asked_for(epsilon):
    mu = budget_mu(epsilon, 1e-6)
    assert gdp.delta(mu, epsilon) + lattice_slack(epsilon) <= 1e-6 * (1 + 1e-9)
    assert lattice_slack(epsilon) > 0
    assert gdp.delta(mu * (1 + 1e-6), epsilon) + lattice_slack(epsilon) > 1e-6 * (1 - 1e-4)
