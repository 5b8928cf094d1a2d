"""`[[owners]]` in a study file: what is refused, and a real run over a node, a table and a bundle."""

import json
from dataclasses import replace

import pytest
import typer

import sfumato as sf
from node_helpers import YES, N, load, prepare, threaded
from sfumato.cli import endings, main
from sfumato.cli import study as study_commands
from sfumato.errors import InvalidInput
from sfumato.files.study import read_study
from sfumato.planner import budget_mu
from sfumato.run.opening import make_studies
from sfumato.run.parties import Given, as_parties
from sfumato.run.request import Request

HEAD = """
[study]
model = "model.py:bern"
epsilon = 3.0
delta = 1e-6
"""
DOMAIN = """
[domain.y]
kind = "binary"
columns = "said_yes"
"""
GUESS = "[guess]\np = 0.3\n"
NODE = """
[[owners]]
node = "https://node.example:8750"
token_env = "TOKEN_A"
"""
TABLE = """
[[owners]]
name = "Birch"
path = "people.csv"
n = 3000
"""


def write(folder, text):
    path = folder / "study.toml"
    path.write_text(text, encoding="utf-8")
    return path


def said(capsys, *arguments):
    code = main([*map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


# -- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD + NODE + TABLE, ["[domain]"]),
        (HEAD + DOMAIN + NODE + '[data]\npath = "x.csv"\n', ["[data] or [[owners]]", "not both"]),
        (HEAD + DOMAIN + NODE + 'path = "x.csv"\n', ["number 1", "one of node, path, bundle", "'node', 'path'"]),
        (HEAD + "[[owners]]\nepsilon = 1.0\n", ["number 1", "one of node, path, bundle"]),
        (HEAD + NODE + 'token = "sfu_me_x"\n', ["'token'", "token_env"]),
        (HEAD + NODE.replace('token_env = "TOKEN_A"', ""), ["token_env", "token_file", "never the token"]),
        (HEAD + NODE + "epsilon = 1.0\n", ["number 1", "together"]),
        (HEAD + NODE + "epsilon = '1'\ndelta = 1e-6\n", ["epsilon in [[owners]] number 1", "a number"]),
        (HEAD + NODE + "certificate = 3\n", ["certificate", "text in quotes"]),
        (HEAD + DOMAIN + TABLE + "outside = true\n", ["outside", "text in quotes"]),
        (HEAD + DOMAIN + NODE + TABLE.replace("3000", "'many'"), ["n in [[owners]] number 2", "whole number"]),
        (HEAD + DOMAIN + TABLE.replace('name = "Birch"', ""), ["number 1", "name"]),
        (HEAD + DOMAIN + TABLE + "columns = 'said_yes'\n", ["columns", "table"]),
        (HEAD + DOMAIN + TABLE + "ledger = { file = 'x' }\n", ["ledger in [[owners]] number 1", "path"]),
        (HEAD + DOMAIN + TABLE + "ledger = { path = 'x', eps = 1 }\n", ["'eps'", "epsilon"]),
        (HEAD + 'outside = "clamp"\n' + DOMAIN + TABLE, ["outside", "each owner's own", "[[owners]]"]),
        (HEAD.replace("epsilon = 3.0\n", "") + NODE, ["[study]", "epsilon and delta", "no default"]),
        (HEAD.replace("epsilon = 3.0\ndelta = 1e-6\n", "") + NODE, ["number 1", "epsilon and delta", "no default"]),
        (HEAD + "[[owners]]\nbundle = 'a.bundle'\n", ["live", "sfumato sample --bundle"]),
        (HEAD + "[owners]\nnode = 'x'\n", ["[[owners]]"]),
    ],
)
def test_refusals_name_the_owner_and_the_way_out(tmp_path, text, words):
    with pytest.raises(InvalidInput) as caught:
        read_study(write(tmp_path, text))
    for word in words:
        assert word in str(caught.value)


