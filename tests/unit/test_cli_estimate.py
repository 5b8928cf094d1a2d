"""`sfumato estimate`: what a person gets where a plan is refused, and what an unusable run hands over."""

import json
import re

import numpy as np
import pytest

import sfumato as sf
from unit.test_cli import call, call_json, make_study

SMALL = "0.02"
"""An epsilon for which 20 000 coins are too few for chains."""


@pytest.fixture(autouse=True)
def _own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("SFUMATO_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("SFUMATO_DEBUG", raising=False)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return make_study(tmp_path_factory.mktemp("coin") / "study", epsilon=SMALL, draws="250")


def test_a_refused_study_names_the_command_that_answers_and_it_does(study, capsys, tmp_path):
    code, planned = call_json(capsys, "plan", study)
    forecast = planned["plan"]["estimate"]
    assert code == 3 and forecast["width_ratio"] > 1 and forecast["error_sd"] > 0
    out = tmp_path / "out"
    code, _, said = call(capsys, "run", study, "--out", out)
    assert code == 3 and "sfumato estimate" in said and "force=True" not in said and "sf.estimate" not in said
    code, told = call_json(capsys, "estimate", study, "--out", out, "--seed", "3")  # the same folder: nothing was spent
    assert code == 0 and told["ok"] and told["kind"] == "estimate" and told["label"].startswith("An approximation")
    [p] = told["posterior"]
    assert p["low"] < 0.3 < p["high"]
    assert {"estimate", "report", "statement"} <= set(told["files"])
    found = sf.load(out / "estimate.npz")
    assert found.draws["p"].shape == (4, 250) and found.privacy.epsilon == float(SMALL)
    # As good as the plan said, up to what the plan could not know.
    without = (0.3 * 0.7 / 20_000) ** 0.5
    assert 0.7 * forecast["width_ratio"] < found.draws["p"].std() / without < 1.5 * forecast["width_ratio"]


def test_an_estimate_is_shown_reported_resumed_and_never_overwritten(study, capsys, tmp_path):
    out = tmp_path / "out"
    code, shown, _ = call(capsys, "estimate", study, "--out", out, "--epsilon", "0.05", "--seed", "3")
    assert code == 0
    assert (
        shown.index("An approximation") < shown.index("90 % interval") < shown.index("Verdict") < shown.index("Privacy")
    )
    first = sf.load(out / "estimate.npz")
    assert first.privacy.epsilon == 0.05
    for command in ("estimate", "run"):
        code, _, said = call(capsys, command, study, "--out", out)
        assert code == 2 and "never overwritten" in said
    code, told = call_json(capsys, "report", out / "estimate.npz", "--out", tmp_path / "page.html", "--title", "Coins")
    assert code == 0 and told["verdict"]["level"] == first.verdict.level
    page = (tmp_path / "page.html").read_text()
    assert "<h1>Coins</h1>" in page
    order = ("An approximation", 'class="forest"', 'id="sure"', 'id="promise"')
    assert [page.index(part) for part in order] == sorted(page.index(part) for part in order)
    code, told = call_json(capsys, "resume", out, "--out", tmp_path / "again")
    assert code == 0 and told["kind"] == "estimate"
    np.testing.assert_array_equal(sf.load(tmp_path / "again" / "estimate.npz").draws["p"], first.draws["p"])
    code, _, said = call(capsys, "resume", out, "--out", tmp_path / "more", "--pilot-share", "0.2")
    assert code == 2 and "this is an estimate" in said


def test_an_unusable_run_hands_over_what_its_releases_say(capsys, tmp_path):
    weak = make_study(tmp_path / "study", epsilon="0.1", kernel='"langevin"', max_iterations="60")
    code, told = call_json(capsys, "run", weak, "--out", tmp_path / "out", "--force", "--seed", "2")
    assert code == 8 and "run.noise_aware()" in told["error"]
    assert told["noise_aware"]["label"].startswith("An approximation")
    [p] = told["noise_aware"]["posterior"]
    assert p["low"] < 0.3 < p["high"]
    assert "What the releases say all the same" in (tmp_path / "out" / "report.html").read_text()
    assert isinstance(sf.load(told["files"]["releases"]), sf.Estimate)


def test_a_run_that_its_pilot_stopped_offers_what_is_left(capsys, tmp_path):
    far = make_study(tmp_path / "study", pilot_share="0.0001", epsilon="1.0")
    code, said = call_json(capsys, "run", far, "--out", tmp_path / "out")
    assert (code, said["code"]) == (3, "not-arrived")
    command = re.search(
        r"`sfumato estimate (\S+) --epsilon (\S+) --out (\S+)` answers with what is left", said["error"]
    )
    assert command and 0.99 <= float(command[2]) < 1.0 and command[3].endswith("out-estimate")
    assert said["estimate"]["width_ratio"] >= 1
    code, told = call_json(capsys, "estimate", command[1], "--epsilon", command[2], "--out", command[3])
    assert code == 0 and json.dumps(told)
