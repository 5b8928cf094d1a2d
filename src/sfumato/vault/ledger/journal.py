"""Answers on their way into the ledger: one append to a file each, many of them to a transaction.

A node stores every answer before it sends it. A transaction for each would take most of the time an answer takes, so they are
appended to a file beside the ledger first, in one write that survives the death of the process, and folded into the ledger in
batches. The budget does not pass through here: it was reserved, durably, before the first of them was computed.

One process holds the journal of a ledger at a time: an id that was answered there must not be answered anew elsewhere.
"""

import os
import threading
import zlib
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from sfumato.errors import LedgerError, SfumatoError
from sfumato.vault.ledger.account import Account, Block
from sfumato.vault.ledger.answers import Answer, check_query
from sfumato.vault.ledger.book import Ledger

BATCH = 256
"""Answers after which the journal is folded into the ledger."""
REMEMBERED = 200_000
"""Ids of one account that are remembered in memory; beyond, they are looked up in the ledger."""
_HEADER = 8  # length and checksum of an entry, four bytes each


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One answer, as the journal has it."""

    account: str
    block: int
    query_id: str
    query_hash: str
    quanta: int
    answer: bytes


class _Known(NamedTuple):
    query_hash: str
    answer: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Entry)


class Journal:
    """The journal of one ledger.

    Parameters
    ----------
    ledger
        A ledger in a file. What a dead process left in the journal is folded into it first.

    Raises
    ------
    LedgerError
        Another process holds the journal, or it cannot be written.
    """

    def __init__(self, ledger: Ledger) -> None:
        if ledger.path is None:
            raise LedgerError("a journal needs a ledger in a file; answers of one in memory die with it anyway.")
        self._ledger = ledger
        self.path = ledger.path.with_name(ledger.path.name + ".journal")
        self._lock = threading.RLock()
        self._accounts: dict[str, JournalledAccount] = {}
        self._waiting: list[Entry] = []
        self._file = _claim(self.path)
        try:
            self._recover()
        except BaseException:
            os.close(self._file)
            raise

    def account(self, account: Account) -> "JournalledAccount":
        """The answers of an account, through the journal."""
        with self._lock:
            if account.name not in self._accounts:
                self._accounts[account.name] = JournalledAccount(self, account)
            return self._accounts[account.name]

    def append(self, entry: Entry) -> None:
        """Make an answer survive this process; only then may it be sent."""
        body = _encoder.encode(entry)
        line = len(body).to_bytes(4) + zlib.crc32(body).to_bytes(4) + body
        with self._lock:
            try:
                if os.write(self._file, line) != len(line):
                    raise OSError("short write")
            except OSError as error:
                self._cut()
                raise LedgerError(
                    f"nothing is answered unless it can be kept, and '{self.path}' cannot be written ({error}); check the "
                    "disk and its free space."
                ) from error
            self._size += len(line)
            self._waiting.append(entry)
            if len(self._waiting) >= BATCH:
                # The answer is safe in the file: a ledger that cannot take it now must not keep it from being known as
                # answered. Whoever settles the block, or reserves the next one, will hear of the trouble.
                with suppress(SfumatoError):
                    self.fold()

    def fold(self) -> None:
        """Move what is waiting into the ledger, then empty the file. A crash in between moves it again, which changes nothing.

        Raises
        ------
        LedgerError
            Ledger or file cannot be written. Everything keeps waiting.
        """
        with self._lock:
            if not self._waiting:
                return
            self._store(self._waiting)
            self._truncate(0)  # if it fails they keep waiting, and are known as answered here as well as there
            for name in {entry.account for entry in self._waiting}:
                if name in self._accounts:
                    self._accounts[name].folded()
            self._waiting = []

    def forget(self, name: str) -> None:
        """Fold, and drop what is remembered of an account: its run is over, or may come back later."""
        with self._lock:
            self.fold()
            self._accounts.pop(name, None)

    def close(self) -> None:
        """Fold, and let go."""
        with self._lock:
            if self._file >= 0:
                try:
                    self.fold()
                finally:
                    os.close(self._file)
                    self._file = -1

    def _store(self, entries: list[Entry]) -> None:
        groups: dict[tuple[str, int], list[Answer]] = defaultdict(list)
        for entry in entries:
            groups[entry.account, entry.block].append(
                Answer(entry.query_id, entry.query_hash, entry.quanta, entry.answer)
            )
        for (name, number), batch in groups.items():
            account = self._ledger.existing(name)
            if account is None:
                raise LedgerError(f"'{self.path}' has answers of account {name!r}, which the ledger does not know.")
            account.record_many(Block(account, number, 0), batch, sync=False)

    def _recover(self) -> None:
        """Take up what a dead process left; a torn last entry was never sent."""
        raw, start = self.path.read_bytes(), 0
        while len(raw) - start >= _HEADER:
            size, checksum = int.from_bytes(raw[start : start + 4]), int.from_bytes(raw[start + 4 : start + 8])
            body = raw[start + _HEADER : start + _HEADER + size]
            if len(body) < size or zlib.crc32(body) != checksum:
                break
            self._waiting.append(_decoder.decode(body))
            start += _HEADER + size
        self._truncate(start)
        self.fold()

    def _truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._file, size)
        except OSError as error:
            raise LedgerError(
                f"a journal is emptied once the ledger has its answers, and '{self.path}' cannot be cut ({error}); check the "
                "disk. Its answers are kept."
            ) from error
        self._size = size

    def _cut(self) -> None:
        """Take back half a line, so that what follows it can be read."""
        try:
            os.ftruncate(self._file, self._size)
        except OSError:
            os.close(self._file)
            self._file = -1  # every later write fails: nothing more is answered

    def __repr__(self) -> str:
        return f"<Journal of {self._ledger!r}: {len(self._waiting)} answers on their way>"


class JournalledAccount:
    """One account's answers: those on their way in memory, all others in the ledger."""

    def __init__(self, journal: Journal, account: Account) -> None:
        self._journal, self._account = journal, account
        self._waiting: dict[str, _Known] = {}
        self._folded: set[str] = set()
        # Of an account that had answers before, or has had very many since, the ledger must be asked each time.
        self._ask_ledger = account.answers > 0

    def replay(self, query_id: str, query_hash: str) -> bytes | None:
        """The answer a query got before, or None; see `Account.replay`."""
        known = self._waiting.get(query_id)
        if known is None:
            return self._account.replay(query_id, query_hash)
        if known.query_hash != query_hash:
            raise LedgerError(
                f"same id, other content: query {query_id!r} was answered for content {known.query_hash}, now it comes "
                f"with {query_hash}; use a new id for a new query."
            )
        return known.answer

    def record(
        self, query_id: str, query_hash: str, block: Block, quanta: int, answer: bytes, *, sync: bool = True
    ) -> bytes:
        """Keep an answer before it is sent, and return the one to be sent; see `Account.record`."""
        check_query(query_id, query_hash)
        with self._journal._lock:
            if self._ask_ledger or query_id in self._waiting or query_id in self._folded:
                known = self.replay(query_id, query_hash)
                if known is not None:
                    return known
            self._journal.append(Entry(self._account.name, block.number, query_id, query_hash, quanta, answer))
            self._waiting[query_id] = _Known(query_hash, answer)
            if not self._journal._waiting:  # it was the one that filled the batch
                self.folded()
            return answer

    def fold(self) -> None:
        """Everything on its way goes into the ledger: before a block is settled."""
        self._journal.fold()

    def close(self) -> None:
        """Let go: a later run on this account asks the ledger."""
        self._journal.forget(self._account.name)

    def folded(self) -> None:
        """What was on its way has arrived."""
        if len(self._folded) + len(self._waiting) > REMEMBERED:
            self._folded, self._ask_ledger = set(), True
        elif not self._ask_ledger:
            self._folded.update(self._waiting)
        self._waiting = {}


def _claim(path: Path) -> int:
    import fcntl  # here: Windows has none, and has no nodes either

    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LedgerError(
            f"a journal needs a folder it can write to, and '{path}' cannot be opened ({error})."
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise LedgerError(
            f"one process answers from a ledger's journal at a time, and '{path}' is held by another; end that one first."
        ) from error
    return handle
