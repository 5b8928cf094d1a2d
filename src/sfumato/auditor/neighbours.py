"""Two neighbouring tables: a crowd of made-up records, and the two that are exchanged.

The crowd is a few different records, each many times: the auditor evaluates each of them once. The tables of an attack differ
in the first rows, which hold one record in one table and the other record in the other.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from sfumato.bounds import synthetic
from sfumato.bounds.synthetic import Batch
from sfumato.domain import Domain
from sfumato.model import Model
from sfumato.model.trials import as_model_input

Features: TypeAlias = Callable[[Batch], np.ndarray]
"""Made-up records to what they add to typical answers, in units of the noise: shape (record, feature)."""

CROWD = 32
"""Different records in the crowd."""
ROUNDS = 8
"""How often the search for the two records looks closer."""
_SHORT_LIST = 256


@dataclass(frozen=True)
class Neighbours:
    """Made-up records: `people` has the crowd, then the record that is there, then the one that takes its place.

    Attributes
    ----------
    counts
        How often each of the crowd occurs.
    replaced
        Rows that may be exchanged: in the first table all of them hold the record that is there.
    """

    domain: Mapping[str, Domain]
    people: Batch
    counts: np.ndarray
    replaced: int

    def table(self, replaced: int) -> dict[str, Any]:
        """Give the table in which so many rows are exchanged, as an owner would hand it in."""
        crowd = len(self.counts)
        rows = np.repeat(np.arange(crowd), self.counts)
        first = np.repeat([crowd + 1, crowd], [replaced, self.replaced - replaced])
        index = np.concatenate([first, rows])
        return {name: column.decode(self.people[name][index]) for name, column in self.domain.items()}


def make_crowd(model: Model, domain: Mapping[str, Domain], theta: np.ndarray) -> Batch:
    """A few records from the model at a public parameter."""
    return {name: np.asarray(v)[:CROWD] for name, v in synthetic.uniform(model, domain, theta).items()}


def join(*batches: Batch) -> Batch:
    """Put batches one after another."""
    return {name: np.concatenate([np.asarray(batch[name]) for batch in batches]) for name in batches[0]}


def make_neighbours(
    domain: Mapping[str, Domain], crowd: Batch, pair: tuple[Batch, Batch], n: int, replaced: int
) -> Neighbours:
    """Fill a table of n records: `replaced` rows to exchange, the crowd for the rest."""
    size = len(next(iter(crowd.values())))
    return Neighbours(domain, join(crowd, *pair), np.bincount(np.arange(n - replaced) % size, minlength=size), replaced)


def furthest(features: Features, model: Model, domain: Mapping[str, Domain], theta: np.ndarray) -> tuple[Batch, Batch]:
    """Find two records that are as far apart as can be in what they add to the answers.

    Among corner records and typical ones first; then each of the two is moved about, less and less, while the other stays.
    """
    rng = np.random.default_rng(0)
    pools = [synthetic.extreme(domain), synthetic.extreme(domain, seed=1), synthetic.uniform(model, domain, theta)]
    pool = join(*pools)
    values = np.concatenate([_finite(features(part)) for part in pools])
    pair = [_take(pool, i) for i in _furthest_rows(values)]
    for scale in np.geomspace(0.5, 0.005, ROUNDS):
        for mover, other in ((0, 1), (1, 0)):
            tried = join(pair[mover], pair[other], _around(domain, pair[mover], float(scale), rng))
            values = _finite(features(tried))
            apart = np.nan_to_num(np.linalg.norm(values - values[1], axis=1), nan=-1.0)
            pair[mover] = _take(tried, int(np.argmax(apart)))
    return pair[0], pair[1]


def _finite(values: np.ndarray) -> np.ndarray:
    """Mark records whose terms are not finite: they are never the furthest."""
    return np.where(np.isfinite(values).all(axis=1, keepdims=True), values, np.nan)


def _furthest_rows(values: np.ndarray) -> tuple[int, int]:
    good = np.flatnonzero(np.isfinite(values).all(axis=1))
    out = np.linalg.norm(values[good] - values[good].mean(axis=0), axis=1)
    listed = good[np.argsort(-out)[:_SHORT_LIST]]
    apart = np.linalg.norm(values[listed][:, None] - values[listed][None], axis=2)
    first, second = np.unravel_index(int(np.argmax(apart)), apart.shape)
    return int(listed[first]), int(listed[second])


def _take(batch: Batch, row: int) -> Batch:
    return {name: np.asarray(values)[row : row + 1] for name, values in batch.items()}


def _around(domain: Mapping[str, Domain], record: Batch, scale: float, rng: np.random.Generator) -> Batch:
    """Records near one, inside the domain: some of its entries moved by a share of their range."""
    out, size = {}, synthetic.SIZE - 2  # with the two records themselves as many as in any other batch
    for name, column in domain.items():
        shape = (size, *column.shape)
        move = scale * (column.hi - column.lo) * rng.standard_normal(shape) * (rng.random(shape) < 0.5)
        out[name] = as_model_input(column, column.clamp(record[name].astype(np.float64) + move))
    return out
