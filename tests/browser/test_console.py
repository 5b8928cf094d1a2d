"""The owner's console in a real browser: what it shows is the ledger's, and its buttons do what they say."""

import threading
import time

import pytest

from browser_helpers import CHROMIUM, SCHEMES, WAIT, WIDTHS, check_look
from node_helpers import N, Threaded, call, prepare
from sfumato.errors import OwnerRefused
from sfumato.owners.remote import connect
from sfumato.privacy import gdp
from sfumato.protocol.questions import Statistic, Terms
from sfumato.vault.lattice import choose_gamma

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs the system's chromium: apt-get install chromium")
TERMS = Terms(
    kernel="langevin", chains=2, sigma=20.0, gamma=choose_gamma(20.0, N), matrix=[[0.04]], proposal_sigma=8.0,
    proposal_gamma=choose_gamma(8.0, N),
)  # fmt: skip


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    folder = tmp_path_factory.mktemp("console")
    budgets = "per_analyst = { epsilon = 2.5, delta = 1e-5 }"
    tokens = prepare(folder, studies=("bern",), total=3.0, budgets=budgets)
    running = Threaded(folder)
    running.tokens = tokens
    owner = connect(running.url, token=tokens["alice"], patience=0.5)
    running.door = owner.door("bern", owner.studies["bern"].models[0], epsilon=2.0, delta=1e-6, run_id="seen-run")
    running.door.begin(TERMS)
    for i in range(40):
        running.door.ask(f"q/{i}", Statistic(chains=2))
    yield running
    running.stop()


