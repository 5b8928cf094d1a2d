"""Who may knock: tokens, hashed at rest, checked in constant time.

A token is written ``sfu_<name>_<secret>``: the name tells which line of the file to compare with, the secret is 256 random
bits shown once. The file keeps a scrypt hash under a salt of its own; whoever reads it can knock no sooner.
"""

import fcntl
import hashlib
import hmac
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import msgspec

from sfumato.errors import InvalidInput
from sfumato.node.config import check_name

PREFIX = "sfu"
COST = {"n": 2**14, "r": 8, "p": 1}  # 16 MB and about 40 ms a check
MAX_TOKEN = 200
_SECRET_BYTES = 32

Kind = Literal["analyst", "owner", "monitor"]
KINDS: tuple[Kind, ...] = ("analyst", "owner", "monitor")


def now() -> datetime:
    """The time that tokens go by."""
    return datetime.now(UTC)


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the file: everything but the secret."""

    name: str
    kind: Kind
    salt: str
    hash: str
    created: str
    expires: str | None = None
    revoked: str | None = None

    def valid_at(self, now: datetime) -> bool:
        """Whether it opens anything at that time."""
        return self.revoked is None and (self.expires is None or now < datetime.fromisoformat(self.expires))

    def state(self, now: datetime) -> str:
        """How it stands, in a word."""
        if self.revoked is not None:
            return "revoked"
        return "valid" if self.valid_at(now) else "expired"


class TokenFile:
    """The tokens of one node.

    Parameters
    ----------
    path
        The file; made when the first token is added, readable by the owner only.

    Notes
    -----
    Names are never given out again, not even after a revocation: the ledger's accounts carry them.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._seen: dict[bytes, str] = {}  # keyed digest of a token that was checked -> its name
        self._key = secrets.token_bytes(32)
        self._loaded: tuple[tuple[int, int, int] | None, dict[str, Token]] = (None, {})
        self._lock = threading.Lock()

    def all(self) -> dict[str, Token]:
        """Every token by name, as the file has them now."""
        mark = self._mark()
        with self._lock:
            if mark is None or mark != self._loaded[0]:
                self._loaded = (mark, self._read())
            return self._loaded[1]

    def add(self, name: str, kind: Kind = "analyst", *, days: float | None = None) -> str:
        """Make a token and return it: the only time it can be read.

        Raises
        ------
        InvalidInput
            The name is taken, also by a token that was revoked.
        """
        check_name(name)
        if kind not in KINDS:
            raise InvalidInput(f"the kind of a token must be one of {', '.join(KINDS)}, got {kind!r}.")
        if days is not None and not days > 0:
            raise InvalidInput(f"a token must live for more than zero days, got {days}.")
        secret, salt, made = secrets.token_urlsafe(_SECRET_BYTES), secrets.token_bytes(16), now()
        expires = None if days is None else (made + timedelta(days=days)).isoformat(timespec="seconds")
        with self._exclusive():
            known = self._read()
            if name in known:
                raise InvalidInput(
                    f"a name is given out once, and {name!r} was ({known[name].state(made)}); choose another."
                )
            line = Token(name, kind, salt.hex(), _hash(secret, salt).hex(), made.isoformat(timespec="seconds"), expires)
            self._write(known | {name: line})
        return f"{PREFIX}_{name}_{secret}"

    def revoke(self, name: str) -> Token:
        """Close a token for good; a running node notices within a second."""
        with self._exclusive():
            known = self._read()
            if name not in known:
                raise InvalidInput(f"there is no token named {name!r:.80}; `sfumato token list` shows them.")
            if known[name].revoked is None:
                revoked = now().isoformat(timespec="seconds")
                self._write(known | {name: msgspec.structs.replace(known[name], revoked=revoked)})
            return self._read()[name]

    def was_right(self, token: str) -> bool:
        """Whether this token was right before, in the life of this object: then `check` needs no slow hash."""
        return self._digest(token) in self._seen

    def _digest(self, token: str) -> bytes:
        return hmac.digest(self._key, token.encode("utf-8", "replace"), "sha256")

    def check(self, token: str) -> Token | None:
        """Return the line a token belongs to, or None.

        An unknown name costs as much time as a wrong secret. Revocation and expiry are looked up at every call; the slow
        hash is computed once for a token that was right.
        """
        name, secret = _split(token)
        lines = self.all()
        digest = self._digest(token)
        if self._seen.get(digest) != name or not name:
            line = lines.get(name)
            salt = bytes.fromhex(line.salt) if line else bytes(16)
            right = hmac.compare_digest(_hash(secret, salt), bytes.fromhex(line.hash) if line else bytes(32))
            if not (right and line is not None):
                return None
            self._seen[digest] = name
        found = lines.get(name)
        return found if found is not None and found.valid_at(now()) else None

    # -- the file -----------------------------------------------------------------------------------------------------

    def _mark(self) -> tuple[int, int, int] | None:
        try:
            stat = self.path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def _read(self) -> dict[str, Token]:
        try:
            lines = msgspec.json.decode(self.path.read_bytes(), type=list[Token])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            raise InvalidInput(f"the tokens in {self.path} cannot be read ({type(error).__name__}).") from None
        return {line.name: line for line in lines}

    def _write(self, lines: dict[str, Token]) -> None:
        draft = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        handle = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(list(lines.values())), indent=1) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self.path)
        finally:
            draft.unlink(missing_ok=True)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """One writer at a time, over processes."""
        try:
            handle = os.open(self.path.with_name(f"{self.path.name}.lock"), os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            raise InvalidInput(f"tokens are kept in {self.path}, which cannot be written ({error.strerror}).") from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def _split(token: str) -> tuple[str, str]:
    """Name and secret; two empty texts for what is no token."""
    parts = token.split("_", 1) if isinstance(token, str) and len(token) <= MAX_TOKEN else [""]
    if len(parts) != 2 or parts[0] != PREFIX or not parts[1].isascii():
        return "", ""
    secret = parts[1][-43:]  # 32 bytes in URL-safe letters, which may hold underscores: counted from the end
    name = parts[1][: -len(secret) - 1]
    return (name, secret) if parts[1][len(name) : len(name) + 1] == "_" else ("", "")


def _hash(secret: str, salt: bytes) -> bytes:
    return hashlib.scrypt(secret.encode(), salt=salt, n=COST["n"], r=COST["r"], p=COST["p"], dklen=32)
