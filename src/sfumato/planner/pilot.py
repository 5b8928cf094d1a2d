r"""The pilot: a few paid releases that find the start, the scale and the preconditioner, or say that they have not.

Private damped Newton steps. In coordinates whitened by the current guess of the posterior covariance, :math:`AA^\top =
\Sigma`, one record's score is short, so a little noise protects it, and its information is shorter still. Far from the mode a
rough gradient is enough. So the pilot climbs a *ladder*: it begins with gradients that cost next to nothing and follows them
until they are no longer than their noise; then it asks for one that is twice as precise; the last rung has most of the budget.

Everything here is post-processing of what `Release` returned, so no exactness is at stake. But a chain that starts nowhere is
worth nothing, so the last gradient is a test as well: it was not used to move to where it was asked, and `Piloted.arrived`
says whether it is as short as it should be.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from sfumato.domain import Domain
from sfumato.model import Model
from sfumato.model.derivatives import triangle_to_matrix
from sfumato.planner import compiled, forecast, synthetic
from sfumato.planner.arrival import is_noise, noise_length, upper_limit
from sfumato.planner.reach import Search, diameter

Array: TypeAlias = Any
Release: TypeAlias = Callable[..., np.ndarray]
"""(what, theta, whitening matrix, radius, sigma, centre) -> noisy sum: `Vault.release`, here or over a wire."""

LADDER = (0.003, 0.012, 0.048, 0.15)
"""Shares of the pilot's budget that gradients cost on the rungs before the last, which has the rest."""
LAST_INFORMATION = 0.14
"""Share for the information on the last rung: it is what the chain is tuned by."""
PLACING = 0.6
"""Share of the pilot that places the centre when nothing goes wrong."""
PLACED = 0.6
"""Posterior standard deviations: a centre rougher than this is worth more than the planned share, if there is more."""
FORGIVEN = 3.5
"""Posterior standard deviations, root mean square, that theta* may be off: what a chain's trust region forgives."""
DOUBT = 2.0
"""Factor by which the one-shot limit that a pilot sees on its way may be too small: below that it stops early."""
_KEPT_BACK = 0.45  # of the budget, for the last rung: rough steps may not use it up
_STEPS = 60  # gradients at the most
_CLEAR = 0.25  # spectral noise of the whitened information that rough steps pay for
_LAST_CLEAR = 0.02  # the same for the chain's own tuning: a better one would not show
_ROUGH_INFORMATION = 0.03  # share of the budget that rough information costs, at the most
_TRUSTED = 0.5  # spectral noise of the whitened information with which the limit can be told
_LEAST = 0.001  # share of the budget that any release costs: less would save nothing
_BENDS = 4.0  # factor by which a step may change the information along it
_KINKED = 0.3  # information over outer products on made-up records, where it is less the program has kinks
_MARGIN = 1.0 + 2.0**-10
_FAR = 6.0  # posterior standard deviations, root mean square: from further away a gradient says nothing of the mode
_OPEN = 4.0  # posterior standard deviations of noise in a gradient, from where the limit may be better elsewhere in proportion
_BENT = 0.25  # of the noise: a Newton step may miss by so much, because the log posterior is no parabola, and still be heard
_CLIMB_STEPS = 100  # to the top of a parabola plus the log prior
_MAX_MOVE = 3.0  # in prior standard deviations: no single noisy step may leave the region the prior believes in


class Piloted(NamedTuple):
    """What the pilot found, what it released, and whether it is where it wanted to be.

    `off_by`: upper limit (99 %) of the distance of the centre from the mode, root mean square over coordinates, in posterior
    standard deviations. `arrived`: the limit is within what a chain forgives, and the last gradient is no surprise. `spent`: mu
    squared, all releases together. `width`: the largest distance between two records' whitened scores that it saw at its end; it
    tells the one-shot limit. `early`: it stopped early because of that width.
    """

    picture: forecast.Picture
    releases: list[dict[str, Any]]
    arrived: bool
    off_by: float
    spent: float
    width: float
    early: bool = False


