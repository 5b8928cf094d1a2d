"""Proofs with one thing wrong in them are found out by records: a bound flipped, a cell too short, half of a curvature."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sfumato as sf
from sfumato.bounds import bounds_for, cells, remainder
from sfumato.bounds.arithmetic import unary
from sfumato.bounds.elementwise import FUNCTIONS
from sfumato.bounds.interval import Interval
from sfumato.bounds.reference import Reference
from sfumato.bounds.rules import RULES
from sfumato.model import from_numpyro
from sfumato.tools.quick_jit import quick_jit


def curve(x, y):
    """A column and its square: the column is cut."""
    a, b = (numpyro.sample(name, dist.Normal(0.0, 1.0)) for name in "ab")
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=a * x + b * x**2), obs=y)


DOMAIN = {"x": sf.Interval(-2.0, 2.0), "y": sf.Binary()}
MODEL = from_numpyro(curve, DOMAIN)
TABLE = {"x": np.repeat(np.linspace(-2, 2, 201), 2), "y": np.tile([0, 1], 201)}
SOFTPLUS = FUNCTIONS["softplus"]


def outside_of_values():
    """By how much log ratios leave their range, beside its width."""
    with jax.enable_x64(True):
        theta, theta_prop = jnp.array([0.3, 0.5]), jnp.array([0.5, 0.9])
        lo, hi = quick_jit(bounds_for(MODEL, DOMAIN, "certify").range)(theta, theta_prop)
        likelihood = quick_jit(jax.vmap(MODEL.log_likelihood, (None, 0)))
        met = np.asarray(likelihood(theta_prop, TABLE) - likelihood(theta, TABLE))
    return float(max(float(lo) - met.min(), met.max() - float(hi)) / np.ptp(met))


def outside_near_a_reference():
    """By how much second-order scalars leave their range, beside its width; and vectors are cut."""
    near = Reference(MODEL, DOMAIN)
    with jax.enable_x64(True):
        centre, theta, theta_prop = (jnp.array(p) for p in ([0.3, 0.5], [0.32, 0.52], [0.36, 0.57]))
        proven, delta = near.at(np.asarray(centre), np.eye(2)), theta_prop - theta
        lo, hi = quick_jit(near.range)(proven.anchor, theta, theta_prop, jnp.zeros(2))
        likelihood = quick_jit(jax.vmap(MODEL.log_likelihood, (None, 0)))
        gradients = np.asarray(quick_jit(jax.vmap(jax.grad(MODEL.log_likelihood), (None, 0)))(centre, TABLE))
        met = np.asarray(likelihood(theta_prop, TABLE) - likelihood(theta, TABLE)) - gradients @ np.asarray(delta)
        vectors = np.asarray(quick_jit(jax.vmap(near.vector, (None, 0)))(proven.body, TABLE))
    return float(max(float(lo) - met.min(), met.max() - float(hi)) / np.ptp(met)), float(
        np.abs(vectors - gradients).max()
    )


def test_an_honest_proof_holds():
    scalars, cut = outside_near_a_reference()
    assert outside_of_values() <= 0 and scalars <= 0 and cut < 1e-9


def test_a_rule_with_one_bound_flipped_is_caught(monkeypatch):
    wrong = SOFTPLUS._replace(slope=lambda x: Interval(SOFTPLUS.slope(x).lo, -SOFTPLUS.slope(x).hi))
    monkeypatch.setitem(RULES, "softplus", lambda scope, params, value: unary(scope, value, "softplus", wrong))
    assert outside_of_values() > 0.01
    assert outside_near_a_reference()[1] > 0.1


def test_a_curvature_halved_is_caught(monkeypatch):
    def half(x):
        return Interval(*(end / 2 for end in SOFTPLUS.curvature(x)))

    wrong = SOFTPLUS._replace(curvature=half)
    monkeypatch.setitem(RULES, "softplus", lambda scope, params, value: unary(scope, value, "softplus", wrong))
    assert outside_near_a_reference()[0] > 0.1


@pytest.mark.parametrize("name", ["cut_evenly", "cut_for_ends"])
def test_a_cut_of_a_column_that_misses_its_edge_is_caught(name, monkeypatch):
    honest = getattr(cells, name)

    def short(whole, count):
        return honest(Interval(whole.lo, whole.hi - 0.3 * (whole.hi - whole.lo)), count)

    monkeypatch.setattr(remainder, name, short)
    scalars, cut = outside_near_a_reference()
    assert max(scalars, cut) > 0.1
