r"""From a picture of the posterior and a budget to a kernel, its tuning, and the draws it will be worth.

The picture is a centre :math:`\theta^*` and a covariance :math:`\Sigma`; both public (assumed, or paid for by a pilot).
A step of length s along a column of D (:math:`DD^\top = \Sigma`) has sensitivity about :math:`s\,w_j`, so a budget
:math:`\mu^2` buys :math:`k = \mu^2\sigma^2/(s^2 \overline{w^2})` steps; what each is worth is in `efficiency`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.bounds.reference import Reference
from sfumato.domain import Domain
from sfumato.errors import Unsupported
from sfumato.families.base import Family
from sfumato.families.langevin import public_part
from sfumato.kernel import Componentwise, Guided, Kernel, Langevin, RandomWalk, ReferenceLangevin
from sfumato.kernel.walks import GUIDED_SPREAD
from sfumato.model import Model
from sfumato.planner import compiled, efficiency, synthetic, truncated
from sfumato.planner.reach import Search, diameter
from sfumato.tools.quick_jit import quick_jit

Array: TypeAlias = Any

PAIRS = 64
"""Moves over which the cost of Langevin's second query is averaged."""
REFERENCE_STEPS = tuple(np.round(np.geomspace(0.01, 2.0, 18), 4).tolist())
"""The same around a reference point, where no step is too large for a normal posterior."""
REFERENCE_SIGMAS = tuple(np.round(np.geomspace(0.03, 2.0, 24), 4).tolist())
ENOUGH_REFERENCE = 0.99
SHOWING = 400
"""Steps a chain should have, where it can, for its diagnostics to mean something."""
STEP_SIZES = tuple(np.round(np.geomspace(0.002, 1.0, 22), 5).tolist())
"""Langevin step sizes h that are tried."""
RATIOS = tuple(np.round(np.geomspace(1.0, 64.0, 13), 3).tolist())
"""Variances of Langevin's second copies that are tried, in those of its first: both are counted on one lattice."""
SIGMAS = tuple(np.round(np.geomspace(0.1, 4.0, 28), 3).tolist())
STEPS = tuple(np.round(np.geomspace(0.2, 3.0, 17), 3).tolist())
ENOUGH = 0.97
"""Smaller steps cost compute, not privacy; stop shrinking them at this share of the best forecast."""
ENOUGH_LANGEVIN = 0.985
"""The same for Langevin, whose steps cost no pass over the records."""


LEAST_START = 1 / 16
"""Variance of the starts about the centre in posterior variances, at the least: chains should not start at one point."""


@dataclass(frozen=True)
class Picture:
    """What a plan believes about the posterior: public, and only as good as where it came from.

    `error`: standard deviation of the centre in posterior standard deviations, coordinate by coordinate. `roughness`: how
    far the covariance may be off, as the root of the summed squares of the whitened information's errors.
    """

    centre: np.ndarray
    covariance: np.ndarray
    origin: str
    error: float = 0.0
    roughness: float = 0.0

    @property
    def start(self) -> np.ndarray:
        r"""Covariance :math:`(1 - e^2)\Sigma` of starts about the centre; its own error e is the rest of the posterior's.

        So a start is as far from the mode, on average, as a draw. With all of :math:`\Sigma` about the centre it would be
        further, and on a small budget no steps can be spared for the chain to forget it.
        """
        return self.covariance * max(1.0 - self.error**2, LEAST_START)


@dataclass(frozen=True)
class Choice:
    """A kernel with its tuning and forecast."""

    kernel: str
    matrix: np.ndarray
    step: float
    sigma: float
    iterations: int
    ess: float
    copy_sigma: float = 0.0


WidthSquare: TypeAlias = Callable[[Picture, np.ndarray], float]
KERNELS: dict[str, Callable[..., Kernel]] = {
    RandomWalk.name: RandomWalk,
    Componentwise.name: Componentwise,
    Guided.name: Guided,
}


