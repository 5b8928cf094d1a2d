import json
import multiprocessing
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from sfumato.cli.ledger import app
from sfumato.errors import BudgetSpent, InvalidInput, LedgerError
from sfumato.privacy.budget import cap_quanta, mu_squared
from sfumato.vault.ledger import Answer, Block, Head, Ledger
from sfumato.vault.ledger.store import APPLICATION_ID, _stores

# A worker that has run other tests has JAX's threads, which JAX warns about at every fork; the ledger itself starts none.
pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")

CAP = 1000


@pytest.fixture(params=["file", "memory"])
def ledger(request, tmp_path):
    made = Ledger.in_memory(CAP) if request.param == "memory" else Ledger.with_cap(tmp_path / "budget.ledger", CAP)
    with made:
        yield made


@pytest.fixture
def path(tmp_path):
    """A ledger with some life in it: two levels, a settled block, an open one, answers."""
    place = tmp_path / "budget.ledger"
    with Ledger.with_cap(place, CAP) as book:
        analyst = book.account("analyst", 600, about={"who": "A"})
        study = book.account("study", 300, parent=analyst)
        first, second = study.reserve(100), study.reserve(50)
        study.record_many(first, [Answer("q1", "h1", 10, b"one"), Answer("q2", "h2", 20, b"two")])
        study.record("q3", "h3", second, 5, b"three")
        first.settle(60)
        analyst.reserve(7)
    return place


def edit(path, *statements):
    with closing(sqlite3.connect(path)) as db, db:
        for statement in statements:
            db.execute(statement)


def problems(path, kept=None):
    with Ledger(path) as book:
        return book.verify(kept).problems


# --- creation -------------------------------------------------------------------------------------------------------


def test_created_from_epsilon_and_delta_and_opened_again(tmp_path):
    from sfumato.privacy import gdp

    place = tmp_path / "budget.ledger"
    with Ledger(place, epsilon=1.0, delta=1e-6) as book:
        assert book.cap == cap_quanta(gdp.mu(1.0, 1e-6))
        assert (book.spent, book.left) == (0, book.cap)
    with Ledger(place) as again, Ledger(place, epsilon=1, delta=1e-6) as once_more:
        assert again.id == once_more.id
        assert (again.cap, again.epsilon, again.delta) == (once_more.cap, 1.0, 1e-6)


@pytest.mark.parametrize(("epsilon", "delta"), [(1.1, 1e-6), (1.0, 2e-6)])
def test_another_guarantee_is_refused(tmp_path, epsilon, delta):
    place = tmp_path / "budget.ledger"
    Ledger(place, epsilon=1.0, delta=1e-6).close()
    with pytest.raises(LedgerError, match="fixed when it is created"):
        Ledger(place, epsilon=epsilon, delta=delta)


def test_another_cap_is_refused(path):
    with pytest.raises(LedgerError, match="cap of 1000 quanta, not 999"):
        Ledger.with_cap(path, 999)


def test_epsilon_and_delta_come_together(tmp_path):
    with pytest.raises(InvalidInput, match="together"):
        Ledger(tmp_path / "budget.ledger", epsilon=1.0)


def test_file_holds_no_half_ledger_and_no_strangers_may_read_it(tmp_path):
    Ledger.with_cap(tmp_path / "budget.ledger", CAP).close()
    assert os.listdir(tmp_path) == ["budget.ledger"]
    assert (tmp_path / "budget.ledger").stat().st_mode & 0o077 == 0


def test_names_with_odd_letters(tmp_path):
    place = tmp_path / "50% budget? #1 ü.ledger"
    Ledger.with_cap(place, CAP).close()
    with Ledger(place) as book:
        assert book.cap == CAP


def test_two_threads_create_one_ledger(tmp_path):
    ids, start = [], threading.Barrier(4)

    def create():
        start.wait()
        with Ledger.with_cap(tmp_path / "budget.ledger", CAP) as book:
            ids.append(book.id)

    run_threads(create, 4)
    assert len(ids) == 4 and len(set(ids)) == 1


def run_threads(work, count):
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# --- files that will not do -----------------------------------------------------------------------------------------


def test_missing_file():
    with pytest.raises(LedgerError, match="no ledger at .*; create one"):
        Ledger("nowhere.ledger")


@pytest.mark.parametrize("content", [b"", b"not a database " * 100], ids=["empty", "text"])
def test_file_that_is_not_a_ledger(tmp_path, content):
    place = tmp_path / "budget.ledger"
    place.write_bytes(content)
    for terms in ({}, {"epsilon": 1.0, "delta": 1e-6}):
        with pytest.raises(LedgerError, match="is not a ledger"):
            Ledger(place, **terms)
    assert place.read_bytes() == content


