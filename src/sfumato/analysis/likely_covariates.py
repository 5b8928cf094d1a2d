r"""Made-up covariates that have the information which was released: of all laws that do, the one nearest to the uniform one.

What a score is like depends on covariates that nobody may see. Of them the released information tells, a few numbers. Of all
laws over the domain whose mean information is the released one, as far as its noise lets, the nearest to the uniform one is

.. math:: p(x) \propto e^{\lambda^\top nf(x)},\qquad
    \lambda = \arg\min\ \log E\,e^{\lambda^\top nf(x)} - \lambda^\top\hat J + \tfrac{\tau^2}{2}\lVert\lambda\rVert^2,

f a record's information at the place, its mean over outcomes. Reweighted uniform draws stand for it where it is near. Where it
is not (ten skewed columns leave one draw in thousands) they are led there: reweighted in part, resampled, and moved, again and
again.

A few numbers do not tell a column that is spread out from one that is nearly always the same and rarely at an end, and far from
the place these say different things of a score. So there are two laws to be near to: `SPREAD`, uniform over the domain, and
`RARE`, every entry in the middle of its domain or at an end. An answer weighs both by how well they explain what was released.

References
----------
Jaynes 1957 (the least change that explains what was seen); Del Moral, Doucet & Jasra 2006 (the draws).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from sfumato.analysis.estimate import drawn
from sfumato.bounds import compiled, synthetic
from sfumato.domain import Domain
from sfumato.model import Model
from sfumato.model.trials import as_model_input

SPREAD, RARE = "spread", "rare"
"""Laws that covariates may be near to."""
MOST = 120
"""Numbers of the information up to which covariates are led by them."""
_REDRAWN = 4  # outcomes over which a record's information is averaged, where they have a part in it
_KEPT, _ON_THE_WAY = (
    0.5,
    0.2,
)  # effective share of the draws that a reweighting leaves, at the least: the last, and others
_STAGES, _MOVES = 15, 5
_CHANGED = 1.5  # entries of a record that a move changes, on average


class Wanted(NamedTuple):
    """The released information: as which vector, where, by which whitening matrix, which of its numbers, and their noise."""

    kind: str
    theta: np.ndarray
    matrix: np.ndarray
    chosen: np.ndarray
    numbers: np.ndarray
    noise: float


def laws(model: Model, domain: Mapping[str, Domain], theta: np.ndarray, numbers: int) -> tuple[str, ...]:
    """Those to ask: both where they differ (whole numbers are drawn among all values) and can be led, by so many numbers."""
    if model.sample_records is not None or numbers > MOST:
        return (SPREAD,)
    outcomes = synthetic.observed_columns(model, theta, synthetic.uniform(model, domain, theta))
    wide = [name for name, column in domain.items() if name not in outcomes and not column.discrete]
    return (SPREAD, RARE) if wide else (SPREAD,)


class Likely(NamedTuple):
    """Covariates with log weights (mean weight one), how far their information is off, and whether outcomes have a part in it.

    `apart`: root mean square of what the noise of the released information does not explain. `tilt`: the multipliers.
    `misfit`: half the squared length of what is off, in units of the noise that was allowed for: how ill the law explains it.
    """

    batch: dict[str, np.ndarray]
    log_weight: np.ndarray
    follows: bool
    apart: float
    tilt: np.ndarray
    misfit: float = 0.0


class _Told(NamedTuple):
    """Each record's information as drawn, what is believed of its mean over outcomes, and whether outcomes have a part in it."""

    drawn: np.ndarray
    believed: np.ndarray
    follows: bool


