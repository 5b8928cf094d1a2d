"""A consortium as one of its members sees it: the roster it pinned, its own keys, and what it assumes of the others."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from sfumato.errors import InvalidInput
from sfumato.privacy.promise import budget_mu
from sfumato.protocol.consortium import Member, Roster, Seat, fingerprint, key_of
from sfumato.vault.closed import closed
from sfumato.vault.sealed.book import SealBook
from sfumato.vault.sealed.identity import Identity
from sfumato.vault.sealed.masks import Masks, pair_key
from sfumato.vault.sealed.session import RunKeys


@closed("an owner's secret keys")
class Consortium:
    """Membership in a consortium, for `Owner(..., consortium=...)` and `release(..., consortium=...)`.

    Parameters
    ----------
    name, study
        What the consortium is called, and what it is for. The same at every member.
    members
        Name and public identity of every member, in the same order everywhere. Compare fingerprints by telephone.
    me
        Which of them this owner is.
    identity
        This owner's secret keys, or their file (`sfumato identity new`).
    colluders
        How many other members this owner assumes to work with the analyst. Each owner has its own opinion. A member who sees
        what the analyst sees can take its own noise off, so it counts as one: 0 only where no member does. At the most all
        of the others: then a sealed sum costs what an unsealed one does.
    unsealed
        Whether this owner also answers runs that are not sealed.
    everybody
        Epsilon and delta of the promise that holds if all others collude; by default what follows from the run's own promise
        and the number of colluders.
    book
        A file in which keys and releases are remembered. Needed for `release`; a run in this process does without.

    Examples
    --------
    >>> mine = Identity.new()
    >>> theirs = Identity.new()  # on another machine
    >>> house = Consortium("coast", members={"a": mine.public, "b": theirs.public}, me="a", identity=mine, colluders=0)
    >>> str(house)
    "consortium 'coast' of a, b"
    """

    def __init__(
        self,
        name: str,
        *,
        members: Mapping[str, str],
        me: str,
        identity: Identity | str | Path,
        colluders: int,
        study: str = "any",
        unsealed: bool = False,
        everybody: tuple[float, float] | None = None,
        book: str | Path | None = None,
    ) -> None:
        self.roster = Roster(name, study, tuple(Member(*member) for member in members.items()))
        self.position = self.roster.position(me)
        self._identity = identity if isinstance(identity, Identity) else Identity.open(identity)
        if self._identity.public != self.roster.members[self.position].key:
            raise InvalidInput(
                f"the roster of {name!r} pins another key for {me!r} than its identity has; correct the roster, everywhere."
            )
        if isinstance(colluders, bool) or not isinstance(colluders, int) or not 0 <= colluders < len(members):
            raise InvalidInput(
                f"colluders must be a whole number from 0 to {len(members) - 1}, the other members, got {colluders!r}."
            )
        if everybody is not None:
            budget_mu(*everybody)  # it is a promise
        self.colluders, self.unsealed, self.everybody = colluders, unsealed, everybody
        self.book = SealBook(None if book is None else Path(book))
        self.durable = book is not None

    @classmethod
    def among(
        cls, names: Sequence[str], *, colluders: int, name: str = "here", study: str = "any"
    ) -> "dict[str, Consortium]":
        """Memberships of owners who all live in this process, by name: for trying out. Whoever has the process has all keys."""
        identities = {owner: Identity.new() for owner in names}
        members = {owner: identity.public for owner, identity in identities.items()}
        return {
            owner: cls(name, members=members, me=owner, identity=identity, colluders=colluders, study=study)
            for owner, identity in identities.items()
        }

    @property
    def me(self) -> str:
        """The owner's name on the roster."""
        return self.roster.members[self.position].name

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.roster.members)

    @property
    def seat(self) -> Seat:
        """What this owner says of its place."""
        return Seat(
            roster=self.roster.digest.hex(), consortium=self.roster.name, members=[m.name for m in self.roster.members],
            position=self.position, colluders=self.colluders, unsealed=self.unsealed,
            everybody=0.0 if self.everybody is None else budget_mu(*self.everybody),
        )  # fmt: skip

    @property
    def fingerprints(self) -> dict[str, str]:
        """Of every member's public identity, to be compared by telephone."""
        return {member.name: fingerprint(member.key) for member in self.roster.members}

    def run(self, run: str, model: str, n: int, book: SealBook | None = None) -> RunKeys:
        """The member's end of one run."""
        return RunKeys(
            self.roster, self.position, self._identity, self.colluders, book or self.book, run=run, model=model, n=n
        )

    def release_masks(self, tag: bytes) -> Masks:
        """Masks from the static keys that the roster pins, for a release that nobody relays keys for."""
        members = enumerate(self.roster.members)
        return Masks(
            self.position,
            {
                j: pair_key(self._identity.agree(key_of(member.key)[32:]), tag, self.position, j)
                for j, member in members
                if j != self.position
            },
        )

    def __str__(self) -> str:
        return f"consortium {self.roster.name!r} of {self.roster.names}"
