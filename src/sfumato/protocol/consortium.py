"""What the members of a consortium say to each other, through the analyst: who is on the roster, and each one's key for a run.

Everything here is public. A roster pins the keys of its members; a key message is one member's fresh key for one run, signed with
the pinned one. The messages of all members are a keyset, and what is asked under it has a tag. Masks are made from the tag, so
owners who were asked different things, under different keys or with other members, cancel nothing.
"""

import base64
import hashlib
from typing import Any

import msgspec

from sfumato.errors import InvalidInput

LABEL = "sfumato sealed sums 1"
"""Stands in everything that is signed or hashed: nothing said under another version, or for another purpose, can be used here."""
MOST_MEMBERS = 64
KEY_BYTES = 64
"""A public identity: 32 bytes that signatures are checked with, 32 that static keys are agreed with."""
PREFIX = "sfumato-id:"
NAMED = 24
"""Hexadecimal digits of a keyset in a query's id. The whole of it is hashed into the tag."""


def text_of(key: bytes) -> str:
    """A public identity as people pass it on."""
    return PREFIX + base64.urlsafe_b64encode(key).decode("ascii").rstrip("=")


def key_of(text: str) -> bytes:
    """Inverse of `text_of`.

    Raises
    ------
    InvalidInput
        It is no public identity.
    """
    try:
        body = text.removeprefix(PREFIX)
        key = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
    except (ValueError, AttributeError, TypeError):
        key = b""
    if len(key) != KEY_BYTES or text != text_of(key):
        raise InvalidInput(
            f"a member's key is the line that `sfumato identity show` prints on its machine, {PREFIX}..., got {text!r:.80}."
        )
    return key


def fingerprint(text: str) -> str:
    """Six groups of five digits, to be compared by telephone: 99 bits of the key's hash."""
    number = int.from_bytes(hashlib.sha256(LABEL.encode() + b" identity\0" + key_of(text)).digest()) % 10**30
    digits = f"{number:030d}"
    return " ".join(digits[i : i + 5] for i in range(0, 30, 5))


class Member(msgspec.Struct, frozen=True):
    """One member: its name, and its public identity."""

    name: str
    key: str


class Roster(msgspec.Struct, frozen=True):
    """Who answers together: the same at every member, to the letter and in this order.

    Attributes
    ----------
    name
        What the consortium is called.
    study
        What it is for: a second study has a roster of its own.
    members
        All of them; no sum is ever opened without every one.
    """

    name: str
    study: str
    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        for what, text in (("name", self.name), ("study", self.study), *(("member", m.name) for m in self.members)):
            if not (0 < len(text) <= 100 and text.isprintable() and "/" not in text):
                raise InvalidInput(
                    f"the {what} of a consortium must be 1 to 100 printable characters without '/', got {text!r:.80}."
                )
        if not 2 <= len(self.members) <= MOST_MEMBERS:
            raise InvalidInput(f"a consortium has 2 to {MOST_MEMBERS} members, got {len(self.members)}.")
        names, keys = [member.name for member in self.members], [key_of(member.key) for member in self.members]
        halves = [key[:32] for key in keys] + [key[32:] for key in keys]
        if len(set(names)) < len(names) or len(set(halves)) < len(halves):
            raise InvalidInput(
                "every member of a consortium has a name and a key of its own, and two of them share one."
            )

    @property
    def digest(self) -> bytes:
        """SHA-256 of all of it."""
        return _digest("roster", encode(self))

    def position(self, name: str) -> int:
        """Where a member stands."""
        for i, member in enumerate(self.members):
            if member.name == name:
                return i
        raise InvalidInput(f"{name!r} is no member of the consortium {self.name!r}: {self.names}.")

    @property
    def names(self) -> str:
        """All members, for messages."""
        return ", ".join(member.name for member in self.members)


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """What an owner says of its place in a consortium before anything is asked: public.

    Attributes
    ----------
    roster
        Digest of its roster, in hexadecimal digits.
    consortium, members
        Name of the consortium, and of all members in the roster's order.
    position, colluders
        Which of them this is, and how many others it assumes to work with the analyst.
    unsealed
        Whether it also answers runs that are not sealed.
    everybody
        Mu of its promise against everybody, where it states one; else 0, and the run's own promise decides.
    """

    roster: str
    consortium: str
    members: list[str]
    position: int
    colluders: int
    unsealed: bool
    everybody: float = 0.0

    def everybody_mu(self, mu: float, largest: float) -> float:
        r"""Mu of a run's promise against everybody: as stated, or :math:`\mu\sqrt{N - c}`, that of equal shares."""
        return self.everybody or float(min(mu * (len(self.members) - self.colluders) ** 0.5, largest))


