"""NumPyro models in: trace once on synthetic records, check the shape, hand out pure functions.

The vault can answer for models of one shape: global latent variables, one plate over the records, observed sites in
that plate. Everything else would either make one record's term depend on other people's records, or need a parameter
per person. Such models are refused here, by the name of the site that is the matter.
"""

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro import handlers, primitives, validation_enabled
from numpyro.distributions import biject_to

from sfumato.domain import Domain
from sfumato.errors import InvalidInput, InvalidModel
from sfumato.model.base import Array, Model, Observation, Record, Site, check_values
from sfumato.model.robust import with_weight
from sfumato.model.trials import check_pure, check_separate, mixed_company, synthetic_batch, try_once

_PROBE = 3  # synthetic records in the probing trace: enough to tell a plate over records from anything else

_TRACING = threading.RLock()
"""NumPyro's stack of handlers belongs to the process, not to a thread: models are traced one at a time."""


def _traced(model: Callable[..., Any], records: Record) -> dict[str, Any]:
    with _TRACING:
        return dict(handlers.trace(model).get_trace(**records))


def from_numpyro(model: Callable[..., Any], domain: Mapping[str, Domain]) -> Model:
    """Turn a NumPyro model function into a `Model`.

    Parameters
    ----------
    model
        A NumPyro model whose arguments are the columns: ``def model(x, y): ...``.
    domain
        The declared domain of every column.

    Returns
    -------
    Model

    Raises
    ------
    InvalidModel
        If the model has local latent variables, several plates, a subsampled plate, no observed site, a prior that
        looks at the records, or terms that mix records; or if it raises, or is no program that JAX can trace. `.site`
        names the culprit.
    """
    columns = _match_columns(model, domain)
    probe = synthetic_batch({name: domain[name] for name in columns}, _PROBE, np.random.default_rng(0))
    with _told(model), jax.enable_x64(True):
        first = _prototype(model, probe, 0)
        latents = _check_sites(first)
        others = mixed_company({name: domain[name] for name in columns}, np.random.default_rng(1))
        _check_static(first, _prototype(model, {k: v[: _PROBE - 1] for k, v in others.items()}, 1), latents)
        built = _build(model, first, latents, probe, columns)
        check_pure(built, {name: values[0] for name, values in probe.items()})
        _check_prior_ignores_records(built, model, probe, latents)
        kinds = {name: _kind(site["fn"]) for name, site in first.items() if site["type"] == "sample"}
        _check_records_are_separate(built, model, {name: domain[name] for name in columns}, kinds)
        return with_weight(built, domain)


@contextmanager
def _told(model: Callable[..., Any]) -> Iterator[None]:
    """Turn whatever a model raises while it is tried into `InvalidModel`. It is tried on made-up records only."""
    try:
        yield
    except InvalidInput:
        raise
    except Exception as error:
        calls = [(call.tb_frame, call.tb_lineno) for call in _calls(error)]
        named = [frame.f_locals["name"] for frame, _ in calls if frame.f_code in _AT_A_SITE]
        site = str(named[-1]) if named else None
        code = getattr(inspect.unwrap(model), "__code__", None)
        lines = [line for frame, line in calls if frame.f_code is code]
        where = (f" at site {site!r}" if site else "") + (f" on line {lines[-1]}" if lines else "")
        said = str(error).strip().split("\n")[0].rstrip(".")
        raise InvalidModel(
            f"a model must run on any records of the domain, and this one raised {type(error).__name__}{where}"
            f"{': ' + said if said else ''}. {_advice(error, site)}",
            site=site,
        ) from error


def _calls(error: BaseException) -> Iterator[TracebackType]:
    call = error.__traceback__
    while call is not None:
        yield call
        call = call.tb_next


def _advice(error: Exception, site: str | None) -> str:
    if isinstance(error, jax.errors.JAXTypeError | jax.errors.JAXIndexError):
        return "It is compiled by JAX: choose with jnp.where instead of `if`, and use no float(), int() or np. on its values."
    if isinstance(error, NotImplementedError) and site is not None:
        return "The distribution there cannot be drawn from; a prior must be proper."
    return f"Call it yourself with one and with {_PROBE} such records to see why."


