"""Models are tried on made-up records before they are taken: what they compute must be what the vault will ask of them."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.domain import Domain
from sfumato.errors import InvalidModel
from sfumato.model.base import Array, Model, Record
from sfumato.model.program import digest, equations
from sfumato.model.support import check_positive, trial_records
from sfumato.tools.quick_jit import QUICK_OPTIONS

COMPANY = 8
"""Records scored together when it is tested whether they are scored separately."""
COMPANIES = 3


def synthetic_batch(domain: Mapping[str, Domain], size: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw records from the domain, uniformly, typed as the vault would type real ones."""
    return {name: as_model_input(d, d.sample(rng, size)) for name, d in domain.items()}


def as_model_input(domain: Domain, values: Array) -> Array:
    """Type a column as models expect it: whole numbers as such (NumPyro indexes with them), the rest as floats."""
    return values.astype(domain.dtype) if domain.discrete else values


def mixed_company(domain: Mapping[str, Domain], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Half of the records anywhere in the domain, half at its ends, so that no column is constant by chance."""
    ends, half = np.arange(COMPANY) % 2 == 0, {}
    for name, d in domain.items():
        anywhere, extreme = d.sample(rng, COMPANY), d.extremes(rng, COMPANY)
        mixed = np.where(ends.reshape(-1, *[1] * len(d.shape)), extreme, anywhere)
        corners = d.corners()[: COMPANY // 2]
        mixed[::2][: len(corners)] = corners
        half[name] = as_model_input(d, mixed)
    return half


_in_order: set[str] = set()


def try_once(
    function: Callable[..., Any], trial: Callable[[Callable[..., Any]], None], *given: Any, also: Any = ()
) -> None:
    """Put a program through a trial, unless the same program passed it before in this process: on the same made-up records.

    A plan and the run after it are given the same model, and compiling what a trial runs is most of what it costs.
    """
    traced = jax.jit(function, compiler_options=QUICK_OPTIONS).trace(*given)
    known = digest(traced.jaxpr, given=(given[1:], also))
    if known not in _in_order:
        trial(traced.lower().compile())
        _in_order.add(known)


def check_separate(
    together: Callable[[Array, Record], dict[str, Array]],
    alone: Callable[[Array, Record], dict[str, Array]],
    sample_prior: Callable[[Array], Array],
    domain: Mapping[str, Domain],
    advice: str,
    kinds: Mapping[str, str],
) -> None:
    """Compare each record scored alone with the same record scored in company, in several companies.

    Records at the corners of the domain, scored alone, must have a density (`support.check_positive`).

    Parameters
    ----------
    together
        (theta, records) -> log-densities of all records at each observed site, as the model computes them for a whole table.
    alone
        (theta, record) -> log-density of one record at each observed site, as the vault will have it computed.
    sample_prior
        (jax key) -> the theta at which they are compared.
    domain
        Where the records are drawn from.
    advice
        What to do about a site that does not give one number for each record.
    kinds
        The distribution at each observed site.
    """

    def both(key: Array, factor: Array, records: Record) -> Any:
        theta = sample_prior(key) * factor
        return together(theta, records), jax.vmap(alone, (None, 0))(theta, records)

    companies = [mixed_company(domain, np.random.default_rng(number)) for number in range(COMPANIES)]

    def same_in_company(program: Callable[..., Any]) -> None:
        for number, records in enumerate(companies):
            joint, separate = program(jax.random.key(number), np.float64(1.0), records)
            _compare(joint, separate, advice)
        check_positive(lambda *given: program(*given)[1], domain, COMPANY, kinds)

    try_once(
        both, same_in_company, jax.random.key(0), np.float64(1.0), companies[0], also=(companies, trial_records(domain))
    )


def check_densities(model: Model, domain: Mapping[str, Domain]) -> None:
    """Refuse records of density zero for a model that came as such: it is known by its log-likelihood alone."""
    domain = {name: domain[name] for name in model.columns if name in domain}

    def alone(key: Array, factor: Array, records: Record) -> Any:
        return {"log_likelihood": jax.vmap(model.log_likelihood, (None, 0))(model.sample_prior(key) * factor, records)}

    records = trial_records(domain)
    first = {name: values[:COMPANY] for name, values in records.items()}
    with jax.enable_x64(True):
        try_once(
            alone,
            lambda program: check_positive(program, domain, COMPANY, {}),
            jax.random.key(0),
            np.float64(1.0),
            first,
            also=records,
        )


def _compare(joint: Mapping[str, Array], separate: Mapping[str, Array], advice: str) -> None:
    for name, value in joint.items():
        if value.shape == ():  # a site that is the sum over all records
            if not np.isclose(value, np.sum(separate[name]), rtol=1e-6, atol=1e-8, equal_nan=True):
                raise InvalidModel(
                    f"site {name!r} gives one number for all records, and that is not the sum of what it gives for each "
                    f"alone. Put it "
                    "under a plate over the records, with one log-density for each of them.",
                    site=name,
                )
            continue
        if value.shape != (COMPANY,):
            raise InvalidModel(
                f"observed site {name!r} must give one log-density per record, got shape {value.shape} for "
                f"{COMPANY} records; {advice}.",
                site=name,
            )
        if not np.allclose(value, separate[name], rtol=1e-6, atol=1e-8, equal_nan=True):
            raise InvalidModel(
                f"the term of one record at site {name!r} depends on other records (a mean, a rank, a sort?). "
                "Transform the data beforehand with public constants, not with statistics of the data.",
                site=name,
            )


def check_pure(built: Model, record: Record) -> None:
    """Refuse programs that talk to the outside: a print left in a model would publish the records."""

    def everything(theta: Array, record: Record) -> Any:
        return built.log_likelihood(theta, record), built.log_prior(theta), built.sample_prior(jax.random.key(0))

    program = jax.make_jaxpr(everything)(jnp.zeros(built.dim), dict(record))
    names = {equation.primitive.name for equation in equations(program.jaxpr)}
    if outside := sorted(name for name in names if "callback" in name or name == "custom_vmap_call"):
        raise InvalidModel(
            f"a model may only compute, and this one calls out of its program ({', '.join(outside)}): a print or a "
            "callback would see every record. Remove jax.debug.print and the like."
        )
    if program.effects:
        raise InvalidModel("a model may only compute, and this one has side effects; remove them.")
