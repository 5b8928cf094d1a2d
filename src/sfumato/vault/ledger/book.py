"""The ledger itself: its file, its guarantee, its accounts, its chain."""

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from operator import index
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Any, NamedTuple, Self

from sfumato.errors import InvalidInput, LedgerError
from sfumato.privacy.budget import cap_quanta, mu_squared
from sfumato.tools.notebook import card, table
from sfumato.vault.ledger import chain
from sfumato.vault.ledger.account import ROOT, Account, figures, least_left, line, next_id, whole
from sfumato.vault.ledger.answers import check_text
from sfumato.vault.ledger.chain import Head
from sfumato.vault.ledger.store import BUSY_SECONDS, Store, copy_to, create, prepare
from sfumato.vault.ledger.verify import Verification, verify

# A reservation adds what it reserves; a settlement gives back what it did not spend.
_SPENDING = """
SELECT json_extract(entry, '$.at'),
    CASE json_extract(entry, '$.kind') WHEN 'reserve' THEN json_extract(entry, '$.quanta')
    ELSE json_extract(entry, '$.spent') - (SELECT reserved FROM blocks WHERE id = json_extract(entry, '$.block')) END
FROM entries WHERE entry LIKE '%"kind":"reserve"%' OR entry LIKE '%"kind":"settle"%' ORDER BY seq
"""


class AccountState(NamedTuple):
    """One account as it stands; all figures are public."""

    name: str
    parent: str | None
    cap: int
    spent: int
    open_blocks: int
    answers: int
    about: dict[str, Any]


