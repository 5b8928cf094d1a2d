"""What travels on a node's WebSocket: msgpack, one request a message, one reply to each, in order.

A reply begins with one byte: 0, then the msgpack of what was asked for; or 1, then the msgpack of a refusal from the public
catalogue. Answers are sent as the bytes the ledger keeps, so an answer asked for twice is the same to the last bit.
"""

from typing import Any, TypeAlias

import msgspec

from sfumato.protocol.consortium import Seat
from sfumato.protocol.questions import PROTOCOL, Question, Terms

FINE, REFUSED = b"\x00", b"\x01"
GOODBYE = 1000
"""A client that is done closes its WebSocket with this code; one that vanished says nothing."""
PASSING = ("paused", "too-fast", "too-many", "busy", "shutting-down", "ledger", "too-slow", "internal")
"""Refusals that may pass: the same question is asked again until patience ends; then the owner counts as lost."""


class Open(msgspec.Struct, frozen=True, kw_only=True, tag="open", forbid_unknown_fields=True):
    """Open a run, or come back to it: the same run, study and guarantee give the same account.

    Attributes
    ----------
    study, model
        Name of the approved study, and the fingerprint of the model the analyst means by it.
    run
        The analyst's own name for the run; query ids live inside it.
    epsilon, delta
        The guarantee of the run: its cap.
    sealed
        Whether its sums are sealed: then nothing of it is ever answered unsealed.
    """

    study: str
    model: str
    run: str
    epsilon: float
    delta: float
    sealed: bool = False
    protocol: int = PROTOCOL


class Keys(msgspec.Struct, frozen=True, kw_only=True, tag="keys", forbid_unknown_fields=True):
    """The owner's key message for the run, to be relayed to the other members of its consortium."""


class Agree(msgspec.Struct, frozen=True, kw_only=True, tag="agree", forbid_unknown_fields=True):
    """Every member's key message, in the roster's order."""

    messages: list[bytes]


class Begin(msgspec.Struct, frozen=True, kw_only=True, tag="begin", forbid_unknown_fields=True):
    """Settle the terms of the chain."""

    terms: Terms


class Ask(msgspec.Struct, frozen=True, tag="ask", array_like=True, forbid_unknown_fields=True):
    """One question, for all chains."""

    id: str
    question: Question


class Left(msgspec.Struct, frozen=True, kw_only=True, tag="left", forbid_unknown_fields=True):
    """How many quanta are left for this run; and of its promise against everybody, where its sums are sealed."""


Request: TypeAlias = Open | Begin | Left | Keys | Agree


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """A refusal as the client sees it."""

    code: str
    error: str
    status: int
    ok: bool = False


class Approved(msgspec.Struct, frozen=True, kw_only=True):
    """One study of the handshake: its name, and the fingerprints of the forms it may be studied in.

    `reference`: whether Langevin around a reference point is answered, for a model that is no family. `computes`: what each of
    the `models` computes at made-up records (`sfumato.study.target.computed`), for a fingerprint is that of a text.
    """

    name: str
    models: list[str]
    domain: dict[str, dict[str, Any]]
    n: int
    sensitivity: str
    sigma_floor: float
    theta_bound: float
    computes: list[list[float | None]]
    reference: bool = False


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """A cap and what is left of it.

    Attributes
    ----------
    epsilon, delta
        The cap.
    epsilon_left
        The largest epsilon, at the same delta, that a run may still be opened with; rounded down.
    cap, left
        The same in units of mu squared, which add up. What open runs have reserved counts as spent.
    """

    epsilon: float
    delta: float
    epsilon_left: float
    cap: float
    left: float

    def __str__(self) -> str:
        return f"epsilon {self.epsilon_left:g} of {self.epsilon:g} left at delta {self.delta:g}"


class OwnBudget(Allowance, frozen=True, kw_only=True):
    """What an analyst may spend at a node, as far as it is theirs to know.

    It counts what this analyst spent and nobody else. The node's total is common: a run may find less than this, and `limited`
    says that it is so.

    Attributes
    ----------
    studies
        The part of it that each study may take: the whole, where a study has no smaller cap of its own.
    limited
        Whether the node's total leaves less than `left`.
    """

    studies: dict[str, Allowance]
    limited: bool

    def __str__(self) -> str:
        tighter = [f"; {name}: {purse}" for name, purse in self.studies.items() if purse.cap < self.cap]
        return Allowance.__str__(self) + "".join(tighter) + ("; the node's total leaves less" if self.limited else "")


class Handshake(msgspec.Struct, frozen=True, kw_only=True):
    """What an owner says about itself to someone with a token: all public, but for the budget, which is theirs."""

    name: str
    outside: str
    precision: str
    studies: list[Approved]
    analyst: str
    budget: OwnBudget
    version: str
    seat: Seat | None = None
    protocol: int = PROTOCOL
