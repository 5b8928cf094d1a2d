"""What an analyst asks of a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sfumato.planner import truncated
from sfumato.planner.making import asked_steps


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the analyst asks, whoever holds the records; see `sfumato.sample`.

    `iterations` are steps per chain at the most; None: until the budget is spent.
    """

    kernel: str = "auto"
    sensitivity: Any = "auto"
    chains: int = 4
    seed: int | None = None
    guess: Mapping[str, Any] | None = None
    example: Mapping[str, Any] | None = None
    iterations: int | None = None
    pilot_share: float | None = None
    truncate: float | None = None
    force: bool = False


def make_request(*, kernel: str, truncate: float | None, iterations: tuple[int | None, ...], **others: Any) -> Request:
    """Check what is asked; a bound on moves is for the random walk alone, and several limits on steps are one."""
    steps = asked_steps(*iterations)
    return Request(kernel=truncated.check(truncate, kernel), truncate=truncate, iterations=steps, **others)