class Ledger:
    """A durable account of the privacy budget of one set of records.

    Everything that ever leaves the records is paid from here first. Budgets are whole quanta of mu squared (see
    `sfumato.privacy.budget`). A block of budget is reserved in one durable transaction before its first answer and
    counts in full until it is settled; one that never is (a crash) counts in full for ever. So a crash may waste
    budget and never overspends. Works from many threads and processes at once, on a local disk.

    Parameters
    ----------
    path
        The ledger's file. Created when it does not exist and `epsilon` and `delta` are given.
    epsilon, delta
        The guarantee that all answers together must keep. An existing ledger keeps its own: given again, they must
        be equal to it.
    timeout
        Seconds to wait for other processes that hold the file.

    Raises
    ------
    LedgerError
        The file is missing, not a ledger, damaged, not writable, or has another epsilon or delta.

    Notes
    -----
    The file holds names, budgets, times, hashes and answers that were noised and paid for; never records or anything
    else computed from them. What callers put into `about` must be public.

    Restoring an older copy of the file, or deleting it, gives budget back that has been spent: no file can notice
    that by itself. Keep the last `head` elsewhere and pass it to `verify`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        timeout: float = BUSY_SECONDS,
    ) -> None:
        if (epsilon is None) != (delta is None):
            raise InvalidInput(f"epsilon and delta are given together or not at all, got {epsilon} and {delta}.")
        place = Path(path).resolve()
        if epsilon is not None and delta is not None and not place.exists():
            from sfumato.privacy import gdp

            _create(place, cap_quanta(float(gdp.mu(epsilon, delta))), float(epsilon), float(delta))
        self._attach(Store(place, timeout=timeout))
        if epsilon is not None and (self.epsilon, self.delta) != (epsilon, delta):
            self.close()
            raise LedgerError(
                f"a ledger's guarantee is fixed when it is created, and {self._store.name} has epsilon "
                f"{self.epsilon}, delta {self.delta}, not {epsilon}, {delta}; open it without them, or start another."
            )

    @classmethod
    def with_cap(cls, path: str | os.PathLike[str], cap: int, *, timeout: float = BUSY_SECONDS) -> Self:
        """Create a ledger file with a cap in quanta, or open the one that has it."""
        place = Path(path).resolve()
        cap = whole("a cap", cap)
        if not place.exists():
            _create(place, cap, None, None)
        ledger = cls(place, timeout=timeout)
        if ledger.cap != cap:
            ledger.close()
            raise LedgerError(f"'{place}' has a cap of {ledger.cap} quanta, not {cap}; a cap is fixed when created.")
        return ledger

    @classmethod
    def in_memory(cls, cap_quanta: int) -> Self:
        """Make a ledger for a run that accounts for itself alone; it ends with the process and is never forked."""
        ledger = cls.__new__(cls)
        store = Store(None)
        with store.write() as db:
            prepare(db)
            _fill(db, whole("a cap", cap_quanta), None, None)
        ledger._attach(store)
        return ledger

    def _attach(self, store: Store) -> None:
        self._store = store
        try:
            with store.read() as db:
                self._read_terms(db)
        except BaseException:
            store.close()
            raise

    def _read_terms(self, db: sqlite3.Connection) -> None:
        try:
            first = json.loads(db.execute("SELECT entry FROM entries WHERE seq = 1").fetchone()[0])
            self.id: str = first["ledger"]
            self.cap: int = index(first["cap"])
            self.epsilon: float | None = first["epsilon"]
            self.delta: float | None = first["delta"]
        except (TypeError, ValueError, KeyError) as error:
            raise LedgerError(
                f"the first entry of {self._store.name} must state the cap, and cannot be read; restore a copy."
            ) from error

    @property
    def path(self) -> Path | None:
        """The file; None for a ledger in memory."""
        return self._store.path

    @property
    def spent(self) -> int:
        """Quanta spent: what was settled, and every open block in full."""
        with self._store.read() as db:
            return line(db, ROOT)[-1].spent

    @property
    def left(self) -> int:
        """Quanta that can still be reserved."""
        with self._store.read() as db:
            return least_left(line(db, ROOT))

    def account(
        self,
        name: str,
        cap_quanta: int,
        *,
        parent: Account | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> Account:
        """Open a sub-budget: a run, an analyst, a study.

        Opening the same name again, with the same cap and parent, gives the same account with what it has spent.

        Parameters
        ----------
        name
            Unique in the ledger, 1 to 200 printable characters.
        cap_quanta
            The most this account may spend. A reservation must also fit under every ancestor's cap and the ledger's.
        parent
            The account this one is part of; the ledger itself when None.
        about
            Public facts to keep with the account (JSON); those of the first opening stay.

        Raises
        ------
        LedgerError
            The name is taken by an account with another cap or parent.
        """
        check_text("the name of an account", name)
        cap = whole("a cap", cap_quanta)
        above = ROOT if parent is None else parent.number_in(self.id)
        facts = _public_facts(about)
        with self._store.write() as db:
            row = db.execute("SELECT id, cap, parent FROM accounts WHERE name = ?", (name,)).fetchone()
            if row is not None:
                return self._known(name, row, cap, above)
            number = next_id(db, "accounts")
            db.execute("INSERT INTO accounts VALUES (?, ?, ?, ?, 0, 0, ?)", (number, name, above, cap, facts))
            chain.append(db, "account", account=number, name=name, parent=above, cap=cap, about=json.loads(facts))
        return Account(self._store, self.id, number, name, cap)

    def _known(self, name: str, row: tuple[int, int, int], cap: int, above: int) -> Account:
        number, known_cap, known_above = row
        if known_cap != cap:
            raise LedgerError(
                f"an account's cap is fixed when it is opened, and {name!r} has {known_cap} quanta, not {cap}; "
                "open it with its own cap, or choose another name."
            )
        if known_above != above:
            raise LedgerError(f"an account keeps its parent, and {name!r} has another one; choose another name.")
        return Account(self._store, self.id, number, name, cap)

    def existing(self, name: str) -> Account | None:
        """The account of that name, or None: opens nothing."""
        with self._store.read() as db:
            row = db.execute("SELECT id, cap FROM accounts WHERE name = ? AND id <> ?", (name, ROOT)).fetchone()
        return None if row is None else Account(self._store, self.id, row[0], name, row[1])

    def accounts(self) -> list[AccountState]:
        """List the accounts in the order they were opened, with what each has spent."""
        with self._store.read() as db:
            rows = db.execute(
                """
                SELECT a.name, CASE WHEN a.parent = ? THEN NULL ELSE up.name END, a.cap, a.spent,
                    (SELECT count(*) FROM blocks b WHERE b.account = a.id AND b.settled IS NULL),
                    a.answers, a.about
                FROM accounts a JOIN accounts up ON up.id = a.parent ORDER BY a.id
                """,
                (ROOT,),
            ).fetchall()
        return [AccountState._make((*row[:-1], json.loads(row[-1]))) for row in rows]

    def head(self) -> Head:
        """Return number and hash of the last entry, to be kept where nobody who can edit the file can reach."""
        with self._store.read() as db:
            return chain.head(db)

    def entries(self, after: int = 0) -> Iterator[dict[str, Any]]:
        """Yield the chain from entry `after` + 1 on: number, the entry as it was hashed (JSON text), its hash."""
        seq = after
        while True:
            with self._store.read() as db:
                rows = db.execute("SELECT * FROM entries WHERE seq > ? ORDER BY seq LIMIT 1000", (seq,)).fetchall()
            if not rows:
                return
            for seq, entry, digest in rows:
                yield {"seq": seq, "entry": entry, "hash": digest}

    def verify(self, kept: Head | None = None) -> Verification:
        """Recompute the chain and every balance from it.

        Finds a row that was edited, deleted, inserted or reordered, a balance that does not follow from the entries,
        a stored answer that was changed, and a cap that was passed. It cannot find that the last entries were cut off
        together with what they changed, nor that the whole file was rewritten from the start or put back from an older
        copy: for that, keep `head` elsewhere and give it here as `kept`.
        """
        if self.path is None:
            with self._store.read() as db:
                return verify(db, kept)
        # On a connection of its own: a check of a long ledger keeps nobody waiting.
        with closing(Store(self.path)) as store, store.read() as db:
            return verify(db, kept)

    def spending(self) -> list[tuple[str, int]]:
        """When the sum of all reservations changed, and what it was then, in quanta: the budget's curve, oldest first."""
        with self._store.read() as db:
            rows = db.execute(_SPENDING).fetchall()
        curve, spent = [], 0
        for at, change in rows:
            spent += change
            curve.append((at, spent))
        return curve

    def backup(self, target: str | os.PathLike[str]) -> Head:
        """Copy the ledger, also while it is in use, and return the head of the copy: keep that elsewhere.

        A copy is for reading, or for a disk that died. Whatever was spent after the copy was made is unknown to it: before
        a restored copy pays for anything, compare its head with the last one kept (`verify`).

        Raises
        ------
        LedgerError
            There is something under that name already, or it cannot be written.
        """
        place = Path(target).resolve()
        if place.exists():
            raise LedgerError(f"a backup never overwrites, and '{place}' exists; name another file.")
        with self._store.read() as db:
            copy_to(db, place)
        with closing(Store(place)) as store, store.read() as db:
            return chain.head(db)

    def close(self) -> None:
        """Close the file; open blocks stay counted in full."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _repr_html_(self) -> str:
        try:
            lines = [
                (state.name, f"{mu_squared(state.spent):.4g}", f"{mu_squared(state.cap):.4g}", f"{state.answers:,}")
                for state in self.accounts()
            ]
        except LedgerError:
            lines = []
        return card(repr(self).strip("<>"), inner=[table(("account", "spent (mu squared)", "of", "answers"), lines)])

    def __repr__(self) -> str:
        place = "in memory" if self.path is None else f"'{self.path.name}'"
        try:
            spent = self.spent
        except LedgerError:
            return f"<Ledger {place}: cannot be read>"
        return f"<Ledger {place}: {figures(self.cap, spent)}>"


def _create(path: Path, cap: int, epsilon: float | None, delta: float | None) -> None:
    create(path, lambda db: _fill(db, cap, epsilon, delta))


def _fill(db: sqlite3.Connection, cap: int, epsilon: float | None, delta: float | None) -> None:
    db.execute("INSERT INTO accounts VALUES (?, '', NULL, ?, 0, 0, '{}')", (ROOT, cap))
    chain.append(db, "create", ledger=token_hex(16), cap=cap, epsilon=epsilon, delta=delta)


def _public_facts(about: Mapping[str, Any] | None) -> str:
    try:
        return chain.canonical(dict(about or {}))
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"about must be a mapping that can be written as JSON ({error}).") from error
