"""The node itself: records behind a house's walls, books, tokens, and who is at the door."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from sfumato.model import derivatives
from sfumato.node import tokens
from sfumato.node.books import Books
from sfumato.node.catalogue import Refusal
from sfumato.node.config import OwnerFile
from sfumato.node.lanes import ANSWERING, BEGINNING, Lane
from sfumato.node.limits import Bucket, Buckets, Turnstile
from sfumato.node.logs import Log
from sfumato.node.metrics import Metrics
from sfumato.node.studies import ApprovedStudy, load_studies
from sfumato.node.tick import Tick
from sfumato.node.tokens import Token, TokenFile
from sfumato.privacy.budget import MAX_MU
from sfumato.protocol.frames import Handshake, Open
from sfumato.protocol.questions import LANGEVIN, PROTOCOL, Agreed, Facts, Question, Release, Statistic, Terms
from sfumato.tools.version import __version__
from sfumato.vault.ledger import Account
from sfumato.vault.noise import Source
from sfumato.vault.sealed.consortium import Consortium
from sfumato.vault.table import ClosedTable

AWAY_SECONDS = 60.0
"""How long a run whose client is away keeps its desk (and its open reservation) before both are given back."""
FAILED_AT_ONCE = 30
"""Wrong tokens an address may try at once."""
WAITING_HASHES = 64
"""Requests from such addresses that may wait for the slow hash: some seconds' worth."""
LIGHT_TERMS = 200_000
"""Record evaluations a message up to which it is answered on the spot; above, on a thread, so that others need not wait."""
PROOF_TERMS = 4_000
"""What proving the range of one chain's second query around a reference point takes, in record evaluations: 0.1 ms for ordinary
models. What takes longer all the same is noticed: `LOOP_SECONDS`."""
LOOP_SECONDS = 0.02
"""An answer that keeps the loop for so long is the last one of its run that is computed there."""


class Standing(NamedTuple):
    """How a run stands, in the console's words, and since when (UTC; empty where that is not known).

    "connected"; "disconnected": its analyst has vanished, and may come back; "finished": its analyst has closed it; "budget
    spent"; "not open": nobody was there since the node started.
    """

    state: str
    since: str = ""


class Counter(Protocol):
    """All that a node sees of a vault's desk: it takes questions and gives bytes."""

    @property
    def here(self) -> bool:
        """Whether answers are computed in this process."""
        ...

    @property
    def left(self) -> int:
        """Quanta left."""
        ...

    @property
    def left_for_everybody(self) -> int:
        """Quanta left of the promise against everybody."""
        ...

    def key_message(self) -> bytes:
        """The owner's key for the run."""
        ...

    def agree(self, messages: list[bytes]) -> bytes:
        """Agree on keys with all members; gives the digest of the keyset."""
        ...

    def begin(self, terms: Terms) -> Agreed:
        """Settle terms."""
        ...

    def answer_bytes(self, query_id: str, question: Question) -> bytes:
        """Answer, or give the answer given before."""
        ...

    def is_warm(self, question: Question) -> bool:
        """Whether a question like this one can be answered without compiling anything."""
        ...

    def close(self) -> None:
        """Settle and let go."""
        ...