class Answered(NamedTuple):
    """A noisy score of all records, where it was asked, and a root of its noise's covariance."""

    theta: np.ndarray
    score: np.ndarray
    noise: np.ndarray

    @property
    def precision(self) -> np.ndarray:
        """Inverse of the noise's covariance; very large where a score is known to be zero."""
        covariance = self.noise @ self.noise.T
        exact = np.where(np.diag(covariance) == 0, 1e-9 * np.trace(covariance), 0.0)
        return forecast.safe_inverse(covariance + np.diag(exact))


class Looked(NamedTuple):
    """A noisy gradient of the log posterior in whitened coordinates: the way to the mode in posterior standard deviations.

    `score` is the records' part of it, as it is; `sigma` the noise of each whitened coordinate, `free` how many of them have any:
    a coordinate that no record speaks of has none.
    """

    way: np.ndarray
    score: np.ndarray
    sigma: float
    free: int

    @property
    def square(self) -> float:
        """Squared length."""
        return float(self.way @ self.way)


def run_pilot(
    model: Model,
    domain: Mapping[str, Domain],
    n: int,
    start: np.ndarray,
    mu_squared: float,
    release: Release,
    *,
    known: bool = False,
    covariance: np.ndarray | None = None,
    bound: float = np.inf,
    others: Sequence[Mapping[str, Domain]] = (),
    most: float | None = None,
    widest: float = np.inf,
) -> Piloted:
    """Find centre and covariance of the posterior for `mu_squared` of budget, or a little more if that is not enough.

    Parameters
    ----------
    start
        Public start: the guess, or a point of the prior.
    mu_squared
        What the pilot is planned to spend, all releases together.
    release
        The vault's vector answer.
    known
        Whether the information follows from the parameter alone: a family in its natural parameter.
    covariance
        Of the posterior, as the plan assumes it at the start: for the first whitening. From made-up records by default.
    bound
        Largest coordinate the owners answer for: a step beyond ends on the edge of that box.
    others
        Domains of further owners, where they differ: what their records may say is not cut off either.
    most
        What the pilot may spend if `mu_squared` would leave the centre too rough, or did not get there; as much by default.
    widest
        Largest distance between two records' whitened scores with which a chain is still worth its while. A pilot that sees more
        stops early, and keeps what it has not spent.
    """
    limit = 1.0 if most is None else max(most / mu_squared, 1.0)
    silent = synthetic.silent(model, domain, start)
    asker = _Asker(model, n, mu_squared, release, Search(model, [domain, *others]), silent, limit, DOUBT**0.5 * widest)
    guide = _Guide(model, domain, n, bound, known, silent)
    point = guide.enter(np.clip(start, -bound, bound), covariance)
    try:
        return _placed(asker, guide, _climb(asker, guide, point))
    except _TooWide as seen:
        return _stopped(asker, seen)


# -- asking -------------------------------------------------------------------------------------------------------------


