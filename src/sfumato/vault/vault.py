"""The vault: records behind a wall, and the two kinds of answer that leave it.

`Vault.release` answers a pilot's question about a sum of vectors; `Vault.chunk` runs steps of a chain. Both reserve
their whole charge in the ledger, durably, before a number is computed, and both hand out noisy values only. A crash
after the reservation forfeits it: budget may be wasted, never overspent.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.bounds import Bounds
from sfumato.bounds.reference import Reference
from sfumato.domain import Domain
from sfumato.errors import InvalidInput
from sfumato.families.base import Family
from sfumato.kernel import Draw, Kernel, Langevin, ReferenceLangevin, State
from sfumato.kernel.loop import Looped, Transcript, compile_loop
from sfumato.model import Model, derivatives
from sfumato.privacy.budget import cost_quanta
from sfumato.vault import langevin, lattice, moments, reference, scan, sufficient
from sfumato.vault.blocks import LEAN, Fresh, Rows
from sfumato.vault.closed import closed
from sfumato.vault.counting import count_records
from sfumato.vault.ledger import Account, Block
from sfumato.vault.ledger.account import MAX_CAP
from sfumato.vault.memory import LARGE, forget_compiled, release_memory
from sfumato.vault.noise import NoisePool, Source, source_for
from sfumato.vault.records import Records, check_precision

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


@closed("unused noise")
class _Chain(NamedTuple):
    """A chain that was begun: its compiled loop, and where what it uses up comes from.

    `enter` gives what the loop holds, and what it keeps of the records where the chains are. `fresh` gives noise for so many
    steps.
    """

    loop: Callable[..., tuple[Looped, Array]]
    kernel: Any
    enter: Callable[[Rows, State], tuple[Any, Array]]
    fresh: Callable[[int], Any]
    pools: list[NoisePool]


def _two_noises(vectors: NoisePool, scalars: NoisePool, chains: int, dim: int, size: int) -> Fresh:
    """Noise of so many Langevin steps."""
    first = vectors.take(size * chains * dim).reshape(size, chains, dim)
    return Fresh(first, scalars.take(size * chains).reshape(size, chains))


@closed("records and unused noise")
class Vault:
    """Records, sensitivity, noise and ledger behind one wall.

    Parameters
    ----------
    records
        The validated table.
    model, domain, bounds
        Public: what is inferred, where records live, how far one record can move an answer.
    account
        Where every answer is paid for.
    precision
        "float64" or "float32": how records are evaluated. It costs accuracy of the log ratio, never privacy.
    family, near
        Public: the exponential family, if it is one; what is proven near a reference point (made if not given).
    source
        scale -> noise source. For tests alone; the public functions do not expose it.
    """

    def __init__(
        self,
        records: Records,
        model: Model,
        domain: Mapping[str, Domain],
        bounds: Bounds,
        account: Account,
        *,
        precision: str = "float64",
        family: Family | None = None,
        near: Reference | None = None,
        source: Callable[[float], Source] | None = None,
    ) -> None:
        check_precision(precision)
        self.n = records.n
        records = count_records(records, domain)
        self._model, self._domain, self._bounds, self._account = model, domain, bounds, account
        self._precision, self._source, self._family = precision, source, family
        self._near = near if near is not None else Reference(model, domain)
        with jax.enable_x64(True):
            self._records = records.on_device()
        self._large = sum(column.size for column in self._records.columns.values()) >= LARGE
        release_memory(code=self._large)
        self._chain: _Chain | None = None
        self._held: Any = None
        self._kept: Array = None
        self._sums: dict[str, Callable[..., Array]] = {}

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
        moments.check_asked(radius, sigma)
        size = derivatives.size(what, self._model.dim)
        middle = moments.check_centre(centre, size)
        gamma = moments.gamma_for(self.n, radius, sigma)
        moved = 2 * radius * moments.ROUNDING + gamma * size**0.5
        charge = cost_quanta((moved / sigma) ** 2)
        block = self._account.reserve(charge)
        noise = self._noise(sigma / gamma, size).draw(size)
        with jax.enable_x64(True):
            fresh = what not in self._sums
            if fresh:
                self._sums[what] = moments.compile_sum(what, self._model, self._domain, self._precision)
            point = (np.asarray(x, np.float64) for x in (theta, matrix, middle, radius, gamma))
            total = self._sums[what](self._records, *point)
            answer = (np.asarray(total) + noise).astype(np.float64) * gamma + self.n * middle
        block.settle(charge)
        if fresh:
            release_memory(code=self._large)
        return answer

    def forget(self) -> None:
        """Drop what was compiled for releases: the pilot is over. Of a large table, drop all that was compiled so far."""
        self._sums.clear()
        if self._large:
            forget_compiled()
        else:
            release_memory()

    # -- scalars: the chain ---------------------------------------------------------------------------------------

    def begin(self, kernel: Kernel, sigma: float, states: State) -> None:
        """Settle kernel and noise for the chain to come, and compile its loop."""
        self.close()
        self.forget()
        with jax.enable_x64(True):
            chains = len(states.theta)
            if isinstance(kernel, ReferenceLangevin):
                self._chain = self._around([kernel], sigma, chains)
            elif isinstance(kernel, Langevin):
                self._chain = self._on_statistic(kernel, sigma, chains)
            elif self._bounds.statistic and self._family is not None:
                self._chain = self._by_scalars(self._family, kernel, sigma, chains)
            else:
                self._chain = self._by_ratios(kernel, sigma, chains)
            self._start_over(states)
        release_memory(
            code=self._large
        )  # of what the first pass took to compile: the loop is compiled at the first chunk

    def begin_each(self, kernels: list[ReferenceLangevin], sigma: float, states: State) -> None:
        """The same for chains that have a reference point each (with one step size and one trust region): many runs at once."""
        self.close()
        with jax.enable_x64(True):
            self._chain = self._around(kernels, sigma, len(states.theta))
            self._start_over(states)

    def _start_over(self, states: State) -> None:
        """Compute anew what a chain from these states keeps of the records. Private."""
        if self._chain is None:
            raise RuntimeError("Vault.begin must be called before a chain can start.")
        self._held, self._kept = self._chain.enter(self._records, states)

    def _by_ratios(self, kernel: Kernel, sigma: float, chains: int) -> "_Chain":
        gamma, range_ = lattice.choose_gamma(sigma, self.n), self._bounds.range_for(self.n)
        question = scan.Question(
            self._model, self._domain, range_, sigma, gamma, self.n, self.rows, chains, self._precision
        )
        terms = jax.jit(lambda r, t: scan.terms(question, r, t))

        def enter(rows: Rows, states: State) -> tuple[Any, Array]:
            return rows, terms(rows, states.theta) if question.cached else jnp.zeros((chains, 0))

        loop = compile_loop(scan.Ratios(question), self._model.log_prior, options=scan.WIDE)
        scalars = NoisePool(self._noise(sigma / gamma, 1))
        return _Chain(loop, kernel, enter, lambda size: scalars.take(size * chains).reshape(size, chains), [scalars])

    def _by_scalars(self, family: Family, kernel: Kernel, sigma: float, chains: int) -> "_Chain":
        """Walk on a family: the sum of statistics answers, without a pass over the records."""
        question = sufficient.ScalarQuestion(family, self._model, self._bounds.range, sigma, self.n)
        root, gamma = np.eye(family.size), question.gamma_sum
        total = sufficient.compile_sum(family, root, gamma, self.n, self._domain, self._precision)
        loop = compile_loop(sufficient.Scalars(question), self._model.log_prior)
        scalars = NoisePool(self._noise(sigma / question.gamma, 1, records=1))

        def enter(rows: Rows, states: State) -> tuple[Any, Array]:
            return total(rows), jnp.zeros((chains, 0))

        return _Chain(loop, kernel, enter, lambda size: scalars.take(size * chains).reshape(size, chains), [scalars])

    def _on_statistic(self, kernel: Langevin, sigma: float, chains: int) -> "_Chain":
        if self._family is None:
            raise InvalidInput("kernel='langevin' needs an exponential family such as sf.families.Bernoulli().")
        question = langevin.LangevinQuestion(self._family, self._model, kernel, sigma, self.n, chains)
        total = langevin.compile_sum(question, self._domain, self._precision)
        source = langevin.Corrections(question)
        loop = compile_loop(source, self._model.log_prior, first=source.first)
        # No pass over the records a step: OpenDP's sampler would be all that one waits for.
        dim = kernel.matrix.shape[1]
        vectors = NoisePool(self._noise(kernel.proposal_sigma / question.gamma, dim, records=1))
        scalars = NoisePool(self._noise(sigma / question.gamma_scalar, 1, records=1))

        def enter(rows: Rows, states: State) -> tuple[Any, Array]:
            return total(rows), jnp.zeros((chains, 0))

        return _Chain(loop, kernel, enter, partial(_two_noises, vectors, scalars, chains, dim), [vectors, scalars])

    def _around(self, kernels: list[ReferenceLangevin], sigma: float, chains: int) -> "_Chain":
        """One kernel for all chains, or one for each (of the same step and trust region)."""
        dim, one = self._model.dim, len(kernels) == 1
        question = reference.ReferenceQuestion(
            self._model, self._domain, self._near, kernels[0].step, sigma, self.n, self.rows, chains, self._precision
        )
        point = reference.point_at(question, kernels)
        at = point.body, point.matrix, point.low, point.high
        sums = jax.jit(lambda r, p: jax.lax.map(lambda q: reference.exact_total(question, r, *q), p))
        every = jax.jit(lambda r, b: jax.lax.map(lambda body: reference.all_vectors(question, r, body), b))
        terms = jax.jit(jax.vmap(lambda r, t: reference.terms(question, r, t), (None, 0)))

        def enter(rows: Rows, states: State) -> tuple[Any, Array]:
            kept_vectors, kept = jnp.zeros((0, dim)), jnp.zeros((chains, 0))
            if question.cached:
                each = every(rows, jax.tree.map(lambda a: a[:1], point.body) if one else point.body)
                kept_vectors, kept = each[0] if one else each, terms(rows, states.theta)
            return reference.Held(rows, point, sums(rows, at), kept_vectors), kept

        source, options = reference.Remainders(question), None if question.cached else LEAN
        loop = compile_loop(source, self._model.log_prior, first=source.first, each=not one, options=options)
        vectors = NoisePool(self._noise(question.proposal_sigma / question.gamma, dim + 1))
        scalars = NoisePool(self._noise(sigma / question.gamma_scalar, dim + 1))
        kernel = kernels[0] if one else jax.tree.map(lambda *rows: jnp.stack(rows), *kernels)
        return _Chain(loop, kernel, enter, partial(_two_noises, vectors, scalars, chains, dim), [vectors, scalars])

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
            fresh = jax.device_put(chain.fresh(len(draws.log_u)))
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
        """Rows evaluated a step: n, or the kinds of record of a small finite domain. Public either way."""
        return self._records.number

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

    def _noise(self, scale: float, coordinates: int, records: int | None = None) -> Source:
        """The source for a query that evaluates so many rows (all of them by default)."""
        return self._source(scale) if self._source else source_for(scale, records or self.rows, coordinates)
