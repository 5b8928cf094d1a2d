"""What a node says when it refuses: a code, a fixed sentence, and nothing else. Details go to the owner's log."""

from typing import Any, NamedTuple

from sfumato.errors import BudgetSpent, KeysGone, LedgerError, SfumatoError


class Entry(NamedTuple):
    """One public refusal."""

    status: int
    sentence: str


CATALOGUE: dict[str, Entry] = {
    "bad-request": Entry(400, "The request does not have the form this node understands."),
    "bad-number": Entry(400, "Numbers in a question must be finite and of the shape the study has."),
    "sigma-too-small": Entry(400, "The noise asked for is below the floor of this study."),
    "outside-support": Entry(400, "The parameter lies outside the support declared for this study."),
    "not-begun": Entry(409, "A run must be opened and its terms settled before a question is asked."),
    "unauthorised": Entry(401, "A valid token is needed."),
    "forbidden": Entry(403, "This token does not open this door."),
    "foreign-origin": Entry(403, "This page may not talk to this node."),
    "foreign-host": Entry(421, "This node is not reached under that name."),
    "not-found": Entry(404, "There is nothing under this name."),
    "wrong-method": Entry(405, "This address does not take that method."),
    "other-model": Entry(409, "The model is not the one approved under this name."),
    "other-version": Entry(409, "Client and node speak different versions of the protocol."),
    "other-content": Entry(409, "This query id was answered for another content."),
    "other-terms": Entry(409, "This run was opened with other terms."),
    "sealed-only": Entry(403, "This owner answers sealed sums alone, together with its consortium."),
    "not-sealed": Entry(409, "This owner has no part in a consortium: its sums cannot be sealed."),
    "keys-gone": Entry(409, "The keys this was asked under are gone; ask for new ones."),
    "bad-keys": Entry(409, "The key messages are not those that all members made for this run."),
    "run-too-small": Entry(400, "The budget of a run must be a larger part of the node's."),
    "budget-spent": Entry(409, "The budget for this is spent, or smaller than what was asked for."),
    "paused": Entry(503, "The owner has paused this node."),
    "revoked": Entry(403, "The owner has revoked this token."),
    "too-large": Entry(413, "The message is larger than this node takes."),
    "too-fast": Entry(429, "Too many messages in too short a time."),
    "too-many": Entry(503, "Too many connections."),
    "too-slow": Entry(408, "The other side took too long."),
    "busy": Entry(409, "This run is being answered on another connection."),
    "shutting-down": Entry(503, "The node is shutting down."),
    "ledger": Entry(503, "The node cannot record answers at present, so it gives none."),
    "internal": Entry(500, "The node could not answer."),
}

CLOSE_CODE = 4000
"""WebSockets are closed with this plus the HTTP status of the entry, and the code as reason."""


class Refusal(SfumatoError):
    """A refusal by code; `detail` is for the owner's log alone."""

    def __init__(self, code: str, detail: str = "") -> None:
        entry = CATALOGUE[code]
        super().__init__(entry.sentence)
        self.code = code
        self.status = entry.status
        self.detail = detail


def body(code: str) -> dict[str, Any]:
    """The one shape a refusal has on the wire."""
    entry = CATALOGUE[code]
    return {"ok": False, "code": code, "error": entry.sentence, "status": entry.status}


def refusal_of(error: BaseException) -> Refusal:
    """Turn what the library raised into a public code.

    The library's own messages quote the request and never a record, so they may stand in the owner's log; of anything
    else only the type is kept: its message might quote a record.
    """
    if isinstance(error, Refusal):
        return error
    if isinstance(error, BudgetSpent):
        return Refusal("budget-spent", str(error))
    if isinstance(error, KeysGone):
        return Refusal("keys-gone", str(error))
    if isinstance(error, LedgerError):
        return Refusal("other-content" if "other content" in str(error) else "ledger", str(error))
    if isinstance(error, SfumatoError):
        return Refusal("bad-request", str(error))
    return Refusal("internal", type(error).__name__)
