"""Every record of the domain must have a density: a record of density zero has a term that is no number.

Minus infinity at two parameters makes a log ratio of NaN, which a sum over records cannot carry and a lattice turns into some
integer: private all the same, and no draw from any posterior. What can be known beforehand is refused beforehand, from the
domain and made-up records alone; to look whether real records are affected would be a release.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import jax
import numpy as np

from sfumato.domain import Domain
from sfumato.errors import InvalidModel
from sfumato.model.base import Array

Batch: TypeAlias = dict[str, np.ndarray]
Score: TypeAlias = Callable[[Array, Array, Batch], Mapping[str, Array]]
"""(jax key, factor, records) -> log-density of each record at each observed site, at a draw from the prior times the factor."""

CORNERS = 64
"""Corners of the domain that are tried. Any two ends of two columns meet in one of them but for a chance of 1e-8."""
ANYWHERE = 16
PARAMETERS = ((0, 1.0), (1, 1.0), (2, 1.0), (3, 0.1), (4, 0.01), (5, 1e-6))
"""Draws from the prior, and factors they are shrunk by: far out a density may be zero by overflow, which bounds know of."""
_GRID = np.concatenate([[0.0, 1e-3], np.linspace(0.01, 0.99, 99), [0.999, 1.0]])


def trial_records(domain: Mapping[str, Domain]) -> Batch:
    """Corners of the domain, its ends column by column, zero where a column may be zero, and records from anywhere."""
    rng = np.random.default_rng(0)
    blocks = [{name: d.extremes(rng, CORNERS) for name, d in domain.items()}]
    for name, d in domain.items():
        zero = np.zeros((1, *d.shape))
        ends = [*d.corners(), *zero[d.contains(zero) & np.all((d.lo < 0) & (d.hi > 0))]]
        others = {other: d.sample(rng, len(ends)) for other, d in domain.items()}
        blocks += [others | {name: np.stack(ends)}] if ends else []
    blocks.append({name: d.sample(rng, ANYWHERE) for name, d in domain.items()})
    records = {name: np.concatenate([block[name] for block in blocks]) for name in domain}
    for name, d in domain.items():
        corners = d.corners()[:CORNERS]
        records[name][: len(corners)] = corners
    return _typed(records, domain)


def check_positive(score: Score, domain: Mapping[str, Domain], size: int, kinds: Mapping[str, str]) -> None:
    """Refuse a domain that has records of density zero (or infinity) whatever the parameter.

    Parameters
    ----------
    score
        What the model says of `size` records.
    kinds
        The distribution at each observed site, for the message.
    """
    records = trial_records(domain)
    for site, possible in _possible(score, records, size).items():
        if not np.all(possible):
            _refuse(possible, records, _Explained(score, domain, size, site, kinds.get(site, "the model")))


def _possible(score: Score, records: Batch, size: int) -> dict[str, np.ndarray]:
    """Which records have a finite log-density at some of the parameters, site by site."""
    found: dict[str, list[np.ndarray]] = {}
    for batch, real in _batches(records, size):
        for number, factor in PARAMETERS:
            for site, values in score(jax.random.key(number), np.float64(factor), batch).items():
                found.setdefault(site, []).append(np.isfinite(np.asarray(values))[:real])
    step = len(PARAMETERS)
    return {
        site: np.concatenate([np.any(parts[i : i + step], axis=0) for i in range(0, len(parts), step)])
        for site, parts in found.items()
    }


def _batches(records: Batch, size: int) -> Iterator[tuple[Batch, int]]:
    """Records so many at a time, the last ones filled up; and how many of them are meant."""
    count = len(next(iter(records.values())))
    for start in range(0, count, size):
        where = np.minimum(np.arange(start, start + size), count - 1)
        yield {name: values[where] for name, values in records.items()}, min(size, count - start)


def _typed(records: Batch, domain: Mapping[str, Domain]) -> Batch:
    return {name: values.astype(domain[name].dtype) for name, values in records.items()}


# -- saying what is the matter ------------------------------------------------------------------------------------------


class _Explained:
    """A site at which some record has no density, and what can be asked of it again."""

    def __init__(self, score: Score, domain: Mapping[str, Domain], size: int, site: str, kind: str) -> None:
        self.domain, self.site, self.kind = domain, site, kind
        self._score, self._size = score, size

    def possible(self, records: Batch) -> np.ndarray:
        """Which records have a density."""
        return _possible(self._score, records, self._size)[self.site]

    def never(self, name: str, value: np.ndarray, others: Batch) -> bool:
        """Whether a value of one column has no density, whatever the other columns are."""
        count = len(others[name])
        return not np.any(self.possible(others | {name: np.repeat(value[None], count, axis=0)}))


def _refuse(possible: np.ndarray, records: Batch, asked: _Explained) -> None:
    rule = "every record of the domain must have a density that is positive and finite at every observed site"
    at = f"{asked.kind} at site {asked.site!r}"
    if not np.any(possible):
        raise InvalidModel(
            f"{rule}, and none of the records tried has one under {at}; declare a domain inside the support of what is observed.",
            site=asked.site,
        )
    bad = {name: values[np.argmin(possible)] for name, values in records.items()}
    others = {name: values[possible] for name, values in records.items()}
    for name, d in asked.domain.items():
        if asked.never(name, bad[name], others):
            raise InvalidModel(
                f"{rule}, and {at} has none where {name} = {_short(bad[name])}, which {d.brief} contains. "
                f"{_cure(name, bad[name], others, asked)}",
                site=asked.site,
            )
    where = " and ".join(f"{name} = {_short(bad[name])}" for name in _together(bad, others, asked))
    raise InvalidModel(
        f"{rule}, and {at} has none where {where}. Each of these may be, but not together. Where one column never exceeds "
        f"another, say "
        'so: sf.Integers(0, 10, at_most="trials"). Else narrow the domains until every combination may be, or write the model so '
        "that all of them have a density (for k successes of m trials, total_count=jnp.maximum(m, k): the same wherever k <= m).",
        site=asked.site,
    )


def _together(bad: Batch, others: Batch, asked: _Explained) -> list[str]:
    """The columns that do not go together: those by which a possible record would repair the impossible one."""
    rows = {name: np.repeat(value[None], len(others[name]), axis=0) for name, value in bad.items()}
    return [name for name in bad if np.any(asked.possible(rows | {name: others[name]}))] or list(bad)


def _cure(name: str, value: np.ndarray, others: Batch, asked: _Explained) -> str:
    """A narrower domain of the column in which every value tried has a density."""
    d = asked.domain[name]
    if not d.separable or d.shape or d.nominal:
        return f"Declare a domain of {name!r} inside the support of {asked.kind}, or transform the column."
    low, high = float(d.lo), float(d.hi)
    whole = np.unique(np.round(low + (high - low) * _GRID))
    kinds = {"Integers": whole} if d.discrete else {"Interval": low + (high - low) * _GRID, "Integers": whole}
    for kind, values in kinds.items():
        rows = {key: np.repeat(column[:1], len(values), axis=0) for key, column in others.items()} | {name: values}
        fine = np.flatnonzero(asked.possible(_typed(rows, asked.domain)))
        if len(fine) > 1 and len(fine) == fine[-1] - fine[0] + 1:
            constant = (
                ", or add a small constant to the column" if kind == "Interval" and float(value) == low == 0 else ""
            )
            ends = f"{_short(values[fine[0]])}, {_short(values[fine[-1]])}"
            return f"Declare for instance sf.{kind}({ends}) for {name!r}{constant}."
    return f"Declare a domain of {name!r} inside the support of {asked.kind}."


def _short(value: Any) -> str:
    """A made-up value, for a message."""
    array = np.asarray(value)
    return (
        f"{array.item() + 0:.6g}" if array.ndim == 0 else np.array2string(array, precision=4, threshold=6, edgeitems=2)
    )
