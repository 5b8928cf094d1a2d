r"""Walks on a family without a pass over the records: the scalar query of Algorithm 3.

In an exponential family :math:`d_n = n[\log g(\theta') - \log g(\theta)] + v^\top S_n` with
:math:`v = \varphi(\theta') - \varphi(\theta)`, and only :math:`v^\top S_n` needs the data. :math:`S_n` does not depend on the
parameter: it is summed once, on a lattice, exactly, and a step asks for one number, :math:`v^\top S_n` plus noise. Its cost is
that of the same walk on the records themselves (the width of one record's log ratio); its time does not depend on n.

Sensitivity. Every record is projected onto its declared domain, where the range of :math:`v^\top S(y)` is proven, and each
coordinate of S(y) is clamped to its proven range besides. Rounding S(y) to the lattice moves the scalar by at most
:math:`\tfrac\gamma2\lVert v\rVert_1` a record. The scalar is computed in floating point from exact integers: its worst-case
rounding error (`float_error`, relative to the sum of magnitudes) and the rounding to its own lattice are added to the width
that is charged.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, log2
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.domain import Domain
from sfumato.errors import InvalidInput
from sfumato.families.base import Family
from sfumato.kernel import Heard, Move, State
from sfumato.kernel.loop import Priced
from sfumato.model import Model
from sfumato.privacy.budget import QUANTA_PER_UNIT, ROUNDING_GUARD
from sfumato.vault import lattice
from sfumato.vault.blocks import Rows, add_up, sum_over_blocks
from sfumato.vault.scan import Range, cast_column

Array: TypeAlias = Any

BLOCK = 1 << 15
_TOO_LARGE = (
    "sums of statistics must fit 64 bits, and over this domain they do not beside the noise; move its middle towards zero (take "
    "a public constant off the column) or use kernel='guided' on a NumPyro model."
)
SUM_LOG2 = 50
"""The sum of statistics is at most 2^50 lattice units: float64 holds it exactly."""


def float_error(size: int) -> float:
    r"""Relative error of a scalar product of k numbers in float64 (Higham 2002, 3.1: :math:`k 2^{-53}`), with room to spare."""
    return (size + 8) * 2.0**-52


def evaluation_error(family: Family, root: np.ndarray) -> np.ndarray:
    """Bound of the rounding error of each coordinate of one record's A' S(y), and of its proven range, in float64."""
    with jax.enable_x64(True):
        eye = jnp.eye(family.size)
        ends = jnp.stack([jax.vmap(family.support)(eye), jax.vmap(family.support)(-eye)])
        largest = np.asarray(jnp.max(jnp.abs(ends), axis=0))
    return np.asarray(4 * float_error(family.size) * (np.abs(root).T @ largest))


def project(domain: Domain, column: Array) -> Array:
    """Project records onto their domain: a width is a supremum over the domain and over nothing else."""
    return domain.project(column)


def coordinate_ranges(family: Family, root: np.ndarray, gamma: float) -> tuple[np.ndarray, np.ndarray]:
    """Proven integer range of each coordinate of one record's A' S(y), in units of gamma."""
    lo, hi = family.known_ranges(np.asarray(root).T)
    if not np.all(np.abs([lo, hi]) <= gamma * lattice.SUM_LIMIT):
        raise InvalidInput(_TOO_LARGE)
    return np.floor(lo / gamma).astype(np.int64), np.ceil(hi / gamma).astype(np.int64)


def exact_sum(
    family: Family,
    root: np.ndarray,
    gamma: float,
    n: int,
    domain: Mapping[str, Domain],
    records: Rows,
    precision: str,
) -> Array:
    """Sum over records of A' S(y), less the middle of its range, in units of gamma. Private: never leaves `vault/`."""
    return compile_sum(family, root, gamma, n, domain, precision)(records)


def compile_sum(
    family: Family, root: np.ndarray, gamma: float, n: int, domain: Mapping[str, Domain], precision: str
) -> Callable[[Rows], Array]:
    """Compile `exact_sum`, for one table after another."""
    lo, hi = coordinate_ranges(family, root, gamma)
    if n * float(np.max(np.abs([lo, hi]).astype(np.float64))) > lattice.SUM_LIMIT:
        raise InvalidInput(_TOO_LARGE)
    middle = (lo + hi) // 2
    matrix = jnp.asarray(root)

    def one(record: Mapping[str, Array]) -> Array:
        value = matrix.T @ family.statistic(record).astype(jnp.float64)
        scaled = jnp.clip(value / gamma, -lattice.TERM_LIMIT, lattice.TERM_LIMIT)
        return jnp.clip(jnp.round(scaled).astype(jnp.int64), lo, hi) - middle

    def block_sum(block: Rows) -> Array:
        cast = {name: cast_column(domain[name], column, precision) for name, column in block.columns.items()}
        return add_up(
            jax.vmap(one)({name: project(domain[name], column) for name, column in cast.items()}), block, axis=0
        )

    zero = jnp.zeros(len(middle), jnp.int64)
    return jax.jit(lambda r: sum_over_blocks(r, BLOCK, block_sum, zero))


