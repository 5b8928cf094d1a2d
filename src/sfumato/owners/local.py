"""In process: data and sampler in one program, the wall between them the vault's interface."""

import dataclasses
import hashlib
import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from sfumato.bounds.bounds import SEARCHED
from sfumato.errors import BudgetSpent, CheckpointError, InvalidInput
from sfumato.kernel import Draw, Kernel, State
from sfumato.privacy import gdp
from sfumato.privacy.budget import MAX_MU, cap_quanta, mu_squared
from sfumato.privacy.coalition import check_shares, part_of
from sfumato.protocol.consortium import SealedRelease, Seat, encode, release_tag
from sfumato.protocol.questions import Agreed, Facts, Question, Reply
from sfumato.protocol.questions import Terms as QuestionTerms
from sfumato.study.target import Study
from sfumato.tools.progress import Tick
from sfumato.vault import identity, records
from sfumato.vault.audit_vault import AuditVault
from sfumato.vault.desk import Desk
from sfumato.vault.engine import Engine, LocalEngine
from sfumato.vault.ledger import Account, Block, Ledger
from sfumato.vault.noise import Source
from sfumato.vault.ray_table import RayTable
from sfumato.vault.sealed.consortium import Consortium
from sfumato.vault.statistics import StatisticsVault, Terms, centre_of, sealed_terms_for, terms_for
from sfumato.vault.vault import Chunk, Vault


def check_room(ledger: Ledger, mu: float, delta: float) -> None:
    """Refuse a run for which the ledger has too little left: it would be planned for a budget that is not there."""
    asked, left = cap_quanta(mu), ledger.left
    if left >= asked:
        return
    fits = mu_squared(left) ** 0.5
    advice = f"epsilon = {floor_to(float(gdp.epsilon(fits, delta)), 3):g} at the same delta" if fits > 0 else "nothing"
    raise BudgetSpent(
        f"the ledger must have room for all of a run, and this one may use mu squared {mu_squared(asked):.6g} where "
        f"{mu_squared(left):.6g} of {mu_squared(ledger.cap):.6g} is left; {advice} would fit.",
        needed=mu_squared(asked),
        left=mu_squared(left),
    )


def floor_to(value: float, digits: int) -> float:
    """Round down to so many decimal digits: advice must not promise more than there is."""
    return math.floor(value * 10**digits) / 10**digits


def open_account(
    ledger: Ledger | None, path: Any, run_id: str, cap: int, about: Mapping[str, Any], *, resuming: bool
) -> tuple[Account, Ledger | None]:
    """Open a run's account in the ledger given, or in one of its own; with the ledger to close if it is the run's own.

    A run that goes on must find its account: with a new one it would spend its budget a second time.
    """
    own = None
    if ledger is None:
        own = ledger = _own_ledger(path, cap, resuming)
    with _closed_on_failure(own):
        if resuming:
            _check_known(ledger.existing(run_id), cap, "the ledger given" if own is None else path)
        return ledger.account(run_id, cap, about=about), own


def _check_known(account: Account | None, cap: int, where: Any) -> None:
    if account is None:
        raise CheckpointError(
            f"a run goes on with the ledger that it paid from, and {where} has no account of this run; give the one it was "
            "started with, or restore it from a backup."
        )
    if account.cap != cap:
        raise CheckpointError(
            f"a run goes on under the promise it was started with, and its account in {where} has a cap of "
            f"{mu_squared(account.cap):.6g} (mu squared), not {mu_squared(cap):.6g}; give the same epsilon and delta."
        )


def _own_ledger(path: Any, cap: int, resuming: bool) -> Ledger:
    if path is None:
        return Ledger.in_memory(cap)
    if resuming and not path.exists():
        raise CheckpointError(
            f"a run goes on with the ledger that it paid from, and {path} is missing; restore it from a backup. Without it "
            "nobody knows what is left to spend, and nothing more is."
        )
    return Ledger(path) if resuming else Ledger.with_cap(path, cap)


