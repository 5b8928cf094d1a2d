"""A finished (or interrupted) run: draws, the adversary's view, and the promise that covers both."""

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sfumato.errors import CheckpointError, InvalidInput, SfumatoError
from sfumato.privacy.joint import JointStatement, from_fields, plain_fields
from sfumato.privacy.statement import Statement

if TYPE_CHECKING:
    from sfumato.analysis.estimate import Estimate
    from sfumato.analysis.verdict import Verdict

FORMAT = 1


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
    plan, pilot
        What was planned (as plain values), and every release of the pilot (or the copies a bundle's start used).
    study
        Model and domain, as they were sampled; not saved to files.
    discarded
        Draws at the start of every chain that are left out, because the chains were visibly on their way
        (`sfumato.analysis.verdict.visible_transient`); the transcript has them. Mostly 0.
    """

    draws: Mapping[str, np.ndarray]
    transcript: Mapping[str, np.ndarray]
    privacy: Statement | JointStatement
    stop_reason: StopReason
    plan: Mapping[str, Any]
    pilot: Mapping[str, Any]
    coordinates: tuple[str, ...]
    seed: int
    waited_share: float = field(default=0.0)
    study: Any = field(default=None, repr=False, compare=False)
    stop_owner: str = ""
    discarded: int = 0

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
        """ArviZ summary table under its verdict: mean, sd, interval, Monte Carlo error, ESS and R-hat.

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
        arviz = quiet_arviz()
        with warnings.catch_warnings():
            # Short or single chains have no R-hat: the table shows NaN, which says it.
            warnings.simplefilter("ignore")
            table = arviz.summary(self.to_arviz(), round_to=None)
        from sfumato.analysis.summary import with_verdict

        return with_verdict(table, self.verdict)

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
        try:
            return self.noise_aware()
        except SfumatoError:
            return None

    def report(self, path: str | Path) -> Path:
        """Write the HTML report."""
        from sfumato.analysis.report import write_report

        return write_report(self, Path(path))

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
            "plan": dict(self.plan),
            "pilot": dict(self.pilot),
            "coordinates": list(self.coordinates),
            "seed": self.seed,
            "waited_share": self.waited_share,
            "stop_owner": self.stop_owner,
            "discarded": self.discarded,
        }

    def __repr__(self) -> str:
        chains = self.transcript["accepted"].shape[0]
        return (
            f"<Run {chains} x {self.iterations} draws of {', '.join(self.draws)}; epsilon={self.privacy.epsilon:g}, "
            f"delta={self.privacy.delta:g}; {self.stop_reason.value}; {self.verdict.level}>"
        )


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
        plan=header["plan"],
        pilot=header["pilot"],
        coordinates=tuple(header["coordinates"]),
        seed=header["seed"],
        waited_share=header["waited_share"],
        stop_owner=header.get("stop_owner", ""),
        discarded=header["discarded"],
    )
