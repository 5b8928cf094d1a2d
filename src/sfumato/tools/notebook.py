"""What a notebook shows of an object: a heading, facts, a table, a paragraph. All text is escaped."""

from collections.abc import Sequence
from html import escape

MARKS = {"good": "#2f6b3c", "rough": "#805a00", "unusable": "#a8261c"}
_CELL = "text-align:left;padding:.15em .8em .15em 0;vertical-align:top"


def card(
    heading: str, rows: Sequence[tuple[str, str]] = (), *, text: str = "", mark: str = "", inner: Sequence[str] = ()
) -> str:
    """A card: `rows` are facts, `text` is a paragraph, `mark` a verdict's level, `inner` is HTML from here."""
    colour = MARKS.get(mark, "currentColor")
    top = f'<div style="font-weight:600">{escape(heading)}</div>'
    facts = "".join(
        f'<tr><th scope="row" style="{_CELL};font-weight:400;opacity:.75">{escape(name)}</th><td '
        f'style="{_CELL}">{escape(value)}</td></tr>'
        for name, value in rows
    )
    shown = f'<table style="margin:.2em 0">{facts}</table>' if facts else ""
    said = f'<p style="margin:.3em 0;max-width:46em">{escape(text)}</p>' if text else ""
    return f'<div style="border-left:3px solid {colour};padding:.2em .8em;margin:.3em 0">{top}{said}{shown}{"".join(inner)}</div>'


def table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table of text."""
    top = "".join(f'<th scope="col" style="{_CELL};opacity:.75">{escape(head)}</th>' for head in heads)
    rows = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{escape(cell)}</td>' for cell in line) + "</tr>" for line in lines
    )
    return f'<table style="margin:.2em 0"><thead><tr>{top}</tr></thead><tbody>{rows}</tbody></table>'


def folded(heading: str, text: str) -> str:
    """A paragraph behind its heading."""
    return f'<details><summary>{escape(heading)}</summary><p style="max-width:46em">{escape(text)}</p></details>'
