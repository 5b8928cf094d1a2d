"""The file under the ledger: one SQLite database, opened safely, changed in durable transactions.

Write-ahead logging with ``synchronous=FULL``: a committed transaction has been flushed to the disk, so it survives
``kill -9`` and loss of power, and costs one flush where a rollback journal costs three. The price is that the file must
lie on a local disk (the log's index is shared memory) and that a copy of a ledger in use must be made by SQLite.
"""

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from secrets import token_hex

from sfumato.errors import LedgerError

APPLICATION_ID = 0x53664C67  # "SfLg" in the file header: tells a ledger from any other database
FORMAT = 1
BUSY_SECONDS = 30.0
LOG_PAGES = 8000
"""Pages (32 MB) the log may grow to before SQLite folds it into the file, which takes two flushes: rarely, that is."""

SCHEMA = """
CREATE TABLE entries (seq INTEGER PRIMARY KEY, entry TEXT NOT NULL, hash TEXT NOT NULL) STRICT;
CREATE TABLE accounts (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, parent INTEGER REFERENCES accounts (id),
    cap INTEGER NOT NULL, spent INTEGER NOT NULL, answers INTEGER NOT NULL, about TEXT NOT NULL,
    CHECK (0 <= spent AND spent <= cap)
) STRICT;
CREATE TABLE blocks (
    id INTEGER PRIMARY KEY, account INTEGER NOT NULL REFERENCES accounts (id),
    reserved INTEGER NOT NULL, answered INTEGER NOT NULL, settled INTEGER,
    CHECK (0 <= answered AND answered <= reserved AND settled <= reserved)
) STRICT;
CREATE INDEX open_blocks ON blocks (account) WHERE settled IS NULL;
CREATE TABLE answers (
    account INTEGER NOT NULL REFERENCES accounts (id), query_id TEXT NOT NULL, query_hash TEXT NOT NULL,
    block INTEGER NOT NULL REFERENCES blocks (id), quanta INTEGER NOT NULL, answer BLOB NOT NULL,
    entry INTEGER NOT NULL, position INTEGER NOT NULL,
    PRIMARY KEY (account, query_id)
) STRICT, WITHOUT ROWID;
"""

# What went wrong (by SQLite's primary result code) and what to do about it.
_REASONS = {
    sqlite3.SQLITE_BUSY: ("is held by another process", "wait for that process, or end it, and try again"),
    sqlite3.SQLITE_LOCKED: ("is held by another process", "wait for that process, or end it, and try again"),
    sqlite3.SQLITE_READONLY: ("cannot be written", "make the file and its folder writable"),
    sqlite3.SQLITE_PERM: ("cannot be written", "make the file and its folder writable"),
    sqlite3.SQLITE_CANTOPEN: ("cannot be opened", "check that the file and its folder exist and are writable"),
    sqlite3.SQLITE_FULL: ("cannot grow: the disk is full", "free some space and try again"),
    sqlite3.SQLITE_IOERR: ("cannot be read or written: the disk refuses", "check the disk and its free space"),
    sqlite3.SQLITE_CORRUPT: ("is damaged", "restore a copy and compare its head with the one you kept"),
    sqlite3.SQLITE_NOTADB: ("is not a ledger", "name a file that sfumato created"),
    sqlite3.SQLITE_CONSTRAINT: ("refused a change that breaks its rules", "run `sfumato ledger verify` on it"),
}
_UNKNOWN = ("failed", "run `sfumato ledger verify` on it")


def explain(name: str, error: sqlite3.Error) -> LedgerError:
    """Turn SQLite's error into ours: the rule, the value met, the next step."""
    code = getattr(error, "sqlite_errorcode", None)
    reason, remedy = _REASONS.get(code & 0xFF, _UNKNOWN) if code is not None else _UNKNOWN
    return LedgerError(
        f"nothing is answered unless the ledger can record it, and {name} {reason} ({error}); {remedy}. "
        "The change was not made."
    )