def test_folder_is_not_a_ledger(tmp_path):
    with pytest.raises(LedgerError, match="no ledger at"):
        Ledger(tmp_path)


def test_other_database_is_not_a_ledger(tmp_path):
    edit(tmp_path / "other.db", "CREATE TABLE t (x)")
    with pytest.raises(LedgerError, match="some other SQLite database"):
        Ledger(tmp_path / "other.db")


def test_newer_format_is_refused(path):
    edit(path, "PRAGMA user_version=2")
    with pytest.raises(LedgerError, match="format 2"):
        Ledger(path)


def test_first_entry_must_be_readable(path):
    edit(path, "UPDATE entries SET entry = '{}' WHERE seq = 1")
    with pytest.raises(LedgerError, match="first entry"):
        Ledger(path)


def test_damaged_file(path):
    raw = bytearray(path.read_bytes())
    raw[4096:] = b"\xff" * len(raw[4096:])
    path.write_bytes(raw)
    with pytest.raises(LedgerError, match="is damaged|cannot be read"):
        Ledger(path)


def test_truncated_file(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(LedgerError, match="is damaged"), Ledger(path) as book:
        book.account("analyst", 600).reserve(1)


def test_folder_that_does_not_exist(tmp_path):
    with pytest.raises(LedgerError, match="cannot be created"):
        Ledger.with_cap(tmp_path / "no" / "budget.ledger", CAP)


def test_log_of_a_lost_ledger_is_not_played_into_a_new_one(path):
    path.unlink()
    Path(f"{path}-wal").write_bytes(b"remains")
    with pytest.raises(LedgerError, match="remains of another"):
        Ledger.with_cap(path, CAP)


def test_ledger_moved_away_while_in_use(path):
    with Ledger(path) as book:
        account = book.account("analyst", 600)
        path.rename(path.with_name("elsewhere"))
        with pytest.raises(LedgerError, match="moved, replaced or deleted"):
            account.reserve(1)
        shutil.copy(path.with_name("elsewhere"), path)
        with pytest.raises(LedgerError, match="moved, replaced or deleted"):
            account.reserve(1)


def test_closed_ledger(ledger):
    account = ledger.account("run", 10)
    ledger.close()
    with pytest.raises(LedgerError, match="closed"):
        account.reserve(1)
    assert "cannot be read" in repr(ledger) and "cannot be read" in repr(account)


def python(code, *arguments):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout


TRY = """
import os, sys
from sfumato.vault.ledger import Ledger
from sfumato.errors import LedgerError
if os.geteuid() == 0 and "nobody" in sys.argv:  # permissions do not apply to root
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    with Ledger(sys.argv[1]) as book:
        book.account("analyst", 600).reserve(1)
        print("reserved")
except LedgerError as error:
    print(error)
"""

CREATE = TRY.replace("Ledger(sys.argv[1])", "Ledger.with_cap(sys.argv[1], 1000)")


@pytest.fixture
def crossing():
    """A folder that another user can reach, which those of `tmp_path` are not."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
        Path(folder).chmod(0o755)


@pytest.mark.parametrize(("folder_mode", "file_mode"), [(0o777, 0o444), (0o555, 0o444), (0o555, 0o666)])
def test_read_only_file_or_folder(path, crossing, folder_mode, file_mode):
    place = Path(shutil.copy(path, crossing))
    place.chmod(file_mode)
    crossing.chmod(folder_mode)
    told = python(TRY, place, "nobody")
    assert "nothing is answered unless the ledger can record it" in told
    assert "cannot be written" in told or "cannot be opened" in told


def test_read_only_folder_refuses_creation(crossing):
    crossing.chmod(0o555)
    told = python(CREATE, crossing / "budget.ledger", "nobody")
    assert "cannot be created" in told


def test_writable_folder_of_another_user_is_no_obstacle(crossing):
    crossing.chmod(0o777)
    told = python(CREATE, crossing / "budget.ledger", "nobody")
    assert told == "reserved\n"


FILL = """
import resource, sys
from sfumato.vault.ledger import Ledger
from sfumato.errors import LedgerError
with Ledger(sys.argv[1]) as book:
    account = book.account("full", 900)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 17, 1 << 17))
    done = 0
    try:
        while True:
            account.reserve(1)
            done += 1
    except LedgerError as error:
        print(error)
    print(done, account.spent)
