"""The owner's log: what a visitor causes is limited, what is left out is said, what the owner does is always written."""

import json

import pytest

from sfumato.node.logs import LIMITED, LINES_PER_SECOND, Log


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def log(tmp_path):
    made = Log(tmp_path / "node.log", Clock())
    yield made
    made.close()


def lines(tmp_path):
    return [json.loads(line) for line in (tmp_path / "node.log").read_text().splitlines()]


@pytest.mark.parametrize("kind", sorted(LIMITED))
def test_a_flood_of_one_kind_is_a_few_lines_and_a_count(log, tmp_path, kind):
    for _ in range(10_000):
        log.event(kind, who="mallory", code="bad-request")
    log.event(kind, who="alice", code="bad-request")  # another visitor has her own lines
    assert len(lines(tmp_path)) == LINES_PER_SECOND + 1
    log._clock.now += 1
    log.event(kind, who="mallory", code="bad-request")
    found = lines(tmp_path)
    assert [line["event"] for line in found[-2:]] == ["left-out", kind]
    assert found[-2]["who"] == "mallory" and found[-2]["count"] == 10_000 - LINES_PER_SECOND
    assert kind in found[-2]["what"]


def test_what_was_left_out_is_said_also_if_nothing_follows(log, tmp_path):
    for _ in range(100):
        log.event("refused", who="mallory")
    log.tidy()  # the second is not over
    assert len(lines(tmp_path)) == LINES_PER_SECOND
    log._clock.now += 1
    log.tidy()
    log.tidy()
    assert [line["event"] for line in lines(tmp_path)].count("left-out") == 1
    assert not log._seconds  # nothing is remembered of visitors who went away
    for _ in range(100):
        log.event("refused", who="mallory")
    log.close()
    assert [line["event"] for line in lines(tmp_path)].count("left-out") == 2
    assert len(log.recent) == 2 * (LINES_PER_SECOND + 1)


def test_what_the_owner_does_is_always_written(log, tmp_path):
    for kind in ("start", "pause", "resume", "revoke", "stop"):
        for _ in range(3 * LINES_PER_SECOND):
            log.event(kind, who="owner")
    assert len(lines(tmp_path)) == 15 * LINES_PER_SECOND
