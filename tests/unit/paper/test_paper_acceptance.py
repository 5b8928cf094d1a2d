"""Expected acceptance, its derivative and the three kappas, against mpmath and by property."""

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from sfumato import paper
from sfumato.errors import InvalidInput

LAMBDAS = st.floats(-60, 60)
SIGMAS = st.floats(1e-3, 12)


def true_acceptance(lam, sigma):
    with mpmath.workdps(50):
        lam, sigma = mpmath.mpf(lam), mpmath.mpf(sigma)
        return mpmath.ncdf(lam / sigma - sigma / 2) + mpmath.exp(lam) * mpmath.ncdf(-lam / sigma - sigma / 2)


@settings(max_examples=300, deadline=None)
@given(lam=LAMBDAS, sigma=SIGMAS)
def test_expected_acceptance_against_mpmath(lam, sigma):
    assert paper.expected_acceptance(lam, sigma) == pytest.approx(float(true_acceptance(lam, sigma)), rel=1e-10)


@settings(max_examples=100, deadline=None)
@given(lam=LAMBDAS, sigma=SIGMAS)
def test_it_is_the_mean_of_the_penalty_acceptance(lam, sigma):
    """Integrate the noise out of min(1, exp(lambda + sigma z - sigma^2/2)) by Gauss-Legendre on both smooth pieces."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    kink = np.clip(sigma / 2 - lam / sigma, -40.0, 40.0)
    total = 0.0
    for low, high in ((-40.0, kink), (kink, 40.0)):
        z = low + (high - low) * (nodes + 1) / 2
        exponent = np.minimum(0.0, lam + sigma * z - sigma**2 / 2) - z * z / 2
        total += (high - low) / 2 * np.sum(weights * np.exp(exponent)) / np.sqrt(2 * np.pi)
    assert paper.expected_acceptance(lam, sigma) == pytest.approx(total, rel=1e-7, abs=1e-12)


@settings(max_examples=300, deadline=None)
@given(lam=st.floats(-500, 500), sigma=SIGMAS)
def test_detailed_balance_identity(lam, sigma):
    left, right = paper.log_expected_acceptance(lam, sigma), lam + paper.log_expected_acceptance(-lam, sigma)
    assert left == pytest.approx(right, rel=1e-12, abs=1e-10)


@settings(max_examples=200, deadline=None)
@given(lam=st.floats(-30, 30), sigma=SIGMAS)
def test_log_agrees(lam, sigma):
    assert np.exp(paper.log_expected_acceptance(lam, sigma)) == pytest.approx(
        paper.expected_acceptance(lam, sigma), rel=1e-10
    )


@pytest.mark.parametrize("lam", [-1e6, -1e3, 1e3, 1e6])
@pytest.mark.parametrize("sigma", [0.0, 1e-3, 1.0, 50.0, 1e3, 2e3])
def test_stable_for_huge_log_ratios(lam, sigma):
    value = paper.expected_acceptance(lam, sigma)
    truth = float(true_acceptance(lam, sigma)) if sigma else min(1.0, np.exp(min(lam, 0)))
    assert value == pytest.approx(truth, rel=1e-8, abs=1e-300)
    assert paper.expected_acceptance_derivative(lam, sigma) <= 0
    log_value = paper.log_expected_acceptance(lam, sigma)
    if sigma:
        with mpmath.workdps(50):
            log_truth = float(mpmath.log(true_acceptance(lam, sigma)))
        assert log_value == pytest.approx(log_truth, rel=1e-10, abs=1e-10)


@settings(max_examples=200, deadline=None)
@given(lam=st.floats(-20, 20), sigma=st.floats(0.05, 8))
def test_derivative_against_mpmath_and_prop1(lam, sigma):
    with mpmath.workdps(50):
        h = mpmath.mpf("1e-12")
        slope = float((true_acceptance(lam, sigma + h) - true_acceptance(lam, sigma - h)) / (2 * h))
    value = paper.expected_acceptance_derivative(lam, sigma)
    assert value == pytest.approx(slope, rel=1e-9, abs=1e-14)
    assert value <= 0
    assert paper.expected_acceptance(lam, sigma * 1.01) <= paper.expected_acceptance(lam, sigma) * (1 + 1e-15)


def test_zero_noise_is_metropolis_hastings():
    lam = np.array([-3.0, -0.0, 0.0, 2.0])
    np.testing.assert_allclose(paper.expected_acceptance(lam, 0.0), paper.acceptance(lam), rtol=1e-15)
    assert paper.expected_acceptance_derivative(0.0, 0.0) == pytest.approx(-1 / np.sqrt(2 * np.pi))
    assert paper.expected_acceptance_derivative(1.0, 0.0) == 0.0


def test_shapes():
    assert type(paper.expected_acceptance(0.1, 1)) is type(paper.kappa(1)) is type(paper.acceptance(1)) is float
    assert paper.expected_acceptance(np.zeros((3, 1)), np.ones(2)).shape == (3, 2)
    assert paper.kappa([0.1, 1.0]).shape == (2,)


@settings(max_examples=400, deadline=None)
@given(lam=st.floats(-40, 40), sigma=st.floats(0, 10), room=st.floats(1, 3))
def test_no_kappa_is_ever_violated(lam, sigma, room):
    bound = sigma**2 * room
    ratio = np.exp(paper.log_expected_acceptance(lam, sigma) - min(lam, 0.0))
    for kind in ("printed", "proof", "sharp"):
        assert ratio >= paper.kappa(bound, kind) * (1 - 1e-12)
    assert paper.kappa(bound, "printed") <= paper.kappa(bound, "sharp")
    assert paper.kappa(bound, "sharp") == pytest.approx(2 * paper.kappa(bound, "proof"))


@pytest.mark.parametrize("sigma", [0.1, 0.5, 1.0, 2.4, 6.0])
def test_the_sharp_kappa_is_attained_at_zero(sigma):
    assert paper.expected_acceptance(0.0, sigma) == pytest.approx(paper.kappa(sigma**2), rel=1e-13)
    assert paper.expected_acceptance(0.0, sigma) < paper.kappa(sigma**2) * (1 + 1e-9), "a larger constant fails"


def test_the_proofs_false_step_below_one():
    """The proof bounds P(V >= sigma/2) from below by P(V >= B/2): false at B = 1/4, true from B = 1 on."""
    for bound, holds in ((0.25, False), (0.81, False), (1.0, True), (4.0, True)):
        event = ndtr(-np.sqrt(bound) / 2)
        assert (event >= paper.kappa(bound, "printed")) == holds
    assert ndtr(-0.25) == pytest.approx(0.4013, abs=1e-4)
    assert paper.kappa(0.25, "printed") == pytest.approx(0.4503, abs=1e-4)


@settings(max_examples=100, deadline=None)
@given(rho=st.floats(0, 1, exclude_max=True), bound=st.floats(0, 50))
def test_lemma1(rho, bound):
    for kind in ("printed", "proof", "sharp"):
        value = paper.rejection_bound(rho, bound, kind)
        assert value == pytest.approx(1 - paper.kappa(bound, kind) + paper.kappa(bound, kind) * rho)
        assert rho - 1e-12 <= value <= 1
    assert paper.rejection_bound(0.5, 4.0) < 1


@pytest.mark.parametrize("kind", ["printed", "proof", "sharp"])
def test_kappas_against_mpmath(kind):
    with mpmath.workdps(30):
        b = mpmath.mpf("2.7")
        truth = {
            "printed": 1 - mpmath.ncdf(b / 2),
            "proof": 1 - mpmath.ncdf(mpmath.sqrt(b) / 2),
            "sharp": 2 * mpmath.ncdf(-mpmath.sqrt(b) / 2),
        }[kind]
    assert paper.kappa(2.7, kind) == pytest.approx(float(truth), rel=1e-10)


@pytest.mark.parametrize(
    "call",
    [
        lambda: paper.kappa(-1),
        lambda: paper.kappa(1, "best"),
        lambda: paper.rejection_bound(1.2, 1),
        lambda: paper.expected_acceptance(0, -1),
        lambda: paper.expected_acceptance(float("nan"), 1),
        lambda: paper.expected_acceptance(0, float("inf")),
        lambda: paper.expected_acceptance(0, "a"),
        lambda: paper.kappa("a"),
        lambda: paper.rejection_bound([0.1, "a"], 1),
    ],
)
def test_refusals(call):
    with pytest.raises(InvalidInput, match="got"):
        call()
