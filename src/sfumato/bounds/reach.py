r"""How far one record's vector can reach, found by a search over the domain.

A pilot's release is charged for the ball that vectors are cut to. Privacy rests on that cut alone. What the search is for is
that no record is cut: a cut gradient vanishes at another point, and no test would see it. So the ball holds every vector the
search has met: of corner records, of records the model would make, and of those that climb from the furthest of them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sfumato.bounds import compiled, synthetic
from sfumato.domain import Domain
from sfumato.model import Model
from sfumato.model.trials import as_model_input

MARGIN = 1.02
"""Radius over the furthest vector that was met."""
_CLIMBS = 3  # times that the furthest records are changed a little, to see whether they get further
_PARENTS = 64  # of which records
_KEPT = 256  # vectors of a batch, those furthest from its middle
_PAIRED = 512  # records among which the furthest two are looked for
_ITERATIONS = 80  # of the smallest ball's approximation: within a few percent of it


class Reach(NamedTuple):
    """A ball that holds every vector the search has met."""

    centre: np.ndarray
    radius: float


class Pair(NamedTuple):
    """Two made-up records whose vectors are the furthest apart of all that were met."""

    one: Mapping[str, Any]
    other: Mapping[str, Any]
    distance: float


class Search:
    """Looks for the records whose vectors reach furthest; remembers them from one parameter to the next.

    Parameters
    ----------
    model, domains
        What is inferred; the record domains of all owners, each of which may hold the furthest record.
    climb
        Whether the furthest records are changed to see whether they get further; not where a glance is enough.
    """

    def __init__(self, model: Model, domains: Sequence[Mapping[str, Domain]], *, climb: bool = True) -> None:
        self._model, self._domains, self._climbs = model, list(domains), _CLIMBS if climb else 0
        self._corners = [synthetic.extreme(d, seed=seed) for d in self._domains for seed in (0, 1)]
        self._best: dict[tuple[str, int], synthetic.Batch] = {}

    def vectors(self, what: str, theta: np.ndarray, root: np.ndarray) -> np.ndarray:
        """Vectors of far-reaching records: shape (record, k), finite."""
        return np.concatenate([_outermost(vectors) for _, vectors in self._looked(what, theta, root)])

    def pair(self, what: str, theta: np.ndarray, root: np.ndarray) -> Pair:
        """The two records that are furthest apart."""
        met = self._looked(what, theta, root)
        records = _joined([batch for batch, _ in met])
        vectors = np.concatenate([vectors for _, vectors in met])
        finite = np.flatnonzero(np.isfinite(vectors).all(axis=1))
        finite = finite[_first_of_each(vectors[finite])]
        points = vectors[finite]
        middle = (points.min(axis=0) + points.max(axis=0)) / 2
        far = finite[np.argsort(-((points - middle) ** 2).sum(axis=1))[:_PAIRED]]
        away = np.linalg.norm(vectors[far][:, None] - vectors[far], axis=2)
        which = far[list(np.unravel_index(np.argmax(away), away.shape))]
        one, other = ({name: column[i] for name, column in records.items()} for i in which)
        return Pair(one, other, float(away.max()))

    def _looked(self, what: str, theta: np.ndarray, root: np.ndarray) -> list[tuple[synthetic.Batch, np.ndarray]]:
        """All records that were looked at, batch by batch, with their vectors."""
        batches = [*self._corners, *(synthetic.uniform(self._model, d, theta) for d in self._domains)]
        batches += [batch for (kind, _), batch in self._best.items() if kind == what]
        found = [self._at(what, theta, root, batch) for batch in batches]
        for i, domain in enumerate(self._domains):
            climbed = self._climb(what, theta, root, i, domain, batches, found)
            found += [vectors for _, vectors in climbed]
            batches = batches + [batch for batch, _ in climbed]
            if climbed:
                self._best[what, i] = climbed[-1][0]
        return list(zip(batches, found, strict=True))

    def reach(self, what: str, theta: np.ndarray, root: np.ndarray) -> Reach:
        """The smallest ball around those vectors, nearly."""
        return enclosing_ball(self.vectors(what, theta, root))

    def _at(self, what: str, theta: np.ndarray, root: np.ndarray, batch: synthetic.Batch) -> np.ndarray:
        return np.asarray(compiled.vectors(self._model, what)(theta, root, dict(batch)))

    def _climb(
        self, what: str, theta: np.ndarray, root: np.ndarray, i: int, domain: Mapping[str, Domain],
        batches: list[synthetic.Batch], found: list[np.ndarray],
    ) -> list[tuple[synthetic.Batch, np.ndarray]]:  # fmt: skip
        """Change the furthest records a little, keep what got further, again and again."""
        rng = np.random.default_rng(i)
        own = [2 * i, 2 * i + 1, 2 * len(self._domains) + i]
        pool = _joined([batches[k] for k in own])
        vectors = np.concatenate([found[k] for k in own])
        middle = np.nanmean(np.where(np.isfinite(vectors), vectors, np.nan), axis=0)
        out = []
        for _ in range(self._climbs):
            away = np.linalg.norm(vectors - middle, axis=1)
            top = np.argsort(-np.where(np.isfinite(away), away, -1.0))[:_PARENTS]
            parents = {name: column[top] for name, column in pool.items()}
            children = _changed(domain, parents, rng)
            vectors = self._at(what, theta, root, children)
            pool = children
            out.append((children, vectors))
        return out


def _outermost(vectors: np.ndarray) -> np.ndarray:
    """Those vectors of a batch that may lie on the edge of all: finite, distinct, far from the middle."""
    points = _distinct(vectors[np.isfinite(vectors).all(axis=1)])
    return _furthest(points, (points.min(axis=0) + points.max(axis=0)) / 2, _KEPT) if len(points) else points


def _joined(batches: list[synthetic.Batch]) -> synthetic.Batch:
    return {name: np.concatenate([np.asarray(batch[name]) for batch in batches]) for name in batches[0]}


def _changed(domain: Mapping[str, Domain], parents: synthetic.Batch, rng: np.random.Generator) -> synthetic.Batch:
    """A full batch: the parents themselves, and children of theirs with some entries replaced."""
    size = synthetic.SIZE
    number = len(next(iter(parents.values())))
    of = np.concatenate([np.arange(number), rng.integers(0, number, size - number)])
    entries = sum(column.size for column in domain.values())
    out: synthetic.Batch = {}
    for name, column in domain.items():
        here = np.asarray(parents[name])[of]
        fresh = np.where(
            rng.random((size, *[1] * len(column.shape))) < 0.7, column.extremes(rng, size), column.sample(rng, size)
        )
        changed = column.vary(here, fresh, max(1.5 / entries, 0.1), rng)
        changed[:number] = here[:number]
        out[name] = as_model_input(column, changed)
    return out


def enclosing_ball(vectors: np.ndarray) -> Reach:
    """Ball around points, nearly the smallest: walk from their middle towards the furthest, in ever smaller steps.

    References
    ----------
    Badoiu & Clarkson 2003.
    """
    points = _distinct(vectors)
    centre = (points.min(axis=0) + points.max(axis=0)) / 2
    start = Reach(centre, float(np.linalg.norm(points - centre, axis=1).max()))
    far = _furthest(points, centre)
    for k in range(_ITERATIONS):
        away = ((far - centre) ** 2).sum(axis=1)
        centre = centre + (far[np.argmax(away)] - centre) / (k + 2)
    walked = Reach(centre, float(np.linalg.norm(points - centre, axis=1).max()))
    best = min(start, walked, key=lambda reach: reach.radius)
    return Reach(best.centre, max(MARGIN * best.radius, 1e-12))


def diameter(vectors: np.ndarray) -> float:
    """Largest distance between two of the vectors, looked for among the furthest from their middle."""
    points = _distinct(vectors)
    middle = (points.min(axis=0) + points.max(axis=0)) / 2
    far = _furthest(points, middle) - middle  # far from zero the squares would cancel
    square = (far**2).sum(axis=1)
    return float(np.sqrt(max((square[:, None] + square[None] - 2 * far @ far.T).max(), 0.0)))


def _distinct(vectors: np.ndarray) -> np.ndarray:
    """The vectors, each once: corner records repeat. Told apart by one number each, a fixed mixture of their entries."""
    return np.asarray(vectors[_first_of_each(vectors)])


def _first_of_each(vectors: np.ndarray) -> np.ndarray:
    """Where each vector is met for the first time."""
    mixture = vectors @ np.random.default_rng(0).standard_normal(vectors.shape[1])
    scale = max(float(np.abs(mixture).max(initial=0.0)), 1e-300)
    return np.asarray(np.unique(np.round(mixture / scale, 10), return_index=True)[1])


def _furthest(points: np.ndarray, centre: np.ndarray, number: int = 1024) -> np.ndarray:
    return np.asarray(points[np.argsort(-((points - centre) ** 2).sum(axis=1))[:number]])
