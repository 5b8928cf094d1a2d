"""NumPyro models in: trace on synthetic records, tell what each site is (`roles`), hand out pure functions.

The vault can answer for models of one shape: global latent variables, and observed sites that give every record a term of
its own. How that is written is the user's business: plates over records, groups or features, or none. What makes one
record's term depend on other people's records, or needs a real parameter per person, is refused here, by the name of the
site that is the matter.
"""

import hashlib
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, wraps
from types import TracebackType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro import handlers, primitives, validation_enabled
from numpyro.distributions import biject_to

from sfumato.domain import Domain, joined
from sfumato.errors import InvalidInput, InvalidModel
from sfumato.model.base import Array, Model, Observation, Record, Site, check_values
from sfumato.model.robust import with_weight
from sfumato.model.roles import Roles, looks_at_inputs, roles
from sfumato.model.summed import MOST_COMPONENTS, mixture, states
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
        If the model has real latent variables for each record, a subsampled plate, no site that looks at the records, a prior
        that looks at them, or terms that mix them; or if it raises, or is no program that JAX can trace. `.site` names the
        culprit.
    """
    columns = _match_columns(model, domain)
    model = _on_joined(model, domain)
    probe = synthetic_batch({name: domain[name] for name in columns}, _PROBE, np.random.default_rng(0))
    with _told(model), jax.enable_x64(True):
        first = _prototype(model, probe, 0)
        others = mixed_company({name: domain[name] for name in columns}, np.random.default_rng(1))
        fewer = {name: values[: _PROBE - 1] for name, values in others.items()}
        second = _prototype(model, fewer, 1)
        found = roles(first, second, (_PROBE, _PROBE - 1), partial(_looks, model, first, probe))
        _check_static(first, second, found.latents)
        built = _build(model, first, found, probe, columns)
        check_pure(built, {name: values[0] for name, values in probe.items()})
        _check_prior_ignores_records(built, model, probe, found.of_the_prior(first))
        kinds = {name: _kind(site["fn"]) for name, site in first.items() if site["type"] == "sample"}
        _check_records_are_separate(built, model, first, found, {name: domain[name] for name in columns}, kinds)
        return with_weight(built, domain)


def _on_joined(model: Callable[..., Any], domain: Mapping[str, Domain]) -> Callable[..., Any]:
    """The model of records whose columns are cut to those that they never exceed."""
    if not any(column.at_most for column in domain.values()):
        return model

    @wraps(model)
    def cut(**record: Array) -> Any:
        return model(**joined(domain, record))

    return cut


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
            f"the model takes {sorted(missing)}, which the domain does not declare; add them to domain=, or fix what is no "
            f"column: "
            f"functools.partial(model, {sorted(missing)[0]}=...)."
        )
    if (extra := set(domain) - named) and not takes_any:
        raise InvalidModel(
            f"the domain declares {sorted(extra)}, which the model does not take; remove them from domain=."
        )
    return tuple(domain)


def _prototype(model: Callable[..., Any], probe: Record, seed: int) -> dict[str, Any]:
    return _traced(handlers.seed(model, jax.random.key(seed)), probe)


def _looks(model: Callable[..., Any], trace: Mapping[str, Any], probe: Record, names: list[str]) -> dict[str, bool]:
    """Which sites have a log-density that looks at the records, in a trace with all latent variables held."""
    held = {name: site["value"] for name, site in trace.items() if site["type"] == "sample" and not site["is_observed"]}

    def densities(records: Record) -> dict[str, Array]:
        again = _traced(handlers.substitute(handlers.seed(model, jax.random.key(0)), data=held), records)
        return {name: _density(*_observation(name, again[name])) for name in names}

    return looks_at_inputs(densities, dict(probe))


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
    model: Callable[..., Any], trace: Mapping[str, Any], found: Roles, probe: Record, columns: tuple[str, ...]
) -> Model:
    latents = found.latents
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

    def run(theta: Array, records: Record, state: Mapping[str, Array]) -> dict[str, Any]:
        substituted = handlers.substitute(handlers.seed(model, jax.random.key(0)), data=constrain(theta) | dict(state))
        return _traced(substituted, records)

    # The prior never looks at the records (checked below), so any record will do to trace it.
    stand_in = {name: values[:1] for name, values in probe.items()}
    of_the_prior = found.of_the_prior(trace)

    def log_prior(theta: Array) -> Array:
        traced, values = run(theta, stand_in, {}), unpack(theta)
        jacobians = [transforms[k].log_abs_det_jacobian(values[k], traced[k]["value"]) for k in latents]
        densities = [_density(*_observation(name, traced[name])) for name in of_the_prior]
        return sum((jnp.sum(term) for term in jacobians + densities), jnp.zeros((), theta.dtype))

    def observed(theta: Array, record: Record) -> list[Observation]:
        return [
            _observation(name, site) for name, site in run(theta, _single(record), {}).items() if name in found.terms
        ]

    record_terms = _Terms(lambda theta, record, state: run(theta, _single(record), state), trace, found)
    leading = all(_leads(trace[name], axis) for name, axis in found.terms.items())
    observations = record_terms.observations if found.summed else observed if leading else None

    def log_likelihood(theta: Array, record: Record) -> Array:
        if found.summed:
            return record_terms.log_sum(theta, record)
        return _total(observed(theta, record))

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


def _total(factors: list[Observation]) -> Array:
    total: Array = 0.0
    for factor in factors:
        total += jnp.sum(_density(*factor))
    return total


def _single(record: Record) -> dict[str, Array]:
    return {name: jnp.asarray(value)[None] for name, value in record.items()}


def _leads(site: Mapping[str, Any], axis: int | None) -> bool:
    """Whether records run along the first axis of what a site observes."""
    return np.shape(site["value"])[:1] == (_PROBE,) if axis is None else axis == -len(_batch(site))


def _batch(site: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(np.shape(site["value"])[: np.ndim(site["value"]) - len(site["fn"].event_shape)])


class _Terms:
    """A record's term where its discrete variables are summed over."""

    def __init__(self, run: Callable[..., dict[str, Any]], trace: Mapping[str, Any], found: Roles) -> None:
        self._run, self._found = run, found
        self.states = states(trace, found.summed) if found.summed else {}
        number = len(next(iter(self.states.values()), ()))
        weighed = any(trace[name]["scale"] is not None for name in [*found.terms, *found.summed])
        plain = number <= MOST_COMPONENTS and len(found.terms) == 1 and not weighed
        self.observations = self._observations if plain else None
        self._number = number

    def log_sum(self, theta: Array, record: Record) -> Array:
        """The log of the sum of a record's density over all states."""
        states = {name: jnp.asarray(values) for name, values in self.states.items()}
        return jax.nn.logsumexp(jax.vmap(lambda state: self.joint(theta, record, state))(states))

    def joint(self, theta: Array, record: Record, state: Mapping[str, Array]) -> Array:
        """Log-density of a record and one state of its discrete variables."""
        traced = self._at(theta, record, state)
        names = [*self._found.terms, *self._found.summed]
        return sum((jnp.sum(_density(*_observation(name, traced[name]))) for name in names), jnp.zeros(()))

    def _at(self, theta: Array, record: Record, state: Mapping[str, Array]) -> dict[str, Any]:
        return self._run(theta, record, {name: jnp.asarray(value)[None] for name, value in state.items()})

    def _observations(self, theta: Array, record: Record) -> list[Observation]:
        """The observed site as a mixture of what it is in every state."""
        name, log_weights, components, value = next(iter(self._found.terms)), [], [], None
        for i in range(self._number):
            traced = self._at(theta, record, {k: values[i] for k, values in self.states.items()})
            log_weights.append(sum(jnp.sum(_density(*_observation(z, traced[z]))) for z in self._found.summed))
            components.append(traced[name]["fn"])
            value = traced[name]["value"]
        return [Observation(name, mixture(jnp.stack(log_weights)[None], components), value, 1.0)]


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
    """Text that identifies a model, of what is wrapped around a function too: fixed arguments, handlers."""
    if isinstance(model, partial):
        return f"partial({_source(model.func)}, {_plain(model.args)}, {_plain(sorted(model.keywords.items()))})"
    if isinstance(model, primitives.Messenger):
        return f"{type(model).__name__}({_source(model.fn)})"  # what it holds, numbers tell (`study.target.computed`)
    try:
        return inspect.getsource(model)
    except (OSError, TypeError):
        return repr(getattr(model, "__qualname__", type(model)))


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"({', '.join(_plain(part) for part in value)})"
    if isinstance(value, np.ndarray | jax.Array):
        array = np.asarray(value)
        return f"{array.dtype}{array.shape}{hashlib.sha256(array.tobytes()).hexdigest()}"
    return repr(value)


