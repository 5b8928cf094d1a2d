r"""Sums of vectors over records: each cut to a set of known size, rounded to the lattice, and added up as integers.

Three sorts. A pilot's gradient or information is cut to a ball of stated centre and radius (`PilotSum`): private, and biased if
the ball is chosen badly. A family's statistic :math:`A^\top S(y)` is taken of the record projected onto its domain, where its
range and diameter are proven (`StatisticSum`); bundles, walks and Langevin on a family all rest on it. A score at a reference
point, :math:`A^\top s(y)`, is cut to a body of known diameter (`ScoreSum`), whatever the model's program computes.

Every coordinate is clamped to its integer range besides, so no sum leaves 64 bits. Rounding moves a vector of d coordinates by at
most :math:`\gamma\sqrt d/2`; the charge includes it.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.bounds.balls import SHORTENED, Balls, shortened
from sfumato.bounds.body import Body
from sfumato.bounds.reference import Proven, ReferenceBounds
from sfumato.bounds.searched import Searched
from sfumato.domain import Domain
from sfumato.errors import InvalidInput
from sfumato.families.base import Family
from sfumato.kernel.shared_programs import shared_program
from sfumato.model import Model
from sfumato.model.derivatives import size, vector_function
from sfumato.privacy.budget import RELATIVE_LOG2, cost_quanta
from sfumato.protocol.questions import AHEAD, AHEAD_NUMBERS, Release, Statistic
from sfumato.vault import lattice
from sfumato.vault.blocks import LEAN, Evaluation, Rows, add_up, sum_over_blocks
from sfumato.vault.closed import closed
from sfumato.vault.engine import Engine, LocalEngine
from sfumato.vault.lattice import Box, box_of
from sfumato.vault.noise import NoisePool, Source
from sfumato.vault.queries.base import YES, Answer, Quote, matrix_of

Array: TypeAlias = Any

SMALLEST = 2.0**-100
"""Of a radius or a sigma: far from where a float64, or its square, underflows."""
EVALUATION = 2.0**-40
"""Relative error allowed for in multiplying out one record's score in float64: thousands of roundings."""
_TOO_LARGE = (
    "sums of statistics must fit 64 bits, and over this domain they do not beside the noise; move its middle towards zero (take "
    "a public constant off the column) or use kernel='guided' on a NumPyro model."
)


def sum_in_box(
    rows: Rows,
    typed: Callable[[Rows], Mapping[str, Array]],
    vector: Callable[[Mapping[str, Array]], Array],
    box: Box,
    gamma: Array,
) -> Array:
    """Integer sum over rows of a vector of each, in units of gamma: rounded, then clamped to the box. Private."""

    def one(record: Mapping[str, Array]) -> Array:
        scaled = jnp.clip(vector(record) / gamma, -lattice.TERM_LIMIT, lattice.TERM_LIMIT)
        return jnp.clip(jnp.round(scaled).astype(jnp.int64), box.lo, box.hi) - box.middle

    def block_sum(block: Rows) -> Array:
        return add_up(jax.vmap(one)(typed(block)), block, axis=0)

    return sum_over_blocks(rows, block_sum, jnp.zeros(len(box.lo), jnp.int64))


# -- a pilot's --------------------------------------------------------------------------------------------------------


class PilotSum(NamedTuple):
    """A pilot's vectors at a parameter, whitened, less the centre of the ball that they are cut to: see `pilot_sum`."""

    what: str
    theta: np.ndarray
    matrix: np.ndarray
    centre: np.ndarray
    radius: float
    gamma: float

    @property
    def moved(self) -> float:
        r"""What replacing one record can move the sum by: :math:`2R + \gamma\sqrt k`, k the number of coordinates."""
        return 2 * self.radius * SHORTENED + self.gamma * len(self.centre) ** 0.5

    def sum(self, table: LocalEngine) -> Array:
        """Integer sum."""
        how = table.how
        run = _pilot_program(self.what, how.model, tuple(sorted(how.domain.items())), how.precision)
        return run(table.records, *(np.asarray(part, np.float64) for part in self[1:]))


@shared_program
def _pilot_program(
    what: str, model: Model, columns: tuple[tuple[str, Domain], ...], precision: str
) -> Callable[..., Array]:
    """Compiled once for a model on a domain: a second pilot, with other parameters and matrices, compiles nothing."""
    how = Evaluation(model, dict(columns), precision)

    def run(rows: Rows, theta: Array, matrix: Array, centre: Array, radius: Array, gamma: Array) -> Array:
        plain = vector_function(what, model, theta.astype(precision), matrix.astype(precision))

        def vector(record: Mapping[str, Array]) -> Array:
            value = plain(record).astype(jnp.float64) - centre
            return shortened(jnp.where(jnp.all(jnp.isfinite(value)), value, 0.0), radius)

        # Whatever floating point did: no coordinate passes the radius.
        most = jnp.broadcast_to(jnp.ceil(radius * SHORTENED / gamma).astype(jnp.int64), centre.shape)
        return sum_in_box(rows, how.typed, vector, Box(-most, most, 0), gamma)

    return jax.jit(run, compiler_options=LEAN)


