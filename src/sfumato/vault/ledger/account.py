"""Accounts and blocks: sub-budgets, and reservations in them."""

import json
import sqlite3
from collections.abc import Sequence
from operator import index
from typing import Any, NamedTuple

from sfumato.errors import BudgetSpent, InvalidInput, LedgerError
from sfumato.privacy.budget import MAX_MU, QUANTA_PER_UNIT, mu_squared
from sfumato.vault.ledger import answers, chain
from sfumato.vault.ledger.answers import Answer
from sfumato.vault.ledger.store import Store

ROOT = 1  # the ledger itself is account 1: the parent of all others
MAX_CAP = int(MAX_MU**2) * QUANTA_PER_UNIT

# From an account up to the ledger itself.
_LINE = """
WITH RECURSIVE line (id, name, parent, cap, spent, depth) AS (
    SELECT id, name, parent, cap, spent, 0 FROM accounts WHERE id = ?
    UNION ALL
    SELECT up.id, up.name, up.parent, up.cap, up.spent, depth + 1 FROM accounts up JOIN line ON up.id = line.parent
)
SELECT id, name, cap, spent FROM line ORDER BY depth
"""


class Account:
    """A sub-budget of a ledger. Opened by `Ledger.account`."""

    def __init__(self, store: Store, ledger_id: str, number: int, name: str, cap: int) -> None:
        self.name = name
        self.cap = cap
        self.ledger_id = ledger_id
        self._number = number
        self._store = store

    @property
    def spent(self) -> int:
        """Quanta spent by this account and those under it, open blocks in full."""
        with self._store.read() as db:
            return line(db, self._number)[0].spent

    @property
    def left(self) -> int:
        """Quanta that can still be reserved here: the least that is left under any cap above."""
        with self._store.read() as db:
            return least_left(line(db, self._number))

    @property
    def answers(self) -> int:
        """How many answers were recorded here."""
        with self._store.read() as db:
            (count,) = db.execute("SELECT answers FROM accounts WHERE id = ?", (self._number,)).fetchone()
            return int(count)

    @property
    def about(self) -> dict[str, Any]:
        """Public facts kept with the account when it was opened."""
        with self._store.read() as db:
            (text,) = db.execute("SELECT about FROM accounts WHERE id = ?", (self._number,)).fetchone()
            return dict(json.loads(text))

    def reserve(self, quanta: int) -> "Block":
        """Reserve a block of budget, durably, before anything is answered from it.

        Raises
        ------
        BudgetSpent
            It would pass the cap of this account, of one above it or of the ledger. Nothing is reserved.
        LedgerError
            The reservation could not be made durable. Nothing may be answered.
        """
        quanta = whole("a reservation", quanta)
        return self.reserve_up_to(quanta, at_least=quanta)

    def reserve_up_to(self, quanta: int, at_least: int) -> "Block":
        """Reserve `quanta`, or as much as is left, but not less than `at_least`."""
        quanta, at_least = whole("a reservation", quanta), whole("at_least", at_least)
        if at_least > quanta:
            raise InvalidInput(f"at_least must not exceed what is asked for, got {at_least} > {quanta}.")
        with self._store.write() as db:
            granted = grant(line(db, self._number), quanta, at_least)
            number = next_id(db, "blocks")
            move(db, self._number, granted)
            db.execute("INSERT INTO blocks VALUES (?, ?, ?, 0, NULL)", (number, self._number, granted))
            chain.append(db, "reserve", block=number, account=self._number, quanta=granted)
        return Block(self, number, granted)

    def replay(self, query_id: str, query_hash: str) -> bytes | None:
        """Return the answer this query got before, or None when it has none.

        Raises
        ------
        LedgerError
            The same id was answered for another content.
        """
        return self.replay_many([(query_id, query_hash)])[0]

    def replay_many(self, queries: Sequence[tuple[str, str]]) -> list[bytes | None]:
        """Look up many (id, hash) pairs at once; see `replay`."""
        for query_id, query_hash in queries:
            answers.check_query(query_id, query_hash)
        with self._store.read() as db:
            return [answers.stored(db, self._number, *query) for query in queries]

    def record(
        self, query_id: str, query_hash: str, block: "Block", quanta: int, answer: bytes, *, sync: bool = True
    ) -> bytes:
        """Store an answer before it is sent, and return the answer **to be sent**.

        When another thread or process has answered the same query in the meantime, its answer is returned, nothing is
        charged, and the one given here must be thrown away: it was never seen by anybody.
        """
        return self.record_many(block, [Answer(query_id, query_hash, quanta, answer)], sync=sync)[0]

    def record_many(self, block: "Block", batch: Sequence[Answer], *, sync: bool = True) -> list[bytes]:
        """Store many answers in one transaction, all or none; return the answers to be sent, in the same order.

        Parameters
        ----------
        block
            The reservation that pays for them; they may not cost more than it holds.
        batch
            The answers; see `Answer`.
        sync
            False saves the flush (milliseconds a call): the answers survive the death of the process but not loss of
            power. Still no overspend then, as the block was flushed and counts in full; a client who asks again gets
            a new answer from a new reservation.

        Raises
        ------
        LedgerError
            An id was answered for another content, or the block is settled, too small or of another account.
        """
        block.account.number_in(self.ledger_id)
        for new in batch:
            _check_answer(new)
        with self._store.write(sync=sync) as db:
            return answers.store(db, self._number, block.number, batch)

    def number_in(self, ledger_id: str) -> int:
        """Return this account's number in a ledger; refuse when it is of another ledger."""
        if self.ledger_id != ledger_id:
            raise LedgerError(f"accounts and blocks stay in their ledger, and {self.name!r} is of another one.")
        return self._number

    def __repr__(self) -> str:
        try:
            return f"<Account {self.name!r}: {figures(self.cap, self.spent)}>"
        except LedgerError:
            return f"<Account {self.name!r}: cannot be read>"


