"""What is asked of an owner and what comes back, one round at a time: plain numbers, the same in process and on a wire.

A round covers all chains. Every answer is a whole number on a lattice of public spacing gamma: integers of several owners,
or of several shards, add up exactly, so a chain does not depend on how the records are spread.
"""

import hashlib
import json
import math
from typing import Any, TypeAlias

import msgspec

Vector: TypeAlias = list[float]
Matrix: TypeAlias = list[list[float]]

PROTOCOL = 5
"""Version of these structures; owners and analyst must have the same."""
AHEAD = 16
"""Steps whose statistics may be asked for in one message."""
AHEAD_NUMBERS = 1 << 14
"""Numbers of such an answer at the most: many chains in many dimensions fetch fewer steps at a time."""
WALK, LANGEVIN = "walk", "langevin"
SETTLED = ("n", "model", "coordinates", "domain", "outside", "precision", "sensitivity", "proven", "certified")
"""Facts of an owner that a chain's target, or what is said of it, depends on; its box is one more."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What an owner says about itself before anyone spends: all public.

    Attributes
    ----------
    n, rows
        Records; and rows evaluated a round (fewer, if the domain is finite and small).
    model, coordinates
        Fingerprint of the model, and the name of every entry of theta in order: both sides must mean the same.
    domain
        Column name -> domain, as `Domain.to_dict` gives it.
    proven, searched
        How the range of a record's log ratio is known: by a proof, or by a search over the domain; neither, if it was stated.
    certified
        Whether the owner insists on proofs around a reference point, too.
    cap
        Quanta of this study's account; its guarantee is that of this cap.
    theta_bound
        The owner answers for parameters with every coordinate in [-theta_bound, theta_bound], on the unconstrained scale.
    roster, colluders, everybody
        Of a run whose sums are sealed: digest of the owner's roster; how many other members it assumes to work with the analyst;
        quanta of its promise against everybody.
    """

    name: str
    n: int
    rows: int
    model: str
    coordinates: list[str]
    domain: dict[str, dict[str, object]]
    outside: str
    precision: str
    sensitivity: str
    proven: bool
    searched: bool = False
    certified: bool = True
    epsilon: float
    delta: float
    mu: float
    cap: int
    shared_ledger: bool
    protocol: int = PROTOCOL
    version: str = ""
    theta_bound: float = math.inf
    roster: str = ""
    colluders: int = 0
    everybody: int = 0

    def settled(self) -> dict[str, Any]:
        """What a chain rests on, and what may not change before its end: plain values, as a run's terms record them."""
        said = {name: getattr(self, name) for name in SETTLED}
        plain: dict[str, Any] = json.loads(json.dumps(said))
        return plain | {"theta_bound": self.theta_bound if math.isfinite(self.theta_bound) else None}


class Terms(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Terms of a chain, settled before its first round.

    Attributes
    ----------
    kernel
        "walk" (a round is a `Ratio`) or "langevin" (a `Statistic`, then a `Linear`).
    sigma, gamma
        This owner's noise in a scalar answer, and the lattice it is counted on; the lattice is the same for all owners.
    matrix, proposal_sigma, proposal_gamma
        Langevin only: A, this owner's noise in each coordinate of A' S_n, and that answer's lattice.
    centre
        Langevin around a reference point only: that point. S_n is then the sum of gradients there.
    copies
        Langevin on a family: whether corrections are made from second copies of the statistic. A `Statistic` then gives both
        and there is no `Linear`; sigma is the noise in each coordinate of a second copy, on the lattice of the first.
    shares
        Sealed sums only: each member's share of the noise variance. Both sigmas are then those of all owners together, and these
        terms are the same for all of them, to the byte.
    """

    kernel: str
    chains: int
    sigma: float
    gamma: float
    matrix: Matrix = []
    proposal_sigma: float = 0.0
    proposal_gamma: float = 0.0
    centre: Vector = []
    copies: bool = False
    shares: Vector = []


class Agreed(msgspec.Struct, frozen=True, kw_only=True):
    """What `begin` gives back.

    Attributes
    ----------
    middle
        Langevin only: what each record's vector was shifted by, in units of `proposal_gamma`: the same for all owners.
    searched
        Whether this owner searched for the range of the last query, and did not prove it.
    """

    middle: list[int] = []
    searched: bool = False


class Release(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A noisy sum of vectors for the pilot, each less the centre; see `sfumato.vault.queries.vector`.

    With `shares` it is sealed: sigma is then the noise of all owners together.
    """

    what: str
    theta: Vector
    matrix: Matrix
    radius: float
    sigma: float
    centre: Vector = []
    shares: Vector = []


class Ratio(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The log-likelihood ratio of every chain: rows are chains. A row with `asked` false is not answered or charged."""

    theta: Matrix
    theta_prop: Matrix
    asked: list[bool]


class Statistic(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Langevin's first query: the noisy whitened statistic, for every chain and each of so many steps afresh.

    Where the terms say `copies` each comes with a second one: two rows, one after the other.
    """

    chains: int
    steps: int = 1


class Linear(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Langevin's second query on a family, linear in its statistic: minus u' (A' S_n) for the direction u of every chain."""

    direction: Matrix
    asked: list[bool]


class Remainder(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The second query around a reference point: the sum of l(theta') - l(theta) - grad l(centre)' v for every chain."""

    theta: Matrix
    theta_prop: Matrix
    slope: Matrix
    asked: list[bool]


Question: TypeAlias = Release | Ratio | Statistic | Linear | Remainder


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that was paid for.

    Attributes
    ----------
    id
        The query it answers.
    gamma, numbers
        The answer is `gamma` times `numbers`: one number per chain, or per step, chain (and copy) and coordinate, row by row.
    widths, answered
        Sensitivity charged, one per chain (one for a `Release` or a `Statistic`), and whether the row was answered: one
        that was not asked, or whose range is beyond 64 bits, has width 0 and a number that means nothing.
    quanta
        What it cost.
    sigma
        Noise of each chain's number where it differs from the agreed one (a bundle's does); else empty.
    tag
        Of a sealed answer, whose numbers mean nothing by themselves: what the masks were made from. The same at every member,
        or they were not asked the same.
    """

    id: str
    gamma: float
    numbers: list[int]
    widths: list[float]
    answered: list[bool]
    quanta: int
    sigma: list[float] = []
    tag: str = ""


_encoder = msgspec.msgpack.Encoder(order="deterministic")


def encode(value: msgspec.Struct) -> bytes:
    """As bytes: the same value always gives the same ones."""
    return _encoder.encode(value)


_reply = msgspec.msgpack.Decoder(Reply)


def decode_reply(body: bytes) -> Reply:
    """Inverse of `encode` for replies; strict about types, so that NaN or text is no number."""
    return _reply.decode(body)


class Naming:
    """Names what is asked, the terms included: the same id with another content is refused.

    Parameters
    ----------
    terms
        Those of the chain; None before one began. A release belongs to no chain.
    """

    def __init__(self, terms: Terms | None = None) -> None:
        self._of_chain = hashlib.sha256((b"" if terms is None else encode(terms)) + b"\0")
        self._of_release = hashlib.sha256(b"\0")

    def name(self, question: Question) -> str:
        """SHA-256 of terms and question."""
        digest = (self._of_release if isinstance(question, Release) else self._of_chain).copy()
        digest.update(encode(question))
        return digest.hexdigest()
