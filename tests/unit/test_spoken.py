"""Which coordinates no record speaks of is read off the program, not guessed from records."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sfumato as sf
from sfumato.model import from_numpyro
from sfumato.model.spoken import unspoken
from sfumato.planner import hierarchy
from sfumato.planner.belief import Belief
from sfumato.study.target import make_study

DOMAIN = {"group": sf.Categories(3), "x": sf.Interval(-1, 1), "y": sf.Interval(-4, 4)}


def centred(group, x, y):
    mu = numpyro.sample("mu", dist.Normal(0, 1).expand([2]).to_event(1))
    tau = numpyro.sample("tau", dist.HalfNormal(1).expand([2]).to_event(1))
    corr = numpyro.sample("corr", dist.LKJCholesky(2, 2.0))
    both = dist.MultivariateNormal(mu, scale_tril=tau[..., None] * corr)
    effect = numpyro.sample("effect", both.expand([3]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Normal(effect[group, 0] + effect[group, 1] * x, noise), obs=y)


def offset(group, x, y):
    """One hyperparameter is the effects' mean and an intercept besides."""
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    effect = numpyro.sample("effect", dist.Normal(mu, tau).expand([3]).to_event(1))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Normal(effect[group] + 1e-300 * mu, 1.0), obs=y)


def rarely(group, x, y):
    """Records speak of tau where it is beyond anything that the prior would draw."""
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    effect = numpyro.sample("effect", dist.Normal(0, tau).expand([3]).to_event(1))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Normal(effect[group] + jnp.where(tau > 50, 1.0, 0.0), 1.0), obs=y)


def uncentred(group, x, y):
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    effect = numpyro.sample("z", dist.Normal(0, 1).expand([3]).to_event(1)) * tau
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Normal(effect[group], 1.0), obs=y)


@pytest.mark.parametrize(
    ("model", "names"),
    [(centred, ["mu[0]", "mu[1]", "tau[0]", "tau[1]", "corr[0]"]), (offset, ["tau"]), (rarely, []), (uncentred, [])],
)
def test_it_is_what_the_program_never_reads(model, names):
    built = from_numpyro(model, DOMAIN)
    free = unspoken(built, DOMAIN)
    assert [name for name, is_free in zip(built.coordinate_names(), free, strict=True) if is_free] == names


def test_directions_are_the_conditional_prior_standard_deviations_of_what_is_free():
    study = make_study(offset, DOMAIN)
    theta = study.model.unconstrain({"mu": 0.1, "tau": 0.5, "effect": np.array([0.5, -0.4, 0.1])})
    belief = Belief(np.asarray(theta, float), np.eye(5), "")
    with jax.enable_x64(True):
        directions = hierarchy.free_moves(study, belief).directions
    names = study.model.coordinate_names()
    assert directions.shape == (5, 1)
    assert np.flatnonzero(directions[:, 0]).tolist() == [names.index("tau")]
    # log p(log tau | effects) = -3 log tau - S/(2 tau^2) + log tau - tau^2/2, up to constants
    square = 0.4**2 + 0.5**2
    bend = 2 * square / 0.5**2 + 2 * 0.5**2
    assert directions[names.index("tau"), 0] == pytest.approx(bend**-0.5, rel=1e-6)