@dataclass
class _Asker:
    """Asks for sums and keeps the account: shares of the planned budget, up to `limit` of it."""

    model: Model
    n: int
    mu_squared: float
    release: Release
    search: Search
    silent: np.ndarray
    limit: float = 1.0
    widest: float = np.inf
    noise: float = np.inf
    spent: float = 0.0
    released: list[dict[str, Any]] = field(default_factory=list)
    answered: list[Answered] = field(default_factory=list)

    def ask(
        self, what: str, theta: np.ndarray, root: np.ndarray, share: float, clear: float = 0.0
    ) -> tuple[np.ndarray, float]:
        """A noisy sum for a share of the budget, or for less if noise of `clear` costs less; and its noise."""
        reach = self.search.reach(what, theta, root)
        width = 2 * reach.radius * _MARGIN
        sigma = max(width / (share * self.mu_squared) ** 0.5, min(clear, width / (_LEAST * self.mu_squared) ** 0.5))
        share = (width / sigma) ** 2 / self.mu_squared
        answer = self.release(what, theta, root, reach.radius, sigma, reach.centre)
        self.spent += share
        self.released.append(
            {"what": what, "theta": theta.tolist(), "sigma": sigma, "radius": reach.radius, "answer": answer.tolist()}
        )
        return answer, sigma

    def last(self, point: "_Point") -> float:
        """Share for the last gradient: what the plan has left, or more if that would leave the centre too rough."""
        reach = self.search.reach("gradient", point.theta, point.root)
        enough = (2 * reach.radius * _MARGIN / PLACED) ** 2 / self.mu_squared
        return float(min(max(1 - self.spent, enough, _LEAST), self.limit - self.spent))

    def check_width(self, point: "_Point") -> None:
        """Stop, if records' scores lie so far apart that no chain is worth its while.

        Not by information that is mostly noise; and where the last gradient left the place open, perhaps far from the mode,
        the limit must be worse by as much: elsewhere scores may be shorter.
        """
        if point.roughness > _TRUSTED or not np.isfinite(self.widest):
            return
        width = self.width(point)
        if width > self.widest * max(1.0, self.noise / _OPEN) ** 0.5:
            raise _TooWide(point, width)

    def width(self, point: "_Point") -> float:
        """The largest distance between two records' whitened scores that a search finds."""
        return diameter(self.search.vectors("gradient", point.theta, point.root))

    def gradient(self, theta: np.ndarray, root: np.ndarray, share: float) -> Looked:
        """The way to the mode, and its noise."""
        answer, sigma = self.ask("gradient", theta, root, share)
        self.noise = sigma
        slope = np.asarray(compiled.prior_derivatives(self.model)(theta)[0])
        listen = _listen(root, self.silent)
        score = listen @ answer
        self.answered.append(Answered(theta, score, listen * sigma))
        return Looked(root.T @ (score + slope), score, sigma, int(np.sum(~self.silent)))


# -- moving -------------------------------------------------------------------------------------------------------------


class _Point(NamedTuple):
    """Where the pilot is: the parameter, the information it believes in, and how far that may be off (whitened).

    `reached`: variance, in every whitened coordinate, of the gradient that led here.
    """

    theta: np.ndarray
    information: np.ndarray
    root: np.ndarray
    roughness: float
    reached: float = 0.0


