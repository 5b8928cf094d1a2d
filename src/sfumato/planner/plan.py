"""Budget in, plan out: before a single answer is paid for.

`make_plan` needs the model, the number of records and the domain, all public, and spends nothing. What it cannot know it
assumes, and says so. `replan` does the same sum again with what a pilot paid to learn.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from sfumato.bounds.reference import Reference
from sfumato.errors import InvalidInput, PlanTooWeak, Unsupported
from sfumato.kernel import Kernel, Langevin, RandomWalk
from sfumato.model import Model
from sfumato.model.base import theta_of
from sfumato.planner import compiled, forecast, synthetic, truncated
from sfumato.planner.advice import advice, careless_rows, ways_out, would_do
from sfumato.planner.pilot import PLACING, summit
from sfumato.privacy import gdp
from sfumato.privacy.budget import MAX_RELEASES
from sfumato.study.target import Study

PILOT_SHARE = 0.1
"""Share of the budget (of mu squared) that the pilot may spend."""
PILOT_SHARES = (0.03, 0.05, 0.07, 0.1)
"""Shares that are tried where the chain will be Langevin around the pilot's centre."""
FAMILY_PILOT_SHARE = 0.03
"""The same for a regular family, whose information is public: three gradients are enough."""
ENOUGH_ESS = 5.0
"""Effective draws per chain below which a chain cannot be told from one that never mixed."""
ENOUGH_IN_ALL = 20.0
"""The same for all chains together, however few: a little more than the least that a verdict lets anybody use."""
ENOUGH = f"{ENOUGH_ESS:g} a chain, and {ENOUGH_IN_ALL:g} at the least"
"""Both in words."""
MAX_ITERATIONS = 10_000
"""Default limit on steps per chain where each is a pass over the records."""
MAX_FAMILY_ITERATIONS = 50_000
"""Default limit where the sum of statistics answers."""
GUESSED = "the guess given"
"""What a plan with a guess rests on."""
KERNEL_NAMES = ("auto", *forecast.KERNELS, Langevin.name)


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
        Langevin on bundles: copies whose average a step uses. Else 0.
    hint
        Of a weak plan: which columns want centring and scaling, if any.
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
    picture: forecast.Picture = field(repr=False)
    matrix: np.ndarray = field(repr=False)
    family: bool = field(default=False, repr=False)
    owners: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    considered: tuple[tuple[str, float], ...] = ()
    truncate: float | None = None
    copy_sigma: float = 0.0
    averaged: int = 0
    band: tuple[float, float] | None = None
    missing: tuple[tuple[str, str], ...] = ()
    hint: str = field(default="", repr=False)

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

    def build_kernel(self) -> Kernel:
        """The walk, ready to run."""
        if self.truncate is not None:
            return RandomWalk(self.matrix, self.step, self.truncate)
        return forecast.KERNELS[self.kernel](self.matrix, self.step)

    def refuse_if_weak(self) -> None:
        """Raise `PlanTooWeak`, with the numbers and ways out; before the pilot only if there is no hope."""
        if not self.hopeless:
            return
        epsilon, n = self.would_do(self._short_by)
        ways = ways_out(epsilon, n, self.hint, fewer_chains=self.fewer_chains_would_do, guess=self._another_guess)
        raise PlanTooWeak(
            f"a plan must promise {self.enough_ess:g} effective draws in all ({ENOUGH}); this budget "
            f"(epsilon={self.epsilon:g}, delta={self.delta:g}, n={self.n:,}) promises {self.forecast_ess:.3g}. "
            f"{ways} force=True samples all the same"
            + (
                "; .noise_aware() of that run, or of a bundle, is calibrated where its chain cannot mix."
                if self.family
                else "."
            ),
            plan=self,
        )

    @property
    def fewer_chains_would_do(self) -> bool:
        """Whether fewer chains would have to promise less."""
        return self.enough_ess > ENOUGH_IN_ALL

    @property
    def _another_guess(self) -> str:
        """Before a pilot the forecast is that of a place which the posterior may be nowhere near."""
        if self.band is None:
            return ""
        near, known = self.assumptions[0], GUESSED in self.assumptions[0]
        return f"{'another' if known else 'a'} guess= of where the parameters are, if you have one (this plan rests on {near})"

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
        lang = self.kernel == Langevin.name
        return [
            ("budget", f"epsilon = {self.epsilon:g}, delta = {self.delta:g} ({self._worth()})"),
            ("records", f"{self.n:,}"),
            ("pilot", f"{self.pilot_share:.0%} of the budget" if self.pilot_share else "none left to pay"),
            (
                "kernel",
                f"{self.kernel}, step "
                + (f"size h = {self.step:g}" if lang else f"{self.step:g} posterior sd")
                + ("" if self.truncate is None else f", no coordinate by more than {self.truncate:g}"),
            ),
            ("noise", self._noise()),
            ("chains", f"{self.chains} x about {self.iterations:,} iterations"),
            ("forecast", f"{self.forecast_ess:.3g} effective draws, {self.share_of_limit:.0%} of the one-shot limit"),
            *([("perhaps", self._perhaps(self.band))] if self.band is not None else []),
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
        return f"sigma = {self.sigma:g} per answer" + (" of the correction" if self.kernel == Langevin.name else "")

    def _worth(self) -> str:
        if len(self.owners) > 1:
            return f"the largest of any owner; together they are worth one owner with mu = {self.mu:.4g}"
        return f"mu = {self.mu:.4g} of the cap"

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
        words = f"sample refuses this plan: it needs {self.enough_ess:g} effective draws ({ENOUGH}); "
        return [("too weak", words + would_do(epsilon, n, self.hint))]

    def __str__(self) -> str:
        return self.table()

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        names = ("kernel", "sigma", "step", "iterations", "chains", "n", "epsilon", "delta", "mu", "pilot_share")
        out: dict[str, Any] = {name: getattr(self, name) for name in names}
        out |= {"forecast_ess": self.forecast_ess, "limit_ess": self.limit_ess, "share_of_limit": self.share_of_limit}
        out |= {"owners": [dict(owner) for owner in self.owners]} if self.owners else {}
        out |= {"truncate": self.truncate} if self.truncate is not None else {}
        out |= {"copy_sigma": self.copy_sigma} if self.copy_sigma else {}
        out |= {"averaged": self.averaged} if self.averaged else {}
        out |= {
            "considered": [list(pair) for pair in self.considered],
            "missing": [list(pair) for pair in self.missing],
        }
        out |= {"band": list(self.band)} if self.band is not None else {}
        return out | {
            "assumptions": list(self.assumptions),
            "weak": self.weak,
            "hopeless": self.hopeless,
            "matrix": self.matrix.tolist(),
        }

    def written(self) -> dict[str, Any]:
        """All of the plan as plain values, for a run's journal; `read` is its inverse."""
        picture = {
            "centre": self.picture.centre.tolist(),
            "covariance": self.picture.covariance.tolist(),
            "origin": self.picture.origin,
            "error": self.picture.error,
            "roughness": self.picture.roughness,
        }
        return self.to_dict() | {"picture": picture}

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> "Plan":
        """Inverse of `written`."""
        raw = dict(written)
        picture = raw.pop("picture")
        for derived in ("share_of_limit", "weak", "hopeless"):
            raw.pop(derived)
        raw["assumptions"], raw["owners"] = tuple(raw["assumptions"]), tuple(raw.get("owners", ()))
        raw["matrix"] = np.array(raw["matrix"])
        for pairs in ("considered", "missing"):
            raw[pairs] = tuple((name, value) for name, value in raw[pairs])
        raw["band"] = tuple(raw["band"]) if raw.get("band") else None
        centre, covariance = (np.array(picture[name]) for name in ("centre", "covariance"))
        raw["picture"] = forecast.Picture(centre, covariance, picture["origin"], picture["error"], picture["roughness"])
        return cls(**raw)


def _first_sentence(text: str) -> str:
    return text.split(". ", maxsplit=1)[0].rstrip(".")


def _owner_row(owner: Mapping[str, Any]) -> str:
    promise = f"{owner['name']}: {owner['n']:,} records, epsilon = {owner['epsilon']:g}, delta = {owner['delta']:g}"
    return f"{promise}; adds {owner['share']:.0%} of the noise variance" if owner["share"] else f"{promise}; a bundle"


def budget_mu(epsilon: float, delta: float) -> float:
    """Mu of the cap: for delta less the lattice slack of `MAX_RELEASES` releases, so that delta as asked is met."""
    _check_budget(epsilon, delta)
    slack = lattice_slack(epsilon)
    if slack > delta / 2:
        raise InvalidInput(
            f"delta must exceed twice the lattice slack, {slack:.2g} at epsilon={epsilon:g}; got {delta:g}. "
            "Choose a smaller epsilon or a larger delta."
        )
    return float(gdp.mu(epsilon, delta - slack))


def lattice_slack(epsilon: float) -> float:
    """Delta that the discreteness of the noise adds, for as many releases as a run may make."""
    from sfumato.vault.lattice import RELATIVE_LOG2

    return float(gdp.lattice_slack(MAX_RELEASES, epsilon, 2.0**RELATIVE_LOG2))


def _check_budget(epsilon: float, delta: float) -> None:
    if not (isinstance(epsilon, int | float | np.number) and np.isfinite(epsilon) and epsilon > 0):
        raise InvalidInput(f"epsilon must be a positive number, got {epsilon!r}; values between 0.1 and 10 are usual.")
    if not (isinstance(delta, int | float | np.number) and np.isfinite(delta) and 0 < delta < 1):
        raise InvalidInput(f"delta must lie strictly between 0 and 1, got {delta!r}; take it well below 1/n.")


def make_plan(
    study: Study,
    *,
    n: int,
    epsilon: float,
    delta: float,
    kernel: str = "auto",
    chains: int = 4,
    guess: Mapping[str, Any] | None = None,
    example: Mapping[str, Any] | None = None,
    max_iterations: int | None = None,
    pilot_share: float | None = None,
    mu: float | None = None,
    truncate: float | None = None,
    ahead: bool = False,
) -> Plan:
    """Plan from public quantities alone; `mu`, if given, is what the budget is worth (that of several owners together).

    `ahead`: answers take long to come, so Langevin on a family asks for all it needs ahead (`forecast.choose_copies`).
    """
    kernel = truncated.check(truncate, kernel)
    mu = budget_mu(epsilon, delta) if mu is None else mu
    max_iterations = iteration_limit(study, max_iterations)
    check_counts(n, chains, max_iterations, kernel, pilot_fraction(study, pilot_share))
    shown = None if example is None else synthetic.given(study.domain, example)
    picture = first_picture(study, n, guess, example)
    centre, origin = picture.centre, picture.origin
    made_up = (
        "records uniform over the domain" if study.model.sample_records is None else "records drawn from the family"
    )
    source = "public example records" if example is not None else made_up
    assumptions = (f"theta near {origin}", source, "a posterior close to normal")
    counts: dict[str, Any] = {"n": n, "epsilon": epsilon, "delta": delta, "kernel": kernel, "chains": chains}
    counts |= {"truncate": truncate, "ahead": ahead}
    share = pilot_fraction(study, pilot_share)
    if pilot_share is None and (near := _near(study, kernel)) is not None:
        share = _best_share(study, near, picture, mu, chains, max_iterations)
    plan = _assemble(
        study, _after_pilot(study, picture, mu, share), assumptions, mu, 1 - share,
        max_iterations=max_iterations, pilot_share=share, **counts,
    )  # fmt: skip
    band = _band(study, n, centre, shown, mu, guess is not None)
    if plan.kernel != Langevin.name and pilot_share is None and share != PILOT_SHARE and not study.natural:
        plan = _assemble(
            study, picture, assumptions, mu, 1 - PILOT_SHARE, max_iterations=max_iterations, pilot_share=PILOT_SHARE,
            **counts,
        )  # fmt: skip
    # At a place where one record could move everything no kernel gets its share; elsewhere it will.
    hoped = HOPED_LANGEVIN if study.natural or _near(study, kernel) is not None else HOPED_WALK
    low, high = band[0] * plan.share_of_limit, band[1] * max(plan.share_of_limit, hoped)
    return replace(plan, band=(min(low, plan.forecast_ess), max(high, plan.forecast_ess)))


HOPED_LANGEVIN, HOPED_WALK = 0.85, 0.3
"""Share of the limit that a kernel gets where the posterior is ordinary: for the upper end of a plan's band."""


BAND_DRAWS = 8
BAND_SPREADS = (1.0, 1 / 3)


def _band(
    study: Study, n: int, centre: np.ndarray, shown: synthetic.Batch | None, mu: float, guessed: bool
) -> tuple[float, float]:
    """10th and 90th percentile of the one-shot limit over parameters from the prior and ways covariates may lie."""
    model, domain = study.model, study.domain
    draws = compiled.prior_draws(model)[:: len(compiled.prior_draws(model)) // BAND_DRAWS][:BAND_DRAWS]
    whole = shown is not None or model.sample_records is not None  # records are not made from the domain
    limits = []
    with jax.enable_x64(True):
        for theta in [*draws, *([centre] if guessed else [])]:
            for spread in (1.0,) if whole else BAND_SPREADS:
                picture = forecast.assumed_picture(model, domain, n, theta, shown, "", spread)
                limits.append(forecast.limit_ess(model, domain, picture, mu, climb=False))
    low, high = np.quantile(limits, [0.1, 0.9])
    return float(low), float(high)


def _best_share(
    study: Study, near: tuple[Reference, Model], picture: forecast.Picture, mu: float, chains: int, max_iterations: int
) -> float:
    """The pilot's share with the best forecast for Langevin: a better centre makes the second query cheaper."""

    def ess(share: float) -> float:
        seen, left = _after_pilot(study, picture, mu, share), mu * (1 - share) ** 0.5
        with jax.enable_x64(True):
            return forecast.choose_reference(*near, seen, left, chains=chains, max_iterations=max_iterations).ess

    try:
        return max(PILOT_SHARES, key=ess)
    except Unsupported:
        return PILOT_SHARE


def _after_pilot(study: Study, picture: forecast.Picture, mu: float, share: float) -> forecast.Picture:
    """The picture with the error that a pilot of this share will leave in its centre."""
    if study.near is None or study.natural or share == 0 or not study.near.possible:
        return picture
    with jax.enable_x64(True):
        limit = forecast.limit_ess(study.model, study.domain, picture, mu)
    return replace(picture, error=(PLACING * share * limit) ** -0.5)


def replan(
    plan: Plan,
    study: Study,
    picture: forecast.Picture,
    share_left: float,
    *,
    kernel: str,
    max_iterations: int | None,
    ahead: bool = False,
) -> Plan:
    """Plan again with what the pilot found, for the share of the budget that is left."""
    assumptions = (picture.origin, "a posterior close to normal")
    return _assemble(
        study, picture, assumptions, plan.mu, share_left,
        n=plan.n, epsilon=plan.epsilon, delta=plan.delta, kernel=kernel, chains=plan.chains,
        max_iterations=iteration_limit(study, max_iterations), pilot_share=0.0, truncate=plan.truncate,
        ahead=ahead,
    )  # fmt: skip


def uses_langevin(study: Study, kernel: str) -> bool:
    """Whether the chain will be Langevin: asked for, or the first choice where the study is made for it."""
    return study.natural and kernel in ("auto", Langevin.name)


def knows_information(study: Study) -> bool:
    """Whether the information at a parameter needs no data: a family whose statistic has a law of its own."""
    return study.family is not None and study.family.regular and study.bounds.statistic


def pilot_fraction(study: Study, asked: float | None) -> float:
    """Share of the budget for the pilot."""
    if asked is not None:
        return asked
    return FAMILY_PILOT_SHARE if knows_information(study) else PILOT_SHARE


def asked_steps(*asked: int | None) -> int | None:
    """Steps per chain at the most, as asked: the smallest of those given; None where none is."""
    for value in asked:
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1):
            raise InvalidInput(
                f"iterations and max_iterations must be whole numbers of at least 1, got {value!r}; leave them out to sample "
                "until the budget is spent."
            )
    return min((int(value) for value in asked if value is not None), default=None)


def iteration_limit(study: Study, asked: int | None) -> int:
    """Steps per chain at the most."""
    if asked is not None:
        return asked
    return MAX_FAMILY_ITERATIONS if study.bounds.statistic else MAX_ITERATIONS


def _assemble(
    study: Study,
    picture: forecast.Picture,
    assumptions: tuple[str, ...],
    mu: float,
    share: float,
    *,
    kernel: str,
    chains: int,
    max_iterations: int,
    n: int,
    epsilon: float,
    delta: float,
    pilot_share: float,
    truncate: float | None,
    ahead: bool,
) -> Plan:
    missing: dict[str, str] = {}
    with jax.enable_x64(True):
        left = mu * share**0.5
        if study.family is not None and uses_langevin(study, kernel):
            limits: dict[str, Any] = {"chains": chains, "max_iterations": max_iterations}
            choices = [
                forecast.choose_copies(study.family, picture, left, **limits)
                if ahead
                else forecast.choose_langevin(study.family, study.model, n, picture, left, **limits)
            ]
        else:
            choices, missing = forecast.choose(
                study.bounds.range, picture, left, kernel=kernel, chains=chains, max_iterations=max_iterations,
                near=_near(study, kernel), truncate=truncate,
            )  # fmt: skip
            missing |= _no_langevin(study, kernel)
        if study.family is not None and knows_information(study) and study.family.exact_diameter:
            limit = forecast.family_limit_ess(study.family, study.model, picture, mu)
        else:
            limit = forecast.limit_ess(study.model, study.domain, picture, mu)
    limit = max(limit, choices[0].ess)  # what a kernel gets, records attain
    choice, considered = choices[0], tuple((c.kernel, c.ess / limit) for c in choices)
    plan = Plan(
        kernel=choice.kernel, sigma=choice.sigma, step=choice.step, iterations=choice.iterations, chains=chains, n=n,
        epsilon=float(epsilon), delta=float(delta), mu=mu, pilot_share=pilot_share, forecast_ess=choice.ess,
        limit_ess=limit, assumptions=assumptions, picture=picture, matrix=choice.matrix, family=study.family is not None,
        considered=considered, truncate=truncate, copy_sigma=choice.copy_sigma, missing=tuple(missing.items()),
    )  # fmt: skip
    return replace(plan, hint=advice(study, plan) or "")


def _no_langevin(study: Study, kernel: str) -> dict[str, str]:
    """Why Langevin does not come into question, where it would be looked at."""
    if kernel != "auto":
        return {}
    if study.near is None:
        reason = "its bounds are proven, and the sensitivity here is stated" if study.family is None else ""
    else:
        reason = study.near.why_not
    return {Langevin.name: reason} if reason else {}


def _near(study: Study, kernel: str) -> tuple[Reference, Model] | None:
    """What Langevin around a reference point needs, where it comes into question."""
    if study.near is None or kernel not in ("auto", Langevin.name):
        return None
    return (study.near, study.model) if kernel == Langevin.name or study.near.possible else None


def check_counts(n: int, chains: int, max_iterations: int, kernel: str, pilot_share: float) -> None:
    """Refuse counts and names that no plan can be made for."""
    if not (isinstance(n, int | np.integer) and n >= 2):
        raise InvalidInput(f"n must be a whole number of at least two records, got {n!r}.")
    if not (isinstance(chains, int | np.integer) and chains >= 1):
        raise InvalidInput(f"chains must be a whole number of at least one, got {chains!r}.")
    if not (isinstance(max_iterations, int | np.integer) and 1 <= max_iterations * chains <= MAX_RELEASES // 2):
        raise InvalidInput(
            f"max_iterations must lie between 1 and {MAX_RELEASES // 2 // chains:,} for {chains} chains, got {max_iterations!r}."
        )
    if kernel not in KERNEL_NAMES:
        raise InvalidInput(f"kernel must be one of {', '.join(KERNEL_NAMES)}, got {kernel!r}.")
    if not 0 <= pilot_share < 1:
        raise InvalidInput(f"pilot_share must lie in [0, 1), got {pilot_share!r}.")


def first_picture(
    study: Study, n: int, guess: Mapping[str, Any] | None, example: Mapping[str, Any] | None
) -> forecast.Picture:
    """The public picture that everything starts from: a guess or a point of the prior, and the scale of made-up records."""
    shown = None if example is None else synthetic.given(study.domain, example)
    with jax.enable_x64(True):
        centre, origin = _centre(study.model, guess)
        return forecast.assumed_picture(study.model, study.domain, n, centre, shown, origin)


def _centre(model: Model, guess: Mapping[str, Any] | None) -> tuple[np.ndarray, str]:
    draws = compiled.prior_draws(model)
    # Log-densities may have a kink at round values such as zero, where a derivative is only formally defined.
    nudge = 1e-4 * np.std(draws, axis=0)
    if guess is not None:
        return theta_of(model, guess, "guess") + nudge, GUESSED
    median = _settled(model, np.median(draws, axis=0), np.std(draws, axis=0))
    density = compiled.prior_density(model)
    if density(jax.device_put(median)) >= np.median([density(jax.device_put(draw)) for draw in draws[::20]]):
        return median + nudge, "the prior's median"
    # Where parameters hang together (a banana, a simplex) no draw need be near the vector of their medians.
    scale = np.maximum(np.std(draws, axis=0), 1e-300)
    far = np.abs(draws[:, None] - draws[None, ::10]) / scale
    middle = draws[int(np.argmin(far.mean(axis=(1, 2))))]
    top = summit(model, middle, np.zeros(model.dim), np.zeros((model.dim, model.dim)))
    low, high = np.quantile(draws, [0.005, 0.995], axis=0)
    if np.all(
        (low < top) & (top < high)
    ):  # a hierarchy has no top: its density grows without end as a scale goes to zero
        return top + nudge, "the prior's mode"
    return middle + nudge, "a point in the middle of the prior"


def _settled(model: Model, median: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """The median of a thousand draws without their chance, where the prior's own slope tells: of a normal, its mean.

    A hundredth of a prior standard deviation is nothing for the prior and may be much for a column in raw units.
    """
    slope, bend = (np.asarray(part) for part in compiled.prior_derivatives(model)(jax.device_put(median)))
    if not (np.all(np.isfinite(bend)) and np.linalg.eigvalsh(-bend)[0] > 0):
        return median
    step = np.linalg.solve(-bend, slope)
    return median + step if np.all(np.abs(step) <= 0.2 * spread) else median
