"""Check a ledger: recompute the chain, replay every entry, compare with what the tables say."""

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from sfumato.vault.ledger import chain
from sfumato.vault.ledger.chain import GENESIS, Head, Row


class Verification(NamedTuple):
    """What a check found: the last entry, and every problem, in the order of the entries."""

    head: Head
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.problems


@dataclass(slots=True)
class _Account:
    name: str
    parent: int | None
    cap: int
    spent: int = 0
    answers: int = 0
    about: str = "{}"


@dataclass(slots=True)
class _Block:
    account: int
    reserved: int
    answered: int = 0
    settled: int | None = None


class _Batch(NamedTuple):
    account: int
    block: int
    size: int
    quanta: int
    digest: str


@dataclass(slots=True)
class _Replay:
    """The state of the ledger as its entries tell it."""

    accounts: dict[int, _Account] = field(default_factory=dict)
    blocks: dict[int, _Block] = field(default_factory=dict)
    batches: dict[int, _Batch] = field(default_factory=dict)

    def apply(self, entry: dict[str, Any]) -> Iterator[str]:
        """Take one entry into account; yield what is wrong with it."""
        kind = entry["kind"]
        if (kind == "create") != (entry["seq"] == 1):
            yield "a ledger is created by its first entry and no other"
        elif kind == "create":
            self.accounts[1] = _Account("", None, entry["cap"])
        elif kind == "account":
            yield from self._open(entry)
        elif kind == "reserve":
            yield from self._reserve(entry)
        elif kind == "settle":
            yield from self._settle(entry)
        elif kind == "answer":
            yield from self._answer(entry)
        else:
            yield f"its kind {kind!r} is unknown"

    def _open(self, entry: dict[str, Any]) -> Iterator[str]:
        if entry["account"] in self.accounts or entry["parent"] not in self.accounts:
            yield f"account {entry['account']} exists already, or its parent does not"
            return
        self.accounts[entry["account"]] = _Account(
            entry["name"], entry["parent"], entry["cap"], about=chain.canonical(entry["about"])
        )

    def _reserve(self, entry: dict[str, Any]) -> Iterator[str]:
        if entry["block"] in self.blocks or entry["quanta"] < 1:
            yield f"block {entry['block']} exists already, or is empty"
            return
        self.blocks[entry["block"]] = _Block(entry["account"], entry["quanta"])
        for account in self._line(entry["account"]):
            account.spent += entry["quanta"]
            if account.spent > account.cap:
                who = f"account {account.name!r}" if account.name else "the ledger"
                yield f"it passes the cap of {who}: {account.spent} of {account.cap} quanta"

    def _settle(self, entry: dict[str, Any]) -> Iterator[str]:
        block = self.blocks[entry["block"]]
        if block.settled is not None or not block.answered <= entry["spent"] <= block.reserved:
            yield f"block {entry['block']} cannot be settled at {entry['spent']} quanta"
            return
        if entry["claimed"] > block.reserved:
            yield f"{entry['claimed']} quanta were spent of block {entry['block']}, which reserved {block.reserved}"
        block.settled = entry["spent"]
        for account in self._line(block.account):
            account.spent -= block.reserved - block.settled

    def _answer(self, entry: dict[str, Any]) -> Iterator[str]:
        block = self.blocks[entry["block"]]
        block.answered += entry["quanta"]
        if block.account != entry["account"] or block.settled is not None or block.answered > block.reserved:
            yield f"block {entry['block']} cannot pay for these answers"
        self.accounts[entry["account"]].answers += entry["size"]
        self.batches[entry["seq"]] = _Batch(
            entry["account"], entry["block"], entry["size"], entry["quanta"], entry["digest"]
        )

    def _line(self, number: int | None) -> Iterator[_Account]:
        while number is not None:
            account = self.accounts[number]
            yield account
            number = account.parent


def verify(db: sqlite3.Connection, kept: Head | None = None) -> Verification:
    """Check chain, balances, caps and answers; see `Ledger.verify`."""
    replay = _Replay()
    problems = [*_check_file(db), *_check_chain(db, replay), *_check_tables(db, replay)]
    if kept is not None:
        problems += _check_kept(db, kept)
    return Verification(chain.head(db), tuple(problems))


def _check_file(db: sqlite3.Connection) -> Iterator[str]:
    for (message,) in db.execute("PRAGMA quick_check(10)"):
        if message != "ok":
            yield f"the file is damaged: {message}"


def _check_chain(db: sqlite3.Connection, replay: _Replay) -> Iterator[str]:
    previous = Head(0, GENESIS)
    for seq, text, digest in db.execute("SELECT seq, entry, hash FROM entries ORDER BY seq"):
        if seq != previous.seq + 1:
            yield f"entry {previous.seq + 1}: missing (the next one there is {seq})"
        elif chain.link(previous.hash, text) != digest:
            yield f"entry {seq}: edited, or not the one that followed entry {previous.seq}"
        yield from (f"entry {seq}: {problem}" for problem in _check_entry(seq, text, replay))
        previous = Head(seq, digest if _is_hash(digest) else GENESIS)


def _check_entry(seq: int, text: str, replay: _Replay) -> Iterator[str]:
    try:
        entry = json.loads(text)
        if entry["seq"] != seq:
            yield f"moved: it was written as entry {entry['seq']}"
        yield from replay.apply(entry)
    except (KeyError, TypeError, ValueError):
        yield "cannot be read, or speaks of something no entry before it made"


def _is_hash(text: str) -> bool:
    try:
        return len(bytes.fromhex(text)) == len(GENESIS) // 2
    except ValueError:
        return False


def _check_tables(db: sqlite3.Connection, replay: _Replay) -> Iterator[str]:
    accounts = {
        row[0]: _Account(*row[1:])
        for row in db.execute("SELECT id, name, parent, cap, spent, answers, about FROM accounts")
    }
    yield from _differences("account", accounts, replay.accounts)
    blocks = {
        row[0]: _Block(*row[1:]) for row in db.execute("SELECT id, account, reserved, answered, settled FROM blocks")
    }
    yield from _differences("block", blocks, replay.blocks)
    yield from _differences("the answers of entry", dict(_batches(db)), replay.batches)


def _differences(what: str, table: dict[int, Any], told: dict[int, Any]) -> Iterator[str]:
    for number in sorted(table.keys() | told.keys()):
        if table.get(number) != told.get(number):
            yield f"{what} {number}: the table does not say what the entries say"


def _batches(db: sqlite3.Connection) -> Iterator[tuple[int, _Batch]]:
    rows = (Row(*row) for row in db.execute("SELECT * FROM answers ORDER BY entry, position"))
    for entry, group in groupby(rows, key=lambda row: row.entry):
        batch = list(group)
        total = sum(row.quanta for row in batch)
        yield entry, _Batch(batch[0].account, batch[0].block, len(batch), total, chain.batch_digest(batch))


def _check_kept(db: sqlite3.Connection, kept: Head) -> Iterator[str]:
    row = db.execute("SELECT hash FROM entries WHERE seq = ?", (kept.seq,)).fetchone()
    if row is None:
        yield f"entry {kept.seq}: cut off: you kept its hash, and the ledger ends before it"
    elif row[0] != kept.hash:
        yield f"entry {kept.seq}: not the one whose hash you kept: the ledger was rewritten"