@dataclass
class _Guide:
    """Knows the model, and no record: where to go from a gradient, and how far."""

    model: Model
    domain: Mapping[str, Domain]
    n: int
    bound: float
    known: bool
    silent: np.ndarray

    def enter(self, theta: np.ndarray, covariance: np.ndarray | None) -> _Point:
        """The start, with what the plan assumes there."""
        if covariance is None:
            return self.at(theta, self.made_up(theta), np.inf)
        prior = forecast.prior_precision(self.model, theta)
        return self.at(theta, forecast.positive(forecast.safe_inverse(covariance) - prior), np.inf)

    def at(self, theta: np.ndarray, information: np.ndarray, roughness: float, reached: float = 0.0) -> _Point:
        """A point and its whitening matrix."""
        information = np.where(self.silent[:, None] | self.silent, 0.0, information)
        precision = forecast.positive(information + forecast.prior_precision(self.model, theta))
        root = np.linalg.cholesky(forecast.safe_inverse(precision))
        return _Point(theta, information, root, roughness, reached)

    def made_up(self, theta: np.ndarray) -> np.ndarray:
        """Information of as many made-up records."""
        batch = synthetic.uniform(self.model, self.domain, theta)
        return np.asarray(self.n * forecast.mean_information(self.model, theta, batch))

    def kind(self, theta: np.ndarray) -> str:
        """How information is asked for."""
        return information_kind(self.model, self.domain, theta)

    def move(self, point: _Point, looked: Looked) -> _Point:
        """Take a Newton step, shorter where the information is rough or changes along the way."""
        careful = (1 + min(point.roughness, 1.0)) * point.information
        way = self.towards(point.theta, looked.score, careful)
        theta = self.step(point.theta, way * self._straight_for(point.theta, way))
        return self.at(theta, point.information, point.roughness, looked.sigma**2)

    def towards(self, theta: np.ndarray, score: np.ndarray, information: np.ndarray) -> np.ndarray:
        r"""The way to the mode if the log-likelihood is a parabola: :math:`s^\top\delta - \tfrac12\delta^\top J\delta`.

        The prior is public and taken as it is, not as a parabola: hyperparameters, which no record speaks of, then follow the
        parameters that they govern, and a curved prior is followed along its ridge.
        """
        return _bounded(summit(self.model, theta, score, information) - theta, _prior_sd(self.model))

    def step(self, theta: np.ndarray, way: np.ndarray) -> np.ndarray:
        """Where a step ends: where the prior is positive, and inside the box that the owners answer for."""
        return np.clip(_inside(self.model, theta, way), -self.bound, self.bound)

    def bend(self, point: _Point, reach: float) -> float:
        """How far a Newton step misses the mode from `reach` posterior standard deviations away, along the worst axis.

        By made-up records, and by the prior as it is. Where the posterior is curved within the pilot's own error, that error
        says little.
        """
        ends = [point.theta + sign * reach * axis for axis in point.root.T for sign in (-1.0, 1.0)]
        return self.misses(point, ends)

    def misses(self, mode: _Point, starts: Sequence[np.ndarray]) -> float:
        """How far a Newton step from the worst of these starts misses the mode, in posterior standard deviations."""
        batch = synthetic.uniform(self.model, self.domain, mode.theta)
        bends = _bends(self.model, self.n, mode.theta, batch, self.kind(mode.theta))
        white = np.linalg.inv(mode.root)
        missed = [float(np.linalg.norm(white @ bends(start))) for start in starts]
        return max((m for m in missed if np.isfinite(m)), default=0.0)

    def _straight_for(self, theta: np.ndarray, way: np.ndarray) -> float:
        """How much of a step may be taken before the made-up records' information along it changes by a factor."""
        size = float(np.linalg.norm(way))
        if not size > 0:
            return 1.0

        prior = float(way @ forecast.prior_precision(self.model, theta) @ way) / size**2

        def along(share: float) -> float:
            there = _inside(self.model, theta, share * way)
            batch = synthetic.uniform(self.model, self.domain, there)
            mean = np.asarray(compiled.information(self.model)(there, dict(batch)))
            return max(self.n * float(way @ mean @ way) / size**2, 0.0) + prior

        here, share = along(0.0), 1.0
        for _ in range(12):
            there = along(share)
            if here / _BENDS <= there <= here * _BENDS:
                break
            share /= 2
        return share


def information_kind(model: Model, domain: Mapping[str, Domain], theta: np.ndarray) -> str:
    """How information is asked for: as outer products where second derivatives do not tell it (a kink).

    On records that the model itself makes both have one mean; where the Hessian's is much smaller, it misses something.
    """
    if model.observations is None and model.sample_records is None:
        return "information"
    batch = synthetic.uniform(model, domain, theta)
    hessian, outer = (_mean(model, what, theta, batch) for what in ("information", "outer"))
    white = np.linalg.inv(np.linalg.cholesky(forecast.positive(outer)))
    return "information" if np.linalg.eigvalsh(white @ hessian @ white.T)[0] > _KINKED else "outer"


def _climb(asker: _Asker, guide: _Guide, point: _Point) -> _Point:
    """Follow gradients, rung after rung, until one of the last rung is no longer than its noise or the budget is used."""
    rung, moved = 0, True
    for _ in range(_STEPS):
        share = LADDER[rung]
        if asker.spent + share + _ROUGH_INFORMATION > asker.limit - _KEPT_BACK:
            break
        if moved:
            point = _informed(asker, guide, point)
        looked = asker.gradient(point.theta, point.root, share)
        quiet = is_noise(looked.square, looked.sigma**2 + point.reached, looked.free)
        # Even a gradient that is hardly longer than its noise is worth following if it is longer than noise on average.
        moved = looked.square > looked.sigma**2 * looked.free
        if moved:
            point = guide.move(point, looked)
        if quiet:
            asker.check_width(point)
            rung += 1
            if rung == len(LADDER):
                break
    return point


