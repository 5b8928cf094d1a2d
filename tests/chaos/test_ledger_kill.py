"""Kill the process that holds the ledger, at any moment, again and again: nothing spent is ever lost."""

import json
import random
import signal
import subprocess
import sys
import time

import pytest

from sfumato.vault.ledger import Ledger

ROUNDS = 60
CAP = 1_000_000
ANALYST_CAP = 900_000
STUDY_CAP = 600_000

# The child says "ready", then reserves, answers and settles until it is killed. What it released goes to a side file,
# flushed, after the ledger has recorded it: as an answer goes to the wire. Each round continues the chain of query
# ids a little before the point the last one reached, as a client does that reconnects.
CHILD = """
import json, os, random, sys
from sfumato.vault.ledger import Answer, Ledger
path, side, seed, first = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
random.seed(seed)
out = open(side, "a")

def release(**facts):
    out.write(json.dumps(facts) + "\\n")
    out.flush()
    os.fsync(out.fileno())

print("ready", flush=True)
ledger = Ledger(path)
analyst = ledger.account("analyst", 900_000)
study = ledger.account("study", 600_000, parent=analyst)
k = first
while True:
    block = study.reserve(random.randint(84, 120))
    spent = 0
    for _ in range(random.randint(1, 4)):
        ids = [f"q{k + j}" for j in range(random.randint(1, 3))]
        k += len(ids)
        known = study.replay_many([(i, "h") for i in ids])
        fresh = [Answer(i, "h", random.randint(1, 7), os.urandom(6)) for i in ids]
        final = study.record_many(block, fresh, sync=random.random() < 0.5)
        for i, old, new, answer in zip(ids, known, fresh, final):
            mine = old is None and answer == new.answer
            spent += mine * new.quanta
            release(id=i, answer=answer.hex(), quanta=new.quanta, new=mine)
    if random.random() < 0.8:
        block.settle(spent)
"""


def released(side):
    """Read what left; the line that was being written when the process died may be torn: it is cut off for good."""
    if not side.exists():
        return []
    whole, newline, torn = side.read_text().rpartition("\n")
    if torn:  # or the next child would go on writing in the middle of it
        side.write_text(whole + newline)
    return [json.loads(line) for line in whole.splitlines()]


def next_query(rows):
    return max((int(row["id"][1:]) for row in rows), default=0)


def start(path, side, seed):
    """Start a child and wait until it is about to open the ledger."""
    first = max(0, next_query(released(side)) - 5)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, path, side, str(seed), str(first)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "ready\n", child.stderr.read()
    return child


def kill_in_the_act(path, side, seed, delay):
    with start(path, side, seed) as child:
        time.sleep(delay)
        child.kill()
        child.wait(10)
        assert child.returncode == -signal.SIGKILL, child.stderr.read()


def check(path, rows, *, spent_before=0, head=None):
    """Check a ledger after a kill against what had been released; return what it has spent, and its head."""
    with Ledger(path) as ledger:
        checked = ledger.verify(head)
        assert checked.ok, checked.problems
        spent = ledger.spent
        assert max(spent_before, sum(row["quanta"] for row in rows if row["new"])) <= spent <= CAP
        assert all(state.spent <= state.cap for state in ledger.accounts())
        study = ledger.account("study", STUDY_CAP, parent=ledger.account("analyst", ANALYST_CAP))
        for row in rows:  # so there was one answer to each query, whoever asked
            assert study.replay(row["id"], "h") == bytes.fromhex(row["answer"])
        return spent, ledger.head()


def test_killed_at_random_moments(tmp_path):
    path, side, chance = tmp_path / "budget.ledger", tmp_path / "released.jsonl", random.Random(7)  # noqa: S311
    Ledger.with_cap(path, CAP).close()
    spent, head = 0, None
    for number in range(ROUNDS):
        # Some die while they open the ledger, most in the middle of their work.
        kill_in_the_act(path, side, number, chance.choice([0.01, 0.05, 0.1]) * chance.random())
        spent, head = check(path, released(side), spent_before=spent, head=head)
    assert len(released(side)) > ROUNDS, "the children hardly ever got to work: the delays are too short here"


