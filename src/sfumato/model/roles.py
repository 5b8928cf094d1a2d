"""What each site of a NumPyro model is to the records: read off two traces, of different numbers of records.

Users write models with plates over the records, over groups and over features, or with no plate at all. What matters is not how a
site is written but what it is: a *latent* variable that all records share; a *term* of the records, which is a sum of one
number for each; a discrete variable of each record, which is *summed over*; or a part of the *prior*, which no record touches.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from sfumato.errors import InvalidModel

Array: TypeAlias = Any
Trace: TypeAlias = Mapping[str, Any]


class Roles(NamedTuple):
    """The sites of a model, by what they are.

    Attributes
    ----------
    latents
        Latent variables that all records share.
    terms
        Observed sites and factors of the records, each with the axis of its log-density that runs over records; None where the
        site gives the sum over all of them.
    summed
        Discrete latent variables of each record.
    """

    latents: list[str]
    terms: dict[str, int | None]
    summed: list[str]

    def of_the_prior(self, trace: Trace) -> list[str]:
        """Sites that no record touches: latent variables, conditioned ones, factors."""
        others = {*self.terms, *self.summed}
        return [name for name, site in trace.items() if site["type"] == "sample" and name not in others]


def roles(
    first: Trace, second: Trace, sizes: tuple[int, int], looks: Callable[[list[str]], Mapping[str, bool]]
) -> Roles:
    """Tell what every site is, or refuse the model by the name of the site that does not fit.

    Parameters
    ----------
    first, second
        Traces on two tables.
    sizes
        Numbers of their records.
    looks
        Which of some sites have a log-density that looks at the records.
    """
    over = _plates_over_records(first, second, sizes)
    latents, summed, observed = [], [], []
    for name, site in first.items():
        if site["type"] == "param":
            raise InvalidModel(
                f"site {name!r} is a numpyro.param, which has no prior; make it a numpyro.sample. (LocScaleReparam makes one "
                f"unless "
                "it is told centered=0.)",
                site=name,
            )
        if site["type"] != "sample":
            continue
        within = any(frame.name in over for frame in site["cond_indep_stack"])
        if site["is_observed"]:
            observed.append(name)
        elif not within:
            latents.append(_shared(name, site))
        else:
            summed.append(_each(name, site))
    seen = looks(observed)
    terms = {
        name: _axis(name, first, second, sizes, over)
        for name in observed
        if seen[name] or _grows(first[name], second[name]) or _frame(first[name], over) is not None
    }
    if not terms:
        _refuse_without_terms(first, over)
    if not latents:
        raise InvalidModel("a model must have at least one global latent variable; there is nothing to infer.")
    return Roles(latents, terms, summed)


def _plates_over_records(first: Trace, second: Trace, sizes: tuple[int, int]) -> set[str]:
    """Names of the plates that have as many members as there are records; any other has a fixed size."""
    over = set()
    for name, site in first.items():
        if site["type"] != "plate":
            continue
        size, subsample = site["args"]
        again = second[name]["args"][0] if name in second else size
        if subsample not in (None, size):
            raise InvalidModel(
                f"plate {name!r} must run over all of its members: it has size {size}, subsample {subsample}. Leave "
                f"subsample_size "
                "out: every step looks at all records in any case.",
                site=name,
            )
        if (size, again) == sizes:
            over.add(name)
        elif size != again:
            raise InvalidModel(
                f"plate {name!r} must run over all records given to the model, or have a fixed size: it has size {size} for "
                f"{sizes[0]} records and {again} for {sizes[1]}. Write numpyro.plate({name!r}, y.shape[0]).",
                site=name,
            )
    return over


def _shared(name: str, site: Mapping[str, Any]) -> str:
    if site["fn"].support.is_discrete:
        raise InvalidModel(
            f"site {name!r} is a discrete latent variable that all records share, and a chain moves real numbers. Fit the "
            f"model once "
            "for each of its values, or replace it by a probability (a Dirichlet or Beta weight of each case).",
            site=name,
        )
    return name


def _each(name: str, site: Mapping[str, Any]) -> str:
    """A latent variable of each record: it can be summed over if it is one discrete number."""
    if site["fn"].support.is_discrete:
        one = np.size(site["value"]) == max(np.shape(site["value"]), default=0)
        if site["fn"].has_enumerate_support and not site["fn"].event_shape and one:
            return name
        raise InvalidModel(
            f"site {name!r} is a discrete latent variable of each record, and is summed over only if it is one number with a "
            f"short list of "
            "values; use a distribution that has it summed out, such as dist.NegativeBinomial2 or dist.ZeroInflatedPoisson.",
            site=name,
        )
    raise InvalidModel(
        f"site {name!r} is a latent variable inside the plate: one for each record. Only global latent variables can be "
        f"inferred; "
        "integrate it out (dist.StudentT or dist.NegativeBinomial2 for a random scale or rate, dist.MixtureSameFamily for a "
        "class, "
        "the sum of variances for a normal effect) or move it out of the plate.",
        site=name,
    )


def _frame(site: Mapping[str, Any], over: set[str]) -> Any:
    return next((frame for frame in site["cond_indep_stack"] if frame.name in over), None)


def _shape(site: Mapping[str, Any]) -> tuple[int, ...]:
    """Shape of a site's log-density, as NumPyro adds it up."""
    batch = len(np.shape(site["value"])) - len(site["fn"].event_shape)
    of_value = np.shape(site["value"])[: max(batch, 0)]
    return np.broadcast_shapes(site["fn"].batch_shape, of_value)