def likely(
    model: Model, domain: Mapping[str, Domain], n: int, wanted: Wanted, about: np.ndarray, size: int, seed: int,
    loose: float, begun: Likely | None = None, law: str = SPREAD,
) -> Likely:  # fmt: skip
    """Draw covariates whose information is the wanted one, with outcomes at `about`.

    Parameters
    ----------
    law
        Which of the two they are near to.
    loose
        Noise that is allowed for at the least where outcomes have a part in the information: covariates must not explain what a
        parameter does that is not known yet.
    begun
        Covariates that were found for an answer before this one.
    """
    rng = np.random.default_rng([seed, 1])
    batch = _first(model, domain, about, size, law, rng) if begun is None else begun.batch
    told = _informations(model, domain, wanted, about, batch, rng)
    if model.sample_records is not None or len(wanted.numbers) > MOST:
        return Likely(
            batch, np.zeros(size), told.follows, _apart(n, wanted, told, np.zeros(size)), np.zeros(len(wanted.numbers))
        )
    noise = max(wanted.noise, loose) if told.follows else wanted.noise
    tilt = np.zeros(len(wanted.numbers)) if begun is None else begun.tilt
    if begun is not None:
        batch, told = _moved(model, domain, n, wanted, about, batch, told, tilt, law, rng)
    for stage in range(_STAGES):
        step = _step(n * told.believed, wanted.numbers, noise, tilt)
        whole = _carried(n * told.believed @ step, _KEPT) == 1.0
        part = 1.0 if whole else _carried(n * told.believed @ step, _ON_THE_WAY)
        log_weight = part * n * told.believed @ step
        log_weight -= logsumexp(log_weight) - np.log(size)
        if whole or stage == _STAGES - 1:
            break
        tilt = tilt + part * step
        chosen = drawn(np.exp(log_weight), size, int(rng.integers(2**31)))
        batch = {name: values[chosen] for name, values in batch.items()}
        told = _Told(told.drawn[chosen], told.believed[chosen], told.follows)
        batch, told = _moved(model, domain, n, wanted, about, batch, told, tilt, law, rng)
    misfit = float(np.sum(_off(n, wanted, told, log_weight) ** 2)) / (2 * noise**2)
    return Likely(batch, log_weight, told.follows, _apart(n, wanted, told, log_weight), tilt, misfit)