"""


def test_full_disk_reserves_nothing(tmp_path):
    place = tmp_path / "budget.ledger"
    Ledger.with_cap(place, CAP).close()
    told, figures = python(FILL, place).splitlines()
    assert "The change was not made" in told and "disk" in told
    done, spent = map(int, figures.split())
    assert 0 < done == spent < 900
    with Ledger(place) as book:
        assert book.spent == done and book.verify().ok
        assert book.account("full", 900).reserve(1).quanta == 1  # there is room again


def test_full_database_reserves_nothing(ledger):
    account = ledger.account("run", CAP)
    with ledger._store.read() as db:
        db.execute("PRAGMA max_page_count=1")
    block = account.reserve(5)
    with pytest.raises(LedgerError, match="the disk is full"):
        account.record("q", "h", block, 1, bytes(10**6))
    assert account.replay("q", "h") is None
    assert ledger.spent == 5 and ledger.verify().ok


def test_full_disk_at_creation_leaves_nothing(tmp_path):
    code = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192)){CREATE}"
    told = python(code, tmp_path / "budget.ledger")
    assert "The change was not made" in told
    assert os.listdir(tmp_path) == []


def test_busy_ledger(path):
    with closing(sqlite3.connect(path, isolation_level=None)) as other, Ledger(path, timeout=0.05) as book:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match="held by another process"):
            book.account("late", 10)
        assert book.spent == 117  # readers are not kept waiting
        other.execute("ROLLBACK")
        assert book.account("late", 10).reserve(1).quanta == 1


# --- accounts and blocks --------------------------------------------------------------------------------------------


def test_the_same_name_is_the_same_account(ledger):
    ledger.account("run", 100, about={"n": 5}).reserve(30)
    again = ledger.account("run", 100)
    assert (again.spent, again.left) == (30, 70)
    assert [state.about for state in ledger.accounts()] == [{"n": 5}]


def test_a_name_keeps_cap_and_parent(ledger):
    ledger.account("run", 100)
    with pytest.raises(LedgerError, match="cap is fixed"):
        ledger.account("run", 101)
    other = ledger.account("other", 100)
    with pytest.raises(LedgerError, match="keeps its parent"):
        ledger.account("run", 100, parent=other)


def test_a_parent_must_be_of_this_ledger(ledger):
    with Ledger.in_memory(CAP) as foreign:
        with pytest.raises(LedgerError, match="stay in their ledger"):
            ledger.account("run", 100, parent=foreign.account("stranger", 10))
        mine, block = ledger.account("run", 100), foreign.account("stranger", 10).reserve(5)
        with pytest.raises(LedgerError, match="stay in their ledger"):
            mine.record("q", "h", block, 1, b"")


@pytest.mark.parametrize("caps", [(10, 100, 100), (100, 10, 100), (100, 100, 10)], ids=["own", "parent", "ledger"])
def test_every_cap_above_counts(caps):
    own, above, total = caps
    with Ledger.in_memory(total) as book:
        study = book.account("study", own, parent=book.account("analyst", above))
        assert study.left == 10
        with pytest.raises(BudgetSpent) as refusal:
            study.reserve(11)
        assert (refusal.value.needed, refusal.value.left) == (mu_squared(11), mu_squared(10))
        assert book.spent == 0
        study.reserve(10)
        with pytest.raises(BudgetSpent, match="stop here"):
            study.reserve(1)


def test_siblings_share_what_is_above(ledger):
    analyst = ledger.account("analyst", 100)
    one, two = (ledger.account(name, 80, parent=analyst) for name in "ab")
    one.reserve(80).settle(70)
    assert (one.left, two.left, analyst.spent, ledger.spent) == (10, 30, 70, 70)
    with pytest.raises(BudgetSpent, match="'analyst' has"):
        two.reserve(31)


def test_reserve_up_to(ledger):
    run = ledger.account("run", 100)
    assert run.reserve_up_to(70, at_least=1).quanta == 70
    assert run.reserve_up_to(70, at_least=30).quanta == 30
    with pytest.raises(BudgetSpent):
        run.reserve_up_to(70, at_least=1)
    with pytest.raises(InvalidInput, match="at_least"):
        run.reserve_up_to(1, at_least=2)


def test_settle_gives_the_rest_back_once(ledger):
    run = ledger.account("run", 100)
    block = run.reserve(60)
    assert run.spent == 60
    assert block.settle(20) == 40
    assert block.settle(20) == 40
    assert run.spent == ledger.spent == 20
    with pytest.raises(LedgerError, match="settled once"):
        block.settle(19)
    assert run.spent == 20


def test_what_a_block_reserved_the_ledger_knows_best(ledger):
    """A block that comes from an edited checkpoint must not get back more than was reserved, or another account's."""
    run, other = ledger.account("run", 500), ledger.account("other", 500)
    block, _ = run.reserve(60), other.reserve(200)
    for forged in (Block(run, block.number, 150), Block(other, block.number, 60), Block(run, 99, 60)):
        with pytest.raises(LedgerError, match="counts in full"):
            forged.settle(10)
    assert ledger.spent == 260
    assert block.settle(10) == 50 and ledger.spent == 210 and ledger.verify().ok


