"""NumPyro models in: what fits is turned into pure functions, what does not is refused by the name of its site."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density

import sfumato as sf
from sfumato.errors import InvalidInput, InvalidModel
from sfumato.families.langevin import natural_model
from sfumato.model import from_numpyro
from sfumato.model.base import theta_of

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
        terms = jax.jit(jax.vmap(model.log_likelihood, (None, 0)))(theta, {"x": x, "y": y})
        ours = jax.jit(model.log_prior)(theta) + terms.sum()
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


def mean_of_the_terms(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    numpyro.factor("mean", jnp.mean(dist.Bernoulli(logits=b).log_prob(y)))


def latent_for_each_cell(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("records", x.shape[0], dim=-2), numpyro.plate("entries", 3, dim=-1):
        z = numpyro.sample("z", dist.Bernoulli(0.5))
        numpyro.sample("x", dist.Normal(b * z, 1.0), obs=x)


def counts_for_each(x, y):
    b = numpyro.sample("b", dist.LogNormal(0, 1))
    with numpyro.plate("records", x.shape[0]):
        z = numpyro.sample("z", dist.Poisson(b))
        numpyro.sample("y", dist.Bernoulli(logits=1.0 * z), obs=y)


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


def branches_on_a_record(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    if float(y[0]) > 0:
        b = -b
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=b), obs=y)


def branches_on_a_parameter(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    b = -b if b > 0 else b
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=b), obs=y)


def uses_numpy(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=b * np.asarray(x)[:, 0]), obs=y)


def three_records_only(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=b * jnp.ones(3)), obs=y)


def improper(x, y):
    b = numpyro.sample("b", dist.ImproperUniform(dist.constraints.real, (), ()))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=b), obs=y)


def grows_with_the_records(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1).expand([x.shape[0]]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=b), obs=y)


class Unscored(dist.Normal):
    def log_prob(self, value):
        raise LookupError("no density")


def unscored(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", Unscored(b, 1.0), obs=y)


@pytest.mark.parametrize(
    ("model", "site"),
    [
        (local_latent, "z"),
        (subsampled, "records"),
        (fixed_size_plate, "records"),
        (nothing_observed, None),
        (mean_of_the_terms, "mean"),
        (latent_for_each_cell, "z"),
        (counts_for_each, "z"),
        (prior_sees_data, "b"),
        (centred_by_data, "y"),
        (discrete_latent, "k"),
        (moving_support, "b"),
        (has_param, "b"),
        (no_latent, None),
        (raises, None),
        (branches_on_a_record, None),
        (branches_on_a_parameter, None),
        (uses_numpy, None),
        (three_records_only, "y"),
        (improper, "b"),
        (grows_with_the_records, "b"),
        (unscored, "y"),
    ],
)
def test_models_that_do_not_fit_are_refused_by_the_name_of_the_site(model, site):
    with pytest.raises(InvalidModel) as caught:
        from_numpyro(model, DOMAIN)
    assert caught.value.site == site
    assert site is None or repr(site) in str(caught.value)


@pytest.mark.parametrize(
    ("model", "line", "words"),
    [
        (raises, 1, ["RuntimeError", "told you so"]),
        (branches_on_a_record, 2, ["ConcretizationTypeError", "jnp.where"]),
        (branches_on_a_parameter, 2, ["TracerBoolConversionError", "jnp.where"]),
        (uses_numpy, 3, ["TracerArrayConversionError", "no float(), int() or np."]),
        (three_records_only, 3, ["ValueError", "Call it yourself"]),
        (improper, 1, ["NotImplementedError", "a prior must be proper"]),
    ],
)
def test_what_a_model_raises_is_told_with_its_place_and_a_way_out(model, line, words):
    with pytest.raises(InvalidModel) as caught:
        from_numpyro(model, DOMAIN)
    message = str(caught.value)
    assert f"on line {model.__code__.co_firstlineno + line}" in message
    assert all(word in message for word in words)
    assert "\n" not in message


@pytest.fixture(scope="module")
def built():
    return from_numpyro(regression, DOMAIN)


VALUES = {"beta": np.zeros(3), "scale": 1.0, "weights": np.ones(3) / 3}


@pytest.mark.parametrize(
    ("values", "match"),
    [
        (0.3, "must map sites to values"),
        ({"beta": np.zeros(3)}, "must name the sites"),
        (VALUES | {"z": 1.0}, "must name the sites"),
        (VALUES | {"beta": np.zeros(2)}, r"'beta' has shape \(3,\)"),
        (VALUES | {"beta": ["a", "b", "c"]}, "must hold numbers"),
        (VALUES | {"scale": -1.0}, "'scale' does not: got -1.0"),
        (VALUES | {"scale": 0.0}, "not on its edge"),
        (VALUES | {"scale": np.nan}, "'scale' does not"),
        (VALUES | {"beta": np.array([0.0, np.inf, 0.0])}, "'beta' does not"),
        (VALUES | {"weights": np.array([0.5, 0.4, 0.3])}, "'weights' does not"),
        (VALUES | {"weights": np.array([1.2, -0.1, -0.1])}, "'weights' does not"),
    ],
)
def test_values_that_a_user_gives_are_checked(values, match, built):
    with pytest.raises(InvalidInput, match=f"guess.*{match}"):
        theta_of(built, values, "guess")


def test_values_inside_the_support_are_taken(built):
    for values in (VALUES, VALUES | {"scale": 1e-7}, VALUES | {"weights": np.array([1e-9, 0.5, 0.5 - 1e-9])}):
        with jax.enable_x64(True):
            back = built.constrain(jnp.asarray(theta_of(built, values, "guess")))
        assert all(np.allclose(back[name], values[name], rtol=1e-6, atol=0) for name in values)


@pytest.mark.parametrize(
    ("family", "values"),
    [
        (sf.families.Bernoulli(), {"p": 1.5}),
        (sf.families.Bernoulli(), {"p": 1.0}),
        (sf.families.Poisson(5), {"rate": -1.0}),
    ],
    ids=str,
)
def test_the_natural_parameter_knows_the_support_too(family, values):
    for model in (family.to_model(), natural_model(family)):
        with pytest.raises(InvalidInput, match="inside the support"):
            theta_of(model, values, "guess")


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


@pytest.mark.parametrize("held", ["number", "array", "array of an inner program"])
def test_a_model_like_one_that_passed_is_still_tried(held):
    """The same words, another number: what passed once is known by its numbers too."""

    def mixing_by(amount):
        table = jnp.array([0.0, amount])
        inner = jax.jit(lambda shift: table[1] * shift)

        def model(y):
            b = numpyro.sample("b", dist.Normal(0, 1))
            shift = amount * jnp.mean(y)
            if held != "number":
                shift = inner(jnp.mean(y)) if "inner" in held else table[1] * jnp.mean(y)
            with numpyro.plate("people", y.shape[0]):
                numpyro.sample("obs", dist.Bernoulli(logits=b + shift), obs=y)

        return model

    passed = from_numpyro(mixing_by(0.0), {"y": sf.Binary()})
    assert from_numpyro(mixing_by(0.0), {"y": sf.Binary()}).sites == passed.sites
    for _ in range(2):
        with pytest.raises(InvalidModel, match="depends on other records"):
            from_numpyro(mixing_by(5.0), {"y": sf.Binary()})


def test_a_model_that_passed_is_tried_again_on_other_records():
    """On one interval a clipped mean is a constant, on another it is not."""

    def clipped(x):
        b = numpyro.sample("b", dist.Normal(0, 1))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("obs", dist.Normal(b + jnp.clip(jnp.mean(x), 2.0, 3.0), 1.0), obs=x)

    from_numpyro(clipped, {"x": sf.Interval(-1, 1)})
    with pytest.raises(InvalidModel, match="depends on other records"):
        from_numpyro(clipped, {"x": sf.Interval(1, 4)})


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
        terms = jax.jit(jax.vmap(model.log_likelihood, (None, 0)))(theta, {"x": x, "y": y})
        ours = jax.jit(model.log_prior)(theta) + terms.sum()
        numpyros, _ = log_density(scaled, (x, y), {}, {"b": 0.7})
        assert float(ours) == pytest.approx(float(numpyros), abs=1e-9)


def test_a_scale_that_mixes_records_is_refused():
    def mixing(x, y):
        b = numpyro.sample("b", dist.Normal(0, 1))
        with numpyro.plate("records", x.shape[0]), numpyro.handlers.scale(scale=1.0 + jnp.mean(x) ** 2):
            numpyro.sample("y", dist.Bernoulli(logits=b * x), obs=y)

    with pytest.raises(InvalidModel, match="depends on other records"):
        from_numpyro(mixing, {"x": sf.Interval(0, 2), "y": sf.Binary()})


def test_a_prior_that_calls_out_is_refused():
    def hidden(y):
        scale = jax.pure_callback(lambda: np.float64(2.0), jax.ShapeDtypeStruct((), np.float64))
        b = numpyro.sample("b", dist.Normal(0, scale))
        with numpyro.plate("records", y.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=b), obs=y)

    with pytest.raises(InvalidModel, match="may only compute"):
        from_numpyro(hidden, {"y": sf.Binary()})


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


def test_a_support_that_looks_at_the_records_or_their_number_is_refused_also_where_no_density_shows_it():
    for top in (lambda y: 1.0 * y.shape[0], lambda y: 1.0 + y.mean(), lambda y: 1.0 + y.min()):

        def model(y, top=top):
            p = numpyro.sample("p", dist.Uniform(0.0, top(y)).mask(False))
            with numpyro.plate("records", y.shape[0]):
                numpyro.sample("y", dist.Bernoulli(probs=p / (1 + p)), obs=y)

        with pytest.raises(InvalidModel, match="support"):
            from_numpyro(lambda y, model=model: model(y), {"y": sf.Binary()})
