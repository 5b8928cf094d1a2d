r"""Non-centred hierarchies, in the coordinates of the centred ones: what a user writes for NUTS need not cost a private chain.

A non-centred model has :math:`z\sim N(0, 1)` and an effect :math:`\alpha = \mu + \sigma z` that records speak of. Records
then speak of mu, sigma and z all at once, the posterior is a curved ridge, and nothing moves for free. So theta is laid out with
:math:`\alpha` in the place of z. The posterior is the same,

.. math:: \log\eta(\mu,\sigma,\alpha) = \log\eta(\mu,\sigma,z) - \sum_i\log\lvert\sigma_i\rvert,

and so is what users see: `constrain` gives z back. But now no record speaks of mu and sigma (`spoken`).

Such an effect is found in the program of one record's log-likelihood: a value made of parameters alone, that moves with one site
entry by entry and in proportion, and through which alone the likelihood reads that site. It is taken if the likelihood then
reads fewer coordinates.

References
----------
Papaspiliopoulos, Roberts & Skold 2007.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from sfumato.domain import Domain
from sfumato.model.base import Array, Model, Observation, Record, input_spec
from sfumato.model.spoken import coordinates_read

_TRIED = 3  # parameters at which an effect is compared with a straight line
_SAME = 1e-9


class _Effect(NamedTuple):
    """An effect: where its site lies in theta, theta -> its values, and (theta, record, values) -> a record's log-likelihood."""

    block: slice
    values: Callable[[Array], Array]
    through: Callable[[Array, Record, Array], Array]


def recentred(model: Model, domain: Mapping[str, Domain]) -> Model:
    """The same model with theta laid out so that records speak of as few coordinates as can be; itself, if that is as it is."""
    domain = {name: domain[name] for name in model.columns}
    for _ in model.sites:
        with jax.enable_x64(True):
            effect = _find(model, domain)
            if effect is None:
                return model
            model = _laid_out(model, effect)
    return model


def _laid_out(model: Model, effect: _Effect) -> Model:
    block, values = effect.block, effect.values

    def line(theta: Array) -> tuple[Array, Array]:
        """The effect at zero, and its slope, in each entry."""
        zero = values(theta.at[block].set(0.0))
        return zero, values(theta.at[block].set(1.0)) - zero

    def back(theta: Array) -> Array:
        theta = jnp.asarray(theta)
        zero, slope = line(theta)
        return theta.at[block].set((theta[block] - zero) / slope)

    def there(theta: Array) -> Array:
        theta = jnp.asarray(theta)
        return theta.at[block].set(values(theta))

    def log_prior(theta: Array) -> Array:
        theta = jnp.asarray(theta)
        return model.log_prior(back(theta)) - jnp.sum(jnp.log(jnp.abs(line(theta)[1])))

    def log_likelihood(theta: Array, record: Record) -> Array:
        theta = jnp.asarray(theta)
        return effect.through(theta, record, theta[block])

    def observations(theta: Array, record: Record) -> list[Observation]:
        return model.observations(back(theta), record)  # type: ignore[misc]

    drawn = model.sample_records
    return replace(
        model,
        log_prior=log_prior,
        log_likelihood=log_likelihood,
        constrain=lambda theta: model.constrain(back(theta)),
        unconstrain=lambda values: there(model.unconstrain(values)),
        sample_prior=lambda key: there(model.sample_prior(key)),
        observations=None if model.observations is None else observations,
        sample_records=None if drawn is None else lambda theta, key, size: drawn(back(theta), key, size),
    )


# -- finding one ------------------------------------------------------------------------------------------------------