# -- checks on the built functions ------------------------------------------------------------------------------------


def _check_prior_ignores_records(built: Model, model: Callable[..., Any], probe: Record, names: list[str]) -> None:
    def terms(key: Array, records: Record) -> dict[str, Array]:
        theta = built.sample_prior(key)
        substituted = handlers.substitute(handlers.seed(model, jax.random.key(0)), data=built.constrain(theta))
        traced = _traced(substituted, records)
        return {name: jnp.sum(_density(*_observation(name, traced[name]))) for name in names}

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
    for name, looks in looks_at_inputs(partial(terms, key), dict(probe)).items():
        if looks:
            raise InvalidModel(
                f"the prior of site {name!r} depends on the records; a prior must be fixed before the data are seen.",
                site=name,
            )


def _check_records_are_separate(
    built: Model,
    model: Callable[..., Any],
    trace: Mapping[str, Any],
    found: Roles,
    domain: Mapping[str, Domain],
    kinds: Mapping[str, str],
) -> None:
    """Compare what each record gives alone with what it gives in company, in every state of its discrete variables."""
    columns = states(trace, found.summed) if found.summed else {}
    listed: list[dict[str, Any]] = [{k: v[i] for k, v in columns.items()} for i in range(_length(columns))] or [{}]
    axes = found.terms | {name: _frame_axis(trace[name]) for name in found.summed}

    def in_states(theta: Array, records: Record) -> dict[str, Array]:
        number = len(next(iter(records.values())))
        out: dict[str, Array] = {}
        for i, state in enumerate(listed):
            held = {k: jnp.full(_filled(trace[k], number), value) for k, value in state.items()}
            data = built.constrain(theta) | held
            traced = _traced(handlers.substitute(handlers.seed(model, jax.random.key(0)), data=data), records)
            for name, axis in axes.items():
                density = _density(*_observation(name, traced[name]))
                out[name if i == 0 else f"{name} in state {i}"] = _for_each(density, axis)
        return out

    def alone(theta: Array, record: Record) -> dict[str, Array]:
        return {name: jnp.sum(value) for name, value in in_states(theta, _single(record)).items()}

    advice = "use .to_event(...) for vector-valued observations"
    with validation_enabled():  # a density is zero outside its support, also for those who compute without looking
        check_separate(in_states, alone, built.sample_prior, domain, advice, kinds)


def _length(columns: Mapping[str, np.ndarray]) -> int:
    return len(next(iter(columns.values()), ()))


def _frame_axis(site: Mapping[str, Any]) -> int:
    """Axis of a variable of each record that runs over records."""
    return next(i for i, size in enumerate(_batch(site)) if size == _PROBE) - len(_batch(site))


def _filled(site: Mapping[str, Any], number: int) -> tuple[int, ...]:
    shape = list(_batch(site))
    shape[_frame_axis(site)] = number
    return tuple(shape)


def _for_each(density: Array, axis: int | None) -> Array:
    """One number for each record, of a log-density with one axis over records; the sum of all where there is none."""
    if axis is None or density.ndim < -axis:
        return jnp.sum(density) if axis is None else density
    moved = jnp.moveaxis(density, axis, 0)
    return jnp.sum(moved.reshape(moved.shape[0], -1), axis=1)
