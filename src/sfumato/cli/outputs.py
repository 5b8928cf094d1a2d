"""What a run or an estimate leaves behind: draws, report, statement, each in a form that others read."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sfumato.analysis.diagnostics import intervals, shown_rows
from sfumato.analysis.report import write_report
from sfumato.cli import endings
from sfumato.errors import InvalidInput

if TYPE_CHECKING:
    from sfumato.analysis.estimate import Estimate
    from sfumato.analysis.result import Run

FINISHED = ("run.npz", "estimate.npz")
"""Files that say that a folder holds something which was paid for."""


class Written(NamedTuple):
    """Paths by what they hold, and remarks about what could not be written."""

    files: dict[str, Path]
    remarks: list[str]


def write(run: "Run", folder: Path, title: str, *, finished: bool = True) -> Written:
    """Write everything; the draws first, because they were paid for.

    An interrupted run is written to ``run-partial.npz``, so that the finished one can follow. Of an unusable one, what its
    releases say all the same is in ``noise-aware.npz``.
    """
    written = _write(run.compared(), folder, title, "run", "run.npz" if finished else "run-partial.npz")
    if run.heard is not None:
        written.files["releases"] = run.heard.save(folder / "noise-aware.npz")
    if finished and (folder / "run-partial.npz").exists():
        (folder / "run-partial.npz").unlink()
    return written


def write_estimate(estimate: "Estimate", folder: Path, title: str) -> Written:
    """The same of an estimate."""
    return _write(estimate, folder, title, "estimate", "estimate.npz")


def _write(found: "Run | Estimate", folder: Path, title: str, what: str, name: str) -> Written:
    files: dict[str, Path] = {}
    remarks: list[str] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files[what] = found.save(folder / name)
        files["statement"] = folder / "statement.txt"
        files["statement"].write_text(f"{found.privacy}\n", encoding="utf-8")
        files["report"] = write_report(found, folder / "report.html", title=None if found.facts.words.title else title)
    except OSError as error:
        raise InvalidInput(
            f"the output folder {folder} cannot be written ({error.strerror}); free some space."
        ) from None
    try:
        found.to_arviz().to_netcdf(str(folder / "draws.nc"))
        files["draws"] = folder / "draws.nc"
    except Exception as error:  # the netCDF libraries are optional and raise what they like
        remarks.append(f"draws.nc was not written ({type(error).__name__}); everything is in {name} all the same.")
    return Written(files, remarks)


def as_json(run: "Run", written: Written, name: str) -> dict[str, Any]:
    """Everything a program may want to know of a run."""
    unusable = endings.of_run(run) == endings.UNUSABLE
    return {
        "ok": not unusable,
        **({"code": "unusable", "error": str(run.verdict)} if unusable else {}),
        "study": name,
        "verdict": verdict_json(run),
        "discarded": run.discarded,
        "stop_reason": run.stop_reason.name,
        "stop_owner": run.stop_owner,
        "iterations": run.iterations,
        "acceptance": run.acceptance,
        "posterior": [row._asdict() for row in shown_rows(run)],
        **({"noise_aware": _told(run.heard)} if run.heard is not None else {}),
        "plan": dict(run.planned),
        "privacy": run.privacy.to_dict(),
        "statement": str(run.privacy),
        "files": {what: str(path) for what, path in written.files.items()},
        "remarks": written.remarks,
    }


def estimate_json(estimate: "Estimate", written: Written, name: str) -> dict[str, Any]:
    """Everything a program may want to know of an estimate."""
    usable = estimate.verdict.usable
    return {
        "ok": usable,
        **({} if usable else {"code": "unusable", "error": str(estimate.verdict)}),
        "kind": "estimate",
        "study": name,
        **_told(estimate),
        "privacy": estimate.privacy.to_dict(),
        "statement": str(estimate.privacy),
        "files": {what: str(path) for what, path in written.files.items()},
        "remarks": written.remarks,
    }


def _told(estimate: "Estimate") -> dict[str, Any]:
    """What an estimate says, and what it is."""
    return {
        "label": estimate.label,
        "verdict": verdict_json(estimate),
        "posterior": [row._asdict() for row in intervals(estimate)],
        "about": dict(estimate.about),
        "of_prior": dict(estimate.of_prior),
    }


def verdict_json(run: "Run | Estimate") -> dict[str, Any]:
    """The verdict, for programs."""
    return {"level": run.verdict.level, "reasons": list(run.verdict.reasons)}
