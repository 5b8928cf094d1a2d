"""The query of a walk: the sum over records of their log-likelihood ratios, each clamped to what was proven and charged.

Where terms at the current theta are kept, a pass over the records is one evaluation of the likelihood; else both parameters are
evaluated, block by block. Per-record values stay on the private side: no caller outside `vault/` gets them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sfumato.kernel import Heard, Move, State
from sfumato.kernel.base import as_tree
from sfumato.kernel.loop import Priced
from sfumato.kernel.shared_programs import shared_program
from sfumato.protocol.questions import Ratio, Terms
from sfumato.study.target import Study
from sfumato.vault import lattice
from sfumato.vault.blocks import WIDE, Evaluation, Fresh, Rows, add_up, sum_over_blocks
from sfumato.vault.closed import closed
from sfumato.vault.engine import Engine, LocalEngine
from sfumato.vault.noise import NoisePool
from sfumato.vault.packing import pack_lists, unpack, x64
from sfumato.vault.queries.base import MakeNoise, PricedScalars, Quote, Range, flags_of, numbers_of, packed_price

Array: TypeAlias = Any

KEEP_TERMS = 1 << 19
"""Up to this many (chain, row) pairs, terms are kept between rounds. Measured on one thread, against evaluating both parameters
block by block: 0.83 of the time at 4 x 100,000, but 2.0 times at 4 x 1,000,000, where writing the terms out costs more than
computing them again."""


def price(range_: Range, theta: Array, theta_prop: Array, asked: Array, gamma: Array, n: Array, sigma: Array) -> Priced:
    """Integer ranges of the log ratios, and their cost. Public: it knows of no record.

    Chain by chain: measured four times faster than all at once (XLA hands small pieces to threads and waits).
    """
    lo, hi = lax.map(lambda pair: range_(*pair), (theta, theta_prop))
    return lattice.priced(lattice.clamp_for(lo, hi, gamma, n), asked, gamma, sigma)


def sum_kept(
    how: Evaluation, rows: Rows, kept: Array, theta_prop: Array, clamp: lattice.Clamp, gamma: float
) -> tuple[Array, Array]:
    """Integer ratios of all chains from the terms at theta, and the terms at the proposal. Private."""
    proposed = how.terms_of_all(rows, theta_prop)
    column = lattice.Clamp(*(part[:, None] for part in clamp))
    return add_up(lattice.to_lattice(proposed - kept, column, gamma), rows, axis=1), proposed


def sum_both(how: Evaluation, rows: Rows, theta: Array, theta_prop: Array, clamp: lattice.Clamp, gamma: float) -> Array:
    """The same by blocks of records, evaluating both parameters: flat memory, any n. Private."""
    column = lattice.Clamp(*(part[:, None] for part in clamp))

    def block_sum(block: Rows) -> Array:
        change = how.terms_of_all(block, theta_prop) - how.terms_of_all(block, theta)
        return add_up(lattice.to_lattice(change, column, gamma), block, axis=1)

    return sum_over_blocks(rows, block_sum, jnp.zeros(len(theta), jnp.int64))


# -- for engines ------------------------------------------------------------------------------------------------------


class RatioSum(NamedTuple):
    """The log ratio of every chain: parameters, one row per chain, and the integer range each term is clamped into."""

    theta: np.ndarray
    theta_prop: np.ndarray
    lo: np.ndarray
    hi: np.ndarray
    gamma: float

    def sum(self, table: LocalEngine) -> Array:
        """Integer ratio of every chain."""
        chains = len(self.theta)
        if table.rows * chains > KEEP_TERMS or not table.keeps_terms(chains):
            return table.program("both", lambda: _both_program(table.how))(table.records, *self)
        run = table.program("ratio", lambda: _ratio_program(table.how))
        total, here, there = run(table.records, *table.terms_at(self.theta), *self[1:])
        table.keep(self.theta, self.theta_prop, here, there)
        return total


@shared_program
def _both_program(how: Evaluation) -> Callable[..., Array]:
    def both(rows: Rows, theta: Array, theta_prop: Array, lo: Array, hi: Array, gamma: Array) -> Array:
        return sum_both(how, rows, theta, theta_prop, lattice.answerable(lo, hi), gamma)

    return jax.jit(both)


@shared_program
def _ratio_program(how: Evaluation) -> Callable[..., Any]:
    def one_pass(
        rows: Rows, here: Array, there: Array, chosen: Array, theta_prop: Array, lo: Array, hi: Array, gamma: Array
    ) -> Any:
        kept = jnp.where(chosen[:, None], there, here)
        total, proposed = sum_kept(how, rows, kept, theta_prop, lattice.answerable(lo, hi), gamma)
        return total, kept, proposed

    return jax.jit(one_pass)


class CoveredRatioSum(NamedTuple):
    """Price of log ratios and, if what is reserved already covers it, the ratios themselves, in one compiled call.

    For few rows. Nothing is kept between rounds, so that no array goes in or comes out but one. No record is looked at for a
    price that nothing was reserved for.
    """

    range: Range
    theta: list[float]
    theta_prop: list[float]
    asked: list[bool]
    gamma: float
    sigma: float
    covered: int

    def sum(self, table: LocalEngine) -> Array:
        """A price with each chain's range and ratio (`packed_price`)."""
        whole, reals = [self.covered, table.n, *self.asked], [self.gamma, self.sigma, *self.theta, *self.theta_prop]
        chains = len(self.asked)
        run = table.program(("covered", chains), lambda: _covered_program(table.how, self.range, chains))
        return run(table.records, pack_lists(whole, reals))


