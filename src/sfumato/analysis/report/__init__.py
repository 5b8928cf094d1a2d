"""The HTML report: one self-contained page about a run or an estimate, for people who did not run it."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sfumato.analysis.estimate import Estimate
    from sfumato.analysis.result import Run


def write_report(run: "Run | Estimate", path: str | Path, *, title: str | None = None) -> Path:
    """Write the report of a run or an estimate.

    Privacy: everything on the page is computed from the run alone, so from values that were released; the page adds
    nothing to what the run gave away.

    Parameters
    ----------
    run
        A finished or interrupted run, or an estimate.
    path
        The HTML file to write; its folder must exist.
    title
        Heading of the page.

    Returns
    -------
    Path
        The file.
    """
    from sfumato.analysis.estimate import Estimate
    from sfumato.analysis.report import estimate, page

    path = Path(path)
    if isinstance(run, Estimate):
        text = estimate.page(run, title or "A private estimate")
    else:
        text = page.page(run, title or "A private posterior")
    path.write_text(text, encoding="utf-8")
    return path


__all__ = ["write_report"]