@contextmanager
def _closed_on_failure(*held: Any) -> Iterator[None]:
    """Let go of what was opened so far if the rest cannot be."""
    try:
        yield
    except BaseException:
        for thing in held:
            if thing is not None:
                thing.close()
        raise


def rows_ahead(study: Study, data: Any, columns: Mapping[str, str | Sequence[str]] | None = None) -> int | None:
    """Number of records of a large file, public and known before it is read; None where there is no such file."""
    return records.rows_ahead(data, study.domain, columns)


class TableAccess:
    """One table in this process: its chains are one compiled loop, and nobody has to be waited for.

    Parameters
    ----------
    vault
        The records.
    account
        Where every answer is paid for.
    facts
        What the owner says about itself.
    own_ledger
        A ledger to close with it, if it was opened for this run alone.
    """

    shares: Sequence[float] = (1.0,)
    theta_bound = math.inf
    unused = 0

    def __init__(self, vault: Vault, account: Account, facts: Facts, own_ledger: Ledger | None) -> None:
        self._vault, self._account, self._own_ledger = vault, account, own_ledger
        self.facts = [facts]

    @property
    def n(self) -> int:
        """Number of records."""
        return self._vault.n

    @property
    def rows(self) -> int:
        """Rows evaluated a step."""
        return self._vault.rows

    @property
    def longest(self) -> int:
        """Steps of a chunk at the most."""
        return self._vault.longest

    @property
    def left(self) -> int:
        """Quanta left."""
        return self._account.left

    @property
    def waited(self) -> float:
        """Seconds spent waiting for noise so far."""
        return self._vault.waited

    def budgets(self) -> list[float]:
        """Mu squared that is left."""
        return [mu_squared(self._account.left)]

    def spent(self, number: int) -> int:
        """Quanta spent."""
        return self._account.spent

    def release(
        self, what: str, theta: np.ndarray, matrix: np.ndarray, radius: float, sigma: float, centre: np.ndarray | None = None
    ) -> np.ndarray:  # fmt: skip
        """Noisy sum of vectors, for a pilot."""
        return self._vault.release(what, theta, matrix, radius, sigma, centre)

    def pass_over(self) -> None:
        """A release that is known already is not asked again."""

    def forget(self) -> None:
        """Drop what the pilot compiled."""
        self._vault.forget()

    def expect(self, steps: int) -> None:
        """Nothing is asked ahead."""

    def begin(self, kernel: Kernel, sigma: float, states: State) -> None:
        """Settle kernel and noise."""
        self._vault.begin(kernel, sigma, states)

    def chunk(self, states: State, draws: Draw, limit: int, expected: int, at_least: int = 1) -> Chunk:
        """Steps of all chains."""
        return self._vault.chunk(states, draws, limit, expected, at_least)

    def settle(self, block: int, reserved: int, spent: int) -> None:
        """Close the block of a chunk that was kept, if a crash came between writing and settling."""
        Block(self._account, block, reserved).settle(spent)

    def close(self) -> None:
        """Let go of the records."""
        self._vault.close()
        if self._own_ledger is not None:
            self._own_ledger.close()


def open_table(
    study: Study,
    data: Any,
    *,
    name: str,
    epsilon: float,
    delta: float,
    mu: float,
    run_id: str,
    ledger: Ledger | None,
    ledger_path: Any = None,
    outside: str = "refuse",
    columns: Mapping[str, str | Sequence[str]] | None = None,
    precision: str = "float64",
    remembered: bool = False,
    resuming: bool = False,
    source: Callable[[float], Source] | None = None,
) -> TableAccess:
    """Load the records, open the account, build the vault.

    The run's cap is an account of its own, named by the run, in the ledger given; without one, in a ledger that accounts
    for this run alone (in memory, or in the checkpoint folder so that it survives). With `remembered` a keyed digest of the
    records is kept on the private side, and checked when `resuming`.
    """
    table = records.load(data, study.domain, outside=outside, columns=columns)
    _identify(table, name, run_id, remembered, resuming)
    about = {"model": study.model.fingerprint(), "n": table.n}
    account, own = open_account(ledger, ledger_path, run_id, cap_quanta(mu), about, resuming=resuming)
    with _closed_on_failure(own):
        vault = Vault(table, study, account, precision=precision, source=source)
    facts = facts_of(study, vault, name, epsilon, delta, mu, outside, precision, own is None)
    return TableAccess(vault, account, facts, own)


