"""Tokens: hashed at rest, given out once, revoked for good, checked in constant time."""

import stat
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from sfumato.errors import InvalidInput
from sfumato.node import tokens
from sfumato.node.tokens import TokenFile


@pytest.fixture
def book(tmp_path):
    return TokenFile(tmp_path / "tokens.json")


def test_a_token_opens_and_its_secret_is_not_in_the_file(book):
    token = book.add("alice")
    found = book.check(token)
    assert (found.name, found.kind) == ("alice", "analyst")
    secret = token.split("_", 2)[2]
    assert secret not in book.path.read_text()
    assert stat.S_IMODE(book.path.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["a", "under_score", "x-1", "a_b_c"])
def test_names_with_underscores_are_told_from_secrets(book, name):
    token = book.add(name)
    for _ in range(3):
        assert book.check(token).name == name


def test_no_token_opens_but_the_right_one(book):
    token = book.add("alice")
    other = book.add("bob")
    wrong = [
        "", "x", token[:-1], token + "x", token.swapcase(), token.replace("alice", "bob"), f"sfu_alice_{'A' * 43}",
        other.replace("bob", "alice"), "sfu__" + "A" * 43, "sfu_" + "A" * 43, token + "\n", "ü" * 60, "sfu_alice_" * 30,
    ]  # fmt: skip
    for text in wrong:
        assert book.check(text) is None, text


def test_an_unknown_name_costs_a_hash_too(book, monkeypatch):
    book.add("alice")
    hashed = []
    monkeypatch.setattr(tokens, "_hash", lambda secret, salt: hashed.append(secret) or b"\1" * 32)
    for text in ("sfu_nobody_" + "A" * 43, "sfu_alice_" + "A" * 43, "nonsense"):
        assert book.check(text) is None
    assert len(hashed) == 3


def test_revoked_and_expired_tokens_are_shut_out_at_once(book):
    token, brief = book.add("alice"), book.add("brief", days=1)
    other = TokenFile(book.path)  # the running node
    assert other.check(token) and other.check(brief)
    book.revoke("alice")
    assert other.check(token) is None
    lines = msgspec.json.decode(book.path.read_bytes(), type=list[tokens.Token])
    past = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
    changed = [msgspec.structs.replace(line, expires=past) if line.name == "brief" else line for line in lines]
    book.path.write_bytes(msgspec.json.encode(changed))
    assert other.check(brief) is None
    assert other.all()["brief"].state(datetime.now(UTC)) == "expired"
    assert other.all()["alice"].state(datetime.now(UTC)) == "revoked"


def test_a_name_is_given_out_once_also_after_revocation(book):
    book.add("alice")
    book.revoke("alice")
    with pytest.raises(InvalidInput, match="given out once"):
        book.add("alice")


@pytest.mark.parametrize("name", ["", "a b", "../x", "a.b", "a/b", "-x", "x" * 65, "naïve"])
def test_names_are_only_names(book, name):
    with pytest.raises(InvalidInput, match="a name is made of"):
        book.add(name)


def test_writers_do_not_lose_each_others_tokens(book):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda i: TokenFile(book.path).add(f"n{i}"), range(8)))
    assert sorted(book.all()) == [f"n{i}" for i in range(8)]
    assert len(set(made)) == 8


def test_revoking_a_stranger_is_an_error(book):
    with pytest.raises(InvalidInput, match="no token named"):
        book.revoke("nobody")
