"""What a run leaves behind: draws, report, statement, each in a form that others read."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sfumato.analysis.diagnostics import shown_rows
from sfumato.analysis.report import write_report
from sfumato.cli import endings
from sfumato.errors import InvalidInput

if TYPE_CHECKING:
    from sfumato.analysis.result import Run


class Written(NamedTuple):
    """Paths by what they hold, and remarks about what could not be written."""

    files: dict[str, Path]
    remarks: list[str]


def write(run: "Run", folder: Path, title: str, *, finished: bool = True) -> Written:
    """Write everything; the draws first, because they were paid for.

    An interrupted run is written to ``run-partial.npz``, so that the finished one can follow.
    """
    files: dict[str, Path] = {}
    remarks: list[str] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files["run"] = run.save(folder / ("run.npz" if finished else "run-partial.npz"))
        files["statement"] = folder / "statement.txt"
        files["statement"].write_text(f"{run.privacy}\n", encoding="utf-8")
        files["report"] = write_report(run, folder / "report.html", title=title)
    except OSError as error:
        raise InvalidInput(
            f"the output folder {folder} cannot be written ({error.strerror}); free some space."
        ) from None
    try:
        run.to_arviz().to_netcdf(str(folder / "draws.nc"))
        files["draws"] = folder / "draws.nc"
    except Exception as error:  # the netCDF libraries are optional and raise what they like
        remarks.append(f"draws.nc was not written ({type(error).__name__}); everything is in run.npz all the same.")
    if finished and (folder / "run-partial.npz").exists():
        (folder / "run-partial.npz").unlink()
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
        "plan": dict(run.plan),
        "privacy": run.privacy.to_dict(),
        "statement": str(run.privacy),
        "files": {what: str(path) for what, path in written.files.items()},
        "remarks": written.remarks,
    }


def verdict_json(run: "Run") -> dict[str, Any]:
    """The verdict, for programs."""
    return {"level": run.verdict.level, "reasons": list(run.verdict.reasons)}
