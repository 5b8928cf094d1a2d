"""Draw the figures of measured tables: `make figures`. Each is drawn from its table in `docs/measurements/` alone.

A figure carries the digest of its table; a test compares them, so that a table which changes takes its figure along.
"""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
TABLES = HERE.parent / "measurements"
INK, SOFT, COLOURS = "#222222", "#8a8a8a", ("#1f5f8b", "#c7772a", "#8a8a8a")
STYLE = {
    "svg.hashsalt": "sfumato", "svg.fonttype": "path", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False,
    "axes.edgecolor": SOFT, "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
}  # fmt: skip


def table(name: str) -> list[list[str]]:
    """The rows of the first table of a page of measurements."""
    text = (TABLES / f"{name}.md").read_text(encoding="utf-8")
    block = re.search(r"\|[^\n]*\|\n\|[-|]+\|\n((?:\|[^\n]*\n)+)", text)
    assert block is not None, name
    return [[cell.strip() for cell in row.strip().strip("|").split("|")] for row in block[1].strip().splitlines()]


def digest(name: str) -> str:
    """What a figure carries of its table."""
    return hashlib.sha256(repr(table(name)).encode()).hexdigest()


def number(cell: str) -> float:
    """The first number of a cell; nan if there is none."""
    found = re.search(r"-?\d[\d ]*(?:\.\d+)?(?:e-?\d+)?", cell)
    return float(found[0].replace(" ", "")) if found else np.nan


def pilot() -> plt.Figure:
    """How far pilots end from the mode, at the budget with a limit of 30 draws."""
    rows = table("pilot")
    place = np.arange(len(rows))[::-1]
    before, off, largest = (np.array([number(row[i]) for row in rows]) for i in (5, 6, 7))
    figure, axes = plt.subplots(figsize=(7.2, 6.4), layout="constrained")
    axes.hlines(place, off, largest, color=COLOURS[0], lw=2, alpha=0.4)
    axes.plot(off, place, "o", color=COLOURS[0], label="median, and up to the largest of 100")
    axes.plot(before, place, "x", color=COLOURS[1], label="an earlier pilot")
    axes.axvline(3.5, color=SOFT, ls=":", lw=1.5)
    axes.text(3.8, len(rows) - 0.3, "the most that off_by may be", color="#5f5f5f", fontsize=9)
    axes.set(xscale="log", yticks=place, xlabel="distance from the mode, posterior standard deviations")
    axes.set_yticklabels([row[0] for row in rows])
    axes.legend(frameon=False, loc="lower right")
    return figure


def langevin() -> plt.Figure:
    """Shares of the one-shot limit."""
    shares: dict[str, dict[str, tuple[float, float]]] = {}
    study = ""
    for row in table("langevin"):
        study = f"{row[0]}, ε = {row[1]}" if row[0] else study
        given = re.match(r"([\d.]+) \(([\d.]+)\)", row[6]) if len(row) > 6 else None
        if given:
            shares.setdefault(study, {})[row[3]] = float(given[1]), float(given[2])
    place = np.arange(len(shares))[::-1]
    figure, axes = plt.subplots(figsize=(7.2, 5.6), layout="constrained")
    for i, kernel in enumerate(("Langevin", "guided", "random walk")):
        share, error = np.array([shares[name][kernel] for name in shares]).T
        axes.barh(place + 0.27 - 0.27 * i, share, 0.25, xerr=2 * error, color=COLOURS[i], label=kernel, ecolor=INK)
    axes.axvline(1.0, color=SOFT, ls=":", lw=1.5)
    axes.set(yticks=place, xlabel="share of the one-shot limit (bars: two standard errors)", xlim=(0, 1.25))
    axes.set_yticklabels(list(shares))
    axes.legend(frameon=False, loc="center right", bbox_to_anchor=(1, 0.62))
    return figure


def estimate() -> plt.Figure:
    """Coverage of 90 % intervals, cell by cell."""
    rows = table("estimate")
    place = np.arange(len(rows))[::-1]
    found = [re.match(r"(\d+) \((\d+)\)", row[3]) for row in rows]
    covered, error = np.array([(float(f[1]), float(f[2])) for f in found if f]).T
    figure, axes = plt.subplots(figsize=(7.2, 5.8), layout="constrained")
    axes.errorbar(covered, place, xerr=2 * error, fmt="o", color=COLOURS[0], ecolor="#7fa6c1", capsize=2)
    axes.axvline(90, color=SOFT, ls=":", lw=1.5)
    axes.set(yticks=place, xlabel="covered, in per cent (bars: two standard errors)", xlim=(40, 105))
    axes.set_yticklabels([row[0] for row in rows])
    return figure


FIGURES: dict[str, Callable[[], plt.Figure]] = {"pilot": pilot, "langevin": langevin, "estimate": estimate}


def main() -> None:
    """Draw all of them."""
    for name, draw in FIGURES.items():
        with mpl.rc_context(STYLE):
            figure = draw()
            about = {"Date": None, "Description": f"table {digest(name)}"}
            figure.savefig(HERE / f"{name}.svg", metadata=about, facecolor="white")
            plt.close(figure)


if __name__ == "__main__":
    main()