def test_killed_while_others_go_on(tmp_path):
    path, side = tmp_path / "budget.ledger", tmp_path / "released.jsonl"
    Ledger.with_cap(path, CAP).close()
    survivor = start(path, side, 1000)
    with survivor:
        for number in range(8):
            kill_in_the_act(path, tmp_path / f"other{number}.jsonl", number, 0.03)
        assert survivor.poll() is None, survivor.stderr.read()
        survivor.kill()
    rows = [row for file in [side, *tmp_path.glob("other*.jsonl")] for row in released(file)]
    check(path, rows)


# Where a child dies by its own hand, and what must have been counted then: of a block of 50, an answer of 9.
POINTS = {
    "before reserve": ("", 0),
    "in reserve, before the commit": ("die_at('COMMIT'); study.reserve(50)", 0),
    "after reserve": ("study.reserve(50)", 50),
    "in record, before the commit": ("b = study.reserve(50); die_at('COMMIT'); study.record('q', 'h', b, 9, b'x')", 50),
    "after record": ("b = study.reserve(50); study.record('q', 'h', b, 9, b'x')", 50),
    "after record, not flushed": ("b = study.reserve(50); study.record('q', 'h', b, 9, b'x', sync=False)", 50),
    "in settle, before the commit": ("b = study.reserve(50); die_at('COMMIT'); b.settle(20)", 50),
    "after settle": ("b = study.reserve(50); study.record('q', 'h', b, 9, b'x'); b.settle(20)", 20),
}

SUICIDE = """
import os, signal, sys
from sfumato.vault.ledger import Ledger
ledger = Ledger(sys.argv[1])
study = ledger.account("study", 600_000, parent=ledger.account("analyst", 900_000))

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def die_at(word):
    ledger._store._db.set_trace_callback(lambda statement: die() if word in statement else None)

"""


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_every_point(tmp_path, point):
    path = tmp_path / "budget.ledger"
    Ledger.with_cap(path, CAP).close()
    work, counted = POINTS[point]
    for number in range(1, 3):
        # The second time the answer is stored already; it must neither change nor be paid for twice.
        code = f"{SUICIDE}\n{work}\ndie()"
        assert subprocess.run([sys.executable, "-c", code, path], check=False).returncode == -signal.SIGKILL
        spent, _ = check(path, [])
        assert spent == counted * number
    with Ledger(path) as ledger:
        study = ledger.account("study", STUDY_CAP, parent=ledger.account("analyst", ANALYST_CAP))
        stored = point.startswith("after record") or point == "after settle"
        assert study.replay("q", "h") == (b"x" if stored else None)


def test_killed_while_creating(tmp_path):
    """A ledger is there whole, with its cap, or not at all."""
    path = tmp_path / "budget.ledger"
    code = "import sys\nfrom sfumato.vault.ledger import Ledger\nprint(flush=True)\nLedger.with_cap(sys.argv[1], 77)"
    for number in range(12):
        with subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE) as child:
            child.stdout.readline()
            time.sleep(number * 0.0007)
            child.kill()
        if path.exists():
            with Ledger(path) as ledger:
                assert ledger.cap == 77 and ledger.verify().ok
            path.unlink()


def test_power_lost_after_any_byte(tmp_path):
    """What was not flushed may go missing from its end: then the block counts in full, and nothing else changes."""
    path, released_quanta = tmp_path / "budget.ledger", 5 * 9
    log = path.with_name(path.name + "-wal")
    with Ledger.with_cap(path, CAP) as ledger:
        study = ledger.account("study", STUDY_CAP, parent=ledger.account("analyst", ANALYST_CAP))
        block = study.reserve(50)
        flushed = log.stat().st_size
        for number in range(5):
            study.record(f"q{number}", "h", block, 9, b"x", sync=False)
        block.settle(released_quanta)
        main, tail = path.read_bytes(), log.read_bytes()
    assert len(tail) > flushed
    for cut in [*range(flushed, len(tail), 997), len(tail)]:
        copy = tmp_path / f"cut{cut}"
        copy.write_bytes(main)
        copy.with_name(copy.name + "-wal").write_bytes(tail[:cut])
        spent, _ = check(copy, [])
        assert spent == (released_quanta if cut == len(tail) else 50)
