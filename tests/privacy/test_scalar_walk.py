"""Walks on families ask the sum of statistics, not the records: the same chain, and no charge too small."""

from dataclasses import replace
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sfumato as sf
from sfumato.families.langevin import public_part
from sfumato.kernel import Guided, Langevin, PublicStream, State
from sfumato.study.target import make_study
from sfumato.vault import records
from sfumato.vault.engine import LocalEngine
from sfumato.vault.queries.linear import LangevinSource, WalkSource
from sfumato.vault.queries.vector import float_error, statistic_sum
from sfumato.vault.vault import Vault
from statistical.harness import Endless

N = 300
FAMILIES = {
    "bernoullis": sf.families.Bernoullis(3),
    "poisson": sf.families.Poisson(max_count=12),
    "mean and scale": sf.families.NormalMeanScale(lower=-3, upper=3),
    "regression": sf.families.LinearRegression(x=sf.Box(-1, 1, shape=(2,)), y=sf.Interval(-4, 4)),
}


@pytest.fixture(autouse=True, scope="module")
def compile_quickly():
    """Every test compiles something new and runs it once: optimising it takes longer than it saves."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


class Recorded:
    """The same noise for whoever asks: what a test needs to compare two chains. Nothing public accepts such a source."""

    def __init__(self, scale):
        self.scale, self._rng = scale, np.random.default_rng(11)

    def draw(self, size):
        return np.round(self._rng.standard_normal(size) * self.scale).astype(np.int64)


def setting(name):
    family = FAMILIES[name]
    study = make_study(family, kernel="guided")
    with jax.enable_x64(True):
        values = family.prior_draws(4)[2]
        data = family.sample(values, jax.random.key(1), N)
        theta = jnp.asarray(study.model.unconstrain(values))
    return study, {k: np.asarray(v) for k, v in data.items()}, theta


def run(study, data, theta, chains=3, steps=120):
    table = records.load(data, study.domain)
    vault = Vault(table, study, Endless(), source=Recorded)
    kernel, stream = Guided(np.eye(len(theta)) * 0.05, 1.0), PublicStream(5, chains)
    with jax.enable_x64(True):
        start = jnp.broadcast_to(theta, (chains, len(theta)))
        states = State(
            start,
            jax.jit(jax.vmap(study.model.log_prior))(start),
            jnp.asarray(stream.directions(len(theta)), jnp.float64),
        )
    vault.begin(kernel, 1.5, states)
    chunk = vault.chunk(states, stream.peek(kernel, steps), steps, 2**62)
    vault.close()
    return chunk


@pytest.mark.parametrize("name", ["bernoullis", "mean and scale", "regression"])
def test_the_chain_is_that_of_a_walk_over_the_records(name):
    """Same public stream, same noise: same moves, same answers to a few lattice units, and no smaller charge."""
    study, data, theta = setting(name)
    scalar = run(study, data, theta)
    passed = run(study._replace(bounds=replace(study.bounds, statistic=False)), data, theta)
    a, b = scalar.transcript, passed.transcript
    assert np.array_equal(a.accepted, b.accepted)
    assert 0.05 < a.accepted.mean() < 0.99
    assert np.allclose(a.theta, b.theta, rtol=1e-9, atol=1e-9)
    assert np.allclose(a.d_n_noisy, b.d_n_noisy, rtol=1e-6, atol=1e-6)
    assert np.all(a.sensitivity >= b.sensitivity * (1 - 1e-10))
    assert np.allclose(a.sensitivity, b.sensitivity, rtol=1e-6)
    assert scalar.spent == pytest.approx(passed.spent, rel=1e-5)


def test_clipping_is_still_done_record_by_record():
    study = make_study(sf.families.Bernoulli(), sensitivity=sf.Clip(bound=0.5), kernel="guided")
    assert not study.bounds.statistic


@pytest.mark.parametrize("name", ["bernoullis", "poisson"])
def test_the_charge_covers_any_pair_of_records(name):
    """Brute force on a finite domain: replace one record by any other and compare the exact scalars, float by float."""
    study, data, theta = setting(name)
    family = study.family
    points = np.array([[i & 1, i >> 1 & 1, i >> 2 & 1] for i in range(8)]) if name == "bernoullis" else np.arange(13)
    with jax.enable_x64(True):
        linear, totals = WalkSource(family, study.model, study.bounds.range, 1.5, N).linear, []
        for point in points:
            changed = data["y"].copy()
            changed[7] = point
            table = records.load({"y": changed}, study.domain)
            totals.append(LocalEngine(table, study).sum(linear.statistic))
        natural = jax.jit(lambda at: family.natural(study.model.constrain(at)))
        scalar = jax.jit(linear.exact)
        ends = jax.jit(study.bounds.range)
        rng = np.random.default_rng(0)
        for _ in range(10):
            other = np.asarray(theta) + 0.3 * rng.normal(size=len(theta))
            v = natural(other) - natural(theta)
            answers = [float(scalar(each, v)) * linear.gamma for each in totals]
            lo, hi = ends(theta, other)
            assert max(answers) - min(answers) <= float(hi - lo) * (1 + 1e-9) + linear.gamma * 2
            assert max(answers) - min(answers) >= float(hi - lo) * (1 - 1e-6)


@pytest.mark.parametrize("walk", [True, False])
def test_records_that_rounding_left_outside_a_ball_are_put_back(walk):
    """A ball forgives a relative 1e-6 when records are read; the sum must not."""
    domain = sf.Ball(1.0, dim=3)
    family = sf.families.MultivariateNormal(np.eye(3).tolist(), domain)
    study = make_study(family, kernel="guided" if walk else "langevin")
    inside = np.zeros((N, 3))
    inside[0] = [0.6, 0.8, 0.0]
    outside = inside.copy()
    outside[0] *= 1 + 9e-7
    sums = []
    with jax.enable_x64(True):
        query = statistic_sum(family, np.eye(3), 2.0**-40, N)
        if not walk:
            kernel = Langevin(np.eye(3) * 0.05, 0.1, public_part(family, study.model, N))
            query = LangevinSource(family, kernel, 0.3, N, 1).statistic
        for y in (inside, outside):
            sums.append(LocalEngine(records.load({"y": y}, study.domain), study).sum(query))
    assert np.max(np.abs(np.asarray(sums[0]) - np.asarray(sums[1]))) <= 1


@pytest.mark.parametrize("size", [1, 20, 300])
def test_the_float_error_that_is_charged_is_never_exceeded(size):
    """Compiled scalar products of large integers against fractions."""
    rng = np.random.default_rng(size)
    with jax.enable_x64(True):
        product = jax.jit(lambda v, total: v @ total.astype(jnp.float64))
        for _ in range(30):
            v, total = rng.normal(size=size) * 2.0 ** rng.integers(-9, 9, size), rng.integers(-(2**49), 2**49, size)
            got = Fraction(float(product(jnp.asarray(v), jnp.asarray(total))))
            pairs = [(Fraction(a), int(b)) for a, b in zip(v.tolist(), total, strict=True)]
            error = abs(got - sum(a * b for a, b in pairs))
            assert error <= Fraction(float_error(size)) * sum(abs(a * b) for a, b in pairs)
