"""Models as NumPyro's users write them: what `zoo.py` plans, checks and runs.

Every entry has a model, a domain, the parameters that its table is drawn from, and the table. `LIMITS` holds the one-shot limit
of each at epsilon = 2, delta = 1e-6, from a search that knows nothing of sfumato's bounds; `zoo.py --limits` computes it again.
The last part is idioms: models that are here for how they are written, and models that must be refused.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.infer.reparam import LocScaleReparam, TransformReparam

import sfumato as sf
from sfumato.domain import Domain

Table = dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Entry:
    """A model and its table.

    Parameters
    ----------
    model
        As its user wrote it.
    domain
        Where each column lives.
    truth
        Values by site that the table is drawn from; empty where only acceptance is looked at.
    data
        (generator, n) -> the table.
    n
        Its number of records.
    refused
        Whether it must be refused.
    twin
        Another entry that is the same model, written otherwise: both have one forecast.
    """

    model: Callable[..., Any]
    domain: Mapping[str, Domain]
    truth: Mapping[str, Any] = field(default_factory=dict)
    data: Callable[[np.random.Generator, int], Table] | None = None
    n: int = 100_000
    refused: bool = False
    twin: str = ""


ZOO: dict[str, Entry] = {}


def with_covariates(d: int, outcome: Callable[..., np.ndarray]) -> Callable[..., Table]:
    """A table of d covariates X, and an outcome y made of (X, generator)."""

    def data(rng: np.random.Generator, n: int) -> Table:
        x = cov(rng, n, d)
        return {"X": x, "y": outcome(x, rng)}

    return data


def entry(
    name: str, domain: Mapping[str, Domain], truth: Mapping[str, Any] | None = None, data: Any = None, **rest: Any
) -> Any:
    """Put a model into the zoo."""

    def keep(model: Callable[..., Any]) -> Callable[..., Any]:
        ZOO[name] = Entry(model, domain, truth or {}, data, **rest)
        return model

    return keep


def sig(z):
    return 1 / (1 + np.exp(-z))


def cov(rng, n, d, lo=-1.0, hi=1.0):
    return np.clip(rng.normal(0, 0.5, (n, d)), lo, hi)


B5 = np.array([0.6, -0.4, 0.3, 0.2, -0.1])
B4 = B5[:4]


def lin_data(sigma, d=5, a=0.3, lim=4.0):
    def data(rng, n):
        x = cov(rng, n, d)
        y = np.clip(a + x @ B5[:d] + sigma * rng.standard_normal(n), -lim, lim)
        return {"X": x, "y": y}

    return data


DX5 = {"X": sf.Box(-1, 1, shape=(5,))}
DX4 = {"X": sf.Box(-1, 1, shape=(4,))}


# linear, known sigma
@entry("lin_known", {**DX5, "y": sf.Interval(-4, 4)}, {"alpha": 0.3, "beta": B5}, lin_data(1.0))
def lin_known(X, y=None):
    alpha = numpyro.sample("alpha", dist.Normal(0, 10))
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("data", X.shape[0]):
        numpyro.sample("y", dist.Normal(alpha + X @ beta, 1.0), obs=y)


# HalfCauchy sigma
@entry("lin_halfcauchy", {**DX5, "y": sf.Interval(-4, 4)}, {"alpha": 0.3, "beta": B5, "sigma": 0.8}, lin_data(0.8))
def lin_halfcauchy(X, y=None):
    alpha = numpyro.sample("alpha", dist.Normal(0, 10))
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(1.0))
    with numpyro.plate("data", X.shape[0]):
        numpyro.sample("y", dist.Normal(alpha + jnp.dot(X, beta), sigma), obs=y)


# Statistical rethinking style with Exponential sigma, scalar columns, None defaults
def divorce_data(rng, n):
    m, a = np.clip(rng.standard_normal(n), -3, 3), np.clip(rng.standard_normal(n), -3, 3)
    return {"marriage": m, "age": a, "divorce": np.clip(-0.2 + 0.3 * m - 0.5 * a + 0.8 * rng.standard_normal(n), -4, 4)}


DIV = {"marriage": sf.Interval(-3, 3), "age": sf.Interval(-3, 3), "divorce": sf.Interval(-4, 4)}


@entry("lin_rethinking", DIV, {"a": -0.2, "bM": 0.3, "bA": -0.5, "sigma": 0.8}, divorce_data)
def lin_rethinking(marriage=None, age=None, divorce=None):
    a = numpyro.sample("a", dist.Normal(0.0, 0.2))
    M, A = 0.0, 0.0
    if marriage is not None:
        bM = numpyro.sample("bM", dist.Normal(0.0, 0.5))
        M = bM * marriage
    if age is not None:
        bA = numpyro.sample("bA", dist.Normal(0.0, 0.5))
        A = bA * age
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    mu = a + M + A
    with numpyro.plate("N", len(divorce)):
        numpyro.sample("obs", dist.Normal(mu, sigma), obs=divorce)


# the very tutorial: no plate
@entry("lin_noplate", DIV, {"a": -0.2, "bM": 0.3, "bA": -0.5, "sigma": 0.8}, divorce_data)
def lin_noplate(marriage=None, age=None, divorce=None):
    a = numpyro.sample("a", dist.Normal(0.0, 0.2))
    bM = numpyro.sample("bM", dist.Normal(0.0, 0.5))
    bA = numpyro.sample("bA", dist.Normal(0.0, 0.5))
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    numpyro.sample("obs", dist.Normal(a + bM * marriage + bA * age, sigma), obs=divorce)


# logistic, separate intercept
def logit_data(rng, n):
    x = cov(rng, n, 4)
    return {"X": x, "y": (rng.random(n) < sig(-0.5 + x @ (2 * B4))).astype(int)}


@entry("logit_intercept", {**DX4, "y": sf.Binary()}, {"intercept": -0.5, "coefs": 2 * B4}, logit_data)
def logit_intercept(X, y=None):
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 5.0))
    coefs = numpyro.sample("coefs", dist.Normal(jnp.zeros(X.shape[1]), 2.5 * jnp.ones(X.shape[1])).to_event(1))
    logits = intercept + jnp.dot(X, coefs)
    with numpyro.plate("data", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


# design matrix in the model, with squares
def age_data(rng, n):
    age = rng.uniform(18, 90, n)
    income = np.clip(rng.exponential(40, n), 0, 200)
    z = (age - 45) / 15
    p = sig(-0.4 + 0.5 * z - 0.2 * z**2 + 0.6 * (income - 50) / 50)
    return {"age": age, "income": income, "y": (rng.random(n) < p).astype(int)}


AGE = {"age": sf.Interval(18, 90), "income": sf.Interval(0, 200), "y": sf.Binary()}


@entry("logit_design", AGE, {"beta": np.array([-0.4, 0.5, -0.2, 0.6])}, age_data)
def logit_design(age, income, y=None):
    z = (age - 45.0) / 15.0
    D = jnp.stack([jnp.ones_like(z), z, z**2, (income - 50.0) / 50.0], axis=1)
    beta = numpyro.sample("beta", dist.Normal(0, 2).expand([4]).to_event(1))
    with numpyro.plate("people", D.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=D @ beta), obs=y)


# interactions inside the model
def inter_data(rng, n):
    x = cov(rng, n, 3)
    t = rng.integers(0, 2, n)
    p = sig(
        0.2 + x @ np.array([0.5, -0.5, 0.3]) + 0.7 * t + t * (x @ np.array([0.3, 0.0, -0.3])) + 0.4 * x[:, 0] * x[:, 1]
    )
    return {"X": x, "treat": t, "y": (rng.random(n) < p).astype(int)}


# standardised inside by data (must be refused)
@entry("logit_std_data", {**DX4, "y": sf.Binary()}, {"a": 0.0, "b": B4}, logit_data, refused=True)
def logit_std_data(X, y=None):
    Z = (X - X.mean(0)) / X.std(0)
    a = numpyro.sample("a", dist.Normal(0, 2))
    b = numpyro.sample("b", dist.Normal(0, 2).expand([4]).to_event(1))
    with numpyro.plate("data", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=a + Z @ b), obs=y)


# Poisson with exposure
def pois_data(rng, n):
    x = cov(rng, n, 3)
    e = rng.uniform(0.1, 2.0, n)
    return {"X": x, "exposure": e, "y": np.minimum(rng.poisson(e * np.exp(0.2 + x @ np.array([0.5, -0.3, 0.2]))), 10)}


@entry(
    "poisson_exposure",
    {"X": sf.Box(-1, 1, shape=(3,)), "exposure": sf.Interval(0.1, 2.0), "y": sf.Integers(0, 10)},
    {"alpha": 0.2, "beta": np.array([0.5, -0.3, 0.2])},
    pois_data,
)
def poisson_exposure(X, exposure, y=None):
    alpha = numpyro.sample("alpha", dist.Normal(0, 2))
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
    log_rate = jnp.log(exposure) + alpha + X @ beta
    with numpyro.plate("data", X.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(log_rate)), obs=y)


# NegativeBinomial2
def nb_data(rng, n):
    x = cov(rng, n, 3)
    mu = np.exp(0.3 + x @ np.array([0.5, -0.3, 0.2]))
    return {"X": x, "y": np.minimum(rng.poisson(mu * rng.gamma(2.0, 0.5, n)), 20)}


@entry(
    "negbin2",
    {"X": sf.Box(-1, 1, shape=(3,)), "y": sf.Integers(0, 20)},
    {"alpha": 0.3, "beta": np.array([0.5, -0.3, 0.2]), "phi": 2.03},
    nb_data,
)
def negbin2(X, y=None):
    alpha = numpyro.sample("alpha", dist.Normal(0, 2))
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
    phi = numpyro.sample("phi", dist.Exponential(0.5))
    with numpyro.plate("data", X.shape[0]):
        numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(alpha + X @ beta), phi), obs=y)


# Student-t regression
def t_data(rng, n):
    x = cov(rng, n, 4)
    return {"X": x, "y": np.clip(0.3 + x @ B4 + 0.7 * rng.standard_t(5, n), -8, 8)}


# gamma regression with log link
def gamma_data(rng, n):
    x = cov(rng, n, 3)
    mu = np.exp(0.3 + x @ np.array([0.5, -0.3, 0.2]))
    return {"X": x, "y": np.clip(rng.gamma(2.0, mu / 2.0), 0.01, 20)}


@entry(
    "gamma_reg",
    {"X": sf.Box(-1, 1, shape=(3,)), "y": sf.Interval(0.01, 20)},
    {"alpha": 0.3, "beta": np.array([0.5, -0.3, 0.2]), "shape": 2.0},
    gamma_data,
)
def gamma_reg(X, y=None):
    alpha = numpyro.sample("alpha", dist.Normal(0, 2))
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
    shape = numpyro.sample("shape", dist.HalfNormal(5.0))
    mu = jnp.exp(alpha + X @ beta)
    with numpyro.plate("data", X.shape[0]):
        numpyro.sample("y", dist.Gamma(shape, rate=shape / mu), obs=y)


# beta regression
def beta_data(rng, n):
    x = cov(rng, n, 3)
    mu = sig(0.3 + x @ np.array([0.5, -0.3, 0.2]))
    return {"X": x, "y": np.clip(rng.beta(mu * 8, (1 - mu) * 8), 0.01, 0.99)}


# Weibull survival with right censoring (mask + factor)
def weib_data(rng, n):
    x = cov(rng, n, 2)
    scale = np.exp(0.8 + x @ np.array([0.5, -0.3]))
    t = scale * rng.weibull(1.5, n)
    c = rng.uniform(0.5, 5, n)
    return {"X": x, "t": np.clip(np.minimum(t, c), 0.05, 5), "event": (t < c).astype(int)}


WEIB = {"X": sf.Box(-1, 1, shape=(2,)), "t": sf.Interval(0.05, 5), "event": sf.Binary()}


# exponential survival by factor only
@entry("exp_surv_factor", WEIB, {"alpha": 0.8, "beta": np.array([0.5, -0.3])}, weib_data)
def exp_surv_factor(X, t, event):
    alpha = numpyro.sample("alpha", dist.Normal(0, 2))
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([2]).to_event(1))
    log_haz = -(alpha + X @ beta)
    with numpyro.plate("data", X.shape[0]):
        numpyro.factor("loglik", event * log_haz - t * jnp.exp(log_haz))


# ordinal
def ord_data(rng, n):
    x = cov(rng, n, 3)
    z = x @ np.array([0.8, -0.5, 0.3]) + rng.logistic(size=n)
    return {"X": x, "y": np.digitize(z, [-1.5, -0.3, 0.6, 1.8])}


@entry(
    "ordinal",
    {"X": sf.Box(-1, 1, shape=(3,)), "y": sf.Categories(5)},
    {"beta": np.array([0.8, -0.5, 0.3]), "cutpoints": np.array([-1.5, -0.3, 0.6, 1.8])},
    ord_data,
)
def ordinal(X, y=None):
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
    cutpoints = numpyro.sample(
        "cutpoints",
        dist.TransformedDistribution(dist.Normal(0, 2).expand([4]).to_event(1), dist.transforms.OrderedTransform()),
    )
    with numpyro.plate("data", X.shape[0]):
        numpyro.sample("y", dist.OrderedLogistic(X @ beta, cutpoints), obs=y)


# multinomial logit, K-1 free
W32 = np.array([[0.5, -0.3], [-0.4, 0.2], [0.1, 0.6]])


def mn_data(rng, n):
    x = cov(rng, n, 3)
    eta = np.concatenate([np.zeros((n, 1)), np.array([0.2, -0.3]) + x @ W32], 1)
    return {"X": x, "y": np.argmax(eta + rng.gumbel(size=eta.shape), 1)}


# probit
@entry(
    "probit",
    {**DX4, "y": sf.Binary()},
    {"alpha": -0.3, "beta": B4},
    with_covariates(4, lambda x, rng: (-0.3 + x @ B4 + rng.standard_normal(len(x)) > 0).astype(int)),
)
def probit(X, y=None):
    alpha = numpyro.sample("alpha", dist.Normal(0, 2))
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([4]).to_event(1))
    p = jax.scipy.stats.norm.cdf(alpha + X @ beta)
    with numpyro.plate("data", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(probs=p), obs=y)


# zero-inflated Poisson
def zip_data(rng, n):
    x = cov(rng, n, 3)
    y = rng.poisson(np.exp(0.5 + x @ np.array([0.5, -0.3, 0.2]))) * (rng.random(n) > 0.3)
    return {"X": x, "y": np.minimum(y, 12)}


@entry(
    "zip",
    {"X": sf.Box(-1, 1, shape=(3,)), "y": sf.Integers(0, 12)},
    {"alpha": 0.5, "beta": np.array([0.5, -0.3, 0.2]), "gate": 0.3},
    zip_data,
)
def zip_(X, y=None):
    alpha = numpyro.sample("alpha", dist.Normal(0, 2))
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
    gate = numpyro.sample("gate", dist.Beta(1.0, 1.0))
    with numpyro.plate("data", X.shape[0]):
        numpyro.sample("y", dist.ZeroInflatedPoisson(gate, rate=jnp.exp(alpha + X @ beta)), obs=y)


# Laplace (median) regression
@entry(
    "laplace_reg",
    {**DX4, "y": sf.Interval(-6, 6)},
    {"alpha": 0.3, "beta": B4, "scale": 0.7},
    with_covariates(4, lambda x, rng: np.clip(0.3 + x @ B4 + rng.laplace(0, 0.7, len(x)), -6, 6)),
)
def laplace_reg(X, y=None):
    alpha = numpyro.sample("alpha", dist.Normal(0, 2))
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([4]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    with numpyro.plate("data", X.shape[0]):
        numpyro.sample("y", dist.Laplace(alpha + X @ beta, scale), obs=y)


# quantile regression
@entry(
    "quantile_reg",
    {**DX4, "y": sf.Interval(-6, 6)},
    {"alpha": 0.3, "beta": B4, "scale": 0.7},
    with_covariates(4, lambda x, rng: np.clip(0.3 + x @ B4 + rng.laplace(0, 0.7, len(x)), -6, 6)),
)
def quantile_reg(X, y=None):
    alpha = numpyro.sample("alpha", dist.Normal(0, 2))
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([4]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    with numpyro.plate("data", X.shape[0]):
        numpyro.sample("y", dist.AsymmetricLaplaceQuantile(alpha + X @ beta, scale, 0.9), obs=y)


# mixture with ordered means
def mix_data(rng, n):
    z = rng.random(n) < 0.4
    return {"y": np.clip(np.where(z, rng.normal(-1, 0.7, n), rng.normal(1.5, 0.7, n)), -5, 5)}


@entry(
    "mixture",
    {"y": sf.Interval(-5, 5)},
    {"w": np.array([0.4, 0.6]), "locs": np.array([-1.0, 1.5]), "scale": 0.7},
    mix_data,
)
def mixture(y):
    w = numpyro.sample("w", dist.Dirichlet(jnp.ones(2)))
    locs = numpyro.sample(
        "locs",
        dist.TransformedDistribution(dist.Normal(0, 2).expand([2]).to_event(1), dist.transforms.OrderedTransform()),
    )
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(probs=w), dist.Normal(locs, scale)), obs=y)


# varying intercepts
def vi_data(G, seed=5):
    alpha = np.random.default_rng(seed).normal(-0.3, 0.5, G)

    def data(rng, n):
        g = rng.integers(0, G, n)
        x = np.clip(rng.normal(0, 0.5, n), -1, 1)
        return {"group": g, "x": x, "y": (rng.random(n) < sig(alpha[g] + 0.8 * x)).astype(int)}

    return alpha, data


A8, D8 = vi_data(8)
A50, D50 = vi_data(50)


def centered(G):
    def vary_int(group, x, y=None):
        mu_a = numpyro.sample("mu_a", dist.Normal(0.0, 1.5))
        sigma_a = numpyro.sample("sigma_a", dist.HalfNormal(1.0))
        alpha = numpyro.sample("alpha", dist.Normal(mu_a, sigma_a).expand([G]).to_event(1))
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        with numpyro.plate("obs", y.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=alpha[group] + b * x), obs=y)

    return vary_int


def noncentered(G):
    def vary_int_nc(group, x, y=None):
        mu_a = numpyro.sample("mu_a", dist.Normal(0.0, 1.5))
        sigma_a = numpyro.sample("sigma_a", dist.HalfNormal(1.0))
        z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([G]).to_event(1))
        alpha = numpyro.deterministic("alpha", mu_a + sigma_a * z)
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        with numpyro.plate("obs", y.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=alpha[group] + b * x), obs=y)

    return vary_int_nc


for G, A, D in ((8, A8, D8), (50, A50, D50)):
    dom = {"group": sf.Categories(G), "x": sf.Interval(-1, 1), "y": sf.Binary()}
    entry(f"vary_int_{G}_c", dom, {"mu_a": -0.3, "sigma_a": 0.5, "alpha": A, "b": 0.8}, D, n=200_000)(centered(G))
    entry(
        f"vary_int_{G}_nc",
        dom,
        {"mu_a": -0.3, "sigma_a": 0.5, "z": (A + 0.3) / 0.5, "b": 0.8},
        D,
        n=200_000,
        twin=f"vary_int_{G}_c",
    )(noncentered(G))


# the NumPyro idiom: a plate over groups
@entry(
    "vary_int_plate",
    {"group": sf.Categories(8), "x": sf.Interval(-1, 1), "y": sf.Binary()},
    {"mu_a": -0.3, "sigma_a": 0.5, "alpha": A8, "b": 0.8},
    D8,
    n=200_000,
)
def vary_int_plate(group, x, y=None):
    mu_a = numpyro.sample("mu_a", dist.Normal(0.0, 1.5))
    sigma_a = numpyro.sample("sigma_a", dist.HalfNormal(1.0))
    with numpyro.plate("groups", 8):
        alpha = numpyro.sample("alpha", dist.Normal(mu_a, sigma_a))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("obs", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=alpha[group] + b * x), obs=y)


# varying slopes (normal outcome)
def vs_data(rng, n):
    r = np.random.default_rng(5)
    a, b = r.normal(0.2, 0.3, 8), r.normal(0.5, 0.3, 8)
    g = rng.integers(0, 8, n)
    x = np.clip(rng.normal(0, 0.5, n), -1, 1)
    return {"group": g, "x": x, "y": np.clip(a[g] + b[g] * x + 0.8 * rng.standard_normal(n), -4, 4)}


_r = np.random.default_rng(5)
VSA, VSB = _r.normal(0.2, 0.3, 8), _r.normal(0.5, 0.3, 8)


# MRP: two grouping factors
_r = np.random.default_rng(6)
MRP_S, MRP_A = _r.normal(0, 0.4, 12), _r.normal(0, 0.3, 5)


def mrp_data(rng, n):
    s, a, f = rng.integers(0, 12, n), rng.integers(0, 5, n), rng.integers(0, 2, n)
    return {
        "state": s,
        "age": a,
        "female": f,
        "vote": (rng.random(n) < sig(0.1 + MRP_S[s] + MRP_A[a] + 0.3 * f)).astype(int),
    }


# item response (2PL; ability a public-scale covariate, items as groups)
_r = np.random.default_rng(7)
IRT_A, IRT_B = np.exp(_r.normal(0, 0.3, 15)), _r.normal(0, 0.8, 15)


def irt_data(rng, n):
    it, th = rng.integers(0, 15, n), np.clip(rng.standard_normal(n), -3, 3)
    return {"item": it, "ability": th, "correct": (rng.random(n) < sig(IRT_A[it] * (th - IRT_B[it]))).astype(int)}


# RBF basis inside the model
KNOTS = np.linspace(0, 1, 7)
RBFW = np.array([0.5, -0.3, 0.8, 0.2, -0.6, 0.4, 0.1])


def rbf_data(rng, n):
    x = rng.random(n)
    f = np.exp(-0.5 * ((x[:, None] - KNOTS) / 0.15) ** 2) @ RBFW
    return {"x": x, "y": np.clip(f + 0.5 * rng.standard_normal(n), -3, 3)}


@entry("rbf_basis", {"x": sf.Interval(0, 1), "y": sf.Interval(-3, 3)}, {"w": RBFW, "sigma": 0.5}, rbf_data)
def rbf_basis(x, y=None):
    knots = jnp.linspace(0, 1, 7)
    basis = jnp.exp(-0.5 * ((x[:, None] - knots) / 0.15) ** 2)
    w = numpyro.sample("w", dist.Normal(0, 1).expand([7]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(basis @ w, sigma), obs=y)


# MVN with LKJ
LC = np.linalg.cholesky(np.array([[1, 0.4, 0.2], [0.4, 1, -0.1], [0.2, -0.1, 1]]))


def mvn_data(rng, n):
    y = np.array([0.2, -0.3, 0.1]) + rng.standard_normal((n, 3)) @ (np.array([0.8, 1.0, 1.2])[:, None] * LC).T
    return {"y": np.clip(y, -5, 5)}


@entry(
    "mvn_lkj",
    {"y": sf.Box(-5, 5, shape=(3,))},
    {"mu": np.array([0.2, -0.3, 0.1]), "sigma": np.array([0.8, 1.0, 1.2]), "L_omega": LC},
    mvn_data,
)
def mvn_lkj(y):
    mu = numpyro.sample("mu", dist.Normal(0, 5).expand([3]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5).expand([3]).to_event(1))
    L_omega = numpyro.sample("L_omega", dist.LKJCholesky(3, concentration=1.0))
    L = sigma[..., None] * L_omega
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.MultivariateNormal(mu, scale_tril=L), obs=y)


# Dirichlet-Categorical
P6 = np.array([0.3, 0.25, 0.2, 0.12, 0.08, 0.05])


@entry("dirichlet_cat", {"y": sf.Categories(6)}, {"p": P6}, lambda rng, n: {"y": rng.choice(6, n, p=P6)})
def dirichlet_cat(y):
    p = numpyro.sample("p", dist.Dirichlet(jnp.ones(6)))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Categorical(probs=p), obs=y)


# horseshoe logistic
HS = np.array([1.0, -0.8, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0])


def hs_data(rng, n):
    x = cov(rng, n, 8)
    return {"X": x, "y": (rng.random(n) < sig(x @ HS)).astype(int)}


# two observed sites in one plate
def two_data(rng, n):
    x = cov(rng, n, 3)
    y1 = np.clip(0.2 + x @ np.array([0.5, -0.3, 0.2]) + 0.8 * rng.standard_normal(n), -4, 4)
    y2 = (rng.random(n) < sig(-0.3 + x @ np.array([0.3, 0.6, -0.2]))).astype(int)
    return {"X": x, "y1": y1, "y2": y2}


# handlers.condition + factor (soft prior) + deterministic
def base_model(x, y):
    a = numpyro.sample("a", dist.Normal(0, 2))
    b = numpyro.sample("b", dist.Normal(0, 2))
    s = numpyro.sample("s", dist.Exponential(1.0))
    numpyro.factor("soft", -0.5 * (a + b) ** 2)
    with numpyro.plate("i", x.shape[0], dim=-1):
        mu = numpyro.deterministic("mu", a + b * x)
        numpyro.sample("y", dist.Normal(mu, s), obs=y)


def condition_data(rng, n):
    x = rng.uniform(-1, 1, n)
    return {"x": x, "y": np.clip(0.3 + 0.5 * x + 0.9 * rng.standard_normal(n), -4, 4)}


def cond_model(x, y):
    return handlers.condition(base_model, data={"s": 0.9})(x, y)


entry(
    "condition_factor",
    {"x": sf.Interval(-1, 1), "y": sf.Interval(-4, 4)},
    {"a": 0.3, "b": 0.5},
    condition_data,
)(cond_model)


# vectors on a Ball
def ball_data(d, r):
    def data(rng, n):
        y = 0.3 + rng.standard_normal((n, d))
        return {"y": sf.Ball(r, dim=d).clamp(y)}

    return data


@entry("ball_vec_10", {"y": sf.Ball(8.0, shape=(10,))}, {"t": np.full(10, 0.3)}, ball_data(10, 8.0))
def ball_vec_10(y):
    t = numpyro.sample("t", dist.Normal(0, 5).expand([10]).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(t, 1.0).to_event(1), obs=y)


# binomial with trials in the record
def binom_data(rng, n):
    x, m = cov(rng, n, 3), rng.integers(1, 11, n)
    return {"X": x, "m": m, "k": rng.binomial(m, sig(0.2 + x @ np.array([0.5, -0.3, 0.2])))}


# truncated normal outcome
def tn_data(rng, n):
    x = cov(rng, n, 3)
    y = 4.5 + x @ np.array([1.0, -0.6, 0.4]) + 2.0 * rng.standard_normal(n)
    while (bad := (y < 0) | (y > 10)).any():
        y[bad] = (4.5 + x @ np.array([1.0, -0.6, 0.4]) + 2.0 * rng.standard_normal(n))[bad]
    return {"X": x, "y": y}


# log-normal outcome
@entry(
    "lognormal_reg",
    {"X": sf.Box(-1, 1, shape=(3,)), "y": sf.Interval(0.1, 50)},
    {"alpha": 0.8, "beta": np.array([0.5, -0.3, 0.2]), "sigma": 0.6},
    with_covariates(
        3,
        lambda x, rng: np.clip(
            np.exp(0.8 + x @ np.array([0.5, -0.3, 0.2]) + 0.6 * rng.standard_normal(len(x))), 0.1, 50
        ),
    ),
)
def lognormal_reg(X, y=None):
    alpha = numpyro.sample("alpha", dist.Normal(0, 2))
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("data", X.shape[0]):
        numpyro.sample("y", dist.LogNormal(alpha + X @ beta, sigma), obs=y)


# a subsampled plate: must be refused
@entry("subsample", {**DX4, "y": sf.Binary()}, {}, logit_data, refused=True)
def subsample(X, y=None):
    b = numpyro.sample("b", dist.Normal(0, 2).expand([4]).to_event(1))
    with numpyro.plate("data", X.shape[0], subsample_size=2) as idx:
        numpyro.sample("y", dist.Bernoulli(logits=X[idx] @ b), obs=y[idx])


# coefficients under a plate of covariates (docs idiom)
@entry("coef_plate", {**DX4, "y": sf.Binary()}, {"a": -0.5, "b": 2 * B4}, logit_data)
def coef_plate(X, y=None):
    a = numpyro.sample("a", dist.Normal(0, 2))
    with numpyro.plate("features", X.shape[1]):
        b = numpyro.sample("b", dist.Normal(0, 2))
    with numpyro.plate("data", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=a + X @ b), obs=y)


# non-column arguments (n_groups passed as an argument)
@entry(
    "static_arg",
    {"group": sf.Categories(8), "x": sf.Interval(-1, 1), "y": sf.Binary()},
    {"mu_a": -0.3, "alpha": A8, "b": 0.8},
    D8,
    refused=True,
)
def static_arg(group, x, n_groups, y=None):
    mu_a = numpyro.sample("mu_a", dist.Normal(0.0, 1.5))
    alpha = numpyro.sample("alpha", dist.Normal(mu_a, 1.0).expand([n_groups]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("obs", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=alpha[group] + b * x), obs=y)


# Student-t outcome
@entry("student_nu_fixed", {**DX4, "y": sf.Interval(-8, 8)}, {"alpha": 0.3, "beta": B4, "sigma": 0.7}, t_data)
def student_nu_fixed(X, y=None):
    alpha = numpyro.sample("alpha", dist.Normal(0, 2))
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([4]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.0))
    with numpyro.plate("data", X.shape[0]):
        numpyro.sample("y", dist.StudentT(4.0, alpha + X @ beta, sigma), obs=y)


# a discrete variable of each record: summed over
@entry("gmm_enum", {"y": sf.Interval(-5, 5)}, {}, mix_data)
def gmm_enum(y):
    w = numpyro.sample("w", dist.Dirichlet(jnp.ones(2)))
    locs = numpyro.sample("locs", dist.Normal(0, 2).expand([2]).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        z = numpyro.sample("z", dist.Categorical(w))
        numpyro.sample("y", dist.Normal(locs[z], 1.0), obs=y)


# -- variants -----------------------------------------------------------------------------------------------------------
@entry(
    "weibull_plain",
    {k: WEIB[k] for k in ("X", "t")},
    {"alpha": 0.8, "beta": np.array([0.5, -0.3]), "k": 1.5},
    lambda rng, n: {k: v for k, v in weib_data(rng, n).items() if k != "event"},
)
def weibull_plain(X, t):
    alpha = numpyro.sample("alpha", dist.Normal(0, 2))
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([2]).to_event(1))
    k = numpyro.sample("k", dist.HalfNormal(2.0))
    with numpyro.plate("data", X.shape[0]):
        numpyro.sample("t", dist.Weibull(jnp.exp(alpha + X @ beta), k), obs=t)


@entry("weibull_factor", WEIB, {"alpha": 0.8, "beta": np.array([0.5, -0.3]), "k": 1.5}, weib_data)
def weibull_factor(X, t, event):
    alpha = numpyro.sample("alpha", dist.Normal(0, 2))
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([2]).to_event(1))
    k = numpyro.sample("k", dist.HalfNormal(2.0))
    scale = jnp.exp(alpha + X @ beta)
    d = dist.Weibull(scale, k)
    with numpyro.plate("data", X.shape[0]):
        numpyro.factor("ll", jnp.where(event == 1, d.log_prob(t), -((t / scale) ** k)))


@entry("exp_surv_mask", WEIB, {"alpha": 0.8, "beta": np.array([0.5, -0.3])}, weib_data)
def exp_surv_mask(X, t, event):
    alpha = numpyro.sample("alpha", dist.Normal(0, 2))
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([2]).to_event(1))
    rate = jnp.exp(-(alpha + X @ beta))
    with numpyro.plate("data", X.shape[0]):
        numpyro.sample("t", dist.Exponential(rate).mask(event == 1), obs=t)
        numpyro.factor("cens", jnp.where(event == 0, -rate * t, 0.0))


@entry(
    "logit_interact_cols",
    {"X": sf.Box(-1, 1, shape=(3,)), "treat": sf.Binary(), "y": sf.Binary()},
    {"alpha": 0.2, "beta": np.array([0.5, -0.5, 0.3]), "tau": 0.7, "gamma": np.array([0.3, 0.0, -0.3]), "b12": 0.4},
    inter_data,
)
def logit_interact_cols(X, treat, y=None):
    alpha = numpyro.sample("alpha", dist.Normal(0, 2))
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
    tau = numpyro.sample("tau", dist.Normal(0, 1))
    gamma = numpyro.sample("gamma", dist.Normal(0, 1).expand([3]).to_event(1))
    b12 = numpyro.sample("b12", dist.Normal(0, 1))
    eta = alpha + X @ beta + tau * treat + (treat[:, None] * X) @ gamma + b12 * (X[:, 0] * X[:, 1])
    with numpyro.plate("data", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=eta), obs=y)


@entry(
    "vary_int_8_onehot",
    {"group": sf.Categories(8), "x": sf.Interval(-1, 1), "y": sf.Binary()},
    {"mu_a": -0.3, "sigma_a": 0.5, "alpha": A8, "b": 0.8},
    D8,
    n=200_000,
)
def vary_int_8_onehot(group, x, y=None):
    mu_a = numpyro.sample("mu_a", dist.Normal(0.0, 1.5))
    sigma_a = numpyro.sample("sigma_a", dist.HalfNormal(1.0))
    alpha = numpyro.sample("alpha", dist.Normal(mu_a, sigma_a).expand([8]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("obs", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=jax.nn.one_hot(group, 8) @ alpha + b * x), obs=y)


entry(
    "static_partial",
    {"group": sf.Categories(8), "x": sf.Interval(-1, 1), "y": sf.Binary()},
    {"mu_a": -0.3, "alpha": A8, "b": 0.8},
    D8,
)(functools.partial(static_arg, n_groups=8))


# -- models of the same kinds, with tables made above ---------------------------------------------------------------------


def coefficients(number: int, name: str = "beta") -> Any:
    return numpyro.sample(name, dist.Normal(0, 1).expand([number]).to_event(1))


X2, X3 = ({"X": sf.Box(-1, 1, shape=(d,))} for d in (2, 3))
B3 = np.array([0.5, -0.3, 0.2])


@entry("beta_reg", {**X3, "y": sf.Interval(0.01, 0.99)}, {"alpha": 0.3, "beta": B3, "phi": 8.0}, beta_data)
def beta_reg(X, y=None):
    alpha, beta = numpyro.sample("alpha", dist.Normal(0, 2)), coefficients(3)
    phi = numpyro.sample("phi", dist.Gamma(2.0, 0.2))
    mu = jax.nn.sigmoid(alpha + X @ beta)
    with numpyro.plate("data", X.shape[0]):
        numpyro.sample("y", dist.Beta(mu * phi, (1 - mu) * phi), obs=y)


@entry("multinomial", {**X3, "y": sf.Categories(3)}, {"a": np.array([0.2, -0.3]), "W": W32}, mn_data)
def multinomial(X, y=None):
    a = numpyro.sample("a", dist.Normal(0, 2).expand([2]).to_event(1))
    W = numpyro.sample("W", dist.Normal(0, 1).expand([3, 2]).to_event(2))
    eta = jnp.concatenate([jnp.zeros((X.shape[0], 1)), a + X @ W], axis=1)
    with numpyro.plate("data", X.shape[0]):
        numpyro.sample("y", dist.Categorical(logits=eta), obs=y)


@entry(
    "vary_slopes", {"group": sf.Categories(8), "x": sf.Interval(-1, 1), "y": sf.Interval(-4, 4)},
    {"m": np.array([0.2, 0.5]), "tau": np.array([0.3, 0.3]), "a": VSA, "b": VSB, "sigma": 0.8}, vs_data, n=200_000,
)  # fmt: skip
def vary_slopes(group, x, y=None):
    m = numpyro.sample("m", dist.Normal(0, 1).expand([2]).to_event(1))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0).expand([2]).to_event(1))
    with numpyro.plate("groups", 8):
        a = numpyro.sample("a", dist.Normal(m[0], tau[0]))
        b = numpyro.sample("b", dist.Normal(m[1], tau[1]))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(a[group] + b[group] * x, sigma), obs=y)


MRP = {"state": sf.Categories(12), "age": sf.Categories(5), "female": sf.Binary(), "vote": sf.Binary()}


@entry(
    "mrp", MRP, {"a0": 0.1, "ss": 0.4, "sa": 0.3, "zs": MRP_S / 0.4, "za": MRP_A / 0.3, "bf": 0.3}, mrp_data, n=200_000
)
def mrp(state, age, female, vote=None):
    a0 = numpyro.sample("a0", dist.Normal(0, 1.5))
    ss, sa = (numpyro.sample(name, dist.HalfNormal(1.0)) for name in ("ss", "sa"))
    with numpyro.plate("states", 12):
        zs = numpyro.sample("zs", dist.Normal(0, 1))
    with numpyro.plate("ages", 5):
        za = numpyro.sample("za", dist.Normal(0, 1))
    bf = numpyro.sample("bf", dist.Normal(0, 1))
    logits = a0 + (ss * zs)[state] + (sa * za)[age] + bf * female
    with numpyro.plate("people", len(state)):
        numpyro.sample("vote", dist.Bernoulli(logits=logits), obs=vote)


IRT = {"item": sf.Categories(15), "ability": sf.Interval(-3, 3), "correct": sf.Binary()}


@entry("irt_2pl", IRT, {"a": IRT_A, "b": IRT_B}, irt_data, n=200_000)
def irt_2pl(item, ability, correct=None):
    with numpyro.plate("items", 15):
        a = numpyro.sample("a", dist.LogNormal(0.0, 0.5))
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("answers", len(item)):
        numpyro.sample("correct", dist.Bernoulli(logits=a[item] * (ability - b[item])), obs=correct)


@entry(
    "horseshoe", {"X": sf.Box(-1, 1, shape=(8,)), "y": sf.Binary()},
    {"tau": 0.3, "lam": np.full(8, 1.0), "z": HS / 0.3}, hs_data,
)  # fmt: skip
def horseshoe(X, y=None):
    tau = numpyro.sample("tau", dist.HalfCauchy(0.5))
    lam = numpyro.sample("lam", dist.HalfCauchy(1.0).expand([8]).to_event(1))
    z = numpyro.sample("z", dist.Normal(0, 1).expand([8]).to_event(1))
    beta = numpyro.deterministic("beta", tau * lam * z)
    with numpyro.plate("data", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ beta), obs=y)


@entry(
    "two_sites", {**X3, "y1": sf.Interval(-4, 4), "y2": sf.Binary()},
    {"a": np.array([0.2, -0.3]), "b": B3, "c": np.array([0.3, 0.6, -0.2]), "sigma": 0.8}, two_data,
)  # fmt: skip
def two_sites(X, y1=None, y2=None):
    a, b, c = coefficients(2, "a"), coefficients(3, "b"), coefficients(3, "c")
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("data", X.shape[0]):
        numpyro.sample("y1", dist.Normal(a[0] + X @ b, sigma), obs=y1)
        numpyro.sample("y2", dist.Bernoulli(logits=a[1] + X @ c), obs=y2)


@entry("ball_vec_3", {"y": sf.Ball(6.0, shape=(3,))}, {"t": np.full(3, 0.3)}, ball_data(3, 6.0))
def ball_vec_3(y):
    t = numpyro.sample("t", dist.Normal(0, 5).expand([3]).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(t, 1.0).to_event(1), obs=y)


BINOMIAL = {**X3, "m": sf.Integers(1, 10), "k": sf.Integers(0, 10, at_most="m")}


@entry("binomial_trials", BINOMIAL, {"alpha": 0.2, "beta": B3}, binom_data)
def binomial_trials(X, m, k=None):
    alpha, beta = numpyro.sample("alpha", dist.Normal(0, 2)), coefficients(3)
    with numpyro.plate("data", X.shape[0]):
        numpyro.sample("k", dist.Binomial(m, logits=alpha + X @ beta), obs=k)


@entry(
    "truncated_normal", {**X3, "y": sf.Interval(0, 10)},
    {"alpha": 4.5, "beta": np.array([1.0, -0.6, 0.4]), "sigma": 2.0}, tn_data,
)  # fmt: skip
def truncated_normal(X, y=None):
    alpha, beta = numpyro.sample("alpha", dist.Normal(5, 5)), coefficients(3)
    sigma = numpyro.sample("sigma", dist.HalfNormal(3.0))
    with numpyro.plate("data", X.shape[0]):
        numpyro.sample("y", dist.TruncatedNormal(alpha + X @ beta, sigma, low=0.0, high=10.0), obs=y)


SCATTER = np.array([[1.0, 0.9, 0.85], [0.9, 1.0, 0.95], [0.85, 0.95, 1.0]])


def correlated_data(rng: np.random.Generator, n: int) -> Table:
    x = sf.Ellipsoid(np.zeros(3), SCATTER, 4.5).clamp(rng.standard_normal((n, 3)) @ np.linalg.cholesky(SCATTER).T)
    return {"X": x, "y": (rng.random(n) < sig(x @ B3)).astype(int)}


@entry(
    "ellipsoid_logit", {"X": sf.Ellipsoid(np.zeros(3), SCATTER, 4.5), "y": sf.Binary()}, {"beta": B3}, correlated_data
)
def ellipsoid_logit(X, y=None):
    beta = coefficients(3)
    with numpyro.plate("data", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ beta), obs=y)


# -- idioms ---------------------------------------------------------------------------------------------------------------

XY = {"x": sf.Interval(-1, 1), "y": sf.Binary()}
GXY = {"g": sf.Categories(4), "x": sf.Interval(-1, 1), "y": sf.Interval(-4, 4)}


@entry("idiom_nested_cells", {"g": sf.Categories(4), "h": sf.Categories(3), "y": sf.Binary()})
def nested_cells(g, h, y=None):
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    with numpyro.plate("H", 3, dim=-1):
        m = numpyro.sample("m", dist.Normal(0, 1))
        with numpyro.plate("G", 4, dim=-2):
            a = numpyro.sample("a", dist.Normal(m, s))
    with numpyro.plate("N", len(g)):
        numpyro.sample("y", dist.Bernoulli(logits=a[g, h]), obs=y)


@entry("idiom_crossed", {"g": sf.Categories(4), "h": sf.Categories(3), "y": sf.Binary()})
def crossed(g, h, y=None):
    with numpyro.plate("G", 4):
        a = numpyro.sample("a", dist.Normal(0, 1))
    with numpyro.plate("H", 3):
        b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("N", len(g)):
        numpyro.sample("y", dist.Bernoulli(logits=a[g] + b[h]), obs=y)


def _groups(g, x, y=None):
    mu, s = numpyro.sample("mu", dist.Normal(0, 1)), numpyro.sample("s", dist.HalfNormal(1.0))
    with numpyro.plate("G", 4):
        a = numpyro.sample("a", dist.Normal(mu, s))
    with numpyro.plate("N", x.shape[0]):
        numpyro.sample("y", dist.Normal(a[g] + x, 1.0), obs=y)


entry("idiom_loc_scale_reparam", GXY)(handlers.reparam(_groups, config={"a": LocScaleReparam(centered=0)}))
entry("idiom_scope", GXY)(handlers.scope(_groups, prefix="left"))


@entry("idiom_transform_reparam", GXY)
def transform_reparam(g, x, y=None):
    mu, s = numpyro.sample("mu", dist.Normal(0, 1)), numpyro.sample("s", dist.HalfNormal(1.0))
    with numpyro.plate("G", 4), handlers.reparam(config={"a": TransformReparam()}):
        line = dist.transforms.AffineTransform(mu, s)
        a = numpyro.sample("a", dist.TransformedDistribution(dist.Normal(0.0, 1.0), line))
    with numpyro.plate("N", x.shape[0]):
        numpyro.sample("y", dist.Normal(a[g], 1.0), obs=y)


WIDE = {"x": sf.Interval(-1, 1), "y": sf.Box(-4, 4, shape=(3,))}


@entry("idiom_many_outcomes", WIDE)
def many_outcomes(x, y=None):
    with numpyro.plate("J", 3):
        b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("N", x.shape[0], dim=-2), numpyro.plate("each", 3, dim=-1):
        numpyro.sample("y", dist.Normal(b * x[:, None], 1.0), obs=y)


@entry("idiom_outcomes_first", WIDE)
def outcomes_first(x, y):
    b = coefficients(3, "b")
    with numpyro.plate("J", 3, dim=-2), numpyro.plate("N", x.shape[0], dim=-1):
        numpyro.sample("y", dist.Normal(b[:, None] * x, 1.0), obs=y.T)


@entry("idiom_factor_of_the_sum", XY)
def factor_of_the_sum(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    numpyro.factor("ll", jnp.sum(dist.Bernoulli(logits=b * x).log_prob(y)))


@entry("idiom_factor_of_the_mean", XY, refused=True)
def factor_of_the_mean(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    numpyro.factor("ll", jnp.mean(dist.Bernoulli(logits=b * x).log_prob(y)))


@entry("idiom_occupancy", {"x": sf.Interval(-1, 1), "y": sf.Integers(0, 12)})
def occupancy(x, y):
    a, p = numpyro.sample("a", dist.Normal(0, 1)), numpyro.sample("p", dist.Beta(2, 2))
    with numpyro.plate("N", len(y)):
        z = numpyro.sample("z", dist.Bernoulli(logits=a * x))
        numpyro.sample("y", dist.Binomial(12, probs=jnp.where(z == 1, p, 0.01)), obs=y)


@entry("idiom_latent_class", {"y": sf.Binary(), "t": sf.Binary()})
def latent_class(y, t):
    share = numpyro.sample("share", dist.Beta(1, 1))
    hit = numpyro.sample("hit", dist.Beta(4, 1).expand([2]).to_event(1))
    with numpyro.plate("N", len(y)):
        z = numpyro.sample("z", dist.Bernoulli(share))
        numpyro.sample("y", dist.Bernoulli(jnp.where(z, hit[0], 0.1)), obs=y)
        numpyro.sample("t", dist.Bernoulli(jnp.where(z, hit[1], 0.2)), obs=t)


@entry("idiom_effect_of_each_person", {"y": sf.Integers(0, 30)}, refused=True)
def effect_of_each_person(y):
    m = numpyro.sample("m", dist.Normal(0, 1))
    with numpyro.plate("N", len(y)):
        e = numpyro.sample("e", dist.Normal(0, 1))
        numpyro.sample("y", dist.Poisson(jnp.exp(m + e)), obs=y)


@entry("idiom_switch", {"y": sf.Interval(-5, 5)}, refused=True)
def switch(y):
    k, b = numpyro.sample("k", dist.Bernoulli(0.5)), numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("N", len(y)):
        numpyro.sample("y", dist.Normal(b * k, 1.0), obs=y)


@entry("idiom_empirical_bayes", {"y": sf.Interval(-3, 3)}, refused=True)
def empirical_bayes(y):
    m = numpyro.sample("m", dist.Normal(y.mean(), 1))
    numpyro.sample("y", dist.Normal(m, 1.0), obs=y)


@entry("idiom_mask_and_weights", {"w": sf.Interval(0.1, 3), **XY})
def mask_and_weights(w, x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("N", len(y)), handlers.scale(scale=w), handlers.mask(mask=x > 0):
        numpyro.sample("y", dist.Bernoulli(logits=b * x), obs=y)


@entry("idiom_published_estimate", XY)
def published_estimate(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    numpyro.sample("earlier", dist.Normal(b, 0.2), obs=0.4)
    with numpyro.plate("N", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=b * x), obs=y)


@entry("idiom_lkj_slopes", {"g": sf.Categories(4), "x": sf.Interval(-1, 1), "y": sf.Binary()})
def lkj_slopes(g, x, y):
    sd = numpyro.sample("sd", dist.HalfNormal(1.0).expand([2]).to_event(1))
    L = numpyro.sample("L", dist.LKJCholesky(2, 2.0))
    with numpyro.plate("G", 4):
        ab = numpyro.sample("ab", dist.MultivariateNormal(jnp.zeros(2), scale_tril=sd[:, None] * L))
    with numpyro.plate("N", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=ab[g, 0] + ab[g, 1] * x), obs=y)


@entry("idiom_hilbert_space_process", {"x": sf.Interval(0, 1), "y": sf.Interval(-4, 4)})
def hilbert_space_process(x, y):
    length, amp = numpyro.sample("length", dist.InverseGamma(5, 1)), numpyro.sample("amp", dist.HalfNormal(1.0))
    j = jnp.arange(1, 6)
    phi = jnp.sqrt(2 / 3) * jnp.sin(j * jnp.pi * (x[:, None] + 1) / 3)
    spectrum = amp * jnp.sqrt(2.5 * length) * jnp.exp(-0.25 * (length * j * jnp.pi / 3) ** 2)
    with numpyro.plate("basis", 5):
        z = numpyro.sample("z", dist.Normal(0, 1))
    with numpyro.plate("N", len(y)):
        numpyro.sample("y", dist.Normal(phi @ (spectrum * z), 0.5), obs=y)


@entry("idiom_neural_network", {"x": sf.Box(-1, 1, shape=(2,)), "y": sf.Binary()})
def neural_network(x, y):
    w1 = numpyro.sample("w1", dist.Normal(0, 1).expand([2, 3]).to_event(2))
    w2 = coefficients(3, "w2")
    with numpyro.plate("N", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=jnp.tanh(x @ w1) @ w2), obs=y)


@entry("idiom_short_series", {"y": sf.Box(-3, 3, shape=(6,))})
def short_series(y):
    phi, s = numpyro.sample("phi", dist.Uniform(-1, 1)), numpyro.sample("s", dist.HalfNormal(1.0))
    with numpyro.plate("N", y.shape[0]):
        numpyro.sample("first", dist.Normal(0, 2.0), obs=y[:, 0])
        numpyro.sample("rest", dist.Normal(phi * y[:, :-1], s).to_event(1), obs=y[:, 1:])


@entry("idiom_trials_undeclared", {"k": sf.Integers(0, 10), "m": sf.Integers(1, 10)}, refused=True)
def trials_undeclared(k, m):
    p = numpyro.sample("p", dist.Beta(1, 1))
    with numpyro.plate("N", len(k)):
        numpyro.sample("k", dist.Binomial(m, probs=p), obs=k)


class Regression:
    """A model that is an object with a public number of its own."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, x, y=None):
        b = numpyro.sample("b", dist.Normal(0, 1))
        with numpyro.plate("N", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=self.scale * b * x), obs=y)