@dataclass(frozen=True)
class ScalarQuestion:
    """What is asked, step after step: all public."""

    family: Family
    model: Model
    range: Range
    sigma: float
    n: int

    @property
    def gamma(self) -> float:
        """Lattice of the answers."""
        return lattice.choose_gamma(self.sigma, self.n)

    @property
    def gamma_sum(self) -> float:
        """Lattice of the sum of statistics: as fine as float64 allows."""
        with jax.enable_x64(True):
            eye = jnp.eye(self.family.size)
            largest = float(jnp.max(jnp.abs(jax.vmap(self.family.support)(jnp.concatenate([eye, -eye])))))
        return float(2.0 ** (ceil(log2(max(largest, 1e-300) * self.n)) - SUM_LOG2))


class Known(NamedTuple):
    """What is public about a walk's pairs: the direction of every chain's scalar, and its width."""

    v: Array
    public: Array


class Scalars:
    """Scalars of a walk on a family for the compiled loop: no pass over the records.

    `held` is the exact sum of statistics, `fresh` a scalar of noise for each chain.
    """

    def __init__(self, question: ScalarQuestion) -> None:
        family, gamma = question.family, question.gamma_sum
        self._question, self._gamma_sum = question, gamma
        lo, hi = coordinate_ranges(family, np.eye(family.size), gamma)
        self._middle, self._half = (lo + hi) // 2 * gamma, (hi - lo + 2) / 2 * gamma
        self._own_error = evaluation_error(family, np.eye(family.size))

    def _parts(self, theta: Array) -> tuple[Array, Array]:
        values = self._question.model.constrain(theta)
        return self._question.family.natural(values), self._question.family.log_g(values)

    def _charged(self, theta: Array, theta_prop: Array, v: Array) -> Array:
        """What one record can move the scalar by, rounding included."""
        question = self._question
        low, high = question.range(theta, theta_prop)
        error = float_error(question.family.size) * question.n * jnp.sum(jnp.abs(v) * self._half)
        evaluated = 2 * jnp.sum(jnp.abs(v) * self._own_error)
        rounded = self._gamma_sum * jnp.sum(jnp.abs(v)) + question.gamma
        return (high - low) * (1 + 1e-9) + rounded + 2 * error + evaluated

    def price(self, held: Array, states: State, kept: Array, move: Move) -> Priced:
        """Widths and cost.

        A pair too far apart to be summed in 64 bits is rejected unasked, as is one outside the prior's support. Both rules are
        symmetric in the pair.
        """
        question = self._question
        phi, log_g = jax.vmap(self._parts)(states.theta)
        phi_prop, log_g_prop = jax.vmap(self._parts)(move.theta_prop)
        v, public = phi_prop - phi, question.n * (log_g_prop - log_g)
        widths = jax.vmap(self._charged)(states.theta, move.theta_prop, v)
        reach = question.n * jnp.sum(jnp.abs(v) * self._half, axis=1) / question.gamma
        asked = move.possible & jnp.isfinite(widths) & jnp.isfinite(public) & (reach < lattice.SUM_LIMIT)
        widths, v = jnp.where(asked, widths, 0.0), jnp.where(asked[:, None], v, 0.0)
        return Priced(widths, asked, scalar_quanta(widths, asked, question.sigma), Known(v, public))

    def answer(
        self, held: Array, states: State, kept: Any, move: Move, priced: Priced, fresh: Array
    ) -> tuple[Heard, Any]:
        """The scalars, with noise, and what is public of the log ratio."""
        question, known = self._question, priced.clamp
        exact = (known.v * self._gamma_sum) @ held.astype(jnp.float64)
        released = jnp.round(exact / question.gamma).astype(jnp.int64) + fresh
        heard = lattice.heard(released, priced.answered, question.gamma, question.sigma)
        return heard._replace(d_n_noisy=heard.d_n_noisy + question.n * (known.v @ self._middle) + known.public), kept


def scalar_quanta(widths: Array, asked: Array, sigma: float) -> Array:
    """Whole quanta of scalars of all chains; beyond 64 bits it saturates."""
    quanta = jnp.where(asked, jnp.ceil((widths / sigma) ** 2 * (ROUNDING_GUARD * QUANTA_PER_UNIT)), 0.0)
    fits = quanta.sum() < 2.0**62
    return jnp.where(fits, jnp.where(fits, quanta, 0.0).astype(jnp.int64).sum(), lattice.BEYOND)