def assumed_picture(
    model: Model,
    domain: Mapping[str, Domain],
    n: int,
    centre: np.ndarray,
    example: synthetic.Batch | None,
    origin: str,
    spread: float = 1.0,
) -> Picture:
    """Posterior covariance from the information of made-up (or public example) records at the centre."""
    batch = synthetic.uniform(model, domain, centre, spread=spread) if example is None else example
    information = n * mean_information(model, centre, batch) + prior_precision(model, centre)
    return Picture(centre, safe_inverse(information), origin)


def mean_information(model: Model, theta: np.ndarray, batch: Mapping[str, Any]) -> np.ndarray:
    """Average information of one record: the mean of minus the hessian, made positive."""
    mean = np.asarray(compiled.information(model)(jax.device_put(theta), dict(batch)))
    return positive(mean) if np.any(mean) else np.eye(model.dim)


def prior_precision(model: Model, theta: np.ndarray) -> np.ndarray:
    """Minus the hessian of the log prior, made positive."""
    return positive(-np.nan_to_num(np.asarray(compiled.prior_derivatives(model)(jax.device_put(theta))[1])))


def positive(matrix: np.ndarray, floor: float = 1e-9) -> np.ndarray:
    """Nearest symmetric matrix with eigenvalues at least `floor` times the largest."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    values = np.maximum(values, floor * max(values.max(), 1e-300))
    return np.asarray((vectors * values) @ vectors.T)


def safe_inverse(matrix: np.ndarray) -> np.ndarray:
    """Inverse of a positive matrix, symmetric to the last bit."""
    inverse = np.linalg.inv(matrix)
    return np.asarray((inverse + inverse.T) / 2)


def step_matrices(covariance: np.ndarray) -> list[np.ndarray]:
    """Candidates for D with D D' = covariance: triangular roots in both orders, the symmetric root."""
    lower = np.linalg.cholesky(covariance)
    reverse = np.linalg.cholesky(covariance[::-1, ::-1])[::-1, ::-1]
    values, vectors = np.linalg.eigh(covariance)
    symmetric = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    return [lower, reverse, symmetric]


@lru_cache(maxsize=16)
def mean_square_width(range_: Any) -> WidthSquare:
    """Function (picture, moves) -> average squared sensitivity of those moves (one per row) from points around the centre."""

    @quick_jit
    def average(theta: Array, moves: Array) -> Array:
        lo, hi = jax.vmap(range_)(theta, theta + moves)
        return jnp.mean((hi - lo) ** 2)

    def apply(picture: Picture, moves: np.ndarray) -> float:
        spread = np.linalg.cholesky(picture.covariance)
        around = np.random.default_rng(0).standard_normal((len(moves), len(picture.centre))) @ spread.T + picture.centre
        found = float(average(jax.device_put(around), jax.device_put(moves)))
        return np.inf if np.isnan(found) else found  # no number is no bound: such moves cannot be afforded

    return apply


def limit_ess(model: Model, domain: Mapping[str, Domain], picture: Picture, mu: float, *, climb: bool = True) -> float:
    r"""One-shot limit :math:`ESS^* = \mu^2 / \sup\lVert A^\top(S(x) - S(y))\rVert^2`, S the score at the centre.

    The supremum is searched for: two records attain it, so no proof that is loose makes the limit look smaller than it is.
    """
    root = np.linalg.cholesky(picture.covariance)
    scores = Search(model, [domain], climb=climb).vectors("gradient", picture.centre, root)
    return float(mu**2 / max(diameter(scores) ** 2, 1e-300))


def family_limit_ess(family: Family, model: Model, picture: Picture, mu: float) -> float:
    r"""Give the same limit from the family's own diameter: :math:`A^\top J^\top S`, J the derivative of the natural parameter."""
    jacobian = quick_jit(jax.jacfwd(lambda t: family.natural(model.constrain(t))))(jax.device_put(picture.centre))
    root = np.asarray(jacobian) @ np.linalg.cholesky(picture.covariance)
    return float(mu**2 / max(family.known_diameter(root) ** 2, 1e-300))


