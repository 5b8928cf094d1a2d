r"""All of a budget for one answer: find the place with a part of it, then look there with the rest.

An estimate needs the score and the information of the records at one point near the posterior. The pilot finds the point for
`FINDING` of the budget. What is left pays for the information there (`LOOKING` of the budget at the most, less where less makes
it clear) and, with everything else, for one gradient. One gradient and not several: repeated releases average to one release with
the summed precision, and every release at another point would have to be carried over.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sfumato.bounds import synthetic
from sfumato.bounds.compiled import prior_derivatives, prior_draws
from sfumato.bounds.reach import Search
from sfumato.domain import Domain
from sfumato.model import Model
from sfumato.model.derivatives import triangle_to_matrix
from sfumato.planner.arrival import is_noise
from sfumato.planner.belief import Belief, mean_information, positive, prior_precision, safe_inverse
from sfumato.planner.guide import information_kind
from sfumato.planner.pilot import Piloted, Release, run_pilot
from sfumato.planner.shape import shaped
from sfumato.tools.progress import stage

FINDING = 0.16
"""Share of the budget that finds the place."""
FINDING_AT_MOST = 0.22
"""The same for a pilot that is surprised, or would leave the place rough."""
LOOKING = 0.15
"""Share of the budget for the information at the place, at the most."""
CLEAR = 0.03
"""Spectral noise of the whitened information that is worth paying for: it enters the answer times the distance to the place."""
BY_LAW = {"information": 0.3, "gradient": 0.2}
"""Shares of the budget at the public start, for a family whose law says where the posterior is from anywhere."""
LOST = 0.7
"""Roughness of the search's information from which made-up records tell better what to whiten by."""
_MARGIN = 1.0 + 2.0**-10


class Asked(NamedTuple):
    """One release: a noisy sum of the records' whitened vectors.

    Attributes
    ----------
    what
        "gradient", "information" or "outer": see `sfumato.model.derivatives.vector_function`.
    theta, matrix
        Where it was asked, and the whitening matrix A.
    sigma
        Standard deviation of the noise in every number.
    answer
        The numbers.
    """

    what: str
    theta: np.ndarray
    matrix: np.ndarray
    sigma: float
    answer: np.ndarray


class Placed(NamedTuple):
    """Everything that was released, and how the search for the place went.

    Attributes
    ----------
    asked
        All releases in order; the last is the gradient at the place.
    piloted
        What the search said of itself.
    surprise
        Whether the last gradient is longer than the noise in it and the stated error of the place explain.
    off
        Length of the last gradient: distance from the place to the mode, in posterior standard deviations without privacy (root
        mean square); with the noise of the gradient in it.
    width
        Largest distance between two records' whitened scores: it tells the one-shot limit.
    """

    asked: list[Asked]
    piloted: Piloted
    surprise: bool
    off: float
    width: float


class Recorded:
    """A `Release` that remembers every question with its answer."""

    def __init__(self, release: Release) -> None:
        self._release = release
        self.asked: list[Asked] = []
        self.spent = 0.0

    def __call__(
        self, what: str, theta: np.ndarray, matrix: np.ndarray, radius: float, sigma: float, centre: np.ndarray
    ) -> np.ndarray:
        """Ask."""
        stage(f"asking: answer {len(self.asked) + 1}, the {what}")
        answer = self._release(what, theta, matrix, radius, sigma, centre)
        self.spent += (2 * radius * _MARGIN / sigma) ** 2
        self.asked.append(Asked(what, np.array(theta), np.array(matrix), float(sigma), np.asarray(answer)))
        return answer


