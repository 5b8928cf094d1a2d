"""Exact integer sums over records. Nothing here leaves `vault/`.

An engine adds up what a query says (`vault.queries`). Each sum is additive over any split of the records: so threads and a
cluster are the same sum, fanned out. Up to a size a round costs one pass over the records: the terms at both parameters of the
last round are kept, each with the parameter it belongs to, and a chain goes on from one of the two.
"""

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import jax
import numpy as np

from sfumato.bounds.balls import Balls
from sfumato.bounds.body import Body
from sfumato.bounds.reference import ReferenceBounds
from sfumato.bounds.searched import BestReference
from sfumato.errors import InvalidInput
from sfumato.kernel.shared_programs import shared_program
from sfumato.model.spoken import unspoken
from sfumato.study.target import Study
from sfumato.vault.blocks import LEAN, Evaluation, Rows, map_blocks
from sfumato.vault.closed import closed
from sfumato.vault.counting import count_records
from sfumato.vault.memory import release_memory
from sfumato.vault.packing import x64
from sfumato.vault.records import Records, check_precision

Array: TypeAlias = Any

CACHE_TERMS = 1 << 22
"""Up to this many (chain, row) pairs, the terms at the current theta may be kept; beyond it they are computed again."""
CACHE_VECTORS = 1 << 24
"""Up to this many numbers, the vectors at a reference point are kept."""
FEW_TERMS = 1 << 12
"""Up to this many (chain, row) pairs a log ratio is priced and summed in one call: dispatch is then most of a round's cost."""


class Query(Protocol):
    """What is summed: public numbers, and what to do with the records."""

    def sum(self, table: "LocalEngine") -> Array:
        """Integer sum over the rows of one table. Private."""
        ...


class Engine(Protocol):
    """Sums over all records of one owner, wherever they lie."""

    @property
    def n(self) -> int:
        """Number of records: public."""
        ...

    @property
    def rows(self) -> int:
        """Rows evaluated a round: n, or the possible records of a small finite domain. Public either way."""
        ...

    @property
    def here(self) -> bool:
        """Whether sums are computed in this process: one need not wait for anybody."""
        ...

    def at_once(self, chains: int) -> bool:
        """Whether a log ratio of so many chains is priced and summed in one call (`queries.ratio.CoveredRatioSum`)."""
        ...

    def sum(self, query: Query) -> np.ndarray:
        """Integer sum over all records. Private."""
        ...

    def forget(self) -> None:
        """Drop what is kept between rounds."""
        ...

    def close(self) -> None:
        """Let go of the records."""
        ...


@closed("terms of records")
class Kept(NamedTuple):
    """Terms of every record at the last round's two parameters: private."""

    theta: np.ndarray
    theta_prop: np.ndarray
    here: Array
    there: Array

    def chosen(self, theta: np.ndarray) -> np.ndarray | None:
        """Which chains went on from the last proposal (True) or stayed (False); None if one did neither."""
        if self.theta.shape != theta.shape:
            return None
        if len(theta) == 1:  # the same answer for one chain, at a fraction of the cost
            now = theta.tobytes()
            if now == self.theta.tobytes():
                return np.zeros(1, bool)
            return np.ones(1, bool) if now == self.theta_prop.tobytes() else None
        stayed, went = (self.theta == theta).all(axis=1), (self.theta_prop == theta).all(axis=1)
        return ~stayed if bool(np.all(stayed | went)) else None