def test_every_owner_may_make_its_own_promise(tmp_path):
    own = "epsilon = 1.0\ndelta = 1e-7\n"
    study = read_study(
        write(tmp_path, HEAD.replace("epsilon = 3.0\ndelta = 1e-6\n", "") + DOMAIN + NODE + own + TABLE + own)
    )
    assert [(owner.epsilon, owner.delta) for owner in study.owners] == [(1.0, 1e-7)] * 2


def test_tokens_are_looked_for_where_the_file_says(tmp_path, monkeypatch):
    monkeypatch.delenv("TOKEN_A", raising=False)
    with pytest.raises(InvalidInput, match="TOKEN_A"), read_study(write(tmp_path, HEAD + NODE)).source():
        pass
    named = HEAD + NODE.replace('token_env = "TOKEN_A"', 'token_file = "a.token"')
    with pytest.raises(InvalidInput, match="a.token.*FileNotFoundError"), read_study(write(tmp_path, named)).source():
        pass
    (tmp_path / "a.token").write_text("\n")
    with pytest.raises(InvalidInput, match="wants a token"), read_study(write(tmp_path, named)).source():
        pass


def test_a_table_has_its_own_columns_and_ledger(tmp_path):
    own = 'columns = { y = "q7" }\noutside = "clamp"\nledger = { path = "b.ledger", epsilon = 4.0, delta = 1e-5 }\n'
    study = read_study(write(tmp_path, HEAD + DOMAIN + TABLE + TABLE.replace("Birch", "Cedar") + own))
    with study.source() as (birch, cedar):
        assert (birch.columns, birch.outside, birch.ledger, birch.n) == ({"y": "said_yes"}, "refuse", None, 3000)
        assert (cedar.columns, cedar.outside, cedar.ledger.epsilon) == ({"y": "q7"}, "clamp", 4.0)
        assert birch.data == tmp_path / "people.csv"
    with pytest.raises(InvalidInput, match="names no table"):
        _ = study.data_path


# -- running ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A node; a table and a bundle beside the study."""
    folder = tmp_path_factory.mktemp("study")
    tokens = prepare(folder / "node")
    mine = folder / "mine"
    prepare(mine, values=YES[:1500])
    (mine / "a.token").write_text(tokens["alice"] + "\n")
    family = load(mine, "bern")
    sf.release(family, {"y": YES[:1000]}, epsilon=2.0, delta=1e-6, copies=400).save(mine / "c.bundle")
    with threaded(folder / "node") as node:
        yield mine, node


