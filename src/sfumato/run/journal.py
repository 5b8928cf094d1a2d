"""Checkpoints: released values, made durable before the next answer is asked for.

A folder holds ``run.json`` (the terms of the run, with a checksum), one ``pilot-NN.json`` per release of the pilot (what was
asked, then what was answered), one ``chunk-NNNNNN.npz`` per chunk (its part of the
transcript, the state after it, what it cost), and, for a run without a shared ledger, its own ``ledger.sqlite``. Nothing in
it depends on a record except through values that were already released: no cached likelihoods, no unused noise, no hash of
the data. While a run is under way there is a ``run.lock`` as well: whoever writes holds it, whoever reads needs none.
"""

import hashlib
import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from sfumato.errors import CheckpointError
from sfumato.kernel import State
from sfumato.run.folderlock import FolderLock
from sfumato.run.terms import Terms, read_terms

FORMAT = 2


class Saved(NamedTuple):
    """One durable chunk."""

    transcript: dict[str, np.ndarray]
    states: State
    spent: int
    block: int
    reserved: int


class Journal:
    """A folder of durable chunks."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._next = len(list(self._chunks()))
        self._before: set[Path] = set()
        self._lock: FolderLock | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep every other run out of the folder, which is made if it is missing; see `FolderLock`."""
        self._make()
        self._lock = FolderLock(self.folder)
        try:
            self._next = len(self._chunks())  # a run that has just let go may have added some
            yield
        finally:
            self._let_go()

    def _let_go(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _make(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unmade(error) from None

    def _unmade(self, error: OSError) -> CheckpointError:
        return CheckpointError(f"the checkpoint folder {self.folder} cannot be made: {error.strerror}.")

    def create(self, terms: Terms) -> None:
        """Start a new run: the folder must not hold one already."""
        if self._chunks() or self._pilot() or (self.folder / "run.json").exists():
            raise CheckpointError(f"{self.folder} already holds a run; go on with sf.resume, or choose another folder.")
        self._make()
        self._before = set(self._ledgers())
        try:
            (self.folder / "run.json").touch(exist_ok=False)  # of two runs that start here at once, one gets it
        except OSError as error:
            raise self._unmade(error) from None
        try:
            self._write_terms(terms)
        except CheckpointError:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Take away what `create` began: for a run that was refused before it could spend, so that it can be started again."""
        (self.folder / "run.json").unlink(missing_ok=True)
        for ledger in set(self._ledgers()) - self._before:
            for suffix in ("", "-wal", "-shm", "-journal"):  # SQLite puts its log beside it
                ledger.with_name(ledger.name + suffix).unlink(missing_ok=True)
        self._let_go()  # before the folder goes: the lock is a file in it
        with suppress(OSError):  # not empty: somebody else's files stay
            self.folder.rmdir()

    def _ledgers(self) -> list[Path]:
        return list(self.folder.glob("ledger*.sqlite"))

    def check_there(self) -> None:
        """Refuse a folder in which no run was started."""
        if not (self.folder / "run.json").exists():
            raise CheckpointError(
                f"{self.folder} holds no run.json; give the folder passed as checkpoint= to sf.sample."
            )

    def terms(self) -> Terms:
        """Read the terms of the run that was started here."""
        self.check_there()
        path = self.folder / "run.json"
        try:
            file = json.loads(path.read_text())
            found, terms, digest = file["format"], file.get("terms"), file.get("digest")
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            found, terms, digest = FORMAT, None, ""
        if found != FORMAT:
            raise CheckpointError(f"{path} has format {found!r}, this version reads {FORMAT}; start a new run.")
        if not isinstance(terms, dict) or digest != _digest(terms):
            raise CheckpointError(
                f"the terms of a run stay as they were written, and {path} is corrupt or was edited; restore it from a backup. "
                "The ledger still knows what was spent."
            )
        return read_terms(terms, self.folder)

    def update_terms(self, **changes: Any) -> Terms:
        """Settle more of the terms (the pilot's releases and the plan made from them); gives all of them."""
        terms = msgspec.structs.replace(self.terms(), **changes)
        self._write_terms(terms)
        return terms

    def _write_terms(self, terms: Terms) -> None:
        plain = json.loads(json.dumps(msgspec.to_builtins(terms), default=np.generic.item))
        body = {"format": FORMAT, "digest": _digest(plain), "terms": plain}
        then = "start the run again, or go on with sf.resume if it had begun"
        self._write("run.json", json.dumps(body, indent=1).encode(), then)

    def note_release(self, number: int, entry: dict[str, Any]) -> None:
        """Make durable what a release of the pilot asks, or what it gave."""
        body = {"digest": _digest(entry), "release": entry}
        self._write(
            f"pilot-{number:03d}.json",
            json.dumps(body).encode(),
            "go on with sf.resume. The answers noted so far are kept",
        )

    def releases(self) -> list[dict[str, Any]]:
        """What is noted of the pilot, in order."""
        found = []
        for position, path in enumerate(self._pilot()):
            try:
                body = json.loads(path.read_text())
                entry, whole = body["release"], body["digest"] == _digest(body["release"])
            except (OSError, ValueError, TypeError, KeyError):
                entry, whole = {}, False
            if not whole or path.name != f"pilot-{position:03d}.json":
                raise CheckpointError(
                    f"the pilot's releases stay as they were written, and {path.name} or the one before it is corrupt or missing "
                    f"in {self.folder}; restore it from a backup. The ledger still knows what was spent."
                )
            found.append(entry)
        return found

    def _pilot(self) -> list[Path]:
        return sorted(self.folder.glob("pilot-*.json")) if self.folder.is_dir() else []

    def add(self, saved: Saved) -> None:
        """Make one chunk durable."""
        buffer = io.BytesIO()
        state = {f"state/{k}": np.asarray(v) for k, v in saved.states._asdict().items() if v is not None}
        header = json.dumps({"spent": saved.spent, "block": saved.block, "reserved": saved.reserved})
        np.savez(buffer, header=np.array(header), **state, **saved.transcript)  # type: ignore[arg-type]
        body = buffer.getvalue()
        then = "go on with sf.resume. Everything drawn so far is in the `run` of this error"
        self._write(f"chunk-{self._next:06d}.npz", hashlib.sha256(body).digest() + body, then)
        self._next += 1

    def read(self) -> Iterator[Saved]:
        """All durable chunks, oldest first, each checked."""
        for position, path in enumerate(self._chunks()):
            if path.name != f"chunk-{position:06d}.npz":
                raise CheckpointError(f"chunk {position} is missing from {self.folder}; restore it from a backup.")
            yield _parse(path)

    def _chunks(self) -> list[Path]:
        return sorted(self.folder.glob("chunk-*.npz")) if self.folder.is_dir() else []

    def _write(self, name: str, body: bytes, then: str) -> None:
        """Write, flush to the disk, rename, flush the folder: a reader sees the old file or the new, never a torn one."""
        path, draft = self.folder / name, self.folder / f".{name}.tmp"
        try:
            with draft.open("wb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
            folder = os.open(self.folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise CheckpointError(
                f"{path} could not be written ({error.strerror}); free some space and {then}."
            ) from None


def _digest(terms: dict[str, Any]) -> str:
    """Checksum of the terms, against damage and careless edits; what may be spent is the ledger's to say."""
    return hashlib.sha256(json.dumps(terms, sort_keys=True, default=np.generic.item).encode()).hexdigest()


def _parse(path: Path) -> Saved:
    raw = path.read_bytes()
    digest, body = raw[:32], raw[32:]
    if hashlib.sha256(body).digest() != digest:
        raise CheckpointError(
            f"{path.name} is corrupt. Restore it from a backup, or delete it and every later chunk (never the ledger) to go on "
            "from the one before; what they cost stays spent."
        )
    with np.load(io.BytesIO(body), allow_pickle=False) as file:
        header = json.loads(str(file["header"]))
        state = State(*(file.get(f"state/{name}") for name in State._fields))
        arrays = {k: file[k] for k in file.files if k != "header" and not k.startswith("state/")}
    return Saved(arrays, state, header["spent"], header["block"], header["reserved"])
