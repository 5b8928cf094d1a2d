"""The width charged is the width attained, and no rounding favours the data."""

import itertools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sfumato as sf
from sfumato.privacy.budget import QUANTA_PER_UNIT
from sfumato.study.target import make_study
from sfumato.vault import lattice


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def clamp(lo, hi, gamma, n=3):
    return lattice.clamp_for(jnp.asarray(lo), jnp.asarray(hi), gamma, n)


@pytest.mark.parametrize("gamma", [0.5, 0.25, 1.0])
def test_exhaustively_the_width_charged_is_the_width_attained(gamma):
    """Every table of three records over a tiny domain, every replacement: the largest change is exactly the charge."""

    def term(y):
        return 0.37 * y - 0.11 * y**2

    domain = np.arange(-3, 4)
    values = term(domain.astype(float))
    box = clamp(values.min(), values.max(), gamma)
    integer = np.asarray(lattice.to_lattice(jnp.asarray(values), box, gamma))
    sums = {table: sum(integer[i] for i in table) for table in itertools.product(range(len(domain)), repeat=3)}
    worst = max(
        abs(sums[table] - sums[(*table[:k], other, *table[k + 1 :])])
        for table in sums
        for k in range(3)
        for other in range(len(domain))
    )
    assert worst * gamma == float(lattice.width(box, gamma))


def test_exhaustively_with_a_bound_that_is_too_small_the_clamp_still_enforces_it():
    values = np.linspace(-2, 2, 9)
    box = clamp(-0.5, 0.75, 0.25)
    integer = np.asarray(lattice.to_lattice(jnp.asarray(values), box, 0.25))
    assert (integer.max() - integer.min()) * 0.25 == float(lattice.width(box, 0.25)) == 1.25


def test_exhaustively_for_a_model_on_a_finite_domain():
    """Bernoulli records: certified range, vault's own arithmetic, all pairs of records."""

    def model(y):
        p = numpyro.sample("p", dist.Beta(1.0, 1.0))
        with numpyro.plate("records", y.shape[0]):
            numpyro.sample("y", dist.Bernoulli(probs=p), obs=y)

    study = make_study(model, {"y": sf.Binary()})
    within = jax.jit(study.bounds.range)
    for a, b in [(-1.0, 0.3), (0.2, 0.21), (2.0, -2.0)]:
        theta, theta_prop = jnp.array([a]), jnp.array([b])
        terms = [
            float(study.model.log_likelihood(theta_prop, {"y": y}) - study.model.log_likelihood(theta, {"y": y}))
            for y in (0, 1)
        ]
        lo, hi = within(theta, theta_prop)
        gamma = 2.0**-30
        box = clamp(lo, hi, gamma)
        integer = np.asarray(lattice.to_lattice(jnp.asarray(terms), box, gamma))
        attained, charged = abs(int(integer[0]) - int(integer[1])) * gamma, float(lattice.width(box, gamma))
        assert attained <= charged
        assert charged <= attained * (1 + 1e-6)


@given(
    st.floats(-50, 50),
    st.floats(0, 20),
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=2, max_size=6),
    st.integers(-40, -1),
)
@settings(max_examples=300, deadline=None)
def test_whatever_the_terms_are_no_replacement_moves_the_sum_by_more_than_the_charge(lo, extent, terms, exponent):
    gamma = 2.0**exponent
    with jax.enable_x64(True):
        box = clamp(lo, lo + extent, gamma, n=len(terms))
        integer = np.asarray(lattice.to_lattice(jnp.asarray(terms), box, gamma))
        width = float(lattice.width(box, gamma))
    assert (int(integer.max()) - int(integer.min())) * gamma <= width


@given(st.floats(1e-9, 1e3), st.floats(0.05, 10.0))
@settings(max_examples=200, deadline=None)
def test_a_charge_is_never_below_the_true_mu_squared(width, sigma):
    with jax.enable_x64(True):
        gamma = lattice.choose_gamma(sigma, 100)
        box = clamp(-width / 2, width / 2, gamma)
        charge, real = int(lattice.cost(box, gamma, sigma)), float(lattice.width(box, gamma))
    if not bool(box.admissible):
        assert charge == 0
        return
    if charge == lattice.BEYOND:
        assert (real / sigma) ** 2 * QUANTA_PER_UNIT > 2.0**61
        return
    truth = (Fraction(real) / Fraction(sigma)) ** 2 * QUANTA_PER_UNIT
    assert charge >= truth
    assert charge <= truth * (1 + Fraction(1, 2**40)) + 2


def test_a_charge_beyond_64_bits_is_more_than_any_allowance_not_less():
    box = lattice.clamp_for(jnp.full(64, -1e6), jnp.full(64, 1e6), 2.0**-20, 10)
    assert int(lattice.cost(box, 2.0**-20, 1e-3)) == lattice.BEYOND


def test_a_pair_without_a_finite_range_is_not_asked():
    for lo, hi in [(-np.inf, 1.0), (0.0, np.inf), (np.nan, 1.0), (1.0, -1.0), (-1e300, 1e300)]:
        box = clamp(lo, hi, 2.0**-20)
        assert not bool(box.admissible)
        assert int(lattice.cost(box, 2.0**-20, 1.0)) == 0


@given(st.floats(1e-3, 1e3), st.integers(2, 10**9))
def test_gamma_is_a_power_of_two_fine_enough_for_noise_and_sum(sigma, n):
    gamma = lattice.choose_gamma(sigma, n)
    assert np.frexp(gamma)[0] == 0.5
    assert gamma <= sigma * 2.0**-36
    assert n * gamma / 2 <= 2.0**-10
