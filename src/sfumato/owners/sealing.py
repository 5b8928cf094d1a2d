"""The analyst's side of sealed sums: relay the owners' keys, ask all of them the same, and add up what comes back mod 2^64.

Nothing here is secret, and nothing here has to be trusted: owners check each other's key messages themselves. When one of them
has lost its key (it was restarted, or broke off within a round), all agree on new keys, and the round is asked again under those:
another attempt, with new noise and a new charge. What a run that goes on may have asked before is first asked under the keys of
that time, and costs nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from sfumato.errors import BadAnswer, KeysGone, OwnerLost, OwnerRefused
from sfumato.owners.base import Door
from sfumato.protocol.consortium import named
from sfumato.protocol.questions import Reply

T = TypeVar("T")
ATTEMPTS = 8
"""Times the owners agree on new keys for one round, before whoever loses them counts as lost."""
GONE = "keys-gone"
LARGEST = 2**62
"""No honest sum of all owners is larger: what is comes from masks that did not cancel."""


class Sealing:
    """The keysets of a run.

    Parameters
    ----------
    doors
        The members, in the roster's order.
    known
        Keysets that the run had before it was interrupted, oldest first.
    remember
        Makes all keysets durable, before the last of them is used.
    """

    def __init__(
        self, doors: Sequence[Door], known: Sequence[str] = (), remember: Callable[[list[str]], None] = lambda all_: None
    ) -> None:  # fmt: skip
        self._doors, self._older, self._remember = list(doors), list(known), remember
        self._used = list(known)
        self._keyset = b""
        self.each: Callable[[Callable[[Any, int], Any]], list[Any]] = lambda call: [
            call(d, i) for i, d in enumerate(doors)
        ]
        """Does something with every owner; patiently, in a run."""

    def ask(self, query_id: str, asked: Callable[[str], list[Reply]]) -> list[Reply]:
        """Everybody's masked answer to one question; `asked` asks it under an id.

        Raises
        ------
        BadAnswer
            Somebody was not asked the same, or has answered as if.
        """
        while self._older:
            try:
                return self._alike(asked(named(query_id, bytes.fromhex(self._older[0]))))
            except (KeysGone, OwnerRefused) as error:
                _only_gone(error)
                self._older.pop(0)  # not all have answered under these keys: nor anything after it
        return self._alike(self.keyed(lambda: asked(named(query_id, self._keyset))))

    def keyed(self, call: Callable[[], T]) -> T:
        """Do something that needs everybody's keys, on new ones if need be."""
        for attempt in range(ATTEMPTS):
            if not self._keyset or attempt:
                self._agree()
            try:
                return call()
            except (KeysGone, OwnerRefused) as error:
                _only_gone(error)
        raise OwnerLost(
            f"a sealed sum needs every owner's key until it is answered, and one was lost {ATTEMPTS} times in one round. "
            "Go on with sf.resume when all owners are well.",
            owner=self._doors[0].name,
        )

    def _agree(self) -> None:
        """Ask everybody for a key, and give everybody all of them."""
        self._keyset = b""
        for _ in range(ATTEMPTS):
            messages = self.each(lambda door, i: door.key_message())
            try:
                digests = set(self.each(lambda door, i, said=messages: door.agree(said)))  # type: ignore[misc]
            except (KeysGone, OwnerRefused) as error:
                _only_gone(error)
                continue
            if len(digests) > 1:
                raise BadAnswer(
                    "all owners must agree on the same keys, and they do not: compare their rosters.",
                    owner=self._doors[0].name,
                )
            (keyset,) = digests
            self._used = [*self._used, keyset.hex()] if keyset.hex() not in self._used else self._used
            self._older = [one for one in self._older if one != keyset.hex()]
            self._remember(self._used)
            self._keyset = keyset
            return
        raise OwnerLost("owners could not agree on keys: one of them loses its own.", owner=self._doors[0].name)

    def _alike(self, replies: list[Reply]) -> list[Reply]:
        for door, reply in zip(self._doors, replies, strict=True):
            if not reply.tag or reply.tag != replies[0].tag:
                raise BadAnswer(
                    f"all owners must be asked the same, to the byte, and {door.name!r} has answered something else than "
                    f"{self._doors[0].name!r}: the sum opens nothing. Start a new run.",
                    owner=door.name,
                )
        return replies


def opened(rows: np.ndarray, answered: np.ndarray) -> np.ndarray:
    """Sum of all owners' numbers mod 2^64, as signed ones; zero where not everybody answered.

    Raises
    ------
    BadAnswer
        A sum is larger than any can be: somebody's masks do not cancel.
    """
    total = np.ascontiguousarray(rows).view(np.uint64).sum(axis=0, dtype=np.uint64).view(np.int64)
    total = np.where(answered, total, 0)
    if np.any((total > LARGEST) | (total < -LARGEST)):
        raise BadAnswer(
            "the masks of a sealed sum must cancel, and these do not: an owner has answered with other keys, or something else. "
            "Nothing of it is used. Start a new run.",
            owner="",
        )
    return np.asarray(total)


def _only_gone(error: Exception) -> None:
    """Pass on a refusal for any other reason than that keys are gone."""
    if isinstance(error, OwnerRefused) and error.code != GONE:
        raise error