@closed("records")
class LocalEngine:
    """The records of this process.

    Parameters
    ----------
    records
        The validated table.
    study
        Public: the model and the domain.
    precision
        How records are evaluated.
    whole
        Rows of the table that these are a part of; what is kept in memory is bounded for all of it.
    """

    def __init__(
        self,
        records: Records,
        study: Study,
        *,
        precision: str = "float64",
        whole: int | None = None,
    ) -> None:
        check_precision(precision)
        self.how = Evaluation(study.model, study.domain, precision)
        # Nothing is built before it is asked for. A part of a table on a cluster is told the body, and only computes vectors.
        self.reference: ReferenceBounds = study.reference_bounds or BestReference(study.model, study.domain)
        self._kept: Kept | None = None
        self._vectors: tuple[Body | Balls, Array] | None = None
        self.load(records)
        self._whole = self._rows if whole is None else whole
        release_memory()
        self._compiled: dict[Any, Callable[..., Any]] = {}

    def load(self, records: Records) -> None:
        """Put these records in the place of those before."""
        self._count, self._kept, self._vectors = records.n, None, None
        with x64():
            self._records: Rows | None = count_records(records, self.how.domain).on_device()
        self._rows = self._records.number

    @property
    def n(self) -> int:
        """Number of records."""
        return self._count

    @property
    def rows(self) -> int:
        """Rows evaluated a round."""
        return self._rows

    @property
    def here(self) -> bool:
        """Sums are computed in this process."""
        return True

    def at_once(self, chains: int) -> bool:
        """Where there are few rows."""
        return self._rows * chains <= FEW_TERMS

    def sum(self, query: Query) -> np.ndarray:
        """Integer sum over all records."""
        with x64():
            return np.asarray(query.sum(self))

    # -- for queries ------------------------------------------------------------------------------------------------

    @property
    def records(self) -> Rows:
        """The rows. Private."""
        if self._records is None:
            raise InvalidInput("this engine was closed; open the owner's records again.")
        return self._records

    def program(self, key: Any, make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
        """The program of this name, looked for once: finding it among those of all studies takes longer than a small round."""
        if key not in self._compiled:
            self._compiled[key] = make()
        return self._compiled[key]

    def keeps_terms(self, chains: int) -> bool:
        """Whether the terms of so many chains are kept: public."""
        return self._whole * chains <= CACHE_TERMS

    def keeps_vectors(self, chains: int) -> bool:
        """Whether vectors at a reference point are kept besides: public."""
        return self.keeps_terms(chains) and self._whole * self.how.model.dim <= CACHE_VECTORS

    def terms(self, theta: Array) -> Array:
        """Terms of every row under every chain's theta. Private."""
        score = self.program("terms", lambda: _terms_program(self.how))
        return score(self.records, jax.device_put(theta))

    def terms_at(self, theta: np.ndarray) -> tuple[Array, Array, np.ndarray]:
        """Terms at the last round's two parameters and which of the two every chain went on from; scored anew if neither."""
        chosen = None if self._kept is None else self._kept.chosen(self._read(theta))
        if self._kept is not None and chosen is not None:
            return self._kept.here, self._kept.there, chosen
        scored = self.terms(theta)
        return scored, scored, np.zeros(len(theta), bool)

    def keep(self, theta: np.ndarray, theta_prop: np.ndarray, here: Array, there: Array) -> None:
        """Keep terms for the next round: see `Kept`."""
        self._kept = Kept(self._read(theta), self._read(theta_prop), here, there)

    def _read(self, theta: np.ndarray) -> np.ndarray:
        """What a term depends on: coordinates that no record speaks of have moved freely since the last round."""
        return theta if self._spoken.all() else np.ascontiguousarray(theta[:, self._spoken])

    @cached_property
    def _spoken(self) -> np.ndarray:
        return ~unspoken(self.how.model, self.how.domain)

    def vectors_at(self, body: Body | Balls) -> Array:
        """Vector of every row at a reference point, shape (row, d); kept for the next round. Private."""
        if self._vectors is None or not _same(self._vectors[0], body):
            run = self.program("vectors", lambda: _vectors_program(self.how, self.reference))
            self._vectors = body, run(self.records, jax.device_put(body))
        return self._vectors[1]

    # -- housekeeping ---------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Drop what is kept between rounds."""
        self._kept = self._vectors = None
        self._compiled.clear()
        release_memory()

    def close(self) -> None:
        """Let go of the records."""
        self.forget()
        self._records = None


# -- programs, shared by all engines of this process: public, and records are their arguments ------------------------------


@shared_program
def _terms_program(how: Evaluation) -> Callable[..., Array]:
    return jax.jit(how.terms_of_all)


@shared_program
def _vectors_program(how: Evaluation, reference: ReferenceBounds) -> Callable[..., Array]:
    def run(rows: Rows, body: Body | Balls) -> Array:
        def of_block(block: Rows) -> Array:
            found: Array = jax.vmap(partial(reference.vector, body))(how.typed(block, "float64"))
            return found.astype(how.precision)

        return map_blocks(rows, of_block, how.model.dim, how.precision)

    return jax.jit(run, compiler_options=LEAN)


def _same(one: Body | Balls, other: Body | Balls) -> bool:
    """Whether two bodies are one: rounds of a chain ask with the very same one."""
    if one is other:
        return True
    parts, others = jax.tree.leaves(one), jax.tree.leaves(other)
    return type(one) is type(other) and all(map(np.array_equal, parts, others))
