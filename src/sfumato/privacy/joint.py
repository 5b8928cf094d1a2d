"""The promises of several owners, side by side: each is kept on its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sfumato.privacy.statement import CLAMPED, Statement, careless
from sfumato.tools.notebook import card, folded, table


@dataclass(frozen=True)
class JointStatement:
    """What each of several owners promised.

    The figures without an owner's name are those of the weakest promise: the largest epsilon, delta and mu. A person whose
    record only one owner holds has that owner's promise; for a person in several of them mu squared adds up.

    Attributes
    ----------
    owners
        One statement each.
    """

    owners: tuple[Statement, ...]

    @property
    def epsilon(self) -> float:
        """Largest epsilon of any owner."""
        return max(owner.epsilon for owner in self.owners)

    @property
    def delta(self) -> float:
        """Largest delta of any owner."""
        return max(owner.delta for owner in self.owners)

    @property
    def mu(self) -> float:
        """Largest mu of any owner."""
        return max(owner.mu for owner in self.owners)

    @property
    def rho(self) -> float:
        """The largest cap as zero-concentrated DP."""
        return self.mu**2 / 2

    @property
    def spent_mu(self) -> float:
        """Largest mu realised by any owner: bookkeeping."""
        return max(owner.spent_mu for owner in self.owners)

    @property
    def together_mu(self) -> float:
        """Gaussian-DP parameter for a person whose record every owner holds: the root of the sum of squares."""
        return float(sum(owner.mu**2 for owner in self.owners) ** 0.5)

    @property
    def n(self) -> int:
        """Records of all owners."""
        return sum(owner.n for owner in self.owners)

    @property
    def releases(self) -> int:
        """Numbers released by all owners."""
        return sum(owner.releases for owner in self.owners)

    @property
    def shared_ledger(self) -> bool:
        """Whether every owner's releases are guarded by a shared ledger."""
        return all(owner.shared_ledger for owner in self.owners)

    @property
    def outside(self) -> str:
        """Whether any owner moves records outside the domain to its nearest point ("clamp"), or all refuse them."""
        return "clamp" if any(owner.outside == "clamp" for owner in self.owners) else "refuse"

    @property
    def target(self) -> str:
        """What was sampled, where that is no posterior of a likelihood: the same for all."""
        return self.owners[0].target

    @property
    def sensitivity(self) -> str:
        """How the sensitivity of the first owner's answers is known."""
        return self.owners[0].sensitivity

    @property
    def exact(self) -> str:
        """What may be thought of the draws."""
        return self._exact()

    def _exact(self) -> str:
        """The weakest of what the owners say about exactness."""
        said = [owner.exact for owner in sorted(self.owners, key=lambda owner: owner.outside != "clamp")]
        return next((words for words in said if "only" in words), said[0])

    def _clamped(self) -> str:
        names = [owner.owner or f"owner {i}" for i, owner in enumerate(self.owners, 1) if owner.outside == "clamp"]
        return (
            f" As a rule, {CLAMPED} at {' and '.join(names)}; whether there were any is not released." if names else ""
        )

    def _careless(self) -> str:
        warned = [
            (owner.owner or f"owner {i}", careless(owner.delta, owner.n)) for i, owner in enumerate(self.owners, 1)
        ]
        return "".join(f" WARNING, of {name}: {words}" for name, words in warned if words)

    def _how(self) -> str:
        first, count = self.owners[0].sealed, len(self.owners)
        if first is None:
            return (
                f"{count} owners released their answers separately, each with its own noise and its own budget, and each promise "
                "holds against the other owners and the analyst together."
            )
        if len({(owner.sealed.colluders, owner.sealed.mu) for owner in self.owners if owner.sealed}) == 1:
            return f"{count} owners answered together. {first}"
        each = " ".join(f"{owner.owner}: {owner.sealed}" for owner in self.owners)
        return f"{count} owners answered together. {each}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        together = {"epsilon": self.epsilon, "delta": self.delta, "mu": self.mu, "together_mu": self.together_mu}
        return together | {"n": self.n, "owners": [owner.to_dict() for owner in self.owners]}

    def __repr__(self) -> str:
        names = ", ".join(owner.owner or f"owner {number}" for number, owner in enumerate(self.owners, 1))
        return f"<JointStatement of {names}; epsilon={self.epsilon:g}, delta={self.delta:g} at the most>"

    def _repr_html_(self) -> str:
        lines = [
            (
                owner.owner or str(number),
                f"{owner.n:,}",
                f"{owner.epsilon:g}",
                f"{owner.delta:g}",
                f"{owner.releases:,}",
            )
            for number, owner in enumerate(self.owners, 1)
        ]
        inner = [table(("owner", "records", "epsilon", "delta", "numbers released"), lines)]
        return card("Promises, side by side", inner=[*inner, folded("The statement in full", str(self))])

    def __str__(self) -> str:
        promises = " ".join(
            f"{owner.owner or f'Owner {number}'} ({owner.n:,} records) promises to everyone whose record it holds "
            f"({owner.epsilon:g}, {owner.delta:g})-differential privacy, mu = {owner.mu:.4g}, for {owner.releases:,} noisy "
            "numbers."
            for number, owner in enumerate(self.owners, 1)
        )
        return (
            f"{self._how()} {promises} A person whose record only one "
            "owner holds has that owner's promise. For a person held by two of them mu squared adds up (mu^2 = mu_1^2 + mu_2^2); "
            f"held by all of them that makes mu = {self.together_mu:.4g}.{self._careless()} {self._exact()}{self._clamped()}"
            + (f" {self.target}" if self.target else "")
        )


def join(statements: Sequence[Statement]) -> Statement | JointStatement:
    """One statement as it is, several as a joint one."""
    return statements[0] if len(statements) == 1 else JointStatement(tuple(statements))


def plain_fields(privacy: Statement | JointStatement) -> dict[str, Any]:
    """The fields that a statement can be built from again, by `from_fields`."""
    if isinstance(privacy, JointStatement):
        return {"owners": [plain_fields(owner) for owner in privacy.owners]}
    return {name: value for name, value in privacy.to_dict().items() if name not in ("rho", "paper_epsilon")}


def from_fields(fields: dict[str, Any]) -> Statement | JointStatement:
    """Inverse of `plain_fields`."""
    if "owners" in fields:
        return JointStatement(tuple(Statement(**owner) for owner in fields["owners"]))
    return Statement(**fields)
