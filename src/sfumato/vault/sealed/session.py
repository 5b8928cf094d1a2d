"""One owner's keys for one run: made here, kept in memory alone, agreed with the others through whoever relays."""

import hashlib
from typing import Any, NamedTuple

import numpy as np

from sfumato.errors import InvalidInput, KeysGone
from sfumato.protocol.consortium import (
    LABEL,
    KeyMessage,
    Roster,
    Vow,
    decode_message,
    encode,
    key_of,
    keyset_digest,
    named,
    tag_of,
)
from sfumato.vault.closed import closed
from sfumato.vault.sealed.book import SealBook
from sfumato.vault.sealed.identity import Identity, agreed, primitives, signed_by
from sfumato.vault.sealed.masks import Masks, masked, pair_key

MOST_N = 10**13
"""Records of one member, at the most: more is no honest number."""


class Agreement(NamedTuple):
    """What follows from all key messages of a run: public."""

    keyset: bytes
    n: int
    colluders: tuple[int, ...]


@closed("keys of a run")
class RunKeys:
    """The member's end of one run.

    Parameters
    ----------
    roster, me, identity, colluders
        Who answers together; which of them this is; its keys; and how many others it assumes to be on the analyst's side.
    run, model, n
        The run; the fingerprint of its model; and this owner's number of records.
    book
        Remembers epochs.
    """

    def __init__(
        self, roster: Roster, me: int, identity: Identity, colluders: int, book: SealBook, *, run: str, model: str, n: int
    ) -> None:  # fmt: skip
        self.roster, self.me, self.colluders = roster, me, colluders
        self._identity, self._book, self._run, self._model, self._n = identity, book, run, model, n
        self._place = f"{roster.digest.hex()[:32]}/{run}"
        self._private: Any = None
        self._message = b""
        self._masks: Masks | None = None
        self._begun: set[str] = set()
        self.agreement: Agreement | None = None

    def message(self) -> bytes:
        """The owner's key message: the same one until its key is gone."""
        if self._private is None:
            self._private = primitives().x25519.X25519PrivateKey.generate()
            vow = encode(
                Vow(
                    roster=self.roster.digest, run=self._run, member=self.me, epoch=self._book.next_epoch(self._place),
                    key=self._private.public_key().public_bytes_raw(), model=self._model, n=self._n,
                    colluders=self.colluders,
                )
            )  # fmt: skip
            self._message = encode(KeyMessage(vow, self._identity.sign(vow)))
        return self._message

    def expire(self) -> None:
        """Forget the key: whatever was begun under it and not stored can never be drawn again."""
        self._private = self._masks = self.agreement = None
        self._begun.clear()

    def agree(self, messages: list[bytes]) -> Agreement:
        """Check every member's key message, remember it, and agree on the keys of all pairs.

        Raises
        ------
        InvalidInput
            One is missing, swapped, of another run, roster or model, or not signed by the member whose place it is in.
        LedgerError
            One is older than what this owner has seen.
        """
        if self._private is None:
            raise KeysGone("this owner's key for the run is gone; ask for its new one.")
        members = self.roster.members
        if len(messages) != len(members):
            raise InvalidInput(
                f"a sum is sealed by all {len(members)} members of {self.roster.name!r}, got {len(messages)} key messages."
            )
        vows = [self._checked(position, body) for position, body in enumerate(messages)]
        if messages[self.me] != self._message:
            raise KeysGone("this owner has another key for the run by now; ask for it.")
        if len({vow.key for vow in vows}) < len(vows):
            raise InvalidInput("every member makes a key of its own, and two of these are the same.")
        for position, vow in enumerate(vows):
            if position != self.me:
                digest = hashlib.sha256(messages[position]).hexdigest()
                self._book.note_key(self._place, members[position].name, vow.epoch, digest)
        keyset = keyset_digest(self.roster, messages)
        if self.agreement is not None and self.agreement.keyset == keyset:
            return self.agreement  # said again: what was begun under it stays begun
        pairs = {
            j: pair_key(agreed(self._private, vow.key), keyset, self.me, j)
            for j, vow in enumerate(vows)
            if j != self.me
        }
        self._masks, self._begun = Masks(self.me, pairs), set()
        self.agreement = Agreement(keyset, sum(vow.n for vow in vows), tuple(vow.colluders for vow in vows))
        return self.agreement

    def _checked(self, position: int, body: bytes) -> Vow:
        vow, message = decode_message(body)
        member = self.roster.members[position]
        wrong = ""
        if not signed_by(key_of(member.key), message.vow, message.signature):
            wrong = "is not signed with the key that the roster pins"
        elif (vow.roster, vow.label) != (self.roster.digest, LABEL):
            wrong = "is for another roster"
        elif vow.run != self._run:
            wrong = "is for another run"
        elif vow.member != position:
            wrong = "stands in another's place"
        elif vow.model != self._model:
            wrong = "is for another model"
        elif len(vow.key) != len(self.roster.digest) or vow.epoch < 1:
            wrong = "has no key"
        elif not (1 <= vow.n <= MOST_N and 0 <= vow.colluders < len(self.roster.members)):
            wrong = "states numbers that cannot be"
        if wrong:
            raise InvalidInput(
                f"a sum is sealed with keys that members made for this run, and that of {member.name!r} {wrong}; nothing is "
                "answered. Compare rosters and fingerprints with its owner."
            )
        return vow

    # -- a round ------------------------------------------------------------------------------------------------------

    def current(self, query_id: str) -> bool:
        """Whether a query is asked under the keys that are agreed now."""
        return self.agreement is not None and query_id == named(query_id.rpartition("~")[0], self.agreement.keyset)

    def was_begun(self, query_id: str) -> bool:
        """Whether a round was begun under these keys."""
        return query_id in self._begun

    def begin(self, query_id: str) -> None:
        """Begin a round, for good: after this nothing but its stored bytes may ever be sent under its tag.

        Raises
        ------
        KeysGone
            It was begun before and not stored, or is asked under other keys.
        """
        if not self.current(query_id) or query_id in self._begun:
            raise KeysGone("this round is asked under keys that are gone; agree on new ones.")
        self._begun.add(query_id)

    def seal(self, query_id: str, content: str, numbers: list[int], answered: list[bool]) -> tuple[list[int], str]:
        """Numbers under the masks of this round, and the tag.

        A row that this owner does not answer is left out: it gets neither number nor mask, so nobody's number in it opens.
        """
        if self._masks is None or self.agreement is None:
            raise KeysGone("this round is asked under keys that are gone; agree on new ones.")
        tag = tag_of(self.agreement.keyset, query_id, content)
        hidden = masked(np.array(numbers, np.int64), self._masks.of(tag, len(numbers)))
        if not all(answered):
            hidden[np.repeat(~np.array(answered), len(numbers) // len(answered))] = 0
        return hidden.tolist(), tag.hex()
