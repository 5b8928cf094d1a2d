"""``sfumato init``, ``token``, ``serve`` and study files that name a node."""

import json
import socket
from pathlib import Path

import pytest

import sfumato as sf
from node_helpers import YES, load, prepare
from sfumato.cli import main
from sfumato.errors import InvalidInput
from sfumato.files.study import read_study
from sfumato.node.config import MODEL, Listen
from sfumato.node.process import running
from sfumato.node.serve import held, let_in
from sfumato.owners.remote import connect


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
    assert main(["serve", str(path), "--port", "0"]) == 2  # no data
    assert "people.csv" in capsys.readouterr().err
    (tmp_path / "model.py").unlink()
    assert main(["serve", str(path), "--port", "0"]) == 2
    assert "no model file" in capsys.readouterr().err


def test_what_init_writes_is_served_as_it_stands_beside_a_table(tmp_path, capsys):
    assert said(capsys, "init", tmp_path / "owner.toml")[1]["model_written"] is True
    rows = "\n".join(f"{i},{v}" for i, v in enumerate(YES))
    (tmp_path / "people.csv").write_text(f"person,said_yes\n{rows}\n")
    token = said(capsys, "token", "add", tmp_path / "owner.toml", "alice")[1]["token"]
    with running([("Ward 7", tmp_path / "owner.toml")]) as [node]:
        owner = connect(node.address, token=token)
        plan = sf.plan(load(tmp_path, "coin"), owner, epsilon=1.0, delta=1e-6, chains=2)
    assert plan.n == len(YES)


def test_init_keeps_a_model_that_is_there(tmp_path, capsys):
    (tmp_path / "model.py").write_text("mine = 1\n")
    assert main(["init", str(tmp_path / "owner.toml")]) == 0
    assert "stays as it is" in capsys.readouterr().out
    assert (tmp_path / "model.py").read_text() == "mine = 1\n"


def test_the_model_that_init_writes_is_the_one_of_the_examples():
    assert (Path(__file__).parents[3] / "examples" / "01_coin" / "model.py").read_text() == MODEL


def test_a_port_that_is_taken_is_said_in_words_before_anything_is_read(tmp_path, capsys):
    prepare(tmp_path)
    (tmp_path / "people.csv").unlink()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, failure = said(capsys, "serve", tmp_path / "owner.toml", "--port", port)
    assert (code, failure["code"]) == (2, "invalid-input")
    assert f"127.0.0.1:{port} is in use" in failure["error"] and "--port" in failure["error"]
    assert not (tmp_path / "owner.ledger").exists()
    assert said(capsys, "serve", tmp_path / "owner.toml", "--port", 65536)[0] == 2


def test_a_port_that_is_taken_while_records_are_read_is_said_in_words_too():
    """Both programs hold the address; only one of them may listen."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        listen = Listen(port=other.getsockname()[1])
        with held(listen) as sockets:
            other.listen()
            with pytest.raises(InvalidInput, match="is in use"):
                let_in(listen, sockets)


def test_an_address_of_another_machine_is_refused_in_words():
    with (
        pytest.raises(InvalidInput, match=r"192\.0\.2\.1:8750 cannot be had .*another host"),
        held(Listen(host="192.0.2.1")),
    ):
        pass


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


def test_a_name_with_the_same_address_twice_or_with_one_that_is_not_here_is_served(monkeypatch):
    """As localhost often is: twice in the hosts file, or as an IPv6 address of a machine that has none."""
    listen = Listen(host="localhost", port=0)
    here = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))
    away = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 0))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [here, away, here])
    with held(listen) as sockets:
        let_in(listen, sockets)
        assert [one.getsockname()[0] for one in sockets] == ["127.0.0.1"]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [away])
    with pytest.raises(InvalidInput, match="cannot be had"), held(listen):
        pass
