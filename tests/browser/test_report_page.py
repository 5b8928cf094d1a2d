"""The report in a real browser: at every width, light and dark, on paper, and without a script."""

import numpy as np
import pytest

import sfumato as sf
from browser_helpers import CHROMIUM, SCHEMES, WAIT, WIDTHS, check_look
from made_run import make_run
from sfumato.analysis.wording import Label, Words

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs the system's chromium: apt-get install chromium")
LONG = "The share of people who would say yes if somebody asked them on the telephone on a rainy day"
WORDS = Words(
    title="A question", question="How many would say yes?", source="a register",
    parameters={"p": Label(LONG, scale="percent"), "a": Label(LONG), "b": Label("The odds ratio", scale="exp")},
)  # fmt: skip


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A real run, saved and loaded; one with many parameters under long names; one that must not be used; an estimate."""
    folder = tmp_path_factory.mktemp("report")
    table, given = {"y": (np.arange(20_000) % 10 < 3).astype(int)}, {"epsilon": 2.0, "delta": 1e-6}
    family = sf.families.Bernoulli()
    run = sf.sample(family, table, seed=1, chains=2, progress=False, **given)
    real = sf.load(run.described(WORDS).save(folder / "run.npz"))
    long = tuple(f"a_coefficient_with_a_rather_long_name_{i}" for i in range(26))
    made = {
        "real": real, "many": make_run(names=("a", "b", *long), words=WORDS), "unusable": make_run(shift=3.0, words=WORDS),
        "estimate": sf.estimate(family, table, seed=1, progress=False, **given).described(WORDS),
    }  # fmt: skip
    return {name: one.report(folder / f"{name}.html").as_uri() for name, one in made.items()}


@pytest.fixture
def opened(browser):
    """Opens a page without scripts of its own; complaints and requests are counted."""
    contexts, asked, complaints = [], [], []

    def at(address, width, scheme="light"):
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WAIT)
        page.on("request", lambda made: asked.append(made.url))
        page.on("console", lambda said: complaints.append(said.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address)
        return page

    yield at
    assert all(url.startswith("file://") for url in asked), asked
    assert not complaints, complaints
    for context in contexts:
        context.close()


@pytest.mark.parametrize("name", ["real", "many", "unusable", "estimate"])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_page_is_whole_at_every_width_and_accessible(pages, opened, name, width):
    for scheme in SCHEMES:
        page = opened(pages[name], width, scheme)
        page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
        check_look(page, width)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_answer_is_found_within_one_screen(pages, opened, width):
    page = opened(pages["real"], width)
    for part in ("h1", ".lead", ".verdict", ".row"):
        assert page.locator(part).first.bounding_box()["y"] + page.locator(part).first.bounding_box()["height"] < 900, (
            part
        )
    assert LONG[4:] in page.inner_text(".lead") and "90" in page.inner_text(".lead")


def test_an_unusable_run_says_so_first_and_shows_no_interval(pages, opened):
    page = opened(pages["unusable"], 390)
    assert page.locator('[role="alert"]').bounding_box()["y"] < 400
    assert page.locator(".forest, .lead").count() == 0 and " to " not in page.inner_text("#sure table")


def test_links_lead_to_their_parts_and_keys_suffice(pages, opened):
    page = opened(pages["real"], 1440)
    for link in page.locator("nav a").all():
        assert page.locator(link.get_attribute("href")).count() == 1
    page.keyboard.press("Tab")
    assert "Skip" in page.evaluate("document.activeElement.textContent")
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#answer"


def test_on_paper_no_heading_is_left_behind_and_what_is_folded_is_there(pages, opened, tmp_path):
    page = opened(pages["real"], 820)
    page.emulate_media(media="print")
    for tag in ("h2", "h3", "h4"):
        assert page.evaluate(f"getComputedStyle(document.querySelector('{tag}')).breakAfter") == "avoid"
    assert page.evaluate("document.querySelector('#record details p').getBoundingClientRect().height") > 0
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    page.pdf(path=tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").stat().st_size > 10_000
