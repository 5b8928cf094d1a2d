"""An owner's long-lived identity: one key that signs, one that static masks are agreed with. Both stay on this machine."""

import os
from functools import cached_property
from pathlib import Path
from typing import Any

from sfumato.errors import InvalidInput
from sfumato.protocol.consortium import text_of
from sfumato.vault.closed import closed

HEADER = b"sfumato identity 1\n"
_BYTES = 32


def primitives() -> Any:
    """The package that has all the cryptography; nothing of it is written here."""
    try:
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519, x25519
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
        from cryptography.hazmat.primitives.kdf import hkdf
    except ImportError:
        raise InvalidInput("sealed sums need the package cryptography: pip install 'sfumato[node]'.") from None
    return _Primitives(hashes, serialization, ed25519, x25519, Cipher, algorithms, hkdf)


class _Primitives:
    """What is used of it."""

    def __init__(self, *modules: Any) -> None:
        self.hashes, self.serialization, self.ed25519, self.x25519, self.Cipher, self.algorithms, self.hkdf = modules


@closed("an owner's secret keys")
class Identity:
    """Two secret keys of one owner.

    Parameters
    ----------
    secret
        64 bytes: Ed25519's seed, X25519's scalar.
    """

    def __init__(self, secret: bytes) -> None:
        crypto = primitives()
        if len(secret) != 2 * _BYTES:
            raise InvalidInput("an identity is a file that `sfumato identity new` wrote.")
        self._signing = crypto.ed25519.Ed25519PrivateKey.from_private_bytes(secret[:_BYTES])
        self._agreeing = crypto.x25519.X25519PrivateKey.from_private_bytes(secret[_BYTES:])

    @classmethod
    def new(cls, path: str | Path | None = None) -> "Identity":
        """Make one; written to a file that only its owner can read, if a path is given.

        Raises
        ------
        InvalidInput
            The file exists, or cannot be written.
        """
        crypto = primitives()
        raw = [
            kind.generate().private_bytes_raw()
            for kind in (crypto.ed25519.Ed25519PrivateKey, crypto.x25519.X25519PrivateKey)
        ]
        if path is not None:
            _write(Path(path), HEADER + b"".join(raw).hex().encode() + b"\n")
        return cls(b"".join(raw))

    @classmethod
    def open(cls, path: str | Path) -> "Identity":
        """Read the one that `new` wrote.

        Raises
        ------
        InvalidInput
            There is none, or others can read it.
        """
        path = Path(path)
        try:
            body, mode = path.read_bytes(), path.stat().st_mode
        except OSError as error:
            raise InvalidInput(
                f"no identity can be read at {path} ({error.strerror}); `sfumato identity new` makes one."
            ) from None
        if os.name == "posix" and mode & 0o077:
            raise InvalidInput(f"an identity is its owner's alone, and others may read {path}; chmod 600 it.")
        try:
            secret = bytes.fromhex(body.removeprefix(HEADER).decode("ascii")) if body.startswith(HEADER) else b""
        except (ValueError, UnicodeDecodeError):
            secret = b""
        return cls(secret)

    @cached_property
    def public(self) -> str:
        """What the other members pin."""
        keys = (self._signing.public_key(), self._agreeing.public_key())
        return text_of(b"".join(key.public_bytes_raw() for key in keys))

    def sign(self, message: bytes) -> bytes:
        """Ed25519."""
        return bytes(self._signing.sign(message))

    def agree(self, other: bytes) -> bytes:
        """The static X25519 secret shared with another identity's second half."""
        return agreed(self._agreeing, other)


def agreed(mine: Any, other: bytes) -> bytes:
    """X25519; a point of small order, with which the secret would be known to everybody, is refused."""
    public = primitives().x25519.X25519PublicKey.from_public_bytes(other)
    try:
        return bytes(mine.exchange(public))
    except ValueError:
        raise InvalidInput("a member's key must be one, and what was relayed has no secret to agree on.") from None


def signed_by(key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether the identity with this public key signed this."""
    from cryptography.exceptions import InvalidSignature

    try:
        primitives().ed25519.Ed25519PublicKey.from_public_bytes(key[:_BYTES]).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _write(path: Path, body: bytes) -> None:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise InvalidInput(
            f"an identity is written to a new file, and {path} is none ({error.strerror}); choose another path, or use the one "
            "that is there."
        ) from None
    with os.fdopen(handle, "wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
