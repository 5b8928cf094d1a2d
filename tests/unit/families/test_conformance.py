"""Every family, several settings, one suite; and families that are wrong, each caught by it."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import sfumato as sf
from sfumato import families as f

BOX, INTERVAL = sf.Box([-1, 0], [1, 2]), sf.Interval(-3, 3)
FAMILIES = {
    "bernoulli": f.Bernoulli(prior=dist.Uniform(0.2, 0.9)),
    "bernoullis": f.Bernoullis(3),
    "binomial": f.Binomial(trials=7),
    "categorical": f.Categorical(["red", "green", "blue", "none"]),
    "poisson": f.Poisson(max_count=30),
    "geometric": f.Geometric(max_count=40),
    "exponential": f.Exponential(upper=8.0),
    "gamma": f.Gamma(lower=0.01, upper=20.0),
    "beta": f.Beta(lower=0.001, upper=0.98),
    "normal": f.Normal(scale=2.0, lower=-10, upper=10),
    "mean and scale": f.NormalMeanScale(lower=-3, upper=3),
    "vector": f.MultivariateNormal([[1.0, 0.3], [0.3, 0.5]], y=sf.Ball(2.0, dim=2)),
    "vector and covariance": f.MultivariateNormalMeanCovariance(y=sf.Ball(1.5, dim=3)),
    "regression, box, intercept": f.LinearRegression(x=BOX, y=sf.Interval(-1, 3), intercept=True),
    "regression, ball": f.LinearRegression(x=sf.Ball(1.0, dim=3), y=sf.Interval(-2, 5)),
    "table": f.LogLinear({"a": 2, "b": 3, "c": ["x", "y"]}, interactions=[("a", "b"), ("b", "c")]),
}
NOT_CONJUGATE = {"bernoulli", "gamma", "beta", "table"}  # the first because of the prior it is given here
OTHER_SETTINGS = {
    "bernoulli": f.Bernoulli(),
    "bernoullis, one": f.Bernoullis(1),
    "categorical, two": f.Categorical(2),
    "gamma, narrow": f.Gamma(lower=1.0, upper=1.5),
    "normal, off centre": f.Normal(scale=0.5, lower=1.0, upper=3.0),
    "mean and scale, off centre": f.NormalMeanScale(lower=0.5, upper=2.0),
    "mean and scale, narrow": f.NormalMeanScale(lower=-0.4, upper=0.7),
    "vector, box": f.MultivariateNormal(np.diag([1.0, 2.0, 3.0]), y=sf.Box([-1, 0, -2], [1, 4, 2])),
    "vector and covariance, small ball": f.MultivariateNormalMeanCovariance(y=sf.Ball(0.4, dim=2)),
    "vector and covariance, line": f.MultivariateNormalMeanCovariance(y=sf.Ball(1.7, dim=1)),
    "vector and covariance, box": f.MultivariateNormalMeanCovariance(y=sf.Box([-1, 0.5], [2, 1.5])),
    "vector and covariance, large box": f.MultivariateNormalMeanCovariance(y=sf.Box(-1, 1, shape=(5,))),
    "regression, box": f.LinearRegression(x=BOX, y=INTERVAL),
    "regression, ball, intercept": f.LinearRegression(x=sf.Ball(2.0, dim=2), y=INTERVAL, intercept=True),
    "regression, large box": f.LinearRegression(x=sf.Box(-1, 1, shape=(5,)), y=INTERVAL, intercept=True),
    "table, main effects": f.LogLinear({"a": 2, "b": 2}),
}


@pytest.fixture(autouse=True, scope="module")
def compile_quickly():
    """Every check compiles something new and runs it once: optimising it takes longer than it saves."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.mark.parametrize("name", FAMILIES)
def test_conforms(name):
    ran = set(f.check(FAMILIES[name]))
    assert {"densities", "model", "score", "support", "diameter", "bounds"} <= ran
    assert ("posterior" in ran) == (name not in NOT_CONJUGATE)
    assert ({"moments", "partition", "inverse"} <= ran) == FAMILIES[name].regular == ("regression" not in name)


@pytest.mark.parametrize("name", FAMILIES)
def test_records_can_be_scored_in_single_precision(name):
    family = FAMILIES[name]
    with jax.enable_x64(True):
        model, values = family.to_model(), family.prior_draws(3)[1]
        record = {k: jnp.asarray(v[0]) for k, v in family.sample(values, jax.random.key(0), 2).items()}
        single = {k: v.astype(jnp.float32) if v.dtype == jnp.float64 else v for k, v in record.items()}
        theta, score = jax.jit(model.unconstrain)(values), jax.jit(model.log_likelihood)
        double, rough = score(theta, record), score(theta.astype(jnp.float32), single)
    assert (double.dtype, rough.dtype) == (jnp.float64, jnp.float32)
    assert float(rough) == pytest.approx(float(double), rel=1e-4, abs=1e-3)


@pytest.mark.parametrize("name", OTHER_SETTINGS)
def test_sensitivities_in_other_settings(name):
    assert f.check(OTHER_SETTINGS[name], only=("support", "diameter")) == ["support", "diameter"]


