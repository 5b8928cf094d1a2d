"""Make the pictures of the report and of the console anew: `make screenshots`.

The report is that of a run on the public records of `sfumato demo`; the console that of a node whose people are made up. What the
pictures were made of is noted beside them (`screenshots.json`), and the tests say when that has changed since.
"""

import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
MADE_OF = ("src/sfumato/analysis/report/*.py", "src/sfumato/node/static/*", "src/sfumato/node/console.py")
REPORT, CONSOLE, PHONE = {"width": 1280, "height": 900}, {"width": 1280, "height": 1500}, {"width": 390, "height": 844}
WAIT = 120_000


def digest() -> str:
    """What the pages are made of, in one number."""
    found = hashlib.sha256()
    for pattern in MADE_OF:
        for path in sorted(ROOT.glob(pattern)):
            found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()


def report(folder: Path) -> str:
    """A run on public records, and its page."""
    import sfumato as sf
    from sfumato.demo import census

    run = sf.sample(census.home_ownership, census.load(), seed=1, **census.terms(2.0))
    return run.described(census.WORDS).report(folder / "report.html").as_uri()


def with_node(folder: Path, look: Any) -> None:
    """A node with two analysts, one of them at work, the other gone."""
    sys.path.insert(0, str(ROOT / "tests"))
    from node_helpers import N, Threaded, prepare
    from sfumato.owners.remote import connect
    from sfumato.protocol.questions import Statistic, Terms
    from sfumato.vault.lattice import choose_gamma

    tokens = prepare(
        folder / "node", studies=("bern", "coin"), total=3.0, budgets="per_study = { epsilon = 2.0, delta = 1e-5 }"
    )
    node = Threaded(folder / "node")
    terms = Terms(
        kernel="langevin", chains=2, sigma=20.0, gamma=choose_gamma(20.0, N), matrix=[[0.04]], proposal_sigma=8.0,
        proposal_gamma=choose_gamma(8.0, N),
    )  # fmt: skip
    doors = []
    for analyst, run, epsilon, answers in (("bob", "first-look", 0.5, 60), ("alice", "main-study", 1.5, 900)):
        owner = connect(node.url, token=tokens[analyst])
        door = owner.door("bern", owner.studies["bern"].models[0], epsilon=epsilon, delta=1e-6, run_id=run)
        door.begin(terms)
        for i in range(answers):
            door.ask(f"q/{i}", Statistic(chains=2))
        doors.append(door)
    doors[0].close()
    try:
        look(node.url, tokens["owner"])
    finally:
        doors[1].close()
        node.stop()


def main() -> None:
    """Make all of them."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with tempfile.TemporaryDirectory() as place, sync_playwright() as play:
        folder = Path(place)
        page_of_run = report(folder)
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])

        def shoot(name: str, scheme: str, size: Any, prepare: Any) -> None:
            context = browser.new_context(color_scheme=scheme, viewport=size)
            page = context.new_page()
            page.set_default_timeout(WAIT)
            prepare(page)
            page.screenshot(path=HERE / f"{name}.png")
            context.close()

        for scheme in ("light", "dark"):
            shoot(f"report-{scheme}", scheme, REPORT, lambda page: page.goto(page_of_run))
        shoot("report-phone", "light", PHONE, lambda page: page.goto(page_of_run))

        def look(url: str, token: str) -> None:
            def sign_in(page: Any) -> None:
                page.goto(url)
                page.fill("#token", token)
                page.keyboard.press("Enter")
                page.wait_for_selector("#worth[data-points]")

            for scheme in ("light", "dark"):
                shoot(f"console-{scheme}", scheme, CONSOLE, sign_in)
            shoot("console-phone", "light", PHONE, sign_in)

        with_node(folder, look)
        browser.close()
    (HERE / "screenshots.json").write_text(json.dumps({"made_of": digest()}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
