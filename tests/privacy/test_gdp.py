"""Exact Gaussian DP against mpmath, against google's dp-accounting, and against itself."""

import subprocess
import sys

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.errors import InvalidInput
from sfumato.privacy import gdp

TOLERANCE = 1e-9
MUS = st.floats(-4, 1.5).map(lambda x: 10.0**x)
DELTAS = st.floats(-15, -0.3).map(lambda x: 10.0**x)


def true_delta(mu, epsilon):
    with mpmath.workdps(60):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return mpmath.ncdf(-epsilon / mu + mu / 2) - mpmath.exp(epsilon) * mpmath.ncdf(-epsilon / mu - mu / 2)


def true_epsilon(mu, delta):
    if true_delta(mu, 0) <= delta:
        return mpmath.mpf(0)
    with mpmath.workdps(60):
        low, high = mpmath.mpf(0), mu * (mpmath.mpf(mu) / 2 + mpmath.sqrt(-2 * mpmath.log(delta)))
        for _ in range(120):
            middle = (low + high) / 2
            low, high = (middle, high) if true_delta(mu, middle) > delta else (low, middle)
        return high


@settings(max_examples=300, deadline=None)
@given(mu=MUS, ratio=st.floats(-4, 36))
def test_delta_is_never_below_the_truth_and_never_far_above(mu, ratio):
    epsilon = max(0.0, mu * (ratio + mu / 2))
    truth = true_delta(mu, epsilon)
    excess = float(gdp.delta(mu, epsilon) / truth - 1)
    assert 0 <= excess < TOLERANCE


@pytest.mark.parametrize("delta", [1e-15, 1e-10, 1e-6, 0.01, 0.4])
@pytest.mark.parametrize("mu", [1e-4, 0.01, 0.3, 0.999999, 1.0, 4.0, 30.0])
def test_epsilon_against_mpmath(mu, delta):
    truth = true_epsilon(mu, delta)
    result = gdp.epsilon(mu, delta)
    assert truth <= result <= float(truth) * (1 + TOLERANCE)


@pytest.mark.parametrize(
    ("mu", "delta"),
    [(m, d) for m in (1e-4, 0.01, 0.3, 4.0, 30.0) for d in (1e-15, 1e-6, 0.01) if d < 0.3 * m],  # others are free
)
def test_mu_is_never_above_the_truth_and_close(mu, delta):
    epsilon = true_epsilon(mu, delta)
    result = gdp.mu(float(epsilon), delta)
    assert true_delta(result, float(epsilon)) <= delta
    assert result == pytest.approx(mu, rel=TOLERANCE)


@settings(max_examples=200, deadline=None)
@given(mu=MUS, delta=DELTAS)
def test_round_trip_from_mu(mu, delta):
    epsilon = gdp.epsilon(mu, delta)
    assert gdp.delta(mu, epsilon) <= delta * (1 + TOLERANCE)
    if epsilon > 1e-6 * mu:
        assert gdp.mu(epsilon, delta) == pytest.approx(mu, rel=1e-8)


@settings(max_examples=200, deadline=None)
@given(epsilon=st.floats(0, 200), delta=DELTAS)
def test_a_budget_turned_into_mu_keeps_the_promise(epsilon, delta):
    mu = gdp.mu(epsilon, delta)
    assert true_delta(mu, epsilon) <= delta
    assert true_delta(mu * (1 + 1e-8), epsilon) > delta or epsilon == 0


@pytest.mark.parametrize("mu", [0.01, 0.1, 0.5, 1.0, 2.5, 5.0])
def test_equal_to_google_dp_accounting(mu):
    from dp_accounting.pld import privacy_loss_distribution

    interval = 1e-4 if mu < 1 else 1e-3
    low, high = (
        privacy_loss_distribution.from_gaussian_mechanism(
            1.0, sensitivity=mu, pessimistic_estimate=pessimistic, value_discretization_interval=interval,
            use_connect_dots=True,
        )
        for pessimistic in (False, True)
    )  # fmt: skip
    for delta in (1e-8, 1e-5):
        upper = high.get_epsilon_for_delta(delta)
        assert gdp.epsilon(mu, delta) == pytest.approx(upper, abs=1e-6)
        assert low.get_epsilon_for_delta(delta) <= gdp.epsilon(mu, delta) + 1e-9


def test_the_design_figure():
    assert gdp.epsilon(0.3, 1e-6) == pytest.approx(1.29, abs=0.005)


def test_arrays_broadcast_and_scalars_stay_scalars():
    result = gdp.epsilon(np.array([[0.1], [1.0]]), np.array([1e-9, 1e-6, 1e-3]))
    assert result.shape == (2, 3)
    assert result[1, 1] == gdp.epsilon(1.0, 1e-6)
    assert type(gdp.epsilon(1, 1e-6)) is type(gdp.delta(1, 1)) is type(gdp.mu(1, 1e-6)) is float
    assert gdp.mu([1.0, 2.0], 1e-6).shape == gdp.delta([1.0, 2.0], 1.0).shape == (2,)


def test_edges():
    assert gdp.epsilon(0.0, 1e-9) == 0 == gdp.delta(0.0, 1.0)
    assert gdp.epsilon(1.0, 0.9) == 0
    assert 0 < gdp.delta(1.0, 1000.0) < 1e-300
    assert gdp.delta(64.0, 0.0) == 1.0
    assert gdp.mu(0.0, 1e-6) == pytest.approx(1e-6 * np.sqrt(2 * np.pi), rel=1e-6)
    assert gdp.epsilon(1e4, 1e-6) > 1e4**2 / 2


def test_delta_is_one_minus_the_expected_acceptance():
    from sfumato.paper import expected_acceptance

    assert gdp.delta(1.7, 0.4) == pytest.approx(1 - expected_acceptance(0.4, 1.7), rel=1e-10)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: gdp.epsilon(-1, 1e-6), "mu"),
        (lambda: gdp.epsilon(float("nan"), 1e-6), "mu"),
        (lambda: gdp.epsilon(1, 0), "delta"),
        (lambda: gdp.epsilon("a", 1e-6), "mu"),
        (lambda: gdp.epsilon(1, 1), "delta"),
        (lambda: gdp.delta(1, -0.1), "epsilon"),
        (lambda: gdp.delta(1, float("inf")), "epsilon"),
        (lambda: gdp.mu(1, [1e-6, 2]), "delta"),
        (lambda: gdp.lattice_slack(10, 1, 0.1), "gamma_over_sigma"),
        (lambda: gdp.lattice_slack(-1, 1, 1e-12), "releases"),
    ],
)
def test_refusals_name_the_argument(call, word):
    with pytest.raises(InvalidInput, match=word):
        call()


def test_lattice_slack_figures():
    assert gdp.lattice_slack(10**6, 3.8, 2.0**-30) < 1e-12
    assert gdp.lattice_slack(10**6, 10.0, 2.0**-30) == pytest.approx(5e-10, rel=0.1)
    assert gdp.lattice_slack(1, 0.0, 2.0**-30) >= 2 * 2.0**-60 / 40


def test_import_loads_no_jax():
    code = "import sys, sfumato.privacy.gdp, sfumato.privacy.composition; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
