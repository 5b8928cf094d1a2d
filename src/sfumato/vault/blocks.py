"""Rows, how each of them is evaluated, and their sums, a block at a time, so that memory does not grow with n."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from sfumato.domain import Domain
from sfumato.model import Model
from sfumato.vault.closed import closed

Array: TypeAlias = Any

BLOCK = 1 << 13
"""Rows at a time. Four times as many take no less time, and four times the memory: what one block needs in between should stay
in the processor's cache. The information of 8192 records, with ten parameters, takes 14 MB in between."""
LEAN: dict[str, bool | int | str] = {"xla_cpu_use_fusion_emitters": False}
"""XLA's options for large programs over blocks: its older emitters take a third of the memory to compile them (54 MB instead of
190 for a chain around a reference point), and the program is as fast. Measured in float64, every bit of it is the same; in
float32 that of lgamma is not, and sums over a large table may differ in their last bits from those of a node."""


WIDE: dict[str, bool | int | str] = {"xla_cpu_prefer_vector_width": 512}
"""XLA's options for the chain: as many records to an instruction as the processor has room for (XLA's own choice is half of
it). The arithmetic of a record is the same, and so is every bit of it; a processor without such registers does not mind."""


@closed("records")
class Rows(NamedTuple):
    """Records on the device: typed columns, and how many people each row stands for (None: one each)."""

    columns: Mapping[str, Array]
    counts: Array | None = None

    @property
    def number(self) -> int:
        """How many rows there are."""
        return len(next(iter(self.columns.values())))


@closed("unused noise")
class Fresh(NamedTuple):
    """Noise of steps: of scalars (step, chain); Langevin's also of vectors (step, chain, coordinate)."""

    scalars: Array
    vectors: Array = None


class Evaluation(NamedTuple):
    """How a record is evaluated: all public."""

    model: Model
    domain: Mapping[str, Domain]
    precision: str

    def __hash__(self) -> int:
        """Compiled sums are kept by how records are evaluated."""
        return hash((self.model, tuple(sorted(self.domain.items(), key=lambda item: item[0])), self.precision))

    def typed(self, rows: Rows, precision: str = "") -> dict[str, Array]:
        """Columns as models see them: whole numbers, and reals in this precision or another one."""
        return {
            name: column.astype(self.domain[name].dtype if self.domain[name].discrete else precision or self.precision)
            for name, column in rows.columns.items()
        }

    def terms(self, rows: Rows, theta: Array) -> Array:
        """Log-likelihood of every row under one theta.

        Each record is scored alone (`vmap` over single records): a term depends on its own record by construction.
        """
        return jax.vmap(self.model.log_likelihood, in_axes=(None, 0))(theta.astype(self.precision), self.typed(rows))

    def terms_of_all(self, rows: Rows, theta: Array) -> Array:
        """The same under every chain's theta, shape (chain, row)."""
        return jax.vmap(self.terms, in_axes=(None, 0))(rows, theta)


def add_up(terms: Array, rows: Rows, axis: int) -> Array:
    """Sum of integer terms over rows (along `axis`), each as often as there are people behind it: exact in 64 bits."""
    if rows.counts is None:
        return terms.sum(axis=axis)
    shape = [1] * terms.ndim
    shape[axis] = -1
    return (terms * rows.counts.reshape(shape)).sum(axis=axis)


def sum_over_blocks(rows: Rows, block_sum: Callable[[Rows], Array], zero: Array) -> Array:
    """Add `block_sum` of every block of rows to `zero`, in a compiled loop.

    The last block ends where the rows end, so it begins among rows of the one before it. Those stand for nobody in it: one
    program is compiled for all blocks, and every row is added once.
    """
    if rows.number <= BLOCK:
        return zero + block_sum(rows)

    def add(i: Array, total: Array) -> Array:
        start, block = _block(rows, i)
        if rows.number % BLOCK:
            new = (start + jnp.arange(BLOCK) >= i * BLOCK).astype(jnp.int64)
            block = block._replace(counts=new if block.counts is None else block.counts * new)
        return total + block_sum(block)

    return lax.fori_loop(0, -(-rows.number // BLOCK), add, zero)


def map_blocks(rows: Rows, of_block: Callable[[Rows], Array], width: int, precision: str) -> Array:
    """Vectors of every row, shape (row, width), block by block: those of rows in two blocks are written twice, the same."""
    if rows.number <= BLOCK:
        return of_block(rows)

    def write(i: Array, found: Array) -> Array:
        start, block = _block(rows, i)
        return lax.dynamic_update_slice_in_dim(found, of_block(block), start, 0)

    return lax.fori_loop(0, -(-rows.number // BLOCK), write, jnp.zeros((rows.number, width), precision))


def _block(rows: Rows, i: Array) -> tuple[Array, Rows]:
    """Where a block begins, and its rows; the last one ends where the rows end."""
    start = jnp.minimum(i * BLOCK, rows.number - BLOCK)
    return start, jax.tree.map(lambda column: lax.dynamic_slice_in_dim(column, start, BLOCK), rows)
