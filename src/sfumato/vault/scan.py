"""The query of a walk: the sum over records of their log-likelihood ratios, each clamped to what was proven and charged."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from sfumato.domain import Domain
from sfumato.kernel import Heard, Move, State
from sfumato.kernel.loop import Priced
from sfumato.model import Model
from sfumato.vault import lattice
from sfumato.vault.blocks import Rows, add_up, sum_over_blocks

Array: TypeAlias = Any
Range: TypeAlias = Callable[[Array, Array], tuple[Array, Array]]

CACHE_TERMS = 1 << 22
"""Up to this many (chain, record) pairs, the terms at the current theta are kept; beyond it they are computed again."""
BLOCK = 1 << 13
"""Records summed at a time when nothing is kept, so that memory does not grow with n. Four times as many take no less time, and
four times the memory: what one block needs in between should stay in the processor's cache."""
WIDE: dict[str, bool | int | str] = {"xla_cpu_prefer_vector_width": 512}
"""XLA's options for the chain: as many records to an instruction as the processor has room for (XLA's own choice is half of
it). The arithmetic of a record is the same, and so is every bit of it; a processor without such registers does not mind."""


@dataclass(frozen=True)
class Question:
    """What is asked, step after step: all public."""

    model: Model
    domain: Mapping[str, Domain]
    range: Range
    sigma: float
    gamma: float
    n: int
    rows: int
    chains: int
    precision: str

    @property
    def cached(self) -> bool:
        """Whether the terms at the current theta are kept between steps."""
        return self.rows * self.chains <= CACHE_TERMS


def terms(question: Question, records: Rows, theta: Array) -> Array:
    """Log-likelihood of every row under every chain's theta, shape (chain, row).

    Each record is scored alone (`vmap` over single records): a term depends on its own record by construction.
    """
    cast = {
        name: cast_column(question.domain[name], column, question.precision) for name, column in records.columns.items()
    }
    one_chain = jax.vmap(question.model.log_likelihood, in_axes=(None, 0))
    return jax.vmap(one_chain, in_axes=(0, None))(theta.astype(question.precision), cast)


def cast_column(domain: Domain, column: Array, precision: str) -> Array:
    """Type a stored column for evaluation: whole numbers as models see them, reals in the chosen precision."""
    return column.astype(domain.dtype if domain.discrete else precision)


def _sum_cached(question: Question, records: Rows, kept: Array, theta: Array, clamp: lattice.Clamp) -> Any:
    proposed = terms(question, records, theta)
    column = lattice.Clamp(*(part[:, None] for part in clamp))
    return add_up(lattice.to_lattice(proposed - kept, column, question.gamma), records, axis=1), proposed


def _sum_blocks(question: Question, records: Rows, old: Array, new: Array, clamp: lattice.Clamp) -> Array:
    """Sum over blocks of records, evaluating both parameters: flat memory, any n."""
    column = lattice.Clamp(*(part[:, None] for part in clamp))

    def block_sum(block: Rows) -> Array:
        change = terms(question, block, new) - terms(question, block, old)
        return add_up(lattice.to_lattice(change, column, question.gamma), block, axis=1)

    zero = jnp.zeros(question.chains, jnp.int64)
    return sum_over_blocks(records, BLOCK, block_sum, zero)


@dataclass(frozen=True)
class Ratios:
    """Log-likelihood ratios for the compiled loop: one pass over the records a step, or one evaluation of a kept term.

    `held` are the rows, `fresh` a scalar of noise for each chain. Per-record values live in the loop's `kept`, on the private
    side, and are never returned to a caller outside `vault/`.
    """

    question: Question

    def price(self, held: Rows, states: State, kept: Array, move: Move) -> Priced:
        """Integer ranges of the log ratios, chain by chain, and their cost."""
        question = self.question
        # Measured four times faster than all chains at once (XLA hands small pieces to threads and waits).
        lo, hi = lax.map(lambda pair: question.range(*pair), (states.theta, move.theta_prop))
        clamp = lattice.clamp_for(lo, hi, question.gamma, question.n)
        return lattice.priced(clamp, move.possible, question.gamma, question.sigma)

    def answer(
        self, held: Rows, states: State, kept: Array, move: Move, priced: Priced, fresh: Array
    ) -> tuple[Heard, Array]:
        """Sums over all records, with noise."""
        question = self.question
        if question.cached:
            total, proposed = _sum_cached(question, held, kept, move.theta_prop, priced.clamp)
        else:
            total, proposed = _sum_blocks(question, held, states.theta, move.theta_prop, priced.clamp), kept
        return lattice.heard(total + fresh, priced.answered, question.gamma, question.sigma), proposed
