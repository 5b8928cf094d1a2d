"""`[[owners]]` of a study file: several owners, each with its own promise, each private against all the others.

One table for each. Where its records are is said by one key: `node` (an address), `path` (a table on this machine) or `bundle`
(a file that an owner released). A token never stands in the file: `token_env` names a variable, `token_file` a file.
"""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sfumato.errors import InvalidInput
from sfumato.files.schema import Count, Positive, Share, Table, Where, read
from sfumato.files.tables import Outside, Precision

NOT_IN_STUDY = ("ledger", "outside", "precision")
"""Keys of `[study]` that are about one table: with several owners each table has its own."""


def check_promise(epsilon: float | None, delta: float | None) -> None:
    """Refuse half a promise."""
    if (epsilon is None) != (delta is None):
        raise InvalidInput(
            f"epsilon and delta are given together or not at all, and {'epsilon' if epsilon is None else 'delta'} is missing; "
            "it has no default, because the owner must choose it."
        )


class LedgerTable(Table, frozen=True):
    """A ledger: one budget for many runs on the same records.

    Attributes
    ----------
    path
        The file of the ledger.
    epsilon
        Epsilon of all runs together, fixed when the ledger is made; needed to make it.
    delta
        Delta of all runs together, likewise.
    """

    path: str
    epsilon: Positive | None = None
    delta: Share | None = None

    def open(self, base: Path) -> Any:
        """Open the ledger; one that is missing is made only if its own epsilon and delta are stated."""
        from sfumato.vault.ledger import Ledger

        path = base / self.path
        if not path.exists() and self.epsilon is None:
            raise InvalidInput(
                f"the ledger {path} does not exist. To make it, state the budget of all runs together: "
                f'ledger = {{ path = "{self.path}", epsilon = ..., delta = ... }}.'
            )
        return Ledger(path, epsilon=self.epsilon, delta=self.delta)


LedgerKey = str | LedgerTable | None


def open_ledger(given: LedgerKey, base: Path) -> Any:
    """Open what a file calls its ledger; None where it has none."""
    return (LedgerTable(given) if isinstance(given, str) else given).open(base) if given is not None else None


class NodeOwner(Table, frozen=True):
    """An owner behind a node: name, domain and number of records come from there.

    Attributes
    ----------
    node
        Address of the node, https://host:port.
    token_env
        The environment variable that holds your token.
    token_file
        The file that holds your token.
    certificate
        The certificate to trust, where the owner signs its own.
    epsilon
        Its own promise, where it differs from that of [study].
    delta
        Given with epsilon.
    """

    node: str
    token_env: str | None = None
    token_file: str | None = None
    certificate: str | None = None
    epsilon: Positive | None = None
    delta: Share | None = None

    def __post_init__(self) -> None:
        check_promise(self.epsilon, self.delta)
        if (self.token_env is None) == (self.token_file is None):
            raise InvalidInput(
                'an owner\'s node needs your token: token_env = "NAME" (a variable) or token_file = "path", one of them; never '
                "the token."
            )

    def open(self, base: Path, columns: Mapping[str, Any], stack: ExitStack) -> Any:
        """Dial the node."""
        from sfumato.owners.owner import Owner
        from sfumato.owners.remote import connect

        trusted = None if self.certificate is None else str(base / self.certificate)
        node = connect(self.node, token=self._token(base), certificate=trusted)
        return node if self.epsilon is None else Owner(node, name=node.name, epsilon=self.epsilon, delta=self.delta)

    def _token(self, base: Path) -> str:
        if self.token_env is not None:
            token, where = os.environ.get(self.token_env, ""), f"the variable {self.token_env}"
        else:
            path = base / str(self.token_file)
            try:
                token, where = path.read_text(encoding="ascii").strip(), f"the file {path}"
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidInput(
                    f"the token for {self.node} cannot be read from {path} ({type(error).__name__})."
                ) from None
        if not token:
            raise InvalidInput(f"{self.node} wants a token; put the one its owner gave you into {where}.")
        return token


class TableOwner(Table, frozen=True):
    """An owner whose table is on this machine.

    Attributes
    ----------
    name
        What statements call the owner.
    path
        Parquet or CSV file with its records; only the vault opens it.
    n
        Number of records: public; `sfumato plan` needs it and opens no table.
    outside
        What happens to records outside the domain.
    precision
        How records are evaluated; float32 is faster, never less private.
    columns
        Raw columns, where its own differ from those in [domain.*]: { y = "said_yes" }.
    ledger
        A ledger's path, or { path = "...", epsilon = ..., delta = ... }: one budget for many runs on these people.
    epsilon
        Its own promise, where it differs from that of [study].
    delta
        Given with epsilon.
    """

    name: str
    path: str
    n: Count | None = None
    outside: Outside = "refuse"
    precision: Precision = "float64"
    columns: dict[str, str | list[str]] = {}
    ledger: LedgerKey = None
    epsilon: Positive | None = None
    delta: Share | None = None

    def __post_init__(self) -> None:
        check_promise(self.epsilon, self.delta)

    def open(self, base: Path, columns: Mapping[str, Any], stack: ExitStack) -> Any:
        """Say where the table is; its ledger stays open as long as the stack."""
        from sfumato.owners.owner import Owner

        ledger = None if self.ledger is None else stack.enter_context(open_ledger(self.ledger, base))
        return Owner(
            base / self.path, name=self.name, columns={**columns, **self.columns} or None, ledger=ledger,
            epsilon=self.epsilon, delta=self.delta, outside=self.outside, precision=self.precision, n=self.n,
        )  # fmt: skip


class BundleOwner(Table, frozen=True):
    """An owner who answered once and went home (families only).

    Attributes
    ----------
    bundle
        The file that the owner released.
    """

    bundle: str

    def open(self, base: Path, columns: Mapping[str, Any], stack: ExitStack) -> Any:
        """Read the bundle."""
        from sfumato.owners.bundle import Bundle

        return Bundle.open(base / self.bundle)


PLACES: dict[str, type[Table]] = {"node": NodeOwner, "path": TableOwner, "bundle": BundleOwner}
"""Where records are, and which table says so."""


def read_owners(file: str, raw: list[dict[str, Any]], study: Mapping[str, Any]) -> tuple[Any, ...]:
    """Check the `[[owners]]` of a file against its `[study]`; nothing is opened.

    Raises
    ------
    InvalidInput
        Names the table by its number, the key, and what to write instead.
    """
    for key in NOT_IN_STUDY:
        if key in study:
            raise InvalidInput(f"{key} is each owner's own; move it from [study] to the [[owners]] it is about.")
    owners = tuple(_read_one(Where(file, f"[[owners]] number {i}"), spec) for i, spec in enumerate(raw, 1))
    if all(isinstance(owner, BundleOwner) for owner in owners):
        raise InvalidInput(
            "a study needs an owner who answers live, and these are bundles; draw from them with `sfumato sample --bundle`."
        )
    for i, owner in enumerate(owners, 1):
        if "epsilon" not in study and not isinstance(owner, BundleOwner) and owner.epsilon is None:
            raise InvalidInput(
                f"[[owners]] number {i} must state epsilon and delta, or [study] must, for all: there is no default."
            )
    return owners


def _read_one(where: Where, spec: dict[str, Any]) -> Any:
    places = [place for place in PLACES if place in spec]
    if len(places) != 1:
        raise InvalidInput(
            f"{where} must say where its records are, by one of {', '.join(PLACES)}; got {places or 'none'}."
        )
    return read(where, spec, PLACES[places[0]])
