"""`[[owners]]` of a study file: several owners, each with its own promise, each private against all the others.

One table for each. Where its records are is said by one key: `node` (an address), `path` (a table on this machine) or `bundle`
(a file that an owner released). A token never stands in the file: `token_env` names a variable, `token_file` a file.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sfumato.errors import InvalidInput

PLACES: dict[str, tuple[str, ...]] = {
    "node": ("token_env", "token_file", "certificate", "epsilon", "delta"),
    "path": ("name", "n", "outside", "precision", "columns", "ledger", "epsilon", "delta"),
    "bundle": (),
}
"""Where records are, and what else may be said of an owner who keeps them there."""
NOT_IN_STUDY = ("ledger", "outside", "precision")
"""Keys of `[study]` that are about one table: with several owners each table has its own."""
LEDGER_KEYS = ("path", "epsilon", "delta")
_TEXT = ("node", "path", "bundle", "token_env", "token_file", "certificate", "name", "outside", "precision")


def check_owners(raw: Any, study: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Check the `[[owners]]` of a file against its `[study]`: plain values out, nothing opened.

    Raises
    ------
    InvalidInput
        Names the table by its number, the key, and what to write instead.
    """
    if not (isinstance(raw, list) and raw and all(isinstance(spec, dict) for spec in raw)):
        raise InvalidInput("owners are written as tables [[owners]], one for each; see docs/owners.md.")
    for key in NOT_IN_STUDY:
        if key in study:
            raise InvalidInput(f"{key} is each owner's own; move it from [study] to the [[owners]] it is about.")
    owners = tuple(_check_one(f"[[owners]] number {i}", spec) for i, spec in enumerate(raw, 1))
    if all("bundle" in spec for spec in owners):
        raise InvalidInput(
            "a study needs an owner who answers live, and these are bundles; draw from them with `sfumato sample --bundle`."
        )
    stated = "epsilon" in study and "delta" in study
    for i, spec in enumerate(owners, 1):
        if not stated and "bundle" not in spec and "epsilon" not in spec:
            raise InvalidInput(
                f"[[owners]] number {i} must state epsilon and delta, or [study] must, for all: there is no default."
            )
    return owners


def _check_one(where: str, spec: dict[str, Any]) -> dict[str, Any]:
    places = [place for place in PLACES if place in spec]
    if len(places) != 1:
        raise InvalidInput(
            f"{where} must say where its records are, by one of {', '.join(PLACES)}; got {places or 'none'}."
        )
    allowed = (places[0], *PLACES[places[0]])
    unknown = [key for key in spec if key not in allowed]
    if unknown:
        raise InvalidInput(
            f"{where} does not know the key {', '.join(map(repr, unknown))}; allowed are {', '.join(allowed)}."
        )
    _check_kinds(where, spec)
    if places == ["node"] and ("token_env" in spec) == ("token_file" in spec):
        raise InvalidInput(
            f'{where} must say where your token is: token_env = "NAME" (a variable) or token_file = "path"; never the token.'
        )
    if places == ["path"] and "name" not in spec:
        raise InvalidInput(f"{where} must have a name: what statements call the owner of {spec['path']!r}.")
    return dict(spec)


def _check_kinds(where: str, spec: Mapping[str, Any]) -> None:
    """Refuse a value of the wrong type."""
    kinds: dict[str, tuple[Any, str]] = dict.fromkeys(_TEXT, (str, "text in quotes"))
    kinds |= {"epsilon": (float | int, "a number"), "delta": (float | int, "a number"), "n": (int, "a whole number")}
    kinds |= {"columns": (dict, 'a table, such as { y = "said_yes" }')}
    for key, (kind, words) in kinds.items():
        if key in spec and (isinstance(spec[key], bool) or not isinstance(spec[key], kind)):
            raise InvalidInput(f"{key} in {where} must be {words}, got {spec[key]!r}.")
    if ("epsilon" in spec) != ("delta" in spec):
        raise InvalidInput(f"epsilon and delta in {where} are given together or not at all.")
    if "ledger" in spec:
        check_ledger(where, spec["ledger"])


def needs_domain(owners: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the study itself must say where records live: nodes and bundles bring their own domain."""
    return any("path" in spec for spec in owners)


def open_owners(
    owners: Sequence[Mapping[str, Any]], base: Path, columns: Mapping[str, Any], stack: ExitStack
) -> list[Any]:
    """The list for `sample`; ledgers stay open as long as the stack."""
    return [_open_one(spec, base, columns, stack) for spec in owners]


def _open_one(spec: Mapping[str, Any], base: Path, columns: Mapping[str, Any], stack: ExitStack) -> Any:
    from sfumato.owners.owner import Owner

    if "bundle" in spec:
        from sfumato.owners.bundle import Bundle

        return Bundle.open(base / spec["bundle"])
    promise = {key: spec[key] for key in ("epsilon", "delta") if key in spec}
    if "node" in spec:
        from sfumato.owners.remote import connect

        trusted = None if "certificate" not in spec else str(base / spec["certificate"])
        node = connect(spec["node"], token=_token(spec, base), certificate=trusted)
        return Owner(node, name=node.name, **promise) if promise else node
    options = {key: spec[key] for key in ("outside", "precision", "n") if key in spec}
    ledger = None if "ledger" not in spec else stack.enter_context(open_ledger(spec["ledger"], base))
    mine = dict(columns) | dict(spec.get("columns", {}))
    return Owner(base / spec["path"], name=spec["name"], columns=mine or None, ledger=ledger, **promise, **options)


def _token(spec: Mapping[str, Any], base: Path) -> str:
    if "token_env" in spec:
        token, where = os.environ.get(spec["token_env"], ""), f"the variable {spec['token_env']}"
    else:
        path = base / spec["token_file"]
        try:
            token, where = path.read_text(encoding="ascii").strip(), f"the file {path}"
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(
                f"the token for {spec['node']} cannot be read from {path} ({type(error).__name__})."
            ) from None
    if not token:
        raise InvalidInput(f"{spec['node']} wants a token; put the one its owner gave you into {where}.")
    return token


def check_ledger(where: str, given: Any) -> None:
    """Refuse what is no ledger: a path, or a table with a path and perhaps a budget."""
    if isinstance(given, str):
        return
    unknown = [key for key in given if key not in LEDGER_KEYS] if isinstance(given, dict) else []
    if unknown:
        names = ", ".join(map(repr, unknown))
        raise InvalidInput(f"ledger in {where} does not know the key {names}; allowed are {', '.join(LEDGER_KEYS)}.")
    if not (isinstance(given, dict) and isinstance(given.get("path"), str)):
        raise InvalidInput(f"ledger in {where} must have a path.")


def open_ledger(given: str | Mapping[str, Any], base: Path) -> Any:
    """Open a shared ledger; one that is missing is made only if its own epsilon and delta are stated."""
    from sfumato.vault.ledger import Ledger

    spec: Mapping[str, Any] = {"path": given} if isinstance(given, str) else given
    path = base / spec["path"]
    if not path.exists() and "epsilon" not in spec:
        raise InvalidInput(
            f"the ledger {path} does not exist. To make it, state the budget of all runs together: "
            f'ledger = {{ path = "{spec["path"]}", epsilon = ..., delta = ... }}.'
        )
    return Ledger(path, epsilon=spec.get("epsilon"), delta=spec.get("delta"))
