"""One of several owners whose records are in this process."""

from collections.abc import Mapping, Sequence
from typing import Any

from sfumato.domain import Domain
from sfumato.errors import InvalidInput
from sfumato.tools.notebook import card
from sfumato.vault.ledger import Ledger
from sfumato.vault.sealed.consortium import Consortium


class Owner:
    """An owner with its own records, promise and ledger, for `sample(model, [owner_a, owner_b, ...])`.

    Parameters
    ----------
    data
        Dict of arrays, DataFrame, path of a Parquet or CSV file, or a `RayTable`.
    name
        What the owner is called in messages, plans and statements; different for every owner.
    epsilon, delta
        What this owner promises to everyone whose record it holds, against the analyst and the other owners together; in a
        sealed run, against the analyst and as many of them as its consortium says (`colluders`). Without them, those given to
        `sample` hold.
    domain
        The set this owner's records live in, if it differs from the one given to `sample`. A tighter domain costs less.
    outside
        "refuse" or "clamp": what happens to records outside it.
    ledger
        A budget shared by many runs on this owner's records.
    columns
        Which raw columns of the table make up each name.
    precision
        "float64" or "float32" evaluation of records.
    n
        Number of records. `plan` opens no table, so it needs the number. A table with another number is refused.
    consortium
        The owner's place in a consortium whose sums are sealed; its name there is `name`.
    """

    def __init__(
        self,
        data: Any,
        *,
        name: str,
        epsilon: float | None = None,
        delta: float | None = None,
        domain: Mapping[str, Domain] | None = None,
        outside: str = "refuse",
        ledger: Ledger | None = None,
        columns: Mapping[str, str | Sequence[str]] | None = None,
        precision: str = "float64",
        n: int | None = None,
        consortium: Consortium | None = None,
    ) -> None:
        if not (isinstance(name, str) and 0 < len(name) <= 100 and name.isprintable() and "/" not in name):
            raise InvalidInput(f"an owner's name must be 1 to 100 printable characters without '/', got {name!r:.80}.")
        if (epsilon is None) != (delta is None):
            raise InvalidInput(f"epsilon and delta are given together or not at all, got {epsilon} and {delta}.")
        self.name, self.epsilon, self.delta, self.domain = name, epsilon, delta, domain
        self.outside, self.ledger, self.columns, self.precision = outside, ledger, columns, precision
        if consortium is not None and consortium.me != name:
            raise InvalidInput(
                f"an owner is called on its roster as it is here, and it is {consortium.me!r} there, {name!r} here."
            )
        self.data, self.n, self.consortium = data, n, consortium

    def _repr_html_(self) -> str:
        promise = (
            "as given to sample" if self.epsilon is None else f"epsilon = {self.epsilon:g}, delta = {self.delta:g}"
        )
        rows = [("records", "closed"), ("promise", promise), ("records outside the domain", self.outside)]
        rows += [("ledger", "shared")] if self.ledger is not None else []
        return card(f"Owner {self.name}", rows)

    def __repr__(self) -> str:
        return f"<Owner {self.name!r} closed>"

    def __reduce__(self) -> Any:
        raise TypeError("an Owner is never serialised: it holds records.")