def test_a_block_claimed_beyond_its_size_counts_in_full_and_is_reported(ledger):
    run = ledger.account("run", 100)
    block = run.reserve(60)
    for _ in range(2):
        with pytest.raises(LedgerError, match="61 quanta were spent.*counts in full"):
            block.settle(61)
    with pytest.raises(LedgerError, match="settled once"):
        block.settle(10)
    assert run.spent == 60
    assert "61 quanta were spent of block 1" in " ".join(ledger.verify().problems)


def test_a_block_costs_at_least_its_answers(ledger):
    run = ledger.account("run", 100)
    block = run.reserve(60)
    run.record("q", "h", block, 25, b"noisy")
    with pytest.raises(LedgerError, match="at least what its answers cost"):
        block.settle(24)
    assert run.spent == 60
    assert block.settle(25) == 35


def test_a_block_never_settled_counts_for_ever(path):
    with Ledger(path) as book:
        assert book.spent == 60 + 50 + 7
        assert [state[:6] for state in book.accounts()] == [
            ("analyst", None, 600, 117, 1, 0),
            ("study", "analyst", 300, 110, 1, 3),
        ]


@pytest.mark.parametrize("quanta", [0, -1, 1.0, True, "5", None, 2**63])
def test_quanta_are_whole_and_positive(ledger, quanta):
    run = ledger.account("run", 100)
    block = run.reserve(10)
    with pytest.raises(InvalidInput, match="whole number of quanta"):
        run.reserve(quanta)
    with pytest.raises(InvalidInput, match="whole number of quanta"):
        ledger.account("bad", quanta)
    with pytest.raises(InvalidInput, match="whole number of quanta"):
        run.record("q", "h", block, quanta, b"")
    with pytest.raises(InvalidInput, match="whole number of quanta"):
        Ledger.in_memory(quanta)
    assert ledger.spent == 10


def test_numpy_integers_will_do(ledger):
    import numpy as np

    block = ledger.account("run", np.int64(100)).reserve(np.int64(10))
    assert block.settle(np.int32(4)) == 6
    assert ledger.verify().ok


@pytest.mark.parametrize("text", ["", "x" * 201, 5, "\ud800", "\x1b[2J"])
def test_names_are_short_text(ledger, text):
    run = ledger.account("run", 100)
    block = run.reserve(10)
    for attempt in (
        lambda: ledger.account(text, 10),
        lambda: run.replay(text, "h"),
        lambda: run.record("q", text, block, 1, b""),
    ):
        with pytest.raises(InvalidInput, match="1 to 200 printable characters"):
            attempt()


@pytest.mark.parametrize("about", [{"x": float("nan")}, {"x": object()}, 5])
def test_about_is_json(ledger, about):
    with pytest.raises(InvalidInput, match="JSON"):
        ledger.account("run", 10, about=about)


def test_reprs_show_the_figures(ledger):
    run = ledger.account("run", 100)
    block = run.reserve(40)
    assert "40 of 1000 quanta spent, 960 left" in repr(ledger)
    assert "'run': 40 of 100 quanta spent, 60 left" in repr(run)
    assert repr(block) == "<Block 1 of 'run': 40 quanta>"


operations = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), st.integers(0, 3), st.integers(1, 60)),
        st.tuples(st.just("up to"), st.integers(0, 3), st.integers(1, 60)),
        st.tuples(st.just("settle"), st.integers(0, 30), st.integers(0, 80)),
        st.tuples(st.just("record"), st.integers(0, 30), st.integers(1, 20)),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(operations, st.lists(st.integers(1, 120), min_size=5, max_size=5))
def test_no_order_of_changes_passes_a_cap(steps, caps):
    with Ledger.in_memory(caps[4]) as book:
        top = book.account("top", caps[0])
        accounts = [top, book.account("a", caps[1], parent=top), book.account("b", caps[2], parent=top)]
        accounts.append(book.account("deep", caps[3], parent=accounts[1]))
        blocks, released = [], 0
        for number, (kind, which, quanta) in enumerate(steps):
            released += take_step(kind, accounts, blocks, (which, quanta), number)
            states = book.accounts()
            assert all(state.spent <= state.cap for state in states)
            assert released <= book.spent <= book.cap
            assert book.spent == states[0].spent >= states[1].spent + states[2].spent
        assert book.verify().ok or any(kind == "settle" for kind, *_ in steps)
        assert all("were spent of block" in problem for problem in book.verify().problems)


def take_step(kind, accounts, blocks, step, number):
    """Do one change, legal or not; return the quanta that left the records by it."""
    which, quanta = step
    try:
        if kind == "reserve":
            blocks.append(accounts[which].reserve(quanta))
        elif kind == "up to":
            blocks.append(accounts[which].reserve_up_to(quanta, at_least=1))
        elif blocks:
            block = blocks[which % len(blocks)]
            if kind == "record":
                block.account.record(f"q{number}", "h", block, quanta, b"noisy")
                return quanta
            block.settle(quanta)
    except (BudgetSpent, LedgerError):
        pass
    return 0