def test_a_study_over_a_node_a_table_and_a_bundle(home, capsys, tmp_path):
    mine, node = home
    live = f"""
[[owners]]
node = "{node.url}"
token_file = "a.token"
epsilon = 2.0
delta = 1e-6

[[owners]]
name = "Birch"
path = "people.csv"
n = 1500
"""
    limits = 'kernel = "guided"\nchains = 2\nmax_iterations = 40\npilot_share = 0.0\nforce = true\n'
    study = write(mine, HEAD + limits + DOMAIN + GUESS + live)
    assert main(["plan", str(study)]) in (0, 3)
    text = " ".join(capsys.readouterr().out.split())
    assert "St Elsewhere: 3,000 records, epsilon = 2" in text and "Birch: 1,500 records, epsilon = 3" in text
    precision = budget_mu(2.0, 1e-6) ** -2 + budget_mu(3.0, 1e-6) ** -2  # each must be protected from the other
    assert f"together they are worth one owner with mu = {precision**-0.5:.4g}" in text
    code, refused = said(capsys, "plan", mine / "study.toml", "--n", "7")
    assert code == 2 and "leave n= out" in refused["error"]

    study = write(mine, HEAD + limits + DOMAIN + GUESS + live + '[[owners]]\nbundle = "c.bundle"\n')
    code, refused = said(capsys, "plan", study)
    assert code == 2 and "bundles" in refused["error"]
    code, answer = said(capsys, "run", study, "--out", tmp_path / "out", "--seed", "1")
    assert code in (endings.FINE, endings.UNUSABLE), answer  # so few steps may be of use or not
    promised = {one["owner"]: (one["epsilon"], one["n"]) for one in answer["privacy"]["owners"]}
    bundle = next(name for name in promised if name.startswith("bundle"))
    assert promised == {"St Elsewhere": (2.0, N), "Birch": (3.0, 1500), bundle: (2.0, 1000)}
    assert 0 < answer["iterations"] <= 40
    assert (tmp_path / "out" / "checkpoint" / "run.json").exists()
    # The copy in the output folder finds the same owners: going on with a finished run gives the same run.
    as_before, again = said(capsys, "resume", tmp_path / "out")
    assert as_before == code and again["posterior"] == answer["posterior"] and again["verdict"] == answer["verdict"]

    lost = replace(sf.load(tmp_path / "out" / "run.npz"), stop_reason=sf.StopReason.OWNER_LOST, stop_owner="Birch")
    with pytest.raises(typer.Exit) as ended:
        study_commands.hand_over(lost, tmp_path / "out" / "checkpoint", tmp_path / "lost", "a study", as_json=False)
    assert ended.value.exit_code == endings.OWNER
    assert (tmp_path / "lost" / "run-partial.npz").exists() and not (tmp_path / "lost" / "run.npz").exists()
    assert "Birch no longer answers. When it is back, go on with: sfumato resume" in capsys.readouterr().out


def test_a_run_that_fails_before_anyone_spends_leaves_no_checkpoint(home, capsys, tmp_path):
    mine, node = home
    owners = f'[[owners]]\nnode = "{node.url}"\ntoken_file = "a.token"\n' + TABLE
    text = HEAD.replace("3.0", "0.1") + 'kernel = "guided"\n' + DOMAIN + GUESS + owners
    code, refused = said(capsys, "run", write(mine, text), "--out", tmp_path / "out")
    assert code == 2 and "n = 3,000, and the table of " in refused["error"] and "1,500 records" in refused["error"]
    study = write(mine, text.replace("n = 3000", "n = 1500"))
    code, refused = said(capsys, "run", study, "--out", tmp_path / "out")
    assert (code, refused["code"]) == (3, "plan-too-weak")
    assert not (tmp_path / "out" / "checkpoint").exists()


def test_a_table_and_a_node_answer_the_same_questions(home):
    """Langevin around a reference point is planned for a list only if everyone in it can prove what it needs."""
    mine, node = home
    coin, domain = load(mine, "coin"), {"y": sf.Binary()}
    owners = [sf.Owner({"y": YES}, name="Birch"), sf.connect(node.url, token=(mine / "a.token").read_text().strip())]
    promise = Given(epsilon=3.0, delta=1e-6)
    studies = make_studies(coin, as_parties(owners, promise), domain, Request())
    assert all(study.reference_bounds is not None for study in studies)
    stated = make_studies(coin, as_parties(owners[:1], promise), domain, Request(sensitivity=sf.Clip(bound=1.0)))
    assert [study.reference_bounds for study in stated] == [None]


def test_a_plan_over_owners_says_what_it_needs():
    owners, bernoulli = [sf.Owner("nowhere.csv", name="Amber", n=4000)], sf.families.Bernoulli()
    with pytest.raises(InvalidInput, match=r"number of records of 'Cedar'.*n=\.\.\."):
        sf.plan(bernoulli, [*owners, sf.Owner("x.csv", name="Cedar")], epsilon=1.0, delta=1e-6)
    with pytest.raises(InvalidInput, match="leave n= out"):
        sf.plan(bernoulli, owners, n=7, epsilon=1.0, delta=1e-6)
    for missing in ({"n": 100}, {"owner": owners}):
        with pytest.raises(InvalidInput, match="no default"):
            sf.plan(bernoulli, **missing)
