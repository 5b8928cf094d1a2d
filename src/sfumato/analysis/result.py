"""A finished (or interrupted) run: draws, the adversary's view, and the promise that covers both."""

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from sfumato.analysis.facts import Beside, Facts, with_study
from sfumato.analysis.wording import Words
from sfumato.errors import CheckpointError, InvalidInput, SfumatoError
from sfumato.privacy.joint import JointStatement, from_fields, plain_fields
from sfumato.privacy.statement import Statement

if TYPE_CHECKING:
    from sfumato.analysis.estimate import Estimate
    from sfumato.analysis.verdict import Verdict
    from sfumato.planner import Plan

FORMAT = 1
COMPARED_WITH = ("slope", "prior_share", "trust")
"""Beside the plan itself, what `Run.planned` has: public numbers that the chain's answers are compared with."""


class StopReason(StrEnum):
    """Why a run ended. Each is an ordinary ending, and the guarantee is the same for all of them."""

    FINISHED = "finished"
    BUDGET_SPENT = "budget spent"
    INTERRUPTED = "interrupted"
    OWNER_LOST = "owner lost"
    NOT_MIXING = "not mixing"


@dataclass(frozen=True)
class Run:
    """What `sfumato.sample` gives back. Everything in it is released: it may be published as it stands.

    Attributes
    ----------
    draws
        {site: array (chain, draw, ...)} in each site's own support, without the first `discarded` of every chain.
    transcript
        theta, theta_prop (unconstrained), d_n_noisy, sigma, sensitivity, mu_squared (what the step cost), accepted: arrays
        (chain, draw, ...). A step that was not asked (outside the prior's support) has d_n_noisy = NaN and sensitivity 0.
        Langevin in a family's natural parameter: theta is that parameter, t_noisy the noisy whitened statistic of each
        proposal, d_n_noisy the noisy correction. Over nodes that is made from copy_noisy, a second noisy statistic. Statistics
        that were asked for ahead, of steps that were never taken, are not in it; the statement counts them.
    privacy
        The statement.
    stop_reason
        FINISHED, BUDGET_SPENT, INTERRUPTED, OWNER_LOST, or NOT_MIXING: the chain stopped itself, and budget is left.
    stop_owner
        Of several owners, the one whose budget ended or who did not answer any more; else empty.
    planned, pilot
        What was planned, as plain values, with what the chain was compared with; and every release of the pilot (or the copies a
        bundle's start used). `plan` is the same as a `Plan`.
    study
        Model and domain, as they were sampled; not saved to files.
    discarded
        Draws at the start of every chain that are left out, because the chains were visibly on their way
        (`sfumato.analysis.verdict.visible_transient`); the transcript has them. Mostly 0.
    facts
        What a reader must know beside the numbers, as far as it costs nothing to say; `told` is all of it.
    """

    draws: Mapping[str, np.ndarray]
    transcript: Mapping[str, np.ndarray]
    privacy: Statement | JointStatement
    stop_reason: StopReason
    planned: Mapping[str, Any]
    pilot: Mapping[str, Any]
    coordinates: tuple[str, ...]
    seed: int
    waited_share: float = field(default=0.0)
    study: Any = field(default=None, repr=False, compare=False)
    stop_owner: str = ""
    discarded: int = 0
    facts: Facts = field(default=Facts(), repr=False, compare=False)

    @cached_property
    def plan(self) -> "Plan":
        """The plan after the pilot: what the chain was made for."""
        from sfumato.planner import Plan

        return Plan.read({name: value for name, value in self.planned.items() if name not in COMPARED_WITH})

    @cached_property
    def told(self) -> Facts:
        """Everything a reader must know beside the numbers: words, model, priors, domain."""
        if self.study is None or self.facts.model:
            return self.facts
        return with_study(self.facts, self.study)

    def described(self, words: Words) -> "Run":
        """The same run with the study's own words, which its report and its files then carry."""
        return replace(self, facts=msgspec.structs.replace(self.facts, words=words))

    def compared(self) -> "Run":
        """The same run with what its releases say by themselves, for its report, where that is told in a moment.

        Not of an unusable run (`heard` is that), nor where it is a chain of its own: a family's law, which `noise_aware` samples.
        """
        from sfumato.analysis.from_releases import has_law

        known = self.study is None or self.facts.beside is not None or not self.verdict.usable
        if known or (self.study.family is not None and has_law(self.study.family)):
            return self
        found = self._beside()
        return (
            self
            if found is None
            else replace(self, facts=msgspec.structs.replace(self.facts, beside=_beside_of(found)))
        )

    def _kept_facts(self) -> Facts:
        """What is saved of them: draws were paid for, and are kept whatever else fails."""
        try:
            return self.told
        except Exception:
            return self.facts

    def _beside(self) -> "Estimate | None":
        """What the releases say by themselves, where that can be told."""
        try:
            return self.noise_aware()
        except SfumatoError:
            return None

    @cached_property
    def verdict(self) -> "Verdict":
        """Whether the draws may be used: `.level` is "good", "rough" or "unusable", `.reasons` says why."""
        from sfumato.analysis.verdict import judge

        return judge(self)

    @property
    def iterations(self) -> int:
        """Steps per chain."""
        return int(self.transcript["accepted"].shape[1])

    @property
    def acceptance(self) -> float:
        """Share of accepted steps."""
        return float(np.mean(self.transcript["accepted"])) if self.iterations else float("nan")

    def to_arviz(self) -> Any:
        """ArviZ InferenceData: posterior, sample_stats, and the statement in its attributes."""
        arviz = quiet_arviz()
        stats = {name: self.transcript[name] for name in ("sigma", "sensitivity", "accepted", "d_n_noisy")}
        stats["spent"] = np.cumsum(self.transcript["mu_squared"], axis=1)
        stats = {name: values[:, self.discarded :] for name, values in stats.items()}
        attributes: dict[str, Any] = {
            "privacy": str(self.privacy),
            "stop_reason": self.stop_reason.value,
            "verdict": str(self.verdict),
            "inference_library": "sfumato",
            "epsilon": self.privacy.epsilon,
            "delta": self.privacy.delta,
            "mu": self.privacy.mu,
        }
        return arviz.from_dict(posterior=dict(self.draws), sample_stats=stats, attrs=attributes)

    def summary(self) -> Any:
        """Table under its verdict: mean, sd, the 5 % and 95 % quantiles, Monte Carlo error, ESS and R-hat, as ArviZ calls them.

        Of a run whose verdict is "unusable" only ESS and R-hat are shown, the rest is NaN: the numbers would mean nothing.

        Raises
        ------
        InvalidInput
            The run ended before its first draw.
        """
        if not self.iterations:
            raise InvalidInput(
                f"a summary needs draws, and this run has none ({self.stop_reason.value}); resume it, or start one with a "
                "larger epsilon."
            )
        from sfumato.analysis.summary import of_run

        return of_run(self)

    def noise_aware(
        self, model: Any = None, *, domain: Mapping[str, Any] | None = None, draws: int = 1000, seed: int = 0
    ) -> "Estimate":
        """The posterior given everything that was released, for any model: an approximation, which its first line says.

        Calibrated where the budget is too small for the chain to mix; not independent evidence to pool with the chain. A run
        that was loaded from a file needs its `model` (or family) and `domain` again. See `sfumato.analysis.from_releases`.
        """
        from sfumato.analysis.from_releases import from_run, study_of

        return from_run(self, study_of(self, model, domain), draws=draws, seed=seed)

    @cached_property
    def heard(self) -> "Estimate | None":
        """Of an unusable run, what its releases say all the same, where that can be told; None of a run that may be used."""
        if self.verdict.usable or self.study is None:
            return None
        return self._beside()

    def report(self, path: str | Path, *, title: str | None = None, words: Words | None = None) -> Path:
        """Write the HTML report; `title` and `words` in place of the study's own."""
        from sfumato.analysis.report import write_report

        return write_report(self.compared(), Path(path), title=title, words=words)

    def save(self, path: str | Path) -> Path:
        """Write everything to one file (NumPy .npz with a JSON header; no pickles)."""
        path = Path(path)
        arrays = {f"draws/{k}": v for k, v in self.draws.items()} | {
            f"transcript/{k}": v for k, v in self.transcript.items()
        }
        with path.open("wb") as file:
            header = self._header() | {"arrays": sorted(arrays)}
            np.savez_compressed(file, header=np.array(json.dumps(header)), **arrays)  # type: ignore[arg-type]
        return path

    def _header(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "privacy": plain_fields(self.privacy),
            "stop_reason": self.stop_reason.name,
            "plan": dict(self.planned),
            "pilot": dict(self.pilot),
            "coordinates": list(self.coordinates),
            "seed": self.seed,
            "waited_share": self.waited_share,
            "stop_owner": self.stop_owner,
            "discarded": self.discarded,
            "facts": self._kept_facts().to_dict(),
        }

    def _repr_html_(self) -> str:
        """The answer in a sentence, the verdict, the table: as much of them as may be shown."""
        from sfumato.analysis.report.answer import brief

        return brief(self)

    def __repr__(self) -> str:
        chains = self.transcript["accepted"].shape[0]
        return (
            f"<Run {chains} x {self.iterations} draws of {', '.join(self.draws)}; epsilon={self.privacy.epsilon:g}, "
            f"delta={self.privacy.delta:g}; {self.stop_reason.value}; {self.verdict.level}>"
        )