# -- probing ----------------------------------------------------------------------------------------------------------


def _match_columns(model: Callable[..., Any], domain: Mapping[str, Domain]) -> tuple[str, ...]:
    if not callable(model):
        raise InvalidModel(
            f"a model must be a NumPyro model function or a sf.Model, got {type(model).__name__}; a pymc.Model is made one by "
            "sf.from_pymc(model, domain)."
        )
    parameters = inspect.signature(model).parameters.values()
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    required = {p.name for p in parameters if p.name in named and p.default is p.empty}
    if missing := required - set(domain):
        raise InvalidModel(
            f"the model takes {sorted(missing)}, which the domain does not declare; add them to domain=."
        )
    if (extra := set(domain) - named) and not takes_any:
        raise InvalidModel(
            f"the domain declares {sorted(extra)}, which the model does not take; remove them from domain=."
        )
    return tuple(domain)


def _prototype(model: Callable[..., Any], probe: Record, seed: int) -> dict[str, Any]:
    return _traced(handlers.seed(model, jax.random.key(seed)), probe)


def _check_sites(trace: Mapping[str, Any]) -> list[str]:
    plates = [name for name, site in trace.items() if site["type"] == "plate"]
    if len(plates) > 1:
        observed = {f.name for s in trace.values() if s.get("is_observed") for f in s["cond_indep_stack"]}
        culprit = next((name for name in plates if name not in observed), plates[1])
        raise InvalidModel(
            f"a model must have one plate, over the records; this one has {plates}. Rewrite {culprit!r} with a "
            "multivariate site (for instance dist.Normal(...).expand([k]).to_event(1)).",
            site=culprit,
        )
    for name in plates:
        size, subsample = trace[name]["args"]
        if subsample not in (None, size) or size != _PROBE:
            raise InvalidModel(
                f"plate {name!r} must run over all records given to the model: it has size {size}, subsample "
                f"{subsample}, for {_PROBE} records. Write numpyro.plate({name!r}, y.shape[0]).",
                site=name,
            )
    latents = [name for name, site in trace.items() if _check_site(name, site, trace)]
    if not any(_in_plate(site) for site in trace.values()):
        factor = next((name for name, site in trace.items() if _is_factor(site)), None)
        advice = f"move the factor {factor!r} under it" if factor else "pass obs= to one of its sample sites"
        raise InvalidModel(
            f"a model must have an observed site inside a plate over the records; {advice}.", site=factor
        )
    if not latents:
        raise InvalidModel("a model must have at least one global latent variable; there is nothing to infer.")
    return latents


def _check_site(name: str, site: Mapping[str, Any], trace: Mapping[str, Any]) -> bool:
    """Refuse what does not fit; True for a global latent."""
    if site["type"] == "param":
        raise InvalidModel(
            f"site {name!r} is a numpyro.param, which has no prior; make it a numpyro.sample.", site=name
        )
    if site["type"] != "sample":
        return False
    in_plate = bool(site["cond_indep_stack"])
    if site["is_observed"]:
        if not in_plate and not _is_factor(site):
            raise InvalidModel(
                f"observed site {name!r} lies outside the plate over records; move it under the plate.", site=name
            )
        return False
    if in_plate:
        raise InvalidModel(
            f"site {name!r} is a latent variable inside the plate: one for each record. Only global latent variables "
            "can be inferred; marginalise it out (for instance dist.MixtureSameFamily) or move it out of the plate.",
            site=name,
        )
    if site["fn"].support.is_discrete:
        raise InvalidModel(f"site {name!r} is a discrete latent variable; marginalise it out of the model.", site=name)
    return True


def _is_factor(site: Mapping[str, Any]) -> bool:
    return site["type"] == "sample" and type(site["fn"]).__name__ == "Unit"


