r"""The posterior given noisy scores and information: p(theta given everything that a pilot released), for any model.

Let :math:`S(\theta_k) = \sum_i \nabla\ell(y_i, \theta_k)` be the score where it was asked, and J the information. Near the place,
given theta, :math:`S(\theta_k)` is normal with mean :math:`J(\theta - \theta_k)` and covariance J (local asymptotic normality), and
what was released is that plus noise of known covariance :math:`V_k`. So

.. math:: p(\theta \mid \text{released}) \propto \eta(\theta)\,
    N\bigl((\hat S_k)_k;\ (\hat J d_k(\theta))_k,\ (J + 1_{k=l}V_k + T_{kl}(\theta))_{kl}\bigr).

* The prior is taken as it is. As V grows the answer tends to the prior. (The naive :math:`\Sigma + \Sigma V\Sigma` does not.)
* The noise of the released information enters. In coordinates in which it has independent noise of size :math:`\tau` (a
  symmetric matrix E), the mean is off by :math:`E d_k`, and this is normal, too:
  :math:`T_{kl} = \tfrac{\tau^2}{2}\bigl(d_k^\top d_l\, I + d_l d_k^\top\bigr)`. Nothing has to be drawn for it.
* The distance :math:`d_k(\theta)` is :math:`\theta - \theta_k` for a normal posterior. Where a budget is small the posterior is wide, and
  the mean of a score is no straight line over its width. Its shape is taken from made-up records, :math:`d_k(\theta) = B_k^{-1}
  n\,E_\theta[s(Y, \theta_k)]` with :math:`B_k` the slope of that mean at :math:`\theta_k`, and only its slope there is the
  records' own. The covariance follows in the same way, :math:`J^{1/2}\Gamma(\theta)J^{1/2}`, :math:`\Gamma` one at the place.

It is an **approximation**, and labelled so wherever it is shown. Being post-processing, it costs nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import logsumexp
from scipy.stats import multivariate_t

from sfumato.domain import Domain
from sfumato.model import Model
from sfumato.model.derivatives import triangle_to_matrix
from sfumato.planner import compiled, forecast, synthetic
from sfumato.planner.pilot import summit
from sfumato.planner.placing import Asked

Array: TypeAlias = Any

NEAR = 6.0
"""Standard deviations of the answer (root mean square): a score that was asked further away is left out."""
MOST_SCORES = 3
"""Scores that are used together, the last ones; those before cost next to nothing and say as much."""
ANCHORS = 8
"""Parameters at which outcomes are made up: draws of the first normal answer."""
RECORDS = 256
"""Made-up records at each of them."""
ENOUGH = 1500.0
"""Effective points of a population that is as good as wanted."""
LEAST = 400.0
"""The same below which NUTS takes over."""
_ROUND, _ROUNDS, _FREEDOM = 1500, 6, 5.0
_BATCH = 50  # points whose densities are computed together
_FLOOR = 0.02  # smallest eigenvalue of the whitened information that is believed


class Heard(NamedTuple):
    r"""What the releases say, in coordinates in which the information's noise is independent.

    Attributes
    ----------
    loud
        Coordinates of theta that records speak of. Of the others (a hierarchy's hyperparameters) the score is zero.
    root
        R: a score becomes :math:`R^\top s`, a distance :math:`R^{-1}(\theta - \theta_k)`.
    theta
        Where each score was asked, shape (k, d).
    score, noise
        The whitened scores, shape (k, l), and the covariances of their noises, (k, l, l).
    information, roughness
        The whitened information, (l, l), and the standard deviation of its noise.
    """

    loud: np.ndarray
    root: np.ndarray
    theta: np.ndarray
    score: np.ndarray
    noise: np.ndarray
    information: np.ndarray
    roughness: float


class Population(NamedTuple):
    """Points of theta (unconstrained) with weights that sum to one, and how many equally weighted ones they are worth."""

    theta: np.ndarray
    weight: np.ndarray
    effective: float

    def draw(self, size: int, seed: int) -> np.ndarray:
        """Indices of points drawn by weight: a systematic sample in random order."""
        rng = np.random.default_rng(seed)
        places = (np.arange(size) + rng.random()) / size
        found = np.searchsorted(np.cumsum(self.weight), places, side="right")
        return rng.permutation(np.minimum(found, len(self.weight) - 1))


# -- from releases to a measurement ---------------------------------------------------------------------------------------


def hear(asked: Sequence[Asked], silent: np.ndarray, *, information: np.ndarray | None = None) -> Heard:
    """What the releases say.

    Parameters
    ----------
    asked
        In order; the last gradient is the one that counts most, the last information the one that is used.
    silent
        Coordinates that no record speaks of.
    information
        Of all records, where it is known without asking: then no released one is used.
    """
    loud = ~silent
    scores = [release for release in asked if release.what == "gradient"]
    told = [release for release in asked if release.what != "gradient"]
    last = scores[-1] if information is not None else told[-1]
    root, turn = _loud_root(last.matrix, loud)
    if information is None:
        whitened, rough = turn.T @ triangle_to_matrix(last.answer, len(last.matrix)) @ turn, float(last.sigma)
    else:
        whitened, rough = root.T @ information[np.ix_(loud, loud)] @ root, 0.0
    heard = [_heard_score(release, loud, root) for release in scores[-MOST_SCORES:]]
    near = [i for i, release in enumerate(scores[-MOST_SCORES:]) if _is_near(release, last, scores[-1], root, loud)]
    kept = sorted({*near, len(heard) - 1})
    return Heard(
        loud, root, np.stack([scores[-MOST_SCORES:][i].theta for i in kept]), np.stack([heard[i][0] for i in kept]),
        np.stack([heard[i][1] for i in kept]), _positive(whitened, rough), rough,
    )  # fmt: skip


def _loud_root(matrix: np.ndarray, loud: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""R and Q with :math:`A^\top s = QR^\top s_{loud}`: the silent part of s is zero, so :math:`Q^\top` of an answer says it all."""
    turn, upper = np.linalg.qr(matrix[loud].T)
    return np.asarray(upper.T), np.asarray(turn)


def _heard_score(release: Asked, loud: np.ndarray, root: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    own, turn = _loud_root(release.matrix, loud)
    change = np.linalg.solve(own, root).T  # from its own whitened coordinates to those of the information
    return change @ (turn.T @ release.answer), release.sigma**2 * change @ change.T


def _is_near(release: Asked, information: Asked, last: Asked, root: np.ndarray, loud: np.ndarray) -> bool:
    """Whether a score was asked so near to the last one that the two can be told together."""
    away = np.linalg.solve(root, (release.theta - last.theta)[loud])
    noise = 1.0 + last.sigma**2  # of the answer, in posterior variances
    return bool(np.mean(away**2) < NEAR**2 * noise and release.sigma < 10 * last.sigma)


def _positive(whitened: np.ndarray, rough: float) -> np.ndarray:
    """The information, positive: directions that drowned in noise keep what the noise leaves open."""
    values, vectors = np.linalg.eigh((whitened + whitened.T) / 2)
    return np.asarray((vectors * np.maximum(values, max(_FLOOR, rough / 2))) @ vectors.T)


def normal_answer(model: Model, heard: Heard) -> tuple[np.ndarray, np.ndarray]:
    r"""Mode and covariance of the answer for straight means: precision :math:`P + J(J + V)^{-1}J`, the prior as it is.

    Only the last score is used: it is for anchors and first proposals.
    """
    dim, here = len(heard.loud), heard.theta[-1]
    back = np.linalg.inv(heard.root)
    spread = heard.information + heard.noise[-1]
    gain = np.linalg.solve(spread, heard.information)
    precision, slope = np.zeros((dim, dim)), np.zeros(dim)
    inside = np.ix_(heard.loud, heard.loud)
    precision[inside] = back.T @ (heard.information @ gain) @ back
    slope[heard.loud] = back.T @ (gain.T @ heard.score[-1])
    mode = summit(model, here, slope, (precision + precision.T) / 2)
    total = forecast.positive(precision + forecast.prior_precision(model, mode))
    return mode, forecast.safe_inverse(total)


# -- how the mean of a score bends ------------------------------------------------------------------------------------------


class MadeUp(NamedTuple):
    """Made-up records whose weights say what records look like at any parameter.

    Attributes
    ----------
    batch
        The records, from several parameters.
    log_drawn
        Log density of each outcome under the mixture that it was drawn from.
    scores
        Whitened score of each record at every place where a score was asked, shape (k, records, l).
    """

    batch: dict[str, np.ndarray]
    log_drawn: np.ndarray
    scores: np.ndarray


def make_up(model: Model, domain: Mapping[str, Domain], heard: Heard, seed: int = 0) -> MadeUp | None:
    """Records drawn at parameters all over the first normal answer; None where the model cannot make records."""
    if model.sample_records is None and (
        model.observations is None
        or not synthetic.observed_columns(model, heard.theta[-1], synthetic.uniform(model, domain, heard.theta[-1]))
    ):
        return None
    mode, covariance = normal_answer(model, heard)
    rng, root = np.random.default_rng(seed), np.linalg.cholesky(covariance)
    anchors = [heard.theta[-1], *(mode + root @ rng.standard_normal(len(mode)) * 1.3 for _ in range(ANCHORS - 1))]
    density = compiled.prior_density(model)
    anchors = [theta for theta in anchors if np.isfinite(float(density(theta)))] or [heard.theta[-1]]
    drawn = [synthetic.uniform(model, domain, theta, size=RECORDS, seed=i) for i, theta in enumerate(anchors)]
    batch = {name: np.concatenate([np.asarray(one[name]) for one in drawn]) for name in drawn[0]}
    each = np.stack([np.asarray(_log_likelihoods(model)(theta, batch)) for theta in anchors])
    log_drawn = logsumexp(each, axis=0) - np.log(len(anchors))
    scores = np.stack([np.asarray(compiled.scores(model)(theta, batch))[:, heard.loud] for theta in heard.theta])
    good = np.isfinite(log_drawn) & np.isfinite(scores).all(axis=(0, 2))
    if good.sum() < len(good) / 2:
        return None
    log_drawn = np.where(good, log_drawn, np.inf)
    return MadeUp(batch, log_drawn, np.where(good[:, None], scores, 0.0) @ heard.root)


@lru_cache(maxsize=16)
def _log_likelihoods(model: Model) -> Callable[[Array, Any], Array]:
    return jax.jit(jax.vmap(model.log_likelihood, (None, 0)))


class _Constants(NamedTuple):
    """Everything a density needs besides theta, as arrays: one compiled program serves all answers of a model."""

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
    scores: Array
    middle: Array
    unbend: Array
    whiten: Array


def _constants(model: Model, heard: Heard, made: MadeUp | None) -> _Constants:
    loud = np.flatnonzero(heard.loud)
    root = np.linalg.cholesky(heard.information)
    shape = (len(heard.theta), len(loud))
    empty = np.zeros((shape[0], 0, shape[1]))
    fixed = (loud, np.linalg.inv(heard.root), heard.theta, heard.score, heard.noise, heard.information, root)
    if made is None:
        eye = np.stack([np.eye(shape[1])] * shape[0])
        return _Constants(*fixed, np.array(heard.roughness), {}, np.zeros(0), empty, np.zeros(shape), eye, eye[0])
    middles, unbends, whiten = [], [], np.eye(shape[1])
    for place, scores in zip(heard.theta, made.scores, strict=True):
        weight = _weights(np.asarray(_log_likelihoods(model)(place, made.batch)), made.log_drawn)
        middle = weight @ scores
        apart = scores - middle
        # The slope of the mean of s under theta, at the place: the covariance of s with itself.
        covariance = (weight[:, None] * apart).T @ apart
        middles.append(middle)
        unbends.append(np.linalg.inv(forecast.positive(covariance)))
        whiten = np.linalg.inv(np.linalg.cholesky(forecast.positive(covariance)))
    return _Constants(
        *fixed, np.array(heard.roughness), made.batch, made.log_drawn, made.scores, np.stack(middles), np.stack(unbends), whiten
    )  # fmt: skip


def _weights(log_density: np.ndarray, log_drawn: np.ndarray) -> np.ndarray:
    log_weight = np.where(np.isfinite(log_drawn), log_density - log_drawn, -np.inf)
    return np.asarray(np.exp(log_weight - logsumexp(log_weight)))


# -- the density ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def _densities(model: Model, bends: bool) -> Callable[[Array, _Constants], Array]:
    """Compile (points, constants) -> unnormalised log posterior at each point."""

    def one(theta: Array, c: _Constants) -> Array:
        return _log_density(model, bends, theta, c)

    return jax.jit(lambda points, c: jax.lax.map(lambda theta: one(theta, c), points, batch_size=_BATCH))


def _log_density(model: Model, bends: bool, theta: Array, c: _Constants) -> Array:
    number, size = c.score.shape
    if bends:
        log_weight = jax.vmap(model.log_likelihood, (None, 0))(theta, c.batch) - c.log_drawn
        log_weight = jnp.where(jnp.isfinite(log_weight), log_weight, -jnp.inf)
        weight = jax.nn.softmax(log_weight)
        means = jnp.einsum("r,krl->kl", weight, c.scores)
        away = jnp.einsum("klm,km->kl", c.unbend, means - c.middle)
        apart = (c.scores[-1] - means[-1]) @ c.whiten.T
        shape = (weight[:, None] * apart).T @ apart
        spread = c.root_information @ shape @ c.root_information.T
    else:
        away = (theta - c.theta)[:, c.loud] @ c.back.T
        spread = c.information
    mean = away @ c.information
    cross = away @ away.T
    rough = (
        c.rough**2 / 2 * (cross[:, :, None, None] * jnp.eye(size) + away[None, :, :, None] * away[:, None, None, :])
    )  # [k, l] block: d_k.d_l I + d_l d_k'
    own = jnp.eye(number)[:, :, None, None] * c.noise[:, None]
    covariance = (spread + own + rough).transpose(0, 2, 1, 3).reshape(number * size, number * size)
    root = jnp.linalg.cholesky((covariance + covariance.T) / 2)
    left = jax.scipy.linalg.solve_triangular(root, (c.score - mean).reshape(-1), lower=True)
    value = model.log_prior(theta) - left @ left / 2 - jnp.sum(jnp.log(jnp.diag(root)))
    return jnp.where(jnp.isnan(value), -jnp.inf, value)


# -- draws ----------------------------------------------------------------------------------------------------------------


def answer(
    model: Model, domain: Mapping[str, Domain], heard: Heard, *, seed: int = 0, straight: bool = False
) -> Population:
    """Points of the posterior given what was heard: importance sampling that adapts, NUTS where that does not do.

    Parameters
    ----------
    straight
        Take means of scores as straight lines, whatever the model.
    """  # fmt: skip
    made = None if straight else make_up(model, domain, heard, seed)
    constants = jax.tree.map(jnp.asarray, _constants(model, heard, made))
    bends = made is not None

    def density(points: np.ndarray) -> np.ndarray:
        return np.asarray(_densities(model, bends)(jnp.asarray(points), constants))

    found = _adapt(model, normal_answer(model, heard), density, seed)
    if found.effective >= LEAST:
        return found
    best = found.theta[np.argmax(found.weight)]
    return _nuts(lambda theta: _log_density(model, bends, theta, constants), found, best, seed)


def _adapt(
    model: Model, normal: tuple[np.ndarray, np.ndarray], density: Callable[[np.ndarray], np.ndarray], seed: int
) -> Population:
    """Draw from Student-t laws about the prior and the normal answer, then about what was found; weigh by the mixture of all."""
    rng, prior = np.random.default_rng(seed), compiled.prior_draws(model)
    jitter = 1e-9 * np.diag(np.var(prior, axis=0) + 1e-300)
    laws = [(normal[0], normal[1]), (np.mean(prior, axis=0), np.cov(prior, rowvar=False).reshape(normal[1].shape))]
    points, heights, sizes = [], [], []
    used: list[Any] = []
    for turn in range(_ROUNDS):
        fresh = laws if turn == 0 else laws[-1:]
        for centre, covariance in fresh:
            law = multivariate_t(centre, covariance + jitter, df=_FREEDOM, allow_singular=True)
            drawn = np.reshape(law.rvs(_ROUND // len(fresh), random_state=rng), (-1, len(centre)))
            used.append(law)
            sizes.append(len(drawn))
            points.append(drawn)
            heights.append(density(drawn))
        found = _weighed(np.concatenate(points), np.concatenate(heights), used, np.array(sizes))
        if turn and found.effective >= ENOUGH:
            break
        laws.append(_moments(found, laws[-1]))
    return found


def _weighed(points: np.ndarray, heights: np.ndarray, used: list[Any], sizes: np.ndarray) -> Population:
    drawn = logsumexp([law.logpdf(points) for law in used], b=(sizes / sizes.sum())[:, None], axis=0)
    log_weight = np.where(np.isfinite(heights), heights - drawn, -np.inf)
    weight = np.exp(log_weight - logsumexp(log_weight))
    return Population(points, weight, float(1 / np.sum(weight**2)))


def _moments(found: Population, before: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance by weight; mixed with those before while few points carry the weight."""
    centre = found.weight @ found.theta
    apart = found.theta - centre
    covariance = (found.weight[:, None] * apart).T @ apart
    trust = min(1.0, found.effective / (10 * len(centre)))
    return centre, trust * covariance + (1 - trust) * before[1]


def _nuts(density: Callable[[Array], Array], found: Population, start: np.ndarray, seed: int) -> Population:
    from numpyro.infer import MCMC, NUTS

    sampler = MCMC(
        NUTS(potential_fn=lambda theta: -density(theta), dense_mass=True, target_accept_prob=0.9), num_warmup=800,
        num_samples=1000, num_chains=4, chain_method="vectorized", progress_bar=False,
    )  # fmt: skip
    spread = np.sqrt(found.weight @ (found.theta - found.weight @ found.theta) ** 2)
    first = start + 0.1 * spread * np.random.default_rng(seed).standard_normal((4, len(start)))
    heights = np.asarray(jax.jit(jax.vmap(density))(jnp.asarray(first)))
    first = np.where(np.isfinite(heights)[:, None], first, start)
    sampler.run(jax.random.key(seed), init_params=jnp.asarray(first))
    drawn = np.asarray(sampler.get_samples(group_by_chain=True))
    theta = drawn.reshape(-1, drawn.shape[-1])
    from numpyro.diagnostics import effective_sample_size

    effective = float(np.min([effective_sample_size(drawn[..., i]) for i in range(drawn.shape[-1])]))
    return Population(theta, np.full(len(theta), 1 / len(theta)), effective)