@shared_program
def _covered_program(how: Evaluation, range_: Range, chains: int) -> Callable[..., Array]:
    points = float, (chains, how.model.dim)

    def run(rows: Rows, numbers: Array) -> Array:
        parts = (int, ()), (int, ()), (bool, (chains,)), (float, ()), (float, ()), points, points
        left, n, asked, gamma, sigma, theta, theta_prop = unpack(numbers, *parts)
        priced = price(range_, theta, theta_prop, asked, gamma, n, sigma)

        def answer() -> Array:
            return sum_kept(how, rows, how.terms_of_all(rows, theta), theta_prop, priced.clamp, gamma)[0]

        total = lax.cond(priced.quanta <= left, answer, lambda: jnp.zeros(chains, jnp.int64))
        return packed_price(priced, priced.clamp.lo, priced.clamp.hi, total)

    return jax.jit(run)


# -- for the compiled loop ----------------------------------------------------------------------------------------------


@as_tree("gamma", "sigma", "n")
@dataclass(frozen=True)
class RatioSource:
    """Log ratios for the compiled loop, which holds the rows. `kept` are every record's terms, chain by chain. Private.

    Attributes
    ----------
    how, range, gamma, sigma, n
        Public: how records are evaluated, how far one can move an answer, the lattice, the noise, the number of records.
    cached
        Whether the terms at the current theta are kept between steps.
    """

    how: Evaluation
    range: Range
    gamma: float
    sigma: float
    n: int
    cached: bool
    first: ClassVar[None] = None
    options: ClassVar[Any] = WIDE

    @property
    def noises(self) -> list[tuple[float, int, int | None]]:
        """One scalar for each chain and step."""
        return [(self.sigma / self.gamma, 1, None)]

    def enter(self, table: LocalEngine, states: State) -> tuple[Rows, Array]:
        """What the loop holds, and keeps of the records where the chains are. Private."""
        return table.records, table.terms(states.theta) if self.cached else jnp.zeros((len(states.theta), 0))

    def price(self, held: Rows, states: State, kept: Array, move: Move) -> Priced:
        """Integer ranges and their cost."""
        return price(self.range, states.theta, move.theta_prop, move.possible, self.gamma, self.n, self.sigma)

    def answer(
        self, held: Rows, states: State, kept: Array, move: Move, priced: Priced, fresh: Fresh
    ) -> tuple[Heard, Array]:
        """Sums over all records, with noise."""
        if self.cached:
            total, proposed = sum_kept(self.how, held, kept, move.theta_prop, priced.clamp, self.gamma)
        else:
            total = sum_both(self.how, held, states.theta, move.theta_prop, priced.clamp, self.gamma)
            proposed = kept
        return lattice.heard(total + fresh.scalars, priced.answered, self.gamma, self.sigma), proposed


# -- by rounds --------------------------------------------------------------------------------------------------------


@shared_program
def _price_alone(range_: Range, chains: int, dim: int) -> Callable[[Array], Array]:
    """Compile a price by itself, for tables whose sums come after it; owners in this process share it."""
    points = float, (chains, dim)

    def run(numbers: Array) -> Array:
        parts = (int, ()), (bool, (chains,)), (float, ()), (float, ()), points, points
        n, asked, gamma, sigma, theta, theta_prop = unpack(numbers, *parts)
        priced = price(range_, theta, theta_prop, asked, gamma, n, sigma)
        return packed_price(priced, priced.clamp.lo, priced.clamp.hi)

    return jax.jit(run)


@closed("unused noise")
class RatioRounds:
    """Rounds of a walk: one log ratio per chain."""

    def __init__(self, engine: Engine, study: Study, terms: Terms, noise: MakeNoise) -> None:
        self._engine, self._terms, self._dim = engine, terms, study.model.dim
        self._range = study.bounds.range_for(engine.n)
        self.pools = [NoisePool(noise(terms.sigma / terms.gamma, 1))]
        # Kept here: others' chains may push it out of the cache, and the next round would compile it again.
        self._price = _price_alone(self._range, terms.chains, self._dim)

    def quote(self, question: Ratio, covered: int) -> Quote:
        """Price log ratios, and sum them at once where that is faster and paid for."""
        engine, terms, dim = self._engine, self._terms, self._dim
        chains, gamma = terms.chains, terms.gamma
        theta = numbers_of("theta", question.theta, chains, dim)
        theta_prop = numbers_of("theta_prop", question.theta_prop, chains, dim)
        asked = flags_of(question.asked, chains)
        if engine.at_once(chains):
            query = CoveredRatioSum(self._range, theta, theta_prop, asked, gamma, terms.sigma, covered)
            priced = PricedScalars.read(engine.sum(query), chains, 3)
        else:
            query = None
            with x64():
                row = self._price(pack_lists([engine.n, *asked], [gamma, terms.sigma, *theta, *theta_prop]))
            priced = PricedScalars.read(row, chains, 2)

        def totals() -> list[int]:
            if query is None:
                lo, hi = map(np.array, priced.whole)
                here, there = (np.array(x).reshape(-1, dim) for x in (theta, theta_prop))
                summed: list[int] = engine.sum(RatioSum(here, there, lo, hi, gamma)).tolist()
                return summed
            if priced.charge <= covered:
                return priced.whole[2]
            again = engine.sum(query._replace(covered=priced.charge))  # it is paid for by now
            return PricedScalars.read(again, chains, 3).whole[2]

        return priced.quote(gamma, totals, self.pools[0])
