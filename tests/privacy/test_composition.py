"""The paper's Theorems 2 and 3, their combination, and the true curve of k releases by convolution."""

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.signal import fftconvolve
from scipy.stats import norm

from sfumato.errors import InvalidInput
from sfumato.paper import theorem1
from sfumato.privacy import gdp
from sfumato.privacy.composition import (
    advanced_composition,
    gaussian_epsilon,
    gaussian_mechanism,
    paper_epsilon,
    paper_mu,
)


def test_theorem2_against_mpmath():
    with mpmath.workdps(30):
        root = mpmath.sqrt(2 * mpmath.log(mpmath.mpf("1.25") / mpmath.mpf("1e-7")))
        truth = mpmath.mpf("0.7") * root / mpmath.mpf("0.3")
    assert gaussian_mechanism(0.3, 1e-7, 0.7) == pytest.approx(float(truth), rel=1e-10)


def test_theorem3_against_mpmath():
    with mpmath.workdps(30):
        e, k, d = mpmath.mpf("0.003"), mpmath.mpf(12345), mpmath.mpf("1e-8")
        truth = mpmath.sqrt(2 * k * mpmath.log(1 / d)) * e + k * e * (mpmath.exp(e) - 1)
    assert advanced_composition(0.003, 12345, 1e-8) == pytest.approx(float(truth), rel=1e-10)


@settings(max_examples=100, deadline=None)
@given(epsilon=st.floats(0.001, 0.999), delta=st.floats(-12, -0.2).map(lambda x: 10.0**x))
def test_theorem2_is_true(epsilon, delta):
    """The noise it asks for is at least the noise that the exact curve needs."""
    sigma = gaussian_mechanism(epsilon, delta)
    assert gdp.delta(1 / sigma, epsilon) <= delta
    assert gaussian_epsilon(1 / sigma, delta) in (pytest.approx(epsilon), np.inf)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 1.5, -1.0])
def test_theorem2_refuses_beyond_its_condition(epsilon):
    with pytest.raises(InvalidInput, match="Theorem 2"):
        gaussian_mechanism(epsilon, 1e-6)


@pytest.mark.parametrize(
    "call",
    [
        lambda: gaussian_mechanism(0.5, 0.0),
        lambda: gaussian_mechanism(0.5, 1e-6, -1),
        lambda: gaussian_epsilon(-1, 1e-6),
        lambda: advanced_composition(-0.1, 10, 1e-6),
        lambda: advanced_composition(0.1, -10, 1e-6),
        lambda: advanced_composition(0.1, 10, 0),
        lambda: paper_epsilon(0.3, 0, 1e-6),
        lambda: paper_epsilon(0.3, 10, 1e-6, step="guess"),
        lambda: paper_mu(0.0, 10, 1e-6),
    ],
)
def test_refusals(call):
    with pytest.raises(InvalidInput):
        call()


def test_the_design_figure():
    """At mu = 0.3 and 1e5 releases: 11 to 16 by the paper's route, 1.29 exactly."""
    assert paper_epsilon(0.3, 1e5, 1e-6, step="exact") == pytest.approx(11.39, abs=0.01)
    assert paper_epsilon(0.3, 1e5, 1e-6) == pytest.approx(16.45, abs=0.01)


def test_the_split_of_delta_is_optimal():
    mu, k, delta = 0.2, 4000, 1e-7

    def epsilon(logit):
        share = 1 / (1 + np.exp(-logit))
        return advanced_composition(gaussian_epsilon(mu / k**0.5, (1 - share) * delta / k), k, share * delta)

    best = minimize_scalar(epsilon, bounds=(-20, 20), method="bounded", options={"xatol": 1e-10}).fun
    assert paper_epsilon(mu, k, delta) == pytest.approx(best, rel=1e-6)


def test_silent_where_theorem2_is_silent():
    assert paper_epsilon(0.3, 1, 1e-6) == np.inf
    assert paper_epsilon(0.0, 5, 1e-6) == 0.0
    assert np.isinf(paper_epsilon([0.1, 5.0], [100, 1], 1e-6)).tolist() == [False, True]