def _find(model: Model, domain: Mapping[str, Domain]) -> _Effect | None:
    """The effect through which the likelihood reads the fewest coordinates, if that are fewer than now."""
    closed = jax.make_jaxpr(model.log_likelihood)(*input_spec(model.dim, domain))
    program, theta = closed.jaxpr, closed.jaxpr.invars[0]
    least, best = int(coordinates_read(program, model.dim).sum()), None
    ends = np.cumsum([site.size for site in model.sites])
    blocks = [slice(int(end) - site.size, int(end)) for site, end in zip(model.sites, ends, strict=True)]
    for variable in _of_parameters(program, theta):
        for block in blocks:
            if variable.aval.size != block.stop - block.start or not jnp.issubdtype(variable.aval.dtype, jnp.floating):
                continue
            cut = _cut(closed, variable)
            read = coordinates_read(cut.jaxpr, model.dim)
            number = int(read.sum()) + variable.aval.size
            if read[block].any() or number >= least:
                continue
            effect = _Effect(block, _values(closed, variable, domain), _through(cut, variable, domain))
            if _straight(model, effect):
                least, best = number, effect
    return best


def _of_parameters(program: Any, theta: Any) -> list[Any]:
    """Values that are made of theta alone, records left out, in the order in which they are computed."""
    known = {theta}
    found: list[Any] = []
    for equation in program.eqns:
        given = [v for v in equation.invars if not hasattr(v, "val")]
        if given and all(v in known or v in program.constvars for v in given) and any(v in known for v in given):
            known.update(equation.outvars)
            found += equation.outvars if len(equation.outvars) == 1 else []  # an effect is computed by one operation
    return found


def _cut(closed: Any, variable: Any) -> Any:
    """The program with one of its values as a last input."""
    program = closed.jaxpr
    kept = [equation for equation in program.eqns if variable not in equation.outvars]
    info = program.debug_info.with_unknown_names() if hasattr(program.debug_info, "with_unknown_names") else None
    changed = program.replace(invars=[*program.invars, variable], eqns=kept, **({"debug_info": info} if info else {}))
    return ClosedJaxpr(changed, closed.consts)


def _through(cut: Any, variable: Any, domain: Mapping[str, Domain]) -> Callable[[Array, Record, Array], Array]:
    run, names = jaxpr_as_fun(cut), sorted(domain)

    def through(theta: Array, record: Record, values: Array) -> Array:
        columns = [jnp.asarray(record[name]).astype(domain[name].dtype) for name in names]
        return run(theta.astype(float), *columns, values.astype(float).reshape(variable.aval.shape))[0]

    return through


def _values(closed: Any, variable: Any, domain: Mapping[str, Domain]) -> Callable[[Array], Array]:
    """Function theta -> the value, as a vector; it needs what leads there alone."""
    program, wanted, kept = closed.jaxpr, {variable}, []
    for equation in reversed(program.eqns):
        if any(v in wanted for v in equation.outvars):
            kept.append(equation)
            wanted.update(v for v in equation.invars if not hasattr(v, "val"))
    info = program.debug_info.with_unknown_names() if hasattr(program.debug_info, "with_unknown_names") else None
    changed = program.replace(
        invars=[program.invars[0]], outvars=[variable], eqns=kept[::-1], **({"debug_info": info} if info else {})
    )
    run = jaxpr_as_fun(ClosedJaxpr(changed, closed.consts))
    return lambda theta: jnp.ravel(run(theta.astype(float))[0])


def _straight(model: Model, effect: _Effect) -> bool:
    """Whether the effect is a straight line in its own site, entry by entry, with a slope that is nowhere zero."""
    slopes = jax.jit(jax.jacobian(effect.values))
    for number in range(_TRIED):
        theta = jnp.asarray(model.sample_prior(jax.random.key(number)), float)
        other = theta.at[effect.block].set(model.sample_prior(jax.random.key(number + _TRIED))[effect.block])
        here, away = (np.asarray(slopes(point))[:, effect.block] for point in (theta, other))
        slope = np.diag(here)
        size = np.abs(slope).max(initial=0.0)
        if not (np.isfinite(here).all() and np.all(np.abs(slope) > 0)):
            return False
        if np.abs(here - np.diag(slope)).max() > _SAME * size or np.abs(away - here).max() > _SAME * size:
            return False
    return True