def _informed(asker: _Asker, guide: _Guide, point: _Point) -> _Point:
    """The same point with the information released there, for as little as makes it clear enough to step by."""
    if guide.known:
        return guide.at(point.theta, guide.made_up(point.theta), 0.0, point.reached)
    return _with_information(asker, guide, point, _ROUGH_INFORMATION, _CLEAR)[0]


def _with_information(asker: _Asker, guide: _Guide, point: _Point, share: float, clear: float) -> tuple[_Point, float]:
    """The same point with the information released there: for the share, or less if it is clear for less; and its roughness."""
    spectral = (2 * len(point.theta)) ** 0.5  # of a symmetric matrix with noise one in every entry
    answer, sigma = asker.ask(guide.kind(point.theta), point.theta, point.root, share, clear / spectral)
    information, rough = _information(answer, point.root, sigma)
    return guide.at(point.theta, information, sigma * spectral, point.reached), rough


# -- the last rung --------------------------------------------------------------------------------------------------------


def _placed(asker: _Asker, guide: _Guide, point: _Point) -> Piloted:
    """Spend the rest: information for the chain, then the gradient that tests and places."""
    dim, rough = len(point.theta), 0.0
    while True:
        if guide.known:
            point = guide.at(point.theta, guide.made_up(point.theta), 0.0, point.reached)
        else:
            share = min(LAST_INFORMATION, (asker.limit - asker.spent) / 4)
            point, rough = _with_information(asker, guide, point, share, _LAST_CLEAR)
        asker.check_width(point)
        looked = asker.gradient(point.theta, point.root, asker.last(point))
        quiet = is_noise(looked.square, looked.sigma**2 + point.reached, looked.free)
        if quiet or asker.limit - asker.spent < _KEPT_BACK:
            break
        point = guide.move(point, looked)  # a surprise, and there is budget to look again
    centre, error = _centre(asker, guide, point)
    # What is left: the noise of the placing gradients, and what the last step missed if the information is off.
    # After a surprise nobody has looked whether the last step led anywhere: all of the distance counts.
    far = upper_limit(looked.square, looked.sigma, looked.free)
    missed = far * min(point.roughness, 1.0) if quiet else far
    final = guide.at(centre, guide.made_up(centre) if guide.known else point.information, 0.0)
    last = guide.misses(final, [point.theta])
    # The noise of the gradients is independent of everything else that may be wrong: squares add.
    other = missed + last + guide.bend(final, 2 * error)
    off_by = float(np.hypot(noise_length(error, dim), other)) / dim**0.5
    error = float(np.linalg.norm([error, last / dim**0.5, guide.bend(final, error) / dim**0.5]))
    picture = forecast.Picture(centre, final.root @ final.root.T, "the pilot's releases", error, rough)
    arrived, width = bool(quiet and off_by <= FORGIVEN), asker.width(final)
    return Piloted(picture, asker.released, arrived, off_by, asker.spent * asker.mu_squared, width)


class _TooWide(Exception):
    """Two records' whitened scores lie too far apart for any chain: there is no use in spending more."""

    def __init__(self, point: _Point, width: float) -> None:
        super().__init__("a chain could not mix")
        self.point, self.width = point, width


def _stopped(asker: _Asker, seen: _TooWide) -> Piloted:
    """What a pilot has that stopped early: a rough centre, and how far off it may be by the last gradient."""
    point, dim = seen.point, len(seen.point.theta)
    last = asker.answered[-1]
    sigma = float(np.linalg.norm(point.root.T @ last.noise) / dim**0.5)
    off_by = noise_length(sigma, dim) / dim**0.5
    picture = forecast.Picture(
        point.theta, point.root @ point.root.T, "a pilot that stopped early", sigma, point.roughness
    )
    return Piloted(picture, asker.released, False, off_by, asker.spent * asker.mu_squared, seen.width, True)