@settings(max_examples=60, deadline=None)
@given(mu=st.floats(0.01, 2), k=st.integers(1, 10**6), delta=st.floats(-10, -3).map(lambda x: 10.0**x))
def test_the_paper_route_is_never_below_the_exact_account(mu, k, delta):
    assert paper_epsilon(mu, k, delta) >= gdp.epsilon(mu, delta)


def test_paper_mu_inverts():
    mu = paper_mu(1.0, 1000, 1e-6)
    assert paper_epsilon(mu, 1000, 1e-6) == pytest.approx(1.0, rel=1e-9)
    assert paper_epsilon(mu, 1000, 1e-6) <= 1.0


# Privacy of a k-fold release on the two-record domain {0, 1}, by convolution of its privacy losses.


def _loss(mu, spacing, *, up):
    """Law of the privacy loss N(mu^2/2, mu^2) of one release on a grid, rounded up or down; mass outside is kept."""
    reach = 12 * mu
    cells = np.arange(np.floor((mu**2 / 2 - reach) / spacing), np.ceil((mu**2 / 2 + reach) / spacing) + 1)
    mass = np.diff(norm.cdf(cells * spacing, mu**2 / 2, mu))
    return (cells[1:] if up else cells[:-1]), mass


def _convolved_delta(sensitivities, sigma, epsilon, *, up):
    spacing = min(sensitivities) / sigma / 400
    first, total = 0.0, np.ones(1)
    for sensitivity in sensitivities:
        cells, mass = _loss(sensitivity / sigma, spacing, up=up)
        first, total = first + cells[0], np.maximum(fftconvolve(total, mass), 0.0)
    loss = (first + np.arange(total.size)) * spacing
    return float(np.sum(total[loss > epsilon] * -np.expm1(epsilon - loss[loss > epsilon])))


def _bernoulli_walk(n, c, iterations, rng):
    """Sensitivities of a walk on the logit of a Bernoulli: with records in {0, 1} they are the step lengths."""
    return rng.uniform(0.5, 1.0, size=iterations) * c * n**-0.5


def test_the_true_curve_lies_below_theorem1_and_below_the_exact_account():
    n, k0, alpha, beta, c, sigma = 100, 1.0, 0.5, 1.2, 1.0, 2.0
    stated = theorem1(n, k0, alpha, beta, c, sigma)
    sensitivities = _bernoulli_walk(n, c, stated.iterations, np.random.default_rng(3))
    mu = float(np.sqrt(np.sum(sensitivities**2)) / sigma)
    for epsilon in np.linspace(0.05, 1.0, 6):
        low, high = (_convolved_delta(sensitivities, sigma, epsilon, up=up) for up in (False, True))
        account = gdp.delta(mu, epsilon)
        assert low <= account * (1 + 1e-6) + 1e-13
        assert account <= high + 1e-13, "the account is the curve itself, so rounding losses up must pass it"
        assert low == pytest.approx(account, rel=0.2, abs=1e-12)
        assert high <= gdp.delta(stated.mu, epsilon) + 1e-13, "steps below the bound cost less than the theorem charges"
    # Theorem 1's own curve: k does not depend on beta, so every beta is one (epsilon, delta) claim about this run.
    for point in (theorem1(n, k0, alpha, b, c, sigma) for b in (0.8, 1.2, 2.0, 3.0)):
        assert point.iterations == stated.iterations
        for epsilon in (point.epsilon_corrected, point.epsilon_unsimplified, point.epsilon_exact):
            assert _convolved_delta(sensitivities, sigma, epsilon, up=True) <= point.delta


def test_the_printed_epsilon_is_below_what_its_proof_gives():
    stated = theorem1(1e5, 1, 0.5, 1.5, 1, 10)
    assert stated.epsilon_printed < stated.epsilon_unsimplified < stated.epsilon_corrected
