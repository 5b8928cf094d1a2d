"""The report: self-contained, escaped, small, and true to the run."""

import dataclasses
import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from made_run import NASTY, WORDS, make_run
from sfumato.analysis.diagnostics import posterior_rows, series
from sfumato.analysis.report import write_report
from sfumato.analysis.report.answer import sentence, shown_parameters
from sfumato.analysis.report.html import number
from sfumato.analysis.report.page import CONTENTS
from sfumato.analysis.report.svg import density, ranks, ticks
from sfumato.analysis.report.words import promise
from sfumato.analysis.result import StopReason
from sfumato.privacy import gdp
from sfumato.privacy.joint import JointStatement, from_fields, plain_fields

VOID = {"meta"}


def render(tmp_path, run, **options):
    return write_report(run, tmp_path / "report.html", **options).read_text(encoding="utf-8")


class Balanced(HTMLParser):
    """Counts what is opened and not closed, and collects addresses."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.addresses = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "action", "data")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open[-3:])
        self.open.pop()


def parse(text):
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    return parser


def test_the_page_stands_alone(tmp_path):
    text = render(tmp_path, make_run())
    parser = parse(text)
    assert parser.addresses and all(address.startswith("#") for address in parser.addresses)
    assert all(f'id="{address[1:]}"' in text for address in parser.addresses)
    assert "script" not in parser.tags and "link" not in parser.tags and "img" not in parser.tags
    assert "url(" not in text and "@import" not in text and "http" not in text
    assert parser.tags.count("svg") == 3 * 4 + 1  # densities, ranks and traces of four parameters, and the spending


def test_all_text_is_escaped(tmp_path):
    text = render(tmp_path, make_run(names=(NASTY, "b")), title=NASTY)
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    parse(text)


def test_the_answer_comes_first_in_the_studys_own_words(tmp_path):
    run = make_run(words=WORDS)
    text = render(tmp_path, run)
    assert (
        text.index("Does it help?")
        < text.index('class="lead"')
        < text.index('class="verdict')
        < text.index('class="forest"')
    )
    assert [text.index(f'<section id="{key}"') for key, _ in CONTENTS] == sorted(
        text.index(f'<section id="{key}"') for key, _ in CONTENTS
    )
    draws = np.exp(run.draws["b"])
    low, high = np.quantile(draws, [0.05, 0.95])
    lead = re.search(r'<p class="lead">([^<]*)', text)[1]
    assert f"The odds ratio is about {draws.mean():.1f}" in lead and f"between {low:.1f} and {high:.1f}" in lead
    assert "3 more parameters" in lead and "A ratio of 1" not in lead  # both sides of it are likely
    assert "Entry [1]" in text and "a register" in text and "2026-01-31" in text


def test_a_clear_side_is_said_and_a_share_is_shown_in_per_cent():
    run = make_run(words=WORDS)
    run.draws["b"][...] = run.draws["b"] * 0.1 + 1.0
    rows = shown_parameters(run, WORDS, run.facts)
    assert [row.prior for row in rows[:2]] == [(-900.0, 900.0), None]
    assert rows[0].mean == pytest.approx(100 * run.draws["a"].mean()) and rows[0].unit.endswith("%")
    assert "of the draws are above it" in sentence(rows, WORDS, "good", "run")
    assert "roughly" in sentence(rows, WORDS, "rough", "run") and sentence(rows, WORDS, "unusable", "run").startswith(
        "No answer"
    )


def test_the_promise_says_the_numbers(tmp_path):
    run = make_run()
    text = render(tmp_path, run)
    for piece in ("54,321", "1,234", "2.72 times", "73%", "1 in 1,000,000", "This counts this study alone"):
        assert piece in text
    assert "A ledger keeps the sum" in render(tmp_path, make_run(shared=True))
    assert str(run.privacy).replace("'", "&#x27;") in text


def test_an_unusable_run_shows_no_number_of_its_posterior(tmp_path):
    run = make_run(shift=3.0, words=WORDS)
    text = render(tmp_path, run)
    assert 'role="alert"' in text and "Do not use these draws" in text
    for absent in ("forest", 'class="lead"', ">90 % interval</th>", "error of the mean", "Posterior density"):
        assert absent not in text[text.index("<body>") :].replace("Error of the mean", "")
    assert "Trace of a" in text  # what shows why stays


def test_densities_are_drawn_as_far_as_they_go():
    rng = np.random.default_rng(0)
    for draws, support in ((rng.normal(size=(2, 400)), (None, None)), (rng.beta(1, 30, size=(2, 400)), (0.0, 1.0))):
        plot = density(draws, (0.1, 0.2), "x", support)
        line = re.findall(r'<polyline class="main" points="([^"]+)"', plot)[0].split()
        heights = [130 - 22 - float(point.split(",")[1]) for point in line]
        top = max(heights)
        assert heights[-1] < 0.01 * top
        if support[0] is None:
            assert heights[0] < 0.01 * top
        else:  # at the end of the support it is as high as it is there, and nothing lies beyond
            assert heights[0] > 0.8 * top and float(line[0].split(",")[0]) == pytest.approx(10.0, abs=0.1)


@pytest.mark.parametrize(
    ("value", "sd", "fine", "coarse"),
    [
        (0.30021, 0.0033, "0.3002", "0.300"),
        (-0.001, 1.0, "0.0", "0.0"),
        (1234567.8, 4000.0, "1,234,568", "1,234,568"),
        (2.0, 0.0, "2.000", "2.000"),
    ],
)
def test_numbers_have_the_digits_that_they_deserve(value, sd, fine, coarse):
    assert (number(value, sd), number(value, sd, coarse=True)) == (fine, coarse)


def test_ranks_of_chains_that_agree_are_even():
    rng = np.random.default_rng(1)
    even, apart = (ranks(rng.normal(size=(2, 4000)) + shift * np.array([[0.0], [1.0]]), "x") for shift in (0.0, 3.0))
    heights = [
        [float(p.split(",")[1]) for line in re.findall(r'points="([^"]+)"', plot) for p in line.split()]
        for plot in (even, apart)
    ]
    assert np.ptp(heights[0]) < 25 < np.ptp(heights[1])


def test_numbers_are_those_of_the_run(tmp_path):
    run = make_run()
    rows = {row.name: row for row in posterior_rows(run)}
    draws = series(run)
    assert list(rows) == ["a", "b", "vector[0]", "vector[1]"]
    for name, row in rows.items():
        assert row.mean == pytest.approx(draws[name].mean())
        assert row.sd == pytest.approx(draws[name].std())
        assert (row.low, row.high) == pytest.approx(tuple(np.quantile(draws[name], [0.05, 0.95])))
        assert 600 < row.ess < 2400 and abs(row.r_hat - 1) < 0.02  # the draws are independent
        assert row.mcse == pytest.approx(row.sd / row.ess**0.5)
    text = render(tmp_path, run)
    assert f">{rows['vector[0]'].mean:.3f}</td>" in text
    for piece in (
        f"{run.acceptance:.0%} of the proposals",
        ">31</td>",
        "budget was spent",
        "1.5, \N{MINUS SIGN}2.5",
        "17; the noise has no seed",
    ):
        assert piece in text


def test_the_spending_curve_starts_with_the_pilot_and_ends_at_what_was_spent(tmp_path):
    run = make_run()
    text = render(tmp_path, run)
    plot = text[text.index("Budget spent, iteration by iteration") :]
    points = re.search(r'<polyline class="main" points="([^"]+)"', plot)[1].split()
    heights = [float(point.split(",")[1]) for point in points]
    floor, roof = 190 - 22, float(re.search(r'class="cap"[^>]* y1="([\d.]+)"', plot)[1])
    cap = run.privacy.mu**2
    share = [(floor - height) / (floor - roof) for height in heights]
    assert share[0] == pytest.approx(0.005 / cap, abs=2e-3)
    assert share[-1] == pytest.approx(run.privacy.spent_mu**2 / cap, abs=2e-3)
    assert all(a <= b + 1e-9 for a, b in zip(share, share[1:], strict=False))


def test_the_words_follow_the_diagnostics():
    good, bad, short = (make_run(**made).verdict for made in ({}, {"shift": 3.0}, {"steps": 2}))
    assert good.level == "good" and "agree with each other" in good.reasons[0]
    assert bad.level == "unusable" and "do not agree" in bad.reasons[0] and "known to" not in str(bad)
    assert short.level == "unusable" and "too few" in short.reasons[0]


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_short_runs_have_a_page_too(tmp_path, steps):
    text = render(tmp_path, make_run(steps=steps, stop=StopReason.INTERRUPTED))
    parse(text)
    assert "interrupted" in text
    assert not re.search(r"\bnan\b", text)  # what cannot be said is said so, not printed as a number


def test_a_stuck_chain_has_a_page_too(tmp_path):
    run = make_run()
    for draws in run.draws.values():
        draws[...] = 1.0
    parse(render(tmp_path, run))


def test_a_long_run_stays_small(tmp_path):
    text = render(tmp_path, make_run(chains=4, steps=20_000, names=tuple(f"p{i}" for i in range(30))))
    assert len(text) < 2_000_000
    assert "8 further parameters" in text


@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 5.0, 20.0, 800.0])
def test_the_promise_holds_for_every_epsilon(epsilon):
    words = " ".join(promise(make_run(epsilon=epsilon).privacy))
    share = 100 / (1 + math.exp(-epsilon))
    risen = re.search(r"may rise to (more than )?(\d+)%( at the most)?", words)
    if share < 99:
        assert risen[3] and abs(float(risen[2]) - share) < 0.51
    else:
        assert risen[1] and float(risen[2]) <= share
    assert ("hardly more" in words) == (epsilon <= 0.5)
    assert ("weak promise" in words) == (epsilon > 3)


def test_a_delta_of_one_in_n_is_called_what_it_is():
    for delta, careless in ((1e-6, False), (0.1, True)):
        privacy = dataclasses.replace(make_run().privacy, delta=delta, n=2000)
        assert ("given away" in " ".join(promise(privacy))) == careless
        assert ("WARNING" in str(privacy)) == careless


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-1.41, -1.33), (0, 2477), (1e-9, 3e-9), (-5, 5000)])
def test_ticks_are_round_and_inside(low, high):
    marks = ticks(low, high, 4)
    step = marks[1] - marks[0]
    assert 2 <= len(marks) <= 11
    assert low - 1e-9 * step <= marks[0] and marks[-1] <= high + 1e-9 * step
    assert f"{step:.6e}"[0] in "125"


def test_what_the_pilot_took_is_what_the_steps_did_not(tmp_path):
    page = render(tmp_path, make_run())
    assert (
        "46.4% of the cap, 8.0% before the chain (pilot)" in page
    )  # (0.8 * 1200 * 0.000025 + 0.005) / 0.0625, 0.005 / 0.0625


def test_langevin_is_told_in_the_words_of_the_plan(tmp_path):
    run = make_run()
    for plan, words in (
        ({"kernel": "langevin"}, "langevin, step size h = 0.4, noise sigma = 2 per correction<"),
        ({"kernel": "langevin", "copy_sigma": 60.0}, "noise sigma = 2 per correction on average<"),
    ):
        assert words in render(tmp_path, dataclasses.replace(run, planned=run.planned | plan))


def test_clamped_records_are_told_of_as_a_rule(tmp_path):
    run = make_run()
    assert "nearest point" not in render(tmp_path, run) and "clamped" not in str(run.privacy)
    clamped = dataclasses.replace(run.privacy, outside="clamp")
    assert "posterior is that of the clamped records" in str(clamped) and clamped.to_dict()["outside"] == "clamp"
    page = render(tmp_path, dataclasses.replace(run, privacy=clamped))
    assert (
        "moved to its nearest point before anything was computed. What was learnt is about the records after that"
        in page
    )
    both = JointStatement(
        (dataclasses.replace(clamped, owner="Amber"), dataclasses.replace(run.privacy, owner="Birch"))
    )
    assert both.outside == "clamp" and "nearest point before anything was computed at Amber;" in str(both)
    assert from_fields(plain_fields(both)) == both


def test_a_delta_of_one_in_n_is_called_what_it_is_for_each_owner():
    fine, bad = (dataclasses.replace(make_run().privacy, delta=delta, n=1000, owner="Amber") for delta in (1e-6, 0.5))
    assert "WARNING" not in str(JointStatement((fine, fine)))
    assert "WARNING, of Amber: delta = 0.5 is not below 1/n = 0.001" in str(JointStatement((fine, bad)))


def test_owners_stand_side_by_side_with_what_holds_for_somebody_whom_all_know(tmp_path):
    run = make_run()
    rules = {"Amber": "clamp", "Birch": "refuse"}
    owners = tuple(dataclasses.replace(run.privacy, owner=name, outside=rule) for name, rule in rules.items())
    planned = run.planned | {"owners": [{"name": "Amber", "share": 0.75}, {"name": "Birch", "share": 0.25}]}
    text = render(tmp_path, dataclasses.replace(run, privacy=JointStatement(owners), planned=planned))
    parse(text)
    assert "Owners and their coalition" in text and "75%" in text and "moved to its nearest point" in text
    together = float(re.search(r"which is epsilon = ([\d.]+)", text)[1])
    assert together == pytest.approx(float(gdp.epsilon(2**0.5 * run.privacy.mu, 1e-6)), rel=0.01)
