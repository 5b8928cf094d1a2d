"""NumPyro models in: what fits is turned into pure functions, what does not is refused by the name of its site."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density

import sfumato as sf
from sfumato.errors import InvalidModel
from sfumato.model import from_numpyro

DOMAIN = {"x": sf.Ball(1.0, dim=3), "y": sf.Binary()}


def regression(x, y):
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=(x * weights) @ beta * scale), obs=y)


def test_prior_and_likelihood_add_up_to_numpyros_own_density_with_jacobians():
    model = from_numpyro(regression, DOMAIN)
    rng = np.random.default_rng(0)
    x, y = sf.Ball(1.0, dim=3).sample(rng, 7), rng.integers(0, 2, 7)
    with jax.enable_x64(True):
        theta = model.sample_prior(jax.random.key(1))
        values = model.constrain(theta)
        ours = model.log_prior(theta) + sum(model.log_likelihood(theta, {"x": x[i], "y": y[i]}) for i in range(7))
        numpyros, _ = log_density(regression, (x, y), {}, values)
        jacobian = jnp.sum(jnp.log(values["scale"]))
        simplex = dist.biject_to(dist.constraints.simplex)
        jacobian += simplex.log_abs_det_jacobian(theta[4:], values["weights"])
        assert float(ours) == pytest.approx(float(numpyros + jacobian), abs=1e-9)


def test_the_parameter_round_trips_and_is_named():
    model = from_numpyro(regression, DOMAIN)
    with jax.enable_x64(True):
        theta = model.sample_prior(jax.random.key(2))
        assert np.allclose(model.unconstrain(model.constrain(theta)), theta)
    assert model.dim == 6
    assert model.coordinate_names() == ["beta[0]", "beta[1]", "beta[2]", "scale", "weights[0]", "weights[1]"]
    with pytest.raises(InvalidModel, match="must name the sites"):
        model.unconstrain({"beta": np.zeros(3)})
    with pytest.raises(InvalidModel, match="has shape"):
        model.unconstrain({"beta": np.zeros(2), "scale": 1.0, "weights": np.ones(3) / 3})


def test_the_fingerprint_follows_the_models_text():
    assert from_numpyro(regression, DOMAIN).fingerprint() == from_numpyro(regression, DOMAIN).fingerprint()
    assert from_numpyro(regression, DOMAIN).fingerprint() != from_numpyro(intercept, DOMAIN).fingerprint()


def intercept(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=b), obs=y)


def local_latent(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("records", x.shape[0]):
        z = numpyro.sample("z", dist.Normal(b, 1))
        numpyro.sample("y", dist.Bernoulli(logits=z), obs=y)


def two_plates(x, y):
    with numpyro.plate("coefficients", 3):
        b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ b), obs=y)


def subsampled(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("records", x.shape[0], subsample_size=2) as index:
        numpyro.sample("y", dist.Bernoulli(logits=b), obs=y[index])


def fixed_size_plate(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("records", 100):
        numpyro.sample("y", dist.Bernoulli(logits=b), obs=jnp.zeros(100))


def nothing_observed(x, y):
    numpyro.sample("b", dist.Normal(0, 1))


def observed_outside(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    numpyro.sample("y", dist.Bernoulli(logits=b).expand([x.shape[0]]).to_event(1), obs=y)


def prior_sees_data(x, y):
    b = numpyro.sample("b", dist.Normal(x.mean(), 1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=b), obs=y)


def centred_by_data(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=b * (x - x.mean(0)).sum(-1)), obs=y)


def discrete_latent(x, y):
    k = numpyro.sample("k", dist.Bernoulli(0.5))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=k * 1.0), obs=y)


def moving_support(x, y):
    a = numpyro.sample("a", dist.HalfNormal(1.0))
    b = numpyro.sample("b", dist.Uniform(0.0, a))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=b), obs=y)


def has_param(x, y):
    b = numpyro.param("b", 0.0)
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=b), obs=y)


def no_latent(x, y):
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=0.0), obs=y)


def raises(x, y):
    raise RuntimeError("told you so")


@pytest.mark.parametrize(
    ("model", "site"),
    [
        (local_latent, "z"),
        (two_plates, "coefficients"),
        (subsampled, "records"),
        (fixed_size_plate, "records"),
        (nothing_observed, None),
        (observed_outside, "y"),
        (prior_sees_data, "b"),
        (centred_by_data, "y"),
        (discrete_latent, "k"),
        (moving_support, "b"),
        (has_param, "b"),
        (no_latent, None),
        (raises, None),
    ],
)
def test_models_that_do_not_fit_are_refused_by_the_name_of_the_site(model, site):
    with pytest.raises(InvalidModel) as caught:
        from_numpyro(model, DOMAIN)
    assert caught.value.site == site
    assert site is None or repr(site) in str(caught.value)


def test_columns_must_match_arguments():
    with pytest.raises(InvalidModel, match="does not declare"):
        from_numpyro(intercept, {"y": sf.Binary()})
    with pytest.raises(InvalidModel, match="does not take"):
        from_numpyro(intercept, {**DOMAIN, "z": sf.Binary()})
    with pytest.raises(InvalidModel, match="NumPyro model function"):
        from_numpyro("intercept", DOMAIN)


COLUMNS = {
    "binary": sf.Binary(),
    "integers": sf.Integers(-3, 4),
    "categories": sf.Categories(5),
    "interval": sf.Interval(0, 2),
    "box": sf.Box(-1, 1, shape=(2,)),
    "ball": sf.Ball(1.0, dim=2),
}
STATISTICS = {
    "mean": lambda x: x - jnp.mean(x, axis=0),
    "sum": lambda x: x / jnp.maximum(jnp.sum(jnp.abs(x), axis=0), 1e-3),
    "largest": lambda x: x - jnp.max(x, axis=0),
    "neighbour": lambda x: x - jnp.roll(x, 1, axis=0),
    "sorted": lambda x: jnp.sort(x, axis=0) + 0.0,
}


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("statistic", STATISTICS)
def test_a_term_that_looks_at_other_records_is_refused_whatever_the_domain(kind, statistic):
    def mixing(x, y):
        b = numpyro.sample("b", dist.Normal(0, 1))
        looked = STATISTICS[statistic](x)
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("obs", dist.Bernoulli(logits=b * looked.reshape(y.shape[0], -1).sum(axis=1)), obs=y)

    with pytest.raises(InvalidModel, match="depends on other records") as caught:
        from_numpyro(mixing, {"x": COLUMNS[kind], "y": sf.Binary()})
    assert caught.value.site == "obs"


def test_the_outcomes_mean_is_refused_too():
    def cheating(y):
        m = numpyro.sample("m", dist.Normal(0, 1))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("obs", dist.Bernoulli(logits=m + 5 * y.mean()), obs=y)

    with pytest.raises(InvalidModel, match="depends on other records"):
        from_numpyro(cheating, {"y": sf.Binary()})


def test_a_prior_that_counts_the_records_is_refused():
    def unit_information(y):
        m = numpyro.sample("m", dist.Normal(0, 1 / jnp.sqrt(y.shape[0])))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("obs", dist.Bernoulli(logits=m), obs=y)

    with pytest.raises(InvalidModel, match="how many records") as caught:
        from_numpyro(unit_information, {"y": sf.Binary()})
    assert caught.value.site == "m"


def test_scales_count_in_the_prior_and_in_the_likelihood():
    def scaled(x, y):
        with numpyro.handlers.scale(scale=0.25):
            b = numpyro.sample("b", dist.Normal(0, 1))
        with numpyro.plate("records", x.shape[0]), numpyro.handlers.scale(scale=1.0 + x):
            numpyro.sample("y", dist.Bernoulli(logits=b * x), obs=y)

    model = from_numpyro(scaled, {"x": sf.Interval(0, 2), "y": sf.Binary()})
    rng = np.random.default_rng(0)
    x, y = rng.uniform(0, 2, 7), rng.integers(0, 2, 7)
    with jax.enable_x64(True):
        theta = jnp.asarray([0.7])
        ours = model.log_prior(theta) + sum(model.log_likelihood(theta, {"x": x[i], "y": y[i]}) for i in range(7))
        numpyros, _ = log_density(scaled, (x, y), {}, {"b": 0.7})
        assert float(ours) == pytest.approx(float(numpyros), abs=1e-9)


def test_a_scale_that_mixes_records_is_refused():
    def mixing(x, y):
        b = numpyro.sample("b", dist.Normal(0, 1))
        with numpyro.plate("records", x.shape[0]), numpyro.handlers.scale(scale=1.0 + jnp.mean(x) ** 2):
            numpyro.sample("y", dist.Bernoulli(logits=b * x), obs=y)

    with pytest.raises(InvalidModel, match="depends on other records"):
        from_numpyro(mixing, {"x": sf.Interval(0, 2), "y": sf.Binary()})


@pytest.mark.parametrize("way", ["print", "callback"])
def test_a_model_that_talks_to_the_outside_is_refused(way, capfd):
    def talkative(y):
        b = numpyro.sample("b", dist.Normal(0, 1))
        if way == "print":
            jax.debug.print("{y}", y=y)
        else:
            y = jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct(y.shape, y.dtype), y, vmap_method="sequential")
        with numpyro.plate("records", y.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=b), obs=y)

    with pytest.raises(InvalidModel, match="may only compute"):
        from_numpyro(talkative, {"y": sf.Binary()})