def _centre(asker: _Asker, guide: _Guide, point: _Point) -> tuple[np.ndarray, float]:
    """Where all gradients from nearby put the mode together, and its error."""
    covariance = point.root @ point.root.T
    batch = synthetic.uniform(guide.model, guide.domain, point.theta)
    bends = _bends(guide.model, guide.n, point.theta, batch, guide.kind(point.theta))
    heard = _straight(asker.answered, point.theta, bends, covariance)
    score, error = _together(heard, point.theta, point.information, covariance)
    return guide.step(point.theta, guide.towards(point.theta, score, point.information)), error


def _together(
    answered: list[Answered], theta: np.ndarray, information: np.ndarray, covariance: np.ndarray
) -> tuple[np.ndarray, float]:
    r"""What scores say together about the score at theta, and the error it leaves in the mode (posterior sds, rms).

    A score :math:`s_k` that was asked at :math:`\theta_k` says :math:`s_k - J(\theta - \theta_k)` of theta; these are averaged
    by the precisions of their noises. The mode is off by :math:`\Sigma` times the average's noise.
    """
    precisions = [a.precision for a in answered]
    spread = forecast.safe_inverse(np.sum(precisions, axis=0))
    moved = [p @ (a.score - information @ (theta - a.theta)) for p, a in zip(precisions, answered, strict=True)]
    root = np.linalg.cholesky(covariance)
    return spread @ np.sum(moved, axis=0), float((np.trace(root.T @ spread @ root) / len(root)) ** 0.5)


def summit(model: Model, theta: np.ndarray, score: np.ndarray, information: np.ndarray) -> np.ndarray:
    """The top of a parabola plus the log prior, by damped Newton steps from theta: public arithmetic, it costs nothing."""

    def height(there: np.ndarray) -> float:
        away = there - theta
        return float(score @ away - away @ information @ away / 2 + compiled.prior_density(model)(there))

    here, high = theta, height(theta)
    for _ in range(_CLIMB_STEPS):
        slope, bend = (np.asarray(part) for part in compiled.prior_derivatives(model)(here))
        values, vectors = np.linalg.eigh(information - np.nan_to_num(bend))
        total = score - information @ (here - theta) + np.nan_to_num(slope)
        step = vectors @ ((vectors.T @ total) / np.maximum(np.abs(values), 1e-9 * np.abs(values).max()))
        gain = float(total @ step)
        length = 1.0
        while length > 1e-6 and not height(here + length * step) >= high + 0.1 * length * gain:
            length /= 2
        if length <= 1e-6 or gain < 1e-6:
            break
        here = here + length * step
        high = height(here)
    return here


def _bends(model: Model, n: int, mode: np.ndarray, batch: Any, what: str) -> Callable[[np.ndarray], np.ndarray]:
    """Function theta -> how far a Newton step from there misses the mode, were the records the made-up ones."""
    information = n * _mean(model, what, mode, batch) + forecast.prior_precision(model, mode)
    made_up = forecast.safe_inverse(forecast.positive(information))

    def slope(theta: np.ndarray) -> np.ndarray:
        scores = np.asarray(compiled.scores(model)(theta, dict(batch)))
        finite = np.isfinite(scores).all(axis=1)
        total = np.where(finite[:, None], scores, 0.0).sum(axis=0)
        prior = np.asarray(compiled.prior_derivatives(model)(theta)[0])
        return np.asarray(n * total / max(finite.sum(), 1) + prior)

    there = slope(mode)
    return lambda theta: np.asarray(theta - mode + made_up @ (slope(theta) - there))


def _mean(model: Model, what: str, theta: np.ndarray, batch: Any) -> np.ndarray:
    """Mean information, or mean outer product, of records where it is finite."""
    each = np.asarray(compiled.vectors(model, what)(theta, np.eye(model.dim), dict(batch)))
    finite = np.isfinite(each).all(axis=1)
    return triangle_to_matrix(each[finite].sum(axis=0) / max(finite.sum(), 1), model.dim)


