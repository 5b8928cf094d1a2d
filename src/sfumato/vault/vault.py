"""The vault: records behind a wall, and the two kinds of answer that leave it.

`Vault.release` answers a pilot's question about a sum of vectors; `Vault.chunk` runs steps of a chain. Both reserve
their whole charge in the ledger, durably, before a number is computed, and both hand out noisy values only. A crash
after the reservation forfeits it: budget may be wasted, never overspent.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.domain import Domain
from sfumato.errors import InvalidInput
from sfumato.families.base import Family
from sfumato.kernel import Draw, Kernel, Langevin, ReferenceLangevin, State
from sfumato.model import Model, derivatives
from sfumato.privacy.budget import cost_quanta
from sfumato.sensitivity import Bounds
from sfumato.sensitivity.reference import Reference
from sfumato.vault import langevin, lattice, moments, reference, scan, sufficient
from sfumato.vault.kinds import count_kinds
from sfumato.vault.ledger import Account, Block
from sfumato.vault.ledger.account import MAX_CAP
from sfumato.vault.noise import NoisePool, Source, source_for
from sfumato.vault.records import Records, check_precision
from sfumato.vault.sealed import sealed
from sfumato.vault.trim import LARGE, forget_compiled, trim

Array: TypeAlias = Any


@dataclass(frozen=True)
class Chunk:
    """Some steps of all chains, paid for: what the sampler keeps, and the block to settle once it is kept safe."""

    states: State
    transcript: scan.Transcript
    steps: int
    spent: int
    needed: int
    block: Block

    def settle(self) -> None:
        """Give the unspent rest of the block back; call when the transcript is durable."""
        self.block.settle(self.spent)


@sealed("records and unused noise")
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
        records = count_kinds(records, domain)
        self._model, self._domain, self._bounds, self._account = model, domain, bounds, account
        self._precision, self._source, self._family = precision, source, family
        self._near = near if near is not None else Reference(model, domain)
        with jax.enable_x64(True):
            self._records = records.on_device()
        self._large = sum(column.size for column in self._records.columns.values()) >= LARGE
        trim(code=self._large)
        self._pools: list[NoisePool] = []
        self._run: Callable[[State, Draw, int, int], scan.Answered] | None = None
        self._enter: Callable[[State], Array] | None = None
        self._gamma = 0.0
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
            trim(code=self._large)
        return answer

    def forget(self) -> None:
        """Drop what was compiled for releases: the pilot is over. Of a large table, drop all that was compiled so far."""
        self._sums.clear()
        if self._large:
            forget_compiled()
        else:
            trim()

    # -- scalars: the chain ---------------------------------------------------------------------------------------

    def begin(self, kernel: Kernel | Langevin, sigma: float, states: State) -> None:
        """Settle kernel and noise for the chain to come, and compile its loop."""
        self.close()
        self.forget()
        with jax.enable_x64(True):
            if isinstance(kernel, ReferenceLangevin):
                self._begin_reference([kernel], sigma, len(states.theta))
            elif isinstance(kernel, Langevin):
                self._begin_langevin(kernel, sigma, len(states.theta))
            elif self._bounds.statistic and self._family is not None:
                self._begin_scalar(self._family, kernel, sigma, len(states.theta))
            else:
                self._begin_walk(kernel, sigma, len(states.theta))
            self._start_over(states)
        trim(code=self._large)  # of what the first pass took to compile: the loop is compiled at the first chunk

    def begin_each(self, kernels: list[ReferenceLangevin], sigma: float, states: State) -> None:
        """The same for chains that have a reference point each (with one step size and one trust region): many runs at once."""
        self.close()
        with jax.enable_x64(True):
            self._begin_reference(kernels, sigma, len(states.theta))
            self._start_over(states)

    def _start_over(self, states: State) -> None:
        """Compute anew what a chain from these states keeps of the records. Private."""
        if self._enter is None:
            raise RuntimeError("Vault.begin must be called before a chain can start.")
        self._kept = self._enter(states)

    def _begin_walk(self, kernel: Kernel, sigma: float, chains: int) -> None:
        gamma = lattice.choose_gamma(sigma, self.n)
        question = scan.Question(
            self._model,
            self._domain,
            kernel,
            self._bounds.range_for(self.n),
            sigma,
            gamma,
            self.n,
            self.rows,
            chains,
            self._precision,
        )
        pool = NoisePool(self._noise(sigma / gamma, 1))
        compiled = scan.compile_scan(question)
        terms = jax.jit(lambda r, t: scan.terms(question, r, t))

        def enter(states: State) -> Array:
            return terms(self._records, states.theta) if question.cached else jnp.zeros((chains, 0))

        def run(states: State, draws: Draw, limit: int, allowance: int) -> scan.Answered:
            size = len(draws.log_u)
            noise = pool.take(size * chains).reshape(size, chains)
            answered, self._kept = compiled(
                self._records, states, self._kept, draws, jax.device_put(noise), limit, allowance
            )
            return answered

        self._run, self._enter, self._pools, self._gamma = run, enter, [pool], gamma

    def _begin_scalar(self, family: Family, kernel: Kernel, sigma: float, chains: int) -> None:
        """Walk on a family: the sum of statistics answers, without a pass over the records."""
        question = sufficient.ScalarQuestion(family, self._model, kernel, self._bounds.range, sigma, self.n, chains)
        root, gamma = np.eye(family.size), question.gamma_sum
        total = sufficient.compile_sum(family, root, gamma, self.n, self._domain, self._precision)
        pool = NoisePool(self._noise(sigma / question.gamma, 1, records=1))
        compiled = sufficient.compile_walk(question)

        def run(states: State, draws: Draw, limit: int, allowance: int) -> scan.Answered:
            size = len(draws.log_u)
            noise = jax.device_put(pool.take(size * chains).reshape(size, chains))
            return compiled(self._kept, states, draws, noise, limit, allowance)

        self._run, self._pools, self._gamma = run, [pool], question.gamma
        self._enter = lambda states: total(self._records)

    def _begin_langevin(self, kernel: Langevin, sigma: float, chains: int) -> None:
        if self._family is None:
            raise InvalidInput("kernel='langevin' needs an exponential family such as sf.families.Bernoulli().")
        question = langevin.LangevinQuestion(self._family, self._model, kernel, sigma, self.n, chains)
        total = langevin.compile_sum(question, self._domain, self._precision)
        dim = kernel.matrix.shape[1]
        # No pass over the records a step: OpenDP's sampler would be all that one waits for.
        vectors = NoisePool(self._noise(kernel.proposal_sigma / question.gamma, dim, records=1))
        scalars = NoisePool(self._noise(sigma / question.gamma_scalar, 1, records=1))
        compiled = langevin.compile_langevin(question)

        def run(states: State, draws: Draw, limit: int, allowance: int) -> scan.Answered:
            size = len(draws.log_u)
            noise = jax.device_put(vectors.take(size * chains * dim).reshape(size, chains, dim))
            scalar_noise = jax.device_put(scalars.take(size * chains).reshape(size, chains))
            return compiled(self._kept, states, draws, noise, scalar_noise, limit, allowance)

        self._run, self._pools, self._gamma = run, [vectors, scalars], question.gamma
        self._enter = lambda states: total(self._records)

    def _begin_reference(self, kernels: list[ReferenceLangevin], sigma: float, chains: int) -> None:
        """One kernel for all chains, or one for each (of the same step and trust region)."""
        dim, kernel = self._model.dim, kernels[0]
        question = reference.ReferenceQuestion(
            self._model, self._domain, self._near, kernel.step, kernel.trust, sigma, self.n, self.rows, chains,
            self._precision,
        )  # fmt: skip
        point = reference.point_at(question, kernels)
        at, one = (point.body, point.matrix, point.low, point.high), len(kernels) == 1
        sums = jax.jit(lambda r, p: jax.lax.map(lambda q: reference.exact_total(question, r, *q), p))
        every = jax.jit(lambda r, b: jax.lax.map(lambda body: reference.all_vectors(question, r, body), b))
        terms = jax.jit(jax.vmap(lambda r, t: reference.terms(question, r, t), (None, 0)))

        def enter(states: State) -> Array:
            rows = self._records
            kept_vectors, kept = jnp.zeros((0, dim)), jnp.zeros((chains, 0))
            if question.cached:
                each = every(rows, jax.tree.map(lambda a: a[:1], point.body) if one else point.body)
                kept_vectors, kept = each[0] if one else each, terms(rows, states.theta)
            return sums(rows, at), kept_vectors, kept

        vectors = NoisePool(self._noise(question.proposal_sigma / question.gamma, dim + 1))
        scalars = NoisePool(self._noise(sigma / question.gamma_scalar, dim + 1))
        compiled = reference.compile_reference(question)

        def run(states: State, draws: Draw, limit: int, allowance: int) -> scan.Answered:
            size = len(draws.log_u)
            noise = jax.device_put(vectors.take(size * chains * dim).reshape(size, chains, dim))
            scalar_noise = jax.device_put(scalars.take(size * chains).reshape(size, chains))
            totals, kept_vectors, kept = self._kept
            answered, kept = compiled(
                self._records, point, totals, kept_vectors, states, kept, draws, noise, scalar_noise, limit, allowance
            )
            self._kept = totals, kept_vectors, kept
            return answered

        self._run, self._enter, self._pools, self._gamma = run, enter, [vectors, scalars], question.gamma

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
        if self._run is None:
            raise RuntimeError("Vault.begin must be called before Vault.chunk.")
        block = self._account.reserve_up_to(min(max(expected, at_least), MAX_CAP), at_least)
        with jax.enable_x64(True):
            answered = self._run(states, scan.as_device(draws), limit, block.quanta)
            steps = int(answered.steps)
            parts = (None if part is None else np.asarray(part)[:steps] for part in answered.transcript)
            transcript = scan.Transcript(*parts)
        needed = min(int(answered.needed), MAX_CAP)  # beyond it no account can pay, and none is asked for more
        return Chunk(answered.states, transcript, steps, int(answered.spent), needed, block)

    @property
    def waited(self) -> float:
        """Seconds spent waiting for noise so far."""
        return sum(pool.waited for pool in self._pools)

    @property
    def gamma(self) -> float:
        """Lattice of the running chain."""
        return self._gamma

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
        for pool in self._pools:
            pool.close()
        self._pools, self._run, self._enter, self._kept = [], None, None, None

    def _noise(self, scale: float, coordinates: int, records: int | None = None) -> Source:
        """The source for a query that evaluates so many rows (all of them by default)."""
        return self._source(scale) if self._source else source_for(scale, records or self.rows, coordinates)