def open_audit_vault(
    study: Study, table: Mapping[str, Any], *, mu: float, source: Callable[[float], Source] | None = None
) -> AuditVault:
    """Put a made-up table behind a real vault, for an audit: many runs, each with a cap of `mu` of its own."""
    return AuditVault(study, table, cap_quanta(mu), source=source)


class OpenedStatistics(NamedTuple):
    """A release ready to be drawn: its public terms, its name, its account."""

    vault: StatisticsVault
    terms: Terms
    name: str
    account: Account
    own_ledger: Ledger | None
    draw: Callable[[], Iterator[np.ndarray]] | None = None

    def release(self) -> Iterator[np.ndarray]:
        """Pay, then draw."""
        return self.vault.release(self.terms, self.account) if self.draw is None else self.draw()

    def close(self) -> None:
        """Let go of the ledger if it was opened for this release alone."""
        if self.own_ledger is not None:
            self.own_ledger.close()


def open_statistics(
    study: Study,
    data: Any,
    *,
    mu: float,
    copies: int,
    xi: float | None,
    ledger: Ledger | None,
    outside: str = "refuse",
    columns: Mapping[str, str | Sequence[str]] | None = None,
    source: Callable[[float], Source] | None = None,
) -> OpenedStatistics:
    """Load the records, settle the terms of a bundle, open its account. Nothing is drawn or spent yet."""
    if study.family is None:
        raise InvalidInput("a bundle needs an exponential family such as sf.families.Bernoulli().")
    table = records.load(data, study.domain, outside=outside, columns=columns)
    terms = terms_for(study.family, table.n, copies, mu, xi)
    name, cap, own = secrets.token_hex(8), cap_quanta(mu), None
    if ledger is None:
        own = ledger = Ledger.in_memory(cap)
    account = ledger.account(name, cap, about={"model": study.model.fingerprint(), "n": table.n, "copies": copies})
    return OpenedStatistics(StatisticsVault(table, study.family, source=source), terms, name, account, own)


def open_sealed_statistics(
    study: Study,
    data: Any,
    *,
    mu: float,
    copies: int,
    xi: float | None,
    ledger: Ledger | None,
    consortium: Consortium,
    release: str,
    records_in_all: int,
    shares: Sequence[float] | None,
    outside: str = "refuse",
    columns: Mapping[str, str | Sequence[str]] | None = None,
    source: Callable[[float], Source] | None = None,
) -> tuple[OpenedStatistics, SealedRelease]:
    """The same for a sealed release, which all owners agreed on beforehand. Nothing is drawn, spent or claimed yet."""
    if study.family is None:
        raise InvalidInput("a bundle needs an exponential family such as sf.families.Bernoulli().")
    if not consortium.durable:
        raise InvalidInput(
            "a release id is remembered for ever, and this consortium has no file for it; sf.Consortium(..., book=...)."
        )
    roster, family = consortium.roster, study.family
    parts = list(shares) if shares is not None else [1.0 / consortium.size] * consortium.size
    check_shares(parts, consortium.size)
    part = part_of(parts, consortium.position, consortium.colluders, records_in_all)
    table = records.load(data, study.domain, outside=outside, columns=columns)
    if table.n >= records_in_all:
        raise InvalidInput(
            f"all owners together have more records than this one's {table.n:,}, got {records_in_all:,}."
        )
    terms = sealed_terms_for(family, records_in_all, copies, mu, part, xi)
    source_text = dataclasses.replace(family, prior=None).source()  # the prior is the analyst's own
    content = encode([source_text, copies, terms.size, terms.sd, terms.gamma, parts, records_in_all])
    tag = release_tag(roster, release, content)
    sealed = SealedRelease(
        release=release, roster=roster.digest.hex(), members=tuple(m.name for m in roster.members),
        position=consortium.position, name=consortium.me, shares=tuple(parts), colluders=consortium.colluders,
        records=records_in_all, centre=tuple(centre_of(family, terms.gamma).tolist()), tag=tag.hex(),
    )  # fmt: skip
    name, cap, own = f"{release}-{secrets.token_hex(4)}", cap_quanta(mu), None
    if ledger is None:
        own = ledger = Ledger.in_memory(cap)
    account = ledger.account(name, cap, about={"model": study.model.fingerprint(), "n": table.n, "copies": copies})
    vault = StatisticsVault(table, family, source=source)

    def draw() -> Iterator[np.ndarray]:
        claim = partial(consortium.book.claim_release, f"{sealed.roster}/{release}", sealed.tag)
        return vault.release_sealed(terms, account, sealed, consortium.release_masks(tag), claim)

    return OpenedStatistics(vault, dataclasses.replace(terms, n=table.n), name, account, own, draw), sealed


