"""The answer first: a sentence in the study's own words, and every parameter in one picture beside its prior."""

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sfumato.analysis.diagnostics import INTERVAL, series
from sfumato.analysis.facts import Facts, shown
from sfumato.analysis.report import html, svg
from sfumato.analysis.wording import Label, Words
from sfumato.tools import notebook

if TYPE_CHECKING:
    from sfumato.analysis.estimate import Estimate
    from sfumato.analysis.result import Run

NOTHING = "No answer: these draws must not be used. Intervals are not shown, because they would mislead."
_PERCENT = "{}\N{NO-BREAK SPACE}%"
CLEAR = 0.99
"""Share of the draws on one side of no effect from which on a sentence says so."""
_TOLD_APART = 0.004  # of a common axis: a shorter interval would be a speck on it
RATIOS = (0.001, 0.01, 0.1, 0.2, 0.5, 1, 2, 5, 10, 100, 1000)
"""Marks of a logarithmic axis."""
_CLOSE = 3.0  # per cent: a mark so near an end would stick out
_BEYOND = 0.25  # margin of an axis, as a share of what it shows


class Shown(NamedTuple):
    """A parameter as a reader sees it, on the scale that the study chose; nothing is NaN.

    `above`: share of the draws above no effect, where the scale has such a place (a ratio of 1).
    """

    name: str
    called: str
    label: Label
    mean: float
    sd: float
    low: float
    high: float
    prior: tuple[float, float] | None
    above: float | None

    @property
    def unit(self) -> str:
        """Its unit, with a space before it."""
        unit = self.label.unit or ("%" if self.label.scale in ("percent", "expit") else "")
        return f"\N{NO-BREAK SPACE}{unit}" if unit else ""

    def said(self, value: float) -> str:
        """A value with as many decimals as its sd justifies."""
        return html.number(value, self.sd, coarse=True)


def shown_parameters(run: "Run | Estimate", words: Words, facts: Facts) -> list[Shown]:
    """Every parameter of a usable run that has draws, as a reader sees it."""
    found = []
    for name, draws in series(run).items():
        label = words.label(name)
        values = shown(np.asarray(draws), label.scale)
        if not values.size or not np.all(np.isfinite(values)):
            continue
        low, high = np.quantile(values, INTERVAL)
        above = float(np.mean(values > 1)) if label.scale == "exp" else None
        prior = _shown_prior(facts, name, label)
        spread = float(values.std()) if np.ptp(values) > 0 else 0.0
        called, mean = words.called(name), float(values.mean())
        found.append(Shown(name, called, label, mean, spread, float(low), float(high), prior, above))
    return found


def _shown_prior(facts: Facts, name: str, label: Label) -> tuple[float, float] | None:
    """The ends of the prior's interval on the scale on which the parameter is shown."""
    if name not in facts.prior:
        return None
    low, _, high = shown(np.array(facts.prior[name]), label.scale)
    return float(low), float(high)


def sentence(rows: Sequence[Shown], words: Words, level: str, kind: str) -> str:
    """The answer in words, about the parameter that the study named, or the first."""
    if level == "unusable":
        return NOTHING
    if not rows:
        return "There is no draw to answer with."
    row = next((row for row in rows if words.answer in (row.name, row.called)), rows[0])
    about = "about" if level == "good" else "roughly"
    called = row.called if row.label.label else f"The parameter {row.called}"
    given = "" if kind == "run" else ", given what was released,"
    text = (
        f"{called[:1].upper()}{called[1:]} is {about} {row.said(row.mean)}{row.unit}: with a probability of "
        f"{_PERCENT.format(90)} it "
        f"lies{given} between {row.said(row.low)} and {row.said(row.high)}{row.unit}."
    )
    side = _side(row)
    others = len(rows) - 1
    more = f" {_count(others)} below." if others else ""
    return f"{text}{side}{more}"


def _side(row: Shown) -> str:
    if row.above is None or min(row.above, 1 - row.above) > 1 - CLEAR:
        return ""
    side = "above" if row.above > 0.5 else "below"
    return f" A ratio of 1 would be no difference; more than {_PERCENT.format(99)} of the draws are {side} it."


def _count(others: int) -> str:
    return "One more parameter is" if others == 1 else f"{others} more parameters are"


# -- the picture --------------------------------------------------------------------------------------------------------------


def forest(rows: Sequence[Shown]) -> str:
    """Every parameter: a dot for the mean, a bar for the 90 % interval, a pale band for the prior's."""
    drawn = list(rows[: html.PICTURED])
    if not drawn:
        return ""
    groups = "".join(_group(group) for group in _groups(drawn))
    known = any(row.prior is not None for row in drawn)
    prior = " The pale band is the prior: what was believed before; an arrow says that it goes on." if known else ""
    rest = len(rows) - len(drawn)
    more = f" {rest} further parameters are in the tables only." if rest else ""
    ends = f"{_PERCENT.format(5)} to {_PERCENT.format(95)} quantile"
    legend = f"The dot is the mean, the bar the {_PERCENT.format(90)} interval ({ends}).{prior}{more}"
    picture = f'<div class="forest" role="group" aria-label="All parameters beside the prior">{groups}</div>'
    return f'{picture}<p class="small">{legend}</p>'


