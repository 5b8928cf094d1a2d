"""Building blocks of a page."""

import math
from collections.abc import Iterable, Sequence
from html import escape

from sfumato.analysis.report.style import CSS
from sfumato.tools.version import __version__

UNKNOWN = "?"
"""Shown where a run is too short to tell."""
PICTURED = 24
"""Parameters with plots of their own; the table has all of them."""


def document(title: str, body: Sequence[str], footer: str) -> str:
    """The whole page around its parts: one file, no script, nothing fetched."""
    header, contents, *sections = (part for part in body if part)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<meta name="generator" content="sfumato {__version__}">\n'
        f"<title>{escape(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
        f'<a class="skip" href="#answer">Skip to the answer</a>\n{header}\n{contents}\n<main>\n'
        + "\n".join(sections)
        + f"\n</main>\n{footer}\n</body>\n</html>\n"
    )


def section(key: str, heading: str, body: str, *, hidden: bool = False) -> str:
    """A section under its heading; one that says itself what it is has a heading for screen readers alone."""
    kind = ' class="hide"' if hidden else ""
    top = f'<h2 id="{key}-heading"{kind}>{escape(heading)}</h2>'
    return f'<section id="{key}" aria-labelledby="{key}-heading">{top}{body}</section>'


def folded(heading: str, body: str) -> str:
    """What few people read, behind its heading; print unfolds it."""
    return f"<details><summary>{escape(heading)}</summary>{body}</details>"


def paragraphs(texts: Iterable[str]) -> str:
    """Each text as a paragraph."""
    return "".join(f"<p>{escape(text)}</p>" for text in texts)


def table(heads: Sequence[str], lines: Sequence[Sequence[str]], *, words: bool = False) -> str:
    """Build a table whose lines become cards in a narrow window; cells come escaped.

    `words`: its cells are text that may be broken, to the left; else they are numbers, to the right.
    """
    top = "".join(f'<th scope="col" role="columnheader">{escape(head)}</th>' for head in heads)

    def row(line: Sequence[str]) -> str:
        first = f'<th scope="row" role="rowheader">{line[0]}</th>'
        pairs = zip(heads[1:], line[1:], strict=True)
        cells = "".join(f'<td role="cell" data-label="{escape(head)}">{cell}</td>' for head, cell in pairs)
        return f'<tr role="row">{first}{cells}</tr>'

    rows = "".join(map(row, lines))
    kind = ' class="words"' if words else ""
    return (
        f'<table role="table"{kind}><thead role="rowgroup"><tr role="row">{top}</tr></thead>'
        f'<tbody role="rowgroup">{rows}</tbody></table>'
    )


def facts(facts: Sequence[tuple[str, str]]) -> str:
    """Names and values, as a list of facts."""
    return '<dl class="list">' + "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in facts) + "</dl>"


def grid(figures: Sequence[tuple[str, str]]) -> str:
    """Figures side by side, each with its caption."""
    cells = "".join(f"<figure>{plot}<figcaption>{escape(name)}</figcaption></figure>" for name, plot in figures)
    return f'<div class="grid">{cells}</div>'


def number(value: float, sd: float, *, coarse: bool = False) -> str:
    """As many decimals as the sd justifies: two digits of it; `coarse`: so many that rounding moves it by a sixth of the sd."""
    if not math.isfinite(value):
        return UNKNOWN
    known = sd > 0 and math.isfinite(sd)
    places = 3 if not known else math.ceil(-math.log10(sd / 3)) if coarse else 1 - math.floor(math.log10(sd))
    text = f"{value:,.{min(max(places, 0), 10)}f}"
    return (text.lstrip("-") if not float(text.replace(",", "")) else text).replace("-", "\N{MINUS SIGN}")