entry("idiom_object", XY)(Regression(2.0))


LIMITS = {
    "ball_vec_10": 78.5,
    "exp_surv_mask": 42.0824,
    "coef_plate": 112.9992,
    "vary_int_plate": 528.6896,
    "lin_noplate": 5.0939,
    "dirichlet_cat": 599.5391,
    "exp_surv_factor": 42.0824,
    "gamma_reg": 0.3361,
    "laplace_reg": 99.2775,
    "lin_halfcauchy": 5.9482,
    "lin_known": 11.7345,
    "lin_rethinking": 5.0939,
    "logit_design": 107.7027,
    "logit_interact_cols": 35.3526,
    "logit_intercept": 112.9992,
    "lognormal_reg": 9.6848,
    "mixture": 24.6686,
    "negbin2": 2.29,
    "ordinal": 151.3312,
    "poisson_exposure": 5.1051,
    "probit": 84.7796,
    "quantile_reg": 83.5714,
    "rbf_basis": 6.7739,
    "student_nu_fixed": 120.29,
    "vary_int_50_c": 80.4734,
    "vary_int_50_nc": 79.5586,
    "vary_int_8_c": 528.6896,
    "vary_int_8_nc": 509.0,
    "vary_int_8_onehot": 528.6896,
    "zip": 3.326,
}