# --- answers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", [True, False])
def test_a_query_is_answered_once(ledger, sync):
    run = ledger.account("run", 100)
    block = run.reserve(50)
    assert run.replay("q", "h") is None
    assert run.record("q", "h", block, 10, b"first", sync=sync) == b"first"
    assert run.record("q", "h", block, 10, b"second", sync=sync) == b"first"
    assert run.replay("q", "h") == b"first"
    assert block.settle(10) == 40  # the second was never charged
    assert run.record("q", "h", block, 10, b"third") == b"first"


def test_same_id_other_content(ledger):
    run = ledger.account("run", 100)
    block = run.reserve(50)
    run.record("q", "h", block, 10, b"first")
    with pytest.raises(LedgerError, match="same id, other content"):
        run.replay("q", "other")
    with pytest.raises(LedgerError, match="same id, other content"):
        run.record_many(block, [Answer("new", "h", 1, b"x"), Answer("q", "other", 1, b"y")])
    assert run.replay("new", "h") is None  # all or none


def test_ids_are_bound_to_the_account(ledger):
    one, two = ledger.account("one", 100), ledger.account("two", 100)
    one.record("q", "h", one.reserve(5), 5, b"for one")
    assert two.replay("q", "h") is None
    two.record("q", "g", two.reserve(5), 5, b"for two")
    assert (one.replay("q", "h"), two.replay("q", "g")) == (b"for one", b"for two")


def test_a_batch_may_repeat_itself(ledger):
    run = ledger.account("run", 100)
    block = run.reserve(50)
    batch = [Answer("a", "h", 1, b"1"), Answer("a", "h", 1, b"2"), Answer("b", "h", 1, b"3")]
    assert run.record_many(block, batch) == [b"1", b"1", b"3"]
    assert run.replay_many([("b", "h"), ("c", "h"), ("a", "h")]) == [b"3", None, b"1"]
    assert block.settle(2) == 48
    assert ledger.verify().ok  # what was taken back left no trace in the chain


def test_a_block_pays_for_no_more_than_it_holds(ledger):
    run = ledger.account("run", 100)
    block = run.reserve(10)
    run.record("a", "h", block, 8, b"1")
    with pytest.raises(LedgerError, match="2 of 10 quanta left where 3 are needed"):
        run.record("b", "h", block, 3, b"2")
    assert run.replay("b", "h") is None
    block.settle(8)
    with pytest.raises(LedgerError, match="settled block pays for nothing more"):
        run.record("b", "h", block, 1, b"2")


def test_a_block_pays_for_its_own_account(ledger):
    one, two = ledger.account("one", 100), ledger.account("two", 100)
    with pytest.raises(LedgerError, match="block of its own account"):
        two.record("q", "h", one.reserve(5), 5, b"x")


def test_answers_are_bytes(ledger):
    run = ledger.account("run", 100)
    with pytest.raises(InvalidInput, match="an answer is bytes, got str"):
        run.record("q", "h", run.reserve(5), 5, "text")


def test_threads_racing_with_one_id_get_one_answer(ledger):
    run, got, start = ledger.account("run", 100), [], threading.Barrier(8)

    def ask():
        start.wait()
        block = run.reserve(5)
        got.append(run.replay("q", "h") or run.record("q", "h", block, 5, os.urandom(8)))

    run_threads(ask, 8)
    assert len(got) == 8 and len(set(got)) == 1
    assert ledger.verify().ok


# --- several processes ----------------------------------------------------------------------------------------------

HAMMER = """
import json, random, sys
from sfumato.vault.ledger import Ledger
from sfumato.errors import BudgetSpent
path, me = sys.argv[1], sys.argv[2]
random.seed(int(me))
released, answers = 0, {}
with Ledger(path) as book:
    own, shared = book.account(f"analyst {me}", 1000), book.account("shared", 2000)
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        for k in range(1000):
            block = random.choice([own, shared]).reserve(random.randint(1, 12))
            spent = random.randint(1, block.quanta)
            given = f"{me} {k}".encode()
            final = block.account.record(f"q{k}", "h", block, spent, given)
            released += spent if final == given else 0
            if block.account is shared:
                answers[k] = final.decode()
            if random.random() < 0.7:
                block.settle(spent if final == given else 0)
    except BudgetSpent:
        pass
print(json.dumps([released, answers]))
"""