def _beside_of(estimate: "Estimate") -> Beside:
    from sfumato.analysis.diagnostics import intervals

    rows = [(row.name, row.mean, row.sd, row.low, row.high) for row in intervals(estimate)]
    return Beside(estimate.label, estimate.verdict.level, rows)


def quiet_arviz() -> Any:
    """ArviZ, without the announcement it prints once a day on import: it is about releases that we do not use."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"\s*ArviZ is undergoing a major refactor", FutureWarning)
        import arviz
    return arviz


def load(path: str | Path) -> Any:
    """Read a run that `Run.save` wrote, or an estimate that `Estimate.save` wrote.

    Raises
    ------
    InvalidInput
        There is no file.
    CheckpointError
        It is no saved run, it is damaged, or another version wrote it.
    """
    path = Path(path)
    if not path.exists():
        raise InvalidInput(f"no saved run at {path}; give a file that Run.save wrote.")
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            header = json.loads(str(file["header"]))
            arrays = {name: file[name] for name in file.files if name != "header"}
        if header.get("kind") == "estimate":
            from sfumato.analysis.estimate import rebuilt

            return rebuilt(header, arrays)
        found = header["format"]
        run = _rebuilt(header, arrays) if found == FORMAT else None
    except Exception as error:  # a damaged file makes its readers stumble in many ways
        raise CheckpointError(
            f"{path.name} is not a run that Run.save wrote, or it is damaged ({type(error).__name__}); restore it from a copy."
        ) from None
    if run is None:
        raise CheckpointError(f"{path.name} has format {found!r}, this version reads {FORMAT}.")
    return run


def _rebuilt(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Run:
    if header["arrays"] != sorted(arrays):  # an archive checks what is in its list, not the list
        raise ValueError("the arrays are not those that were saved")
    return Run(
        draws={k.removeprefix("draws/"): v for k, v in arrays.items() if k.startswith("draws/")},
        transcript={k.removeprefix("transcript/"): v for k, v in arrays.items() if k.startswith("transcript/")},
        privacy=from_fields(header["privacy"]),
        stop_reason=StopReason[header["stop_reason"]],
        planned=header["plan"],
        pilot=header["pilot"],
        coordinates=tuple(header["coordinates"]),
        seed=header["seed"],
        waited_share=header["waited_share"],
        stop_owner=header.get("stop_owner", ""),
        discarded=header["discarded"],
        facts=Facts.from_dict(header.get("facts", {})),
    )
