r"""Walks on :math:`\theta`: the full random walk, one direction at a time, and the guided walk.

Steps are taken in units of a public step matrix D (columns are directions, one posterior standard deviation long when the plan
is good).

All three proposals are symmetric, so ``log_q_ratio`` is zero; the guided walk is symmetric on the lifted space
(theta, direction) (Gustafson 1998).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from numpy.polynomial.legendre import leggauss
from scipy.special import ndtr, ndtri

from sfumato.errors import InvalidInput
from sfumato.kernel.base import Streams, as_tree, move_if
from sfumato.kernel.free import FreeMoves
from sfumato.kernel.kinds import OnNormal, register
from sfumato.kernel.penalty import Array, Draw, State, Weighed

GUIDED_SPREAD = 0.2
"""Guided step lengths are uniform on (0.8, 1.2) times the step: nearly constant lengths waste the least budget."""


class Walk:
    """What all walks share: no first query, symmetric proposals, nowhere they do not go.

    A walk is planned by two more functions of its own: `lengths` and `unit_moves`.
    """

    first: ClassVar[bool] = False
    second: ClassVar[str] = "ratio"
    chain_by_chain: ClassVar[bool] = False
    whole: ClassVar[bool] = False
    persistent: ClassVar[bool] = False
    ordinary_share: ClassVar[float] = 0.3
    proposal_sigma: ClassVar[float] = math.inf
    copy_sigma: ClassVar[float] = 0.0
    numbers_a_step: ClassVar[int] = 1
    trust_radius: ClassVar[float | None] = None
    free: FreeMoves | None = None

    def public_part(self, log_prior: Callable[[Array], Array]) -> Callable[[Array], Array]:
        """The prior."""
        return log_prior

    def weigh(self, state: State, theta_prop: Array, log_prior_prop: Array) -> Weighed:
        """The ratio of the prior; that of the proposal is one."""
        return Weighed(log_prior_prop - state.log_prior)

    def inside(self, theta: Array) -> Array:
        """Everywhere."""
        return jnp.asarray(True)

    def update(self, state: State, theta_prop: Array, log_prior_prop: Array, accepted: Array, draw: Draw) -> State:
        """Move if accepted."""
        return move_if(accepted, state, theta_prop, log_prior_prop)

    @classmethod
    def lengths(cls) -> tuple[np.ndarray, np.ndarray]:
        """Lengths of unit steps along one direction, and their probabilities: a standard normal's."""
        z = np.linspace(-5, 5, 51)
        return z, np.exp(-(z**2) / 2) / np.exp(-(z**2) / 2).sum()

    @classmethod
    def on_normal(cls, x: np.ndarray, step: float) -> OnNormal:
        """A step along one direction."""
        lengths, weight = cls.lengths()
        after = x + step * lengths
        return OnNormal(after, weight, (x**2 - after**2) / 2)

    @classmethod
    def others(cls, step: float, dim: int) -> float:
        r"""Variance :math:`v = s^2(d-1)` of a step in all coordinates, none of a step along one column.

        The others contribute to the log ratio a normal with this variance and mean :math:`-v/2` (for their typical length): the
        very law of penalised noise, so they act as noise of variance v.
        """
        return (dim - 1) * step**2 if cls.whole else 0.0

    @classmethod
    def log_ratio_variance(cls, steps: np.ndarray, roughness: float) -> float:
        """Squared length of a step."""
        return float(np.sum(steps**2) if cls.whole else np.mean(steps**2))


@register
@as_tree("matrix", "step", "free")
@dataclass(frozen=True)
class Guided(Walk):
    r"""Guided walk: :math:`\theta' = \theta + p_j \ell s D_j`, keep the sign :math:`p_j` if accepted, flip it if not.

    Each column has a sign of its own and columns are chosen at random. Given j, the move from (theta, p_j) to
    (theta', p_j) and the one from (theta', -p_j) to (theta, -p_j) have the same proposal density, so the lifted chain
    leaves posterior times uniform signs invariant (Gustafson 1998), with the penalty acceptance as with any other.
    """

    name: ClassVar[str] = "guided"
    persistent: ClassVar[bool] = True
    matrix: np.ndarray
    step: float
    free: FreeMoves | None = field(default=None, kw_only=True)

    def draw(self, rng: Streams, size: int) -> Draw:
        """A direction and a positive, nearly constant length."""
        index = rng.directions.integers(0, self.matrix.shape[1], size).astype(np.int32)
        length = rng.steps.uniform(1 - GUIDED_SPREAD, 1 + GUIDED_SPREAD, size)
        return Draw(np.zeros((size, 0)), index, length, rng.log_u(size))

    def propose(self, state: State, draw: Draw, first: Array = None) -> Array:
        """Theta plus a step along column j, with that column's sign."""
        travel = state.direction[draw.index] * draw.length * self.step
        return state.theta + travel * jnp.asarray(self.matrix)[:, draw.index]

    def update(self, state: State, theta_prop: Array, log_prior_prop: Array, accepted: Array, draw: Draw) -> State:
        """Move and go on, or stay and turn round."""
        moved = move_if(accepted, state, theta_prop, log_prior_prop)
        turned = state.direction.at[draw.index].multiply(-1.0)
        return moved._replace(direction=jnp.where(accepted, state.direction, turned))

    @classmethod
    def lengths(cls) -> tuple[np.ndarray, np.ndarray]:
        """Uniform, upwards."""
        u, weight = leggauss(5)
        return 1 + GUIDED_SPREAD * u, weight / 2

    @classmethod
    def unit_moves(cls, matrix: np.ndarray, rng: np.random.Generator, size: int = 256) -> np.ndarray:
        """Moves of unit step, one per row, scaled to the mean square they have on average."""
        lengths = rng.uniform(1 - GUIDED_SPREAD, 1 + GUIDED_SPREAD, size)
        scaled = lengths * np.sqrt((1 + GUIDED_SPREAD**2 / 3) / np.mean(lengths**2))
        return np.asarray(matrix.T[np.arange(size) % matrix.shape[1]] * scaled[:, None])


