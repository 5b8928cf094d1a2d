"""What a run that goes on must share with the run that was begun: one check for a table and for owners.

The ledgers enforce what may be spent. This is about what would be said: a chain whose first half was clipped and whose second
half was proven is not exact, whatever the second half's statement says.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sfumato.checkpoint import Checkpoint
from sfumato.domain import Domain, from_dict
from sfumato.errors import CheckpointError, InvalidInput
from sfumato.planner import budget_mu
from sfumato.sensitivity import Range
from sfumato.study import Study, computes_alike

NOTED = {"pilot_notes": True}
"""Of runs whose plan is written down before their pilot, and whose pilot is noted."""


def common_terms(model: Any, study: Study, domain: Mapping[str, Domain] | None, sensitivity: Any) -> dict[str, Any]:
    """The terms that every run records, whoever holds its records: `check_goes_on` reads them."""
    return NOTED | {
        "model": study.model.fingerprint(),
        "model_name": [getattr(model, "__module__", ""), getattr(model, "__qualname__", "")],
        "domain": None if domain is None else {name: column.to_dict() for name, column in domain.items()},
        "sensitivity": method(sensitivity),
    }


def check_goes_on(terms: Mapping[str, Any], kept: Checkpoint, sensitivity: Any) -> None:
    """Refuse to go on with a run that never began, that promises what its cap does not, or under another sensitivity.

    Raises
    ------
    CheckpointError
        There is nothing to go on with, or the terms were edited.
    InvalidInput
        The sensitivity is another one.
    """
    _check_planned(terms, kept)
    for epsilon, delta, mu in promises(terms).values():
        _check_promise(epsilon, delta, mu, kept)
    if (now := method(sensitivity)) != terms["sensitivity"]:
        raise InvalidInput(
            f"a run must be resumed with the sensitivity it was started with, {terms['sensitivity']}, and this one is {now}; "
            "pass the same sensitivity=."
        )


def check_model(terms: Mapping[str, Any], study: Study) -> None:
    """Refuse another model than the run was begun with."""
    if study.model.fingerprint() != terms["model"]:
        raise CheckpointError("the model is not the one the run was started with; pass the same model=.")


def check_computes(terms: Mapping[str, Any], study: Study) -> None:
    """Refuse a model of the same text that computes something else, on the domain that the run was begun with."""
    if not computes_alike(study, terms["computes"]):
        raise CheckpointError(
            "the model is written as the one the run was started with, and computes something else: a variable outside of the "
            "function has changed (a prior's scale, a constant?). Set it as it was, or start a new run."
        )


def promises(terms: Mapping[str, Any]) -> dict[str, tuple[float, float, float]]:
    """Epsilon, delta and mu that were promised, by owner; of a table, under no name."""
    if "promises" in terms:
        return {name: tuple(promise) for name, promise in terms["promises"].items()}
    return {"": (terms["epsilon"], terms["delta"], terms["mu"])}


def stated_domain(terms: Mapping[str, Any]) -> dict[str, Domain] | None:
    """The domain that was given when the run was begun."""
    written = terms["domain"]
    return None if written is None else {name: from_dict(spec) for name, spec in written.items()}


def find_model(terms: Mapping[str, Any]) -> Any:
    """Import the model by the name it was defined under."""
    import importlib

    module, name = terms["model_name"]
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        called = f"the model {module}.{name}" if name else "a model that is no plain function (a family, say)"
        raise InvalidInput(f"{called} cannot be found by name; pass the same one as model=.") from None


def method(sensitivity: Any) -> str:
    """How the sensitivity is known, as a run's terms record it (of a user's own function, that it is one)."""
    if isinstance(sensitivity, str):
        return sensitivity
    return type(sensitivity).__name__ if isinstance(sensitivity, Range) else repr(sensitivity)


def _check_planned(terms: Mapping[str, Any], kept: Checkpoint) -> None:
    if {"plan", "first_plan"} & set(terms):
        return
    if set(NOTED) <= set(terms):
        raise CheckpointError(
            f"{kept.folder} stopped before its run had a plan: there is nothing to go on with, and nothing was spent. Start a "
            "new run in another folder."
        )
    raise CheckpointError(
        f"{kept.folder} stopped before the pilot was done, and the version it was begun with kept no notes of it. Start a new "
        "run; what the pilot spent stays in the ledger."
    )


def _check_promise(epsilon: float, delta: float, stated: float, kept: Checkpoint) -> None:
    """Refuse terms whose epsilon and delta are not those of the cap: the statement would promise what nobody enforces."""
    mu = budget_mu(epsilon, delta)
    if not np.isclose(mu, stated, rtol=1e-9, atol=0):
        raise CheckpointError(
            f"the epsilon and delta of a run are those of its cap, and {kept.folder / 'run.json'} promises "
            f"({epsilon:g}, {delta:g}), mu = {mu:.6g}, for a cap of mu = {stated:.6g}: it was edited. Restore it from a backup."
        )
