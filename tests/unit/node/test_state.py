"""The node behind its service: pausing, leaving, coming back, knocking."""

import asyncio
import threading
from types import SimpleNamespace

import msgspec
import pytest

from node_helpers import N, prepare
from sfumato.errors import LedgerError
from sfumato.node import state
from sfumato.node.catalogue import Refusal
from sfumato.node.config import read_owner
from sfumato.node.state import ActiveRun, Node
from sfumato.protocol.frames import Open
from sfumato.protocol.questions import Statistic, Terms
from sfumato.vault.lattice import choose_gamma

TERMS = Terms(
    kernel="langevin", chains=1, sigma=20.0, gamma=choose_gamma(20.0, N), matrix=[[0.04]], proposal_sigma=60.0,
    proposal_gamma=choose_gamma(60.0, N),
)  # fmt: skip


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    folder = tmp_path_factory.mktemp("state")
    tokens = prepare(folder, studies=("bern",), limits="failed_logins_per_minute = 1")
    node = Node(read_owner(folder / "owner.toml"))
    yield node, tokens
    node.close()


def opened(node, holder, run="r"):
    model = next(iter(node.studies["bern"].forms))
    return node.open_run(
        node.tokens.all()["alice"], Open(study="bern", model=model, run=run, epsilon=2.0, delta=1e-6), holder
    )


def test_a_pause_holds_on_a_disk_that_cannot_be_written(house, monkeypatch, tmp_path):
    node, _ = house
    monkeypatch.setattr(node, "_marker", tmp_path / "nowhere" / "owner.ledger.paused")
    with pytest.raises(Refusal) as refused:
        node.pause("owner")
    assert refused.value.code == "ledger"  # the owner hears that a restart would end it
    assert node.paused
    node.resume("owner")
    assert not node.paused


def test_a_client_who_comes_back_while_the_node_tidies_keeps_its_desk(house):
    node, _ = house
    first, second = object(), object()
    run = opened(node, first)
    node.leave_run(run, first)
    assert opened(node, second) is run  # just after `tidy` chose it and just before it closes it
    node._close_run(run)
    assert not run.closed and node.runs[run.name] is run
    run.desk.begin(TERMS)
    answer = run.desk.answer_bytes("q", Statistic(chains=1))
    node.leave_run(run, second)
    node._close_run(run)
    assert run.closed and run.name not in node.runs
    third = opened(node, object())
    assert third is not run
    third.desk.begin(TERMS)
    assert third.desk.answer_bytes("q", Statistic(chains=1)) == answer
    node._close_run(run)  # a second closing of the old one leaves the new one alone
    assert node.runs[run.name] is third
    for refused in (lambda: run.desk.begin(TERMS), lambda: run.desk.answer_bytes("q2", Statistic(chains=1))):
        with pytest.raises(LedgerError, match="closed desk"):
            refused()


def test_only_what_is_compiled_is_answered_in_the_loop():
    question, warm = Statistic(chains=1), set()
    desk = SimpleNamespace(is_warm=lambda asked: type(asked) in warm, here=True)
    run = ActiveRun("alice", None, "r", desk, SimpleNamespace(rows=state.LIGHT_TERMS), None)
    run.settle_terms(TERMS)
    assert not run.answers_at_once(question)
    warm.add(Statistic)
    assert run.answers_at_once(question)
    with run.on_a_thread():  # somebody else is at the desk: the loop would wait for them
        assert not run.answers_at_once(question)
    assert run.answers_at_once(question)
    walk, near = msgspec.structs.replace(TERMS, kernel="walk"), msgspec.structs.replace(TERMS, centre=[0.1])
    many, fewer = state.LIGHT_TERMS, state.LIGHT_TERMS - state.PROOF_TERMS
    for terms, rows, here, light in [
        (walk, many, True, True),
        (msgspec.structs.replace(walk, chains=2), many, True, False),  # too many records for the loop
        (walk, many, False, False),  # records on other machines: one would wait for them
        (near, many, True, False),
        (near, fewer, True, True),
        (near, fewer, False, False),
        (msgspec.structs.replace(near, chains=64), 10, True, False),  # as many proofs take longer than a few records
    ]:
        desk.here, run.facts.rows = here, rows
        run.settle_terms(terms)
        assert run.answers_at_once(question) is light


