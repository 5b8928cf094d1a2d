"""``sfumato demo consortium``: real tables, real server processes, and nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from node_helpers import call
from sfumato.cli import endings, main
from sfumato.demo.consortium import tables

COMMAND = [sys.executable, "-c", "import sys; from sfumato.cli import main; sys.exit(main())", "demo", "consortium"]


def started(folder: Path, *arguments: str) -> subprocess.Popen:
    """The demo as a person starts it, with folders of its own."""
    own = {"TMPDIR": str(folder), "SFUMATO_STATE": str(folder / "state")}
    return subprocess.Popen(
        [*COMMAND, "--out", str(folder / "out"), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | own,
    )  # fmt: skip


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has reaped yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until(happened, seconds: float = 120.0) -> bool:
    until = time.monotonic() + seconds
    while not happened() and time.monotonic() < until:
        time.sleep(0.05)
    return bool(happened())


def read_document(stream) -> dict:
    """The one JSON document of a command that goes on running."""
    lines = []
    for line in stream:
        lines.append(line)
        if line == "}\n":
            break
    return json.loads("".join(lines))


def test_three_insurers_from_their_nodes_to_the_pooled_posterior(tmp_path):
    """One run, all of it: three servers, their consoles, the answer, and Ctrl-C."""
    demo = started(tmp_path, "--json", "--keep", "--seed", "3", "--epsilon", "8", "--iterations", "150")
    try:
        answer = read_document(demo.stdout)
        assert answer["ok"], answer
        assert answer["iterations"] <= 150 and answer["plan"]["n"] == 20_190
        exact = {line["name"]: line for line in answer["without_privacy"]}
        for row in answer["posterior"]:
            # Seven Monte Carlo errors at ten effective draws, and half a standard deviation for a start not yet forgotten.
            assert abs(row["mean"] - exact[row["name"]]["mean"]) < (7 / 10**0.5 + 0.5) * exact[row["name"]]["sd"]

        owners = answer["owners"]
        assert [(owner["name"], owner["n"]) for owner in owners] == [
            ("Free Care", 6822), ("Coinsurance", 8119), ("Deductible", 5249)
        ]  # fmt: skip
        assert len({owner["console"] for owner in owners} | {owner["pid"] for owner in owners}) == 6
        assert sum(owner["noise_share"] for owner in owners) == pytest.approx(1)
        for owner in owners:
            status, console = call(f"{owner['console']}/api/console/state", owner["token"])
            assert (status, console["name"], console["n"]) == (200, owner["name"], owner["n"])
            assert 0 < console["budget"]["spent"] <= console["budget"]["cap"]
            assert (console["budget"]["epsilon"], console["budget"]["delta"]) == (8.0, 1e-5)
            assert console["answers"] == owner["answers"] > 100
            assert "(8, 1e-05)-differential privacy" in owner["statement"] and owner["name"] in owner["statement"]
            assert call(f"{owner['console']}/api/console/state", "sfu_owner_wrong")[0] == 401
            assert call(owner["console"])[0] == 200  # the page itself
        assert {one["owner"] for one in answer["privacy"]["owners"]} == {owner["name"] for owner in owners}
        assert {path.name for path in (tmp_path / "out").iterdir()} >= {"run.npz", "report.html", "owners.txt"}

        demo.send_signal(signal.SIGINT)
        _, said = demo.communicate(timeout=120)
        assert (demo.returncode, said) == (endings.FINE, "")
        assert all(gone(owner["pid"]) for owner in owners)
        assert not list(tmp_path.glob("sfumato-consortium-*"))  # no records, ledgers or tokens stay behind
    finally:
        demo.kill()
        demo.communicate()


def test_a_demo_that_is_killed_takes_its_nodes_along(tmp_path):
    demo = started(tmp_path, "--json")

    def children() -> list[int]:
        return [int(pid) for pid in Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()]

    try:
        assert wait_until(lambda: demo.poll() is not None or len(children()) == 3), "no nodes were started"
        nodes = children()
        assert len(nodes) == 3
    finally:
        demo.kill()
        demo.communicate()
    assert wait_until(lambda: all(gone(pid) for pid in nodes)), "a node outlived the demo"


# -- the tables -------------------------------------------------------------------------------------------------------


def test_the_tables_are_the_public_experiment_split_by_plan():
    insurers = tables.load()
    assert sum(insurer.n for insurer in insurers) == 20_190
    assert [set(insurer.records["pays"]) for insurer in insurers] == [{0}, {1}, {1}]  # none can tell what paying does
    for insurer in insurers:
        assert all(set(np.unique(insurer.records[name])) == {0, 1} for name in ("chronic", "visited"))
        assert set(insurer.records) == set(tables.COLUMNS)


def test_the_original_file_has_nobody_in_two_plans_and_at_most_five_years_of_one_person():
    """What the demo says about persons: the table itself has no numbers for them, the original beside it has."""
    import pandas as pd
    from statsmodels.datasets import randhie

    original = pd.read_csv(Path(randhie.__file__).parent / "src" / "randhie.csv")
    plan = np.where(original["idp"] == 1, 2, np.where(original["coins"] > 0, 1, 0))
    assert len(original) == 20_190 and original["zper"].nunique() == 5_912
    assert original.groupby("zper").size().max() == 5
    assert pd.Series(plan).groupby(original["zper"]).nunique().max() == 1
    assert np.bincount(plan).tolist() == [insurer.n for insurer in tables.load()]


def test_the_comparison_is_the_posterior_mode_of_all_records_together():
    insurers = tables.load()
    fit = tables.pooled_fit(insurers)
    columns = {name: np.concatenate([i.records[name] for i in insurers]).astype(float) for name in tables.COLUMNS}
    design = np.stack([np.ones(20_190), columns["pays"], columns["chronic"]], axis=1)
    slope = design.T @ (columns["visited"] - 1 / (1 + np.exp(-design @ fit.mean))) - fit.mean
    assert np.all(np.abs(slope) < 1e-6)
    assert list(tables.LABELS) == list(tables.GUESS)  # in the order of the design


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_a_missing_data_package_says_what_to_install(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "statsmodels.datasets", None)
    assert main(["demo", "consortium", "--out", str(tmp_path), "--json"]) == endings.INVALID
    assert "sfumato[demo,node]" in json.loads(capsys.readouterr().out)["error"]


def test_only_the_consortium_has_nodes_to_keep(capsys):
    assert main(["demo", "--keep", "--json"]) == endings.INVALID
    assert "--keep" in json.loads(capsys.readouterr().out)["error"]
    assert main(["demo", "hospital", "--json"]) == endings.INVALID
