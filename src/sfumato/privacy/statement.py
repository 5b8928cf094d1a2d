"""The privacy statement: what was promised, to whom, under which conditions, as data and as a paragraph."""

from dataclasses import asdict, dataclass
from math import exp, isfinite
from typing import Any

from sfumato.privacy import composition
from sfumato.tools.notebook import card, folded

NEIGHBOURS = "one record replaced by any other record of the domain; the number of records is public"
CLAMPED = "records outside the declared domain were moved to its nearest point before anything was computed"
"""What `outside="clamp"` does: a rule. Whether it met any record, or how many, is not released."""
PERHAPS_CUT = "The draws are exact only as far as no record's term was cut; whether any was is not released."
"""What is known of a chain whose range of one record's log ratio was stated and not proven."""

AS_FAR_AS_SEARCHED = ", unless a record of the domain reaches further than a search and its margin"
"""What is known of a chain whose range of one record's term was searched for: the end of a sentence that says it is exact."""


def careless(delta: float, n: int) -> str:
    """Warn of a delta of 1/n or more, in one sentence: it is met by giving one person's record away. Else nothing."""
    if delta * n < 1:
        return ""
    return (
        f"delta = {delta:g} is not below 1/n = {1 / n:.2g}, one in the number of records ({n:,}); such a guarantee allows one of "
        "them to be given away entirely. Choose delta well below 1/n."
    )


@dataclass(frozen=True)
class SealedPromise:
    """What a statement rests on where sums are sealed, and what is left of it if more members than assumed are against it.

    Attributes
    ----------
    consortium, members, colluders
        Who answered together, and how many of the others are assumed to work with whoever sees the answers.
    mu, epsilon, delta
        The promise that holds if all others do.
    spent_mu
        What of it was used: bookkeeping.
    """

    consortium: str
    members: tuple[str, ...]
    colluders: int
    mu: float
    epsilon: float
    delta: float
    spent_mu: float

    def __str__(self) -> str:
        others = len(self.members) - 1
        who = {0: "none", others: "all"}.get(self.colluders, f"up to {self.colluders} (whichever)")
        known = isfinite(self.epsilon)
        meant = f", that is (epsilon = {self.epsilon:.3g}, delta = {self.delta:g})" if known else ""
        rest = (
            ""
            if self.colluders == others
            else f" If all of them do, a second cap holds, that of these releases alone (other sealed answers from the same "
            f"records add to it): Gaussian DP with mu = {self.mu:.4g}{meant}; of it mu = {self.spent_mu:.4g} was used."
        )
        return (
            f"Sums were sealed in the consortium {self.consortium!r} ({', '.join(self.members)}): nobody sees the numbers of "
            f"one owner. The guarantee holds against everybody who sees the sums together with {who} of the other {others} "
            f"owners; an owner that adds no noise, or hands its keys over, counts as one of them.{rest} That nobody can take the "
            "masks off rests on X25519, HKDF-SHA256 and ChaCha20."
        )


@dataclass(frozen=True)
class Statement:
    """The guarantee of a run.

    Attributes
    ----------
    epsilon, delta
        The guarantee: that of the cap fixed before the first answer, however the run ended.
    mu, rho
        The same cap as Gaussian DP and as zCDP (rho = mu^2/2).
    releases
        Numbers that left the vault.
    spent_mu
        Root of the sum of squares realised: bookkeeping under the cap, never a guarantee.
    lattice_slack
        Share of delta that pays for the noise being discrete (already inside delta).
    sensitivity
        How the sensitivity of each answer is known.
    exact
        Whether the draws come from the exact posterior, in one sentence.
    shared_ledger
        Whether a ledger guards other runs on the same records too.
    owner
        Whose promise it is, where there are several.
    outside
        "refuse" or "clamp": what happened to records outside the domain.
    target
        What was sampled, where that is no posterior of a likelihood.
    sealed
        Against whom it holds, where sums were sealed.
    """

    epsilon: float
    delta: float
    mu: float
    releases: int
    spent_mu: float
    n: int
    lattice_slack: float
    sensitivity: str
    exact: str
    precision: str
    shared_ledger: bool
    neighbours: str = NEIGHBOURS
    owner: str = ""
    outside: str = "refuse"
    target: str = ""
    sealed: SealedPromise | None = None

    def __post_init__(self) -> None:
        if isinstance(self.sealed, dict):  # as `to_dict` wrote it
            members = tuple(self.sealed["members"])
            object.__setattr__(self, "sealed", SealedPromise(**self.sealed | {"members": members}))

    @property
    def rho(self) -> float:
        """The cap as zero-concentrated DP."""
        return self.mu**2 / 2

    @property
    def paper_epsilon(self) -> float:
        """What the paper's advanced composition (unsimplified) would say of as many equal releases under this cap."""
        return float(composition.paper_epsilon(self.mu, max(self.releases, 1), self.delta))

    def _careless(self) -> str:
        """The statement must not look like a promise where it is none."""
        warning = careless(self.delta, self.n)
        return f" WARNING: {warning}" if warning else ""

    def _clamped(self) -> str:
        if self.outside != "clamp":
            return ""
        return f" As a rule, {CLAMPED}; whether there were any is not released, and the posterior is that of the clamped records."

    def _coalition(self) -> str:
        return f" {self.sealed}" if self.sealed is not None else ""

    def _aimed(self) -> str:
        return f" {self.target}" if self.target else ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self) | {"rho": self.rho, "paper_epsilon": self.paper_epsilon}

    def __repr__(self) -> str:
        return f"<Statement epsilon={self.epsilon:g}, delta={self.delta:g}; {self.releases:,} numbers from {self.n:,} records>"

    def _repr_html_(self) -> str:
        rows = [
            ("records", f"{self.n:,}"),
            ("numbers released", f"{self.releases:,}"),
            ("mu of the cap", f"{self.mu:.4g}"),
        ]
        heading = f"({self.epsilon:g}, {self.delta:g})-differential privacy"
        return card(heading, rows, inner=[folded("The statement in full", str(self))])

    def __str__(self) -> str:
        scope = (
            "A ledger shared with other runs on these records guards the sum of them all."
            if self.shared_ledger
            else "This accounts for this run alone: other releases from the same records add to it (their mu squared add up)."
        )
        paper = self.paper_epsilon
        beside = f"{paper:.3g}" if paper < float("inf") else "no finite value"
        return (
            f"Everything this run released ({self.releases:,} noisy numbers, and with them every draw) satisfies "
            f"({self.epsilon:g}, {self.delta:g})-differential privacy with respect to {self.neighbours}. In plain words: "
            f"also for someone who knows all of the {self.n:,} records but one, nothing they could see becomes more than "
            f"e^{self.epsilon:g} = {exp(self.epsilon):.3g} times as likely through what that one record says, up to a "
            f"probability of {self.delta:g}.{self._careless()}{self._coalition()} The guarantee is that of a cap fixed in "
            f"advance (Gaussian DP with mu = {self.mu:.4g}, zCDP with rho = {self.rho:.4g}); "
            f"of this cap mu = {self.spent_mu:.4g} was used, which is bookkeeping and not a smaller "
            f"epsilon. {scope} The noise is discrete Gaussian from the operating system's entropy, and delta includes "
            f"{self.lattice_slack:.1e} for its lattice. {self.sensitivity} {self.exact}{self._clamped()}{self._aimed()} "
            f"Records were evaluated in {self.precision}. The paper's own route (advanced composition) would state epsilon = "
            f"{beside} for the same releases."
        )
