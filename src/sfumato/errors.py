"""Every exception sfumato raises on purpose.

The tree::

    SfumatoError
    ├── InvalidInput (also ValueError)     an argument breaks a stated rule
    │   ├── InvalidModel                   the model does not fit: names the site
    │   ├── InvalidData                    the table does not fit the domain: never quotes a record
    │   ├── BundleError                    a bundle is damaged, edited, of another family, or used up
    │   └── Unsupported                    the certifier met a primitive it cannot bound: names it
    ├── BudgetSpent                        an answer would pass the cap: .needed .left .owner
    ├── OwnerError                         something is the matter with one of several owners: .owner
    │   ├── OwnerLost                      it does not answer, after several tries
    │   ├── OwnerRefused                   its node refuses: .code of the node's public catalogue
    │   └── BadAnswer                      it answered something that cannot be an answer
    ├── PlanTooWeak                        the forecast says the chain cannot mix: .plan
    ├── NotArrived                         the pilot is not near the posterior: .off_by .spent .left
    ├── LedgerError                        the ledger is missing, foreign, edited or busy
    ├── CheckpointError                    a checkpoint is missing, corrupt, or of another run
    └── NoiseError                         the secret stream was used in a way it must not be

    KeyboardInterrupt                      Ctrl-C, which no `except Exception` catches
    └── Interrupted                        it came before there were draws to hand over: .folder .so_far

A message has three parts: the rule, the value met, the next step. It quotes the request, never a record.
"""

from pathlib import Path
from typing import Any


class SfumatoError(Exception):
    """Root of the tree; catch this to catch everything sfumato raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Message and attributes: an error crosses to another process whole, whatever its constructor asks for."""
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[SfumatoError], args: tuple[Any, ...], facts: dict[str, Any]) -> SfumatoError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


class InvalidInput(SfumatoError, ValueError):
    """An argument breaks a stated rule."""


class InvalidModel(InvalidInput):
    """The model does not have the shape the vault can answer for; `site` names the culprit."""

    def __init__(self, message: str, site: str | None = None) -> None:
        super().__init__(message)
        self.site = site


class InvalidData(InvalidInput):
    """The table does not fit the declared domain; the message names columns, never values."""


class BundleError(InvalidInput):
    """A bundle is truncated, edited, of another family or version, given twice, or has no copies left."""


class Unsupported(InvalidInput):
    """The certifier has no sound rule for `primitive`."""

    def __init__(self, message: str, primitive: str | None = None) -> None:
        super().__init__(message)
        self.primitive = primitive


class BudgetSpent(SfumatoError):
    """An answer would pass the cap. `needed` and `left` are in units of mu squared; `owner` names whose, if there are several."""

    def __init__(self, message: str, *, needed: float, left: float, owner: str = "") -> None:
        super().__init__(message)
        self.needed = needed
        self.left = left
        self.owner = owner


class OwnerError(SfumatoError):
    """Something is the matter with one of several owners; `owner` names it, `run` has what was drawn before, if anything."""

    def __init__(self, message: str, *, owner: str) -> None:
        super().__init__(message)
        self.owner = owner
        self.run: Any = None


class OwnerLost(OwnerError):
    """An owner does not answer, after several tries with the same query id."""


class OwnerRefused(OwnerError):
    """An owner's node refuses; `code` is of the catalogue in docs/how-to/run-a-node.md, the reason is in the owner's own log."""

    def __init__(self, message: str, owner: str, code: str) -> None:
        super().__init__(message, owner=owner)
        self.code = code


class BadAnswer(OwnerError):
    """An owner answered something that cannot be an answer: another query's, the wrong length, or no numbers."""


class PlanTooWeak(SfumatoError):
    """The forecast says the chain cannot mix on this budget; `plan` carries the numbers, `plan.estimate` what it buys instead."""

    def __init__(self, message: str, plan: Any = None) -> None:
        super().__init__(message)
        self.plan = plan


class NotArrived(SfumatoError):
    """The pilot did not get near the posterior, and the chain was not begun.

    `off_by` is how far it may be off (posterior standard deviations, root mean square, upper 99 % limit); `spent` and `left` are
    of the budget, in units of mu squared. `limit` is the one-shot limit in effective draws as the pilot saw it. `estimate` is
    the forecast of a `sfumato.estimate` with what is left, `instead` the same in words. `so_far` says all else in words, without
    the way on.
    """

    def __init__(
        self, so_far: str, way_on: str, *, off_by: float, spent: float, left: float, limit: float | None = None,
        estimate: Any = None, instead: str = "",
    ) -> None:  # fmt: skip
        super().__init__(f"{so_far} {way_on}")
        self.so_far = so_far
        self.off_by = off_by
        self.spent = spent
        self.left = left
        self.limit = limit
        self.estimate = estimate
        self.instead = instead


class LedgerError(SfumatoError):
    """The ledger is missing, foreign, edited or busy."""


class CheckpointError(SfumatoError):
    """A checkpoint is missing, corrupt, or belongs to another run."""


class NoiseError(SfumatoError):
    """The secret stream was about to be reused, copied or serialised."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C when there was no run to return yet: `folder` has the checkpoint, `so_far` says what is paid for and kept."""

    def __init__(self, folder: Path, so_far: str) -> None:
        super().__init__(f"the run was interrupted. {so_far} Go on with sf.resume({str(folder)!r}, data, model=...).")
        self.folder = folder
        self.so_far = so_far
