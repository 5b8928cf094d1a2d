"""The desk: where an owner's answers are paid for and handed out, one round at a time.

In process with one owner a chain is one compiled loop (`Vault.chunk`). Everywhere else (a node, several owners, a cluster) the
analyst's own loop asks, and this counter answers. A known query id with the same content gets the stored bytes, for ever; the
same id with another content is refused; anything new is paid for first. Budget is reserved in blocks of several rounds, one
durable commit a block; what a crash leaves of a block is forfeited, never overspent.

Sealed is a way of answering, for every kind of question: the numbers get the owner's share of the noise, are paid for against
the coalition and, from an account of its own, against everybody, and leave under masks that cancel in the sum of all members.
"""

import threading
from collections.abc import Callable

import numpy as np
from msgspec import structs

from sfumato.bounds.bounds import SEARCHED
from sfumato.errors import BudgetSpent, InvalidInput, KeysGone, LedgerError
from sfumato.privacy.budget import MAX_RELEASES
from sfumato.privacy.coalition import Part, alone, check_shares, part_of, quanta_for_everybody
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
from sfumato.vault.ledger import Account, JournalledAccount
from sfumato.vault.noise import NoisePool, Source, source_for
from sfumato.vault.purse import Purse
from sfumato.vault.queries.base import Quote, Rounds, matrix_of
from sfumato.vault.queries.linear import LinearRounds, langevin_scalars
from sfumato.vault.queries.ratio import RatioRounds
from sfumato.vault.queries.remainder import RemainderRounds
from sfumato.vault.queries.vector import StatisticRounds, quote_release, score_sum, statistic_sum
from sfumato.vault.sealed.session import RunKeys

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
    keys, everybody
        Of a run whose answers are sealed: this owner's keys, and the account of its promise against everybody. A desk that has
        them answers nothing unsealed.
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
        keys: RunKeys | None = None,
        everybody: Account | None = None,
    ) -> None:
        if (keys is None) != (everybody is None):
            raise InvalidInput("sealed answers are paid for twice: keys and an account against everybody go together.")
        self._own, self._keys = own, keys
        self._engine, self._study, self._account, self._source = engine, study, account, source
        self._journal, self._answers = kept, kept or account
        self._lock = threading.RLock()
        self._terms: Terms | None = None
        self._naming = Naming()
        self._agreed, self._rounds = Agreed(), dict[type, Rounds]()
        self._purse = Purse(account, kept)
        self._everybody = None if everybody is None else Purse(everybody)
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
            return self._purse.left

    @property
    def spent(self) -> int:
        """Quanta spent on answers, with what a crash forfeited."""
        with self._lock:
            return self._purse.spent

    @property
    def left_for_everybody(self) -> int:
        """Quanta left of the promise against everybody; 0 where answers are not sealed."""
        with self._lock:
            return 0 if self._everybody is None else self._everybody.left

    @property
    def spent_for_everybody(self) -> int:
        """Quanta spent of it."""
        with self._lock:
            return 0 if self._everybody is None else self._everybody.spent

    # -- keys -----------------------------------------------------------------------------------------------------

    def key_message(self) -> bytes:
        """The owner's key message for the run; see `RunKeys.message`."""
        with self._lock:
            self._check_open()
            return self._sealing.message()

    def agree(self, messages: list[bytes]) -> bytes:
        """Agree on the keys of all members; gives the digest of the keyset. See `RunKeys.agree`."""
        with self._lock:
            self._check_open()
            keys = self._sealing
            before, agreed = keys.agreement, keys.agree(messages)
            if before is not None and before[1:] != agreed[1:] and self._terms is not None:
                self._end_chain()  # what was settled rested on other numbers of records or colluders
            self._catching_up = True
            return agreed.keyset

    @property
    def _sealing(self) -> RunKeys:
        if self._keys is None:
            raise InvalidInput("this run is not sealed: it has no keys.")
        return self._keys

    def _part(self, shares: list[float]) -> Part:
        """The owner's part of an answer; refused where the question is not asked in the way that this run is answered."""
        if self._keys is None:
            if shares:
                raise InvalidInput(
                    "this run is not sealed, and the question is for a sealed sum; open the run as sealed."
                )
            return alone(self.n)
        if not shares:
            raise InvalidInput(
                "this run is sealed: state how all members share the noise. Nothing is answered unsealed."
            )
        agreed = self._keys.agreement
        if agreed is None:
            raise KeysGone("a sealed sum needs the keys of all members; agree on them first.")
        check_shares(shares, len(agreed.colluders))
        return part_of(shares, self._keys.me, self._keys.colluders, agreed.n)

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
                part = self._part(terms.shares)
                _check_terms(terms, part)
                agreed, rounds = self._rounds_for(terms, part)
                self._end_chain()
                self._terms, self._naming, self._agreed, self._rounds = terms, Naming(terms), agreed, rounds
            return self._agreed

    def _rounds_for(self, terms: Terms, part: Part) -> tuple[Agreed, dict[type, Rounds]]:
        """What a chain on these terms asks for, and what answers it: with its own noise, priced by what is paid for."""
        engine, study, chains = self._engine, self._study, terms.chains
        second = terms.sigma * part.own / terms.gamma
        paid, paid_first = structs.replace(terms, sigma=terms.sigma * part.paid), terms.proposal_sigma * part.paid
        if terms.kernel == WALK:
            searched, pool = study.bounds.kind == SEARCHED, NoisePool(self._noise(second, 1))
            return Agreed(searched=searched), {Ratio: RatioRounds(engine, study, paid, part.n, pool)}
        dim = study.model.dim
        matrix = matrix_of("matrix", terms.matrix, dim, dim)
        first = terms.proposal_sigma * part.own / terms.proposal_gamma
        if terms.centre:
            if study.reference_bounds is None:
                raise InvalidInput(
                    "kernel='langevin' needs bounds that follow from the model; this owner's are stated ones."
                )
            study.reference_bounds.check()
            proven = study.reference_bounds.at(matrix_of("centre", [terms.centre], 1, dim)[0], matrix)
            scores = score_sum(proven, matrix, terms.proposal_gamma, part.n)
            total = engine.sum(scores)
            pools = [NoisePool(self._noise(scale, dim + 1)) for scale in (first, second)]
            statistic = StatisticRounds(scores, total, scores.diameter, chains, [paid_first], pools[:1])
            remainder = RemainderRounds(engine, study.reference_bounds, proven, paid, part.n, pools[1])
            return Agreed(middle=[0] * dim, searched=proven.searched), {Statistic: statistic, Remainder: remainder}
        if study.family is None or not study.natural:
            raise InvalidInput(
                "kernel='langevin' needs an exponential family in its natural parameter, such as sf.families.Bernoulli()."
            )
        query = statistic_sum(study.family, matrix, terms.proposal_gamma, part.n)
        total, copies = engine.sum(query), terms.copies
        # No pass over the records a round: OpenDP's sampler would be all that one waits for.
        pools = [NoisePool(self._noise(first, dim, 1)), NoisePool(self._noise(second, dim if copies else 1, 1))]
        sigmas = [paid_first, paid.sigma] if copies else [paid_first]
        rounds: dict[type, Rounds] = {
            Statistic: StatisticRounds(query, total, query.moved, chains, sigmas, pools[: len(sigmas)])
        }
        if not copies:
            scalars = langevin_scalars(query, paid.sigma, terms.gamma, self.n, paid_first, part.n)
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
        KeysGone
            It was asked under keys of a sealed sum that are gone, and was not answered under them.
        """
        with self._lock:
            self._check_open()
            name, keys = self._naming.name(question), self._keys
            known = keys is not None and (keys.was_begun(query_id) or not keys.current(query_id))
            if (known or self._catching_up) and (stored := self._replay(query_id, name)) is not None:
                return stored
            if known:
                raise KeysGone("this round is asked under keys that are gone; agree on new ones.")
            quote, part = self._quote(question)
            try:
                block = self._purse.reserve(quote.quanta)
                if self._everybody is not None:
                    self._everybody.reserve(quanta_for_everybody(quote.quanta, part.dearer))
            except BudgetSpent:
                if (stored := self._replay(query_id, name)) is not None:
                    return stored
                raise
            if keys is not None:
                return self._answer_sealed(query_id, name, question, quote, part, keys)
            gamma, numbers, widths, answered = quote.answer()
            self._warm.add(type(question))
            body = encode(
                Reply(id=query_id, gamma=gamma, numbers=numbers, widths=widths, answered=answered, quanta=quote.quanta)
            )
            kept = self._answers.record(query_id, name, block, quote.quanta, body, sync=False)
            if kept is body:
                self._purse.take(quote.quanta)
            else:  # it was answered before, here or elsewhere: this answer is thrown away, and more like it may come
                self._catching_up = True
            return kept

    def _answer_sealed(
        self, query_id: str, name: str, question: Question, quote: Quote, part: Part, keys: RunKeys
    ) -> bytes:
        """Commit the tag and the charge; draw; store the masked bytes; only then are they sent.

        The charge was reserved, durably. The key that the tag's masks are made from is in this process alone: a tag that was
        begun and not stored dies with it. If anything goes wrong in between, the key is thrown away here.
        """
        keys.begin(query_id)
        try:
            self._purse.take(quote.quanta)
            if self._everybody is not None:
                self._everybody.take(quanta_for_everybody(quote.quanta, part.dearer))
            gamma, plain, widths, answered = quote.answer()
            self._warm.add(type(question))
            numbers, tag = keys.seal(query_id, name, plain, answered)
            reply = Reply(
                id=query_id,
                gamma=gamma,
                numbers=numbers,
                widths=widths,
                answered=answered,
                quanta=quote.quanta,
                tag=tag,
            )
            block = self._purse.reserve(0)
            return self._answers.record(query_id, name, block, quote.quanta, encode(reply), sync=False)
        except BaseException:
            keys.expire()
            raise

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

    def _quote(self, question: Question) -> tuple[Quote, Part]:
        if isinstance(question, Release):
            part = self._part(question.shares)
            quote, _ = quote_release(self._engine, self._study.model.dim, question, self._noise, part)
        elif self._terms is None:
            raise InvalidInput("a chain must begin before it asks; call begin(terms) first.")
        else:
            rounds = self._rounds.get(type(question))
            if rounds is None:
                told = " and ".join(kind.__name__ for kind in self._rounds)
                raise InvalidInput(f"this chain was begun for {told}, got a {type(question).__name__}.")
            # Every number has a floor on its price: a rest that does not cover those covers nothing.
            rest, part = self._purse.rest, self._part(self._terms.shares)
            if self._everybody is not None:  # nothing is summed before both have paid
                rest = min(rest, int(self._everybody.rest / part.dearer * (1 - 2.0**-20)))
            covered = rest if rest >= self._floor * self._terms.chains else -1
            quote = rounds.quote(question, covered)
        # A reply without a number costs as much as one: the ledger keeps nothing that was free.
        return quote._replace(quanta=max(quote.quanta, self._floor * max(quote.numbers, 1))), part

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
            self._purse.settle()
            if self._everybody is not None:
                self._everybody.settle()
            if self._keys is not None:
                self._keys.expire()
            if self._journal is not None:
                self._journal.close()
            if self._own:
                self._engine.close()

    def _noise(self, scale: float, coordinates: int, records: int | None = None) -> Source:
        return self._source(scale) if self._source else source_for(scale, records or self._engine.rows, coordinates)


# -- checks -----------------------------------------------------------------------------------------------------------


def _check_terms(terms: Terms, part: Part) -> None:
    if terms.kernel not in (WALK, LANGEVIN):
        raise InvalidInput(f"terms.kernel must be {WALK!r} or {LANGEVIN!r}, got {terms.kernel!r}.")
    if not 1 <= terms.chains <= MAX_CHAINS:
        raise InvalidInput(f"terms.chains must lie between 1 and {MAX_CHAINS}, got {terms.chains}.")
    _check_noise("sigma", terms.sigma, terms.gamma, part)
    if terms.kernel == LANGEVIN:
        _check_noise("proposal_sigma", terms.proposal_sigma, terms.proposal_gamma, part)
    if terms.copies and (terms.kernel != LANGEVIN or terms.centre or terms.gamma != terms.proposal_gamma):
        raise InvalidInput(
            "second copies are for Langevin on a family, whose corrections are linear in the statistic, and are counted on the "
            "lattice of the first."
        )


def _check_noise(name: str, sigma: float, gamma: float, part: Part) -> None:
    """Noise and lattice fit each other, for every owner whose noise is in the sum."""
    if not (np.isfinite(sigma) and MIN_SIGMA <= sigma * part.least and sigma * part.most <= MAX_SIGMA):
        raise InvalidInput(f"{name} must lie between {MIN_SIGMA:.2g} and {MAX_SIGMA:g}, got {sigma}.")
    coarse, fine = lattice.choose_gamma(sigma * part.least, part.n), sigma * part.most * 2.0**LATTICE_LOG2
    power = np.isfinite(gamma) and gamma > 0 and float(np.frexp(gamma)[0]) == 0.5
    if not (power and fine <= gamma <= coarse):
        raise InvalidInput(
            f"the lattice of {name} must be a power of two from {fine:.3g} to {coarse:.3g}, got {gamma}."
        )
