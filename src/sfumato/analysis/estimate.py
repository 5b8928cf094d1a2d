"""An estimate: the posterior given everything that was released, with as many draws as wanted, and the promise that covers it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sfumato.analysis.facts import Facts
from sfumato.analysis.result import quiet_arviz
from sfumato.analysis.verdict import Verdict
from sfumato.analysis.wording import Words
from sfumato.planner.forecast import MOSTLY_PRIOR
from sfumato.privacy.joint import JointStatement, from_fields, plain_fields
from sfumato.privacy.statement import Statement
from sfumato.privacy.target import Target

RESTS_ON = (
    "it rests on scores of many records adding up to a normal, on a log posterior that is nearly a parabola where the answer "
    "lies, and on no record having been cut."
)
LABEL = f"An approximation, by local asymptotic normality: {RESTS_ON}"
LABEL_SUMS = (
    "An approximation, by the central limit theorem for the sum of statistics: it rests on many records, and on none having "
    "been cut."
)
LABEL_COUNTS = "By the exact law of the counts, up to Monte Carlo error: it rests on no record having been cut."
EXACT = (
    "The draws are no exact posterior of the records: they are the posterior given what was released, approximately."
)
FORMAT = 1
KIND = "estimate"
"""What the header of a saved estimate says it is."""
CHAINS = 4
"""Rows that draws are arranged in, as ArviZ wants them: all draws are independent but for points drawn twice."""
FAR, TOO_FAR = 4.0, 8.0
"""Distance of the place from the answer, in standard deviations of the answer (rms), that is worth a word, or too far."""
ROUGH = 0.7
"""Spectral noise of the whitened information that is worth a word."""
WIDE = 1.0
"""One-shot limit, in draws, below which noise is wider than the posterior without privacy."""
FEW = 400.0
"""Effective points of the population below which ends of intervals are rough."""


@dataclass(frozen=True)
class Estimate:
    """What `sfumato.estimate` gives back. Everything in it is released or follows from that: it may be published as it stands.

    Attributes
    ----------
    draws
        {site: array (chain, draw, ...)} in each site's own support; `more` gives as many as wanted.
    label
        What this is an approximation by, in one sentence.
    privacy
        The statement.
    population, weight
        Points that draws are taken from, {site: array (point, ...)}, and their weights.
    of_prior
        Posterior over prior standard deviation, by coordinate (unconstrained).
    about
        How it was made: `off` (distance of the place from the answer in its standard deviations), `surprise`, `roughness`
        (spectral noise of the whitened information), `limit` (one-shot limit, effective draws), `effective` (points),
        `hint` (which columns want centring and scaling), `law` (there if a family's own law was used: it holds anywhere).
    pilot
        Every release: what was asked, where, with which noise, and the answer.
    facts
        What a reader must know beside the numbers: words, model, priors, domain.
    """

    draws: Mapping[str, np.ndarray]
    label: str
    privacy: Statement | JointStatement
    population: Mapping[str, np.ndarray] = field(repr=False)
    weight: np.ndarray = field(repr=False)
    of_prior: Mapping[str, float]
    about: Mapping[str, Any]
    pilot: Mapping[str, Any] = field(repr=False)
    seed: int
    facts: Facts = field(default=Facts(), repr=False, compare=False)

    def more(self, size: int, seed: int = 0) -> dict[str, np.ndarray]:
        """So many draws, {site: array (draw, ...)}: points of the population, drawn by weight. They cost nothing."""
        chosen = drawn(self.weight, size, seed)
        return {name: np.asarray(values)[chosen] for name, values in self.population.items()}

    @cached_property
    def verdict(self) -> Verdict:
        """Whether the estimate may be used. Its first reason says that it is an approximation, and by what."""
        return judge(self)

    def to_arviz(self) -> Any:
        """ArviZ InferenceData, with label, verdict and privacy statement in its attributes."""
        attributes: dict[str, Any] = {
            "label": self.label, "privacy": str(self.privacy), "verdict": str(self.verdict), "inference_library": "sfumato",
            "epsilon": self.privacy.epsilon, "delta": self.privacy.delta, "mu": self.privacy.mu,
        }  # fmt: skip
        return quiet_arviz().from_dict(posterior=dict(self.draws), attrs=attributes)

    def summary(self) -> Any:
        """Table under its verdict: mean, sd, the 5 % and 95 % quantiles, width beside the prior's; of an unusable one nothing."""
        from sfumato.analysis.summary import of_estimate  # and pandas

        return of_estimate(self)

    def report(self, path: str | Path, *, title: str | None = None, words: Words | None = None) -> Path:
        """Write the HTML report; `title` and `words` in place of the study's own."""
        from sfumato.analysis.report import write_report

        return write_report(self, path, title=title, words=words)

    def described(self, words: Words) -> "Estimate":
        """The same estimate with the study's own words, which its report and its files then carry."""
        return replace(self, facts=msgspec.structs.replace(self.facts, words=words))

    @property
    def told(self) -> Facts:
        """What a reader must know beside the numbers."""
        return self.facts

    def save(self, path: str | Path) -> Path:
        """Write everything to one file (NumPy .npz with a JSON header; no pickles). `sfumato.load` reads it."""
        path = Path(path)
        arrays = {f"draws/{k}": v for k, v in self.draws.items()}
        arrays |= {f"population/{k}": v for k, v in self.population.items()} | {"weight": self.weight}
        header = {
            "format": FORMAT, "kind": KIND, "label": self.label, "privacy": plain_fields(self.privacy), "about": dict(self.about),
            "of_prior": dict(self.of_prior), "pilot": dict(self.pilot), "seed": self.seed, "arrays": sorted(arrays),
            "facts": self.facts.to_dict(),
        }  # fmt: skip
        with path.open("wb") as file:
            np.savez_compressed(file, header=np.array(json.dumps(header)), **arrays)  # type: ignore[arg-type]
        return path

    def __str__(self) -> str:
        return f"{self.label}\n{self.verdict}\n{self.privacy}"

    def _repr_html_(self) -> str:
        """The answer in a sentence, the verdict, the table: as much of them as may be shown."""
        from sfumato.analysis.report.answer import brief

        return brief(self)

    def __repr__(self) -> str:
        return (
            f"<Estimate of {', '.join(self.draws)}, an approximation; epsilon={self.privacy.epsilon:g}, "
            f"delta={self.privacy.delta:g}; {self.verdict.level}>"
        )


def rebuilt(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Estimate:
    """The estimate that was saved."""
    if header["format"] != FORMAT or header["arrays"] != sorted(
        arrays
    ):  # an archive checks what is in its list, not the list
        raise ValueError("the arrays are not those that were saved")

    def part(prefix: str) -> dict[str, np.ndarray]:
        return {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}

    return Estimate(
        draws=part("draws/"), label=header["label"], privacy=from_fields(header["privacy"]), population=part("population/"),
        weight=arrays["weight"], of_prior=header["of_prior"], about=header["about"], pilot=header["pilot"],
        seed=header["seed"], facts=Facts.from_dict(header.get("facts", {})),
    )  # fmt: skip


def drawn(weight: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Indices of points drawn by weight: a systematic sample, in random order."""
    rng = np.random.default_rng(seed)
    places = (np.arange(size) + rng.random()) / size * np.sum(weight)
    return rng.permutation(np.minimum(np.searchsorted(np.cumsum(weight), places, side="right"), len(weight) - 1))


def judge(estimate: Estimate) -> Verdict:
    """Judge an estimate: by how far the place was from the answer, whether the last gradient surprised, and what is only prior.

    The rule: *unusable* where the place is more than `TOO_FAR` of the answer's standard deviations off, because no score from so
    far tells of the answer by a normal law; *rough* where it is more than `FAR` off, where the last gradient contradicts the
    search for the place, where the information is mostly noise, where the noise is wider than the posterior without privacy (but
    for families with a law), where every parameter is mostly prior, or where few points carry the weight.
    """
    about, reasons = estimate.about, [estimate.label]
    target = Target.from_dict(about["target"]) if "target" in about else None
    reasons += [target.sentence] if target is not None else []
    level: Any = "good"
    off = about["off"]
    if off > TOO_FAR:
        level = "unusable"
        reasons.append(
            f"The search for the place did not arrive: the score was asked {off:.2g} standard deviations from the answer, and "
            "says nothing about so far a point. A guess= of where the parameters are would help."
        )
    objections = [
        (
            off > FAR,
            f"The score was asked {off:.2g} standard deviations from the answer: the approximation is strained.",
        ),
        (about["surprise"], "The last gradient contradicts the search for the place, by more than noise explains."),
        (about["roughness"] > ROUGH, "The released information is mostly noise, so the widths of intervals are rough."),
        (
            about["limit"] < WIDE and not about.get("law"),
            f"The budget is worth {about['limit']:.2g} draws of the posterior. Over so wide an answer the shape of the "
            "likelihood is that of made-up records, and the widths of intervals are rough.",
        ),
        (about["effective"] < FEW, "Few points carry the weight, so the ends of intervals are rough."),
        (target is not None and bool(target.uncalibrated), "" if target is None else target.uncalibrated),
    ]
    mostly = [name for name, share in estimate.of_prior.items() if share > MOSTLY_PRIOR]
    everything = len(mostly) == len(estimate.of_prior)
    if any(met for met, _ in objections) or everything:
        level = "rough" if level == "good" else level
    reasons += [words for met, words in objections if met]
    if mostly:
        which = "every parameter" if everything else ", ".join(mostly)
        reasons.append(f"The answer is mostly prior for {which}: the budget says little there.")
        reasons += [f"{about['hint']}."] if about.get("hint") else []
    return Verdict(level, tuple(reasons))
