"""Theorem 1, Corollary 1 and the inverse questions, against an independent evaluation of the printed formulas."""

import subprocess
import sys
import warnings

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sfumato import paper
from sfumato.errors import InvalidInput
from sfumato.privacy import gdp

WITNESS = {"n": 1e5, "k0": 1.0, "alpha": 0.5, "beta": 1.5, "c": 1.0, "sigma": 10.0}


def independent(n, k0, alpha, beta, c, sigma):  # noqa: PLR0917
    """The formulas of the paper as printed, and as its proof has them, in 30 digits."""
    with mpmath.workdps(30):
        n, k0, alpha, beta, c, sigma = (mpmath.mpf(x) for x in (n, k0, alpha, beta, c, sigma))
        bp, log_n = 2 * alpha + beta, mpmath.log(n)
        k = mpmath.floor(k0 * n ** (2 * alpha) / log_n)
        e1 = c / sigma * n**-alpha * mpmath.sqrt(2 * bp * log_n)
        tail = 4 * k0 * c**2 / sigma**2 * (2 * alpha + beta)
        values = {
            "iterations": k,
            "delta": mpmath.mpf("1.25") * k0 * n**-beta / log_n + n**-beta,
            "epsilon_printed": 2 * mpmath.sqrt(k0 * (2 * alpha + beta) * beta) * c / sigma + tail,
            "epsilon_corrected": mpmath.sqrt(4 * k0 * bp * beta * log_n) * c / sigma + tail,
            "epsilon_unsimplified": mpmath.sqrt(2 * k * mpmath.log(n**beta)) * e1 + k * e1 * (mpmath.exp(e1) - 1),
            "epsilon_step": e1,
            "delta_step": mpmath.mpf("1.25") * n**-bp,
            "mu": mpmath.sqrt(k) * c * n**-alpha / sigma,
        }
        return {name: float(value) for name, value in values.items()}


@settings(max_examples=150, deadline=None)
@given(
    n=st.integers(2, 10**9), k0=st.floats(0.1, 10), alpha=st.floats(0.1, 0.5), beta=st.floats(0.2, 3),
    c=st.floats(0.1, 5), over=st.floats(1.01, 20),
)  # fmt: skip
def test_theorem1_against_mpmath(n, k0, alpha, beta, c, over):  # noqa: PLR0917
    real_k = k0 * n ** (2 * alpha) / np.log(n)
    assume(abs(real_k - round(real_k)) > 1e-9 * real_k)  # on a knife's edge the floor is a matter of the last digit
    sigma = over * paper.minimum_sigma(alpha, beta, c)
    result = paper.theorem1(n, k0, alpha, beta, c, sigma)
    for name, truth in independent(n, k0, alpha, beta, c, sigma).items():
        assert getattr(result, name) == pytest.approx(truth, rel=1e-10), name
    assert result.epsilon_unsimplified <= result.epsilon_corrected * (1 + 1e-12)
    assert result.epsilon_exact <= result.epsilon_unsimplified
    if n >= 3:
        assert result.epsilon_printed <= result.epsilon_corrected * (1 + 1e-12)


def test_the_witness():
    result = paper.theorem1(**WITNESS)
    assert result.iterations == 8685
    assert result.epsilon_unsimplified == pytest.approx(1.364, abs=5e-4)
    assert result.epsilon_corrected == pytest.approx(1.414, abs=5e-4)
    assert result.epsilon_printed == pytest.approx(0.487, abs=5e-4)
    assert result.epsilon_exact == pytest.approx(0.1297, abs=5e-5)
    assert gdp.delta(result.mu, result.epsilon_exact) == pytest.approx(result.delta, rel=1e-8)


def test_the_corrected_epsilon_climbs_and_the_exact_one_settles():
    n = 10.0 ** np.array([4, 8, 16, 32, 64, 128])
    result = paper.theorem1(n, 1, 0.5, 1.5, 1, 10)
    first_term = result.epsilon_corrected - 4 * 2.5 / 100
    np.testing.assert_allclose(first_term / np.sqrt(np.log(n)), 2 * np.sqrt(2.5 * 1.5) / 10, rtol=1e-12)
    limit = paper.limit_epsilon(1, 1.5, 1, 10)
    assert np.all(np.diff(np.abs(result.epsilon_exact - limit)) < 0)
    assert result.epsilon_exact[-1] == pytest.approx(limit, rel=0.02)


