r"""The posterior given a noisy score and the information: p(theta given what a pilot released), for any model.

Let :math:`S = \sum_i \nabla\ell(y_i, \theta^*)` be the score at the place, and J the information. Near the place, given theta,
S is normal with mean :math:`J(\theta - \theta^*)` and covariance J (local asymptotic normality). What was released is that plus
noise of known covariance V. So

.. math:: p(\theta \mid \text{released}) \propto \eta(\theta)\,
    N\bigl(\hat S;\ \hat J d(\theta),\ J + V + T(\theta)\bigr).

* The prior is taken as it is. As V grows the answer tends to the prior. (The naive :math:`\Sigma + \Sigma V\Sigma` does not.)
* The noise of the released information enters. In coordinates in which it is independent, of size :math:`\tau` (a symmetric
  matrix E), the mean is off by :math:`Ed`, which is normal, too:
  :math:`T = \tfrac{\tau^2}{2}\bigl(\lVert d\rVert^2 I + dd^\top\bigr)`. Nothing has to be drawn for it.
* The distance :math:`d(\theta)` is :math:`\theta - \theta^*` for a normal posterior. Where a budget is small the answer is wide,
  and the mean of a score is no straight line over its width. Its shape is taken from made-up records,
  :math:`d(\theta) = B^{-1}E_\theta[s(Y, \theta^*)]` with B the slope of that mean at the place; the slope alone is the
  records' own. The covariance follows in the same way, :math:`J^{1/2}\Gamma(\theta)J^{1/2}`, :math:`\Gamma` one at the place.
  The made-up covariates are reweighted, by as little as makes their information that which was released (`_tilt`).
* Where outcomes have a part in a record's information, what was released is no slope: at twice the place's scale of a normal
  outcome the information about that scale is four times as much. Then made-up records alone say what a score is like, with mean
  :math:`nE_\theta[s]` and covariance :math:`n\mathrm{Cov}_\theta[s]`, and what was released tells of their covariates alone: with
  outcomes drawn at the answer, again when there is a better one.
* Outcomes that leave their domain are clamped by their owner. Made-up ones are, too: their weights are those of the outcome as
  the model draws it, their scores those of the clamped one.

Scores from the way to the place are left out. They cost a small part of the budget, and from far away they say more about the
bend between there and here than about theta: with them, 90 % intervals covered less (75 % in place of 84 %, logistic, n = 500).

It is an **approximation**, and labelled so wherever it is shown. Being post-processing, it costs nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp

from sfumato.bounds import compiled, synthetic
from sfumato.domain import Domain
from sfumato.model import Model
from sfumato.model.derivatives import matrix_to_triangle, triangle_to_matrix
from sfumato.planner.belief import mean_information, positive, prior_precision, safe_inverse
from sfumato.planner.centre import summit
from sfumato.planner.placing import Asked

Array: TypeAlias = Any

ANCHORS, PRIOR_ANCHORS = 7, 5
"""Parameters at which outcomes are made up: the place and draws of the first normal answer; and draws of the prior."""
RECORDS = 256
"""Made-up records at each of them."""
ENOUGH = 1500.0
"""Effective points of a population that is as good as wanted."""
LEAST = 400.0
"""The same below which a walk takes over."""
_SCOUTS, _ROUND = 600, 1500  # points of a round that finds where to look, and of one that counts
_ROUNDS, _FREEDOM = 16, 5.0
_FOUND = 0.1  # effective share of the points from which more of them are drawn there
_LED_BY = 8.0  # effective points a coordinate, at the least, that the next round is led by
_WALKERS, _STEPS, _KEPT_OF = 200, 150, 10  # how many walk, how far, and how many last places of each are kept
MOST_TILTED = 120
"""Entries of the information up to which made-up covariates are reweighted to match it."""
_REDRAWN, _LEAST_ROUGH, _CARRIED = 4, 0.05, 0.05
LOOSE, PASSES = 0.2, 3
"""Where outcomes have a part in the information: how near made-up covariates come to it; and how often the answer is made."""
NEGATIVE = 1.0
"""Spectral noise of the whitened information below which a negative direction is no noise."""
SCALE = 0.8
"""Standard deviation of the logarithm of a covariate's scale, beside that of made-up records."""
COMPARED = 10
"""Numbers of the released information, beyond those that scales take up, from which it is told how far the assumed one is off."""
_BATCH = 100  # points whose densities are computed together
_FLOOR = 1e-3  # smallest eigenvalue of the whitened information, beside the largest, that is believed


