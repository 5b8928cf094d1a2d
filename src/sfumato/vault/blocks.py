"""Rows, how each of them is evaluated, and their sums, a block at a time, so that memory does not grow with n."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
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
    """Add `block_sum` of every block of rows to `zero`: whole blocks in a compiled loop, then the rest."""
    whole = rows.number // BLOCK * BLOCK
    total = zero
    if whole:

        def add(i: Array, total: Array) -> Array:
            return total + block_sum(jax.tree.map(lambda v: lax.dynamic_slice_in_dim(v, i * BLOCK, BLOCK), rows))

        total = lax.fori_loop(0, whole // BLOCK, add, total)
    if whole < rows.number:
        total = total + block_sum(jax.tree.map(lambda column: column[whole:], rows))
    return total
