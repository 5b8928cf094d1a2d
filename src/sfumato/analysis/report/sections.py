"""Sections that the pages of a run and of an estimate share."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from sfumato.analysis.report import html, words

if TYPE_CHECKING:
    from sfumato.analysis.estimate import Estimate
    from sfumato.analysis.result import Run

GRADES = {"good": "good", "rough": "fair", "unusable": "bad"}


def banner(run: "Run | Estimate") -> str:
    """The verdict, before anything else is said."""
    headings = {"good": "Good", "rough": "Rough", "unusable": "Do not use these draws"}
    level = run.verdict.level
    return (
        f'<section class="verdict {GRADES[level]}" role="note"><h2>{headings[level]}</h2>'
        f"{html.paragraphs(run.verdict.reasons)}</section>"
    )


def promise(run: "Run | Estimate") -> str:
    """What is promised to the people behind the records."""
    text = html.paragraphs(words.promise(run.privacy))
    full = f'<h3>For the record</h3><p class="small">{escape(str(run.privacy))}</p>'
    return html.section("The promise", f'<div class="promise">{text}</div>{full}')


def pilot(run: "Run | Estimate") -> str:
    """What the pilot released."""
    releases = run.pilot.get("releases", [])
    if not releases:
        return ""
    lines = [
        (str(i), escape(str(r["what"])), str(len(r["answer"])), f"{r['sigma']:.4g}", _values(r["answer"]))
        for i, r in enumerate(releases, 1)
    ]
    text = (
        "A few noisy answers, paid from the same budget, found where to start and how far to step. They are "
        "released values too; the draws do not depend on their being accurate."
    )
    return html.section(
        "The pilot", f"<p>{text}</p>{html.table(('', 'release', 'numbers', 'noise sd', 'released values'), lines)}"
    )


def _values(answer: Sequence[Any]) -> str:
    shown = ", ".join(f"{float(v):.3g}" for v in answer[:6])
    return escape((shown + (", …" if len(answer) > 6 else "")).replace("-", "\N{MINUS SIGN}"))
