"""A plan: what a budget will buy, and on which assumptions; in words, in a table, in a journal."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sfumato.errors import PlanTooWeak
from sfumato.kernel import asks_first
from sfumato.planner.advice import careless_rows, instead, ways_out, would_do
from sfumato.planner.belief import Belief
from sfumato.planner.centre import GUESSED
from sfumato.planner.forecast import EstimateForecast
from sfumato.planner.influence import Influence
from sfumato.privacy import gdp
from sfumato.privacy.target import Target
from sfumato.tools.notebook import card

ENOUGH_ESS = 5.0
"""Effective draws per chain below which a chain cannot be told from one that never mixed."""
ENOUGH_IN_ALL = 20.0
"""The same for all chains together, however few: a little more than the least that a verdict lets anybody use."""
ENOUGH = f"{ENOUGH_ESS:g} a chain, and {ENOUGH_IN_ALL:g} at the least"
"""Both in words."""


@dataclass(frozen=True)
class Plan:
    """What a budget will buy, and on which assumptions.

    Attributes
    ----------
    kernel, step, sigma, iterations
        The chain: which walk, its step in posterior standard deviations, the noise of one answer, steps per chain.
    mu
        Gaussian-DP parameter of the whole budget (the cap).
    forecast_ess
        Effective draws expected, all chains together, for each coordinate.
    limit_ess, share_of_limit
        ESS of the one-shot limit (a single Gaussian release of the score with the whole budget), and our share of it.
    assumptions
        What the forecast rests on, in words.
    owners
        Where there are several: name, records, promise and share of the noise of each. Epsilon, delta are then the weakest
        promise, and mu is that of one owner whose budget would buy as much as all of theirs together.
    considered
        Every kernel that came into question with its share of the limit, the best first: why this one.
    truncate
        Bound on every coordinate's move, if the random walk was asked to keep one.
    band
        10th and 90th percentile of the forecast over what is not known before the pilot: parameters from the prior (and the
        guess), covariates that fill all of their domain or a third of it. None after the pilot.
    missing
        Kernels that do not come into question, each with the reason.
    copy_sigma
        Langevin on a family over owners one has to wait for: noise in each coordinate of the second copies that
        corrections are made from; `sigma` is then what the noise of a correction will be on average. Else 0.
    averaged
        Langevin on bundles: copies of each whose average a step uses. Else 0.
    lent
        Langevin on bundles beside owners who answer live: noise variance in each coordinate that copies lend to the proposal.
    hint
        Of a weak plan: which columns want centring and scaling, if any.
    estimate
        What `sfumato.estimate` would give for the same budget (after a pilot: for what it left): `.error_sd`, `.width_ratio`.
        None on bundles.
    target
        What is sampled, where that is no posterior of a likelihood (`sfumato.robust`).
    influence
        The two made-up records that set the price, and what would lower it. None for families, and after the pilot.
    sealed, unsealed_ess
        Whether the owners answer with sealed sums; and (of a plan that was asked for by itself) the forecast if they did not.
    """

    kernel: str
    sigma: float
    step: float
    iterations: int
    chains: int
    n: int
    epsilon: float
    delta: float
    mu: float
    pilot_share: float
    forecast_ess: float
    limit_ess: float
    assumptions: tuple[str, ...]
    belief: Belief = field(repr=False)
    matrix: np.ndarray = field(repr=False)
    family: bool = field(default=False, repr=False)
    owners: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    considered: tuple[tuple[str, float], ...] = ()
    truncate: float | None = None
    copy_sigma: float = 0.0
    averaged: int = 0
    lent: float = 0.0
    band: tuple[float, float] | None = None
    missing: tuple[tuple[str, str], ...] = ()
    hint: str = field(default="", repr=False)
    estimate: EstimateForecast | None = None
    target: Target | None = None
    influence: Influence | None = None
    sealed: bool = False
    unsealed_ess: float | None = None

    @property
    def share_of_limit(self) -> float:
        """Forecast ESS over the one-shot limit."""
        return self.forecast_ess / self.limit_ess

    @property
    def enough_ess(self) -> float:
        """Effective draws that the chains must promise together."""
        return max(ENOUGH_IN_ALL, ENOUGH_ESS * self.chains)

    @property
    def weak(self) -> bool:
        """Whether the forecast says the chain cannot mix."""
        return self.forecast_ess < self.enough_ess

    @property
    def hopeless(self) -> bool:
        """Whether that is so for most parameters of the prior: then nothing is spent to find out."""
        return (self.forecast_ess if self.band is None else self.band[1]) < self.enough_ess

    def refuse_if_weak(self, spent: float = 0.0) -> None:
        """Raise `PlanTooWeak`, with the numbers and ways out; before the pilot only if there is no hope.

        `spent`: the share of the budget that a pilot has used.
        """
        if not self.hopeless:
            return
        epsilon, n = self.would_do(self._short_by)
        cure = self.influence.cure if self.influence is not None else ""
        ways = ways_out(
            epsilon, n, self.hint, cure=cure, fewer_chains=self.fewer_chains_would_do, guess=self._another_guess
        )
        raise PlanTooWeak(
            f"a plan must promise {self.enough_ess:g} effective draws in all ({ENOUGH}); this budget "
            f"(epsilon={self.epsilon:g}, delta={self.delta:g}, n={self.n:,}) promises {self.forecast_ess:.3g}. "
            f"{self.instead(spent)}{ways} force=True samples all the same.",
            plan=self,
        )

    @property
    def remedy(self) -> str:
        """What to do about a plan that is refused, in the words of the refusal; empty for any other."""
        try:
            self.refuse_if_weak()
        except PlanTooWeak as error:
            return str(error)
        return ""

    def instead(self, spent: float) -> str:
        """What an estimate would give for the part of the budget that is not spent, as a sentence with a space behind it."""
        left = (self.mu * (1 - spent) ** 0.5, None if self.owners else self.delta) if spent else ()
        first = "(It is never refused: centre and scale first, as said below.) " if self.hint and self.estimate else ""
        return instead(self.estimate, *left) + first

    @property
    def fewer_chains_would_do(self) -> bool:
        """Whether fewer chains would have to promise less."""
        return self.enough_ess > ENOUGH_IN_ALL

    @property
    def _another_guess(self) -> str:
        """Before a pilot the forecast is that of a place which the posterior may be nowhere near."""
        if self.band is None:
            return ""
        rests_on = self.assumptions[0]
        which = "another" if GUESSED in rests_on else "a"
        return f"{which} guess= of where the parameters are, if you have one (this plan rests on {rests_on})"

    @property
    def _short_by(self) -> float:
        """How many times as many effective draws a weak plan would need."""
        return self.enough_ess / max(self.forecast_ess, 1e-12)

    def would_do(self, factor: float) -> tuple[float, int]:
        """An epsilon on the same records, or a number of records at the same epsilon, for so many times the effective draws."""
        whole = max(self.mu, float(gdp.mu(self.epsilon, self.delta)))  # after a pilot, mu is what is left
        epsilon = float(gdp.epsilon(min(whole * factor**0.5, 60.0), self.delta))
        return 1.1 * epsilon, int(1.1 * self.n * factor)  # a little more: a forecast does not scale to the digit

    def rows(self) -> list[tuple[str, str]]:
        """Label and value, line by line."""
        return [
            ("budget", f"epsilon = {self.epsilon:g}, delta = {self.delta:g} ({self._worth()})"),
            ("records", f"{self.n:,}"),
            *([("target", self.target.sentence)] if self.target is not None else []),
            ("pilot", f"{self.pilot_share:.0%} of the budget" if self.pilot_share else "none left to pay"),
            (
                "kernel",
                f"{self.kernel}, step "
                + (f"size h = {self.step:g}" if asks_first(self.kernel) else f"{self.step:g} posterior sd")
                + ("" if self.truncate is None else f", no coordinate by more than {self.truncate:g}"),
            ),
            ("noise", self._noise()),
            ("chains", f"{self.chains} x about {self.iterations:,} iterations"),
            ("forecast", f"{self.forecast_ess:.3g} effective draws, {self.share_of_limit:.0%} of the one-shot limit"),
            *([("unsealed", self._beside(self.unsealed_ess))] if self.unsealed_ess is not None else []),
            *([("perhaps", self._perhaps(self.band))] if self.band is not None else []),
            *([("estimate", f"in place of chains: {self.estimate}")] if self.estimate is not None else []),
            *([("price", self.influence.price)] if self.influence is not None else []),
            *([("cheaper", self.influence.cure)] if self.influence is not None and self.influence.ways else []),
            *([("because", self._because())] if len(self.considered) > 1 or self.missing else []),
            ("rests on", "; ".join(self.assumptions)),
            *(("owner", _owner_row(owner)) for owner in self.owners),
            *careless_rows(self),
        ]

    def _noise(self) -> str:
        if self.averaged:
            return f"sigma = {self.sigma:.3g} per correction on average; a step uses {self.averaged} copies"
        if self.copy_sigma:
            return f"sigma = {self.sigma:.3g} per correction on average, made from second copies that are asked ahead"
        return f"sigma = {self.sigma:g} per answer" + (" of the correction" if asks_first(self.kernel) else "")

    def _worth(self) -> str:
        if len(self.owners) > 1:
            how = "their sums are sealed, and " if self.sealed else ""
            return f"the largest of any owner; {how}together they are worth one owner with mu = {self.mu:.4g}"
        return f"mu = {self.mu:.4g} of the cap"

    def _beside(self, unsealed: float) -> str:
        times = self.forecast_ess / max(unsealed, 1e-12)
        return f"{unsealed:.3g} effective draws, if the owners did not seal their sums: {times:.2g} times fewer"

    def _perhaps(self, band: tuple[float, float]) -> str:
        low, high = (f"{end:,.3g}" if end < 1000 else f"{end:,.0f}" for end in band)
        return f"{low} to {high} draws for most parameters of the prior; the pilot will tell"

    def _because(self) -> str:
        shares = "share of the limit: " + ", ".join(f"{name} {share:.0%}" for name, share in self.considered)
        return "; ".join([shares, *(f"no {name}: {_first_sentence(reason)}" for name, reason in self.missing)])

    def table(self) -> str:
        """The plan as plain text; a weak one ends with a line that says so, and what would do."""
        return "\n".join(f"{label:<9} {value}" for label, value in [*self.rows(), *self._warning()])

    def _warning(self) -> list[tuple[str, str]]:
        """Whoever only plans must not learn from `sample` that it was for nothing."""
        if not self.weak:
            return []
        if not self.hopeless:
            return [("weak", f"fewer than {self.enough_ess:g} draws if theta is near there; the pilot will tell")]
        epsilon, n = self.would_do(self._short_by)
        words = (
            f"sample refuses this plan, estimate does not: it needs {self.enough_ess:g} effective draws ({ENOUGH}); "
        )
        return [("too weak", words + would_do(epsilon, n, self.hint))]

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        weak = "; too weak" if self.hopeless else "; weak" if self.weak else ""
        return (
            f"<Plan {self.kernel}, {self.chains} x {self.iterations:,} iterations; epsilon={self.epsilon:g}, "
            f"delta={self.delta:g}; {self.forecast_ess:.3g} effective draws{weak}>"
        )

    def _repr_html_(self) -> str:
        mark = "unusable" if self.hopeless else "rough" if self.weak else "good"
        return card("Plan", [*self.rows(), *self._warning()], mark=mark)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        names = ("kernel", "sigma", "step", "iterations", "chains", "n", "epsilon", "delta", "mu", "pilot_share")
        out: dict[str, Any] = {name: getattr(self, name) for name in names}
        out |= {"forecast_ess": self.forecast_ess, "limit_ess": self.limit_ess, "share_of_limit": self.share_of_limit}
        out |= {"owners": [dict(owner) for owner in self.owners]} if self.owners else {}
        out |= {"truncate": self.truncate} if self.truncate is not None else {}
        out |= {"copy_sigma": self.copy_sigma} if self.copy_sigma else {}
        out |= {"averaged": self.averaged} if self.averaged else {}
        out |= {"lent": self.lent} if self.lent else {}
        out |= {"sealed": True} if self.sealed else {}
        out |= {"unsealed_ess": self.unsealed_ess} if self.unsealed_ess is not None else {}
        out |= {
            "considered": [list(pair) for pair in self.considered],
            "missing": [list(pair) for pair in self.missing],
        }
        out |= {"band": list(self.band)} if self.band is not None else {}
        out |= {"estimate": self.estimate.to_dict()} if self.estimate is not None else {}
        out |= {"target": self.target.to_dict()} if self.target is not None else {}
        out |= {"influence": self.influence.to_dict()} if self.influence is not None else {}
        return out | {
            "assumptions": list(self.assumptions),
            "weak": self.weak,
            "hopeless": self.hopeless,
            "matrix": self.matrix.tolist(),
        }

    def written(self) -> dict[str, Any]:
        """All of the plan as plain values, for a run's journal; `read` is its inverse."""
        belief = {
            "centre": self.belief.centre.tolist(),
            "covariance": self.belief.covariance.tolist(),
            "origin": self.belief.origin,
            "error": self.belief.error,
            "roughness": self.belief.roughness,
        }
        return self.to_dict() | {"belief": belief}

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> "Plan":
        """Inverse of `written`."""
        raw = dict(written)
        belief = raw.pop("belief")
        for derived in ("share_of_limit", "weak", "hopeless"):
            raw.pop(derived)
        raw["assumptions"], raw["owners"] = tuple(raw["assumptions"]), tuple(raw.get("owners", ()))
        raw["matrix"] = np.array(raw["matrix"])
        for pairs in ("considered", "missing"):
            raw[pairs] = tuple((name, value) for name, value in raw[pairs])
        raw["band"] = tuple(raw["band"]) if raw.get("band") else None
        raw["estimate"] = EstimateForecast.from_dict(raw["estimate"]) if raw.get("estimate") else None
        raw["target"] = Target.from_dict(raw["target"]) if raw.get("target") else None
        raw["influence"] = Influence.from_dict(raw["influence"]) if raw.get("influence") else None
        centre, covariance = (np.array(belief[name]) for name in ("centre", "covariance"))
        raw["belief"] = Belief(centre, covariance, belief["origin"], belief["error"], belief["roughness"])
        return cls(**raw)


def _first_sentence(text: str) -> str:
    return text.split(". ", maxsplit=1)[0].rstrip(".")


def _owner_row(owner: Mapping[str, Any]) -> str:
    promise = f"{owner['name']}: {owner['n']:,} records, epsilon = {owner['epsilon']:g}, delta = {owner['delta']:g}"
    return f"{promise}; adds {owner['share']:.0%} of the noise variance" if owner["share"] else f"{promise}; a bundle"
