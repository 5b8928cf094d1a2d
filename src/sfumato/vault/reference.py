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

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sfumato.domain import Domain
from sfumato.errors import InvalidInput
from sfumato.haste import hastily
from sfumato.kernel import Draw, ReferenceLangevin, State, accepts
from sfumato.kernel.reference import Advance
from sfumato.model import Model
from sfumato.privacy.budget import cost_quanta
from sfumato.sensitivity.body import Body
from sfumato.sensitivity.gradients import GradientSet
from sfumato.sensitivity.reference import Reference
from sfumato.sensitivity.remainder import Anchor
from sfumato.vault import lattice
from sfumato.vault.blocks import LEAN, Rows, add_up, sum_over_blocks
from sfumato.vault.scan import BLOCK, CACHE_TERMS, Answered, Transcript, cast_column, steps_within

Array: TypeAlias = Any

EVALUATION = 2.0**-40
"""Relative error allowed for in multiplying out one record's vector in float64: thousands of roundings."""
CACHE_GRADIENTS = 1 << 24
"""Up to this many numbers, the vectors at the reference point are kept; beyond it they are computed again."""


class Point(NamedTuple):
    """A reference point as arrays, one row per chain (chains may have different ones): all public."""

    centre: Array
    matrix: Array
    information: Array
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
    trust: float
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

    def kernel(self, centre: Array, matrix: Array, information: Array) -> ReferenceLangevin:
        """The kernel at a reference point."""
        return ReferenceLangevin(matrix, self.step, self.model.log_prior, centre, information, self.trust)


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
        alike = hastily(partial(jax.tree.map, lambda a: jnp.broadcast_to(a, (question.chains, *jnp.shape(a)))))
        one: Point = alike(unique[0])
        return one
    return jax.tree.map(lambda *a: jnp.stack(a), *unique)


def _one_point(question: ReferenceQuestion, kernel: ReferenceLangevin) -> Point:
    proven = question.reference.at(kernel.centre, kernel.matrix)
    low, high = integer_range(proven.gradients, question.gamma, question.n)
    cost = first_cost(proven.gradients, question.proposal_sigma, question.gamma)
    lattice.first_of_all(cost, question.chains)
    centre, matrix, information = (
        jnp.asarray(p, jnp.float64) for p in (kernel.centre, kernel.matrix, kernel.information)
    )
    ends = map(jax.device_put, (low, high, cost))
    return Point(centre, matrix, information, proven.anchor, proven.body, *ends)


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


class Asked(NamedTuple):
    """A proposed move of every chain and its second query: all public."""

    theta_prop: Array
    log_prior_prop: Array
    log_ratio: Array
    slope: Array
    clamp: lattice.Clamp
    quanta: Array


def ask(question: ReferenceQuestion, point: Point, states: State, t_noisy: Array) -> Asked:
    """From the first answers to the second questions, with what they cost all chains together."""

    def advance(row: tuple[Point, Array, Array]) -> Advance:
        point, theta, t_noisy = row
        return question.kernel(point.centre, point.matrix, point.information).advance(theta, t_noisy)

    # Chain by chain: faster than all at once, where XLA hands small pieces to threads and waits. Moves and ranges apart, each as
    # one round at a time computes them (`access.rounds`, `vault.desk`): so the draws are the same to the last bit.
    move = lax.map(advance, (point, states.theta, t_noisy))
    lag = move.theta_prop - states.theta - move.slope
    pairs = point.anchor, states.theta, move.theta_prop, lag
    lo, hi = lax.map(lambda row: question.reference.range(*row), pairs)
    # The range of the swapped pair is this one with its ends negated and exchanged: what is not admissible here is not there.
    clamp = lattice.clamp_for(lo, hi, question.gamma_scalar, question.n)
    clamp = clamp._replace(admissible=clamp.admissible & move.possible)
    quanta = lattice.cost(clamp, question.gamma_scalar, question.sigma)
    return Asked(move.theta_prop, move.log_prior_prop, move.log_ratio, move.slope, clamp, quanta)


