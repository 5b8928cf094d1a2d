"""``sfumato init``, ``token``, ``serve`` and study files that name a node."""

import json

import pytest

from sfumato.cli import main
from sfumato.errors import InvalidInput
from sfumato.studyfile import read_study


def said(capsys, *arguments):
    code = main([*map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_init_writes_once_and_tokens_come_and_go(tmp_path, capsys):
    path = tmp_path / "owner.toml"
    assert said(capsys, "init", path, "--name", "Ward 7")[0] == 0
    assert 'name = "Ward 7"' in path.read_text()
    code, failure = said(capsys, "init", path)
    assert code == 2 and "never overwritten" in failure["error"]
    code, made = said(capsys, "token", "add", path, "alice", "--days", "3")
    assert code == 0 and made["kind"] == "analyst" and made["token"].startswith("sfu_alice_")
    assert said(capsys, "token", "add", path, "me", "--owner")[1]["kind"] == "owner"
    assert said(capsys, "token", "add", path, "me2", "--owner", "--monitor")[0] == 2
    listed = said(capsys, "token", "list", path)[1]["tokens"]
    assert [line["name"] for line in listed] == ["alice", "me"]
    assert made["token"] not in json.dumps(listed)
    assert said(capsys, "token", "revoke", path, "alice")[0] == 0
    assert said(capsys, "token", "list", path)[1]["tokens"][0]["state"] == "revoked"
    assert main(["token", "list", str(path)]) == 0
    assert "revoked" in capsys.readouterr().out


def test_serve_refuses_a_network_without_tls(tmp_path, capsys):
    path = tmp_path / "owner.toml"
    said(capsys, "init", path)
    path.write_text(path.read_text().replace('host = "127.0.0.1"', 'host = "0.0.0.0"'))
    code, failure = said(capsys, "serve", path)
    assert code == 2 and "needs TLS" in failure["error"]


def test_serve_says_what_is_missing(tmp_path, capsys):
    assert said(capsys, "serve", tmp_path / "none.toml")[0] == 2
    path = tmp_path / "owner.toml"
    said(capsys, "init", path)
    assert main(["serve", str(path), "--port", "0"]) == 2  # no model file, no data
    assert "no model file" in capsys.readouterr().err


STUDY = """
[study]
model = "model.py:coin"
epsilon = 1.0
delta = 1e-6
[data]
node = "https://node.example:8750"
"""


def test_a_study_file_may_name_a_node_in_place_of_data(tmp_path, monkeypatch):
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    file = read_study(path)
    assert file.remote and file.domain() is None
    monkeypatch.delenv("SFUMATO_TOKEN", raising=False)
    with pytest.raises(InvalidInput, match="SFUMATO_TOKEN"), file.source():
        pass
    path.write_text(STUDY + 'path = "people.csv"\n')
    with pytest.raises(InvalidInput, match="not both"):
        read_study(path)
