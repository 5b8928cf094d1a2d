"""The desk: where an owner's answers are paid for and handed out, one round at a time.

In process with one owner a chain is one compiled loop (`Vault.chunk`). Everywhere else (a node, several owners, a cluster) the
analyst's own loop asks, and this counter answers. A known query id with the same content gets the stored bytes, for ever; the
same id with another content is refused; anything new is paid for first. Budget is reserved in blocks of several rounds, one
durable commit a block; what a crash leaves of a block is forfeited, never overspent.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sfumato.bounds.reference import Reference
from sfumato.errors import BudgetSpent, InvalidInput, LedgerError
from sfumato.kernel import Langevin
from sfumato.model import derivatives
from sfumato.privacy.budget import MAX_RELEASES, cost_quanta, mu_squared
from sfumato.protocol.questions import (
    AHEAD,
    AHEAD_NUMBERS,
    LANGEVIN,
    WALK,
    Agreed,
    Correction,
    Naming,
    Question,
    Ratio,
    Release,
    Remainder,
    Reply,
    Statistic,
    Terms,
    decode_reply,
    encode,
)
from sfumato.study.target import Study
from sfumato.vault import lattice, moments, reference
from sfumato.vault.closed import closed
from sfumato.vault.engine import Asked, Bend, Engine, Place, Price, Priced, Spot
from sfumato.vault.langevin import (
    LangevinQuestion,
    coordinate_ranges,
    exact_scalar,
    scalar_width,
)
from sfumato.vault.ledger import Account, Block, JournalledAccount
from sfumato.vault.ledger.account import MAX_CAP
from sfumato.vault.noise import NoisePool, Source, source_for
from sfumato.vault.packing import pack_lists, packed, unpack, unpacked, x64
from sfumato.vault.sufficient import scalar_quanta

ROUNDS_PER_BLOCK = 32
"""Rounds a reservation is made for: a durable commit takes milliseconds, and a crash forfeits at most so many rounds."""
BLOCKS_PER_CAP = 512
"""A block may always be this part of the cap: where rounds are cheap, one commit serves many of them."""
MIN_SIGMA = 2.0**-14
MAX_SIGMA = 2.0**14
MAX_CHAINS = 4096
LATTICE_LOG2 = -49
"""gamma >= 2^-49 sigma: beyond it the noise would not fit its sampler."""

_YES = [True]


class Answer(NamedTuple):
    """A noisy answer that has not left yet, as Python's own numbers."""

    gamma: float
    numbers: list[int]
    widths: list[float]
    answered: list[bool]


@closed("an answer that is not paid for")
class _Quote(NamedTuple):
    """What a question costs, and how to answer it once it is paid for."""

    quanta: int
    answer: Callable[[], Answer]


@dataclass(frozen=True)
class _SharedQuestion(LangevinQuestion):
    """Langevin's question on lattices that several owners agreed on."""

    proposal_gamma: float = 0.0
    shared_gamma: float = 0.0

    @property
    def gamma(self) -> float:
        """Lattice of the first query."""
        return self.proposal_gamma

    @property
    def gamma_scalar(self) -> float:
        """Lattice of the second query."""
        return self.shared_gamma