@register
@as_tree("matrix", "step", "free")
@dataclass(frozen=True)
class Componentwise(Walk):
    r"""One direction at a time: :math:`\theta' = \theta + s z D_j`, j uniform, z standard normal.

    On a box of records the sensitivity is then that one direction's width, not the sum over all of them.
    """

    name: ClassVar[str] = "componentwise"
    matrix: np.ndarray
    step: float
    free: FreeMoves | None = field(default=None, kw_only=True)

    def draw(self, rng: Streams, size: int) -> Draw:
        """A direction and a signed normal length."""
        index = rng.directions.integers(0, self.matrix.shape[1], size).astype(np.int32)
        return Draw(np.zeros((size, 0)), index, rng.steps.standard_normal(size), rng.log_u(size))

    def propose(self, state: State, draw: Draw, first: Array = None) -> Array:
        """Theta plus a step along column j."""
        return state.theta + self.step * draw.length * jnp.asarray(self.matrix)[:, draw.index]

    @classmethod
    def unit_moves(cls, matrix: np.ndarray, rng: np.random.Generator, size: int = 256) -> np.ndarray:
        """Moves of unit step, one per row, of the length they have on average."""
        return np.asarray(matrix.T[np.arange(size) % matrix.shape[1]] * rng.choice([-1.0, 1.0], size)[:, None])


@register
@as_tree("matrix", "step", "free")
@dataclass(frozen=True)
class RandomWalk(Walk):
    r"""Random walk :math:`\theta' = \theta + s D z`, z standard normal.

    Parameters
    ----------
    matrix
        Step matrix D, shape (d, d).
    step
        s, in units of D.
    truncate
        Bound on \|theta'_i - theta_i\| for every coordinate i, as the paper's Assumption 4 wants (c n^(-alpha)); it
        needs a diagonal D, so that cutting each z_i symmetrically bounds each coordinate. None: not bounded.
    """

    name: ClassVar[str] = "random-walk"
    whole: ClassVar[bool] = True
    matrix: np.ndarray
    step: float
    truncate: float | None = None
    free: FreeMoves | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.truncate is not None and np.any(self.matrix != np.diag(np.diag(self.matrix))):
            raise InvalidInput("truncate= bounds each coordinate's move and needs a diagonal step matrix; pass one.")

    def draw(self, rng: Streams, size: int) -> Draw:
        """Normal steps; truncated ones by inversion, which keeps them symmetric about zero."""
        d = self.matrix.shape[1]
        if self.truncate is None:
            normal = rng.steps.standard_normal((size, d))
        else:
            normal = self.normal(rng.steps.random((size, d)))
        return Draw(normal, np.zeros(size, np.int32), np.zeros(size), rng.log_u(size))

    def normal(self, uniform: np.ndarray) -> np.ndarray:
        """Truncated normals from uniforms on [0, 1), coordinate by coordinate."""
        assert self.truncate is not None  # noqa: S101 (asked for by the truncated walk alone)
        below = ndtr(-self.truncate / (self.step * np.abs(np.diag(self.matrix))))
        return np.asarray(ndtri(below + uniform * (1 - 2 * below)))

    def propose(self, state: State, draw: Draw, first: Array = None) -> Array:
        """Theta plus a step in all directions at once."""
        return state.theta + self.step * (jnp.asarray(self.matrix) @ draw.normal)

    @classmethod
    def unit_moves(cls, matrix: np.ndarray, rng: np.random.Generator, size: int = 256) -> np.ndarray:
        """Moves of unit step, one per row, scaled to the mean square they have on average."""
        normal = rng.standard_normal((size, matrix.shape[1]))
        return np.asarray(normal / np.sqrt(np.mean(normal**2, axis=0)) @ matrix.T)