def _grows(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    return _shape(first) != _shape(second)


def _axis(name: str, first: Trace, second: Trace, sizes: tuple[int, int], over: set[str]) -> int | None:
    """The axis, counted from the end, along which a site has one number for each record."""
    if (frame := _frame(first[name], over)) is not None:
        return int(frame.dim)
    one, other = _shape(first[name]), _shape(second[name])
    changed = [i - len(one) for i in range(len(one)) if len(one) != len(other) or one[i] != other[i]]
    if not changed:
        return None
    if len(changed) > 1 or (one[changed[0]], other[changed[0]]) != sizes:
        raise InvalidModel(
            f"observed site {name!r} must give one log-density per record, got shape {one} for {sizes[0]} records and {other} "
            f"for "
            f"{sizes[1]}; use .to_event(...) for vector-valued observations.",
            site=name,
        )
    return changed[0]


def _refuse_without_terms(trace: Trace, over: set[str]) -> None:
    fixed = [
        frame
        for site in trace.values()
        if site["type"] == "sample" and site["is_observed"]
        for frame in site["cond_indep_stack"]
        if frame.name not in over
    ]
    if fixed:
        raise InvalidModel(
            f"a model must have an observed site that looks at the records, and plate {fixed[0].name!r} has {fixed[0].size} "
            f"members "
            f"whatever the records are. Write numpyro.plate({fixed[0].name!r}, y.shape[0]), and obs=y there.",
            site=fixed[0].name,
        )
    raise InvalidModel(
        "a model must have an observed site that looks at the records; pass obs= to one of its sample sites, or add a "
        "numpyro.factor "
        "of the records."
    )


def looks_at_inputs(function: Callable[..., dict[str, Array]], *inputs: Any) -> dict[str, bool]:
    """Which outputs depend on any input, conservatively: one tainted operand taints the result."""
    program, outputs = jax.make_jaxpr(function, return_shape=True)(*inputs)
    tainted = set(program.jaxpr.invars)
    for equation in program.jaxpr.eqns:
        if any(not hasattr(v, "val") and v in tainted for v in equation.invars):
            tainted.update(equation.outvars)
    found = [not hasattr(v, "val") and v in tainted for v in program.jaxpr.outvars]
    named: dict[str, bool] = jax.tree.unflatten(jax.tree.structure(outputs), found)
    return named
