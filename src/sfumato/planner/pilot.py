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

from sfumato.bounds import compiled, synthetic
from sfumato.bounds.reach import Search, diameter
from sfumato.domain import Domain
from sfumato.model import Model
from sfumato.planner.arrival import IMPOSSIBLE, is_noise, noise_length, upper_limit
from sfumato.planner.belief import Belief
from sfumato.planner.guide import (
    Answered,
    Guide,
    Looked,
    Point,
    combine_scores,
    listen_matrix,
    newton_miss,
    on_one_parabola,
    unwhiten_information,
)
from sfumato.tools.progress import stage

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
_MARGIN = 1.0 + 2.0**-10
_OPEN = 4.0  # posterior standard deviations of noise in a gradient, from where the limit may be better elsewhere in proportion


class Piloted(NamedTuple):
    """What the pilot found, what it released, and whether it is where it wanted to be.

    `off_by`: upper limit (99 %) of the distance of the centre from the mode, root mean square over coordinates, in posterior
    standard deviations. `arrived`: the limit is within what a chain forgives, and chance explains the last gradient. `spent`: mu
    squared, all releases together. `width`: the largest distance between two records' whitened scores that it saw at its end; it
    tells the one-shot limit. `early`: it stopped early because of that width.
    """

    belief: Belief
    releases: list[dict[str, Any]]
    arrived: bool
    off_by: float
    spent: float
    width: float
    early: bool = False


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
    silent = synthetic.silent_directions(model, domain, start)
    asker = _Asker(model, n, mu_squared, release, Search(model, [domain, *others]), silent, limit, DOUBT**0.5 * widest)
    guide = Guide(model, domain, n, bound, known, silent)
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
    far: str = ""
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
        number = len(self.released) + 1
        stage(f"pilot: answer {number}, the {what}, {self.spent:.0%} of its budget used{self.far}")
        answer = self.release(what, theta, root, reach.radius, sigma, reach.centre)
        self.spent += share
        self.released.append(
            {
                "what": what,
                "theta": theta.tolist(),
                "matrix": root.tolist(),
                "sigma": sigma,
                "radius": reach.radius,
                "answer": answer.tolist(),
            }  # fmt: skip
        )
        return answer, sigma

    def last(self, point: Point) -> float:
        """Share for the last gradient: what the plan has left, or more if that would leave the centre too rough."""
        reach = self.search.reach("gradient", point.theta, point.root)
        enough = (2 * reach.radius * _MARGIN / PLACED) ** 2 / self.mu_squared
        return float(min(max(1 - self.spent, enough, _LEAST), self.limit - self.spent))

    def check_width(self, point: Point) -> None:
        """Stop, if records' scores lie so far apart that no chain is worth its while.

        Not by information that is mostly noise; and where the last gradient left the place open, perhaps far from the mode,
        the limit must be worse by as much: elsewhere scores may be shorter.
        """
        if point.roughness > _TRUSTED or not np.isfinite(self.widest):
            return
        width = self.width(point)
        if width > self.widest * max(1.0, self.noise / _OPEN) ** 0.5:
            raise _TooWide(point, width)

    def width(self, point: Point) -> float:
        """The largest distance between two records' whitened scores that a search finds."""
        return diameter(self.search.vectors("gradient", point.theta, point.root))

    def gradient(self, theta: np.ndarray, root: np.ndarray, share: float) -> Looked:
        """The way to the mode, and its noise."""
        answer, sigma = self.ask("gradient", theta, root, share)
        self.noise = sigma
        slope = np.asarray(compiled.prior_derivatives(self.model)(theta)[0])
        listen = listen_matrix(root, self.silent)
        score = listen @ answer
        self.answered.append(Answered(theta, score, listen * sigma, self.silent))
        looked = Looked(root.T @ (score + slope), score, sigma, self.model.dim - self.silent.shape[1])
        left = (max(looked.square - sigma**2 * looked.free, 0.0) / max(looked.free, 1)) ** 0.5
        self.far = f", about {left:.2g} posterior sds from the mode" if left > 0 else ", the mode within noise"
        return looked


# -- climbing -----------------------------------------------------------------------------------------------------------


def _climb(asker: _Asker, guide: Guide, point: Point) -> Point:
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
        else:  # so short a gradient tells that the point is nearer than the step that led there: its own noise twice, squared
            point = point._replace(reached=min(point.reached, 2 * looked.sigma**2))
        if quiet:
            asker.check_width(point)
            rung += 1
            if rung == len(LADDER):
                break
    return point


def _informed(asker: _Asker, guide: Guide, point: Point) -> Point:
    """The same point with the information released there, for as little as makes it clear enough to step by."""
    if guide.known:
        return guide.at(point.theta, guide.made_up(point.theta), 0.0, point.reached)
    return _with_information(asker, guide, point, _ROUGH_INFORMATION, _CLEAR)[0]


def _with_information(asker: _Asker, guide: Guide, point: Point, share: float, clear: float) -> tuple[Point, float]:
    """The same point with the information released there: for the share, or less if it is clear for less; and its roughness."""
    spectral = (2 * len(point.theta)) ** 0.5  # of a symmetric matrix with noise one in every entry
    answer, sigma = asker.ask(guide.kind(point.theta), point.theta, point.root, share, clear / spectral)
    information, rough = unwhiten_information(answer, point.root, sigma)
    return guide.at(point.theta, information, sigma * spectral, point.reached), rough


# -- the last rung --------------------------------------------------------------------------------------------------------


def _placed(asker: _Asker, guide: Guide, point: Point) -> Piloted:
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
    belief = Belief(centre, final.root @ final.root.T, "the pilot's releases", error, rough)
    # One pilot in a thousand is surprised by chance alone. If all of the distance is forgiven then, it has arrived all the same.
    possible = is_noise(looked.square, looked.sigma**2 + point.reached, looked.free, IMPOSSIBLE)
    arrived, width = bool(possible and off_by <= FORGIVEN), asker.width(final)
    return Piloted(belief, asker.released, arrived, off_by, asker.spent * asker.mu_squared, width)


class _TooWide(Exception):
    """Two records' whitened scores lie too far apart for any chain: there is no use in spending more."""

    def __init__(self, point: Point, width: float) -> None:
        super().__init__("a chain could not mix")
        self.point, self.width = point, width


def _stopped(asker: _Asker, seen: _TooWide) -> Piloted:
    """What a pilot has that stopped early: a rough centre, and how far off it may be by the last gradient."""
    point, dim = seen.point, len(seen.point.theta)
    last = asker.answered[-1]
    sigma = float(np.linalg.norm(point.root.T @ last.noise) / dim**0.5)
    off_by = noise_length(sigma, dim) / dim**0.5
    belief = Belief(point.theta, point.root @ point.root.T, "a pilot that stopped early", sigma, point.roughness)
    return Piloted(belief, asker.released, False, off_by, asker.spent * asker.mu_squared, seen.width, True)


def _centre(asker: _Asker, guide: Guide, point: Point) -> tuple[np.ndarray, float]:
    """Where all gradients from nearby put the mode together, and its error."""
    covariance = point.root @ point.root.T
    batch = synthetic.uniform(guide.model, guide.domain, point.theta)
    bends = newton_miss(guide.model, guide.n, point.theta, batch, guide.kind(point.theta))
    heard = on_one_parabola(asker.answered, point.theta, bends, covariance)
    score, error = combine_scores(heard, point.theta, point.information, covariance)
    return guide.step(point.theta, guide.towards(point.theta, score, point.information)), error