QUICK_ROWS = 1 << 15


class LocalDoor:
    """An owner in this process: a desk, and what it says about itself.

    Parameters
    ----------
    desk
        The counter.
    facts
        What is public about the owner.
    own_ledgers
        Ledgers to close with the door, if they were opened for this run alone.
    engine
        Records to let go of with the door, if they were opened for this run alone.
    """

    def __init__(self, desk: Desk, facts: Facts, *own_ledgers: Ledger | None, engine: Engine | None = None) -> None:
        self._engine = engine
        self._desk, self.facts, self._own_ledgers, self._closed = desk, facts, own_ledgers, False

    @property
    def name(self) -> str:
        """What the owner is called."""
        return self.facts.name

    @property
    def left(self) -> int:
        """Quanta left."""
        return self._desk.left

    @property
    def quick(self) -> bool:
        """Whether an answer takes less than a thread takes to hand it over: few rows a round."""
        return self._desk.here and self.facts.rows < QUICK_ROWS

    @property
    def spent(self) -> int:
        """Quanta spent, with what a crash forfeited."""
        return self._desk.spent

    @property
    def left_for_everybody(self) -> int:
        """Quanta left of the promise against everybody."""
        return self._desk.left_for_everybody

    @property
    def spent_for_everybody(self) -> int:
        """Quanta spent of it."""
        return self._desk.spent_for_everybody

    @property
    def waited(self) -> float:
        """Seconds spent waiting for noise so far."""
        return self._desk.waited

    def key_message(self) -> bytes:
        """The owner's key message, for the others."""
        return self._desk.key_message()

    def agree(self, messages: list[bytes]) -> bytes:
        """Agree on keys with all members."""
        return self._desk.agree(messages)

    def begin(self, terms: QuestionTerms) -> Agreed:
        """Settle the terms of a chain."""
        return self._desk.begin(terms)

    def ask(self, query_id: str, question: Question) -> Reply:
        """Ask the desk."""
        return self._desk.answer(query_id, question)

    def close(self) -> None:
        """Settle and let go."""
        if not self._closed:
            self._closed = True
            self._desk.close()
            if self._engine is not None:
                self._engine.close()
            for ledger in self._own_ledgers:
                if ledger is not None:
                    ledger.close()


