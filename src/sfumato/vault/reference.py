r"""The private side of Langevin for any model: a noisy gradient at the reference point, and a second-order scalar.

Both queries use the same vector of a record, :math:`s(y)`: its gradient :math:`\nabla\ell(y,\theta^*)`, cut to a body of known
diameter (`sensitivity.body`). The log ratio is exact for any vector, as long as it is the same in both.

First query: :math:`\sum_i A^\top s(y_i)`. The reference point is fixed for the whole chain, so it is summed once, on the lattice,
and a step adds fresh noise to the same integers. Its sensitivity is the diameter of the whitened body
(`sensitivity.gradients`), plus :math:`\gamma\sqrt d` for rounding. It rests on the cut alone: whatever the model's program
computes for a record, and whatever was proven about it, the vector that is summed lies in the body.

Second query: :math:`\sum_i \ell(y_i,\theta') - \ell(y_i,\theta) - s(y_i)^\top v`, one pass over the records a step. The terms at
the current parameter and the vectors at the reference point are kept, so the pass is one evaluation of the likelihood and a
product of a matrix and a vector. Every record's term is clamped, as an integer, to the range proven for this very pair
(`sensitivity.remainder`), and the width charged is exactly the clamped one. The range is proven for the slopes of the cells that
the body is made of: where the proof is right no record is cut, and the range needs nothing added for what a cut removes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sfumato.bounds.body import Body
from sfumato.bounds.gradients import GradientSet
from sfumato.bounds.reference import Reference
from sfumato.bounds.remainder import Anchor
from sfumato.domain import Domain
from sfumato.errors import InvalidInput
from sfumato.kernel import Heard, Move, ReferenceLangevin, State
from sfumato.kernel.loop import Priced
from sfumato.model import Model
from sfumato.privacy.budget import cost_quanta
from sfumato.tools.quick_jit import quick_jit
from sfumato.vault import lattice
from sfumato.vault.blocks import Fresh, Rows, add_up, sum_over_blocks
from sfumato.vault.closed import closed
from sfumato.vault.scan import BLOCK, CACHE_TERMS, cast_column

Array: TypeAlias = Any

EVALUATION = 2.0**-40
"""Relative error allowed for in multiplying out one record's vector in float64: thousands of roundings."""
CACHE_GRADIENTS = 1 << 24
"""Up to this many numbers, the vectors at the reference point are kept; beyond it they are computed again."""


class Point(NamedTuple):
    """What holds at a reference point, one row per chain (chains may have different ones): all public."""

    matrix: Array
    anchor: Anchor
    body: Body
    low: Array
    high: Array
    first: Array


class Sums(Protocol):
    """What the sums over records need to know: all public."""

    @property
    def model(self) -> Model:
        """What is inferred."""
        ...

    @property
    def domain(self) -> Mapping[str, Domain]:
        """Where records live."""
        ...

    @property
    def precision(self) -> str:
        """How records are evaluated."""
        ...

    @property
    def reference(self) -> Reference:
        """What holds near a reference point, and the vectors it holds for."""
        ...

    @property
    def gamma(self) -> float:
        """Lattice of the first query."""
        ...

    @property
    def gamma_scalar(self) -> float:
        """Lattice of the second query."""
        ...


@dataclass(frozen=True)
class ReferenceQuestion:
    """What is asked, step after step: all public."""

    model: Model
    domain: Mapping[str, Domain]
    reference: Reference
    step: float
    sigma: float
    n: int
    rows: int
    chains: int
    precision: str

    @property
    def proposal_sigma(self) -> float:
        """Noise of each coordinate of the first query."""
        return float(np.sqrt(4.0 / self.step - 1.0))

    @property
    def gamma(self) -> float:
        """Lattice of the first query."""
        return lattice.choose_gamma(self.proposal_sigma, self.n)

    @property
    def gamma_scalar(self) -> float:
        """Lattice of the second query."""
        return lattice.choose_gamma(self.sigma, self.n)

    @property
    def cached(self) -> bool:
        """Whether the terms at the current theta, and the gradients, are kept between steps."""
        dim = self.model.dim
        return self.rows * self.chains <= CACHE_TERMS and self.rows * dim <= CACHE_GRADIENTS