@pytest.mark.parametrize("name", ["regression, ball, intercept", "regression, large box"])
def test_ratios_of_regressions_are_exact_in_any_dimension(name):
    family = OTHER_SETTINGS[name]
    assert family.exact_ratio and not family.exact
    assert f.check(family, only=["bounds"]) == ["bounds"]


# -- saboteurs: each is wrong in one method, and is caught by name --------------------------------------------------------


class WrongNormaliser(f.Bernoulli):
    def log_g(self, values):
        return 2 * jnp.log1p(-values["p"])


class WrongPartition(f.Poisson):
    """Consistent with itself: only drawn records and NumPyro's density can tell."""

    def log_partition(self, phi):
        return jnp.exp(phi[0]) + phi[0]


class WrongStatistic(f.Gamma):
    def statistic(self, record):
        return jnp.stack([jnp.log(record["y"]), record["y"] ** 2])


class WrongMean(f.Normal):
    def mean(self, values):
        return jnp.reshape(values["mean"], (1,)) * 1.2


class WrongInverse(f.Exponential):
    def natural_inverse(self, phi):
        return {"rate": -1 / phi[0]}


class SmallSupport(f.NormalMeanScale):
    """Forgets that a parabola may peak inside."""

    def support(self, v):
        return jnp.maximum(v[0] * self.lower + v[1] * self.lower**2, v[0] * self.upper + v[1] * self.upper**2)


class LargeSupport(f.Poisson):
    def support(self, v):
        return 1.01 * super().support(v) + 0.1


class SmallDiameter(f.MultivariateNormalMeanCovariance):
    """Takes opposite points for the furthest: their squares coincide."""

    def diameter(self):
        return 2 * self.y.radius


class LargeDiameter(f.Beta):
    def diameter(self):
        return 1.001 * super().diameter()


class SmallWhitened(f.MultivariateNormal):
    def whitened_diameter(self, matrix):
        return self.y.radius * jnp.linalg.norm(matrix, 2)


class LopsidedBounds(f.Geometric):
    def ratio_range(self, values, values_prop):
        lo, hi = super().ratio_range(values, values_prop)
        return lo, hi + 1e-3 * jnp.abs(hi)


class WrongPosterior(f.Geometric):
    def posterior(self, s_n, n):
        return f.Joint({"p": dist.Beta(1.0 + s_n[0], 1.0 + n)})


SABOTEURS = [
    (WrongNormaliser(), "densities", "more than log h"),
    (WrongNormaliser(), "score", "gradient of log_g"),
    (WrongPartition(max_count=30), "densities", "more than log h"),
    (WrongPartition(max_count=30), "score", "gradient of log_g"),
    (WrongPartition(max_count=30), "moments", "mean is not"),
    (WrongStatistic(lower=0.1, upper=2.0), "densities", "more than log h"),
    (WrongMean(scale=1.0, lower=-2, upper=4), "partition", "must be the mean"),
    (WrongInverse(upper=3.0), "inverse", "rate back"),
    (SmallSupport(lower=-2, upper=2), "support", "not an upper bound"),
    (LargeSupport(max_count=9), "support", "too large"),
    (SmallDiameter(y=sf.Ball(1.5, dim=2)), "diameter", "too small"),
    (LargeDiameter(lower=0.1, upper=0.9), "diameter", "too large"),
    (SmallWhitened(np.eye(2), y=sf.Ball(1.0, dim=2)), "diameter", "whitened_diameter is too small"),
    (LopsidedBounds(max_count=9), "bounds", "swapping"),
    (WrongPosterior(max_count=9), "posterior", "not proportional"),
]


@pytest.mark.parametrize(
    ("family", "by", "message"), SABOTEURS, ids=lambda v: type(v).__name__ if isinstance(v, f.Family) else v
)
def test_saboteur_is_caught(family, by, message):
    with pytest.raises(f.NotConformant, match=message):
        f.check(family, only=[by])


def test_saboteurs_spoil_the_whole_suite():
    with pytest.raises(AssertionError):
        f.check(WrongNormaliser())


# -- a family of a user's own ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Dice(f.Family):
    """A loaded die: chance of a six, the rest even. Finite domain, so that sensitivities come by themselves."""

    @property
    def domain(self):
        return {"y": sf.Integers(1, 6)}

    @property
    def parameters(self):
        return (f.Parameter("six", (), dist.constraints.unit_interval),)

    def default_prior(self):
        return {"six": dist.Beta(1.0, 5.0)}

    def statistic(self, record):
        return jnp.reshape(record["y"] == 6, (1,)) * 1.0

    def natural(self, values):
        return jnp.reshape(jnp.log(5 * values["six"]) - jnp.log1p(-values["six"]), (1,))

    def log_partition(self, phi):
        return jnp.log(5 + jnp.exp(phi[0]))

    def draw(self, values, key, size):
        even = jnp.append(jnp.full(5, (1 - values["six"]) / 5), values["six"])
        return {"y": 1 + dist.Categorical(probs=even).sample(key, (size,))}


def test_a_users_family_conforms():
    ran = f.check(Dice())
    assert {"model", "score", "moments", "partition", "support", "diameter", "bounds"} <= set(ran)
    assert Dice().diameter() == 1.0
