"""A pilot's releases, each durable before it is used: a run that is killed in its pilot goes on with what it has paid for."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from sfumato.errors import BudgetSpent, CheckpointError
from sfumato.planner.pilot import Release
from sfumato.run.interruption import check as check_interrupted
from sfumato.run.journal import Journal

_SAME = 1e-6  # how far, relatively, a question may be from the one that was noted: another machine may round otherwise


class PilotLog:
    """A `Release` that notes in the checkpoint what it is about to ask, and then what was answered.

    Parameters
    ----------
    release
        Who answers.
    kept
        The checkpoint, if there is one.
    pass_over
        Called for each release whose answer is known already.

    Attributes
    ----------
    lost
        Numbers that may have been released and paid for when the process ended, before they were noted: they count as released.
    """

    def __init__(self, release: Release, kept: Journal | None, pass_over: Callable[[], None] = lambda: None) -> None:
        self._release, self._checkpoint, self._pass_over = release, kept, pass_over
        self._noted = kept.releases() if kept is not None else []
        self._number = self.lost = 0

    def __call__(
        self, what: str, theta: np.ndarray, matrix: np.ndarray, radius: float, sigma: float, centre: np.ndarray
    ) -> np.ndarray:
        """Ask, or give the answer of a process that was killed since."""
        check_interrupted()
        if self._checkpoint is None:
            return self._release(what, theta, matrix, radius, sigma, centre)
        number, self._number = self._number, self._number + 1
        entry = {"what": what, "theta": theta.tolist(), "matrix": matrix.tolist(), "radius": radius, "sigma": sigma}
        entry |= {"centre": centre.tolist(), "tries": 0, "answer": None}
        if number < len(self._noted):
            # To the last bit what was asked then: an owner who answered it gives the same answer again, for nothing.
            entry = self._same(self._noted[number], entry)
        if entry["answer"] is None:
            entry["tries"] += 1
            self._checkpoint.note_release(number, entry)
            asked = (*(np.array(entry[k]) for k in ("theta", "matrix")), entry["radius"], entry["sigma"])
            asked = (*asked, np.array(entry["centre"]))
            entry["answer"] = self._answer(entry, asked)
            self._checkpoint.note_release(number, entry)
        else:
            self._pass_over()
        self.lost += (entry["tries"] - 1) * len(entry["answer"])
        return np.array(entry["answer"])

    def _answer(self, entry: dict[str, Any], asked: tuple[Any, ...]) -> list[float]:
        try:
            return cast(list[float], self._release(entry["what"], *asked).tolist())
        except BudgetSpent as error:
            if entry["tries"] == 1:
                raise
            raise BudgetSpent(
                "the pilot was stopped in a release that was paid for and not noted, and what is left does not pay for it again: "
                f"this run is over. ({error})",
                needed=error.needed,
                left=error.left,
                owner=error.owner,
            ) from None

    def _same(self, noted: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
        scale = float(np.max(np.abs(asked["matrix"])))  # of the posterior: a parameter near zero is as good as zero
        same = all(_close(noted[name], asked[name]) for name in ("matrix", "radius", "sigma"))
        same = same and _close(noted["centre"], asked["centre"], asked["radius"])
        same = same and _close(noted["theta"], asked["theta"], scale)
        if noted["what"] != asked["what"] or not same:
            raise CheckpointError(
                "a pilot goes on with the question it was stopped at, and this one would ask another: the run was begun with "
                "another version of sfumato or of its libraries. Go on with that version, or start a new run; what the pilot "
                "spent stays in the ledger."
            )
        return noted


def _close(noted: Any, asked: Any, scale: float = 0.0) -> bool:
    """Whether arrays agree up to rounding, beside a scale or the largest number in them."""
    a, b = np.asarray(noted, float), np.asarray(asked, float)
    return a.shape == b.shape and bool(np.all(np.abs(a - b) <= _SAME * np.max(np.abs(a), initial=scale)))
