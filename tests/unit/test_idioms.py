"""What NumPyro users write is taken as they wrote it: a record's terms and the prior add up to NumPyro's own density."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import potential_energy

import sfumato as sf
from sfumato.bounds import synthetic
from sfumato.errors import InvalidModel
from sfumato.model import from_numpyro
from sfumato.model.trials import synthetic_batch

XY = {"x": sf.Interval(-1, 1), "y": sf.Binary()}
GXY = {"g": sf.Categories(4), "x": sf.Interval(-1, 1), "y": sf.Interval(-4, 4)}


def no_plate(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    numpyro.sample("y", dist.Bernoulli(logits=b * x), obs=y)


def one_event_of_all(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    numpyro.sample("y", dist.Bernoulli(logits=b * x).to_event(1), obs=y)


def sum_as_a_factor(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    numpyro.factor("sum", jnp.sum(dist.Bernoulli(logits=b * x).log_prob(y)))


def plates_over_groups(g, x, y):
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("groups", 4):
        a = numpyro.sample("a", dist.Normal(0, scale))
    with numpyro.plate("records", len(g)):
        numpyro.sample("y", dist.Normal(a[g] + x, 1.0), obs=y)


def decentred(g, x, y):
    return handlers.reparam(plates_over_groups, config={"a": LocScaleReparam(centered=0)})(g, x, y)


def scoped_and_conditioned(g, x, y):
    inner = handlers.condition(plates_over_groups, data={"scale": 0.5})
    return handlers.scope(inner, prefix="left")(g, x, y)


def published_estimate(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    numpyro.sample("earlier", dist.Normal(b, 0.2), obs=0.4)
    with numpyro.plate("records", len(x)), handlers.mask(mask=x > 0):
        numpyro.sample("y", dist.Bernoulli(logits=b * x), obs=y)


def many_outcomes(x, y):
    with numpyro.plate("outcomes", 3):
        b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("records", x.shape[0], dim=-2), numpyro.plate("each", 3, dim=-1):
        numpyro.sample("y", dist.Normal(b * x[:, None], 1.0), obs=y)


def outcomes_first(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("outcomes", 3, dim=-2), numpyro.plate("records", x.shape[0], dim=-1):
        numpyro.sample("y", dist.Normal(b[:, None] * x, 1.0), obs=y.T)


def fixed_number(x, y, groups):
    b = numpyro.sample("b", dist.Normal(0, 1).expand([groups]).to_event(1))
    with numpyro.plate("records", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=b.sum() * x), obs=y)


WIDE = {"x": sf.Interval(-1, 1), "y": sf.Box(-4, 4, shape=(3,))}


@pytest.mark.parametrize(
    ("model", "domain"),
    [
        (no_plate, XY), (one_event_of_all, XY), (sum_as_a_factor, XY), (plates_over_groups, GXY), (decentred, GXY),
        (scoped_and_conditioned, GXY), (published_estimate, XY), (many_outcomes, WIDE), (outcomes_first, WIDE),
        (partial(fixed_number, groups=3), XY),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_prior_and_terms_are_numpyros_own_density(model, domain):
    built = from_numpyro(model, domain)
    records = synthetic_batch(domain, 6, np.random.default_rng(3))
    with jax.enable_x64(True):
        theta = built.sample_prior(jax.random.key(1))
        ours = built.log_prior(theta) + jax.vmap(built.log_likelihood, (None, 0))(theta, records).sum()
        parts = np.split(np.asarray(theta), np.cumsum([site.size for site in built.sites])[:-1])
        free = {s.name: jnp.asarray(part).reshape(s.shape) for s, part in zip(built.sites, parts, strict=True)}
        numpyros = -potential_energy(handlers.seed(model, jax.random.key(0)), (), records, free)
        assert float(ours) == pytest.approx(float(numpyros), abs=1e-9)


def enumerated(y):
    w = numpyro.sample("w", dist.Dirichlet(jnp.ones(3)))
    locs = numpyro.sample("locs", dist.Normal(0, 2).expand([3]).to_event(1))
    with numpyro.plate("records", len(y)):
        z = numpyro.sample("z", dist.Categorical(w))
        numpyro.sample("y", dist.Normal(locs[z], 1.0), obs=y)


def two_ratings(y, t):
    share = numpyro.sample("share", dist.Beta(1, 1))
    hit = numpyro.sample("hit", dist.Beta(4, 1).expand([2]).to_event(1))
    with numpyro.plate("records", len(y)):
        z = numpyro.sample("z", dist.Bernoulli(share))
        numpyro.sample("y", dist.Bernoulli(jnp.where(z, hit[0], 0.1)), obs=y)
        numpyro.sample("t", dist.Bernoulli(jnp.where(z, hit[1], 0.2)), obs=t)


def test_a_discrete_variable_of_each_record_is_summed_over():
    domain = {"y": sf.Interval(-5, 5)}
    built = from_numpyro(enumerated, domain)
    y = np.array([-4.0, 0.3, 2.0])
    with jax.enable_x64(True):
        theta = built.sample_prior(jax.random.key(2))
        values = built.constrain(theta)
        mixture = dist.MixtureSameFamily(dist.Categorical(probs=values["w"]), dist.Normal(values["locs"], 1.0))
        ours = jax.vmap(built.log_likelihood, (None, 0))(theta, {"y": y})
        assert np.allclose(ours, mixture.log_prob(y))
        assert [s.name for s in built.sites] == ["w", "locs"]
        made_up = synthetic.uniform(built, domain, np.asarray(theta), 4096)["y"]
        assert np.mean(made_up) == pytest.approx(float(mixture.mean), abs=5 * float(mixture.variance) ** 0.5 / 64)


def test_discrete_variables_behind_several_outcomes_are_summed_over_jointly():
    built = from_numpyro(two_ratings, {"y": sf.Binary(), "t": sf.Binary()})
    with jax.enable_x64(True):
        theta = built.sample_prior(jax.random.key(3))
        v = {name: np.asarray(value) for name, value in built.constrain(theta).items()}
        for y in (0, 1):
            for t in (0, 1):
                sick = v["share"] * np.prod([h if hit else 1 - h for h, hit in zip(v["hit"], (y, t), strict=True)])
                well = (1 - v["share"]) * (0.1 if y else 0.9) * (0.2 if t else 0.8)
                ours = built.log_likelihood(theta, {"y": jnp.asarray(y), "t": jnp.asarray(t)})
                assert float(ours) == pytest.approx(float(np.log(sick + well)), abs=1e-9)


def test_a_number_that_is_no_column_is_asked_for_by_name_and_counts_in_the_fingerprint():
    with pytest.raises(InvalidModel, match="functools.partial"):
        from_numpyro(fixed_number, XY)
    prints = {from_numpyro(partial(fixed_number, groups=k), XY).fingerprint() for k in (2, 2, 3)}
    assert len(prints) == 2
