"""What every page must be: whole at any width, and accessible."""

import json
import shutil
from pathlib import Path

import axe_playwright_python

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
WIDTHS = (1440, 820, 390)
SCHEMES = ("light", "dark")
WAIT = 60_000
SERIOUS = ("serious", "critical")
HIDDEN = """() => [...document.querySelectorAll("td, th, dd, .value, .name")].filter((cell) => {
  const box = cell.getBoundingClientRect();
  const folded = cell.closest("details:not([open])") || cell.closest("[hidden]") || cell.closest("thead");
  return !folded && box.width > 0 && (box.right > innerWidth + 0.5 || box.left < -0.5 || cell.scrollWidth > cell.clientWidth + 1
    && getComputedStyle(cell).overflow !== "visible" || cell.scrollWidth > innerWidth);
}).map((cell) => cell.outerHTML.slice(0, 120))"""


def check_look(page, width):
    """No overflow, no hidden cell, and nothing that axe calls serious."""
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(HIDDEN) == []
    found = page.evaluate("(source) => { (0, eval)(source); return axe.run(); }", AXE)
    worst = [
        (one["id"], [node["html"][:160] for node in one["nodes"]][:3])
        for one in found["violations"]
        if one["impact"] in SERIOUS
    ]
    assert not worst, json.dumps(worst, indent=1)
