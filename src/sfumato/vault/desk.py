"""The desk: where an owner's answers are paid for and handed out, one round at a time.

In process with one owner a chain is one compiled loop (`Vault.chunk`). Everywhere else (a node, several owners, a cluster) the
analyst's own loop asks, and this counter answers. A known query id with the same content gets the stored bytes, for ever; the
same id with another content is refused; anything new is paid for first. Budget is reserved in blocks of several rounds, one
durable commit a block; what a crash leaves of a block is forfeited, never overspent.
"""

import threading
from collections.abc import Callable

import numpy as np

from sfumato.bounds.bounds import SEARCHED
from sfumato.errors import BudgetSpent, InvalidInput, LedgerError
from sfumato.privacy.budget import MAX_RELEASES, mu_squared
from sfumato.protocol.questions import (
    LANGEVIN,
    WALK,
    Agreed,
    Linear,
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
from sfumato.vault import lattice
from sfumato.vault.closed import closed
from sfumato.vault.engine import Engine
from sfumato.vault.ledger import Account, Block, JournalledAccount
from sfumato.vault.ledger.account import MAX_CAP
from sfumato.vault.noise import NoisePool, Source, source_for
from sfumato.vault.queries.base import Quote, Rounds, matrix_of
from sfumato.vault.queries.linear import LinearRounds, langevin_scalars
from sfumato.vault.queries.ratio import RatioRounds
from sfumato.vault.queries.remainder import RemainderRounds
from sfumato.vault.queries.vector import StatisticRounds, quote_release, score_sum, statistic_sum

ROUNDS_PER_BLOCK = 32
"""Rounds a reservation is made for: a durable commit takes milliseconds, and a crash forfeits at most so many rounds."""
BLOCKS_PER_CAP = 512
"""A block may always be this part of the cap: where rounds are cheap, one commit serves many of them."""
MIN_SIGMA = 2.0**-14
MAX_SIGMA = 2.0**14
MAX_CHAINS = 4096
LATTICE_LOG2 = -49
"""gamma >= 2^-49 sigma: beyond it the noise would not fit its sampler."""


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
        self._agreed, self._rounds = Agreed(), dict[type, Rounds]()
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
            if terms != self._terms:
                _check_terms(terms, self.n)
                agreed, rounds = self._rounds_for(terms)
                self._end_chain()
                self._terms, self._naming, self._agreed, self._rounds = terms, Naming(terms), agreed, rounds
            return self._agreed

    def _rounds_for(self, terms: Terms) -> tuple[Agreed, dict[type, Rounds]]:
        """What a chain on these terms asks for, and what answers it."""
        engine, study, chains = self._engine, self._study, terms.chains
        if terms.kernel == WALK:
            searched = study.bounds.kind == SEARCHED
            return Agreed(searched=searched), {Ratio: RatioRounds(engine, study, terms, self._noise)}
        dim = study.model.dim
        matrix = matrix_of("matrix", terms.matrix, dim, dim)
        first, second = terms.proposal_sigma / terms.proposal_gamma, terms.sigma / terms.gamma
        if terms.centre:
            if study.reference_bounds is None:
                raise InvalidInput(
                    "kernel='langevin' needs bounds that follow from the model; this owner's are stated ones."
                )
            study.reference_bounds.check()
            proven = study.reference_bounds.at(matrix_of("centre", [terms.centre], 1, dim)[0], matrix)
            scores = score_sum(proven, matrix, terms.proposal_gamma, self.n)
            total = engine.sum(scores)
            pools = [NoisePool(self._noise(scale, dim + 1)) for scale in (first, second)]
            statistic = StatisticRounds(scores, total, scores.diameter, chains, [terms.proposal_sigma], pools[:1])
            remainder = RemainderRounds(engine, study.reference_bounds, proven, terms, pools[1])
            return Agreed(middle=[0] * dim, searched=proven.searched), {Statistic: statistic, Remainder: remainder}
        if study.family is None or not study.natural:
            raise InvalidInput(
                "kernel='langevin' needs an exponential family in its natural parameter, such as sf.families.Bernoulli()."
            )
        query = statistic_sum(study.family, matrix, terms.proposal_gamma, self.n)
        total, copies = engine.sum(query), terms.copies
        # No pass over the records a round: OpenDP's sampler would be all that one waits for.
        pools = [NoisePool(self._noise(first, dim, 1)), NoisePool(self._noise(second, dim if copies else 1, 1))]
        sigmas = [terms.proposal_sigma, terms.sigma] if copies else [terms.proposal_sigma]
        rounds: dict[type, Rounds] = {
            Statistic: StatisticRounds(query, total, query.moved, chains, sigmas, pools[: len(sigmas)])
        }
        if not copies:
            scalars = langevin_scalars(query, terms.sigma, terms.gamma, self.n, terms.proposal_sigma)
            rounds[Linear] = LinearRounds(scalars, total, chains, pools[1])
        return Agreed(middle=query.box.middle.tolist()), rounds

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

    def _quote(self, question: Question) -> Quote:
        if isinstance(question, Release):
            quote, _ = quote_release(self._engine, self._study.model.dim, question, self._noise)
        elif self._terms is None:
            raise InvalidInput("a chain must begin before it asks; call begin(terms) first.")
        else:
            rounds = self._rounds.get(type(question))
            if rounds is None:
                told = " and ".join(kind.__name__ for kind in self._rounds)
                raise InvalidInput(f"this chain was begun for {told}, got a {type(question).__name__}.")
            # Every number has a floor on its price: a rest that does not cover those covers nothing.
            covered = self._rest if self._rest >= self._floor * self._terms.chains else -1
            quote = rounds.quote(question, covered)
        # A reply without a number costs as much as one: the ledger keeps nothing that was free.
        return quote._replace(quanta=max(quote.quanta, self._floor * max(quote.numbers, 1)))

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
        for pool in self._pools():
            pool.close()
        self._engine.forget()
        self._terms, self._rounds, self._naming, self._warm = None, {}, Naming(), set()

    def _pools(self) -> list[NoisePool]:
        return [pool for rounds in self._rounds.values() for pool in rounds.pools]

    @property
    def waited(self) -> float:
        """Seconds spent waiting for noise so far."""
        return sum(pool.waited for pool in self._pools())

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


# -- checks -----------------------------------------------------------------------------------------------------------


def _check_terms(terms: Terms, n: int) -> None:
    if terms.kernel not in (WALK, LANGEVIN):
        raise InvalidInput(f"terms.kernel must be {WALK!r} or {LANGEVIN!r}, got {terms.kernel!r}.")
    if not 1 <= terms.chains <= MAX_CHAINS:
        raise InvalidInput(f"terms.chains must lie between 1 and {MAX_CHAINS}, got {terms.chains}.")
    _check_noise("sigma", terms.sigma, terms.gamma, n)
    if terms.kernel == LANGEVIN:
        _check_noise("proposal_sigma", terms.proposal_sigma, terms.proposal_gamma, n)
    if terms.copies and (terms.kernel != LANGEVIN or terms.centre or terms.gamma != terms.proposal_gamma):
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
