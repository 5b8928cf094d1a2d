"""The page: answer, how sure, promise, facts, record. All text is escaped; nothing is fetched from anywhere; no script runs."""

from html import escape
from typing import TYPE_CHECKING

from sfumato.analysis.estimate import Estimate
from sfumato.analysis.facts import Facts
from sfumato.analysis.report import answer, html, record, reviewer, sure, words
from sfumato.analysis.wording import Words
from sfumato.tools.version import __version__

if TYPE_CHECKING:
    from sfumato.analysis.result import Run

GRADES = {"good": "good", "rough": "fair", "unusable": "bad"}
CONTENTS = (
    ("answer", "Answer"),
    ("sure", "How sure"),
    ("promise", "The promise"),
    ("facts", "For the reviewer"),
    ("record", "For the record"),
)


def page(run: "Run | Estimate", said: Words) -> str:
    """Return the whole page of a run or an estimate."""
    facts = run.told
    heading = (
        said.question or said.title or ("A private estimate" if isinstance(run, Estimate) else "A private posterior")
    )
    if isinstance(run, Estimate):
        rest = [
            sure.of_estimate(run, facts),
            promise(run),
            reviewer.of_estimate(run, said, facts),
            record.of_estimate(run),
        ]
    else:
        rest = [sure.of_run(run, facts), promise(run), reviewer.of_run(run, said, facts), record.of_run(run)]
    footer = f'<footer><p class="small">Made by sfumato {__version__}. All of this page is released.</p></footer>'
    return html.document(
        said.title or heading, [_header(heading, said), contents(), _answer(run, said, facts), *rest], footer
    )


def _header(heading: str, said: Words) -> str:
    over = said.title if said.question and said.title and said.title != said.question else ""
    brand = f'<p class="brand">sfumato{f" · {escape(over)}" if over else ""}</p>'
    return f"<header>{brand}<h1>{escape(heading)}</h1></header>"


def contents() -> str:
    """The parts of the page, as links."""
    links = "".join(f'<li><a href="#{key}">{name}</a></li>' for key, name in CONTENTS)
    return f'<nav aria-label="Contents"><ul>{links}</ul></nav>'


def _answer(run: "Run | Estimate", said: Words, facts: Facts) -> str:
    kind = "estimate" if isinstance(run, Estimate) else "run"
    usable = run.verdict.usable
    rows = answer.shown_parameters(run, said, facts) if usable else []
    text = f'<p class="lead">{escape(answer.sentence(rows, said, run.verdict.level, kind))}</p>' if usable else ""
    parts = [text, verdict(run), answer.forest(rows), _heard(run, said, facts), _glance(run)]
    return html.section("answer", "The answer", "".join(parts), hidden=True)


def verdict(run: "Run | Estimate") -> str:
    """The verdict in a line; of what must not be used, in a banner with all reasons."""
    level, reasons = run.verdict.level, run.verdict.reasons
    if level == "unusable":
        body = html.paragraphs([answer.NOTHING, *reasons])
        what = "this estimate" if isinstance(run, Estimate) else "these draws"
        return f'<div class="verdict bad" role="alert"><h3>Do not use {what}</h3>{body}</div>'
    label = f" {escape(run.label)}" if isinstance(run, Estimate) else f" {escape(reasons[0])}"
    return f'<p class="verdict {GRADES[level]}"><strong>{level.capitalize()}.</strong>{label} <a href="#sure">How sure?</a></p>'


def _heard(run: "Run | Estimate", said: Words, facts: Facts) -> str:
    """Of an unusable run, what its releases say all the same."""
    if isinstance(run, Estimate) or run.heard is None:
        return ""
    rows = answer.shown_parameters(run.heard, said, facts) if run.heard.verdict.usable else []
    text = answer.sentence(rows, said, run.heard.verdict.level, "estimate")
    reasons = html.paragraphs([run.heard.label, *run.heard.verdict.reasons[1:]])
    return f"<h3>What the releases say all the same</h3><p>{escape(text)}</p>{reasons}{answer.forest(rows)}"


def _glance(run: "Run | Estimate") -> str:
    privacy = run.privacy
    facts = [("records", f"{privacy.n:,}"), ("epsilon", f"{privacy.epsilon:g}"), ("delta", f"{privacy.delta:g}")]
    if isinstance(run, Estimate):
        facts.append(("kind", "estimate"))
    else:
        facts.append(("draws", f"{run.transcript['accepted'].shape[0]} × {run.iterations:,}"))
    return (
        '<dl class="glance">'
        + "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)
        + "</dl>"
    )


def promise(run: "Run | Estimate") -> str:
    """What is promised to the people behind the records."""
    text = html.paragraphs(words.promise(run.privacy))
    return html.section("promise", "The promise", f'<div class="promise">{text}</div>')
