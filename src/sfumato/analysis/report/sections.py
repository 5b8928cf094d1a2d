"""Sections that the pages of a run and of an estimate share."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from sfumato.analysis.report import html, words

if TYPE_CHECKING:
    from sfumato.analysis.estimate import Estimate
    from sfumato.analysis.result import Run

GRADES = {"good": "good", "rough": "fair", "unusable": "bad"}


def head(title: str, facts: Sequence[tuple[str, str]], remark: str = "") -> str:
    """The page's own heading, with a few facts; `remark` stands before everything else."""
    cells = "".join(f"<div><dt>{label}</dt><dd>{value}</dd></div>" for label, value in facts)
    said = f"<p>{escape(remark)}</p>" if remark else ""
    return f'<header><p class="brand">sfumato</p><h1>{escape(title)}</h1>{said}<dl class="facts">{cells}</dl></header>'


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


def pilot(run: "Run") -> str:
    """What the pilot released."""
    text = (
        "A few noisy answers, paid from the same budget, found where to start and how far to step. They are "
        "released values too; the draws do not depend on their being accurate."
    )
    return _released(run, "The pilot", text)


def releases(estimate: "Estimate") -> str:
    """Everything that an estimate was computed from."""
    text = (
        "All noisy answers, in order. The last gradient and the last information are what the intervals rest on, with the noise "
        "that is stated here; those before found the place where they were asked."
    )
    return _released(estimate, "What was released", text)


def _released(run: "Run | Estimate", heading: str, text: str) -> str:
    found = run.pilot.get("releases", [])
    if not found:
        return ""
    lines = [
        (str(i), escape(str(r["what"])), str(len(r["answer"])), f"{r['sigma']:.4g}", _values(r["answer"]))
        for i, r in enumerate(found, 1)
    ]
    shown = html.table(("", "release", "numbers", "noise sd", "released values"), lines)
    return html.section(heading, f"<p>{text}</p>{shown}")


def _values(answer: Sequence[Any]) -> str:
    shown = ", ".join(f"{float(v):.3g}" for v in answer[:6])
    return escape((shown + (", …" if len(answer) > 6 else "")).replace("-", "\N{MINUS SIGN}"))