Moments: TypeAlias = tuple[np.ndarray, np.ndarray]
"""Mean and covariance."""


class Heard(NamedTuple):
    r"""What the releases say, in coordinates in which the information's noise is independent.

    Attributes
    ----------
    loud
        Coordinates of theta that records speak of. Of the others (a hierarchy's hyperparameters) the score is zero.
    root
        R: a score becomes :math:`R^\top s`, a distance :math:`R^{-1}(\theta - \theta^*)`.
    theta
        The place.
    score, noise
        The whitened score, and the covariance of its noise.
    information, roughness
        The whitened information, and the standard deviation of its noise.
    kind
        As which vector information was asked for.
    raw
        The whitened information as it is, negative directions and all: far from the answer it has such.
    """

    loud: np.ndarray
    root: np.ndarray
    theta: np.ndarray
    score: np.ndarray
    noise: np.ndarray
    information: np.ndarray
    roughness: float
    kind: str = "information"
    raw: np.ndarray | None = None


class Population(NamedTuple):
    """Points of theta (unconstrained) with weights that sum to one, and how many equally weighted ones they are worth.

    `apart`: how far the made-up records' whitened information is off the released one, where they stand for the others.
    """

    theta: np.ndarray
    weight: np.ndarray
    effective: float
    apart: float = 0.0


# -- from releases to a measurement ---------------------------------------------------------------------------------------


def hear(
    asked: Sequence[Asked],
    silent: np.ndarray,
    *,
    information: np.ndarray | None = None,
    assumed: np.ndarray | None = None,
) -> Heard:
    """What the last gradient and the last information say.

    Parameters
    ----------
    asked
        All releases, in order.
    silent
        Coordinates that no record speaks of.
    information
        Of all records, where it is known without asking: then no released one is used.
    assumed
        Information of as many made-up records (`assumed_information`): what is believed, give or take its own size, where the
        released one is mostly noise.
    """
    loud = ~silent
    last = [release for release in asked if release.what == "gradient"][-1]
    kind = "information"
    if information is None:
        told = [release for release in asked if release.what != "gradient"][-1]
        root, turn = _loud_root(told.matrix, loud)
        whitened, rough = turn.T @ triangle_to_matrix(told.answer, len(told.matrix)) @ turn, float(told.sigma)
        kind = told.what
    else:
        root, _ = _loud_root(last.matrix, loud)
        whitened, rough = root.T @ information[np.ix_(loud, loud)] @ root, 0.0
    instead = None
    if assumed is not None and rough > 0:
        instead = _scaled(whitened, rough, root, assumed[np.ix_(loud, loud)])
        whitened, rough = _together(whitened, rough, instead)
    own, turn = _loud_root(last.matrix, loud)
    change = np.linalg.solve(own, root).T  # from the score's own whitened coordinates to those of the information
    score, noise = change @ (turn.T @ last.answer), last.sigma**2 * change @ change.T
    used = _positive(whitened, rough)
    if instead is not None and np.linalg.eigvalsh(whitened)[0] < -NEGATIVE * rough * (2 * len(root)) ** 0.5:
        # The place is far off, and the information there is no slope between it and the answer.
        used = positive(instead)
    return Heard(loud, root, last.theta, score, noise, used, rough, kind, whitened)


def assumed_information(model: Model, domain: Mapping[str, Domain], n: int, theta: np.ndarray) -> np.ndarray:
    """Information of n made-up records."""
    return np.asarray(n * mean_information(model, theta, synthetic.uniform(model, domain, theta)))


def _together(whitened: np.ndarray, rough: float, assumed: np.ndarray) -> tuple[np.ndarray, float]:
    r"""Released and assumed information by their precisions.

    Where there are few numbers the assumed one may be off by as much as it is. Where there are many, it is read off: k of p went
    into its scales, the others differ by noise :math:`\tau` and by what it is off,
    :math:`s^2 = \lVert W - J\rVert^2/(p - k) - \tau^2`, with a standard error of the noise for safety.
    """
    size = max(float(np.trace(assumed)) / len(assumed), 1e-300)
    numbers, scales = len(assumed) * (len(assumed) + 1) // 2, len(assumed)
    free = numbers - scales
    if free < COMPARED:
        off, scales = size**2, 0
    else:
        apart = float(np.sum((whitened - assumed) ** 2)) / free - rough**2
        off = min(max(apart, 0.0) + rough**2 * (2 / free) ** 0.5, max(size**2, apart))
    keep = off / (off + rough**2)
    # What is left: the noise that is kept, and what the scales took up of it, or what they may be off if it is too much to tell.
    left = keep * rough**2 + (1 - keep) * min(rough**2 * scales / numbers, size**2)
    return keep * whitened + (1 - keep) * assumed, float(left**0.5)