def _first(
    model: Model, domain: Mapping[str, Domain], about: np.ndarray, size: int, law: str, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Records of the law before anything is known of them."""
    if model.sample_records is not None:
        return synthetic.uniform(model, domain, about, size=size)
    batch = {name: as_model_input(column, _drawn(column, law, size, rng)) for name, column in domain.items()}
    return synthetic.with_outcomes(model, domain, about, batch, int(rng.integers(2**31)))


def _drawn(column: Domain, law: str, size: int, rng: np.random.Generator) -> np.ndarray:
    if law == SPREAD or column.discrete:
        return column.sample(rng, size)
    ends, middle = column.extremes(rng, size), (column.lo + column.hi) / 2
    return np.asarray(column.clamp(np.where(rng.random(ends.shape) < 2 / 3, ends, middle)))


# -- a record's information -----------------------------------------------------------------------------------------------


def _informations(
    model: Model, domain: Mapping[str, Domain], wanted: Wanted, about: np.ndarray, batch: Mapping[str, Any],
    rng: np.random.Generator,
) -> _Told:  # fmt: skip
    """Of each record, mean over outcomes at a parameter."""

    def redrawn() -> np.ndarray:
        met = synthetic.with_outcomes(model, domain, about, dict(batch), int(rng.integers(2**31)))
        each = np.asarray(compiled.vectors(model, wanted.kind)(wanted.theta, wanted.matrix, met))[:, wanted.chosen]
        return np.where(np.isfinite(each).all(axis=1)[:, None], each, 0.0)

    one, other = redrawn(), redrawn()
    if np.allclose(one, other, rtol=1e-6, atol=1e-9 * float(np.max(np.abs(one), initial=1e-300))):
        return _Told(one, one, False)
    each = np.stack([one, other, *(redrawn() for _ in range(2, _REDRAWN))])
    mean = each.mean(axis=0)
    apart = (each - mean).reshape(-1, each.shape[-1])
    return _Told(mean, _believed(mean, apart.T @ apart / (len(mean) * (_REDRAWN - 1) * _REDRAWN)), True)


def _believed(mean: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """What a record's information is believed to be, from a mean over few outcomes with this noise: the best linear guess.

    What only outcomes move (the information of a scale) is the same for all records then, and no covariate is chosen by it.
    """
    middle = mean.mean(axis=0)
    values, vectors = np.linalg.eigh(np.cov(mean, rowvar=False).reshape(noise.shape))
    seen = values > 1e-12 * max(values.max(), 1e-300)
    white, back = vectors[:, seen] * values[seen] ** -0.5, vectors[:, seen] * values[seen] ** 0.5
    share, turn = np.linalg.eigh(white.T @ noise @ white)
    kept = np.where(share < 1.0, 1.0 - share, 0.0)
    return np.asarray(middle + ((mean - middle) @ white @ turn * kept) @ turn.T @ back.T)


def _apart(n: int, wanted: Wanted, told: _Told, log_weight: np.ndarray) -> float:
    """How far the information of these records is off the wanted one, beyond its noise; nothing where outcomes have no part."""
    if not told.follows:
        return 0.0
    square = float(np.mean(_off(n, wanted, told, log_weight) ** 2))
    return float(max(square - wanted.noise**2, 0.0) ** 0.5)


def _off(n: int, wanted: Wanted, told: _Told, log_weight: np.ndarray) -> np.ndarray:
    return np.asarray(n * np.exp(log_weight - logsumexp(log_weight)) @ told.drawn - wanted.numbers)


# -- leading draws there --------------------------------------------------------------------------------------------------


def _step(features: np.ndarray, wanted: np.ndarray, noise: float, begun: np.ndarray) -> np.ndarray:
    """How far the multipliers are from where they belong, by draws of the law they have now: Newton's, a convex problem."""

    def height(step: np.ndarray) -> float:
        total = begun + step
        return float(
            logsumexp(features @ step) - np.log(len(features)) - step @ wanted + noise**2 * (total @ total) / 2
        )

    step, high = np.zeros(len(wanted)), height(np.zeros(len(wanted)))
    for _ in range(50):
        weight = np.exp(features @ step - logsumexp(features @ step))
        mean = weight @ features
        apart = features - mean
        slope = mean - wanted + noise**2 * (begun + step)
        bend = (weight[:, None] * apart).T @ apart + noise**2 * np.eye(len(wanted))
        way = -np.linalg.solve(bend, slope)
        gain, length = float(-slope @ way), 1.0
        while length > 1e-6 and not height(step + length * way) <= high - 0.1 * length * gain:
            length /= 2
        if length <= 1e-6 or gain < 1e-8:
            break
        step = step + length * way
        high = height(step)
    return step


def _carried(log_weight: np.ndarray, least: float) -> float:
    """The part of a step after which enough draws still count."""

    def share(part: float) -> float:
        scaled = part * log_weight
        return float(np.exp(2 * logsumexp(scaled) - logsumexp(2 * scaled))) / len(log_weight)

    if share(1.0) >= least:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if share(middle) >= least else (low, middle)
    return low


def _moved(
    model: Model, domain: Mapping[str, Domain], n: int, wanted: Wanted, about: np.ndarray,
    batch: Mapping[str, np.ndarray], told: _Told, tilt: np.ndarray, law: str,
    rng: np.random.Generator,
) -> tuple[dict[str, np.ndarray], _Told]:  # fmt: skip
    """Metropolis moves of every record: some of its entries become others of the domain."""
    outcomes = synthetic.observed_columns(model, about, dict(batch))
    free = {name: column for name, column in domain.items() if name not in outcomes}
    share, size = min(_CHANGED / max(sum(column.size for column in free.values()), 1), 1.0), len(told.believed)
    here = dict(batch)
    for _ in range(_MOVES):
        there = here | {
            name: as_model_input(
                column, column.vary(np.asarray(here[name]), _drawn(column, law, size, rng), share, rng)
            )
            for name, column in free.items()
        }
        other = _informations(model, domain, wanted, about, there, rng)
        taken = np.log(rng.random(size)) < n * (other.believed - told.believed) @ tilt
        here = {
            name: np.where(taken.reshape(-1, *[1] * (np.ndim(values) - 1)), there[name], values)
            for name, values in here.items()
        }
        told = told._replace(
            drawn=np.where(taken[:, None], other.drawn, told.drawn),
            believed=np.where(taken[:, None], other.believed, told.believed),
        )
    return here, _informations(model, domain, wanted, about, here, rng) if told.follows else told