@pytest.fixture
def page(node, browser, request):
    """The console, signed in by keyboard alone; every request it makes is written down, every complaint is an error."""
    context = browser.new_context(
        color_scheme=getattr(request, "param", "light"), viewport={"width": 1200, "height": 1000}
    )
    page = context.new_page()
    page.set_default_timeout(WAIT)
    asked, complaints = [], []
    page.on("request", lambda made: asked.append(made.url))
    page.on("console", lambda said: complaints.append(said.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(node.url)
    page.wait_for_selector("#token")
    for _ in range(3):  # skip link, then the field
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "token":
            break
    page.keyboard.type(node.tokens["owner"])
    page.keyboard.press("Enter")
    page.wait_for_selector("#console:not([hidden])")
    page.said = complaints
    yield page
    assert all(url.startswith(node.url) for url in asked), asked
    assert not complaints, complaints
    context.close()


def test_the_budget_shown_is_the_ledgers(node, page):
    total = node.node.books.total()
    assert 0 < total.spent < total.cap
    gauge = page.locator("#gauge")
    assert float(gauge.get_attribute("data-left")) == pytest.approx(total.cap - total.spent, rel=1e-9)
    share = 100 * (1 - total.spent / total.cap)
    assert float(page.text_content("#left-share").rstrip(" %")) == pytest.approx(share, abs=0.51)
    for i in range(40, 400):
        node.door.ask(f"q/{i}", Statistic(chains=2))
    later = node.node.books.total()
    assert later.spent > total.spent
    page.wait_for_selector(f'#gauge[data-left="{later.cap - later.spent}"]')  # it follows, within a second or so


def test_who_asked_what_is_there(node, page):
    runs = page.locator("#runs tr", has_text="seen-run")
    assert runs.count() == 1
    line = runs.first.inner_text()
    assert "bern" in line and "alice" in line and "seen-run" in line and "connected" in line
    log = page.locator("#log").inner_text()
    assert "Opened a run" in log and "Settled terms" in log and "alice" in log
    statement = page.text_content("#statement")
    assert "(3, 1e-05)-differential privacy" in statement and "all analysts together" in " ".join(statement.split())


def test_answers_per_second_are_counted(node, page):
    until = time.monotonic() + 15
    i = 1000
    while page.text_content("#rate") == "0" and time.monotonic() < until:
        node.door.ask(f"rate/{i}", Statistic(chains=2))
        i += 1
    assert page.text_content("#rate") != "0"


class Asking(threading.Thread):
    """Another connection that asks without a break; when its answers came, until it is refused."""

    def __init__(self, node):
        super().__init__(daemon=True)
        owner = connect(node.url, token=node.tokens["bob"], patience=0.2)
        self._door = owner.door("bern", owner.studies["bern"].models[0], epsilon=0.5, delta=1e-6, run_id="asking")
        self._door.begin(TERMS)
        self._door.ask("first", Statistic(chains=2))
        self.answered, self.refused = [], None

    def run(self):
        try:
            while True:
                self._door.ask("first", Statistic(chains=2))  # always the same answer: it costs nothing
                self.answered.append(time.monotonic())
        except OwnerRefused as refused:
            self.refused = refused.code
            self._door.close()


def test_pause_stops_answers_within_a_second_and_resume_starts_them(node, page):
    asking = Asking(node)
    page.focus("#pause")
    asking.start()
    while len(asking.answered) < 20:
        assert asking.is_alive()
        time.sleep(0.01)
    page.keyboard.press("Enter")
    clicked = time.monotonic()
    asking.join(30)
    assert asking.refused == "paused"
    assert asking.answered[-1] - clicked < 1.0
    page.wait_for_selector("#state.paused")
    assert "paused" in page.text_content("#banner") and page.is_visible("#banner")
    with pytest.raises(OwnerRefused) as refused:
        node.door.ask("while-paused", Statistic(chains=2))
    assert refused.value.code == "paused"
    assert call(f"{node.url}/healthz")[1]["state"] == "paused"
    page.click("#pause")
    page.wait_for_selector("#state:not(.paused)")
    assert node.door.ask("while-paused", Statistic(chains=2)).id == "while-paused"


def test_the_planners_sliders_move_the_forecast(node, page):
    page.wait_for_selector("#forecast[data-ess]:not(.stale)")
    before = float(page.get_attribute("#forecast", "data-ess"))
    page.focus("#epsilon")
    for _ in range(12):
        page.keyboard.press("ArrowLeft")
    page.wait_for_selector(f'#forecast:not(.stale):not([data-ess="{before}"])')
    less = float(page.get_attribute("#forecast", "data-ess"))
    assert less < before
    status, said = call(
        f"{node.url}/api/console/plan", node.tokens["owner"],
        b'{"study": "bern", "epsilon": %s, "delta": 1e-5, "n": 3000}' % page.text_content("#epsilon-out").encode(),
    )  # fmt: skip
    assert status == 200 and said["plan"]["forecast_ess"] == pytest.approx(less, rel=1e-6)
    page.focus("#records")
    for _ in range(20):
        page.keyboard.press("ArrowRight")
    page.wait_for_selector(f'#forecast:not(.stale):not([data-ess="{less}"])')
    assert float(page.get_attribute("#forecast", "data-ess")) > less


@pytest.mark.parametrize("page", SCHEMES, indirect=True)
def test_it_is_whole_at_every_width_in_light_and_dark_and_accessible(node, page):
    page.wait_for_selector("#worth[data-points]")
    dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == (
        "rgb(25, 22, 20)" if dark else "rgb(251, 248, 243)"
    )
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        check_look(page, width)


def test_caps_and_what_is_still_possible_are_there(node, page):
    shown = page.locator("#studies tr", has_text="alice").first.inner_text()
    assert "2.5" in shown and "bern" in shown
    possible = float(shown.split("\n")[-1].split("\t")[-1].split()[0])
    accounts = {state["name"]: state["budget"] for state in node.node.books.accounts()}
    left = accounts["analyst alice"].cap - accounts["analyst alice"].spent
    assert 0 < possible < 2.5
    assert gdp.mu(possible, 1e-5) ** 2 <= left < gdp.mu(1.05 * possible, 1e-5) ** 2
    page.wait_for_selector("#worth[data-points]")
    assert page.text_content("#epsilon-out") == "2.5" and "2.5" in page.text_content("#epsilon-marks")
    assert page.locator("#worth line.limit").count() >= 1 and page.locator("#worth circle").count() == 1


def test_a_weak_plan_offers_the_ways_out_that_the_command_line_offers(node, page):
    page.evaluate("document.getElementById('epsilon').value = -1.3; document.getElementById('records').value = 2")
    page.dispatch_event("#records", "input")
    page.dispatch_event("#epsilon", "input")
    page.wait_for_selector("#verdict:has-text('Ways out')")
    asked = {
        name: float(page.text_content(f"#{name}-out").replace(",", "")) for name in ("epsilon", "delta", "records")
    }
    plan = node.node.studies["bern"].plan(asked["epsilon"], asked["delta"], int(asked["records"]))
    assert plan["remedy"] in page.text_content("#verdict")


def test_a_dead_node_dims_the_page_and_says_since_when(node, page):
    page.route("**/api/console/state", lambda route: route.abort())
    page.wait_for_selector("#main.dead")
    assert "has not answered since" in page.text_content("#banner") and page.text_content("#state") == "no answer"
    page.unroute("**/api/console/state")
    page.wait_for_selector("#main:not(.dead)")
    assert page.is_hidden("#banner")
    page.said.clear()  # the browser itself complains of the line that was cut


def test_a_wrong_token_opens_nothing_and_nothing_is_kept(node, browser):
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(WAIT)
    page.goto(node.url)
    for token in ("nonsense", node.tokens["alice"]):
        page.fill("#token", token)
        page.keyboard.press("Enter")
        page.wait_for_selector("#wrong:not(:empty)")
        assert page.is_hidden("#console")
        assert page.evaluate("sessionStorage.length") == 0
        assert page.evaluate("document.cookie") == ""
    context.close()


def test_revoke_asks_first_then_closes_the_line(node, page):
    page.wait_for_selector('button[aria-label="Revoke alice"]')
    page.click('button[aria-label="Revoke alice"]')
    page.wait_for_selector("#ask[open]")
    page.keyboard.press("Escape")
    assert node.node.tokens.all()["alice"].revoked is None
    page.click('button[aria-label="Revoke alice"]')
    page.click("#ask-yes")
    page.wait_for_selector("#tokens >> text=revoked")
    with pytest.raises((OwnerRefused, ConnectionError)) as refused:
        node.door.ask("revoked", Statistic(chains=2))
    assert getattr(refused.value, "code", "unauthorised") == "unauthorised"
