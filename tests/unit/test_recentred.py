"""Non-centred hierarchies are laid out as centred ones: the same posterior, and hyperparameters that no record speaks of."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sfumato as sf
from sfumato.model import from_numpyro
from sfumato.model.recentred import recentred
from sfumato.model.spoken import unspoken
from sfumato.model.trials import synthetic_batch

DOMAIN = {"g": sf.Categories(5), "x": sf.Interval(-1, 1), "y": sf.Binary()}


def model_with(effects, reads=lambda mu, scale, z, alpha: alpha):
    def model(g, x, y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.5))
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        z, alpha = effects(mu, scale)
        with numpyro.plate("records", len(g)):
            numpyro.sample("y", dist.Bernoulli(logits=reads(mu, scale, z, alpha)[g] * x), obs=y)

    return model


def centred(mu, scale):
    alpha = numpyro.sample("alpha", dist.Normal(mu, scale).expand([5]).to_event(1))
    return alpha, alpha


def non_centred(mu, scale):
    with numpyro.plate("groups", 5):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
    return z, mu + scale * z


def unscaled(mu, scale):
    z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([5]).to_event(1))
    return z, 2.0 * z + 1.0


def bent(mu, scale):
    z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([5]).to_event(1))
    return z, mu + scale * jnp.sinh(z)


def mixed(mu, scale):
    z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([5]).to_event(1))
    return z, mu + scale * (z + z[::-1])


def built(effects, **reads):
    return from_numpyro(model_with(effects, **reads), DOMAIN)


def test_both_forms_are_one_model_then():
    there, here = built(centred), recentred(built(non_centred), DOMAIN)
    records = synthetic_batch(DOMAIN, 6, np.random.default_rng(0))
    with jax.enable_x64(True):
        theta = there.sample_prior(jax.random.key(1))
        assert float(here.log_prior(theta)) == pytest.approx(float(there.log_prior(theta)), abs=1e-9)
        terms = [jax.vmap(m.log_likelihood, (None, 0))(theta, records) for m in (here, there)]
        assert np.allclose(*terms, atol=1e-12)
        z = (theta[2:] - theta[0]) / jnp.exp(theta[1])
        assert np.allclose(here.constrain(theta)["z"], z) and np.allclose(
            here.unconstrain(here.constrain(theta)), theta
        )
        plain = built(non_centred)
        assert np.allclose(here.sample_prior(jax.random.key(2))[:2], plain.sample_prior(jax.random.key(2))[:2])
    assert unspoken(here, DOMAIN).tolist() == unspoken(there, DOMAIN).tolist() == [True, True, *[False] * 5]
    assert unspoken(plain, DOMAIN).sum() == 0


@pytest.mark.parametrize(
    ("effects", "reads"),
    [
        (centred, {}),
        (unscaled, {}),
        (bent, {}),
        (mixed, {}),
        (non_centred, {"reads": lambda mu, scale, z, alpha: alpha * z}),
        (non_centred, {"reads": lambda mu, scale, z, alpha: jnp.sin(alpha) + z}),
    ],
    ids=["centred", "unscaled", "bent", "mixed", "a square", "read twice"],
)
def test_what_gains_nothing_or_is_no_straight_line_stays(effects, reads):
    model = built(effects, **reads)
    assert recentred(model, DOMAIN) is model


def test_scales_of_each_entry_and_several_effects_are_followed():
    def horseshoe(g, x, y):
        tau = numpyro.sample("tau", dist.HalfCauchy(0.5))
        lam = numpyro.sample("lam", dist.HalfCauchy(1.0).expand([5]).to_event(1))
        z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([5]).to_event(1))
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([5]).to_event(1))
        with numpyro.plate("records", len(g)):
            numpyro.sample("y", dist.Bernoulli(logits=(tau * lam * z)[g] * x + (tau * w)[g]), obs=y)

    model = recentred(from_numpyro(horseshoe, DOMAIN), DOMAIN)
    assert unspoken(model, DOMAIN).tolist() == [*[True] * 6, *[False] * 10]
