r"""Langevin for any model: scores at a reference point (`vector.ScoreSum`), then a scalar of second order.

The second query is :math:`\sum_i \ell(y_i,\theta') - \ell(y_i,\theta) - s(y_i)^\top v`, one pass over the records a step,
with the very vectors s of the first. Terms at the current parameter and vectors at the reference point are kept, so a pass is
one evaluation of the likelihood and a product of a matrix and a vector. Every record's term is clamped, as an integer, to the
range proven for this very pair (`bounds.remainder`), and the width charged is exactly the clamped one. The range is proven for
the slopes of the cells that the body is made of: where the proof is right no record is cut.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sfumato.bounds.balls import Balls
from sfumato.bounds.body import Body
from sfumato.bounds.reference import Proven, ReferenceBounds
from sfumato.bounds.remainder import Anchor
from sfumato.bounds.searched import Bank, Searched
from sfumato.kernel import Heard, Move, ReferenceLangevin, State
from sfumato.kernel.base import as_tree
from sfumato.kernel.loop import Priced
from sfumato.kernel.shared_programs import shared_program
from sfumato.privacy.budget import cost_quanta
from sfumato.protocol.questions import Remainder, Terms
from sfumato.vault import lattice
from sfumato.vault.blocks import LEAN, Evaluation, Fresh, Rows, add_up, sum_over_blocks
from sfumato.vault.closed import closed
from sfumato.vault.engine import Engine, LocalEngine
from sfumato.vault.noise import NoisePool
from sfumato.vault.packing import pack, pack_lists, unpack, x64
from sfumato.vault.queries.base import PricedScalars, Quote, flags_of, numbers_of, packed_price
from sfumato.vault.queries.vector import score_sum

Array: TypeAlias = Any


def price(
    reference: ReferenceBounds, points: tuple[Array, ...], asked: Array, gamma: Array, n: Array, sigma: Array,
    anchor: Anchor | Bank | None = None,
) -> Priced:  # fmt: skip
    """Integer ranges of the scalars, chain by chain, and their cost. Public: it knows of no record.

    `points` are theta, theta_prop and v; before them an anchor for each chain, where chains do not share one. The range of the
    swapped pair is this one with its ends negated and exchanged: what is not admissible here is not there.
    """
    *anchors, theta, theta_prop, slope = points
    shared = [] if anchor is None else [anchor]
    lo, hi = lax.map(
        lambda row: reference.range(*shared, *row), (*anchors, theta, theta_prop, theta_prop - theta - slope)
    )
    return lattice.priced(lattice.clamp_for(lo, hi, gamma, n), asked, gamma, sigma)


@closed("terms of records")
class Change(NamedTuple):
    """One chain's move: theta, the terms there (where they are kept), the proposal, v, and the range of a record's scalar."""

    theta: Array
    kept: Array
    theta_prop: Array
    slope: Array
    clamp: lattice.Clamp


def sum_change(how: Evaluation, rows: Rows, change: Change, vectors: Array, gamma: Array) -> tuple[Array, Array]:
    """Integer sum of one chain's scalars, and the terms at the proposal. Private.

    `vectors` are those of every row at the reference point.
    """
    proposed = how.terms(rows, change.theta_prop)
    along = (vectors @ change.slope.astype(vectors.dtype)).astype(jnp.float64)
    second = (proposed - change.kept).astype(jnp.float64) - along
    return add_up(lattice.to_lattice(second, change.clamp, gamma), rows, axis=0), proposed


def sum_in_blocks(
    how: Evaluation, reference: ReferenceBounds, rows: Rows, changes: Change, body: Body | Balls, gamma: Array
) -> Array:
    """Integer sum of every chain's scalars, where nothing is kept: one pass over the records, any n, flat memory. Private.

    A row is read once for all chains, and its vector at the reference point computed once.
    """
    clamp = lattice.Clamp(*(part[:, None] for part in changes.clamp))

    def block_sum(block: Rows) -> Array:
        vectors = jax.vmap(partial(reference.vector, body))(how.typed(block, "float64"))
        first = how.terms_of_all(block, changes.theta_prop) - how.terms_of_all(block, changes.theta)
        second = first.astype(jnp.float64) - changes.slope @ vectors.T
        return add_up(lattice.to_lattice(second, clamp, gamma), block, axis=1)

    return sum_over_blocks(rows, block_sum, jnp.zeros(len(changes.theta), jnp.int64))


# -- for engines ------------------------------------------------------------------------------------------------------


class RemainderSum(NamedTuple):
    """The scalar of every chain: parameters and v, one row per chain, the body at the reference point, and integer ranges."""

    theta: np.ndarray
    theta_prop: np.ndarray
    slope: np.ndarray
    body: Body | Balls
    lo: np.ndarray
    hi: np.ndarray
    gamma: float

    def sum(self, table: LocalEngine) -> Array:
        """Integer scalar of every chain."""
        chains = len(self.theta)
        cached = table.keeps_vectors(chains)
        vectors: Array = self.body
        here = there = jnp.zeros((chains, 0))
        chosen = np.zeros(chains, bool)
        if cached:
            vectors, (here, there, chosen) = table.vectors_at(self.body), table.terms_at(self.theta)
        numbers = pack(np.float64(self.gamma), chosen, self.theta, self.theta_prop, self.slope, self.lo, self.hi)
        run = table.program(("remainder", chains), lambda: _remainder_program(table.how, table.reference, chains))
        total, here, there = run(table.records, vectors, here, there, numbers)
        if cached:
            table.keep(self.theta, self.theta_prop, here, there)
        return total


@shared_program
def _remainder_program(how: Evaluation, reference: ReferenceBounds, chains: int) -> Callable[..., Any]:
    each, whole = (float, (chains, how.model.dim)), (int, (chains,))

    def run(rows: Rows, vectors: Array | Body | Balls, here: Array, there: Array, numbers: Array) -> Any:
        parts = unpack(numbers, (float, ()), (bool, (chains,)), each, each, each, whole, whole)
        gamma, chosen, theta, theta_prop, slope, lo, hi = parts
        kept = jnp.where(chosen[:, None], there, here)
        changes = Change(theta, kept, theta_prop, slope, lattice.answerable(lo, hi))
        if not isinstance(vectors, jax.Array):
            return sum_in_blocks(how, reference, rows, changes, vectors, gamma), here, there
        total, proposed = jax.vmap(partial(sum_change, how, rows, vectors=vectors, gamma=gamma))(changes)
        return total, kept, proposed

    return jax.jit(run)


# -- for the compiled loop ----------------------------------------------------------------------------------------------


@closed("records and exact sums")
class Held(NamedTuple):
    """What the loop asks: rows; the anchor, the body and the exact sum at the reference point; vectors that are kept.

    Where chains have a reference point each, all but the rows has a row for every chain.
    """

    rows: Rows
    anchor: Anchor | Bank
    body: Body | Balls
    totals: Array
    vectors: Array


@as_tree(
    "_n", "_sigma", "_gamma", "_gamma_first", "_cost", fixed=("_how", "_reference", "_cached", "_one")
)  # fmt: skip
class RemainderSource:
    """Scores and second-order scalars. `kept` are every record's terms, chain by chain. Private.

    Parameters
    ----------
    kernels
        One for all chains, or one for each (of the same step and trust region).
    """

    def __init__(self, table: LocalEngine, kernels: Sequence[ReferenceLangevin], sigma: float, chains: int) -> None:
        self._how, self._reference, self._n, dim = table.how, table.reference, table.n, table.how.model.dim
        first, self._sigma, self._gamma = kernels[0].proposal_sigma, sigma, lattice.choose_gamma(sigma, table.n)
        self._one = len(kernels) == 1
        self._gamma_first, self._chains = lattice.choose_gamma(first, table.n), chains
        self._cached = table.keeps_vectors(chains)
        self._proven = [self._reference.at(kernel.centre, kernel.matrix) for kernel in kernels]
        self._scores = [
            score_sum(proven, kernel.matrix, self._gamma_first, table.n)
            for proven, kernel in zip(self._proven, kernels, strict=True)
        ]
        costs = [cost_quanta((scores.moved / first) ** 2) for scores in self._scores]
        lattice.first_of_all(max(costs), chains)
        self._cost = costs[0] * chains if len(costs) == 1 else sum(costs)
        self.options = LEAN
        self.noises = [(first / self._gamma_first, dim + 1, None), (sigma / self._gamma, dim + 1, None)]

    def enter(self, table: LocalEngine, states: State) -> tuple[Held, Array]:
        """What the loop holds, and keeps of the records where the chains are. Private."""
        dim = table.how.model.dim
        anchor, body = self._each([p.anchor for p in self._proven]), self._each([p.body for p in self._proven])
        totals = self._each([jax.device_put(table.sum(scores)) for scores in self._scores])
        vectors, kept = jnp.zeros((0, dim)), jnp.zeros((self._chains, 0))
        if self._cached:
            every = [table.vectors_at(scores.body) for scores in self._scores]
            vectors, kept = self._each(every), table.terms(states.theta)
        return Held(table.records, anchor, body, totals, vectors), kept

    def _each(self, trees: list[Any]) -> Any:
        """A row for every chain, or the one that they share."""
        return trees[0] if self._one else jax.tree.map(lambda *a: jnp.stack(a), *trees)

    def first(self, held: Held, fresh: Fresh) -> tuple[Array, Array]:
        """The noisy scores at each chain's reference point."""
        return (held.totals + fresh.vectors).astype(jnp.float64) * self._gamma_first, jnp.asarray(self._cost)

    def price(self, held: Held, states: State, kept: Array, move: Move) -> Priced:
        """Integer ranges and their cost."""
        points = states.theta, move.theta_prop, move.along
        given, shared = (points, held.anchor) if self._one else ((held.anchor, *points), None)
        return price(self._reference, given, move.possible, self._gamma, self._n, self._sigma, shared)

    def answer(
        self, held: Held, states: State, kept: Array, move: Move, priced: Priced, fresh: Fresh
    ) -> tuple[Heard, Array]:
        """Sums over all records, with noise."""
        changes, proposed = Change(states.theta, kept, move.theta_prop, move.along, priced.clamp), kept
        if self._cached:

            def one(change: Change, vectors: Array) -> tuple[Array, Array]:
                return sum_change(self._how, held.rows, change, vectors, self._gamma)

            sums, proposed = jax.vmap(one, (0, None if self._one else 0))(changes, held.vectors)
        else:
            blocks = partial(sum_in_blocks, self._how, self._reference, held.rows, gamma=self._gamma)
            sums = blocks(changes, held.body) if self._one else self._each_in_blocks(blocks, changes, held.body)
        return lattice.heard(sums + fresh.scalars, priced.answered, self._gamma, self._sigma), proposed

    @staticmethod
    def _each_in_blocks(blocks: Callable[..., Array], changes: Change, bodies: Any) -> Array:
        """One chain after another, each around a point of its own."""

        def one(row: Any) -> Array:
            change, body = row
            alone = jax.tree.map(lambda part: part[None], change)
            return blocks(alone, body)[0]

        found: Array = lax.map(one, (changes, bodies))
        return found


