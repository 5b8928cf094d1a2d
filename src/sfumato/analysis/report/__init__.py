"""The HTML report: one self-contained page about a run or an estimate, for people who did not run it."""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sfumato.analysis.wording import Words

if TYPE_CHECKING:
    from sfumato.analysis.estimate import Estimate
    from sfumato.analysis.result import Run


def write_report(
    run: "Run | Estimate", path: str | Path, *, title: str | None = None, words: Words | None = None
) -> Path:
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
        Heading of the page, in place of the study's question and name.
    words
        The study in its own words; those that the run carries by default.

    Returns
    -------
    Path
        The file.
    """
    from sfumato.analysis.report import page

    path, words = Path(path), run.facts.words if words is None else words
    if title is not None:
        words = msgspec.structs.replace(words, title=title, question="")
    path.write_text(page.page(run, words), encoding="utf-8")
    return path


__all__ = ["write_report"]
