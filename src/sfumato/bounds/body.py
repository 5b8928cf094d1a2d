r"""The body that every record's vector is cut to, before it is summed: its diameter is what the first query is charged for.

At a reference point :math:`\theta^*` a record's vector is :math:`s(r) = \sum_j\varphi_j\,a_j(r)`. The :math:`\varphi_j` are
slopes of the log-likelihood in its base numbers :math:`L_j`, the affine numbers of the record that enter something curved; the
:math:`a_j = \partial L_j/\partial\theta` are affine in the record's numbers r. The body is the set of all such sums with r in the
declared region and the slopes in a box that belongs to the cell of r:

.. math:: K = \Bigl\{\sum_j\varphi_j\,a_j(r) : r\in R,\ \varphi\in\Phi_{k(r)}\Bigr\}.

The vault does not trust the numbers it computes. It cuts r to R and the slopes to :math:`\Phi_{k(r)}`, whatever they are, and
multiplies only then: so every vector lies in K *by construction*, and two of them are no further apart than its diameter
(`gradients.gradient_set`: geometry of known sets, nothing about the model). The boxes :math:`\Phi_k` come from what is proven
about the model (`remainder`). Where the proof is right they hold every slope that a record can have, so nothing is cut and the
second query's range, proven for the slopes of these cells, holds for the vectors that are used. Where it were wrong, records
would be cut, in both queries alike: the chain would be off, and as private as before.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp

from sfumato.bounds.atoms import Atoms
from sfumato.bounds.interval import Array
from sfumato.bounds.program import Program
from sfumato.bounds.remainder import Anchor


class Body(NamedTuple):
    """What a record's vector is cut to, as arrays: all public, all arguments of compiled programs.

    Attributes
    ----------
    theta
        The reference point.
    directions
        What the region is cut along, columns and base numbers, over the record's numbers.
    start, scale
        Where the cells begin along each of them, and how many go into one unit: they are all as wide.
    counts
        Number of cells along each of them.
    atom_low, atom_high
        Range of every number in every cell: functions of a column that is cut stay tied to it.
    slope_low, slope_high
        The box of slopes of every cell.
    jacobian
        Derivatives of the base numbers in the parameter, over (1, atoms): shape (base, d, 1 + atoms).
    """

    theta: Array
    directions: Array
    start: Array
    scale: Array
    counts: Array
    atom_low: Array
    atom_high: Array
    slope_low: Array
    slope_high: Array
    jacobian: Array

    def cell(self, atoms: Array) -> Array:
        """Number of the cell that a record of the region lies in."""
        along = jnp.floor((self.directions @ atoms - self.start) * self.scale)
        strides = jnp.cumprod(jnp.concatenate([jnp.ones(1, int), self.counts[:0:-1]]))[::-1][: len(self.counts)]
        # Only rounding gets beyond the ends: to the first cell, or the last.
        return jnp.sum(jnp.clip(along, 0, self.counts - 1).astype(int) * strides)

    def cut(self, region: Atoms, slopes: Array, atoms: Array) -> tuple[Array, Array]:
        """Cut slopes and numbers of one record, whatever they are, to what the body is made of."""
        inside = region.nearest(atoms)
        cell = self.cell(inside)
        inside = jnp.clip(inside, self.atom_low[cell], self.atom_high[cell])
        low, high = self.slope_low[cell], self.slope_high[cell]
        return jnp.clip(jnp.where(jnp.isnan(slopes), (low + high) / 2, slopes), low, high), inside

    def vector(self, region: Atoms, slopes: Array, atoms: Array) -> Array:
        """The element of the body that slopes and numbers of one record give, whatever they are."""
        cut, inside = self.cut(region, slopes, atoms)
        return jnp.einsum("m,mdb,b->d", cut, self.jacobian, jnp.concatenate([jnp.ones(1), inside]))


def body_at(anchor: Anchor) -> Body:
    """The body of even cells at a reference point; a slope without a bound is not cut, and `gradient_set` refuses it."""
    start, wide = anchor.low.min(axis=0), anchor.high[0] - anchor.low[0]
    scale = jnp.where(wide > 0, 1.0 / jnp.where(wide > 0, wide, 1.0), 0.0)
    low = jnp.where(jnp.isnan(anchor.slope_low), -jnp.inf, anchor.slope_low)
    high = jnp.where(jnp.isnan(anchor.slope_high), jnp.inf, anchor.slope_high)
    ranges = anchor.counts, anchor.atom_low, anchor.atom_high
    return Body(anchor.theta, anchor.directions, start, scale, *ranges, low, high, anchor.jacobian)


def record_vector(program: Program, atoms: Atoms, body: Body, record: Mapping[str, Array]) -> Array:
    r"""One record's vector at the body's reference point, cut to the body; pure JAX, in 64-bit mode.

    Langevin's two queries use the same vector s(r), and any would do, as long as the second query's range was computed for it.
    The range is proven for the slopes :math:`\varphi_j` that a walk through the program finds. Automatic differentiation of
    NumPyro's own formula may give something else: it is written in pieces, and where two pieces meet (a logit of exactly zero) it
    takes the slope of one of them. So the vault walks the same program, with one record in place of a cell,

    .. math:: s(r) = \sum_j \varphi_j\bigl(L(\theta^*, r), r\bigr)\,\frac{\partial L_j}{\partial\theta}(\theta^*, r).

    Functions of the record alone (sin, a rest, a whole number) are evaluated as the program evaluates them, never by the middle
    of an interval. What comes out lies in what was proven, and is cut to it: the charge rests on the cut, not on the proof. That
    it is the gradient of the model is tried on made-up records before a model is taken (`reference.Reference.check`).
    """
    scope, out = program.walk((body.theta,), point=program.numbers(record))
    low, high = (end[1:] for end in scope.curved(out).slopes)
    slopes = jnp.zeros(len(body.jacobian)).at[: len(low)].set((low + high) / 2)
    return body.vector(atoms, slopes, scope.point)