@settings(max_examples=150, deadline=None)
@given(
    n=st.floats(0.31, 12).map(lambda x: 10.0**x), k0=st.floats(0.01, 10), alpha=st.floats(0.01, 0.5),
    beta=st.floats(0.01, 3), over=st.floats(1.01, 50),
)  # fmt: skip
def test_the_printed_epsilon_is_true_where_the_exponents_allow(n, k0, alpha, beta, over):
    """mu^2/2 + mu sqrt(2 beta log n) bounds the exact epsilon, and the printed one bounds that if 2a + b >= 1/2."""
    assume(2 * alpha + beta >= 0.5)
    result = paper.theorem1(n, k0, alpha, beta, 1.0, over * paper.minimum_sigma(alpha, beta, 1.0))
    assert result.epsilon_exact <= result.epsilon_printed * (1 + 1e-9)


def test_the_printed_epsilon_is_false_for_small_exponents_at_huge_n():
    result = paper.theorem1(1e200, 1, 0.02, 0.2, 1, 1000)
    assert result.epsilon_exact > 1.3 * result.epsilon_printed
    assert gdp.delta(result.mu, result.epsilon_printed) > 1e3 * result.delta
    assert result.epsilon_exact < result.epsilon_corrected


@settings(max_examples=60, deadline=None)
@given(alpha=st.floats(0.05, 0.5), beta=st.floats(0.1, 3), c=st.floats(0.1, 5))
def test_minimum_sigma_is_the_maximum_over_n(alpha, beta, c):
    log_n = np.linspace(0, 5 / alpha, 20001)
    brute = (c * np.exp(-alpha * log_n) * np.sqrt(2 * (2 * alpha + beta) * log_n)).max()
    assert paper.minimum_sigma(alpha, beta, c) == pytest.approx(brute, rel=1e-6)
    assert paper.minimum_sigma(alpha, beta, c) >= brute * (1 - 1e-12)


def test_corollary1():
    result = paper.corollary1(**WITNESS, sensitivity=2.0)
    plain = paper.theorem1(**WITNESS)
    for name in ("iterations", "delta", "epsilon_corrected", "epsilon_exact", "mu"):
        assert getattr(result, name) == getattr(plain, name)
    with mpmath.workdps(30):
        xi = mpmath.mpf(10) ** 2 * mpmath.mpf(2) ** 2 * mpmath.mpf(10) ** 5
    assert result.xi == pytest.approx(float(xi), rel=1e-10)
    assert result.sigma_squared_bound == pytest.approx(400.0, rel=1e-12)
    # The longest allowed move of the natural parameter attains the bound; the release has Theorem 1's mu.
    move = 1.0 * 1e5**-0.5
    assert move**2 * result.xi == pytest.approx(result.sigma_squared_bound, rel=1e-12)
    assert np.sqrt(result.iterations) * 2.0 / np.sqrt(result.xi) == pytest.approx(result.mu, rel=1e-12)


def test_assumption_bound_on_a_logistic_likelihood():
    """Assumptions 2 and 3 on logistic regression with covariates in a box: the bound holds and keeps the c."""
    rng = np.random.default_rng(0)
    c, d, n, alpha = 0.7, 3, 400, 0.5
    x = rng.choice([-1.0, 1.0], size=(2000, d))
    y = rng.integers(0, 2, size=2000)

    def log_likelihood(theta):
        return -np.logaddexp(0, np.where(y == 1, -1, 1) * (x @ theta))

    theta = rng.normal(size=d)
    move = c * n**-alpha * np.array([1.0, -1.0, 1.0]) * 0.999
    difference = log_likelihood(theta + move) - log_likelihood(theta)
    bound = paper.assumption_bound(c, d, 1.0, n, alpha)
    assert bound == pytest.approx(2 * 0.7 * 3 / 20)
    assert np.ptp(difference) <= bound
    # With longer moves the printed bound, which drops the c, is wrong.
    long = log_likelihood(theta + move * 5) - log_likelihood(theta)
    assert np.ptp(long) > 2 * d * n**-alpha * 1.0
    assert np.ptp(long) <= paper.assumption_bound(5 * c, d, 1.0, n, alpha)


def test_huge_n_and_whole_iterations():
    result = paper.theorem1(10**200, 1.0, 0.5, 1.0, 1.0, 10.0)
    assert isinstance(result.iterations, int)
    assert result.iterations == pytest.approx(1e200 / np.log(1e200), rel=1e-12)
    assert 0 < result.epsilon_exact < result.epsilon_unsimplified
    swept = paper.theorem1(np.array([2, 10**3, 10**15]), 1.0, 0.5, 1.0, 1.0, 10.0)
    assert np.all(swept.iterations == np.floor(swept.iterations))
    with pytest.raises(InvalidInput, match="n"):
        paper.theorem1(1e300, 1.0, 0.5, 2.0, 1.0, 10.0)