def _groups(rows: Sequence[Shown]) -> Iterator[list[Shown]]:
    """Parameters that share an axis: one scale and unit, and no interval too short to be seen on it."""
    by_unit: dict[tuple[str, str], list[Shown]] = {}
    for row in rows:
        by_unit.setdefault((row.label.scale, row.unit), []).append(row)
    for group in by_unit.values():
        low, high = _axis(group)
        apart = group[0].label.scale == "exp" or all(
            _place(row.high, row) - _place(row.low, row) >= _TOLD_APART * (high - low) for row in group
        )
        yield from [group] if apart else [[row] for row in group]


def _place(value: float, row: Shown) -> float:
    """Where a value lies on an axis: ratios lie on a logarithmic one."""
    return math.log(max(value, 1e-300)) if row.label.scale == "exp" else value


def _axis(group: Sequence[Shown]) -> tuple[float, float]:
    low, high = min(_place(row.low, row) for row in group), max(_place(row.high, row) for row in group)
    margin = _BEYOND * (high - low) or 0.05 * max(abs(low), 1.0)
    nothing = 0.0  # no effect, also of a ratio: log 1
    near = low - 2 * (high - low) < nothing < high + 2 * (high - low)
    if near and group[0].label.scale in ("", "exp"):
        low, high = min(low, nothing), max(high, nothing)
    return low - margin, high + margin


def _group(group: Sequence[Shown]) -> str:
    low, high = _axis(group)

    def at(value: float) -> float:
        return 100 * (min(max(value, low), high) - low) / (high - low)

    strips = "".join(_row(row, at, (low, high)) for row in group)
    logarithmic = group[0].label.scale == "exp"
    ends = (math.exp(low), math.exp(high)) if logarithmic else (low, high)
    marks = [value for value in svg.ticks(*ends, 4) if not logarithmic or value > 0]
    texts = svg.labels(marks)
    if logarithmic and ends[1] > 3 * ends[0]:  # an axis of powers wants marks of powers
        marks = [value for value in RATIOS if ends[0] <= value <= ends[1]]
        texts = [f"{value:g}" for value in marks]
    placed = [(at(math.log(value) if logarithmic else value), text) for value, text in zip(marks, texts, strict=True)]
    axis = "".join(f'<span style="left:{x:.2f}%">{text}</span>' for x, text in placed if _CLOSE < x < 100 - _CLOSE)
    unit = group[0].unit.strip()
    return (
        f'{strips}<div class="axis" aria-hidden="true"><span></span><div>{axis}</div><span>{escape(unit)}</span></div>'
    )


def _row(row: Shown, at: Callable[[float], float], ends: tuple[float, float]) -> str:
    mean, low, high = (at(_place(value, row)) for value in (row.mean, row.low, row.high))
    value = f"{row.said(row.mean)} <span>({row.said(row.low)} to {row.said(row.high)})</span>{escape(row.unit)}"
    told = (
        f"{row.called}: mean {row.said(row.mean)}, 90 % interval {row.said(row.low)} to {row.said(row.high)}{row.unit}"
    )
    marks = "" if row.prior is None else _prior(row, at, ends)
    if ends[0] < 0 < ends[1] and row.label.scale in ("", "exp"):
        marks += f'<i class="zero" style="left:{at(0.0):.2f}%"></i>'
    code = f" <small>{escape(row.name)}</small>" if row.called != row.name else ""
    bar = f'<i class="bar" style="left:{low:.2f}%;width:{max(high - low, 0.3):.2f}%"></i>'
    dot = f'<i class="dot" style="left:{mean:.2f}%"></i>'
    return (
        f'<div class="row"><span class="name">{escape(row.called)}{code}</span>'
        f'<div class="strip" role="img" aria-label="{escape(told)}">{marks}{bar}{dot}</div><span '
        f'class="value">{value}</span></div>'
    )


def _prior(row: Shown, at: Callable[[float], float], ends: tuple[float, float]) -> str:
    low, high = (_place(end, row) for end in row.prior or (0.0, 0.0))
    left, right = at(low), at(high)
    arrows = ('<b class="left">\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}</b>' if low < ends[0] else "") + (
        '<b class="right">\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}</b>' if high > ends[1] else ""
    )
    return f'<i class="prior" style="left:{left:.2f}%;width:{right - left:.2f}%"></i>{arrows}'


# -- in a notebook ------------------------------------------------------------------------------------------------------------


def brief(run: "Run | Estimate") -> str:
    """What a notebook shows of a run or an estimate: the answer, the verdict, the table, the promise in a line."""
    words, privacy, level = run.facts.words, run.privacy, run.verdict.level
    rows = shown_parameters(run, words, run.facts) if run.verdict.usable else []
    lines = [
        (row.called, f"{row.said(row.mean)}{row.unit}", f"{row.said(row.low)} to {row.said(row.high)}") for row in rows
    ]
    kind = "run" if hasattr(run, "transcript") else "estimate"
    promise = f"({privacy.epsilon:g}, {privacy.delta:g})-differential privacy for {privacy.n:,} records"
    inner = [notebook.table(("parameter", "mean", "90 % interval"), lines[: html.PICTURED])] if lines else []
    facts = [("verdict", str(run.verdict)), ("promise", promise)]
    heading = words.question or words.title or kind.capitalize()
    return notebook.card(heading, facts, text=sentence(rows, words, level, kind), mark=level, inner=inner)
