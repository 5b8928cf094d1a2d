"""Made-up records: what a plan may look at before anything was paid for.

Covariates are drawn from the domain, uniformly; outcomes from the model at a public parameter, clamped to their domain.
They stand in for records that nobody may see, so every figure that rests on them is a stated assumption.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import jax
import numpy as np

from sfumato.bounds import compiled
from sfumato.domain import Domain, joined
from sfumato.errors import InvalidInput
from sfumato.model import Model
from sfumato.model.trials import as_model_input

Array: TypeAlias = Any
Batch: TypeAlias = dict[str, np.ndarray]

SIZE = 2048
"""Made-up records in a batch: always as many, so that nothing is compiled twice."""

_REMEMBERED = 16  # batches
_LOOKED = 4  # records by which outcomes are told from covariates
_NOTHING = 1e-12
"""Size of scores along a direction, beside the largest, below which no record speaks of it: rounding leaves 1e-15."""


def uniform(
    model: Model,
    domain: Mapping[str, Domain],
    theta: np.ndarray,
    size: int = SIZE,
    seed: int = 0,
    spread: float = 1.0,
    *,
    clamp: bool = True,
) -> Batch:
    """Draw records from the model at theta; or, where it cannot, covariates from the domain and outcomes from the model.

    `spread`: part of the domain, about its middle, that continuous covariates fill. `clamp`: see `with_outcomes`.
    """  # fmt: skip
    point = np.ascontiguousarray(theta, dtype=np.float64)
    return dict(_uniform(model, tuple(domain.items()), point.tobytes(), size, seed, spread, clamp))


@lru_cache(maxsize=_REMEMBERED)
def _uniform(
    model: Model, domain: tuple[tuple[str, Domain], ...], theta: bytes, size: int, seed: int, spread: float, clamp: bool
) -> Batch:
    """The same; a pilot looks at made-up records of one parameter from several sides, and drawing outcomes is slow."""
    point, columns = np.frombuffer(theta), dict(domain)
    if model.sample_records is not None:
        return model.sample_records(jax.device_put(point), jax.random.key(seed), size)
    rng = np.random.default_rng(seed)
    batch = {name: as_model_input(d, _drawn_in(d, d.sample(rng, size), spread)) for name, d in columns.items()}
    made = with_outcomes(model, columns, point, joined(columns, batch), seed, clamp=clamp)
    for values in made.values():
        values.flags.writeable = False  # all who ask share them
    return made


def clamped(domain: Mapping[str, Domain], batch: Batch) -> Batch:
    """The same records as their owner would hand them over: what leaves the domain is clamped to it."""
    return {
        name: as_model_input(column, column.clamp(np.asarray(batch[name], float))) for name, column in domain.items()
    }


def _drawn_in(column: Domain, values: np.ndarray, spread: float) -> np.ndarray:
    """Values drawn towards the middle of a continuous domain; codes and counts stay."""
    if column.discrete or spread == 1.0:
        return values
    middle = (column.lo + column.hi) / 2
    return np.asarray(column.clamp(middle + spread * (values - middle)))


def silent(model: Model, domain: Mapping[str, Domain], theta: np.ndarray) -> np.ndarray:
    """Which coordinates of theta no record speaks of (a hierarchy's hyperparameters): their score is zero, whoever is asked."""
    slopes = _all_slopes(model, domain, theta)
    return np.asarray(np.all(slopes == 0, axis=0) & ~np.all(slopes == 0))


def silent_directions(model: Model, domain: Mapping[str, Domain], theta: np.ndarray) -> np.ndarray:
    """Directions that no record speaks of, as orthonormal columns: silent coordinates, and what is there twice.

    An intercept beside an effect for every group may go up by as much as all effects go down: the likelihood stays the same, for
    any record, and the posterior along it is the prior's.
    """
    slopes = _all_slopes(model, domain, theta)
    slopes = slopes[np.isfinite(slopes).all(axis=1)]
    size = np.sqrt((slopes**2).mean(axis=0)) if len(slopes) else np.zeros(model.dim)
    if not size.any():
        return np.zeros((model.dim, 0))
    unit = np.where(size > 0, size, 1.0)
    values, vectors = np.linalg.svd(slopes / unit, full_matrices=len(slopes) < model.dim)[1:]
    values = np.concatenate([values, np.zeros(len(vectors) - len(values))])
    null = vectors[values < _NOTHING * values[0]].T / unit[:, None]
    return np.asarray(np.linalg.qr(null)[0])


def _every_value(domain: Mapping[str, Domain]) -> Batch:
    """Corner records in which every value of a whole-numbered column occurs, if there are not too many: of a rare group, too."""
    batch = extreme(domain)
    for name, d in domain.items():
        if d.discrete and d.separable and d.shape == ():
            values = np.arange(int(d.lo), min(int(d.hi), int(d.lo) + SIZE - 1) + 1)
            batch[name] = as_model_input(d, np.resize(values, SIZE))
    return batch


def _all_slopes(model: Model, domain: Mapping[str, Domain], theta: np.ndarray) -> np.ndarray:
    """Scores of far-reaching and of likely records, at theta and at a few parameters from the prior."""
    draws = compiled.prior_draws(model)
    points = [theta, *draws[:: len(draws) // 3]]
    batches = [_every_value(domain), *(uniform(model, domain, point, seed=i) for i, point in enumerate(points[:2]))]
    return np.concatenate([np.asarray(compiled.scores(model)(p, dict(b))) for p in points for b in batches])


def given(domain: Mapping[str, Domain], example: Any) -> Batch:
    """Take public example records, checked as private ones are; messages may quote them.

    Parameters
    ----------
    domain
        Where each column lives.
    example
        A dict of arrays with the columns of the domain, or a DataFrame that has them.
    """
    if not isinstance(example, Mapping) and not hasattr(example, "columns"):
        raise InvalidInput(f"example must be a dict of arrays or a DataFrame, got {type(example).__name__}.")
    present = list(example) if isinstance(example, Mapping) else list(example.columns)
    if not set(domain) <= set(present) or (isinstance(example, Mapping) and len(present) > len(domain)):
        raise InvalidInput(f"example must have the columns of the domain, {sorted(domain)}, got {present[:20]}.")
    batch = {name: _given_column(name, column, example[name]) for name, column in domain.items()}
    lengths = {name: len(values) for name, values in batch.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidInput(f"all columns of example must have the same number of records, got {lengths}.")
    return batch


def _given_column(name: str, column: Domain, raw: Any) -> np.ndarray:
    try:
        values = np.asarray(column.encode(raw), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"example[{name!r}] must be an array of numbers or declared labels: {error}") from None
    if values.ndim == 0 or values.shape[1:] != column.shape or len(values) == 0:
        wanted = ("n", *map(str, column.shape))
        raise InvalidInput(f"example[{name!r}] must have shape ({', '.join(wanted)}), n from 1, got {values.shape}.")
    if not np.all(inside := column.contains(values)):
        raise InvalidInput(
            f"example[{name!r}] must hold records of its domain {column}, and has {values[~inside][0].tolist()!r:.80}; leave "
            "such records out (a label that was not declared counts as inf, a missing one as nan)."
        )
    return as_model_input(column, values)


def extreme(domain: Mapping[str, Domain], size: int = SIZE, seed: int = 0) -> Batch:
    """Corner records: extreme points of each column's domain, in all combinations the draw happens to hit."""
    rng = np.random.default_rng(seed)
    return {name: as_model_input(d, d.extremes(rng, size)) for name, d in domain.items()}


def with_outcomes(
    model: Model, domain: Mapping[str, Domain], theta: np.ndarray, batch: Batch, seed: int = 0, *, clamp: bool = True
) -> Batch:
    """Replace the observed columns by draws from the model at theta, where they can be told from the covariates.

    `clamp`: outcomes are clamped to their domain, as an owner's would be. Without it they are what the model's density is of.
    """
    outcomes = observed_columns(model, theta, batch)
    if not outcomes or model.observations is None:
        return batch
    size = len(next(iter(batch.values())))
    drawn = compiled.outcomes(model)(jax.device_put(theta), jax.random.split(jax.random.key(seed), size), batch)
    out = dict(batch)
    for name, position in outcomes.items():
        column = domain[name]
        values = np.nan_to_num(np.asarray(drawn[position], dtype=np.float64).reshape(size, *column.shape))
        out[name] = as_model_input(column, column.clamp(values) if clamp else values)
    return out


def observed_columns(model: Model, theta: np.ndarray, batch: Batch) -> dict[str, int]:
    """Columns that are an observed site's value as they stand, with the position of that site among the factors.

    The column has that value in every record that is looked at, and in one of them the value moves with it: two columns may hold
    equal numbers by chance, and one that is cut to another does not move where they are equal.
    """
    if model.observations is None:
        return {}
    records = [{name: values[i] for name, values in batch.items()} for i in range(min(_LOOKED, _length(batch)))]
    looked = [_observed_in(model, theta, record) for record in records]
    return {
        name: position
        for position, name in dict.fromkeys(key for followed in looked for key in followed)
        if all((position, name) in followed for followed in looked)
        and any(followed[position, name] for followed in looked)
    }


def _observed_in(model: Model, theta: np.ndarray, record: dict[str, Any]) -> dict[tuple[int, str], bool]:
    """Pairs of a site and a column of its value; and whether the value moves with the column."""
    values_at = compiled.observed_values(model)
    found: dict[tuple[int, str], bool] = {}
    for position, value in enumerate(values_at(jax.device_put(theta), record)):
        for name, given in record.items():
            if _same(value, given):
                moved = record | {name: given + np.asarray(1, np.asarray(given).dtype)}
                followed = values_at(jax.device_put(theta), moved)[position]
                found[position, name] = _same(followed, moved[name])
    return found


def _length(batch: Batch) -> int:
    return len(next(iter(batch.values())))


def _same(value: Array, column: Array) -> bool:
    value = np.squeeze(np.asarray(value), 0)
    return value.shape == np.shape(column) and bool(np.array_equal(value, column))
