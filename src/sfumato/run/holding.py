"""A run under way in a checkpoint folder: nobody else goes on with it meanwhile, and whoever stops it hears how to go on."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sfumato.errors import CheckpointError, Interrupted
from sfumato.run.interruption import listening
from sfumato.run.journal import Journal
from sfumato.run.terms import Terms


@contextmanager
def under_way(kept: Journal | None) -> Iterator[None]:
    """Hear Ctrl-C, and hold the folder of a run, if it has one, from before its terms are written or read until it has ended.

    Raises
    ------
    CheckpointError
        Another run holds the folder.
    Interrupted
        In place of a KeyboardInterrupt that came when something may have been spent.
    """
    with listening():
        if kept is None:
            yield
            return
        with kept.held():
            try:
                yield
            except KeyboardInterrupt:
                if not (so_far := progress_so_far(kept)):
                    raise
                raise Interrupted(kept.folder, so_far) from None


def progress_so_far(kept: Journal) -> str:
    """What a run that was stopped has paid for and kept, in sentences; nothing if there is nothing to go on with."""
    try:
        terms, noted = kept.terms(), kept.releases()
        steps = sum(len(saved.transcript["accepted"]) for saved in kept.read())
    except CheckpointError:
        return ""
    if terms.pilot is not None:
        pilot = f"The pilot ({terms.pilot['share']:.0%} of {_budget(terms)}) is paid for and kept."
        if not terms.pilot["releases"]:
            pilot = "The run has no pilot."
        drawn = f"{steps:,} draws of every chain are kept too." if steps else "Nothing is drawn yet."
        return f"{pilot} {drawn} What was under way may be paid for and lost."
    return _pilots(terms, terms.first_plan, noted) if terms.first_plan is not None else ""


def _pilots(terms: Terms, plan: Mapping[str, Any], noted: list[dict[str, Any]]) -> str:
    answered = [entry for entry in noted if entry["answer"] is not None]
    share = sum(_price(entry, terms) for entry in answered) / plan["mu"] ** 2
    number = f"{len(answered)} answer" + "s" * (len(answered) > 1)
    paid = f"The pilot has {number} so far (about {100 * share:.2g}% of {_budget(terms)}): paid for, and kept."
    if not answered:
        paid = "The pilot has no answer yet."
    waited_for = " One more was under way, and may be paid for." if len(noted) > len(answered) else ""
    return paid + waited_for


def _price(entry: Mapping[str, Any], terms: Terms) -> float:
    """Mu squared of a release; one that was lost and asked for again was paid for each time, except to owners."""
    return (2 * entry["radius"] / entry["sigma"]) ** 2 * (entry["tries"] if terms.alone else 1)


def _budget(terms: Terms) -> str:
    return "the budget" if terms.alone else "every owner's budget"
