"""The hash chain: every change of the ledger is one entry, bound to all entries before it."""

import hashlib
import json
import sqlite3
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii as _text
from typing import Any, NamedTuple

from sfumato.errors import InvalidInput

GENESIS = "0" * 64


class Head(NamedTuple):
    """The last entry: its number and its hash. Written ``number:hash``."""

    seq: int
    hash: str

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash}"

    @classmethod
    def parse(cls, text: str) -> "Head":
        """Read back what ``str(head)`` wrote."""
        number, _, digest = text.strip().partition(":")
        if not number.isdecimal() or len(digest) != len(GENESIS):
            raise InvalidInput(f"a head is written number:hash, got {text!r}; copy it from `sfumato ledger show`.")
        return cls(int(number), digest.lower())


class Row(NamedTuple):
    """One line of the ``answers`` table, in the order of its columns."""

    account: int
    query_id: str
    query_hash: str
    block: int
    quanta: int
    answer: bytes
    entry: int
    position: int


def canonical(value: Any) -> str:
    """Write a value as JSON in the one way that is hashed: sorted keys, no spaces, ASCII, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def link(previous: str, entry: str) -> str:
    """Hash one entry together with the hash before it."""
    return hashlib.sha256(bytes.fromhex(previous) + entry.encode()).hexdigest()


def batch_digest(rows: list[Row]) -> str:
    """Hash the answers that one entry recorded; the entry holds this digest, the table holds the answers."""
    digest = hashlib.sha256()
    for row in rows:
        # What `canonical([*row[:5], row.answer.hex(), row.position])` writes, without the way there: this is done for
        # every answer of a node.
        names = f"{_text(row.query_id)},{_text(row.query_hash)}"
        line = f'[{row.account},{names},{row.block},{row.quanta},"{row.answer.hex()}",{row.position}]\n'
        digest.update(line.encode())
    return digest.hexdigest()


def head(db: sqlite3.Connection) -> Head:
    """Find the last entry."""
    row = db.execute("SELECT seq, hash FROM entries ORDER BY seq DESC LIMIT 1").fetchone()
    return Head(0, GENESIS) if row is None else Head(*row)


def append(db: sqlite3.Connection, kind: str, **facts: Any) -> None:
    """Append one entry, inside the caller's transaction. The clock is for reading only: nothing depends on it."""
    last = head(db)
    add(db, last, canonical({"seq": last.seq + 1, "at": now(), "kind": kind, **facts}))


def append_answers(db: sqlite3.Connection, last: Head, rows: list[Row], quanta: int) -> None:
    """Append the entry of some answers: what `append` would write, in the same letters, without the way there."""
    account, block, digest = rows[0].account, rows[0].block, batch_digest(rows)
    entry = (
        f'{{"account":{account},"at":"{now()}","block":{block},"digest":"{digest}","kind":"answer","quanta":{quanta},'
        f'"seq":{last.seq + 1},"size":{len(rows)}}}'
    )
    add(db, last, entry)


def add(db: sqlite3.Connection, last: Head, entry: str) -> None:
    """Write an entry after the last one."""
    db.execute("INSERT INTO entries VALUES (?, ?, ?)", (last.seq + 1, entry, link(last.hash, entry)))


def now() -> str:
    """The time, as entries have it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