class Chosen(NamedTuple):
    """Kernels that came into question, the best forecast first; and those that did not, with the reason."""

    choices: list[Choice]
    missing: dict[str, str]


def choose(
    range_: Any,
    picture: Picture,
    mu: float,
    *,
    kernel: str,
    chains: int,
    max_iterations: int,
    near: "tuple[Reference, Model] | None" = None,
    truncate: float | None = None,
) -> Chosen:
    """Tune every kernel that comes into question for the budget; the best forecast first."""
    names = [Guided.name, Componentwise.name, RandomWalk.name] if kernel == "auto" else [kernel]
    width_square = mean_square_width(range_)
    if truncate is not None:
        return Chosen([_tune_truncated(truncate, width_square, picture, mu, chains, max_iterations)], {})
    best = [_tune(name, width_square, picture, mu, chains, max_iterations) for name in names if name != Langevin.name]
    missing: dict[str, str] = {}
    if near is not None and kernel in ("auto", Langevin.name):
        try:
            best.append(choose_reference(*near, picture, mu, chains=chains, max_iterations=max_iterations))
        except Unsupported as error:
            if kernel == Langevin.name:
                raise
            missing[Langevin.name] = str(error)
    return Chosen(sorted(best, key=lambda choice: -choice.ess), missing)


def _tune(
    name: str, width_square: WidthSquare, picture: Picture, mu: float, chains: int, max_iterations: int
) -> Choice:
    dim = len(picture.centre)
    rng = np.random.default_rng(1)
    options: list[Choice] = []
    matrices = step_matrices(picture.covariance) if dim > 1 else step_matrices(picture.covariance)[:1]
    units = [_unit_moves(name, matrix, rng) for matrix in matrices]
    squares = [width_square(picture, 0.3 * unit) / 0.09 for unit in units]
    pick = int(np.argmin(squares))
    matrix, unit = matrices[pick], units[pick]
    for step in STEPS:
        square = width_square(picture, step * unit) if step > 0.6 else squares[pick] * step**2
        for sigma, worth in zip(SIGMAS, _worth(name, step, dim), strict=True):
            afford = mu**2 * sigma**2 / max(square, 1e-300) / chains
            iterations = int(min(afford, max_iterations))
            options.append(Choice(name, matrix, step, sigma, iterations, chains * iterations * worth))
    top = max(option.ess for option in options)
    return max((o for o in options if o.ess >= ENOUGH * top), key=lambda o: (o.step, o.ess))


def _tune_truncated(
    bound: float, width_square: WidthSquare, picture: Picture, mu: float, chains: int, max_iterations: int
) -> Choice:
    """Tune the truncated random walk; where the bound binds, longer steps change nothing and the shortest is kept."""
    matrix = truncated.step_matrix(picture.covariance)
    options: list[Choice] = []
    for step in STEPS:
        square = width_square(picture, truncated.moves(matrix, step, bound))
        for sigma, worth in zip(SIGMAS, truncated.worth(picture.covariance, matrix, step, bound, SIGMAS), strict=True):
            afford = mu**2 * sigma**2 / max(square, 1e-300) / chains
            iterations = int(min(afford, max_iterations))
            options.append(Choice(RandomWalk.name, matrix, step, sigma, iterations, chains * iterations * worth))
    return max(options, key=lambda o: (o.ess, -o.step))


