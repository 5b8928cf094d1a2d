"""The vault: records behind a wall, and the two kinds of answer that leave it.

`Vault.release` answers a pilot's question about a sum of vectors; `Vault.chunk` runs steps of a chain. Both reserve
their whole charge in the ledger, durably, before a number is computed, and both hand out noisy values only. A crash
after the reservation forfeits it: budget may be wasted, never overspent.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.kernel import Draw, Kernel, ReferenceLangevin, State
from sfumato.kernel.loop import Looped, Source, Transcript, compile_loop
from sfumato.protocol.questions import Release
from sfumato.study.target import Study
from sfumato.vault import lattice
from sfumato.vault.blocks import Fresh
from sfumato.vault.closed import closed
from sfumato.vault.engine import LocalEngine
from sfumato.vault.ledger import Account, Block
from sfumato.vault.ledger.account import MAX_CAP
from sfumato.vault.memory import LARGE, forget_compiled, release_memory
from sfumato.vault.noise import NoisePool, source_for
from sfumato.vault.noise import Source as NoiseSource
from sfumato.vault.queries.linear import LangevinSource, WalkSource
from sfumato.vault.queries.ratio import RatioSource
from sfumato.vault.queries.remainder import RemainderSource
from sfumato.vault.queries.vector import quote_release
from sfumato.vault.records import Records

Array: TypeAlias = Any


@dataclass(frozen=True)
class Chunk:
    """Some steps of all chains, paid for: what the sampler keeps, and the block to settle once it is kept safe."""

    states: State
    transcript: Transcript
    steps: int
    spent: int
    needed: int
    block: Block

    def settle(self) -> None:
        """Give the unspent rest of the block back; call when the transcript is durable."""
        self.block.settle(self.spent)


class LoopSource(Source, Protocol):
    """A kind of query for the compiled loop; see `sfumato.vault.queries`.

    Attributes
    ----------
    options
        Of the compiler.
    noises
        Of vectors, if there is a first query, and of scalars: each (scale, coordinates, rows evaluated or None for all).
    """

    @property
    def options(self) -> Any: ...  # noqa: D102 (above)

    @property
    def noises(self) -> Sequence[tuple[float, int, int | None]]: ...  # noqa: D102

    def enter(self, table: LocalEngine, states: State) -> tuple[Any, Array]:
        """What the loop holds, and what it keeps of the records where the chains are. Private."""
        ...


@closed("unused noise")
class _Chain(NamedTuple):
    """A chain that was begun: its compiled loop, and where what it uses up comes from."""

    source: LoopSource
    loop: Callable[..., tuple[Looped, Array]]
    kernel: Any
    pools: list[NoisePool]

    def fresh(self, size: int, chains: int) -> Fresh:
        """Noise of so many steps."""
        vectors = None
        if len(self.pools) > 1:
            dim = self.kernel.matrix.shape[-1]
            vectors = self.pools[0].take(size * chains * dim).reshape(size, chains, dim)
        return Fresh(self.pools[-1].take(size * chains).reshape(size, chains), vectors)


@closed("records and unused noise")
class Vault:
    """Records, sensitivity, noise and ledger behind one wall.

    Parameters
    ----------
    records
        The validated table.
    study
        Public: what is inferred, where records live, how far one record can move an answer.
    account
        Where every answer is paid for.
    precision
        "float64" or "float32": how records are evaluated. It costs accuracy of the log ratio, never privacy.
    source
        scale -> noise source. For tests alone; the public functions do not expose it.
    """

    def __init__(
        self,
        records: Records,
        study: Study,
        account: Account,
        *,
        precision: str = "float64",
        source: Callable[[float], NoiseSource] | None = None,
    ) -> None:
        self._engine = LocalEngine(records, study, precision=precision)
        self.n, self._study, self._account, self._source = records.n, study, account, source
        self._large = sum(column.size for column in self._engine.records.columns.values()) >= LARGE
        release_memory(code=self._large)
        self._chain: _Chain | None = None
        self._held: Any = None
        self._kept: Array = None
        self._released: set[str] = set()

    # -- vectors: the pilot ---------------------------------------------------------------------------------------

    def release(
        self, what: str, theta: np.ndarray, matrix: np.ndarray, radius: float, sigma: float, centre: np.ndarray | None = None
    ) -> np.ndarray:  # fmt: skip
        r"""Noisy sum over records of a whitened vector, each record's term cut to a ball.

        Parameters
        ----------
        what
            "gradient", "information" or "outer": see `model.derivatives.vector_function`.
        theta, matrix
            Where, and A.
        radius
            Terms further than this from the centre are moved to it: private always, a bias for a pilot if it is chosen badly.
        sigma
            Noise per coordinate.
        centre
            Of the ball; the origin by default. Public: it costs nothing and may shorten the radius.

        Notes
        -----
        Privacy: replacing one record moves the sum by at most :math:`2R + \gamma\sqrt k`, k the number of coordinates.
        """
        asked = Release(
            what=what,
            theta=np.asarray(theta, float).tolist(),
            matrix=np.asarray(matrix, float).tolist(),
            radius=float(radius),
            sigma=float(sigma),
            centre=[] if centre is None else np.asarray(centre, float).tolist(),
        )
        return self._answer(asked)

    def _answer(self, asked: Release) -> np.ndarray:
        quote, query = quote_release(self._engine, self._study.model.dim, asked, self._noise)
        block = self._account.reserve(quote.quanta)
        answer = np.array(quote.answer().numbers, np.int64).astype(np.float64) * query.gamma + self.n * query.centre
        block.settle(quote.quanta)
        if asked.what not in self._released:  # it was compiled
            self._released.add(asked.what)
            release_memory(code=self._large)
        return answer

    def forget(self) -> None:
        """Drop what was compiled for releases: the pilot is over. Of a large table, drop all that was compiled so far."""
        self._released.clear()
        self._engine.forget()
        if self._large:
            forget_compiled()

    # -- scalars: the chain ---------------------------------------------------------------------------------------

    def begin(self, kernel: Kernel, sigma: float, states: State) -> None:
        """Settle kernel and noise for the chain to come, and compile its loop."""
        self.close()
        self.forget()
        self._begin([kernel], sigma, states)
        # Of what the first pass took to compile: the loop is compiled at the first chunk.
        release_memory(code=self._large)

    def begin_each(self, kernels: list[ReferenceLangevin], sigma: float, states: State) -> None:
        """The same for chains that have a reference point each (with one step size and one trust region): many runs at once."""
        self.close()
        self._begin(kernels, sigma, states)

    def _begin(self, kernels: Sequence[Any], sigma: float, states: State) -> None:
        one, kernel = len(kernels) == 1, kernels[0]
        with jax.enable_x64(True):
            source = self._source_of(kernels, sigma, len(states.theta))
            loop = compile_loop(source, self._study.model.log_prior, each=not one, options=source.options)
            pools = [NoisePool(self._noise(*noise)) for noise in source.noises]
            stacked = kernel if one else jax.tree.map(lambda *rows: jnp.stack(rows), *kernels)
            self._chain = _Chain(source, loop, stacked, pools)
            self._start_over(states)

    def _source_of(self, kernels: Sequence[Any], sigma: float, chains: int) -> LoopSource:
        """What answers a chain, by the kind of query that its moves lack."""
        engine, study, kernel, n = self._engine, self._study, kernels[0], self.n
        if kernel.second == "remainder":
            return RemainderSource(engine, kernels, sigma, chains)
        if kernel.second == "linear":
            return LangevinSource(study.family, kernel, sigma, n, chains)
        if study.bounds.statistic and study.family is not None:
            return WalkSource(study.family, study.model, study.bounds.range, sigma, n)
        gamma, cached = lattice.choose_gamma(sigma, n), engine.keeps_terms(chains)
        return RatioSource(engine.how, study.bounds.range_for(n), gamma, sigma, n, cached)

    def _start_over(self, states: State) -> None:
        """Compute anew what a chain from these states keeps of the records. Private."""
        if self._chain is None:
            raise RuntimeError("Vault.begin must be called before a chain can start.")
        self._held, self._kept = self._chain.source.enter(self._engine, states)

    def chunk(self, states: State, draws: Draw, limit: int, expected: int, at_least: int = 1) -> Chunk:
        """Take up to `limit` steps of every chain.

        Parameters
        ----------
        states, draws
            Where the chains are; public random numbers, one row per possible step.
        limit
            Steps at the most.
        expected
            Quanta to reserve for them; if they cost more, fewer steps are taken.
        at_least
            Quanta below which there is no use in reserving (what the next step is known to need).

        Raises
        ------
        BudgetSpent
            Before anything is computed, if not even `at_least` is left.
        """
        if self._chain is None:
            raise RuntimeError("Vault.begin must be called before Vault.chunk.")
        chain = self._chain
        block = self._account.reserve_up_to(min(max(expected, at_least), MAX_CAP), at_least)
        with jax.enable_x64(True):
            fresh = jax.device_put(chain.fresh(len(draws.log_u), len(states.theta)))
            answered, self._kept = chain.loop(
                self._held, chain.kernel, states, self._kept, jax.device_put(draws), fresh, limit, block.quanta
            )
            steps = int(answered.steps)
            parts = (None if part is None else np.asarray(part)[:steps] for part in answered.transcript)
            transcript = Transcript(*parts)
        needed = min(int(answered.needed), MAX_CAP)  # beyond it no account can pay, and none is asked for more
        return Chunk(answered.states, transcript, steps, int(answered.spent), needed, block)

    @property
    def waited(self) -> float:
        """Seconds spent waiting for noise so far."""
        return sum(pool.waited for pool in self._chain.pools) if self._chain is not None else 0.0

    @property
    def rows(self) -> int:
        """Rows evaluated a step: n, or the possible records of a small finite domain. Public either way."""
        return self._engine.rows

    @property
    def longest(self) -> int:
        """Steps of a chunk at the most: they are compiled, and even thousands take a moment."""
        return 8192

    @property
    def left(self) -> int:
        """Quanta left in the account."""
        return self._account.left

    def close(self) -> None:
        """Stop drawing noise and forget what was kept."""
        for pool in self._chain.pools if self._chain is not None else ():
            pool.close()
        self._chain = self._held = self._kept = None

    def _noise(self, scale: float, coordinates: int, records: int | None = None) -> NoiseSource:
        """The source for a query that evaluates so many rows (all of them by default)."""
        return self._source(scale) if self._source else source_for(scale, records or self.rows, coordinates)