def test_processes_on_one_ledger_never_overspend(tmp_path):
    place = tmp_path / "budget.ledger"
    Ledger.with_cap(place, 3000).close()
    command = [sys.executable, "-c", HAMMER, place]
    workers = [
        subprocess.Popen([*command, str(k)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for k in range(3)
    ]
    assert [worker.stdout.readline() for worker in workers] == ["ready\n"] * 3
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    told = [json.loads(worker.communicate(timeout=60)[0]) for worker in workers]
    with Ledger(place) as book:
        assert 2000 < sum(released for released, _ in told) <= book.spent <= 3000
        assert all(state.spent <= state.cap for state in book.accounts())
        assert book.verify().ok
        answered = book.account("shared", 2000)
        for _, answers in told:
            for number, text in answers.items():
                assert answered.replay(f"q{number}", "h") == text.encode()
        # Some query was asked by more than one of them, so the race was run.
        assert sum(len(answers) for _, answers in told) > len({k for _, answers in told for k in answers})


def fork(work):
    """Run work in a forked child; return its exit code."""
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(30)
    return child.exitcode


def test_a_forked_child_opens_its_own_connection(path):
    with Ledger(path) as book:
        account = book.account("analyst", 600)
        account.reserve(1)

        def work():
            account.reserve(2).settle(1)

        assert fork(work) == 0
        account.reserve(3)
        assert book.spent == 117 + 1 + 1 + 3
        assert book.verify().ok


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks at /proc")
def test_no_connection_is_open_across_a_fork(path):
    with Ledger(path) as book:
        assert book.spent == 117 and book._store in _stores
        assert has_open(path)
        assert fork(lambda: os._exit(has_open(path))) == 0


def has_open(path):
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return any(path.name in os.readlink(link) for link in links if link.is_symlink())


def test_fork_while_other_threads_write(path):
    with Ledger(path) as book:
        account, stop = book.account("analyst", 600), threading.Event()

        def busy():
            while not stop.is_set():
                account.reserve(1).settle(0)

        thread = threading.Thread(target=busy)
        thread.start()
        try:
            assert [fork(lambda: account.reserve(2)) for _ in range(3)] == [0, 0, 0]
        finally:
            stop.set()
            thread.join()
        assert book.spent == 117 + 6 and book.verify().ok


def test_a_ledger_in_memory_is_not_shared_with_a_fork():
    with Ledger.in_memory(CAP) as book:
        account = book.account("run", CAP)

        def work():
            with pytest.raises(LedgerError, match="belongs to the process that made it"):
                account.reserve(1)

        assert fork(work) == 0
        account.reserve(1)


# --- the chain ------------------------------------------------------------------------------------------------------


def test_an_honest_ledger_verifies(path):
    with Ledger(path) as book:
        result = book.verify(book.head())
        assert result.ok and result.head == book.head() and result.head.seq == 9
        assert Head.parse(str(book.head())) == book.head()


def change(path, seq, old, new):
    """Edit one entry's text, as somebody with an SQLite shell would."""
    with closing(sqlite3.connect(path)) as db, db:
        (text,) = db.execute("SELECT entry FROM entries WHERE seq = ?", (seq,)).fetchone()
        assert old in text
        db.execute("UPDATE entries SET entry = ? WHERE seq = ?", (text.replace(old, new), seq))


def test_every_edited_entry_is_named(path):
    for seq in range(1, 10):
        copy = path.with_name(f"copy{seq}")
        shutil.copy(path, copy)
        change(copy, seq, '"at":"2', '"at":"1')
        assert problems(copy) == (f"entry {seq}: edited, or not the one that followed entry {seq - 1}",)


def test_an_edited_amount_is_found_also_by_its_balance(path):
    change(path, 5, '"quanta":50', '"quanta":40')
    found = " ".join(problems(path))
    assert "entry 5: edited" in found and "block 2: the table does not say" in found and "account 1" in found


def test_an_entry_edited_with_its_hash_breaks_the_next(path):
    from sfumato.vault.ledger.chain import link

    change(path, 4, '"at":"2', '"at":"1')
    with closing(sqlite3.connect(path)) as db, db:
        (previous,) = db.execute("SELECT hash FROM entries WHERE seq = 3").fetchone()
        (text,) = db.execute("SELECT entry FROM entries WHERE seq = 4").fetchone()
        db.execute("UPDATE entries SET hash = ? WHERE seq = 4", (link(previous, text),))
    assert problems(path) == ("entry 5: edited, or not the one that followed entry 4",)


def test_a_deleted_entry_is_named(path):
    edit(path, "DELETE FROM entries WHERE seq = 5")
    assert problems(path)[0] == "entry 5: missing (the next one there is 6)"


def test_reordered_entries_are_named(path):
    edit(
        path,
        "UPDATE entries SET seq = 99 WHERE seq = 4",
        "UPDATE entries SET seq = 4 WHERE seq = 5",
        "UPDATE entries SET seq = 5 WHERE seq = 99",
    )
    found = problems(path)
    assert "entry 4: moved: it was written as entry 5" in found and "entry 5: moved: it was written as entry 4" in found


def test_an_inserted_entry_is_named(path):
    edit(path, "INSERT INTO entries SELECT 10, entry, hash FROM entries WHERE seq = 9")
    assert problems(path)[0].startswith("entry 10: edited")


@pytest.mark.parametrize("text", ["nonsense", "[]", '{"seq": 6}', '{"seq": 6, "kind": "bribe"}'])
def test_an_unreadable_entry_is_named(path, text):
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE entries SET entry = ?, hash = 'zz' WHERE seq = 6", (text,))
    found = [problem for problem in problems(path) if problem.startswith("entry 6")]
    assert len(found) == 2


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("UPDATE accounts SET spent = 0 WHERE id = 1", "account 1"),
        ("UPDATE accounts SET cap = 900 WHERE id = 2", "account 2"),
        ("UPDATE accounts SET parent = 1 WHERE id = 3", "account 3"),
        ("UPDATE accounts SET answers = 2 WHERE id = 3", "account 3"),
        ("UPDATE accounts SET about = '{}' WHERE id = 2", "account 2"),
        ("UPDATE blocks SET settled = 0 WHERE id = 2", "block 2"),
        ("DELETE FROM blocks WHERE id = 3", "block 3"),
        ("UPDATE answers SET answer = x'00' WHERE query_id = 'q1'", "the answers of entry 6"),
        ("UPDATE answers SET query_hash = 'h9' WHERE query_id = 'q2'", "the answers of entry 6"),
        ("DELETE FROM answers WHERE query_id = 'q3'", "the answers of entry 7"),
        ("UPDATE answers SET entry = 6, position = 2 WHERE query_id = 'q3'", "the answers of entry 7"),
    ],
)
def test_an_edited_table_is_named(path, statement, named):
    edit(path, statement)
    assert f"{named}: the table does not say what the entries say" in problems(path)


