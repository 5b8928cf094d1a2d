"""Answers by query id: what was answered once is answered the same way for ever, and paid for once."""

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from sfumato.errors import InvalidInput, LedgerError
from sfumato.vault.ledger import chain

MAX_NAME = 200
_KEEP = "INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (account, query_id) DO NOTHING"
_TAKE_BACK = "DELETE FROM answers WHERE account = ? AND query_id = ? AND entry = ?"


class Answer(NamedTuple):
    """A noisy answer that is about to leave: what was asked, what it costs, the bytes to send."""

    query_id: str
    query_hash: str
    quanta: int
    answer: bytes


def check_text(what: str, value: str) -> None:
    """Refuse a name that is no text, empty or longer than `MAX_NAME`.

    Printable characters only: names are shown on terminals, and half a surrogate pair (which JSON can bring in) is a
    Python string but cannot be stored.
    """
    if not (isinstance(value, str) and 0 < len(value) <= MAX_NAME and value.isprintable()):
        raise InvalidInput(f"{what} must be text of 1 to {MAX_NAME} printable characters, got {value!r:.80}.")


def check_query(query_id: str, query_hash: str) -> None:
    """Check the two names of a query."""
    check_text("a query id", query_id)
    check_text("a query hash", query_hash)


def stored(db: sqlite3.Connection, account: int, query_id: str, query_hash: str) -> bytes | None:
    """Find the answer to a query; refuse when the same id came with another content."""
    row = db.execute(
        "SELECT query_hash, answer FROM answers WHERE account = ? AND query_id = ?", (account, query_id)
    ).fetchone()
    if row is None:
        return None
    known_hash, answer = row
    if known_hash != query_hash:
        raise LedgerError(
            f"same id, other content: query {query_id!r} was answered for content {known_hash}, now it comes with "
            f"{query_hash}; use a new id for a new query."
        )
    return bytes(answer)


def store(db: sqlite3.Connection, account: int, block: int, batch: Sequence[Answer]) -> list[bytes]:
    """Record a batch inside the caller's transaction; of two answers to one query the first stands."""
    last = chain.head(db)
    fresh = [
        chain.Row(account, new.query_id, new.query_hash, block, new.quanta, new.answer, last.seq + 1, position)
        for position, new in enumerate(batch)
    ]
    final = [new.answer for new in batch]
    if db.executemany(_KEEP, fresh).rowcount < len(fresh):  # somebody answered one of them before
        db.executemany(_TAKE_BACK, [(row.account, row.query_id, row.entry) for row in fresh])
        final, fresh = _store_one_by_one(db, fresh)
    if fresh:
        total = sum(row.quanta for row in fresh)
        _charge(db, account, block, total)
        db.execute("UPDATE accounts SET answers = answers + ? WHERE id = ?", (len(fresh), account))
        chain.append_answers(db, last, fresh, total)
    return final


def _store_one_by_one(db: sqlite3.Connection, rows: Sequence[chain.Row]) -> tuple[list[bytes], list[chain.Row]]:
    """The answers that stand, and the rows among them that are new."""
    final: list[bytes] = []
    fresh: list[chain.Row] = []
    for row in rows:
        new = row._replace(position=len(fresh))
        known = None
        if db.execute(_KEEP, new).rowcount:
            fresh.append(new)
        else:
            known = stored(db, row.account, row.query_id, row.query_hash)
        final.append(row.answer if known is None else known)
    return final, fresh


def _charge(db: sqlite3.Connection, account: int, block: int, quanta: int) -> None:
    """Count answers against the block they were reserved in."""
    paid = db.execute(
        "UPDATE blocks SET answered = answered + ? WHERE id = ? AND account = ? AND settled IS NULL "
        "AND answered + ? <= reserved",
        (quanta, block, account, quanta),
    )
    if not paid.rowcount:
        _explain(db, account, block, quanta)


def _explain(db: sqlite3.Connection, account: int, block: int, quanta: int) -> NoReturn:
    """Say why a block does not pay."""
    row = db.execute("SELECT account, reserved, answered, settled FROM blocks WHERE id = ?", (block,)).fetchone()
    if row is None or row[0] != account:
        raise LedgerError(f"an answer is paid from a block of its own account, and block {block} is of another one.")
    _, reserved, answered, settled = row
    if settled is not None:
        raise LedgerError(f"a settled block pays for nothing more, and block {block} is settled; reserve a new one.")
    raise LedgerError(
        f"answers may not cost more than their block, and block {block} has {reserved - answered} of {reserved} "
        f"quanta left where {quanta} are needed; reserve a new block before answering."
    )