def test_no_iterations_cost_nothing():
    result = paper.theorem1(100, 0.01, 0.5, 1.5, 1.0, 10.0)
    assert result.iterations == 0 == result.mu == result.epsilon_exact == result.epsilon_unsimplified


def test_an_empty_delta_is_allowed_at_tiny_n():
    result = paper.theorem1(2, 1.0, 0.5, 1.0, 1.0, 10.0)
    assert result.delta > 1
    assert result.epsilon_exact == 0


def test_alpha_above_one_half_warns():
    with pytest.warns(UserWarning, match="freezes"):
        paper.theorem1(1000, 1.0, 0.75, 1.5, 1.0, 10.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        paper.theorem1(1000, 1.0, 0.5, 1.5, 1.0, 10.0)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"n": 1}, "n must be"),
        ({"n": float("inf")}, "n must be"),
        ({"alpha": 0.0}, "alpha"),
        ({"beta": -1.0}, "beta"),
        ({"k0": 0.0}, "k0"),
        ({"k0": "a"}, "k0 must be a number"),
        ({"n": "many"}, "n must be a number"),
        ({"c": float("nan")}, "c must"),
        ({"sigma": 0.0}, "sigma"),
        ({"sigma": 1.0}, "Theorem 2's condition epsilon_1 < 1"),
        ({"sigma": 0.01, "every_n": False}, "Theorem 2"),
    ],
)
def test_domain_checks(change, match):
    with pytest.raises(InvalidInput, match=match):
        paper.theorem1(**(WITNESS | change))


def test_this_n_alone_may_do_with_less_noise():
    result = paper.theorem1(**(WITNESS | {"sigma": 1.0}), every_n=False)
    assert result.epsilon_step < 1
    assert result.epsilon_exact < result.epsilon_unsimplified


def test_results_are_frozen():
    with pytest.raises(AttributeError):
        paper.theorem1(**WITNESS).delta = 0.0


STUDY = {"n": 1e5, "alpha": 0.5, "c": 1.0}


@pytest.mark.parametrize("route", ["exact", "paper"])
def test_sigma_for_hits_the_target(route):
    sigma = paper.sigma_for(epsilon=1.0, delta=1e-6, iterations=8000, route=route, **STUDY)
    achieved = getattr(paper.epsilon_for(sigma=sigma, iterations=8000, delta=1e-6, **STUDY), route)
    assert achieved <= 1.0
    assert achieved == pytest.approx(1.0, rel=1e-8)


@pytest.mark.parametrize("route", ["exact", "paper"])
def test_k0_for_hits_the_target(route):
    k0 = paper.k0_for(epsilon=1.0, delta=1e-6, sigma=2.4, route=route, **STUDY)
    k = int(k0 * 1e5 / np.log(1e5))
    achieved = [getattr(paper.epsilon_for(sigma=2.4, iterations=j, delta=1e-6, **STUDY), route) for j in (k, k + 1)]
    assert achieved[0] <= 1.0 < achieved[1]


@pytest.mark.parametrize("route", ["exact", "paper"])
@pytest.mark.parametrize("delta", [None, 1e-6])
def test_minimum_n_is_the_fewest_records(route, delta):
    beta = 1.5 if delta is None else None
    ask = {"sigma": 2.4, "iterations": 5000, "alpha": 0.5, "c": 1.0}
    n = paper.minimum_n(epsilon=1.0, delta=delta, beta=beta, route=route, **ask)
    here, before = (getattr(paper.epsilon_for(n=m, delta=delta or m**-1.5, **ask), route) for m in (n, n - 1))
    assert here <= 1.0 + 1e-9
    assert before > 1.0 - 1e-9


def test_minimum_n_is_never_below_two():
    for where in ({"delta": 1e-6}, {"beta": 1.5}):
        assert paper.minimum_n(epsilon=10.0, sigma=1e3, iterations=1, alpha=0.5, c=1e-3, **where) == 2


def test_inverse_refusals():
    ask = {"epsilon": 1.0, "sigma": 2.4, "iterations": 5000, "alpha": 0.5, "c": 1.0}
    with pytest.raises(InvalidInput, match="exactly one"):
        paper.minimum_n(**ask)
    with pytest.raises(InvalidInput, match="route"):
        paper.minimum_n(**ask, delta=1e-6, route="printed")
    with pytest.raises(InvalidInput, match="iterations"):
        paper.epsilon_for(sigma=1.0, iterations=0, delta=1e-6, **STUDY)


def test_import_is_light():
    code = "import sys, sfumato.paper; sys.exit(any(m in sys.modules for m in ('jax', 'matplotlib', 'numpyro')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