def test_a_cap_passed_by_a_careful_forger_is_found(path):
    # The chain is made to agree again from the forged entry on: the replay still sees the cap passed.
    from sfumato.vault.ledger.chain import link

    change(path, 9, '"quanta":7', '"quanta":700')
    with closing(sqlite3.connect(path)) as db, db:
        (previous,) = db.execute("SELECT hash FROM entries WHERE seq = 8").fetchone()
        (text,) = db.execute("SELECT entry FROM entries WHERE seq = 9").fetchone()
        db.execute("UPDATE entries SET hash = ? WHERE seq = 9", (link(previous, text),))
    assert "entry 9: it passes the cap of account 'analyst': 810 of 600 quanta" in problems(path)


def test_a_cut_tail_is_found_only_with_a_kept_head(path):
    with Ledger(path) as book:
        kept = book.head()
    edit(
        path,
        "DELETE FROM entries WHERE seq = 9",
        "DELETE FROM blocks WHERE id = 3",
        "UPDATE accounts SET spent = spent - 7 WHERE id < 3",
    )
    assert problems(path) == ()  # as the documentation says
    assert problems(path, kept) == ("entry 9: cut off: you kept its hash, and the ledger ends before it",)


def test_a_rewritten_ledger_is_found_with_a_kept_head(path):
    kept = Head(3, "ab" * 32)
    assert problems(path, kept) == ("entry 3: not the one whose hash you kept: the ledger was rewritten",)


@pytest.mark.parametrize("text", ["", "5", "x:" + "0" * 64, "5:abc"])
def test_a_head_has_a_form(text):
    with pytest.raises(InvalidInput, match="number:hash"):
        Head.parse(text)


def test_the_file_says_what_it_is(path):
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_copy_made_in_another_journal_mode_is_switched_back(path, tmp_path):
    with closing(sqlite3.connect(path)) as db:
        db.execute("VACUUM INTO ?", (str(tmp_path / "copy"),))
    with Ledger(tmp_path / "copy") as book:
        assert book.spent == 117 and book.verify().ok
    with closing(sqlite3.connect(tmp_path / "copy")) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_entries_from_a_point_on(path):
    with Ledger(path) as book:
        assert [entry["seq"] for entry in book.entries(after=6)] == [7, 8, 9]


def test_an_interrupted_change_leaves_no_trace(ledger, monkeypatch):
    from sfumato.vault.ledger import chain

    run = ledger.account("run", 100)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(chain, "append", interrupt)
        run.reserve(10)
    assert ledger.spent == 0
    run.reserve(10)
    assert ledger.spent == 10 and ledger.verify().ok


def interrupt(*_, **__):
    raise KeyboardInterrupt