@closed("unused noise")
class Desk:
    """One study's counter in front of one owner's records.

    Parameters
    ----------
    engine
        Sums over the records.
    study
        Public: model, domain, bounds, family.
    account
        Where every answer is paid for, and where answers are kept by query id.
    source
        scale -> noise source. For tests alone.
    kept
        Where answers are kept by query id, if not in the account itself: a node's journal.
    own
        Whether the engine is let go of with the desk.
    """

    def __init__(
        self,
        engine: Engine,
        study: Study,
        account: Account,
        *,
        source: Callable[[float], Source] | None = None,
        kept: JournalledAccount | None = None,
        own: bool = False,
    ) -> None:
        self._own = own
        self._engine, self._study, self._account, self._source = engine, study, account, source
        self._journal, self._answers = kept, kept or account
        self._lock = threading.RLock()
        self._terms: Terms | None = None
        self._naming = Naming()
        self._chain: _Walk | _Family | _Near | None = None
        self._block: Block | None = None
        self._rest = 0
        self._catching_up = True
        self._closed = False
        self._warm: set[type] = set()  # kinds of question this chain has answered
        # A floor on the price of a number keeps their count under the one the lattice slack was stated for.
        self._floor = -(-account.cap // MAX_RELEASES)

    @property
    def n(self) -> int:
        """Number of records."""
        return self._engine.n

    @property
    def rows(self) -> int:
        """Rows evaluated a round: public."""
        return self._engine.rows

    @property
    def here(self) -> bool:
        """Whether answers are computed in this process."""
        return self._engine.here

    @property
    def left(self) -> int:
        """Quanta that can still be spent here: the account's, and the rest of the open block."""
        with self._lock:
            return self._account.left + self._rest

    @property
    def spent(self) -> int:
        """Quanta spent on answers, with what a crash forfeited."""
        with self._lock:
            return self._account.spent - self._rest

    def begin(self, terms: Terms) -> Agreed:
        """Settle the terms of a chain. The same terms again change nothing, so a client may come back and go on.

        Raises
        ------
        InvalidInput
            A term is outside what this desk answers for.
        """
        with self._lock:
            self._check_open()
            if self._chain is None or terms != self._terms:
                _check_terms(terms, self.n)
                chain = self._new_chain(terms)
                self._end_chain()
                self._terms, self._naming, self._chain = terms, Naming(terms), chain
            assert self._chain is not None  # noqa: S101 (set just above)
            return self._chain.agreed

    def _new_chain(self, terms: Terms) -> "_Walk | _Family | _Near":
        kind: Any = _Walk if terms.kernel != LANGEVIN else _Near if terms.centre else _Family
        made: _Walk | _Family | _Near = kind(self._engine, self._study, terms, self._noise)
        return made

    def answer(self, query_id: str, question: Question) -> Reply:
        """Answer a question, or give the answer it got before; see `answer_bytes`."""
        return decode_reply(self.answer_bytes(query_id, question))

    def answer_bytes(self, query_id: str, question: Question) -> bytes:
        """Answer a question, or give the answer it got before, as the bytes the ledger keeps.

        Raises
        ------
        BudgetSpent
            The answer would pass the cap. Nothing was answered or spent.
        LedgerError
            The id was used for another content, or the ledger cannot be written.
        InvalidInput
            The question does not fit the terms.
        """
        with self._lock:
            self._check_open()
            name = self._naming.name(question)
            if self._catching_up and (stored := self._replay(query_id, name)) is not None:
                return stored
            quote = self._quote(question)
            try:
                block = self._reserve(quote.quanta)
            except BudgetSpent:
                if (stored := self._replay(query_id, name)) is not None:
                    return stored
                raise
            gamma, numbers, widths, answered = quote.answer()
            self._warm.add(type(question))
            body = encode(
                Reply(id=query_id, gamma=gamma, numbers=numbers, widths=widths, answered=answered, quanta=quote.quanta)
            )
            kept = self._answers.record(query_id, name, block, quote.quanta, body, sync=False)
            if kept is body:
                self._rest -= quote.quanta
            else:  # it was answered before, here or elsewhere: this answer is thrown away, and more like it may come
                self._catching_up = True
            return kept

    def is_warm(self, question: Question) -> bool:
        """Whether a question like this one can be answered without compiling anything: public, by its kind alone.

        A pilot's release is compiled for its own kind of vector, so none counts as warm.
        """
        return type(question) in self._warm and not isinstance(question, Release)

    def _check_open(self) -> None:
        """A closed desk has let its account go: another one may be answering for it by now."""
        if self._closed:
            raise LedgerError("a closed desk answers nothing; open the run again.")

    def _replay(self, query_id: str, name: str) -> bytes | None:
        """Look a query up before it is computed.

        For a client who comes back: until the first query that was not answered before. After that the ledger decides when
        the answer is recorded, which saves one look-up a query.
        """
        stored = self._answers.replay(query_id, name)
        self._catching_up = stored is not None
        return stored

    def _quote(self, question: Question) -> _Quote:
        if isinstance(question, Release):
            quote, numbers = self._quote_release(question)
        elif self._chain is None or self._terms is None:
            raise InvalidInput("a chain must begin before it asks; call begin(terms) first.")
        else:
            # Every number has a floor on its price: a rest that does not cover those covers nothing.
            covered = self._rest if self._rest >= self._floor * self._terms.chains else -1
            quote, numbers = self._chain.quote(question, covered)
        # A reply without a number costs as much as one: the ledger keeps nothing that was free.
        return quote._replace(quanta=max(quote.quanta, self._floor * max(numbers, 1)))

    def _quote_release(self, asked: Release) -> tuple[_Quote, int]:
        radius, sigma, study = asked.radius, asked.sigma, self._study
        moments.check_asked(radius, sigma)
        dim = study.model.dim
        theta = _matrix("theta", [asked.theta], 1, dim)[0]
        matrix = _matrix("matrix", asked.matrix, dim, dim)
        size = derivatives.size(asked.what, dim)
        centre = moments.check_centre(np.asarray(asked.centre, np.float64), size)
        gamma = moments.gamma_for(self.n, radius, sigma)
        moved = 2 * radius * moments.ROUNDING + gamma * size**0.5

        def answer() -> Answer:
            noise = self._noise(sigma / gamma, size).draw(size)
            total = self._engine.vector(asked.what, theta, matrix, centre, radius, gamma)
            return Answer(gamma, (total + noise).tolist(), [moved], _YES)

        return _Quote(cost_quanta((moved / sigma) ** 2), answer), size

    def _reserve(self, quanta: int) -> Block:
        """A block with room for this answer; its rest, if it has none, goes back first."""
        if quanta > MAX_CAP:
            raise BudgetSpent(
                f"no answer may pass a cap, and this one needs mu squared {mu_squared(quanta):.3g}, more than any account has; "
                "use a larger sigma or a smaller step.",
                needed=mu_squared(quanta),
                left=mu_squared(self._account.left),
            )
        if self._block is None or self._rest < quanta:
            self._settle()
            ahead = max(ROUNDS_PER_BLOCK * quanta, self._account.cap // BLOCKS_PER_CAP)
            self._block = self._account.reserve_up_to(max(quanta, min(ahead, self._most())), quanta)
            self._rest = self._block.quanta
        return self._block

    def _most(self) -> int:
        """Never reserve more than a sixteenth of the cap ahead: that much could be forfeited."""
        return self._account.cap // 16

    def _settle(self) -> None:
        if self._block is not None:
            if self._journal is not None:
                self._journal.fold()  # its answers must be in the ledger before their block is closed
            self._block.settle(self._block.quanta - self._rest)
            self._block, self._rest = None, 0

    def _end_chain(self) -> None:
        if self._chain is not None:
            self._chain.close()
        self._engine.forget()
        self._chain, self._terms, self._naming, self._warm = None, None, Naming(), set()

    @property
    def waited(self) -> float:
        """Seconds spent waiting for noise so far."""
        return sum(pool.waited for pool in self._chain.pools) if self._chain is not None else 0.0

    def close(self) -> None:
        """Give back what is left of the open block, stop drawing noise, forget what was kept."""
        with self._lock:
            self._closed = True
            self._end_chain()
            self._settle()
            if self._journal is not None:
                self._journal.close()
            if self._own:
                self._engine.close()

    def _noise(self, scale: float, coordinates: int, records: int | None = None) -> Source:
        return self._source(scale) if self._source else source_for(scale, records or self._engine.rows, coordinates)


@lru_cache(maxsize=32)
def _ratio_price(range_: Callable[..., Any]) -> Price:
    """Build the `Price` of log ratios; owners here share it, and what is compiled from it."""

    def price(theta: Any, theta_prop: Any, asked: Any, gamma: Any, n: Any, sigma: Any) -> Any:
        lo, hi = lax.map(lambda pair: range_(*pair), (theta, theta_prop))  # chain by chain, as in `scan`
        return _priced(lo, hi, asked, gamma, n, sigma)

    return price


def _priced(lo: Any, hi: Any, asked: Any, gamma: Any, n: Any, sigma: Any) -> tuple[Any, Any, lattice.Clamp]:
    """Charge, widths and clamps of terms in proven ranges."""
    clamp = lattice.clamp_for(lo, hi, gamma, n)
    clamp = clamp._replace(admissible=clamp.admissible & asked)
    widths = jnp.where(clamp.admissible, lattice.width(clamp, gamma), 0.0)
    return lattice.cost(clamp, gamma, sigma), widths, clamp


@lru_cache(maxsize=32)
def _price_alone(price: Price, chains: int, dim: int) -> Callable[[Asked, int], Priced]:
    """Compile a price by itself: for tables whose sums come after it."""
    rows = float, (chains, dim)

    @jax.jit
    def run(numbers: Any) -> Any:
        parts = (int, ()), (bool, (chains,)), (float, ()), (float, ()), rows, rows
        n, asked, gamma, sigma, theta, theta_prop = unpack(numbers, *parts)
        charge, widths, clamp = price(theta, theta_prop, asked, gamma, n, sigma)
        return packed(charge, widths, *clamp)

    def apply(asked: Asked, n: int) -> Priced:
        with x64():
            reals = [asked.gamma, asked.sigma, *asked.theta, *asked.theta_prop]
            return _read_price(run(pack_lists([n, *asked.asked], reals)), chains)

    return apply


def _read_price(row: Any, chains: int) -> Priced:
    (charge,), *found = unpacked(row, (int, 1), (float, chains), (int, chains), (int, chains), (bool, chains))
    return Priced(charge, *found)


@closed("unused noise")
class _Walk:
    """Rounds of a walk: one log ratio per chain."""

    agreed = Agreed()

    def __init__(self, engine: Engine, study: Study, terms: Terms, noise: Callable[..., Source]) -> None:
        self._engine, self._terms = engine, terms
        self._dim = study.model.dim
        self.pools = [NoisePool(noise(terms.sigma / terms.gamma, 1))]
        self._price = _ratio_price(study.bounds.range_for(engine.n))
        # Kept here: others' chains may push it out of the cache, and the next round would compile it again.
        self._price_alone = _price_alone(self._price, terms.chains, self._dim)

    def quote(self, question: Question, covered: int) -> tuple[_Quote, int]:
        if not isinstance(question, Ratio):
            raise InvalidInput(f"a walk asks for ratios, got a {type(question).__name__}.")
        terms, chains, dim = self._terms, self._terms.chains, self._dim
        theta = _numbers("theta", question.theta, chains, dim)
        theta_prop = _numbers("theta_prop", question.theta_prop, chains, dim)
        asked = Asked(theta, theta_prop, _flags(question.asked, chains), terms.gamma, terms.sigma, covered)
        priced = self._engine.priced_ratio(self._price, asked)
        if priced is None:
            priced = self._price_alone(asked, self._engine.n)

        def answer() -> Answer:
            noise, totals = self.pools[0].numbers(chains), self._totals(asked, priced)
            return Answer(terms.gamma, _noisy(totals, noise, priced.admissible), priced.widths, priced.admissible)

        return _Quote(priced.charge, answer), sum(priced.admissible)

    def _totals(self, asked: Asked, priced: Priced) -> list[int]:
        """The exact ratios, of a question that is paid for."""
        if priced.totals is not None:
            return priced.totals
        again = self._engine.priced_ratio(self._price, asked._replace(covered=priced.charge))
        if again is not None and again.totals is not None:
            return again.totals
        theta, theta_prop = (np.array(x).reshape(-1, self._dim) for x in (asked.theta, asked.theta_prop))
        spot = Spot(theta, theta_prop, np.array(priced.lo), np.array(priced.hi), asked.gamma)
        return self._engine.ratio(spot).tolist()

    def close(self) -> None:
        for pool in self.pools:
            pool.close()


@closed("exact sums and unused noise")
class _Family:
    """Rounds of Langevin on a family: a statistic, then a correction; or both at once, as two copies of the statistic."""

    def __init__(self, engine: Engine, study: Study, terms: Terms, noise: Callable[..., Source]) -> None:
        if study.family is None or not study.natural:
            raise InvalidInput(
                "kernel='langevin' needs an exponential family in its natural parameter, such as sf.families.Bernoulli()."
            )
        dim = study.model.dim
        root = _matrix("matrix", terms.matrix, dim, dim)
        # A step of 4/xi is the one whose proposal noise is this owner's share.
        kernel = Langevin(root, 4.0 / terms.proposal_sigma**2, lambda theta: theta)
        question = _SharedQuestion(
            study.family, study.model, kernel, terms.sigma, engine.n, terms.chains, terms.proposal_gamma, terms.gamma
        )
        lo, hi = coordinate_ranges(question)
        self.agreed = Agreed(middle=((lo + hi) // 2).tolist())
        self._terms, self._dim = terms, dim
        self._first = question.first_cost()
        self._diameter = [question.moved()]
        # A record moves a second copy by as much as the first; its noise is another.
        self._both = self._first + cost_quanta((question.moved() / terms.sigma) ** 2)
        with jax.enable_x64(True):
            self._summed = engine.statistic(question)
            self._total = jax.device_put(self._summed)
            width = scalar_width(question)
        widest = question.widest()
        reach = jax.device_put(engine.n * np.maximum(hi - lo, 1).astype(np.float64)) * terms.proposal_gamma

        def price(total: Any, numbers: Any) -> Any:
            asked, direction = unpack(numbers, (bool, (terms.chains,)), (float, (terms.chains, dim)))
            widths = jax.vmap(width)(direction)
            fits = jnp.sum(jnp.abs(direction) * reach, axis=1) / terms.gamma <= lattice.SUM_LIMIT
            asked = asked & (widths <= widest) & fits  # as in the compiled loop: one stray move does not end the run
            widths = jnp.where(asked, widths, 0.0)
            exact = exact_scalar(question, total, jnp.where(asked[:, None], direction, 0.0))
            return packed(scalar_quanta(widths, asked, terms.sigma), widths, exact, asked)

        # Price and exact scalar in one compiled call: the scalar waits here until it is paid for and has its noise.
        self._price = jax.jit(price)
        # No pass over the records a round: OpenDP's sampler would be all that one waits for.
        self.pools = [
            NoisePool(noise(terms.proposal_sigma / terms.proposal_gamma, dim, 1)),
            NoisePool(noise(terms.sigma / terms.gamma, dim if terms.copies is True else 1, 1)),
        ]

    def quote(self, question: Question, covered: int) -> tuple[_Quote, int]:
        if isinstance(question, Statistic):
            return self._quote_copies(question) if self._terms.copies is True else self._quote_statistic(question)
        if isinstance(question, Correction) and self._terms.copies is not True:
            return self._quote_correction(question)
        raise InvalidInput(f"Langevin asks for statistics and corrections, got a {type(question).__name__}.")

    def _quote_statistic(self, question: Statistic) -> tuple[_Quote, int]:
        rows, dim, total = _statistics(question, self._terms.chains, self._dim), self._dim, self._summed

        def answer() -> Answer:
            noise = self.pools[0].take(rows * dim).reshape(rows, dim)
            return Answer(self._terms.proposal_gamma, (total + noise).ravel().tolist(), self._diameter, _YES)

        return _Quote(self._first * rows, answer), rows * dim

    def _quote_copies(self, question: Statistic) -> tuple[_Quote, int]:
        """The proposal's copy and the correction's, for every step and chain: both are paid for, or neither is given."""
        rows, dim = _statistics(question, self._terms.chains, 2 * self._dim), self._dim

        def answer() -> Answer:
            copies = [self._summed + pool.take(rows * dim).reshape(rows, dim) for pool in self.pools]
            numbers = np.stack(copies, axis=1).ravel().tolist()
            return Answer(self._terms.proposal_gamma, numbers, self._diameter, _YES)

        return _Quote(self._both * rows, answer), rows * 2 * dim

    def _quote_correction(self, question: Correction) -> tuple[_Quote, int]:
        chains = self._terms.chains
        asked = _flags(question.asked, chains)
        direction = _numbers("direction", question.direction, chains, self._dim)
        with x64():
            row = self._price(self._total, pack_lists(asked, direction))
        (charge,), widths, exact, admissible = unpacked(row, (int, 1), (float, chains), (int, chains), (bool, chains))

        def answer() -> Answer:
            noise = self.pools[1].numbers(chains)
            return Answer(self._terms.gamma, _noisy(exact, noise, admissible), widths, admissible)

        return _Quote(charge, answer), sum(admissible)

    def close(self) -> None:
        for pool in self.pools:
            pool.close()


@lru_cache(maxsize=32)
def _remainder_price(near: Reference, chains: int, dim: int) -> Callable[..., Any]:
    """As `_ratio_price`, of second-order scalars: (anchor, what is asked, packed) -> the price, packed."""
    rows = (float, (chains, dim))

    def price(anchor: Any, numbers: Any) -> Any:
        parts = (int, ()), (bool, (chains,)), (float, ()), (float, ()), rows, rows, rows
        n, asked, gamma, sigma, theta, theta_prop, slope = unpack(numbers, *parts)
        lo, hi = lax.map(lambda row: near.range(anchor, *row), (theta, theta_prop, theta_prop - theta - slope))
        charge, widths, clamp = _priced(lo, hi, asked, gamma, n, sigma)
        return packed(charge, widths, *clamp)

    return jax.jit(price)


@closed("exact sums and unused noise")
class _Near:
    """Rounds of Langevin around a reference point: a noisy gradient there, then second-order scalars."""

    def __init__(self, engine: Engine, study: Study, terms: Terms, noise: Callable[..., Source]) -> None:
        if study.reference_bounds is None:
            raise InvalidInput("kernel='langevin' needs proven bounds; this owner's are stated ones.")
        dim, near = study.model.dim, study.reference_bounds
        near.check()
        root = _matrix("matrix", terms.matrix, dim, dim)
        centre = _matrix("centre", [terms.centre], 1, dim)[0]
        proven = near.at(centre, root)
        low, high = reference.integer_range(proven.gradients, terms.proposal_gamma, engine.n)
        self.agreed = Agreed(middle=[0] * dim)
        self._engine, self._terms, self._dim = engine, terms, dim
        self._body = jax.tree.map(np.asarray, proven.body)  # plain numbers: they may travel to where the records are
        self._first = reference.first_cost(proven.gradients, terms.proposal_sigma, terms.proposal_gamma)
        self._diameter = [proven.gradients.diameter]
        self._total = engine.gradient(Place(self._body, root, low, high, terms.proposal_gamma))
        self._anchor, self._price = proven.anchor, _remainder_price(near, terms.chains, dim)
        self.pools = [
            NoisePool(noise(terms.proposal_sigma / terms.proposal_gamma, dim + 1)),
            NoisePool(noise(terms.sigma / terms.gamma, dim + 1)),
        ]

    def quote(self, question: Question, covered: int) -> tuple[_Quote, int]:
        if isinstance(question, Statistic):
            return self._quote_statistic(question)
        if isinstance(question, Remainder):
            return self._quote_remainder(question)
        raise InvalidInput(
            f"Langevin around a reference point asks for statistics and remainders, got a {type(question).__name__}."
        )

    def _quote_statistic(self, question: Statistic) -> tuple[_Quote, int]:
        rows, dim = _statistics(question, self._terms.chains, self._dim), self._dim

        def answer() -> Answer:
            noise = self.pools[0].take(rows * dim).reshape(rows, dim)
            return Answer(self._terms.proposal_gamma, (self._total + noise).ravel().tolist(), self._diameter, _YES)

        return _Quote(self._first * rows, answer), rows * dim

    def _quote_remainder(self, question: Remainder) -> tuple[_Quote, int]:
        chains, dim, gamma = self._terms.chains, self._dim, self._terms.gamma
        names = ("theta", "theta_prop", "slope")
        points = [_numbers(name, getattr(question, name), chains, dim) for name in names]
        asked = _flags(question.asked, chains)
        with x64():
            reals = [gamma, self._terms.sigma, *points[0], *points[1], *points[2]]
            row = self._price(self._anchor, pack_lists([self._engine.n, *asked], reals))
            priced = _read_price(row, chains)

        def answer() -> Answer:
            noise = self.pools[1].numbers(chains)
            theta, theta_prop, slope = (np.array(x).reshape(chains, dim) for x in points)
            bend = Bend(theta, theta_prop, slope, self._body, np.array(priced.lo), np.array(priced.hi), gamma)
            totals = self._engine.remainder(bend).tolist()
            return Answer(gamma, _noisy(totals, noise, priced.admissible), priced.widths, priced.admissible)

        return _Quote(priced.charge, answer), sum(priced.admissible)

    def close(self) -> None:
        for pool in self.pools:
            pool.close()


# -- checks -----------------------------------------------------------------------------------------------------------


def _check_terms(terms: Terms, n: int) -> None:
    if terms.kernel not in (WALK, LANGEVIN):
        raise InvalidInput(f"terms.kernel must be {WALK!r} or {LANGEVIN!r}, got {terms.kernel!r}.")
    if not 1 <= terms.chains <= MAX_CHAINS:
        raise InvalidInput(f"terms.chains must lie between 1 and {MAX_CHAINS}, got {terms.chains}.")
    _check_noise("sigma", terms.sigma, terms.gamma, n)
    if terms.kernel == LANGEVIN:
        _check_noise("proposal_sigma", terms.proposal_sigma, terms.proposal_gamma, n)
    if terms.copies is True and (terms.kernel != LANGEVIN or terms.centre or terms.gamma != terms.proposal_gamma):
        raise InvalidInput(
            "second copies are for Langevin on a family, whose corrections are linear in the statistic, and are counted on the "
            "lattice of the first."
        )


def _check_noise(name: str, sigma: float, gamma: float, n: int) -> None:
    if not (np.isfinite(sigma) and MIN_SIGMA <= sigma <= MAX_SIGMA):
        raise InvalidInput(f"{name} must lie between {MIN_SIGMA:.2g} and {MAX_SIGMA:g}, got {sigma}.")
    coarse = lattice.choose_gamma(sigma, n)
    power = np.isfinite(gamma) and gamma > 0 and float(np.frexp(gamma)[0]) == 0.5
    if not (power and sigma * 2.0**LATTICE_LOG2 <= gamma <= coarse):
        raise InvalidInput(
            f"the lattice of {name} must be a power of two from {sigma * 2.0**LATTICE_LOG2:.3g} to {coarse:.3g}, got {gamma}."
        )


def _matrix(name: str, rows: Any, count: int, width: int) -> np.ndarray:
    try:
        array = np.array(rows, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.zeros(0)
    if array.shape != (count, width) or not np.isfinite(array).all():
        raise InvalidInput(f"{name} must be {count} rows of {width} finite numbers, got shape {array.shape}.")
    return array


def _numbers(name: str, rows: list[list[float]], count: int, width: int) -> list[float]:
    """The same, row after row in one list: a message's own numbers, which need no array before they are packed."""
    try:
        flat = rows[0] if len(rows) == 1 else [x for row in rows for x in row]
        fine = len(rows) == count and all(len(row) == width for row in rows) and all(map(isfinite, flat))
    except TypeError:
        fine = False
    if not fine:
        raise InvalidInput(f"{name} must be {count} rows of {width} finite numbers.")
    return flat


def _statistics(question: Statistic, chains: int, dim: int) -> int:
    """How many statistics are asked for: one for each chain and step. Others wait while they are drawn, so not too many."""
    if question.chains != chains:
        raise InvalidInput(f"this chain began with {chains} chains, got a question for {question.chains}.")
    if not 1 <= question.steps <= AHEAD:
        raise InvalidInput(f"statistics are given for 1 to {AHEAD} steps at a time, got {question.steps}.")
    if question.steps > 1 and chains * question.steps * dim > AHEAD_NUMBERS:
        raise InvalidInput(
            f"statistics of several steps are at most {AHEAD_NUMBERS} numbers, got {chains * question.steps * dim}."
        )
    return chains * question.steps


def _flags(asked: list[bool], chains: int) -> list[bool]:
    if len(asked) != chains:
        raise InvalidInput(f"asked must say yes or no for each of {chains} chains, got {len(asked)}.")
    return asked


def _noisy(exact: list[int], noise: list[int], admissible: list[bool]) -> list[int]:
    """Exact sums and their noise; nothing for chains that are not answered."""
    return [x + z if yes else 0 for x, z, yes in zip(exact, noise, admissible, strict=True)]