def _check_static(first: Mapping[str, Any], second: Mapping[str, Any], latents: list[str]) -> None:
    """Compare two traces, the second of one record less, and other ones."""
    for name in latents:
        shape, other = (np.shape(trace[name]["value"]) for trace in (first, second))
        if shape != other:
            raise InvalidModel(
                f"site {name!r} has shape {shape} for {_PROBE} records and {other} for {_PROBE - 1}: a latent variable may not "
                "grow with the records. Give it a fixed shape.",
                site=name,
            )
        if first[name]["fn"].support != second[name]["fn"].support:
            raise InvalidModel(
                f"the support of site {name!r} depends on another latent variable or on the records; reparametrise it to a fixed "
                "support.",
                site=name,
            )


# -- building ---------------------------------------------------------------------------------------------------------


def _build(
    model: Callable[..., Any], trace: Mapping[str, Any], latents: list[str], probe: Record, columns: tuple[str, ...]
) -> Model:
    transforms = {name: biject_to(trace[name]["fn"].support) for name in latents}
    free = {name: np.asarray(transforms[name].inv(trace[name]["value"])) for name in latents}
    sites = tuple(Site(name, tuple(np.shape(trace[name]["value"])), free[name].size) for name in latents)
    splits = np.cumsum([site.size for site in sites])[:-1].tolist()

    def unpack(theta: Array) -> dict[str, Array]:
        parts = jnp.split(theta, splits)
        return {name: part.reshape(free[name].shape) for name, part in zip(latents, parts, strict=True)}

    def constrain(theta: Array) -> dict[str, Array]:
        return {name: transforms[name](value) for name, value in unpack(theta).items()}

    def unconstrain(values: Mapping[str, Array]) -> Array:
        check_values(values, sites)
        parts = {name: transforms[name].inv(jnp.asarray(values[name], dtype=float)) for name in latents}
        return jnp.concatenate([jnp.ravel(parts[name]) for name in latents])

    def run(theta: Array, records: Record) -> dict[str, Any]:
        substituted = handlers.substitute(handlers.seed(model, jax.random.key(0)), data=constrain(theta))
        return _traced(substituted, records)

    # The prior never looks at the records (checked below), so any record will do to trace it.
    stand_in = {name: values[:1] for name, values in probe.items()}

    def log_prior(theta: Array) -> Array:
        traced, values = run(theta, stand_in), unpack(theta)
        jacobians = [transforms[k].log_abs_det_jacobian(values[k], traced[k]["value"]) for k in latents]
        global_sites = [site for site in traced.values() if site["type"] == "sample" and not site["cond_indep_stack"]]
        densities = [_density(*_observation(site["name"], site)) for site in global_sites]
        return sum((jnp.sum(term) for term in jacobians + densities), jnp.zeros((), theta.dtype))

    def observations(theta: Array, record: Record) -> list[Observation]:
        single = {name: jnp.asarray(value)[None] for name, value in record.items()}
        return [_observation(name, site) for name, site in run(theta, single).items() if _in_plate(site)]

    def log_likelihood(theta: Array, record: Record) -> Array:
        total: Array = 0.0
        for factor in observations(theta, record):
            total += jnp.sum(_density(*factor))
        return total

    def sample_prior(key: Array) -> Array:
        drawn = _traced(handlers.seed(model, key), stand_in)
        return ravel_pytree([jnp.ravel(transforms[name].inv(drawn[name]["value"])) for name in latents])[0]

    return Model(
        sites=sites,
        log_prior=log_prior,
        log_likelihood=log_likelihood,
        constrain=constrain,
        unconstrain=unconstrain,
        sample_prior=sample_prior,
        columns=columns,
        observations=observations,
        source=_source(model),
    )


def _in_plate(site: Mapping[str, Any]) -> bool:
    """Whether this is an observed site of the records."""
    return site["type"] == "sample" and site["is_observed"] and bool(site["cond_indep_stack"])


def _observation(name: str, site: Mapping[str, Any]) -> Observation:
    return Observation(name, site["fn"], site["value"], _scale(site))


def _scale(site: Mapping[str, Any]) -> Array:
    """What `handlers.scale` multiplies this site's log-density by."""
    return 1.0 if site["scale"] is None else site["scale"]