def _scaled(whitened: np.ndarray, rough: float, root: np.ndarray, assumed: np.ndarray) -> np.ndarray:
    r"""The assumed information DJD, whitened, with the scales D of covariates that explain the released one as far as noise lets.

    :math:`\log D` is taken to be normal about zero with standard deviation `SCALE`: covariates of the records may fill less of
    their domain than made-up ones, or be rarer.
    """

    def misfit(log_scale: np.ndarray) -> tuple[float, np.ndarray]:
        scale = np.exp(log_scale)
        inner = scale[:, None] * assumed * scale
        apart = root.T @ inner @ root - whitened
        slope = 2 * np.einsum("ij,ji->i", inner, root @ apart @ root.T) / rough**2
        square = float(np.sum(apart**2)) / rough**2 + float(np.sum((log_scale / SCALE) ** 2))
        return square / 2, slope + log_scale / SCALE**2

    if len(root) * (len(root) - 1) // 2 < COMPARED:
        return np.asarray(root.T @ assumed @ root)
    best = minimize(misfit, np.zeros(len(root)), jac=True, method="L-BFGS-B", bounds=[(-4.0, 4.0)] * len(root)).x
    return np.asarray(root.T @ (np.exp(best)[:, None] * assumed * np.exp(best)) @ root)


