"""`sfumato paper`: one shape of success, one shape of refusal, and the numbers of the library."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from sfumato import paper
from sfumato.cli.paper import app


def call(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def call_json(*arguments):
    result = call(*arguments, "--json")
    return result.exit_code, json.loads(result.stdout)


def test_theorem1_evaluates():
    code, answer = call_json("theorem1", "--n", 100000, "--sigma", 10)
    truth = paper.theorem1(1e5, 1, 0.5, 1.5, 1, 10)
    assert code == 0 and answer["ok"]
    for name in ("iterations", "delta", "epsilon_printed", "epsilon_corrected", "epsilon_exact", "mu"):
        assert answer[name] == getattr(truth, name)


def test_theorem1_prints_a_table():
    result = call("theorem1", "--n", 100000, "--sigma", 10)
    assert result.exit_code == 0
    for piece in ("8,685", "1.3641", "1.4141", "0.4873", "0.1297", "not what the proof gives"):
        assert piece in result.stdout


@pytest.mark.parametrize(("route", "field"), [("exact", "epsilon_exact"), ("paper", "epsilon_paper")])
def test_theorem1_solves_for_sigma(route, field):
    _, answer = call_json("theorem1", "--n", 100000, "--epsilon", 1, "--route", route)
    assert answer["solved_for"] == "sigma"
    assert answer[field] == pytest.approx(1.0, rel=1e-6)


def test_theorem1_solves_for_k0_at_a_given_delta():
    _, answer = call_json("theorem1", "--n", 100000, "--epsilon", 1, "--delta", 1e-6, "--sigma", 2.4)
    assert answer["solved_for"] == "k0"
    assert answer["delta"] == pytest.approx(1e-6)
    assert 0.999 < answer["epsilon_exact"] <= 1


def test_sigma_enough_here_but_not_everywhere_is_said():
    result = call("theorem1", "--n", 100000, "--sigma", 1)
    assert result.exit_code == 0
    assert "not for every n" in result.stdout


def test_epsilon_and_records():
    _, answer = call_json("epsilon", "--n", 100000, "--sigma", 2.4, "--iterations", 20000, "--delta", 1e-6)
    assert answer["exact"] < 1 < answer["paper"]
    _, needed = call_json("records", "--epsilon", 1, "--iterations", 20000, "--delta", 1e-6)
    assert 2 < needed["exact"] < needed["paper"]
    assert call("epsilon", "--n", 1e5, "--sigma", 2.4, "--iterations", 9, "--delta", 1e-6).exit_code == 0
    assert call("records", "--epsilon", 1, "--iterations", 20000, "--beta", 1.5).exit_code == 0
    _, silent = call_json("epsilon", "--n", 2, "--sigma", 0.1, "--iterations", 1, "--delta", 1e-6)
    assert silent["paper"] is None, "JSON has no infinity"


@pytest.mark.parametrize(
    "arguments",
    [
        ("theorem1", "--n", 1, "--sigma", 10),
        ("theorem1", "--n", 100000),
        ("theorem1", "--n", 100000, "--sigma", 10, "--delta", 2),
        ("theorem1", "--n", 100000, "--sigma", 0.001),
        ("epsilon", "--n", 100000, "--sigma", -1, "--iterations", 9, "--delta", 1e-6),
        ("records", "--epsilon", 1, "--iterations", 5),
    ],
)
def test_refusals_have_one_shape(arguments):
    code, answer = call_json(*arguments)
    assert code == 2
    assert set(answer) == {"ok", "code", "error"} and not answer["ok"]
    spoken = call(*arguments)
    assert spoken.exit_code == 2
    assert "Error:" in spoken.output


def test_figures_to_a_folder(tmp_path):
    code, answer = call_json("figures", "--out", tmp_path / "new", "--only", "kappa", "--only", "acceptance-sigma")
    assert code == 0
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["acceptance-sigma.png", "kappa.png"]
    assert len(answer["figures"]) == 2
    assert call("figures", "--out", tmp_path, "--only", "nonsense").exit_code == 2


def test_import_is_light():
    code = "import sys, sfumato.cli.paper; sys.exit(any(m in sys.modules for m in ('jax', 'matplotlib')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