def pilot_sum(asked: Release, n: int, dim: int) -> PilotSum:
    """What a pilot asks for, checked.

    Raises
    ------
    InvalidInput
        A number is none, or so large or small that arithmetic would fail it.
    """
    for name in ("radius", "sigma"):
        number = getattr(asked, name)
        if not (math.isfinite(number) and SMALLEST <= number <= 1 / SMALLEST):
            raise InvalidInput(f"{name} must lie between {SMALLEST:.2g} and {1 / SMALLEST:.2g}, got {number}.")
    theta = matrix_of("theta", [asked.theta], 1, dim)[0]
    matrix = matrix_of("matrix", asked.matrix, dim, dim)
    count = size(asked.what, dim)
    centre = np.asarray(asked.centre, np.float64) if len(asked.centre) else np.zeros(count)
    if centre.shape != (count,) or not np.all(np.abs(centre) <= 1 / SMALLEST):
        raise InvalidInput(f"the centre of a release must be {count} finite numbers, got shape {centre.shape}.")
    return PilotSum(asked.what, theta, matrix, centre, asked.radius, pilot_gamma(n, asked.radius, asked.sigma))


def pilot_gamma(n: int, radius: float, sigma: float) -> float:
    r"""Lattice of a release: as fine as a chain's, or :math:`2^{-36}\sigma` where sums of vectors so long would leave 64 bits.

    The noise is discrete as finely either way; what is given up is rounding that nobody could see beside it.
    """
    coarse = float(2.0 ** math.floor(math.log2(sigma) + RELATIVE_LOG2))
    for gamma in (lattice.choose_gamma(sigma, n), coarse):
        if n * radius / gamma <= lattice.SUM_LIMIT:
            return gamma
    raise InvalidInput(
        f"sums of vectors up to radius = {radius:.3g} must fit 64 bits beside noise of sigma = {sigma:.3g}, and those of {n:,} "
        "records do not; use a larger sigma."
    )


def quote_release(
    engine: Engine, dim: int, asked: Release, noise: Callable[[float, int], Source]
) -> tuple[Quote, PilotSum]:
    """Price a pilot's release; both roads answer it so."""
    query = pilot_sum(asked, engine.n, dim)
    count = len(query.centre)

    def answer() -> Answer:
        drawn = noise(asked.sigma / query.gamma, count).draw(count)
        return Answer(query.gamma, (engine.sum(query) + drawn).tolist(), [query.moved], YES)

    return Quote(cost_quanta((query.moved / asked.sigma) ** 2), count, answer), query


# -- a family's statistic -----------------------------------------------------------------------------------------------


class StatisticSum(NamedTuple):
    """A family's whitened statistic A' S(y), less a centre (a bundle's; else zero) and the middle of its range.

    See `statistic_sum`.
    """

    family: Family
    matrix: np.ndarray
    box: Box
    gamma: float
    centre: np.ndarray

    @property
    def moved(self) -> float:
        """The most that one record can move the sum by, rounding included."""
        evaluated = float(np.linalg.norm(evaluation_error(self.family, self.matrix)))
        rounded = self.gamma * len(self.box.lo) ** 0.5
        return float(self.family.known_diameter(self.matrix) * (1 + 1e-9) + rounded + 2 * evaluated)

    def sum(self, table: LocalEngine) -> Array:
        """Integer sum."""
        run = table.program("statistic", lambda: _statistic_program(self.family, table.how))
        return run(table.records, *self[1:])

    def program(self, how: Evaluation) -> Callable[..., Array]:
        """Function (rows, and the numbers here) -> integer sum. Every sum of statistics is this one."""
        return _statistic_program(self.family, how)


@shared_program
def _statistic_program(family: Family, how: Evaluation) -> Callable[..., Array]:
    def inside(rows: Rows) -> dict[str, Array]:
        return {name: how.domain[name].project(column) for name, column in how.typed(rows).items()}

    def run(rows: Rows, matrix: Array, box: Box, gamma: Array, centre: Array) -> Array:
        def vector(record: Mapping[str, Array]) -> Array:
            value = matrix.T @ family.statistic(record).astype(jnp.float64) - centre
            return jnp.where(jnp.isfinite(value), value, 0.0)

        return sum_in_box(rows, inside, vector, box, gamma)

    return jax.jit(run)


def statistic_sum(family: Family, matrix: np.ndarray, gamma: float, n: int) -> StatisticSum:
    """The statistic of n records in the box of its proven range, refused where the sum would leave 64 bits."""
    lo, hi = family.known_ranges(np.asarray(matrix).T)
    if not max(n, 1) * float(np.max(np.abs([lo, hi]))) <= gamma * lattice.SUM_LIMIT:
        raise InvalidInput(_TOO_LARGE)
    return StatisticSum(family, np.asarray(matrix, np.float64), box_of(lo, hi, gamma), gamma, np.zeros(len(lo)))


def float_error(size: int) -> float:
    r"""Relative error of a scalar product of k numbers in float64 (Higham 2002, 3.1: :math:`k 2^{-53}`), with room to spare."""
    return (size + 8) * 2.0**-52


