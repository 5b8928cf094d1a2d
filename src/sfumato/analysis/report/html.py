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


def document(title: str, body: Sequence[str]) -> str:
    """The whole page around its parts: one file, no script, nothing fetched."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<meta name="generator" content="sfumato {__version__}">\n'
        f"<title>{escape(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def section(heading: str, body: str) -> str:
    """A section under its heading."""
    return f"<section><h2>{escape(heading)}</h2>{body}</section>"


def paragraphs(texts: Iterable[str]) -> str:
    """Each text as a paragraph."""
    return "".join(f"<p>{escape(text)}</p>" for text in texts)


def table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Build a table that scrolls sideways in a narrow window; cells come escaped."""
    top = "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    rows = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in line) + "</tr>" for line in lines)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{rows}</tbody></table></div>'


def facts(facts: Sequence[tuple[str, str]]) -> str:
    """Names and values, as a list of facts."""
    return '<dl class="list">' + "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in facts) + "</dl>"


def grid(figures: Sequence[tuple[str, str]]) -> str:
    """Figures side by side, each with its caption."""
    cells = "".join(f"<figure><figcaption>{escape(name)}</figcaption>{plot}</figure>" for name, plot in figures)
    return f'<div class="grid">{cells}</div>'


def number(value: float, sd: float) -> str:
    """As many decimals as the sd justifies: two digits of it."""
    if not math.isfinite(value):
        return UNKNOWN
    decimals = 3 if not sd > 0 or not math.isfinite(sd) else min(max(1 - math.floor(math.log10(sd)), 0), 8)
    return f"{value:,.{decimals}f}".replace("-", "\N{MINUS SIGN}")