class Block:
    """A reservation. It counts in full until `settle` says what was spent of it; there is no way to reopen one."""

    def __init__(self, account: Account, number: int, quanta: int) -> None:
        self.account = account
        self.quanta = quanta
        self.number = number

    def settle(self, spent_quanta: int) -> int:
        """Record what was really spent of this block and give the rest back.

        Settling again with the same figure changes nothing.

        Parameters
        ----------
        spent_quanta
            From what the recorded answers cost up to what was reserved.

        Returns
        -------
        int
            The quanta given back.

        Raises
        ------
        LedgerError
            More than was reserved: the block is settled in full and the claim is kept in the chain, where `verify`
            reports it. Less than the recorded answers cost, or settled before with another figure: nothing changes.
        """
        spent = whole("what was spent", spent_quanta, least=0)
        # No flush: if loss of power undoes this, the block counts in full again, which is the safe side.
        with self.account._store.write(sync=spent > self.quanta) as db:
            rest = self._settle(db, spent)
        if spent > self.quanta:
            raise LedgerError(
                f"a block pays for what it reserved, and {spent} quanta were spent of block {self.number} that has "
                f"{self.quanta}; it counts in full. Reserve before answering."
            )
        return rest

    def _settle(self, db: sqlite3.Connection, spent: int) -> int:
        row = db.execute(
            "SELECT account, reserved, answered, settled FROM blocks WHERE id = ?", (self.number,)
        ).fetchone()
        # A block may come from a checkpoint that somebody edited: what was reserved, and by whom, the ledger knows best.
        if row is None or row[:2] != (self.account._number, self.quanta):
            raise LedgerError(
                f"a block is settled by the account that reserved it, and the ledger has no block {self.number} of "
                f"{self.quanta} quanta for {self.account.name!r}; it counts in full."
            )
        answered, settled = row[2:]
        counted = min(spent, self.quanta)
        rest = self.quanta - counted
        if settled is not None:
            if settled != counted:
                raise LedgerError(
                    f"a block is settled once, and block {self.number} was settled at {settled} quanta, not {spent}."
                )
            return rest
        if spent < answered:
            raise LedgerError(
                f"a block costs at least what its answers cost, and {answered} quanta of block {self.number} were "
                f"answered, not {spent}; settle it at {answered} or more."
            )
        move(db, self.account._number, -rest)
        db.execute("UPDATE blocks SET settled = ? WHERE id = ?", (counted, self.number))
        chain.append(db, "settle", block=self.number, spent=counted, claimed=spent)
        return rest

    def __repr__(self) -> str:
        return f"<Block {self.number} of {self.account.name!r}: {self.quanta} quanta>"


class Level(NamedTuple):
    """One account on the way up to the ledger."""

    number: int
    name: str
    cap: int
    spent: int


def line(db: sqlite3.Connection, number: int) -> list[Level]:
    """List the account and all above it, the ledger last."""
    levels = [Level(*row) for row in db.execute(_LINE, (number,))]
    if not levels or levels[-1].number != ROOT:
        raise LedgerError(f"account {number} is not in this ledger: it was edited; run `sfumato ledger verify` on it.")
    return levels


def least_left(line: list[Level]) -> int:
    """Find what can still be reserved under every cap on the way up."""
    return min(level.cap - level.spent for level in line)


def grant(line: list[Level], quanta: int, at_least: int) -> int:
    """Decide how much to reserve; refuse when not even `at_least` fits under every cap."""
    tight = min(line, key=lambda level: level.cap - level.spent)
    left = tight.cap - tight.spent
    if left < at_least:
        who = f"account {tight.name!r}" if tight.name else "the ledger"
        raise BudgetSpent(
            f"no reservation may pass a cap, and this one needs mu squared {mu_squared(at_least):.6g} where {who} has "
            f"{mu_squared(left):.6g} left of {mu_squared(tight.cap):.6g}; use a larger sigma, or stop here.",
            needed=mu_squared(at_least),
            left=mu_squared(left),
        )
    return min(quanta, left)


def move(db: sqlite3.Connection, number: int, quanta: int) -> None:
    """Add to what the account and all above it have spent."""
    ids = [(quanta, level.number) for level in line(db, number)]
    db.executemany("UPDATE accounts SET spent = spent + ? WHERE id = ?", ids)


def next_id(db: sqlite3.Connection, table: str) -> int:
    """Find the number of a table's next row; inside a write transaction nobody else can take it."""
    (number,) = db.execute(f"SELECT coalesce(max(id), 0) + 1 FROM {table}").fetchone()  # noqa: S608 (a literal here)
    return int(number)


def whole(what: str, value: int, *, least: int = 1) -> int:
    """Check a number of quanta; any integer type will do, a float or a bool will not."""
    try:
        number = index(value)
    except TypeError:
        number = -1
    if isinstance(value, bool) or not least <= number <= MAX_CAP:
        raise InvalidInput(f"{what} is a whole number of quanta from {least} to {MAX_CAP}, got {value!r}.")
    return number


def _check_answer(new: Answer) -> None:
    answers.check_query(new.query_id, new.query_hash)
    whole("the cost of an answer", new.quanta)
    if not isinstance(new.answer, bytes):
        raise InvalidInput(f"an answer is bytes, got {type(new.answer).__name__}; encode it first.")


def figures(cap: int, spent: int) -> str:
    """Say cap, spent and left in words."""
    return (
        f"{spent} of {cap} quanta spent, {cap - spent} left "
        f"(mu squared {mu_squared(spent):.6g} of {mu_squared(cap):.6g})"
    )