def _straight(
    answered: list[Answered], mode: np.ndarray, bend: Callable[[np.ndarray], np.ndarray], covariance: np.ndarray
) -> list[Answered]:
    """Answers from places so near that the log posterior is a parabola from there to the mode; the last one always."""
    white = np.linalg.inv(np.linalg.cholesky(covariance))

    def near(a: Answered) -> bool:
        if not np.linalg.norm(white @ (a.theta - mode)) < _FAR * len(white) ** 0.5:
            return False
        noise = np.linalg.norm(white @ covariance @ a.noise)
        return bool(np.linalg.norm(white @ bend(a.theta)) < _BENT * noise)

    return [a for a in answered[:-1] if near(a)] + answered[-1:]


def _listen(root: np.ndarray, silent: np.ndarray) -> np.ndarray:
    r"""Matrix from a whitened noisy answer :math:`A^\top s + e` to the score s, of which some coordinates are known to be zero.

    The noise of :math:`A^{-\top}(A^\top s + e)` is correlated, so what is heard in a silent coordinate tells of the noise in the
    others, and is taken off there.
    """
    back = np.linalg.inv(root).T
    if not silent.any():
        return back
    covariance = back @ back.T
    part = covariance[:, silent] @ np.linalg.inv(covariance[np.ix_(silent, silent)])
    return np.where(silent[:, None], 0.0, back - part @ back[silent])


def _bounded(move: np.ndarray, prior_sd: np.ndarray) -> np.ndarray:
    """The move, or as much of it as stays within a few prior standard deviations: noise may say anything."""
    return np.asarray(move * min(1.0, _MAX_MOVE / max(np.max(np.abs(move) / prior_sd), 1e-300)))


def _inside(model: Model, theta: np.ndarray, move: np.ndarray) -> np.ndarray:
    """Take the move, halved until it stays where the prior is positive."""
    for _ in range(60):
        if np.all(np.isfinite(np.asarray(compiled.prior_derivatives(model)(theta + move)[1]))):
            return theta + move
        move = move / 2
    return theta


def _information(answer: np.ndarray, root: np.ndarray, sigma: float) -> tuple[np.ndarray, float]:
    r"""Undo the whitening; give how rough the result is, too: the expected norm of what is wrong with it.

    The noise is known, so the whitened information W is drawn together towards a multiple of the identity as Stein does,

    .. math:: \bar w I + \max\{0,\ 1 - (p - 2)\sigma^2/\lVert W - \bar w I\rVert^2\}\,(W - \bar w I),

    p the free numbers: much where made-up records already had the right shape, hardly where they had not. A direction in which
    the Hessian is negative, as far from the mode of a scale, keeps its absolute curvature; one in which noise drowned the
    signal keeps a modest positive one.
    """
    dim = len(root)
    whitened = triangle_to_matrix(answer, dim)
    level = np.trace(whitened) / dim * np.eye(dim)
    free, apart = dim * (dim + 1) / 2 - 1, float(np.sum((whitened - level) ** 2))
    keep = 1.0 if free <= 2 else max(0.0, 1 - (free - 2) * sigma**2 / max(apart, 1e-300))
    whitened = level + keep * (whitened - level)
    values, vectors = np.linalg.eigh(whitened)
    values = np.maximum(np.abs(values), min(0.5, max(0.02, sigma * dim**0.5)))
    inverse = np.linalg.inv(root)
    rough = sigma * (1 + free * keep + 2 * (1 - keep)) ** 0.5  # Stein's own estimate of the loss, and the level's
    return np.asarray(inverse.T @ ((vectors * values) @ vectors.T) @ inverse), rough


def _prior_sd(model: Model) -> np.ndarray:
    low, high = np.quantile(compiled.prior_draws(model), [0.16, 0.84], axis=0)
    return np.maximum((high - low) / 2, 1e-6)