def compile_reference(question: ReferenceQuestion) -> Callable[..., tuple[Answered, Array]]:  # noqa: PLR0915
    """Build the compiled loop.

    Returns
    -------
    A function (rows, point, totals, vectors, states, kept, draws, noise, scalar_noise, limit, allowance) -> (Answered,
    kept). A step whose second query does not fit stops the loop: its first answer has been released and charged, and is
    kept in the state (`pending`), so that the step goes on where it stopped. It is never drawn anew, which would favour
    cheap moves, and never counted as a rejection.
    """
    sigma, chains, gamma, gamma_scalar = question.sigma, question.chains, question.gamma, question.gamma_scalar

    def answer(rows: Rows, point: Point, vectors: Array, states: State, kept: Array, asked: Asked) -> Any:
        one = partial(scalar_sum, question, rows)
        source, shared = (vectors, vectors.ndim == 2) if question.cached else (point.body, False)
        axes = (0, 0, 0, 0, None if shared else 0)
        return jax.vmap(one, in_axes=axes)((states.theta, kept), asked.theta_prop, asked.slope, asked.clamp, source)

    def step(data: Any, states: State, kept: Array, draw: Draw, noise: Array, scalar_noise: Array, left: Array) -> Any:
        rows, point, totals, vectors = data
        waiting = jnp.isfinite(states.pending[0, 0])
        t_noisy = jnp.where(waiting, states.pending, (totals + noise).astype(jnp.float64) * gamma)
        charge = jnp.where(waiting, 0, point.first.sum())
        asked = ask(question, point, states, t_noisy)
        admissible = asked.clamp.admissible
        sums, proposed = answer(rows, point, vectors, states, kept, asked)
        noisy = (sums + scalar_noise).astype(jnp.float64) * gamma_scalar
        d_n_noisy = jnp.where(admissible, noisy, jnp.nan)
        accepted = accepts(draw, d_n_noisy, asked.log_ratio, jnp.zeros(chains), sigma) & admissible
        moved = State(
            jnp.where(accepted[:, None], asked.theta_prop, states.theta),
            jnp.where(accepted, asked.log_prior_prop, states.log_prior),
            states.direction,
            jnp.full_like(states.pending, jnp.nan),
        )
        new_kept = jnp.where(accepted[:, None], proposed, kept)
        widths = jnp.where(admissible, lattice.width(asked.clamp, gamma_scalar), 0.0)
        row = Transcript(moved.theta, asked.theta_prop, d_n_noisy, widths, accepted)
        # Compared apart: a cost beyond 64 bits is the largest integer there is, and adding to it would wrap round.
        fits = charge <= left, (charge <= left) & (asked.quanta <= left - charge)
        return fits, charge, asked.quanta, moved, new_kept, row, t_noisy

    def run(
        rows: Rows, point: Point, totals: Array, vectors: Array, states: State, kept: Array, draws: Draw,
        noise: Array, scalar_noise: Array, limit: Array, allowance: Array,
    ) -> Any:  # fmt: skip
        size, dim, most = noise.shape[0], question.model.dim, steps_within(limit, draws, noise, scalar_noise)
        blank = Transcript(
            theta=jnp.zeros((size, chains, dim)),
            theta_prop=jnp.zeros((size, chains, dim)),
            d_n_noisy=jnp.zeros((size, chains)),
            sensitivity=jnp.zeros((size, chains)),
            accepted=jnp.zeros((size, chains), bool),
        )
        data = rows, point, totals, vectors

        def goes_on(carry: Any) -> Array:
            return carry[-1] & (carry[0] < most)

        def body(carry: Any) -> Any:
            i, states, kept, out, stats, spent, needed, _ = carry
            draw = jax.tree.map(lambda a: a[i], draws)
            (for_first, for_both), charge, second, moved, new_kept, row, t_noisy = step(
                data, states, kept, draw, noise[i], scalar_noise[i], allowance - spent
            )
            held = states._replace(pending=jnp.where(for_first, t_noisy, states.pending))
            states = jax.tree.map(lambda a, b: jnp.where(for_both, a, b), moved, held)
            kept = jnp.where(for_both, new_kept, kept)
            out = jax.tree.map(lambda buffer, value: buffer.at[i].set(jnp.where(for_both, value, buffer[i])), out, row)
            stats = stats.at[i].set(jnp.where(for_first, t_noisy, stats[i]))
            paid = jnp.where(for_both, charge + second, jnp.where(for_first, charge, 0))
            needed = jnp.where(for_first, second, charge)
            return i + for_both, states, kept, out, stats, spent + paid, needed, for_both

        zero = jnp.zeros((), jnp.int64)
        start = (zero, states, kept, blank, jnp.zeros((size, chains, dim)), zero, zero, jnp.asarray(True))
        steps, states, kept, out, stats, spent, needed, _ = lax.while_loop(goes_on, body, start)
        return Answered(states, out._replace(t_noisy=stats), steps, spent, needed), kept

    return jax.jit(run, donate_argnums=(5,), compiler_options=None if question.cached else LEAN)