class ActiveRun:
    """A run with a desk: its client is here, or was a moment ago."""

    def __init__(
        self, analyst: str, study: ApprovedStudy, name: str, desk: Counter, facts: Facts, opened: Open
    ) -> None:
        self.analyst, self.study, self.name, self.desk, self.facts, self.opened = (
            analyst,
            study,
            name,
            desk,
            facts,
            opened,
        )
        self.holder: object | None = None  # the session that may ask
        self.away_since = time.monotonic()
        self.chains = 0
        self._terms: Terms | None = None
        self._copies = 1  # rows that answer for a chain's statistic
        self.closed = False
        self._light = False
        self._elsewhere = 0  # calls of the desk that are under way on threads

    def settle_terms(self, terms: Terms) -> None:
        """Remember the terms, and how much work a message is under them: from public numbers only."""
        self._terms = terms
        self.chains, self._copies = terms.chains, 2 if terms.copies else 1
        family = terms.kernel == LANGEVIN and not terms.centre  # its records were summed when terms were settled
        proof = PROOF_TERMS if terms.centre else 0
        self._light = family or (self.desk.here and terms.chains * (self.facts.rows + proof) <= LIGHT_TERMS)

    def settled(self, terms: Terms) -> bool:
        """Whether these are the terms that the desk has: settling them again changes nothing, and costs nothing."""
        return terms == self._terms

    @property
    def busy(self) -> bool:
        """Whether a thread is at the desk: closing it would have to wait, and everybody who opens a run with it."""
        return self._elsewhere > 0

    def answers_at_once(self, question: Question) -> bool:
        """Whether a question may be answered in the loop that serves everybody.

        Not the first of its kind under these terms, which compiles; nor while a thread is at the desk, which everybody would
        have to wait for.
        """
        return self._light and not self._elsewhere and self.desk.is_warm(question)

    def took(self, seconds: float) -> None:
        """Learn how long an answer kept the loop; one that is slow for others is computed on a thread from then on.

        Most of it is what public numbers decide (proofs, rows), and nothing but the place where answers are computed follows.
        """
        if seconds > LOOP_SECONDS:
            self._light = False

    def numbers(self, question: Question) -> int:
        """How many numbers answer a question."""
        dim = len(self.facts.coordinates)
        if isinstance(question, Statistic):
            return self.chains * question.steps * self._copies * dim
        return derivatives.size(question.what, dim) if isinstance(question, Release) else self.chains

    @contextmanager
    def on_a_thread(self) -> Iterator[None]:
        """While a thread is at the desk."""
        self._elsewhere += 1
        try:
            yield
        finally:
            self._elsewhere -= 1


