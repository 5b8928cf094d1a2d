"""What an owner must not forget about sealed sums: epochs of its keys, keys of the others, names of releases. One line each.

A disk that is put back from a copy forgets. Then this owner signs another key under an epoch that the others know, and they
refuse it. Nothing here is secret.
"""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sfumato.errors import LedgerError
from sfumato.vault.ledger.store import flush_folder


class SealBook:
    """Durable lines; in memory where there is no path, for owners that end with their process.

    Parameters
    ----------
    path
        The file; made when there is something to remember. Several processes may share it.

    Raises
    ------
    LedgerError
        It cannot be written, or somebody edited it.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path, self._lock = path, threading.RLock()
        self._read = 0  # bytes of the file that are known here
        self._epochs: dict[str, int] = {}
        self._keys: dict[tuple[str, str], tuple[int, str]] = {}
        self._releases: dict[str, str] = {}

    def next_epoch(self, run: str) -> int:
        """An epoch that this owner never had before in this run, durably."""
        with self._open():
            epoch = self._epochs.get(run, 0) + 1
            self._append({"epoch": epoch, "run": run})
            return epoch

    def note_key(self, run: str, member: str, epoch: int, digest: str) -> None:
        """Remember another member's key, durably, before it is used.

        Raises
        ------
        LedgerError
            A later epoch of it is known, or another key of the same epoch.
        """
        with self._open():
            known, before = self._keys.get((run, member), (0, ""))
            if epoch < known or (epoch == known and digest != before):
                what = "an older key" if epoch < known else "another key of the same epoch"
                raise LedgerError(
                    f"keys of a run only ever get newer, and {member!r} comes back with {what} (epoch {epoch}, known {known}): "
                    "its disk was put back from a copy, or somebody replays what it said. Ask its owner; start a new run."
                )
            if epoch > known:
                self._append({"key": digest, "run": run, "member": member, "epoch": epoch})

    def claim_release(self, name: str, digest: str) -> None:
        """Use the name of a release, once and for ever.

        Raises
        ------
        LedgerError
            It was used before.
        """
        with self._open():
            if name in self._releases:
                raise LedgerError(
                    f"a release id is used once, and {name!r} was used here before: two releases under one id would be each "
                    "other's key. Use the file that was written then, or agree on another id."
                )
            self._append({"release": name, "digest": digest})

    @contextmanager
    def _open(self) -> Iterator[None]:
        """Alone with the file, and with all that others have written to it."""
        with self._lock:
            if self._path is None:
                yield
                return
            import fcntl  # here: Windows has none

            new = not self._path.exists()
            try:
                self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise self._unwritten(error) from error
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX)
                if new:
                    flush_folder(self._path.parent)  # a file whose name is lost forgets everything
                self._catch_up()
                yield
            finally:
                os.close(self._handle)

    def _catch_up(self) -> None:
        size = os.fstat(self._handle).st_size
        if size < self._read:
            raise LedgerError(f"'{self._path}' has become shorter while it was in use; restore it, or start new runs.")
        new = os.pread(self._handle, size - self._read, self._read)
        whole = new[: new.rfind(b"\n") + 1]
        if len(whole) < len(new):  # a write that power cut short: nothing was said after it
            os.ftruncate(self._handle, self._read + len(whole))
        for line in whole.splitlines():
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError):
                raise LedgerError(
                    f"'{self._path}' remembers keys and releases line by line, and one cannot be read: it was edited. "
                    "Restore it from a backup."
                ) from None
        self._read += len(whole)

    def _append(self, line: dict[str, object]) -> None:
        if self._path is not None:
            body = json.dumps(line, sort_keys=True).encode() + b"\n"
            try:
                if os.write(self._handle, body) != len(body):
                    raise OSError("short write")
                os.fsync(self._handle)
            except OSError as error:
                raise self._unwritten(error) from error
            self._read += len(body)
        self._take(line)

    def _take(self, line: dict[str, object]) -> None:
        if "release" in line:
            self._releases[str(line["release"])] = str(line["digest"])
        elif "key" in line:
            self._keys[str(line["run"]), str(line["member"])] = (int(str(line["epoch"])), str(line["key"]))
        else:
            self._epochs[str(line["run"])] = int(str(line["epoch"]))

    def _unwritten(self, error: OSError) -> LedgerError:
        return LedgerError(
            f"a key is remembered before it is used, and '{self._path}' cannot be written ({error}); check the disk."
        )