def largest_statistic(family: Family) -> np.ndarray:
    """The largest absolute value of every coordinate of S(y) over the domain."""
    with jax.enable_x64(True):
        eye = jnp.eye(family.size)
        ends = jnp.stack([jax.vmap(family.support)(eye), jax.vmap(family.support)(-eye)])
        return np.asarray(jnp.max(jnp.abs(ends), axis=0))


def evaluation_error(family: Family, matrix: np.ndarray) -> np.ndarray:
    """Bound of the rounding error of each coordinate of one record's A' S(y), and of its proven range, in float64."""
    return np.asarray(4 * float_error(family.size) * (np.abs(matrix).T @ largest_statistic(family)))


# -- scores at a reference point ------------------------------------------------------------------------------------------


class ScoreSum(NamedTuple):
    """Whitened scores A' s(y) at a reference point, each cut to the body there. See `score_sum`."""

    body: Body | Balls
    matrix: np.ndarray
    box: Box
    gamma: float
    diameter: float
    moved: float

    def sum(self, table: LocalEngine) -> Array:
        """Integer sum."""
        run = table.program("score", lambda: _score_program(table.how, table.reference))
        return run(table.records, *map(jax.device_put, self[:4]))


@shared_program
def _score_program(how: Evaluation, reference: ReferenceBounds) -> Callable[..., Array]:
    def run(rows: Rows, body: Body | Balls, matrix: Array, box: Box, gamma: Array) -> Array:
        typed = lambda block: how.typed(block, "float64")  # noqa: E731
        return sum_in_box(rows, typed, lambda record: reference.whitened(body, matrix, record), box, gamma)

    return jax.jit(run, compiler_options=LEAN)


def score_sum(proven: Proven | Searched, matrix: np.ndarray, gamma: float, n: int) -> ScoreSum:
    r"""The scores of n records, refused where their sum would leave 64 bits.

    One record moves the sum by the diameter of the whitened body, :math:`\gamma\sqrt d` for rounding, and what multiplying the
    vector out errs by.
    """
    gradients = proven.gradients
    low, high = np.floor(gradients.low / gamma), np.ceil(gradients.high / gamma)
    if not n * float(np.max(np.abs([low, high]))) <= lattice.SUM_LIMIT:  # also what is not a number
        raise InvalidInput(
            "sums of gradients must fit 64 bits, and over this domain they do not beside the noise; rescale the columns, or use "
            "kernel='guided'."
        )
    reach = float(np.linalg.norm(np.maximum(np.abs(gradients.low), np.abs(gradients.high))))
    moved = gradients.diameter + gamma * len(low) ** 0.5 + 2 * EVALUATION * reach
    body = jax.tree.map(np.asarray, proven.body)  # plain numbers: they may travel to where the records are
    box = Box(low.astype(np.int64), high.astype(np.int64), np.zeros(len(low), np.int64))
    return ScoreSum(body, np.asarray(matrix, np.float64), box, gamma, gradients.diameter, moved)


# -- by rounds --------------------------------------------------------------------------------------------------------


@closed("exact sums and unused noise")
class StatisticRounds:
    """Noisy copies of one exact sum: a family's statistic, or the scores at a reference point.

    Parameters
    ----------
    query, total
        What was summed, and the sum.
    told
        What an answer says that one record can move it by.
    sigmas, pools
        Noise of each copy that a step needs: one, or two where corrections are made from second copies. Both are paid for, or
        neither is given.
    """

    def __init__(
        self,
        query: StatisticSum | ScoreSum,
        total: np.ndarray,
        told: float,
        chains: int,
        sigmas: list[float],
        pools: list[NoisePool],
    ) -> None:
        self._gamma, self._total, self._told, self._chains = query.gamma, total, [told], chains
        self._cost = sum(cost_quanta((query.moved / sigma) ** 2) for sigma in sigmas)
        self.pools = pools

    def quote(self, question: Statistic, covered: int) -> Quote:
        """For every step and chain afresh."""
        dim, copies = len(self._total), len(self.pools)
        rows = _statistics(question, self._chains, copies * dim)

        def answer() -> Answer:
            drawn = [self._total + pool.take(rows * dim).reshape(rows, dim) for pool in self.pools]
            return Answer(self._gamma, np.stack(drawn, axis=1).ravel().tolist(), self._told, YES)

        return Quote(self._cost * rows, rows * copies * dim, answer)


def _statistics(question: Statistic, chains: int, numbers: int) -> int:
    """How many statistics are asked for: one for each chain and step. Others wait while they are drawn, so not too many."""
    if question.chains != chains:
        raise InvalidInput(f"this chain began with {chains} chains, got a question for {question.chains}.")
    if not 1 <= question.steps <= AHEAD:
        raise InvalidInput(f"statistics are given for 1 to {AHEAD} steps at a time, got {question.steps}.")
    if question.steps > 1 and chains * question.steps * numbers > AHEAD_NUMBERS:
        raise InvalidInput(
            f"statistics of several steps are at most {AHEAD_NUMBERS} numbers, got {chains * question.steps * numbers}."
        )
    return chains * question.steps