def _kind(distribution: Any) -> str:
    """What a distribution is called by whoever wrote the model."""
    while hasattr(distribution, "base_dist") and type(distribution).__name__ in _WRAPPERS:
        distribution = distribution.base_dist
    if type(distribution).__name__ == "Unit":
        return "the factor"
    return type(distribution).__name__.removesuffix("Logits").removesuffix("Probs")


_WRAPPERS = ("ExpandedDistribution", "Independent", "MaskedDistribution", "Robust")


def _density(name: str, distribution: Any, value: Array, scale: Array) -> Array:
    """Log-density of one site; by a function of its own, so that a message can name the site."""
    return distribution.log_prob(value) * scale


_AT_A_SITE = (primitives.sample.__code__, _density.__code__)


def _source(model: Callable[..., Any]) -> str:
    try:
        return inspect.getsource(model)
    except (OSError, TypeError):
        return repr(getattr(model, "__qualname__", type(model)))


# -- checks on the built functions ------------------------------------------------------------------------------------


def _check_prior_ignores_records(built: Model, model: Callable[..., Any], probe: Record, latents: list[str]) -> None:
    def terms(key: Array, records: Record) -> dict[str, Array]:
        theta = built.sample_prior(key)
        substituted = handlers.substitute(handlers.seed(model, jax.random.key(0)), data=built.constrain(theta))
        traced = _traced(substituted, records)
        outside = [
            name
            for name, site in traced.items()
            if site["type"] == "sample" and (name in latents or not site["cond_indep_stack"])
        ]
        return {name: jnp.sum(_density(*_observation(name, traced[name]))) for name in outside}

    def same_alone(each: Callable[..., Any]) -> None:
        few, one = each(key, dict(probe), alone)
        for name in few:
            if not np.allclose(few[name], one[name], rtol=1e-9, atol=0, equal_nan=True):
                raise InvalidModel(
                    f"the prior of site {name!r} depends on how many records the model is given; it is evaluated apart from "
                    "them. The number of records is public: write it into the prior as a plain number.",
                    site=name,
                )

    key, alone = jax.random.key(0), {name: column[:1] for name, column in probe.items()}
    try_once(lambda key, *given: [terms(key, records) for records in given], same_alone, key, dict(probe), alone)
    for name, looks in _looks_at_inputs(partial(terms, key), dict(probe)).items():
        if looks:
            raise InvalidModel(
                f"the prior of site {name!r} depends on the records; a prior must be fixed before the data are seen.",
                site=name,
            )


def _looks_at_inputs(function: Callable[..., dict[str, Array]], *inputs: Any) -> dict[str, bool]:
    """Which outputs depend on any input, conservatively: one tainted operand taints the result."""
    program, outputs = jax.make_jaxpr(function, return_shape=True)(*inputs)
    tainted = set(program.jaxpr.invars)
    for equation in program.jaxpr.eqns:
        if any(not hasattr(v, "val") and v in tainted for v in equation.invars):
            tainted.update(equation.outvars)
    found = [not hasattr(v, "val") and v in tainted for v in program.jaxpr.outvars]
    named: dict[str, bool] = jax.tree.unflatten(jax.tree.structure(outputs), found)
    return named


def _check_records_are_separate(
    built: Model, model: Callable[..., Any], domain: Mapping[str, Domain], kinds: Mapping[str, str]
) -> None:
    def together(theta: Array, records: Record) -> dict[str, Array]:
        substituted = handlers.substitute(handlers.seed(model, jax.random.key(0)), data=built.constrain(theta))
        traced = _traced(substituted, records)
        return {name: _density(*_observation(name, site)) for name, site in traced.items() if _in_plate(site)}

    def alone(theta: Array, record: Record) -> dict[str, Array]:
        factors = built.observations(theta, record)  # type: ignore[misc]
        return {factor.name: jnp.sum(_density(*factor)) for factor in factors}

    advice = "use .to_event(...) for vector-valued observations"
    with validation_enabled():  # a density is zero outside its support, also for those who compute without looking
        check_separate(together, alone, built.sample_prior, domain, advice, kinds)