def _loud_root(matrix: np.ndarray, loud: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""R and Q with :math:`A^\top s = QR^\top s_{loud}`: the silent part of s is zero, so :math:`Q^\top` of an answer is all."""
    turn, upper = np.linalg.qr(matrix[loud].T)
    return np.asarray(upper.T), np.asarray(turn)


def _positive(whitened: np.ndarray, rough: float) -> np.ndarray:
    """The information, positive: directions that drowned in noise keep what the noise leaves open."""
    values, vectors = np.linalg.eigh((whitened + whitened.T) / 2)
    return np.asarray((vectors * np.maximum(values, max(_FLOOR * values.max(), rough / 2, 1e-300))) @ vectors.T)


def normal_answer(model: Model, heard: Heard) -> tuple[np.ndarray, np.ndarray]:
    r"""Mode and covariance of the answer for straight means: precision :math:`P + J(J + V)^{-1}J`, the prior as it is.

    Without the noise of the information, and for straight means: it is for anchors and first proposals.
    """
    dim = len(heard.loud)
    back = np.linalg.inv(heard.root)
    spread = heard.information + heard.noise
    gain = np.linalg.solve(spread, heard.information)
    precision, slope = np.zeros((dim, dim)), np.zeros(dim)
    inside = np.ix_(heard.loud, heard.loud)
    precision[inside] = back.T @ (heard.information @ gain) @ back
    slope[heard.loud] = back.T @ (gain.T @ heard.score)
    mode = summit(model, heard.theta, slope, (precision + precision.T) / 2)
    total = positive(precision + prior_precision(model, mode))
    return mode, safe_inverse(total)


# -- how the mean of a score bends ------------------------------------------------------------------------------------------


class MadeUp(NamedTuple):
    """Made-up records whose weights say what records look like at any parameter.

    Attributes
    ----------
    batch
        The records, from several parameters, with outcomes as the model draws them.
    log_drawn
        Log density of each outcome under the mixture that it was drawn from.
    scores, unclamped
        Whitened score of each record at the place, with its outcome clamped to the domain, and as drawn.
    follows
        Whether outcomes have a part in a record's information there, so that it follows theta.
    apart
        How far their information at the answer is off the released one, beyond its noise: root mean square of a number.
    """

    batch: dict[str, np.ndarray]
    log_drawn: np.ndarray
    scores: np.ndarray
    unclamped: np.ndarray
    follows: bool
    apart: float


def make_up(
    model: Model, domain: Mapping[str, Domain], n: int, heard: Heard, seed: int = 0, about: Moments | None = None
) -> MadeUp | None:
    """Records drawn at parameters all over a first answer (the normal one by default); None where the model makes no records."""
    if model.sample_records is None and (
        model.observations is None
        or not synthetic.observed_columns(model, heard.theta, synthetic.uniform(model, domain, heard.theta))
    ):
        return None
    mode, covariance = normal_answer(model, heard) if about is None else about
    anchors = _anchors(model, heard, mode, covariance, seed)
    drawn = [
        synthetic.uniform(model, domain, theta, size=RECORDS, seed=i, clamp=False) for i, theta in enumerate(anchors)
    ]
    batch = {name: np.concatenate([np.asarray(one[name]) for one in drawn]) for name in drawn[0]}
    each = np.stack([np.asarray(_log_likelihoods(model)(theta, batch)) for theta in anchors])
    log_drawn = logsumexp(each, axis=0) - np.log(len(anchors))
    met = synthetic.clamped(domain, batch)
    information, follows = _informations(model, domain, heard, mode, met)
    # Where outcomes have a part in it, covariates must not explain what a parameter does that is not known yet.
    tilt = _tilt(model, n, heard, information, LOOSE if follows else _LEAST_ROUGH)
    log_drawn, apart = log_drawn - tilt, _apart(n, heard, information, tilt) if follows else 0.0
    scores, unclamped = (np.asarray(compiled.scores(model)(heard.theta, one))[:, heard.loud] for one in (met, batch))
    good = np.isfinite(log_drawn) & np.isfinite(scores).all(axis=1) & np.isfinite(unclamped).all(axis=1)
    if good.sum() < len(good) / 2:
        return None

    def kept(values: np.ndarray) -> np.ndarray:
        return np.where(good[:, None], values, 0.0)

    return MadeUp(
        batch, np.where(good, log_drawn, np.inf), kept(scores) @ heard.root, kept(unclamped) @ heard.root,
        follows, apart,
    )  # fmt: skip


def _anchors(
    model: Model, heard: Heard, mode: np.ndarray, covariance: np.ndarray, seed: int
) -> list[np.ndarray]:  # fmt: skip
    """The place, draws of the first normal answer (a little wider), and draws of the prior; where the prior is positive."""
    rng, root = np.random.default_rng(seed), np.linalg.cholesky(covariance)
    anchors = [heard.theta, *(mode + root @ rng.standard_normal(len(mode)) * 1.3 for _ in range(ANCHORS - 1))]
    anchors += list(compiled.prior_draws(model)[rng.integers(0, 1000, PRIOR_ANCHORS)])
    density = compiled.prior_density(model)
    return [theta for theta in anchors if np.isfinite(float(density(theta)))] or [heard.theta]


def _triangles(model: Model, heard: Heard, batch: Mapping[str, Any]) -> np.ndarray:
    """Upper triangle of each record's whitened information at the place, of the kind that was asked for."""
    dim = len(heard.loud)
    rows, columns = np.triu_indices(dim)
    matrix = np.zeros((dim, dim))
    matrix[np.ix_(heard.loud, heard.loud)] = heard.root
    each = np.asarray(compiled.vectors(model, heard.kind)(heard.theta, matrix, dict(batch)))
    return each[:, heard.loud[rows] & heard.loud[columns]]


def _informations(
    model: Model, domain: Mapping[str, Domain], heard: Heard, theta: np.ndarray, batch: Mapping[str, Any]
) -> tuple[np.ndarray, bool]:
    """Each record's whitened information at the place, mean over outcomes at theta; and whether outcomes have a part in it."""

    def redrawn(seed: int) -> np.ndarray:
        return _triangles(model, heard, synthetic.with_outcomes(model, domain, theta, dict(batch), seed))

    one, other = redrawn(0), redrawn(1)
    if np.allclose(one, other, rtol=1e-6, atol=1e-9 * float(np.max(np.abs(one[np.isfinite(one)]), initial=1e-300))):
        return one, False
    return np.mean([one, other, *(redrawn(seed) for seed in range(2, _REDRAWN))], axis=0), True


def _apart(n: int, heard: Heard, information: np.ndarray, tilt: np.ndarray) -> float:
    """How far the information of reweighted made-up records is off the released one, beyond its noise."""
    if heard.raw is None:
        return 0.0
    mean = np.exp(tilt - logsumexp(tilt)) @ np.nan_to_num(information)
    square = float(np.mean((n * mean - matrix_to_triangle(heard.raw)) ** 2))
    return float(max(square - heard.roughness**2, 0.0) ** 0.5)


def _tilt(model: Model, n: int, heard: Heard, information: np.ndarray, least: float) -> np.ndarray:
    r"""Log weights of made-up records with which their information is that of the records.

    Of all weights :math:`w_j \propto e^{\lambda^\top f_j}`, :math:`f_j` a record's information at the place, those that minimise
    :math:`\log\tfrac1m\sum_j e^{\lambda^\top nf_j} - \lambda^\top\hat J + \tfrac{\tau^2}{2}\lVert\lambda\rVert^2`: the least
    change that explains :math:`\hat J` as far as its noise lets it. Outcomes are averaged over: covariates alone are reweighted.
    """
    size, free = information.shape
    if model.sample_records is not None or free > MOST_TILTED:
        return np.zeros(size)
    features = n * np.nan_to_num(information)
    wanted, noise = (
        matrix_to_triangle(heard.information if heard.raw is None else heard.raw),
        max(heard.roughness, least * float(np.trace(heard.information)) / len(heard.root)),
    )
    for _ in range(8):
        log_weight = features @ _least_tilt(features, wanted, noise)
        log_weight = log_weight - logsumexp(log_weight) + np.log(size)
        if np.exp(2 * np.log(size) - logsumexp(2 * log_weight)) > _CARRIED * size:
            return np.asarray(log_weight)
        noise *= 2
    return np.zeros(size)


def _least_tilt(features: np.ndarray, wanted: np.ndarray, noise: float) -> np.ndarray:
    def dual(tilt: np.ndarray) -> tuple[float, np.ndarray]:
        log_weight = features @ tilt
        top = float(logsumexp(log_weight))
        mean = np.exp(log_weight - top) @ features
        return top - float(tilt @ wanted) + noise**2 * float(tilt @ tilt) / 2, mean - wanted + noise**2 * tilt

    return np.asarray(minimize(dual, np.zeros(len(wanted)), jac=True, method="L-BFGS-B").x)


@lru_cache(maxsize=16)
def _log_likelihoods(model: Model) -> Callable[[Array, Any], Array]:
    return jax.jit(jax.vmap(model.log_likelihood, (None, 0)))


class _Constants(NamedTuple):
    r"""Everything a density needs besides theta, as arrays: one compiled program serves all answers of a model.

    `vectors`: of each made-up record the score, and the upper triangle of its square, in coordinates in which the covariance of
    scores at the place is one. `middle`: the mean of the score at the place as chance made it, known to be zero. `whiten`: matrix
    to those coordinates; `unwhiten`: back, for the covariance of as many made-up records.
    """

    loud: Array
    back: Array
    theta: Array
    score: Array
    noise: Array
    information: Array
    root_information: Array
    rough: Array
    batch: Any
    log_drawn: Array
    vectors: Array
    middle: Array
    whiten: Array
    unwhiten: Array


def _constants(model: Model, n: int, heard: Heard, made: MadeUp | None) -> _Constants:
    loud, size = np.flatnonzero(heard.loud), len(heard.root)
    root = np.linalg.cholesky(heard.information)
    fixed = (loud, np.linalg.inv(heard.root), heard.theta, heard.score, heard.noise, heard.information, root)
    # Where made-up records stand for the others, they may be as wrong as their information is.
    one, rough = np.eye(size), np.hypot(heard.roughness, 0.0 if made is None else made.apart)
    if made is None:
        return _Constants(*fixed, rough, {}, np.zeros(0), np.zeros((0, 0)), np.zeros(0), one, one)
    weight = _weights(np.asarray(_log_likelihoods(model)(heard.theta, made.batch)), made.log_drawn)
    apart = made.unclamped - weight @ made.unclamped
    # The slope of the mean of s under theta, at the place, is the covariance of s with itself.
    whiten = np.linalg.inv(np.linalg.cholesky(positive((weight[:, None] * apart).T @ apart)))
    scores, rows, columns = made.scores @ whiten.T, *np.triu_indices(size)
    vectors = np.concatenate([scores, scores[:, rows] * scores[:, columns]], axis=1)
    return _Constants(
        *fixed, rough, made.batch, made.log_drawn, vectors, weight @ made.unclamped @ whiten.T, whiten,
        n**0.5 * np.linalg.inv(whiten),
    )  # fmt: skip


def _weights(log_density: np.ndarray, log_drawn: np.ndarray) -> np.ndarray:
    log_weight = np.where(np.isfinite(log_drawn), log_density - log_drawn, -np.inf)
    return np.asarray(np.exp(log_weight - logsumexp(log_weight)))


# -- the density ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def _densities(model: Model, bends: bool, follows: bool) -> Callable[[Array, _Constants], Array]:
    """Compile (points, constants) -> unnormalised log posterior at each point."""
    return jax.jit(jax.vmap(lambda theta, c: _log_density(model, bends, follows, theta, c), (0, None)))


def _log_density(model: Model, bends: bool, follows: bool, theta: Array, c: _Constants) -> Array:
    if bends:
        log_weight = jax.vmap(model.log_likelihood, (None, 0))(theta, c.batch) - c.log_drawn
        weight = jax.nn.softmax(jnp.where(jnp.isfinite(log_weight), log_weight, -jnp.inf))
        away, mean, spread = _bent(weight @ c.vectors, follows, c)
    else:
        away = c.back @ (theta - c.theta)[c.loud]
        mean, spread = c.information @ away, c.information
    rough = c.rough**2 / 2 * ((away @ away) * jnp.eye(len(away)) + jnp.outer(away, away))
    root = jnp.linalg.cholesky(spread + c.noise + rough)
    left = jax.scipy.linalg.solve_triangular(root, c.score - mean, lower=True)
    value = model.log_prior(theta) - left @ left / 2 - jnp.sum(jnp.log(jnp.diag(root)))
    return jnp.where(jnp.isnan(value), -jnp.inf, value)


def _bent(means: Array, follows: bool, c: _Constants) -> tuple[Array, Array, Array]:
    r"""The distance :math:`d = B^{-1}E_\theta[s]`; mean and covariance of a score of all records. From means of made-up ones."""
    size = len(c.whiten)
    score, square = means[:size], _symmetric(means[size:], size)
    covariance, score = square - jnp.outer(score, score), score - c.middle
    away = c.whiten.T @ score
    if follows:
        mean = c.unwhiten @ (c.unwhiten.T @ away)
        return away, mean, c.unwhiten @ covariance @ c.unwhiten.T
    return away, c.information @ away, c.root_information @ covariance @ c.root_information.T


def _symmetric(triangle: Array, size: int) -> Array:
    """Matrix from the first entries of an upper triangle, row by row."""
    rows, columns = np.triu_indices(size)
    half = jnp.zeros((size, size)).at[rows, columns].set(triangle[: len(rows)])
    return half + jnp.triu(half, 1).T


# -- draws ----------------------------------------------------------------------------------------------------------------


def answer(
    model: Model, domain: Mapping[str, Domain], n: int, heard: Heard, *, seed: int = 0, straight: bool = False
) -> Population:
    """Points of the posterior given what was heard: importance sampling that adapts, a walk where that does not do.

    Parameters
    ----------
    straight
        Take means of scores as straight lines, whatever the model.
    """  # fmt: skip
    about = normal_answer(model, heard)
    made = None if straight else make_up(model, domain, n, heard, seed)
    found = _sampled(model, made, _constants(model, n, heard, made), about, seed)
    if made is None or not made.follows:
        return found
    # What outcomes are like is known from a first answer on, and better from the next.
    for _ in range(PASSES - 1):
        about = _moments(found)
        made = make_up(model, domain, n, heard, seed, about) or made
        found = _sampled(model, made, _constants(model, n, heard, made), about, seed)
    return found._replace(apart=made.apart)


def _sampled(model: Model, made: MadeUp | None, constants: _Constants, about: Moments, seed: int) -> Population:
    """Points of one density."""
    fixed = jax.tree.map(jnp.asarray, constants)
    density_of = _densities(model, made is not None, made is not None and made.follows)

    def density(points: np.ndarray) -> np.ndarray:
        # Always as many at a time, so that nothing is compiled twice.
        padded = np.resize(points, (-(-len(points) // _BATCH) * _BATCH, points.shape[1]))
        each = [density_of(part, fixed) for part in np.split(padded, len(padded) // _BATCH)]
        return np.concatenate(each)[: len(points)]

    found = _adapt(model, about, density, seed)
    return found if found.effective >= LEAST else _walked(found, density, seed)


def _adapt(
    model: Model, normal: tuple[np.ndarray, np.ndarray], density: Callable[[np.ndarray], np.ndarray], seed: int
) -> Population:
    """Draw from Student-t laws about the prior and the normal answer, then about what was found; weigh by the mixture of all."""
    from scipy.stats import multivariate_t  # takes half a second, and a run has no use for it

    rng, prior = np.random.default_rng(seed), compiled.prior_draws(model)
    jitter = 1e-9 * np.diag(np.var(prior, axis=0) + 1e-300)
    laws = [(normal[0], normal[1]), (np.mean(prior, axis=0), np.cov(prior, rowvar=False).reshape(normal[1].shape))]
    points, heights, sizes = [], [], []
    used: list[Any] = []
    number = _SCOUTS
    for turn in range(_ROUNDS):
        fresh = laws if turn == 0 else laws[-1:]
        for centre, covariance in fresh:
            law = multivariate_t(centre, covariance + jitter, df=_FREEDOM, allow_singular=True)
            half = np.reshape(law.rvs(number // len(fresh) // 2, random_state=rng), (-1, len(centre)))
            drawn = np.concatenate([half, 2 * centre - half])  # in pairs, so that chance hardly moves their mean
            used.append(law)
            sizes.append(len(drawn))
            points.append(drawn)
            heights.append(density(drawn))
        found = _weighed(np.concatenate(points), np.concatenate(heights), used, np.array(sizes))
        if turn and found.effective >= ENOUGH:
            break
        number = _ROUND if found.effective > _FOUND * sum(sizes) else _SCOUTS
        laws.append(_moments(found))
    return found


def _weighed(points: np.ndarray, heights: np.ndarray, used: list[Any], sizes: np.ndarray) -> Population:
    drawn = logsumexp([law.logpdf(points) for law in used], b=(sizes / sizes.sum())[:, None], axis=0)
    log_weight = np.where(np.isfinite(heights), heights - drawn, -np.inf)
    weight = np.exp(log_weight - logsumexp(log_weight))
    return Population(points, weight, float(1 / np.sum(weight**2)))


def _moments(found: Population) -> tuple[np.ndarray, np.ndarray]:
    r"""Mean and covariance by weight; by weights to a power below one while few points carry them.

    References
    ----------
    Koblents & Miguez 2015: tempered weights lead an adaptive importance sampler where plain ones are led by a single point.
    """
    wanted = min(_LED_BY * found.theta.shape[1], len(found.theta) / 4)
    with np.errstate(divide="ignore"):
        log_weight = np.log(found.weight)

    def tempered(power: float) -> np.ndarray:
        return np.asarray(np.exp(power * log_weight - logsumexp(power * log_weight)))

    low, high = 1e-9, 1.0
    while 1 / np.sum(tempered(high) ** 2) < wanted and high > 1.05 * low:
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if 1 / np.sum(tempered(middle) ** 2) < wanted else (middle, high)
    weight = tempered(low if 1 / np.sum(tempered(high) ** 2) < wanted else high)
    centre = weight @ found.theta
    apart = found.theta - centre
    return centre, (weight[:, None] * apart).T @ apart


def _walked(found: Population, density: Callable[[np.ndarray], np.ndarray], seed: int) -> Population:
    """Walkers that start at points drawn by weight; each half steps as the other is spread, so every step is a Metropolis one.

    References
    ----------
    Gilks, Roberts & George 1994 (adaptive direction sampling): proposals by the rest of an ensemble keep the joint law.
    """
    rng, dim = np.random.default_rng(seed), found.theta.shape[1]
    power = found.weight ** min(1.0, found.effective / _WALKERS)
    here = found.theta[rng.choice(len(found.theta), _WALKERS, p=power / power.sum())]
    heights, half, path = density(here), _WALKERS // 2, []
    for step in range(_STEPS):
        for mine, others in ((slice(None, half), slice(half, None)), (slice(half, None), slice(None, half))):
            spread = np.cov(here[others], rowvar=False).reshape(dim, dim)
            length = 2.38 / dim**0.5 * rng.choice([0.5, 1.0])
            root = np.linalg.cholesky(positive(spread, 1e-12))
            there = here[mine] + length * rng.standard_normal((half, dim)) @ root.T
            high = density(there)
            taken = np.log(rng.random(half)) < high - heights[mine]
            here[mine] = np.where(taken[:, None], there, here[mine])
            heights[mine] = np.where(taken, high, heights[mine])
        if step >= _STEPS - _KEPT_OF:
            path.append(here.copy())
    theta = np.concatenate(path)
    return Population(theta, np.full(len(theta), 1 / len(theta)), float(_WALKERS))
