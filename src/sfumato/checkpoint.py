"""Checkpoints: released values, made durable before the next answer is asked for.

A folder holds ``run.json`` (the terms of the run), one ``chunk-NNNNNN.npz`` per chunk (its part of the transcript, the
state after it, what it cost), and, for a run without a shared ledger, its own ``ledger.sqlite``. Nothing in it depends on
a record except through values that were already released: no cached likelihoods, no unused noise, no hash of the data.
"""

import hashlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sfumato.errors import CheckpointError
from sfumato.kernel import State

FORMAT = 1


class Saved(NamedTuple):
    """One durable chunk."""

    transcript: dict[str, np.ndarray]
    states: State
    spent: int
    block: int
    reserved: int


class Checkpoint:
    """A folder of durable chunks."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._next = len(list(self._chunks()))

    @property
    def ledger_path(self) -> Path:
        """Where a run keeps its own ledger."""
        return self.folder / "ledger.sqlite"

    def create(self, terms: dict[str, Any]) -> None:
        """Start a new run: the folder must not hold one already."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"the checkpoint folder {self.folder} cannot be made: {error.strerror}.") from None
        if (self.folder / "run.json").exists():
            raise CheckpointError(f"{self.folder} already holds a run; go on with sf.resume, or choose another folder.")
        self._write("run.json", json.dumps({"format": FORMAT, **terms}, indent=1).encode())

    def terms(self) -> dict[str, Any]:
        """Read the terms of the run that was started here."""
        path = self.folder / "run.json"
        if not path.exists():
            raise CheckpointError(
                f"{self.folder} holds no run.json; give the folder passed as checkpoint= to sf.sample."
            )
        try:
            terms: dict[str, Any] = json.loads(path.read_text())
        except (OSError, ValueError):
            raise CheckpointError(
                f"{path} is corrupt; restore it from a backup. The ledger still knows what was spent."
            ) from None
        if terms.get("format") != FORMAT:
            raise CheckpointError(f"{path} has format {terms.get('format')}, this version reads {FORMAT}.")
        return terms

    def update_terms(self, **changes: Any) -> None:
        """Add to the terms (the pilot's releases and the plan made from them)."""
        self._write("run.json", json.dumps(self.terms() | changes, indent=1).encode())

    def add(self, saved: Saved) -> None:
        """Make one chunk durable."""
        buffer = io.BytesIO()
        state = {f"state/{k}": np.asarray(v) for k, v in saved.states._asdict().items() if v is not None}
        header = json.dumps({"spent": saved.spent, "block": saved.block, "reserved": saved.reserved})
        np.savez(buffer, header=np.array(header), **state, **saved.transcript)  # type: ignore[arg-type]
        body = buffer.getvalue()
        self._write(f"chunk-{self._next:06d}.npz", hashlib.sha256(body).digest() + body)
        self._next += 1

    def read(self) -> Iterator[Saved]:
        """All durable chunks, oldest first, each checked."""
        for position, path in enumerate(self._chunks()):
            if path.name != f"chunk-{position:06d}.npz":
                raise CheckpointError(f"chunk {position} is missing from {self.folder}; restore it from a backup.")
            yield _parse(path)

    def _chunks(self) -> list[Path]:
        return sorted(self.folder.glob("chunk-*.npz")) if self.folder.is_dir() else []

    def _write(self, name: str, body: bytes) -> None:
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
            raise CheckpointError(
                f"{path} could not be written ({error.strerror}); free some space and go on with sf.resume. "
                "Everything drawn so far is in the `run` of this error."
            ) from None


def _parse(path: Path) -> Saved:
    raw = path.read_bytes()
    digest, body = raw[:32], raw[32:]
    if hashlib.sha256(body).digest() != digest:
        raise CheckpointError(
            f"{path.name} is corrupt. Restore it from a backup, or delete it and every later chunk to go on from the one "
            "before; what they cost stays spent."
        )
    with np.load(io.BytesIO(body), allow_pickle=False) as file:
        header = json.loads(str(file["header"]))
        state = State(*(file.get(f"state/{name}") for name in State._fields))
        arrays = {k: file[k] for k in file.files if k != "header" and not k.startswith("state/")}
    return Saved(arrays, state, header["spent"], header["block"], header["reserved"])