class Store:
    """One ledger file (or one ledger in memory) and this process's connection to it.

    Threads share the connection under a lock: SQLite lets one writer in at a time anyway, and a lock wakes the next
    at once where SQLite polls. The connection is closed before every fork (see `_before_fork`), so no process ever
    inherits an open one; it is opened again when next needed.

    Parameters
    ----------
    path
        The file, or None for a ledger that lives and dies with this process.
    timeout
        Seconds to wait for another process before giving up.
    """

    def __init__(self, path: Path | None, *, timeout: float = BUSY_SECONDS) -> None:
        self.path = path
        self._timeout = timeout
        self._lock = threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None
        self._pid = os.getpid()
        self._closed = False
        self._synchronous = ""  # what the connection was told last
        with _registering:
            _stores.add(self)

    @property
    def name(self) -> str:
        """How messages call this ledger."""
        return "the ledger in memory" if self.path is None else f"'{self.path}'"

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Look at one consistent state of the ledger."""
        with self._transaction("BEGIN", self._synchronous or "FULL") as db:
            yield db

    @contextmanager
    def write(self, *, sync: bool = True) -> Iterator[sqlite3.Connection]:
        """Change the ledger in one transaction; when the block ends without an exception, the change is durable.

        Parameters
        ----------
        sync
            False commits without flushing: the change survives the death of the process, not loss of power.
        """
        with self._transaction("BEGIN IMMEDIATE", "FULL" if sync else "NORMAL") as db:
            yield db

    @contextmanager
    def _transaction(self, begin: str, synchronous: str) -> Iterator[sqlite3.Connection]:
        with self._lock, self._explained():
            db = self._connection()
            if synchronous != self._synchronous:
                db.execute(f"PRAGMA synchronous={synchronous}")
                self._synchronous = synchronous
            try:
                db.execute(begin)
                yield db
                db.execute("COMMIT")
            except BaseException:
                self._abandon(db)
                raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise explain(self.name, error) from error

    def _abandon(self, db: sqlite3.Connection) -> None:
        """Undo an unfinished transaction; when even that fails, drop the connection, which undoes it too."""
        if not db.in_transaction:
            return
        try:
            db.execute("ROLLBACK")
        except sqlite3.Error:
            self._disconnect()

    def _connection(self) -> sqlite3.Connection:
        if self._closed:
            raise LedgerError(f"a closed ledger records nothing, and {self.name} was closed; open it again.")
        if self.path is None:
            return self._memory()
        if self._inode is not None and _inode(self.path) != self._inode:
            # SQLite would go on writing to a file that nobody will ever read again.
            raise LedgerError(
                f"a ledger in use must stay where it is, and {self.name} was moved, replaced or deleted; "
                "put it back and open it again."
            )
        if self._db is None:
            self._db, self._inode = _open(self.path, self._timeout), _inode(self.path)
        return self._db

    def _memory(self) -> sqlite3.Connection:
        if os.getpid() != self._pid:
            raise LedgerError(
                "a ledger in memory belongs to the process that made it, and this is a fork of that process; "
                "use a ledger in a file: Ledger(path, epsilon=..., delta=...)."
            )
        if self._db is None:
            self._db = _connect(":memory:", self._timeout)
        return self._db

    def _disconnect(self) -> None:
        db, self._db, self._synchronous = self._db, None, ""
        if db is not None:
            with suppress(sqlite3.Error):
                db.close()

    def close(self) -> None:
        """Close the connection for good; a ledger in memory is gone after this."""
        with self._lock:
            self._closed = True
            self._disconnect()

    def __del__(self) -> None:
        # Nothing is lost with an open connection: what counts was committed.
        if hasattr(self, "_db"):
            self._disconnect()

    def _before_fork(self) -> None:
        """Wait for the transaction under way, then close: an SQLite file must not be open across a fork.

        A child that inherits an open file also inherits SQLite's belief that it holds locks, which it does not.
        """
        self._lock.acquire()
        if self.path is not None:
            self._disconnect()

    def _after_fork(self) -> None:
        self._lock.release()


_stores: "weakref.WeakSet[Store]" = weakref.WeakSet()
_parked: list[Store] = []
_registering = threading.Lock()  # held across a fork: no store may be missed


def _park() -> None:
    _registering.acquire()
    _parked[:] = list(_stores)
    for store in _parked:
        store._before_fork()


def _unpark() -> None:
    while _parked:
        _parked.pop()._after_fork()
    _registering.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_park, after_in_parent=_unpark, after_in_child=_unpark)


def create(path: Path, fill: Callable[[sqlite3.Connection], None]) -> bool:
    """Create a ledger file, whole or not at all.

    The database is built under another name and then linked to its own, which fails when that is taken: of two
    processes that create the same ledger one wins, and a process killed half way leaves no half ledger.

    Returns
    -------
    bool
        False when somebody else was first.
    """
    _refuse_leftovers(path)
    draft = path.with_name(f".{path.name}.{token_hex(8)}.new")
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        _build(draft, fill)
        os.link(draft, path)
        flush_folder(path.parent)
    except FileExistsError:
        return False
    except OSError as error:
        raise LedgerError(
            f"a ledger needs a folder it can write to, and '{path}' cannot be created ({error.strerror}); "
            "create the folder, make it writable, or name another one."
        ) from error
    except sqlite3.Error as error:
        raise explain(f"'{path}'", error) from error
    finally:
        for leftover in _family(draft):
            with suppress(OSError):
                leftover.unlink()
    return True


def copy_to(db: sqlite3.Connection, target: Path) -> None:
    """Copy a database, also one in use, whole or not at all: SQLite takes its pages, we flush and name them."""
    _refuse_leftovers(target)
    draft = target.with_name(f".{target.name}.{token_hex(8)}.new")
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with closing(_connect(str(draft), BUSY_SECONDS)) as copy:
            db.backup(copy)
            _log_ahead(copy, draft)
            copy.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        _flush_file(draft)
        os.link(draft, target)
        flush_folder(target.parent)
    except OSError as error:
        raise LedgerError(f"a copy needs a place to write to, and '{target}' is none ({error.strerror}).") from error
    except sqlite3.Error as error:
        raise explain(f"'{target}'", error) from error
    finally:
        for leftover in _family(draft):
            with suppress(OSError):
                leftover.unlink()


def _flush_file(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def prepare(db: sqlite3.Connection) -> None:
    """Lay out an empty database as a ledger."""
    db.execute(f"PRAGMA application_id={APPLICATION_ID}")
    db.execute(f"PRAGMA user_version={FORMAT}")
    for statement in SCHEMA.split(";\n"):
        db.execute(statement)


def _build(draft: Path, fill: Callable[[sqlite3.Connection], None]) -> None:
    db = _connect(str(draft), BUSY_SECONDS)
    try:
        _log_ahead(db, draft)
        db.execute("PRAGMA synchronous=FULL")
        db.execute("BEGIN IMMEDIATE")
        prepare(db)
        fill(db)
        db.execute("COMMIT")
        # A close folds the log into the file but cannot report that it failed; this can.
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        db.close()


def _open(path: Path, timeout: float) -> sqlite3.Connection:
    if not path.is_file():
        raise LedgerError(f"there is no ledger at '{path}'; create one with Ledger(path, epsilon=..., delta=...).")
    if path.stat().st_size == 0:
        # SQLite takes an empty file for an empty database: a truncated ledger would become a fresh one.
        raise LedgerError(f"'{path}' is not a ledger: it is empty; restore a copy, or name another file.")
    db = _connect(path.as_uri() + "?mode=rw", timeout)
    try:
        _check_identity(db, path)
        _log_ahead(db, path)
    except BaseException:
        db.close()
        raise
    return db


def _check_identity(db: sqlite3.Connection, path: Path) -> None:
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise LedgerError(f"'{path}' is not a ledger but some other SQLite database; name a file sfumato created.")
    if version != FORMAT:
        raise LedgerError(f"'{path}' has ledger format {version}, this sfumato reads {FORMAT}; install the newer one.")


def _log_ahead(db: sqlite3.Connection, path: Path) -> None:
    """Switch write-ahead logging on; does nothing when it is. A file system without shared memory refuses."""
    (mode,) = db.execute("PRAGMA journal_mode=WAL").fetchone()
    if mode != "wal":
        raise LedgerError(f"a ledger needs a local disk, and '{path.parent}' is none (mode {mode}); move it to one.")


def _connect(target: str, timeout: float) -> sqlite3.Connection:
    # Transactions are begun and ended in this file only, hence isolation_level None. Other threads may use the
    # connection because the store's lock lets one of them in at a time.
    db = sqlite3.connect(
        target, uri=target.startswith("file:"), timeout=timeout, isolation_level=None, check_same_thread=False
    )
    db.execute("PRAGMA foreign_keys=ON")
    db.execute("PRAGMA trusted_schema=OFF")
    db.execute(f"PRAGMA wal_autocheckpoint={LOG_PAGES}")
    db.execute("PRAGMA fullfsync=ON")  # on macOS a plain flush stops at the drive's own cache
    return db


def _refuse_leftovers(path: Path) -> None:
    """Refuse to create where the log of a lost ledger lies: SQLite would play it into the new file."""
    for leftover in _family(path)[1:]:
        if leftover.exists() and not path.exists():
            raise LedgerError(
                f"a ledger may not be created over the remains of another, and '{leftover}' is there without its "
                "ledger; restore that ledger, or choose another name."
            )


def _family(path: Path) -> list[Path]:
    """List the file and the ones SQLite puts beside it."""
    return [path, *(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", "-journal"))]


def flush_folder(folder: Path) -> None:
    """Make a new name in a folder survive loss of power."""
    if os.name == "nt":  # folders cannot be opened there, and need not be flushed
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino
