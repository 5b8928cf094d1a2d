"""A model's program, ready to be walked: for pairs of parameters, near one of them, or for one record."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.bounds.atoms import Atoms
from sfumato.bounds.canonical import log_density
from sfumato.bounds.interpreter import run
from sfumato.bounds.interval import Array, Interval
from sfumato.bounds.values import Const, Scope, Value
from sfumato.domain import Domain
from sfumato.model.base import Model, Record, input_spec


class Program:
    """The log-likelihood of one record of a domain, as JAX operations."""

    def __init__(self, model: Model, domain: Mapping[str, Domain]) -> None:
        self.dim = model.dim
        self.domain = {name: domain[name] for name in sorted(model.columns)}  # the order in which JAX flattens a dict
        theta, record = input_spec(model.dim, self.domain)
        self._closed = jax.make_jaxpr(canonical_log_likelihood(model))(theta, record)

    def walk(
        self, thetas: tuple[Array, ...], cells: Mapping[int, Interval] | None = None, **asked: Any
    ) -> tuple[Scope, Value]:
        """Take a walk through the program.

        Parameters
        ----------
        thetas
            The parameters in question.
        cells
            Ranges of single atoms that are narrower than the domain.
        asked
            What is asked: fields of `Scope`, and `axes` of its atoms.
        """
        axes, cells = asked.pop("axes", []), cells or {}
        atoms = Atoms(axes=axes, may_be_empty=len(axes) + len(cells) > 1)
        scope = Scope(atoms, cut=set(cells), **asked)
        inputs: list[Value] = [Const(thetas, fixed=False)]
        for domain in self.domain.values():
            where = atoms.add_column(domain, _restricted(domain, atoms.size, cells))
            inputs.append(scope.pick(where.reshape(domain.shape), positive=bool(np.all(domain.lo > 0))))
        (out,) = run(scope, self._closed, inputs)
        return scope, out

    @property
    def entries(self) -> list[tuple[Domain, int]]:
        """Of every atom that is an entry of a column: the domain, and which entry of it."""
        return [(domain, i) for domain in self.domain.values() for i in range(domain.size)]

    def values(self, atom: int, most: int) -> np.ndarray | None:
        """All values of such an atom, if they are at most so many; None: cut it into intervals."""
        domain, entry = self.entries[atom]
        return domain.cells(entry, most)

    def numbers(self, record: Mapping[str, Array]) -> Array:
        """One record's own atoms."""
        return jnp.concatenate([jnp.ravel(record[name]).astype(jnp.float64) for name in self.domain])


def _restricted(domain: Domain, start: int, cells: Mapping[int, Interval]) -> Interval:
    ends: list[Array] = [domain.lo.reshape(-1), domain.hi.reshape(-1)]
    for atom, cell in cells.items():
        if start <= atom < start + domain.size:
            ends = [jnp.asarray(end).at[atom - start].set(own) for end, own in zip(ends, cell, strict=True)]
    return Interval(*ends)


def canonical_log_likelihood(model: Model) -> Callable[[Array, Record], Array]:
    """Log-likelihood of one record up to terms without the parameter, in canonical form where the factors are known."""
    if model.observations is None:
        return model.log_likelihood
    observations = model.observations

    def total(theta: Array, record: Record) -> Array:
        parts = (jnp.sum(log_density(f.distribution, f.value) * f.scale) for f in observations(theta, record))
        return sum(parts, start=jnp.zeros(()))

    return total