# -- by rounds --------------------------------------------------------------------------------------------------------


@shared_program
def _price_alone(reference: ReferenceBounds, chains: int, dim: int) -> Callable[..., Any]:
    """Compile a price: (anchor, what is asked, packed) -> the price, packed. Owners in this process share it."""
    rows = (float, (chains, dim))

    def run(anchor: Anchor, numbers: Array) -> Array:
        parts = (int, ()), (bool, (chains,)), (float, ()), (float, ()), rows, rows, rows
        n, asked, gamma, sigma, *points = unpack(numbers, *parts)
        priced = price(reference, tuple(points), asked, gamma, n, sigma, anchor)
        return packed_price(priced, priced.clamp.lo, priced.clamp.hi)

    return jax.jit(run)


@closed("unused noise")
class RemainderRounds:
    """Rounds around a reference point: one second-order scalar per chain."""

    def __init__(
        self, engine: Engine, reference: ReferenceBounds, proven: Proven | Searched, terms: Terms, pool: NoisePool
    ) -> None:
        self._engine, self._terms, self._dim, self.pools = engine, terms, len(terms.centre), [pool]
        self._body, self._anchor = jax.tree.map(np.asarray, proven.body), proven.anchor
        self._price = _price_alone(reference, terms.chains, self._dim)

    def quote(self, question: Remainder, covered: int) -> Quote:
        """Price the scalars."""
        chains, dim, gamma = self._terms.chains, self._dim, self._terms.gamma
        points = [numbers_of(name, getattr(question, name), chains, dim) for name in ("theta", "theta_prop", "slope")]
        asked = flags_of(question.asked, chains)
        reals = [gamma, self._terms.sigma, *points[0], *points[1], *points[2]]
        with x64():
            row = self._price(self._anchor, pack_lists([self._engine.n, *asked], reals))
        priced = PricedScalars.read(row, chains, 2)

        def totals() -> list[int]:
            lo, hi = map(np.array, priced.whole)
            theta, theta_prop, slope = (np.array(x).reshape(chains, dim) for x in points)
            query = RemainderSum(theta, theta_prop, slope, self._body, lo, hi, gamma)
            summed: list[int] = self._engine.sum(query).tolist()
            return summed

        return priced.quote(gamma, totals, self.pools[0])
