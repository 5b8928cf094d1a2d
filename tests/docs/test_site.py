"""The site, built once as `make docs` builds it: complete, whole, and seen in a real browser.

The build runs every tutorial; a warning is an error. So what the tutorials print is what the code printed in this very run.
"""

import importlib
import os
import re
import runpy
import shutil
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from bs4 import BeautifulSoup

import sfumato

ROOT = Path(__file__).parents[2]
WRITE = runpy.run_path(str(ROOT / "docs" / "reference" / "write.py"))
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WIDTHS = (1440, 820, 390)
KINDS = (
    "index", "tutorials/first-posterior", "tutorials/your-own-csv", "how-to/run-a-node", "how-to/estimate", "reference/python",
    "reference/commands", "reference/study-file", "explanation/paper", "explanation/sensitivity", "measurements/pilot",
    "developer/changelog",
)  # fmt: skip
"""One page of each kind: looked at in light and dark, and handed to axe."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; the build has run every tutorial, and has not warned. Of several workers one builds it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "site"
    said = folder / "said.txt"
    try:
        folder.mkdir()
    except FileExistsError:
        while not said.exists():
            time.sleep(0.5)
    else:
        options = ["-q", "-W", "--keep-going", "-b", "html", "-d", folder / "doctrees"]
        command = [sys.executable, "-m", "sphinx", *options, ROOT / "docs", folder / "html"]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
        said.write_text("" if done.returncode == 0 else done.stderr[-5000:] or "the build failed")
    assert not said.read_text(), said.read_text()
    return folder / "html"


@pytest.fixture(scope="module")
def pages(site):
    """Every page, read, by its path."""
    found = {path: BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser") for path in site.rglob("*.html")}
    assert len(found) > 40
    return found


def test_every_public_name_is_there(site, pages):
    ids = {tag["id"] for name in ("", *WRITE["MODULES"]) for tag in pages[reference(site, name)].find_all(id=True)}
    for name in set(sfumato.__all__) - set(WRITE["MODULES"]) - {"__version__"}:
        assert f"sfumato.{name}" in ids, name
    for name in WRITE["MODULES"]:
        module = getattr(sfumato, name)
        offered = WRITE["public"](module)
        assert len(offered) >= 3
        assert {f"{module.__name__}.{each}" for each in offered} <= ids, name
        assert importlib.import_module(module.__name__) is module


def reference(site, name):
    return site / "reference" / (f"python-{name}.html" if name else "python.html")


def test_no_public_name_is_without_words(site, pages):
    for name in ("", *WRITE["MODULES"]):
        page = pages[reference(site, name)]
        for entry in page.select("dl.py > dt[id]"):
            said = entry.find_next_sibling("dd").get_text(strip=True)
            assert said, entry["id"]


def test_every_command_is_there(site, pages):
    from typer.main import get_command

    from sfumato.cli import app

    text = " ".join(pages[site / "reference" / "commands.html"].get_text(" ").split())
    commands = [*paths(get_command(app))]
    assert len(commands) > 20
    for path, command in commands:
        assert f"sfumato {' '.join(path)}" in text, path
        for option in command.params:
            assert option.opts[0].lower() in text.lower(), (path, option.opts)


def paths(group, before=()):
    for name, command in group.commands.items():
        yield (*before, name), command
        if hasattr(command, "commands"):
            yield from paths(command, (*before, name))


def test_every_key_of_both_files_is_there(site, pages):
    from sfumato.files.schema import REST, keys
    from sfumato.files.study import StudyTables
    from sfumato.node.config import OwnerTables

    for name, top in (("study-file", StudyTables), ("owner-file", OwnerTables)):
        tables: dict = {}
        WRITE["collect"](top, "", tables)
        coded = {tag.get_text() for tag in pages[site / "reference" / f"{name}.html"].find_all("code")}
        declared = {key for table in tables for key in keys(table) if key != REST}
        assert len(declared) > 20
        assert declared <= coded, declared - coded


def test_tutorials_show_what_their_code_printed(site, pages):
    for path in (ROOT / "docs" / "tutorials").glob("*.md"):
        cells = path.read_text().count("```{code-cell}") - path.read_text().count("[remove-cell]")
        page = pages[site / "tutorials" / f"{path.stem}.html"]
        assert len(page.select("div.cell")) == cells
        assert path.stem == "index" or len(page.select("div.cell_output")) >= 2
        assert not page.select("div.output.stderr"), path


def test_nothing_is_loaded_from_elsewhere(site, pages):
    for path, page in pages.items():
        for tag in page.find_all(["script", "img", "iframe", "link", "source", "object", "embed", "video", "audio"]):
            for attribute in ("src", "href", "data", "srcset"):
                assert not re.match(r"(?:\w+:)?//", tag.get(attribute, "")), (path, tag)
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet


def test_no_link_inside_is_broken(pages):
    ids = {path: {tag.get("id") for tag in page.find_all(id=True)} for path, page in pages.items()}
    for path, page in pages.items():
        for tag in page.find_all("a", href=True):
            target, anchor = urldefrag(tag["href"])
            if re.match(r"\w+:", target):
                continue
            where = (path.parent / unquote(target)).resolve() if target else path
            assert where.is_file(), (path.name, tag["href"])
            if anchor and where in ids:
                assert anchor in ids[where] or where.name == "genindex.html", (path.name, tag["href"])


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        made = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.mark.skipif(CHROMIUM is None, reason="needs the system's chromium: apt-get install chromium")
def test_every_page_fits_its_window_and_asks_nobody(site, pages, browser):
    """On a desk, a tablet and a phone: nothing sticks out, nothing is asked of anybody, nothing is complained of."""
    page = browser.new_page()
    asked, complaints = listen(page)
    for path in sorted(pages):
        page.goto(path.as_uri(), wait_until="load")
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            assert sticks_out(page) <= 0, (path.relative_to(site), width)
    assert all(url.startswith(("file:", "data:")) for url in asked)
    assert not complaints, complaints
    page.context.close()


@pytest.mark.skipif(CHROMIUM is None, reason="needs the system's chromium: apt-get install chromium")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(scheme, site, browser):
    from axe_playwright_python.sync_playwright import Axe

    context = browser.new_context(color_scheme=scheme, viewport={"width": WIDTHS[0], "height": 900})
    page = context.new_page()
    asked, complaints = listen(page)
    for i, name in enumerate(KINDS):
        page.set_viewport_size({"width": WIDTHS[i % len(WIDTHS)], "height": 900})
        page.goto((site / f"{name}.html").as_uri())
        assert sticks_out(page) <= 0, (name, scheme)
        found = Axe().run(page, options={"preload": False}).response["violations"]
        serious = {
            rule["id"]: [node["html"][:200] for node in rule["nodes"][:3]]
            for rule in found
            if rule["impact"] in ("serious", "critical")
        }
        assert not serious, (name, scheme, serious)
    assert all(url.startswith(("file:", "data:")) for url in asked)
    assert not complaints, complaints
    context.close()


def listen(page):
    """What a page asks for, and what it complains of."""
    asked, complaints = [], []
    page.on("request", lambda made: asked.append(made.url))
    page.on("console", lambda said: complaints.append(said.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    return asked, complaints


def sticks_out(page):
    """By how many pixels the page is wider than its window."""
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