def test_a_run_that_holds_the_loop_up_is_answered_on_a_thread_from_then_on():
    question = Statistic(chains=1)
    run = ActiveRun(
        "alice", None, "r", SimpleNamespace(is_warm=lambda asked: True, here=True), SimpleNamespace(rows=1), None
    )
    run.settle_terms(TERMS)
    run.took(state.LOOP_SECONDS / 2)
    assert run.answers_at_once(question)
    run.took(state.LOOP_SECONDS * 2)
    assert not run.answers_at_once(question)
    run.settle_terms(TERMS)  # another chain may be lighter
    assert run.answers_at_once(question)


def test_a_desk_is_warm_for_what_it_has_computed_under_these_terms(house):
    node, _ = house
    holder = object()
    run = opened(node, holder, run="warm")
    desk = run.desk
    assert not desk.is_warm(Statistic(chains=1))
    desk.begin(TERMS)
    assert not desk.is_warm(Statistic(chains=1))
    desk.answer_bytes("q", Statistic(chains=1))
    assert desk.is_warm(Statistic(chains=1))
    desk.begin(TERMS)  # the same terms again: nothing to compile
    assert desk.is_warm(Statistic(chains=1))
    desk.begin(msgspec.structs.replace(TERMS, chains=2))
    assert not desk.is_warm(Statistic(chains=2))
    node.leave_run(run, holder)
    node._close_run(run)
    desk = opened(node, holder, run="warm").desk
    desk.begin(TERMS)
    desk.answer_bytes("q", Statistic(chains=1))  # given again from the books: nothing was computed
    assert not desk.is_warm(Statistic(chains=1))


def test_a_valid_token_gets_in_where_wrong_ones_came_from(house, monkeypatch):
    node, tokens = house

    def knock(token, address="198.51.100.7"):
        try:
            return asyncio.run(node.authenticate(f"Bearer {token}", address, "analyst")).name
        except Refusal as refusal:
            return refusal.code

    with monkeypatch.context() as cheap:  # what is right is tested elsewhere; here forty wrong ones come
        cheap.setattr(node.tokens, "check", lambda token: None)
        codes = [knock(f"sfu_alice_{'A' * 43}") for _ in range(40)]
    assert codes[0] == "unauthorised" and codes[-1] == "too-fast"
    assert knock(tokens["bob"]) == "bob"  # never seen before, from the same address
    assert knock(tokens["bob"]) == "bob"
    assert knock(f"sfu_alice_{'A' * 43}") == "too-fast"
    assert knock(f"sfu_alice_{'A' * 43}", "203.0.113.9") == "unauthorised"  # another address has its own count


def test_addresses_are_forgotten_in_the_order_they_came(house):
    node, _ = house
    for i in range(5000):
        node._failures.of(f"address {i}")
    assert len(node._failures._buckets) <= 4096


def test_a_flood_of_wrong_tokens_waits_in_a_line_of_its_own(house, monkeypatch):
    """While an address that failed often has its tokens hashed, one at a time, others do not wait for it."""
    node, tokens = house
    going, release = threading.Semaphore(0), threading.Event()
    check = node.tokens.check

    def held(token):
        if "AAAA" not in token:
            return check(token)
        going.release()
        release.wait(30)
        return None

    async def knock():
        bad = node._failures.of("192.0.2.1")
        while bad.take():
            pass
        flood = [
            asyncio.create_task(node.authenticate(f"Bearer sfu_alice_{'A' * 43}", "192.0.2.1", "analyst"))
            for _ in range(state.WAITING_HASHES + 5)
        ]
        await asyncio.to_thread(going.acquire)
        found = await node.authenticate(f"Bearer {tokens['alice']}", "192.0.2.2", "analyst")
        assert not going.acquire(blocking=False)  # of the flood, one alone is being hashed
        release.set()
        return found, await asyncio.gather(*flood, return_exceptions=True)

    monkeypatch.setattr(node.tokens, "check", held)
    monkeypatch.setattr(node, "_hashing", asyncio.Semaphore(2))
    monkeypatch.setattr(node, "_slow_hashing", asyncio.Semaphore(1))
    found, refused = asyncio.run(knock())
    assert found.name == "alice"
    assert {error.code for error in refused} == {"too-fast"}
    assert sum("waiting" in error.detail for error in refused) == 5
