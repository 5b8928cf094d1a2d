r"""The vector of one record: its gradient, computed through the very program whose slopes are bounded, and cut to the body.

Langevin's two queries use the same vector s(r), and any would do, as long as the second query's range was computed for it. The
range is proven for the slopes :math:`\varphi_j` that the walk through the program (`predictors`) finds. Automatic differentiation
of NumPyro's own formula may give something else: it is written in pieces, and where two pieces meet (a logit of exactly zero)
it takes the slope of one of them. So the vault walks the same program with the predictors of one record in place of intervals
around them,

.. math:: s(r) = \sum_j \varphi_j\bigl(L(\theta^*, r), r\bigr)\,a_j(r).

Functions of the record alone (sin, a rest, a whole number) are evaluated as the program evaluates them, never by the middle of
an interval. What comes out lies in what was proven, and is cut to it (`body`): the charge rests on the cut, not on the proof.
That it is the gradient of the model is tried on made-up records before a model is taken (`reference.Reference.check`).
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from sfumato.bounds.body import Body
from sfumato.bounds.interval import Array, Interval
from sfumato.bounds.predictors import Linear, Number, Predictors, Program, Walk, atom_key


class PointWalk(Walk):
    """A walk for one record and one parameter: every interval is a point.

    Parameters
    ----------
    found
        Atoms and predictors of the program.
    theta, atoms
        The parameter; the record's own numbers. Atoms that are functions of the record are filled in on the way.
    """

    def __init__(self, found: Predictors, theta: Array, atoms: Array) -> None:
        super().__init__(found, self._enter)
        self._one = jnp.concatenate([jnp.ones(1), theta])
        self.atoms = atoms

    def _enter(self, table: np.ndarray) -> Interval:
        row = self._one @ jnp.asarray(self.found.pad(table))
        value = row[0] + row[1:] @ self.atoms
        return Interval(value, value)

    def known(self, value: Number) -> Interval:
        """What a number that does not look at the parameter is, for this record."""
        if isinstance(value, np.ndarray):
            return super().known(value)
        table = jnp.asarray(self.linear(value).table[..., 0, :])
        here = table[..., 0] + table[..., 1:] @ self.atoms
        return Interval(here, here)

    def record_function(
        self, name: tuple[Any, ...], image: Callable[..., Interval], exact: Callable[..., Array], *values: Number
    ) -> Number:
        """A function of the record alone: its atoms exist, and get the values that the program computes."""
        value = exact(*(jnp.asarray(self.known(v).lo) for v in values))
        key, shape = atom_key(self, name, values)
        out: Linear = self.found.atom(key, Interval(np.zeros(shape), np.zeros(shape)), shape)
        start, flat = self.found.derived[key], jnp.broadcast_to(value, shape).ravel()
        self.atoms = self.atoms.at[start : start + flat.size].set(flat)
        return out


def record_vector(program: Program, body: Body, record: Mapping[str, Array]) -> Array:
    """One record's vector at the body's reference point, cut to the body; pure JAX, in 64-bit mode."""
    found = program.predictors
    atoms = jnp.zeros(found.region.size)
    for name, where in program.columns.items():
        atoms = atoms.at[where].set(jnp.ravel(record[name]).astype(jnp.float64))
    walk = PointWalk(found, body.theta, atoms)
    low, high = program.walk(walk).first
    return body.vector(found, jnp.broadcast_to((low + high) / 2, (found.number,)), walk.atoms)