def first_cost(gradients: GradientSet, sigma: float, gamma: float) -> int:
    """Quanta of one chain's first query: the same at every step."""
    reach = float(np.linalg.norm(np.maximum(np.abs(gradients.low), np.abs(gradients.high))))
    moved = gradients.diameter + gamma * len(gradients.low) ** 0.5 + 2 * EVALUATION * reach
    return cost_quanta((moved / sigma) ** 2)


def integer_range(gradients: GradientSet, gamma: float, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Integer range of each coordinate of the whitened body, in units of gamma."""
    low, high = np.floor(gradients.low / gamma), np.ceil(gradients.high / gamma)
    if not n * float(np.max(np.abs([low, high]))) <= lattice.SUM_LIMIT:  # also what is not a number
        raise InvalidInput(
            "sums of gradients must fit 64 bits, and over this domain they do not beside the noise; rescale the columns, or use "
            "kernel='guided'."
        )
    return low.astype(np.int64), high.astype(np.int64)


def point_at(question: ReferenceQuestion, kernels: list[ReferenceLangevin]) -> Point:
    """The reference points of all chains, with what holds there. One kernel stands for all chains."""
    unique = [_one_point(question, kernel) for kernel in kernels]
    if len(unique) == 1:
        alike = quick_jit(partial(jax.tree.map, lambda a: jnp.broadcast_to(a, (question.chains, *jnp.shape(a)))))
        one: Point = alike(unique[0])
        return one
    return jax.tree.map(lambda *a: jnp.stack(a), *unique)


def _one_point(question: ReferenceQuestion, kernel: ReferenceLangevin) -> Point:
    proven = question.reference.at(kernel.centre, kernel.matrix)
    low, high = integer_range(proven.gradients, question.gamma, question.n)
    cost = first_cost(proven.gradients, question.proposal_sigma, question.gamma)
    lattice.first_of_all(cost, question.chains)
    ends = map(jax.device_put, (low, high, cost))
    return Point(jnp.asarray(kernel.matrix, jnp.float64), proven.anchor, proven.body, *ends)


# -- sums over records --------------------------------------------------------------------------------------------------


def cast(question: Sums, rows: Rows, precision: str) -> dict[str, Array]:
    """Typed columns."""
    return {k: cast_column(question.domain[k], column, precision) for k, column in rows.columns.items()}


def exact_total(question: Sums, rows: Rows, body: Body, matrix: Array, low: Array, high: Array) -> Array:
    """Sum over records of A' s, each vector cut to the body, in units of gamma. Private.

    The coordinates are clamped to the body's own range once more, as integers: no sum leaves 64 bits, whatever arithmetic did.
    """

    def one(record: Mapping[str, Array]) -> Array:
        value = matrix.T @ question.reference.vector(body, record)
        scaled = jnp.clip(value / question.gamma, -lattice.TERM_LIMIT, lattice.TERM_LIMIT)
        return jnp.clip(jnp.round(scaled).astype(jnp.int64), low, high)

    def block_sum(block: Rows) -> Array:
        return add_up(jax.vmap(one)(cast(question, block, "float64")), block, axis=0)

    return sum_over_blocks(rows, BLOCK, block_sum, jnp.zeros(question.model.dim, jnp.int64))


def all_vectors(question: Sums, rows: Rows, body: Body) -> Array:
    """Vector of every row at a reference point, shape (row, d). Private."""

    def one(record: Mapping[str, Array]) -> Array:
        return question.reference.vector(body, record).astype(question.precision)

    return lax.map(one, cast(question, rows, "float64"), batch_size=BLOCK)


def terms(question: Sums, rows: Rows, theta: Array) -> Array:
    """Log-likelihood of every row under one theta. Each record is scored alone."""
    one = jax.vmap(question.model.log_likelihood, in_axes=(None, 0))
    return one(theta.astype(question.precision), cast(question, rows, question.precision))


def scalar_sum(
    question: Sums,
    rows: Rows,
    here: tuple[Array, Array],
    theta_prop: Array,
    slope: Array,
    clamp: lattice.Clamp,
    vectors: Array | Body,
) -> tuple[Array, Array]:
    """Integer sum of one chain's second-order scalars, and the terms at the proposal. Private.

    Parameters
    ----------
    here
        The current theta, and the terms there (kept; unused without kept vectors).
    slope
        v.
    vectors
        Kept vectors at the reference point; or the body there, and everything is evaluated block by block.
    """
    theta, kept = here
    if not isinstance(vectors, Body):
        proposed = terms(question, rows, theta_prop)
        change = (proposed - kept).astype(jnp.float64) - (vectors @ slope.astype(vectors.dtype)).astype(jnp.float64)
        return add_up(lattice.to_lattice(change, clamp, question.gamma_scalar), rows, axis=0), proposed

    def block_sum(block: Rows) -> Array:
        new, old = terms(question, block, theta_prop), terms(question, block, theta)

        # The very vectors of the first query: the log ratio is exact for what was proposed with.
        def one(record: Mapping[str, Array]) -> Array:
            return question.reference.vector(vectors, record) @ slope

        along = jax.vmap(one)
        change = (new - old).astype(jnp.float64) - along(cast(question, block, "float64"))
        return add_up(lattice.to_lattice(change, clamp, question.gamma_scalar), block, axis=0)

    return sum_over_blocks(rows, BLOCK, block_sum, jnp.zeros((), jnp.int64)), kept


# -- one step, as public and private parts ------------------------------------------------------------------------------


@closed("records and exact sums")
class Held(NamedTuple):
    """What the loop asks: rows, the reference points of all chains, the exact sums there, and vectors that are kept."""

    rows: Rows
    point: Point
    totals: Array
    vectors: Array


@dataclass(frozen=True)
class Remainders:
    """Gradients and second-order scalars for the compiled loop. `kept` are every record's terms, chain by chain. Private."""

    question: ReferenceQuestion

    def first(self, held: Held, fresh: Fresh) -> tuple[Array, Array]:
        """The noisy gradient at each chain's reference point."""
        drawn = (held.totals + fresh.vectors).astype(jnp.float64) * self.question.gamma
        return drawn, held.point.first.sum()

    def price(self, held: Held, states: State, kept: Array, move: Move) -> Priced:
        """Integer ranges of the scalars, chain by chain, and their cost.

        The range of the swapped pair is this one with its ends negated and exchanged: what is not admissible here is not there.
        """
        question = self.question
        pairs = held.point.anchor, states.theta, move.theta_prop, move.theta_prop - states.theta - move.along
        lo, hi = lax.map(lambda row: question.reference.range(*row), pairs)
        clamp = lattice.clamp_for(lo, hi, question.gamma_scalar, question.n)
        return lattice.priced(clamp, move.possible, question.gamma_scalar, question.sigma)

    def answer(
        self, held: Held, states: State, kept: Array, move: Move, priced: Priced, fresh: Fresh
    ) -> tuple[Heard, Array]:
        """Sums over all records, with noise."""
        question, vectors = self.question, held.vectors
        one = partial(scalar_sum, question, held.rows)
        source, shared = (vectors, vectors.ndim == 2) if question.cached else (held.point.body, False)
        axes = (0, 0, 0, 0, None if shared else 0)
        asked = (states.theta, kept), move.theta_prop, move.along, priced.clamp
        sums, proposed = jax.vmap(one, in_axes=axes)(*asked, source)
        return lattice.heard(sums + fresh.scalars, priced.answered, question.gamma_scalar, question.sigma), proposed