def choose_langevin(
    family: Family, model: Model, n: int, picture: Picture, mu: float, *, chains: int, max_iterations: int
) -> Choice:
    r"""Best step size h and second noise sigma for Langevin in the natural parameter.

    A step of one chain costs :math:`\tfrac h4 w_1^2` for the proposal (:math:`w_1` the whitened diameter of the statistic)
    and :math:`w_2^2/\sigma^2` for the correction, whose mean is taken over typical moves.
    """
    root = np.linalg.cholesky(picture.covariance)
    first = family.known_diameter(root) ** 2 / 4
    public = public_part(family, model, n)
    z = np.random.default_rng(0).standard_normal((2, 64, len(root)))
    around = jax.device_put(picture.centre + z[0] @ root.T)
    pull = -quick_jit(jax.grad(public))(jnp.asarray(picture.centre))  # S_n, if the centre is the mode

    @quick_jit
    def second(h: Array) -> Array:
        """Mean squared width of the second query."""

        def one(theta: Array, noise: Array) -> Array:
            move = h / 2 * (root @ (root.T @ (jax.grad(public)(theta) + pull))) + jnp.sqrt(h) * (root @ noise)
            change = root @ (root.T @ (jax.grad(public)(theta + move) - jax.grad(public)(theta)))
            square = (h / 4 * family.width(change)) ** 2
            return jnp.where(jnp.isfinite(square), square, jnp.nan)

        return jnp.nanmean(jax.vmap(one)(around, jnp.asarray(z[1])))

    options = []
    for h in STEP_SIZES:
        square = float(second(jnp.asarray(h)))
        for sigma, worth in zip(SIGMAS, efficiency.langevin(h, SIGMAS, len(root)), strict=True):
            afford = mu**2 / (h * first + square / sigma**2) / chains
            iterations = int(min(afford, max_iterations))
            options.append(Choice(Langevin.name, root, h, sigma, iterations, chains * iterations * worth))
    top = max(option.ess for option in options)
    return max((o for o in options if o.ess >= ENOUGH_LANGEVIN * top), key=lambda o: (o.step, o.ess))


def choose_copies(family: Family, picture: Picture, mu: float, *, chains: int, max_iterations: int) -> Choice:
    r"""Best step size h and ratio r for Langevin whose corrections are made from second copies.

    A step of one chain costs :math:`\tfrac h4 w_1^2 (1 + 1/r)`, wherever it goes. `Choice.sigma` is what the noise of a
    correction will be on average (the root of the mean square): :math:`\tfrac h4 \sqrt{\xi_2\, d\, (h + h^2/4)}`.
    """
    root = np.linalg.cholesky(picture.covariance)
    dim, first = len(root), family.known_diameter(root) ** 2 / 4
    options = []
    for h in STEP_SIZES:
        for ratio, worth in zip(RATIOS, efficiency.langevin_copies(h, RATIOS, dim), strict=True):
            iterations = int(min(mu**2 / (h * first * (1 + 1 / ratio)) / chains, max_iterations))
            copy_sigma = float(np.sqrt(4 * ratio / h))
            sigma = float(copy_sigma * h / 4 * np.sqrt(dim * (h + h**2 / 4)))
            options.append(Choice(Langevin.name, root, h, sigma, iterations, chains * iterations * worth, copy_sigma))
    top = max(option.ess for option in options)
    return max((o for o in options if o.ess >= ENOUGH_LANGEVIN * top), key=lambda o: (o.step, o.ess))


TRUST = 10.0
"""Radius of the trust region beyond the root of d and twice the centre's error, in posterior standard deviations: the mass
outside is far below 1e-12."""


def reference_kernel(model: Model, picture: Picture, matrix: np.ndarray, step: float) -> ReferenceLangevin:
    """Langevin around the centre of a picture: J is its precision less that of the prior."""
    information = positive(safe_inverse(picture.covariance) - prior_precision(model, picture.centre))
    trust = len(picture.centre) ** 0.5 * (1 + 2 * picture.error) + TRUST
    return ReferenceLangevin(matrix, step, model.log_prior, picture.centre, information, trust)