class SealedRelease(msgspec.Struct, frozen=True, kw_only=True):
    """What a sealed release is besides: all public.

    Attributes
    ----------
    release, roster, members, position, name
        The id agreed on beforehand; digest of the roster, and its names; which of them this is.
    shares, colluders
        Everybody's share of the noise variance, and how many others this owner assumes to work together.
    records, centre
        Records of all owners; what each record's statistic was taken relative to.
    tag
        What the masks were made from: the same for all owners, or they did not release the same.
    """

    release: str
    roster: str
    members: tuple[str, ...]
    position: int
    name: str
    shares: tuple[float, ...]
    colluders: int
    records: int
    centre: tuple[float, ...]
    tag: str


class Vow(msgspec.Struct, frozen=True, kw_only=True):
    """What a member signs for one run: a fresh key, and what it brings.

    Attributes
    ----------
    roster
        Digest of the roster.
    run
        The run, and nothing else, that the key is for.
    member, epoch
        Whose; and which of its keys for this run. A key never outlives the process that made it.
    key
        X25519.
    model, n, colluders
        Fingerprint of the model; records; and how many others the member assumes to be on the analyst's side.
    """

    label: str = LABEL
    roster: bytes
    run: str
    member: int
    epoch: int
    key: bytes
    model: str
    n: int
    colluders: int


class KeyMessage(msgspec.Struct, frozen=True):
    """A vow as it was signed, byte for byte, and the signature."""

    vow: bytes
    signature: bytes


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_vow = msgspec.msgpack.Decoder(Vow)
_message = msgspec.msgpack.Decoder(KeyMessage)


def encode(value: Any) -> bytes:
    """As bytes: the same value always gives the same ones."""
    return _encoder.encode(value)


def decode_message(body: bytes) -> tuple[Vow, KeyMessage]:
    """A key message, and what was signed.

    Raises
    ------
    InvalidInput
        It is none, or is not written as its writer would write it.
    """
    try:
        message = _message.decode(body)
        vow = _vow.decode(message.vow)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidInput("a key message must be one, and what was relayed is not.") from None
    if encode(message) != body or encode(vow) != message.vow:  # one message has one spelling
        raise InvalidInput("a key message must be one, and what was relayed is written in another way.")
    return vow, message


def keyset_digest(roster: Roster, messages: list[bytes]) -> bytes:
    """SHA-256 of the roster and of every member's key message, in the roster's order."""
    return _digest("keyset", roster.digest, *messages)


def tag_of(keyset: bytes, query_id: str, content: str) -> bytes:
    """What masks are made from: roster, all key messages (with them the run), the round, and the hash of terms and question."""
    return _digest("tag", keyset, query_id.encode(), content.encode())


def release_tag(roster: Roster, release: str, content: bytes) -> bytes:
    """The tag of a release that nobody relays keys for: roster, its agreed id, and all that was agreed."""
    return _digest("release", roster.digest, release.encode(), content)


def _digest(what: str, *parts: bytes) -> bytes:
    """SHA-256 of parts, each behind its length, so that no two lists of parts run into each other."""
    digest = hashlib.sha256()
    for part in (LABEL.encode(), what.encode(), *parts):
        digest.update(len(part).to_bytes(8) + part)
    return digest.digest()


def named(query_id: str, keyset: bytes) -> str:
    """A query's id under a keyset: asked again under other keys it is another query."""
    return f"{query_id}~{keyset.hex()[:NAMED]}"
