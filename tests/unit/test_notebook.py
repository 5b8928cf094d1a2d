"""What a notebook shows: escaped, short, and never a number of a run that must not be used."""

import sys
import types
from html.parser import HTMLParser

import pytest

import sfumato as sf
from made_run import NASTY, WORDS, make_run
from sfumato.privacy.joint import JointStatement
from sfumato.tools import progress


class Text(HTMLParser):
    """What a reader sees, and what is opened and not closed."""

    def __init__(self, html):
        super().__init__()
        self.seen, self.open = [], []
        self.feed(html)
        self.text = " ".join(self.seen)

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.seen.append(data)


def seen(thing):
    html = thing._repr_html_()
    assert "<script" not in html
    read = Text(html)
    assert not read.open
    return read.text


def test_a_run_shows_its_answer_and_an_unusable_one_none():
    good, bad = make_run(words=WORDS), make_run(words=WORDS, shift=3.0)
    assert "The odds ratio is about" in seen(good) and "Does it help?" in seen(good) and "good:" in seen(good)
    assert "No answer" in seen(bad) and "90 % interval" not in seen(bad)
    assert NASTY in seen(make_run(names=(NASTY, "b")))
    assert "Good" in seen(good.verdict) and len(repr(good.verdict)) < 120
    assert "(1, 1e-06)" in seen(good.privacy)
    assert repr(good.privacy) == "<Statement epsilon=1, delta=1e-06; 1,234 numbers from 54,321 records>"
    assert "54,321" in seen(JointStatement((good.privacy, good.privacy)))


def test_a_plan_an_owner_a_ledger_and_a_bundle(tmp_path):
    family = sf.families.Bernoulli()
    plan = sf.plan(family, n=20_000, epsilon=1.0, delta=1e-6, chains=2)
    assert "effective draws" in seen(plan) and repr(plan).startswith("<Plan langevin, 2 x") and len(repr(plan)) < 120
    table = {"y": [0, 1, 1] * 1000}
    owner = sf.Owner(table, name=NASTY.replace("/", "|"))
    assert "closed" in seen(owner) and "<script>" in seen(owner)
    with sf.Ledger(tmp_path / "ledger", epsilon=4.0, delta=1e-5) as ledger:
        bundle = sf.release(
            family, table, epsilon=1.0, delta=1e-6, copies=50, ledger=ledger, path=tmp_path / "b.parquet"
        )
        assert "answers" in seen(ledger) and bundle.id in seen(bundle) and "50" in seen(bundle)


def test_a_notebook_gets_a_bar(monkeypatch):
    lines = []
    handle = types.SimpleNamespace(update=lines.append)
    display, module = types.ModuleType("IPython.display"), types.ModuleType("IPython")
    display.HTML, display.display = str, lambda shown, display_id: lines.append(shown) or handle
    module.get_ipython, module.display = lambda: types.SimpleNamespace(kernel=True), display
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    with progress.ticker(None) as tick:
        progress.stage("reading <b>")
        tick(1, 4, "sampling")
        tick(4, 4, "sampling")
    assert any("reading &lt;b&gt;" in line for line in lines) and 'value="4" max="4"' in "".join(lines)
    assert lines[-1] == "" and not progress.watched()


@pytest.mark.parametrize("watch", [False, None])
def test_nobody_is_told_in_a_pipe(capsys, watch):
    with progress.watching("reading"), progress.ticker(watch) as tick:
        tick(1, 2, "sampling")
        progress.stage("compiling")
    assert capsys.readouterr() == ("", "") and not progress.watched()


def test_tenths_for_a_pipe():
    lines = []
    tick = progress.by_tenths(lines.append)
    for done in range(0, 301):
        tick(done, 300, "attacking")
    assert len(lines) == 11 and lines[-1] == "attacking: 300 of 300"