def choose_reference(
    near: Reference, model: Model, picture: Picture, mu: float, *, chains: int, max_iterations: int
) -> Choice:
    r"""Best step size h and second noise sigma for Langevin around a reference point.

    A step of one chain costs :math:`w_1^2/(4/h - 1)` for the proposal (:math:`w_1` the diameter of the whitened gradients)
    and :math:`w_2^2/\sigma^2` for the correction, whose mean is taken over moves as the chain will make them: from points
    around a mode that the centre misses by the picture's error. What a step is worth is in `efficiency.autoregression`.
    """
    root, dim = np.linalg.cholesky(picture.covariance), len(picture.centre)
    proven = near.at(picture.centre, root)
    first = proven.gradients.diameter**2
    rng = np.random.default_rng(0)
    x, noise, miss = (jax.device_put(rng.standard_normal((PAIRS, dim))) for _ in range(3))
    kernel = reference_kernel(model, picture, root, 1.0)
    place = tuple(jax.device_put(part) for part in (kernel.centre, root, kernel.information, picture.error))
    options = []
    for h in REFERENCE_STEPS:
        square = float(_mean_square(near, model)(*place, proven.anchor, jnp.asarray(h), x, noise, miss))
        if not np.isfinite(square):
            raise Unsupported(
                "kernel='langevin' needs second derivatives that are bounded for every record near the posterior; here they "
                "are not (a kink, as of an absolute value?). Use kernel='guided'."
            )
        for sigma in REFERENCE_SIGMAS:
            worth = efficiency.autoregression(h, float(np.hypot(sigma, picture.roughness * np.sqrt(h * (1 - h / 4)))))
            afford = mu**2 / (first / (4 / h - 1) + square / sigma**2) / chains
            iterations = int(min(afford, max_iterations))
            options.append(Choice(Langevin.name, root, h, sigma, iterations, chains * iterations * worth))
    top = max(option.ess for option in options)
    good = [o for o in options if o.ess >= ENOUGH_REFERENCE * top]
    # The forecast is flat in h. Long steps save passes over the records; but a chain of a few draws shows nothing of itself.
    long_enough = [o for o in good if o.iterations >= SHOWING] or good
    return max(long_enough, key=lambda o: (o.step if o.iterations >= SHOWING else -o.step, o.ess))


@lru_cache(maxsize=16)
def _mean_square(near: Reference, model: Model) -> Callable[..., Array]:
    """Compile the mean squared width of the second query over given moves."""

    def mean(
        centre: Array, root: Array, information: Array, error: Array, anchor: Any, h: Array, *numbers: Array
    ) -> Array:
        kernel = ReferenceLangevin(root, h, model.log_prior, centre, information, np.inf)

        def one(pair: tuple[Array, Array, Array]) -> Array:
            x, noise, miss = pair
            x_prop = (1 - h / 2) * x + jnp.sqrt(h * (1 - h / 4)) * noise
            theta, theta_prop = (centre + root @ (p + error * miss) for p in (x, x_prop))
            lag = theta_prop - theta - kernel.known(theta, theta_prop).along
            lo, hi = near.range(anchor, theta, theta_prop, lag)
            return (hi - lo) ** 2

        return jnp.mean(jax.lax.map(one, numbers))

    return quick_jit(mean)


def _unit_moves(name: str, matrix: np.ndarray, rng: np.random.Generator, size: int = 256) -> np.ndarray:
    """Moves of unit step, as the kernel would draw them; scaled to the mean square they have on average."""
    dim = matrix.shape[1]
    if name == RandomWalk.name:
        normal = rng.standard_normal((size, dim))
        return np.asarray(normal / np.sqrt(np.mean(normal**2, axis=0)) @ matrix.T)
    columns = matrix.T[np.arange(size) % dim]
    if name == Componentwise.name:
        return np.asarray(columns * rng.choice([-1.0, 1.0], size)[:, None])
    lengths = rng.uniform(1 - GUIDED_SPREAD, 1 + GUIDED_SPREAD, size)
    return np.asarray(columns * (lengths * np.sqrt((1 + GUIDED_SPREAD**2 / 3) / np.mean(lengths**2)))[:, None])


def _worth(name: str, step: float, dim: int) -> tuple[float, ...]:
    """Effective draws per step, for one coordinate, for each of `SIGMAS`."""
    if name == RandomWalk.name:
        return efficiency.full(step, SIGMAS, dim)
    one = efficiency.guided if name == Guided.name else efficiency.random_walk
    return tuple(worth / dim for worth in one(step, SIGMAS))