def open_door(
    study: Study,
    data: Any,
    *,
    name: str,
    epsilon: float,
    delta: float,
    mu: float,
    run_id: str,
    ledger: Ledger | None = None,
    ledger_path: Any = None,
    outside: str = "refuse",
    columns: Mapping[str, str | Sequence[str]] | None = None,
    precision: str = "float64",
    remembered: bool = False,
    resuming: bool = False,
    tick: Tick = lambda done, total, text: None,
    source: Callable[[float], Source] | None = None,
    consortium: Consortium | None = None,
    everybody_path: Any = None,
) -> LocalDoor:
    """Load an owner's records, open its account, and give the door the analyst's loop asks at.

    With `remembered` a keyed digest of the records is kept on the private side, and checked when `resuming`. With a `consortium`
    its answers are sealed, and a second account keeps the promise against everybody, at `everybody_path` or beside `ledger_path`.
    """
    engine = _engine(study, data, name, run_id, outside, columns, precision, remembered, resuming, tick)
    about: dict[str, Any] = {"model": study.model.fingerprint(), "n": engine.n, "owner": name}
    if consortium is not None:
        about |= {"roster": consortium.seat.roster, "colluders": consortium.colluders}
    with _closed_on_failure(engine):
        account, own = open_account(ledger, ledger_path, run_id, cap_quanta(mu), about, resuming=resuming)
        if consortium is None:
            desk = Desk(engine, study, account, source=source)
            facts = facts_of(study, desk, name, epsilon, delta, mu, outside, precision, own is None)
            return LocalDoor(desk, facts, own, engine=engine)
        with _closed_on_failure(own):
            _check_assumed(account.about, about)
            keys = consortium.run(run_id, study.model.fingerprint(), engine.n)
            path = everybody_path
            if path is None and ledger_path is not None:
                path = ledger_path.with_name(f"ledger-everybody-{ledger_path.name}")
            cap = cap_quanta(consortium.seat.everybody_mu(mu, MAX_MU))
            everybody, other = open_account(None, path, run_id, cap, about, resuming=resuming)
            desk = Desk(engine, study, account, source=source, keys=keys, everybody=everybody)
            facts = facts_of(study, desk, name, epsilon, delta, mu, outside, precision, own is None)
            return LocalDoor(desk, sealed_facts(facts, consortium.seat, cap), own, other, engine=engine)


def _check_assumed(then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """A run goes on under what its answers were charged for."""
    if any(then.get(name) != now[name] for name in ("roster", "colluders")):
        raise CheckpointError(
            f"a sealed run goes on with the roster and the colluders it was begun with, {then.get('colluders')} and not "
            f"{now['colluders']} or another roster; give the same consortium."
        )


def sealed_facts(facts: Facts, seat: Seat, cap: int) -> Facts:
    """The same, of a run whose answers are sealed; `cap` is that against everybody."""
    return msgspec.structs.replace(facts, roster=seat.roster, colluders=seat.colluders, everybody=cap)


def _engine(
    study: Study, data: Any, name: str, run_id: str, outside: str, columns: Mapping[str, str | Sequence[str]] | None,
    precision: str, remembered: bool, resuming: bool, tick: Tick,
) -> Engine:  # fmt: skip
    if isinstance(data, RayTable):
        from sfumato.vault.ray_engine import RayEngine
        from sfumato.vault.ray_shards import RayShards

        shards = RayShards(data, study.domain, outside=outside, columns=columns, precision=precision, tick=tick)
        with _closed_on_failure(shards):
            _identify(shards, name, run_id, remembered, resuming)
            return RayEngine(shards, study, own=True)
    table = records.load(data, study.domain, outside=outside, columns=columns)
    _identify(table, name, run_id, remembered, resuming)
    return LocalEngine(table, study, precision=precision)


def _identify(table: identity.Digested, name: str, run_id: str, remembered: bool, resuming: bool) -> None:
    """Check that a run goes on with the records it was started with; or keep what that will be told by."""
    mine = f"{run_id}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    if resuming:
        identity.check(mine, table)
    elif remembered:
        identity.remember(mine, table)


def facts_of(
    study: Study,
    desk: Desk | Vault,
    name: str,
    epsilon: float,
    delta: float,
    mu: float,
    outside: str,
    precision: str,
    shared: bool,
) -> Facts:
    """What an owner says about itself and one study of its records."""
    from sfumato.tools.version import __version__

    return Facts(
        name=name, n=desk.n, rows=desk.rows, model=study.model.fingerprint(), coordinates=study.model.coordinate_names(),
        domain={key: column.to_dict() for key, column in study.domain.items()}, outside=outside, precision=precision,
        sensitivity=study.bounds.describe(), proven=study.bounds.proven,
        searched=study.bounds.kind == SEARCHED, certified=study.certified, epsilon=float(epsilon), delta=float(delta), mu=mu,
        cap=cap_quanta(mu), shared_ledger=shared, version=__version__,
    )  # fmt: skip