class Node:
    """Everything behind the service.

    Parameters
    ----------
    file
        The owner's file.
    source
        scale -> noise source. For tests alone; nothing that reads a configuration can set it.
    """

    def __init__(self, file: OwnerFile, *, source: Callable[[float], Source] | None = None) -> None:
        self.file, self.limits, self.name = file, file.limits, file.name
        self.log = Log(None if file.log is None else file.place(file.log))
        self.metrics = Metrics()
        self.tokens = TokenFile(file.place(file.tokens))
        self.consortium = file.membership()
        self._house = ClosedTable(
            file.records(), outside=file.data.outside, columns=file.columns, precision=file.data.precision,
            tick=self._loading(), source=source,
        )  # fmt: skip
        try:
            self.studies = load_studies(file, self._house.prepare)
            self.n = max(study.n for study in self.studies.values())
            self.books = Books(file)
        except BaseException:
            self._house.close()
            raise
        self.turnstile = Turnstile(file.limits.connections, file.limits.connections_per_token)
        self.tick = Tick(file.limits.answer_tick_ms)
        self.runs: dict[str, ActiveRun] = {}
        self.ended: set[str] = set()  # runs that asked beyond their budget
        self.left: dict[str, Standing] = {}  # runs whose client was here and is not: with a goodbye or without
        self.sessions: set[Any] = set()
        self.buckets: dict[str, Bucket] = {}
        self._beginnings: dict[str, Bucket] = {}
        self.answering = Lane(ANSWERING, ANSWERING // 2, "sfumato-answer")
        self.beginning = Lane(BEGINNING, 1, "sfumato-begin")
        self._failures = Buckets(lambda: Bucket(file.limits.failed_logins_per_minute / 60, FAILED_AT_ONCE))
        self._marker = file.place(file.ledger + ".paused")
        self.paused = self._marker.exists()
        self.closing = False
        self._hashing, self._slow_hashing, self._waiting = asyncio.Semaphore(2), asyncio.Semaphore(1), 0
        self._opening = threading.RLock()  # runs are opened on threads

    def _loading(self) -> Callable[[int, int, str], None]:
        """Tells in the log how far a table in shards was loaded: every tenth."""
        told = -1

        def tick(done: int, total: int, text: str) -> None:
            nonlocal told
            if (tenth := 10 * done // max(total, 1)) > told:
                told = tenth
                self.log.event(text, what=f"{done:,} of {total:,} records")

        return tick

    # -- who is there -----------------------------------------------------------------------------------------------

    async def authenticate(self, header: str | None, address: str, *kinds: str) -> Token:
        """Find the token of a request, in constant time, or refuse.

        A valid token opens from any address, however many wrong ones came from there: colleagues share addresses. The slow
        hash runs on a thread, two at a time; for an address with too many failures behind it one at a time, so that a flood
        of wrong tokens keeps nobody else waiting. A token that was right before needs no hash and never waits.
        """
        scheme, _, token = (header or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Refusal("unauthorised", "no token")
        found = await self._find(token.strip(), address)
        if found.kind not in kinds:
            raise Refusal("forbidden", f"a token of kind {found.kind}")
        return found

    async def _find(self, token: str, address: str) -> Token:
        failures = self._failures.of(address)
        if self.tokens.was_right(token):
            found = await asyncio.to_thread(self.tokens.check, token)
        elif failures.allows():
            async with self._hashing:
                found = await asyncio.to_thread(self.tokens.check, token)
        else:
            found = await self._check_slowly(token)
        if found is not None:
            return found
        if not failures.take():
            raise Refusal("too-fast", "failed logins")
        raise Refusal("unauthorised", "unknown, expired or revoked token")

    async def _check_slowly(self, token: str) -> Token | None:
        if self._waiting >= WAITING_HASHES:
            raise Refusal("too-fast", "failed logins, and too many waiting")
        self._waiting += 1
        try:
            async with self._slow_hashing:
                return await asyncio.to_thread(self.tokens.check, token)
        finally:
            self._waiting -= 1

    def bucket(self, name: str) -> Bucket:
        """The message rate of one token, over all its connections."""
        return self.buckets.setdefault(name, Bucket(self.limits.messages_per_second))

    def count_beginning(self, name: str) -> None:
        """Count a desk that is made for a token, or terms that are settled anew: they read, prove and compile, for nothing."""
        rate = self.limits.begins_per_minute
        if not self._beginnings.setdefault(name, Bucket(rate / 60, rate)).take():
            raise Refusal("too-fast", f"begins, more than {rate:g} a minute")

    # -- runs ---------------------------------------------------------------------------------------------------------

    def handshake(self, analyst: str) -> Handshake:
        """What an analyst may know before anything is asked."""
        return Handshake(
            name=self.name, outside=self.file.data.outside, precision=self.file.data.precision,
            studies=[study.public() for study in self.studies.values()], analyst=analyst,
            budget=self.books.budget(analyst, self.studies), version=__version__,
            seat=None if self.consortium is None else self.consortium.seat,
        )  # fmt: skip

    def open_run(self, token: Token, asked: Open, holder: object) -> ActiveRun:
        """Open a run or come back to it. The newest connection has it; an older one is told so."""
        from sfumato.owners.local import facts_of, sealed_facts

        if asked.protocol != PROTOCOL:
            raise Refusal("other-version", f"protocol {asked.protocol}, here {PROTOCOL}")
        if asked.study not in self.studies:
            raise Refusal("not-found", f"study {asked.study[:80]!r}")
        approved = self.studies[asked.study]
        form = approved.form(asked.model)
        self._check_seal(asked)
        account, mu = self.books.run(
            token.name, asked.study, asked.run, asked.epsilon, asked.delta, asked.model, asked.sealed
        )
        with self._opening:
            run = self.runs.get(account.name)
            if run is None:
                self.count_beginning(token.name)
                self._make_room(token.name)
                seat = self._seat(asked, account.name, mu)
                desk = self._house.desk(form, account, self.books.journal, seat)
                facts = facts_of(
                    form, desk, self.name, asked.epsilon, asked.delta, mu, self.file.data.outside,
                    self.file.data.precision, True,
                )  # fmt: skip
                facts = msgspec.structs.replace(facts, cap=account.cap, theta_bound=approved.entry.theta_bound)
                if seat is not None:
                    facts = sealed_facts(facts, seat[0].seat, seat[2].cap)
                run = ActiveRun(token.name, approved, account.name, desk, facts, asked)
                self.runs[account.name] = run
            run.holder = holder
        self.metrics.opened += 1
        self.log.event("open", who=token.name, what=f"study {asked.study}, run {asked.run}, epsilon {asked.epsilon:g}")
        return run

    def _check_seal(self, asked: Open) -> None:
        """Refuse a sealed run where there is no consortium, and another one where its owner answers for no other."""
        if asked.sealed and self.consortium is None:
            raise Refusal("not-sealed", f"run {asked.run[:80]}")
        if not asked.sealed and self.consortium is not None and not self.consortium.unsealed:
            raise Refusal("sealed-only", f"run {asked.run[:80]}")

    def _seat(self, asked: Open, name: str, mu: float) -> tuple[Consortium, str, Account] | None:
        """What a sealed run needs besides: the consortium, the run's name among its members, an account against everybody."""
        if not asked.sealed or self.consortium is None:
            return None
        everybody = self.consortium.seat.everybody_mu(mu, MAX_MU)
        return self.consortium, asked.run, self.books.run_against_everybody(name, everybody)

    def leave_run(self, run: ActiveRun, holder: object, *, parted: bool = False) -> None:
        """The client is gone, with a goodbye or without; the desk waits a while for it to come back."""
        if run.holder is holder:
            run.holder, run.away_since = None, time.monotonic()
            state = "finished" if parted else "disconnected"
            self.left[run.name] = Standing(state, datetime.now(UTC).isoformat(timespec="seconds"))

    def standing(self, name: str, spent: bool) -> "Standing":
        """How a run stands, and since when. `spent` says what the ledger knows, also after a restart."""
        run, left = self.runs.get(name), self.left.get(name)
        if run is not None and run.holder is not None:
            return Standing("connected")
        if name in self.ended or (spent and run is None):  # the ledger counts what is reserved for an open run as spent
            return Standing("budget spent", left.since if left is not None else "")
        return Standing("not open") if left is None else left

    def _make_room(self, analyst: str) -> None:
        mine = [run for run in self.runs.values() if run.analyst == analyst]
        if len(mine) < self.limits.connections_per_token:
            return
        away = [run for run in mine if run.holder is None and not run.busy]
        if not away:
            raise Refusal("too-many", f"{len(mine)} runs of {analyst}")
        self._close_run(min(away, key=lambda run: run.away_since))

    def _close_run(self, run: ActiveRun) -> None:
        """Close a run whose client is away; one whose client has come back meanwhile stays open, unless the node closes."""
        try:
            with self._opening:
                if self.runs.get(run.name) is not run or (run.holder is not None and not self.closing):
                    return
                run.closed = True
                del self.runs[run.name]
                run.desk.close()
        except Exception as error:  # the ledger may be out of reach; what was reserved then stays spent
            self.log.unexpected("settle", error, who=run.analyst)

    def tidy(self) -> None:
        """Fold the journal and close what was left behind. On a thread, about once a second: it may wait for a desk."""
        self.log.tidy()
        self.books.journal.fold()
        now = time.monotonic()
        for run in list(self.runs.values()):
            if run.holder is None and now - run.away_since > AWAY_SECONDS and not run.busy:
                self._close_run(run)

    def sweep(self) -> None:
        """Close the connections of whoever may no longer be here. In the loop, about once a second."""
        now, valid = time.monotonic(), self.tokens.all()
        for session in list(self.sessions):
            token = valid.get(session.token.name)
            if token is None or not token.valid_at(tokens.now()):
                session.stop("revoked")
            elif session.late(now):
                session.stop("too-slow")

    # -- the owner's hand ---------------------------------------------------------------------------------------------

    def pause(self, who: str) -> None:
        """Stop all answers, also after a restart, until `resume`.

        Raises
        ------
        Refusal
            The pause could not be written down. It holds, but a restart would end it.
        """
        self.paused = True  # first of all: whatever else fails, nothing more is answered
        self.log.event("pause", who=who)
        try:
            self._marker.touch()
        except OSError as error:
            raise Refusal("ledger", f"paused, but not beyond a restart: {type(error).__name__}") from None

    def resume(self, who: str) -> None:
        """Answer again."""
        self._marker.unlink(missing_ok=True)
        self.paused = False
        self.log.event("resume", who=who)

    def revoke(self, name: str, who: str) -> None:
        """Revoke a token and close its connections."""
        if name not in self.tokens.all():
            raise Refusal("not-found", f"token {name[:80]!r}")
        self.tokens.revoke(name)
        self.log.event("revoke", who=who, what=name)
        self.sweep()

    def close(self) -> None:
        """Give back what was reserved and not spent, then close the books."""
        self.closing = True
        for lane in (self.answering, self.beginning):
            lane.close()
        for run in list(self.runs.values()):
            self._close_run(run)
        self._house.close()
        self.books.close()
        self.log.event("stop")
        self.log.close()

    @property
    def ledger_path(self) -> Path:
        """Where the budget is kept."""
        return self.file.place(self.file.ledger)
