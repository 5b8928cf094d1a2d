"""Counters for the owner's monitoring, in Prometheus' text format. Only numbers that may be released anyway.

No histogram of answer times: how long the likelihood took is a fact about the records. Rates are over whole seconds.
"""

import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping

_WINDOW = 60


class Metrics:
    """Counts since the start, and answers per second over the last minute."""

    def __init__(self) -> None:
        self.started = time.time()
        self.answers: Counter[str] = Counter()  # by study
        self.numbers = 0
        self.refusals: Counter[str] = Counter()  # by code
        self.spent: Counter[str] = Counter()  # by study: how runs end, nothing to worry about
        self.opened = 0
        self._seconds: deque[list[int]] = deque(maxlen=_WINDOW)  # [second, answers]

    def answered(self, study: str, numbers: int) -> None:
        """Count one answer of so many numbers."""
        self.answers[study] += 1
        self.numbers += numbers
        second = int(time.monotonic())
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1][1] += 1
        else:
            self._seconds.append([second, 1])

    def per_second(self) -> list[int]:
        """Answers in each of the last sixty whole seconds, the oldest first; the second under way is left out."""
        now = int(time.monotonic())
        counts = {second: count for second, count in self._seconds}
        return [counts.get(second, 0) for second in range(now - _WINDOW, now)]

    def text(self, gauges: Mapping[str, float]) -> str:
        """All metrics in Prometheus' text format."""
        lines: list[str] = []
        _family(lines, "answers_total", "counter", "Answers released, by study.", _labels("study", self.answers))
        _family(lines, "numbers_total", "counter", "Noisy numbers released.", [("", self.numbers)])
        _family(lines, "refusals_total", "counter", "Refusals, by code.", _labels("code", self.refusals))
        _family(
            lines,
            "spent_total",
            "counter",
            "Questions beyond a run's budget, its ordinary end.",
            _labels("study", self.spent),
        )
        _family(lines, "runs_opened_total", "counter", "Runs opened or resumed.", [("", self.opened)])
        _family(lines, "start_time_seconds", "gauge", "When the node started.", [("", int(self.started))])
        for name, value in gauges.items():
            _family(lines, name, "gauge", GAUGES[name], [("", value)])
        return "\n".join(lines) + "\n"


GAUGES = {
    "connections": "WebSocket connections open now.",
    "paused": "1 while the owner has paused the node.",
    "budget_cap_mu_squared": "The cap of the whole node.",
    "budget_spent_mu_squared": "Spent of it; open blocks count in full.",
}


def _labels(label: str, counts: Counter[str]) -> list[tuple[str, float]]:
    return [(f'{{{label}="{name}"}}', count) for name, count in sorted(counts.items())]


def _family(lines: list[str], name: str, kind: str, words: str, values: Iterable[tuple[str, float]]) -> None:
    lines += [f"# HELP sfumato_{name} {words}", f"# TYPE sfumato_{name} {kind}"]
    lines += [f"sfumato_{name}{label} {value!r}" for label, value in values]
