"""The journal: an answer that was given is never given another way, whatever dies in between."""

import os

import pytest

from sfumato.errors import LedgerError
from sfumato.vault.ledger import Journal, Ledger
from sfumato.vault.ledger import journal as module

CAP = 10**9


@pytest.fixture
def ledger(tmp_path):
    with Ledger.with_cap(tmp_path / "l", CAP) as made:
        yield made


@pytest.fixture
def account(ledger):
    return ledger.account("run", CAP)


def stored(ledger):
    with ledger._store.read() as db:
        return {name: answer for name, answer in db.execute("SELECT query_id, answer FROM answers")}


def test_answers_survive_the_process_and_are_folded_by_the_next(ledger, account):
    journal, block = Journal(ledger), account.reserve(100)
    book = journal.account(account)
    assert book.record("a", "h", block, 10, b"1") == b"1"
    assert book.record("b", "h", block, 10, b"2") == b"2"
    assert stored(ledger) == {}
    os.close(journal._file)  # the process dies
    again = Journal(ledger)
    assert stored(ledger) == {"a": b"1", "b": b"2"}
    book = again.account(account)
    assert book.record("a", "h", block, 10, b"other") == b"1"
    assert book.replay("b", "h") == b"2"
    again.close()
    assert block.settle(20) == 80
    assert ledger.verify().ok


@pytest.mark.parametrize("batch", [1, 2, 3, 256])
def test_the_first_answer_stands_wherever_it_is(ledger, account, monkeypatch, batch):
    monkeypatch.setattr(module, "BATCH", batch)
    journal, block = Journal(ledger), account.reserve(1000)
    book = journal.account(account)
    for i in range(7):
        assert book.record(f"q{i}", "h", block, 1, b"%d" % i) == b"%d" % i
        for j in range(i + 1):
            assert book.record(f"q{j}", "h", block, 1, b"x") == b"%d" % j
            assert book.replay(f"q{j}", "h") == b"%d" % j
            with pytest.raises(LedgerError, match="other content"):
                book.record(f"q{j}", "g", block, 1, b"x")
    journal.close()
    assert stored(ledger) == {f"q{i}": b"%d" % i for i in range(7)}
    assert block.settle(7) == 993


def test_beyond_what_is_remembered_the_ledger_is_asked(ledger, account, monkeypatch):
    monkeypatch.setattr(module, "BATCH", 2)
    monkeypatch.setattr(module, "REMEMBERED", 5)
    journal, block = Journal(ledger), account.reserve(1000)
    book = journal.account(account)
    for i in range(20):
        book.record(f"q{i}", "h", block, 1, b"%d" % i)
    assert all(book.record(f"q{i}", "h", block, 1, b"x") == b"%d" % i for i in range(20))
    book.close()
    assert journal.account(account) is not book
    assert journal.account(account).record("q3", "h", block, 1, b"x") == b"3"
    journal.close()


def test_a_torn_last_entry_was_never_sent_and_is_dropped(ledger, account):
    journal, block = Journal(ledger), account.reserve(100)
    book = journal.account(account)
    book.record("a", "h", block, 10, b"1")
    book.record("b", "h", block, 10, b"2")
    os.close(journal._file)
    whole = journal.path.read_bytes()
    for cut in (1, 5, 9, len(whole) // 2 - 1):
        journal.path.write_bytes(whole[:-cut])
        Journal(ledger).close()
        assert stored(ledger) == {"a": b"1"}
    assert ledger.verify().ok


def test_a_changed_entry_is_not_believed(ledger, account):
    journal, block = Journal(ledger), account.reserve(100)
    journal.account(account).record("a", "h", block, 10, b"1")
    os.close(journal._file)
    raw = bytearray(journal.path.read_bytes())
    raw[-1] ^= 1
    journal.path.write_bytes(bytes(raw))
    Journal(ledger).close()
    assert stored(ledger) == {}


def test_a_disk_that_is_full_refuses_the_answer_and_the_file_stays_whole(ledger, account, monkeypatch):
    journal, block = Journal(ledger), account.reserve(100)
    book = journal.account(account)
    book.record("a", "h", block, 10, b"1")
    write = os.write

    def half(file, data):
        write(file, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(LedgerError, match="No space left"):
        book.record("b", "h", block, 10, b"2")
    monkeypatch.setattr(os, "write", write)
    assert book.record("b", "h", block, 10, b"3") == b"3"  # the first was never seen by anybody
    journal.close()
    assert stored(ledger) == {"a": b"1", "b": b"3"}


def test_a_ledger_that_cannot_take_a_batch_does_not_undo_an_answer(ledger, account, monkeypatch):
    monkeypatch.setattr(module, "BATCH", 2)
    journal, block = Journal(ledger), account.reserve(100)
    book = journal.account(account)

    def refuse(*_):
        raise LedgerError("disk full")

    with monkeypatch.context() as broken:
        broken.setattr(Journal, "_store", refuse)
        assert book.record("a", "h", block, 1, b"1") == b"1"
        assert book.record("b", "h", block, 1, b"2") == b"2"
        assert book.record("b", "h", block, 1, b"x") == b"2"  # known, although the ledger never heard of it
        with pytest.raises(LedgerError, match="disk full"):
            book.fold()
    book.fold()
    assert stored(ledger) == {"a": b"1", "b": b"2"}
    journal.close()


def test_a_journal_that_cannot_be_emptied_gives_no_second_answer(ledger, account, monkeypatch):
    monkeypatch.setattr(module, "BATCH", 2)
    journal, block = Journal(ledger), account.reserve(100)
    book = journal.account(account)

    def refuse(*_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "ftruncate", refuse)
        assert book.record("a", "h", block, 1, b"1") == b"1"
        assert book.record("b", "h", block, 1, b"2") == b"2"  # it fills the batch: in the ledger, and still in the file
        assert book.record("b", "h", block, 1, b"x") == b"2"
        assert book.replay("a", "h") == b"1"
        with pytest.raises(LedgerError, match="cannot be cut"):
            book.fold()
    assert book.record("c", "h", block, 1, b"3") == b"3"
    book.fold()
    assert stored(ledger) == {"a": b"1", "b": b"2", "c": b"3"}
    journal.close()
    assert block.settle(3) == 97  # nothing was charged twice
    assert ledger.verify().ok


def test_one_process_holds_the_journal(ledger):
    journal = Journal(ledger)
    with pytest.raises(LedgerError, match="held by another"):
        Journal(ledger)
    journal.close()
    Journal(ledger).close()
    with pytest.raises(LedgerError, match="in a file"):
        Journal(Ledger.in_memory(10))


def test_spending_backup_and_existing(ledger, account, tmp_path):
    first, second = account.reserve(100), account.reserve(50)
    first.settle(30)
    assert [spent for _, spent in ledger.spending()] == [100, 150, 80]
    assert ledger.existing("run").cap == CAP and ledger.existing("none") is None
    head = ledger.backup(tmp_path / "copy")
    assert head == ledger.head()
    with Ledger(tmp_path / "copy") as copy:
        assert copy.spent == ledger.spent == 80 and copy.verify(head).ok
    with pytest.raises(LedgerError, match="never overwrites"):
        ledger.backup(tmp_path / "copy")
    with pytest.raises(LedgerError, match="needs a place"):
        ledger.backup(tmp_path / "no" / "copy")
    second.settle(50)
    assert [path.name for path in tmp_path.iterdir() if "copy" in path.name] == ["copy"]
