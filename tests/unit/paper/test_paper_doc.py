"""docs/explanation/paper.md: every name in it exists, every number in it is recomputed, nothing of the paper is missing."""

import importlib
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtr

import sfumato
from sfumato import paper
from sfumato.paper import figures, lab
from sfumato.privacy import gdp

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "explanation" / "paper.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and line.count("|") >= 4]
WITNESSES = [
    tuple(cell.strip() for cell in line.strip("| ").split(" | ")[:2])
    for line in ROWS
    if re.match(r"\| `[^`]*[()*][^`]*` \| [-\d]", line)
]
NAMESPACE = {"np": np, "ndtr": ndtr, "paper": paper, "lab": lab, "gdp": gdp}


def resolve(name):
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise AssertionError(name)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(sfumato(?:\.\w+)+)`", PAGE))))
def test_every_function_named_exists(name):
    assert callable(resolve(name)) or name.count(".") <= 2


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`sf\.(\w+)`", PAGE))))
def test_every_public_name_exists(name):
    if not hasattr(sfumato, "__all__"):
        pytest.skip("the package has no public names yet")
    assert name in sfumato.__all__


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`(tests/[^`]+)`", PAGE))))
def test_every_test_named_exists(path):
    file, function = path.split("::")
    assert f"\ndef {function}(" in (ROOT / file).read_text(encoding="utf-8")


@pytest.mark.parametrize(("expression", "printed"), WITNESSES)
def test_every_number_is_recomputed(expression, printed):
    value = float(eval(expression.strip("`"), NAMESPACE))  # noqa: S307 (our own page)
    mantissa, _, power = printed.partition("e")
    digits = len(mantissa.partition(".")[2])
    half_a_unit = 0.5 * 10.0 ** (int(power or 0) - digits)
    assert abs(value - float(printed)) <= half_a_unit * (1 + 1e-9)


def test_there_are_witnesses_for_the_slips():
    assert len(WITNESSES) >= 20
    printed = dict(WITNESSES)
    call = "`paper.theorem1(1e5, 1, 0.5, 1.5, 1, 10).epsilon_{}`"
    assert printed[call.format("unsimplified")] == "1.364"
    assert printed[call.format("printed")] == "0.487"


def test_figures_are_committed_and_shown():
    linked = set(re.findall(r"\((?:\.\./)?figures/([\w-]+)\.png\)", PAGE))
    shown = set(re.findall(r"!\[[^\]]+\]\((?:\.\./)?figures/([\w-]+)\.png\)", PAGE))
    assert linked == shown == set(figures.FIGURES)
    for name in linked:
        assert (ROOT / "docs" / "figures" / f"{name}.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    "item",
    ["Definition 1", "Proposition 1", "Proposition 2", "Proposition 3", "Lemma 1", "Theorem 1", "Theorem 2",
     "Theorem 3",
     "Corollary 1", "Assumption 1", "Assumption 2", "Assumption 3", "Assumption 4", "Algorithm 1", "Algorithm 2",
     "Algorithm 3", "Remark: data-dependent proposals", "Remark: orders", "Remark: post-processing"],
)  # fmt: skip
def test_nothing_of_the_paper_is_missing(item):
    assert any(re.match(rf"\| {item}\b", line) for line in ROWS)


def test_commands_on_the_page_run():
    from typer.testing import CliRunner

    from sfumato.cli.paper import app

    commands = re.findall(r"^\$ sfumato paper (.+)$", PAGE, flags=re.MULTILINE)
    assert len(commands) >= 4
    for command in commands:
        assert CliRunner().invoke(app, command.split()).exit_code == 0, command
