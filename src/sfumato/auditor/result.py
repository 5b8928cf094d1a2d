"""What an audit found, as data and as a paragraph that a privacy engineer can sign."""

from dataclasses import asdict, dataclass
from typing import Any

from sfumato.privacy import gdp

ROUNDING = 1e-6
"""By how much, relatively, the auditor's own arithmetic may be off."""


@dataclass(frozen=True)
class Attack:
    """One pair of made-up tables, told apart from what runs on them released.

    Attributes
    ----------
    replaced
        Records in which the two tables differ.
    tested, false_alarms, misses
        Runs on each table that the test was tried on; how many it took for runs on the other table.
    mu_lower
        Lower bound on mu, for one record, with its share of the audit's confidence.
    mu_at_stake
        The largest mu, for one record, by which the answers of any run differed between the tables: what an attack could see
        at best, and never more than the promise if every charge was right.
    """

    replaced: int
    tested: int
    false_alarms: int
    misses: int
    mu_lower: float
    mu_at_stake: float


@dataclass(frozen=True)
class Audit:
    """An empirical lower bound on the privacy lost, beside the promise.

    Attributes
    ----------
    epsilon_promised, delta, mu_promised
        The promise, and the Gaussian-DP parameter of its cap.
    epsilon_lower, mu_lower
        With `confidence`, no smaller promise can be true: mu is at least `mu_lower`, which at `delta` is `epsilon_lower`.
    mu_at_stake
        The largest mu that any run had at stake: how much of the promise the attack could see.
    trials
        Runs on each table.
    kernel, n, chains
        What was attacked: the planner's kernel, on tables of n made-up records.
    attacks
        The pairs of tables, one by one.
    """

    epsilon_promised: float
    delta: float
    mu_promised: float
    confidence: float
    trials: int
    kernel: str
    n: int
    chains: int
    pilot: int
    attacks: tuple[Attack, ...]

    @property
    def mu_lower(self) -> float:
        """The best of the attacks' bounds."""
        return max(attack.mu_lower for attack in self.attacks)

    @property
    def epsilon_lower(self) -> float:
        """The epsilon of a Gaussian promise of `mu_lower`, at the same delta."""
        return float(gdp.epsilon(self.mu_lower, self.delta))

    @property
    def mu_at_stake(self) -> float:
        """What the attacks could see at best."""
        return max(attack.mu_at_stake for attack in self.attacks)

    @property
    def undercharged(self) -> bool:
        """Whether some run released more than its charges allow: exact, no statistics needed."""
        return self.mu_at_stake > self.mu_promised * (1 + ROUNDING)

    @property
    def passed(self) -> bool:
        """Whether neither the bound nor any single run exceeds the promise."""
        return self.mu_lower <= self.mu_promised and not self.undercharged

    @property
    def verdict(self) -> str:
        """The result in one or two sentences."""
        if self.passed:
            return (
                "Passed: the attack does not refute the promise. That is evidence and no proof: another attack might, and a few "
                "percent too much would not show."
            )
        why = (
            "in some run the two tables differ by more than was charged: a width, a charge or the filter is wrong"
            if self.undercharged
            else "runs on neighbouring tables can be told apart better than the promise allows"
        )
        return f"FAILED: {why}. Release nothing with this installation and this model before the cause is found."

    def rows(self) -> list[tuple[str, str]]:
        """Label and value, line by line."""
        found = f"epsilon at least {self.epsilon_lower:.3g} (mu at least {self.mu_lower:.4g})"
        share = self.mu_at_stake / self.mu_promised
        pilot = f" after a pilot of {self.pilot} questions" if self.pilot else ""
        return [
            (
                "promised",
                f"epsilon = {self.epsilon_promised:g} at delta = {self.delta:g} (mu = {self.mu_promised:.4g})",
            ),
            ("found", f"{found}, with {100 * self.confidence:.6g} % confidence"),
            (
                "in reach",
                f"mu = {self.mu_at_stake:.4g}, {share:.1%} of the promise: what this attack can show at best where all is well",
            ),
            ("attacked", f"{self.chains} chains of kernel {self.kernel}{pilot}, on {self.n:,} made-up records"),
            ("runs", f"{self.trials:,} on each of {1 + len(self.attacks)} tables, each run with an account of its own"),
            *(("test", _attack_row(attack)) for attack in self.attacks),
            ("cost", "nobody's budget: all records are made up, and no data were read"),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `--json` shows them."""
        derived = ("mu_lower", "epsilon_lower", "mu_at_stake", "passed", "verdict")
        return asdict(self) | {name: getattr(self, name) for name in derived}

    def __str__(self) -> str:
        return "\n".join(f"{label:<9} {value}" for label, value in self.rows()) + f"\n\n{self.verdict}"


def _attack_row(attack: Attack) -> str:
    records = "1 record" if attack.replaced == 1 else f"{attack.replaced} records"
    return (
        f"{records} replaced: {attack.false_alarms} false alarms, {attack.misses} misses in {attack.tested:,} runs each; "
        f"mu at least {attack.mu_lower:.4g} a record"
    )