def test_commits_are_flushed(path):
    with Ledger(path) as book:
        with book._store.write() as db:
            assert db.execute("PRAGMA synchronous").fetchone() == (2,)
        with book._store.write(sync=False) as db:
            assert db.execute("PRAGMA synchronous").fetchone() == (1,)
        with book._store.write() as db:
            assert db.execute("PRAGMA synchronous").fetchone() == (2,)


# --- the command line -----------------------------------------------------------------------------------------------


def run(*arguments):
    return CliRunner(env={"COLUMNS": "160"}).invoke(app, [str(argument) for argument in arguments])


def test_show(path):
    shown = run("show", path, "--json")
    facts = json.loads(shown.stdout)
    assert shown.exit_code == 0 and facts["ok"]
    assert facts["quanta"] == {"cap": 1000, "spent": 117, "left": 883}
    assert [account["name"] for account in facts["accounts"]] == ["analyst", "study"]
    plain = run("show", path)
    assert plain.exit_code == 0
    assert "analyst" in plain.stdout and facts["head"] in plain.stdout


def test_show_reads_no_markup_in_names(tmp_path):
    with Ledger(tmp_path / "b", epsilon=1, delta=1e-6) as book:
        book.account("[red]x[/red]", 5)
    plain = run("show", tmp_path / "b")
    assert "[red]x[/red]" in plain.stdout and "epsilon 1, delta 1e-06" in plain.stdout


def test_show_fits_eighty_columns_and_shows_what_is_part_of_what(tmp_path):
    with Ledger(tmp_path / "b", epsilon=1, delta=1e-6) as book:
        node = book.account("node", 5000)
        analyst = book.account("analyst " + "alice-" * 9, 500, parent=node)
        book.account("run " + "alice-" * 9 + "/1a2b3c4d5e6f", 50, parent=analyst)
    lines = run("show", tmp_path / "b").stdout.splitlines()
    assert max(map(len, lines[:-1])) <= 80 and not any(line.endswith(" ") for line in lines)
    assert [line.index(name) for name in ("node", "analyst", "run ") for line in lines if name in line][:3] == [1, 3, 5]


def test_export(path, tmp_path):
    lines = run("export", path).stdout.splitlines()
    assert [json.loads(line)["seq"] for line in lines] == list(range(1, 10))
    assert json.loads(json.loads(lines[0])["entry"])["kind"] == "create"
    document = json.loads(run("export", path, "--json").stdout)
    assert document["ok"] and document["entries"] == [json.loads(line) for line in lines]
    assert run("export", path, "--out", tmp_path / "out.jsonl").stdout == ""
    assert (tmp_path / "out.jsonl").read_text().splitlines() == lines
    assert run("export", path, "--out", tmp_path / "no" / "out").exit_code == 2


def test_verify(path):
    good = run("verify", path)
    assert good.exit_code == 0 and "chain of 9 entries holds" in good.stdout
    head = json.loads(run("verify", path, "--json").stdout)["head"]
    assert run("verify", path, "--head", head).exit_code == 0
    change(path, 4, '"at":"2', '"at":"1')
    bad = run("verify", path)
    assert bad.exit_code == 3 and "entry 4: edited" in bad.stdout
    told = json.loads(run("verify", path, "--json").stdout)
    assert told["ok"] is False and "entry 4" in told["problems"][0]


@pytest.mark.parametrize("command", ["show", "export", "verify"])
def test_commands_say_what_is_wrong(tmp_path, command):
    plain = run(command, tmp_path / "none")
    assert plain.exit_code == 4 and "no ledger at" in plain.stderr
    assert "Ledger(" not in plain.stderr  # whoever is in a shell gets no advice for Python
    told = run(command, tmp_path / "none", "--json")
    assert told.exit_code == 4
    assert json.loads(told.stdout)["ok"] is False and json.loads(told.stdout)["code"] == "ledger"


def test_the_help_lists_every_exit_code():
    """What the commands return (above) is what it says, and what `sfumato --help` says of the same codes."""
    from sfumato.cli import EPILOG

    listed = dict(re.findall(r"(\d+) ([^;]+?)[;.]", app.info.epilog.partition(":")[2]))
    assert sorted(listed) == ["0", "1", "2", "3", "4"]
    assert "problems" in listed["3"] and "missing" in listed["4"]
    assert "found problems" in EPILOG
    for code in ("0", "1", "2"):
        assert f"{code} {listed[code]}" in EPILOG


def test_a_head_that_is_none(path):
    told = run("verify", path, "--head", "x")
    assert told.exit_code == 2 and "number:hash" in told.stderr  # the request is wrong, the ledger is not


def test_the_commands_need_no_jax():
    assert python("import sys, sfumato.cli.ledger; print('jax' in sys.modules)") == "False\n"
