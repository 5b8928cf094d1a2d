"""Plots as SVG text: small, crisp at any size, coloured by the page's style sheet in light and dark."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

WIDTH = 400.0
POINTS = 400
"""Points per line at the most: more cannot be seen, and the page stays small."""
COLOURS = 6
"""Chain colours in the style sheet; further chains begin again."""
Ends = tuple[float | None, float | None]


@dataclass(frozen=True)
class Frame:
    """A coordinate system: data on the inside, pixels on the outside."""

    x: tuple[float, float]
    y: tuple[float, float]
    height: float
    left: float = 46.0
    right: float = 8.0
    top: float = 8.0
    bottom: float = 22.0

    def across(self, value: np.ndarray | float) -> np.ndarray:
        """Horizontal place of a value."""
        return self.left + (np.asarray(value) - self.x[0]) / (self.x[1] - self.x[0]) * (WIDTH - self.left - self.right)

    def down(self, value: np.ndarray | float) -> np.ndarray:
        """Vertical place of a value."""
        share = (np.asarray(value) - self.y[0]) / (self.y[1] - self.y[0])
        return self.top + (1 - share) * (self.height - self.top - self.bottom)

    @property
    def floor(self) -> float:
        """Vertical place of the horizontal axis."""
        return self.height - self.bottom


def density(draws: np.ndarray, interval: tuple[float, float], label: str, support: Ends = (None, None)) -> str:
    """Posterior density of one parameter: all chains filled, each a line, the interval darker, the mean marked.

    It is drawn as far as it goes: to where it is as good as zero, or to the end of the support, where it is folded back.
    """
    flat = draws.ravel()
    width = max(_bandwidth(part) for part in (flat, *draws))
    grid = _grid(flat, width, support)
    whole = _kde(flat, grid, support)
    chains = [_kde(chain, grid, support) for chain in draws]
    peak = max(whole.max(), *(chain.max() for chain in chains)) * 1.05
    frame = Frame((float(grid[0]), float(grid[-1])), (0.0, float(peak)), 130.0, left=10.0, right=10.0)
    inside = (grid >= interval[0]) & (grid <= interval[1])
    mean = float(frame.across(flat.mean()))
    several = chains if len(chains) > 1 else []
    marks = [
        _area(frame, grid, whole, "wash"),
        _area(frame, grid[inside], whole[inside], "fill"),
        *(_line(frame, grid, chain, f"thin c{i % COLOURS}") for i, chain in enumerate(several)),
        _line(frame, grid, whole, "main"),
        f'<line class="mean" x1="{mean:.1f}" x2="{mean:.1f}" y1="{frame.top:.1f}" y2="{frame.floor:.1f}"/>',
        _x_axis(frame, 4),
    ]
    return _svg(frame.height, f"Posterior density of {label}", marks)


def ranks(draws: np.ndarray, label: str) -> str:
    """Rank plot: how often each chain has values of each rank among the draws of all chains; one line per chain."""
    chains, steps = draws.shape
    bins = int(np.clip(steps // 8, 4, 20))
    order = np.empty(draws.size)
    order[np.argsort(draws.ravel(), kind="stable")] = np.arange(draws.size)
    places = (order * bins // draws.size).astype(int).reshape(draws.shape)
    counts = np.stack([np.bincount(chain, minlength=bins) for chain in places]) * bins / steps
    frame = Frame((0.0, float(bins)), (0.0, max(2.0, float(counts.max()) * 1.05)), 130.0, left=10.0, right=10.0)
    even = float(frame.down(1.0))
    edges = np.repeat(np.arange(bins + 1), 2)[1:-1].astype(float)
    lines = [_line(frame, edges, np.repeat(row, 2), f"thin c{i % COLOURS}") for i, row in enumerate(counts)]
    marks = [
        *lines,
        f'<line class="mean" x1="{frame.left:.1f}" x2="{WIDTH - frame.right:.1f}" y1="{even:.1f}" y2="{even:.1f}"/>',
        f'<line class="axis" x1="{frame.left:.1f}" x2="{WIDTH - frame.right:.1f}" y1="{frame.floor:.1f}" '
        f'y2="{frame.floor:.1f}"/>',
        f'<text x="{frame.left:.1f}" y="{frame.floor + 15:.1f}">small</text>',
        f'<text x="{WIDTH - frame.right:.1f}" y="{frame.floor + 15:.1f}" text-anchor="end">large</text>',
    ]
    return _svg(frame.height, f"Ranks of {label}, chain by chain", marks)


def trace(draws: np.ndarray, label: str) -> str:
    """Draws in the order they were made, one line per chain, thinned."""
    steps = draws.shape[1]
    low, high = float(draws.min()), float(draws.max())
    frame = Frame((0.0, float(max(steps - 1, 1))), _padded(low, high), 130.0)
    kept = _thin(steps)
    lines = [_line(frame, kept, chain[kept], f"thin c{i % COLOURS}") for i, chain in enumerate(draws)]
    return _svg(frame.height, f"Trace of {label}", [_y_axis(frame, 3), *lines, _x_axis(frame, 4)])


def spending(total: np.ndarray, cap: float) -> str:
    """Budget spent after each iteration, under its cap; the first value is what the pilot took."""
    frame = Frame((0.0, float(max(len(total) - 1, 1))), (0.0, cap * 1.12), 190.0)
    kept = _thin(len(total))
    roof = float(frame.down(cap))
    marks = [
        _y_axis(frame, 4),
        _area(frame, kept, total[kept], "wash"),
        _line(frame, kept, total[kept], "main"),
        f'<line class="cap" x1="{frame.left:.1f}" x2="{WIDTH - frame.right:.1f}" y1="{roof:.1f}" y2="{roof:.1f}"/>',
        f'<text class="cap" x="{frame.left + 6:.1f}" y="{roof - 5:.1f}">the cap: no answer may pass it</text>',
        _x_axis(frame, 5),
    ]
    return _svg(frame.height, "Budget spent, iteration by iteration, and its cap", marks)


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers between two ends: multiples of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    rough = (high - low) / max(about, 1)
    power = 10.0 ** np.floor(np.log10(rough))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = int(np.ceil(low / step - 1e-9))
    last = int(np.floor(high / step + 1e-9))
    # Fewer than two say nothing about the scale.
    return [i * step for i in range(first, last + 1)] if last > first else ticks(low, high, about + 1)


def _svg(height: float, label: str, marks: list[str]) -> str:
    body = "".join(marks)
    name = escape(label)
    return f'<svg viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="{name}"><title>{name}</title>{body}</svg>'


def _line(frame: Frame, x: np.ndarray, y: np.ndarray, style: str) -> str:
    return f'<polyline class="{style}" points="{_points(frame, x, y)}"/>'


def _area(frame: Frame, x: np.ndarray, y: np.ndarray, style: str) -> str:
    if len(x) == 0:
        return ""
    first, last = (f"{float(frame.across(end)):.1f},{frame.floor:.1f}" for end in (x[0], x[-1]))
    return f'<polygon class="{style}" points="{first} {_points(frame, x, y)} {last}"/>'


def _points(frame: Frame, x: np.ndarray, y: np.ndarray) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(frame.across(x), frame.down(y), strict=True))


def _x_axis(frame: Frame, about: int) -> str:
    right = WIDTH - frame.right
    out = [f'<line class="axis" x1="{frame.left:.1f}" x2="{right:.1f}" y1="{frame.floor:.1f}" y2="{frame.floor:.1f}"/>']
    values = ticks(*frame.x, about)
    for value, text in zip(values, labels(values), strict=True):
        at = float(frame.across(value))
        anchor = "start" if at < 24 else "end" if at > WIDTH - 24 else "middle"
        out.append(f'<text x="{at:.1f}" y="{frame.floor + 15:.1f}" text-anchor="{anchor}">{text}</text>')
    return "".join(out)


def _y_axis(frame: Frame, about: int) -> str:
    out = []
    values = ticks(*frame.y, about)
    for value, text in zip(values, labels(values), strict=True):
        at = float(frame.down(value))
        out.append(
            f'<line class="grid" x1="{frame.left:.1f}" x2="{WIDTH - frame.right:.1f}" y1="{at:.1f}" y2="{at:.1f}"/>'
        )
        out.append(f'<text x="{frame.left - 6:.1f}" y="{at + 3.5:.1f}" text-anchor="end">{text}</text>')
    return "".join(out)


def labels(values: Sequence[float]) -> list[str]:
    """As few decimals as tell the ticks apart, a true minus sign, no commas below ten thousand."""
    step = abs(values[1] - values[0]) if len(values) > 1 else max(abs(values[0]), 1e-12)
    decimals = int(np.clip(-np.floor(np.log10(max(step, 1e-12)) + 1e-9), 0, 6))
    return [f"{0.0 if abs(v) < step / 1e6 else v:,.{decimals}f}".replace("-", "\N{MINUS SIGN}") for v in values]


def _thin(size: int) -> np.ndarray:
    return np.unique(np.linspace(0, size - 1, min(size, POINTS)).astype(int))


def _padded(low: float, high: float) -> tuple[float, float]:
    margin = (high - low) * 0.05 or max(abs(low), 1.0) * 0.05
    return low - margin, high + margin


def _bandwidth(draws: np.ndarray) -> float:
    """A wide bandwidth, because draws of one chain are not independent."""
    spread = float(draws.std()) if np.ptp(draws) > 0 else 0.0
    return 1.06 * spread * max(len(draws) / 10, 10.0) ** -0.2


def _grid(flat: np.ndarray, width: float, support: Ends) -> np.ndarray:
    """Points as far as the density goes: four bandwidths beyond the draws, unless the support ends before."""
    low, high = float(flat.min()), float(flat.max())
    margin = 4 * width or max(abs(low), 1.0) * 0.05
    ends = low - margin, high + margin
    ends = (
        ends[0] if support[0] is None else max(ends[0], support[0]),
        ends[1] if support[1] is None else min(ends[1], support[1]),
    )
    return (
        np.linspace(min(ends[0], low), max(ends[1], high), 200)
        if ends[1] > ends[0]
        else np.linspace(low - 0.05, high + 0.05, 200)
    )


def _kde(draws: np.ndarray, grid: np.ndarray, support: Ends) -> np.ndarray:
    """Gaussian kernel density; what would lie beyond an end of the support is folded back."""
    kept = draws[np.linspace(0, len(draws) - 1, min(len(draws), 4000)).astype(int)]
    width = _bandwidth(draws) or float(grid[-1] - grid[0]) / 40
    folds = [kept, *(2 * end - kept for end in support if end is not None)]
    heights = sum(np.exp(-0.5 * ((grid[:, None] - part) / width) ** 2).mean(axis=1) for part in folds)
    return np.asarray(heights / (width * np.sqrt(2 * np.pi)))