def place(
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
    weight: np.ndarray | None = None,
    locate: Callable[[list[Asked]], Belief] | None = None,
) -> Placed:
    """Spend `mu_squared` on the score and the information near the posterior; see `run_pilot` for the other parameters.

    Parameters
    ----------
    weight
        How much each coordinate's variance counts (`shape.coordinate_weights`); by default all alike.
    locate
        Function all releases -> centre and covariance of the posterior given them: for families whose law is global. The place is
        that centre then.
    """
    recorded, search = Recorded(release), Search(model, [domain, *others])

    def ask(what: str, theta: np.ndarray, matrix: np.ndarray, share: float, clear: float = 0.0) -> Asked:
        reach = search.reach(what, theta, matrix)
        width = 2 * reach.radius * _MARGIN
        recorded(what, theta, matrix, reach.radius, max(width / (share * mu_squared) ** 0.5, clear), reach.centre)
        return recorded.asked[-1]

    if locate is not None and covariance is not None:
        root = np.linalg.cholesky(covariance)
        for what, share in BY_LAW.items():
            ask(what, np.clip(start, -bound, bound), root, share)
        belief = locate(recorded.asked)
        theta, root = np.clip(belief.centre, -bound, bound), np.linalg.cholesky(belief.covariance)
        # A law that is global does not care how far off the place is.
        piloted = Piloted(belief, [], True, np.inf, recorded.spent, 0.0)
    else:
        piloted = run_pilot(
            model, domain, n, start, FINDING * mu_squared, recorded, known=known, covariance=covariance, bound=bound,
            others=others, most=FINDING_AT_MOST * mu_squared,
        )  # fmt: skip
        belief = piloted.belief
        # A search that heard mostly noise whitens by noise. Its place is drawn back as far as that is so, and no further.
        lost = covariance is not None and belief.roughness > LOST
        theta = np.clip(_drawn_back(model, start, belief), -bound, bound)
        root = np.linalg.cholesky(_made_up(model, domain, n, theta) if lost else belief.covariance)
        back = float(np.linalg.norm(np.linalg.solve(root, theta - belief.centre))) / len(theta) ** 0.5
        piloted = piloted._replace(off_by=np.inf if lost else float(np.hypot(piloted.off_by, back)))
        if not known:
            looked = ask(information_kind(model, domain, theta), theta, root, LOOKING, CLEAR / (2 * len(theta)) ** 0.5)
            root = _sharper(model, theta, root, looked, synthetic.silent(model, domain, theta))
    left = 1 - recorded.spent / mu_squared
    weight = np.ones(len(theta)) if weight is None else weight
    matrix = shaped(search, theta, root, prior_precision(model, theta), weight, left * mu_squared)
    last = ask("gradient", theta, matrix, left)
    return _judged(model, recorded, piloted, root, last, search, synthetic.silent(model, domain, theta))


def _drawn_back(model: Model, start: np.ndarray, belief: Belief) -> np.ndarray:
    """Where the search ended, drawn back towards the start as far as its own error exceeds what the prior leaves open."""
    prior = np.diag(np.var(prior_draws(model), axis=0) + 1e-300)
    noise = belief.error**2 * belief.covariance
    return np.asarray(start + prior @ np.linalg.solve(prior + noise, belief.centre - start))


def _made_up(model: Model, domain: Mapping[str, Domain], n: int, theta: np.ndarray) -> np.ndarray:
    """Covariance of the posterior at theta, were the records made-up ones."""
    information = n * mean_information(model, theta, synthetic.uniform(model, domain, theta))
    return safe_inverse(positive(information + prior_precision(model, theta)))


def _judged(
    model: Model, recorded: Recorded, piloted: Piloted, root: np.ndarray, last: Asked, search: Search, silent: np.ndarray
) -> Placed:  # fmt: skip
    """Compare the last gradient with what the search said about the place."""
    slope = np.nan_to_num(np.asarray(prior_derivatives(model)(last.theta)[0]))
    way = last.answer + last.matrix.T @ slope
    turn = np.linalg.solve(root, last.matrix)
    free = int(np.sum(~silent))
    # In whitened coordinates the place is off by the stated error, and the gradient is that plus its noise.
    off_by = min(piloted.off_by, 1e9)
    expected = off_by**2 * len(root) / max(free, 1) * (turn.T @ turn) + last.sigma**2 * np.eye(len(root))
    square = float(way @ np.linalg.solve(expected, way))
    length = float(np.linalg.norm(np.linalg.solve(turn.T, way)))
    width = float(np.sqrt(2.0)) * search.reach("gradient", last.theta, root).radius
    return Placed(recorded.asked, piloted, not is_noise(square, 1.0, free), length / len(root) ** 0.5, width)


def _sharper(model: Model, theta: np.ndarray, root: np.ndarray, looked: Asked, silent: np.ndarray) -> np.ndarray:
    """Whitening matrix of the last gradient, by the information that was released there; as before where that is all noise."""
    dim = len(root)
    spectral = looked.sigma * (2 * dim) ** 0.5
    if spectral > 0.5:
        return root
    back = np.linalg.inv(root)
    values, vectors = np.linalg.eigh(triangle_to_matrix(looked.answer, dim))
    information = back.T @ ((vectors * np.maximum(values, max(spectral, 0.02))) @ vectors.T) @ back
    information = np.where(silent[:, None] | silent, 0.0, information)
    precision = positive(information + prior_precision(model, theta))
    return np.linalg.cholesky(safe_inverse(precision))


def plain(asked: Asked) -> dict[str, Any]:
    """The release as plain values, for files and reports."""
    return {
        "what": asked.what, "theta": asked.theta.tolist(), "matrix": asked.matrix.tolist(), "sigma": asked.sigma,
        "answer": asked.answer.tolist(),
    }  # fmt: skip
