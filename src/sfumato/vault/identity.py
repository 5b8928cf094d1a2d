"""Whether a resumed run got the same records: a keyed digest that never leaves the private side.

A plain hash of the data in a checkpoint would be an exact release (anyone could test a guess against it). The key and the
digests stay in the owner's own state folder (``SFUMATO_STATE``, or ``~/.local/state/sfumato``), readable by the owner only.
"""

import hmac
import os
import secrets
from pathlib import Path
from typing import Protocol

from sfumato.errors import CheckpointError


class Digested(Protocol):
    """Records with a keyed digest, in one table or in shards."""

    def mac(self, key: bytes) -> str:
        """Keyed digest of all of them."""
        ...


def _folder() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    folder = Path(os.environ.get("SFUMATO_STATE") or Path(home) / "sfumato")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def remember(run_id: str, records: Digested) -> None:
    """Keep the keyed digest of the records a run was started with."""
    key = secrets.token_bytes(32)
    digest = records.mac(key)  # first: what cannot be digested leaves no file
    path = _folder() / f"{run_id}.mac"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{key.hex()} {digest}")


def check(run_id: str, records: Digested) -> None:
    """Refuse other records than the run was started with. Where nothing is remembered, nothing can be said."""
    path = _folder() / f"{run_id}.mac"
    if not path.exists():
        return
    key, expected = path.read_text().split()
    if not hmac.compare_digest(records.mac(bytes.fromhex(key)), expected):
        raise CheckpointError(
            "these are not the records the run was started with; resume with the same table, or start a new run."
        )
