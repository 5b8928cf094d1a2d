r"""Scalars linear in a family's sum of statistics: no pass over the records.

:math:`W_n = \sum_i A^\top S(y_i)` does not depend on the parameter. It is summed once (`vector.StatisticSum`); a step asks
for :math:`u^\top W_n` plus noise. Langevin asks for minus that product, for a direction u that depends on the first answer. A
walk asks with :math:`u = \varphi(\theta') - \varphi(\theta)`, A the identity: in an exponential family
:math:`d_n = n[\log g(\theta') - \log g(\theta)] + u^\top S_n`. It costs what the same walk on the records costs.

Sensitivity. The range of :math:`u^\top A^\top S(y)` is proven over the domain. Rounding a record's statistic moves the scalar
by at most :math:`\tfrac\gamma2\lVert u\rVert_1`. The scalar is computed in floating point from exact integers: its worst-case
rounding error (`float_error`, relative to the sum of magnitudes) and the rounding to its own lattice are added to the width.
"""

from collections.abc import Callable
from math import ceil, log2
from typing import Any, ClassVar, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.errors import InvalidInput
from sfumato.families.base import Family
from sfumato.kernel import Heard, Langevin, Move, State
from sfumato.kernel.base import as_tree
from sfumato.kernel.loop import Priced
from sfumato.kernel.shared_programs import shared_program
from sfumato.model import Model
from sfumato.privacy.budget import cost_quanta
from sfumato.protocol import questions
from sfumato.vault import lattice
from sfumato.vault.blocks import Fresh
from sfumato.vault.closed import closed
from sfumato.vault.engine import LocalEngine
from sfumato.vault.noise import NoisePool
from sfumato.vault.packing import pack_lists, unpack, x64
from sfumato.vault.queries.base import PricedScalars, Quote, Range, flags_of, numbers_of, packed_price
from sfumato.vault.queries.vector import StatisticSum, evaluation_error, float_error, largest_statistic, statistic_sum

Array: TypeAlias = Any

SUM_LOG2 = 50
"""A walk's sum of statistics is at most 2^50 lattice units: float64 holds it exactly."""
TOO_DEAR = 1000.0
"""A move whose second query would cost more than so many first ones is rejected unasked: one stray proposal near the border of
the parameter space would otherwise end the run. The width is the same in both directions, so the chain stays reversible."""


@as_tree("_numbers", "gamma", "sigma", "n", "_half", "_own_error", "shift", fixed=("_family",))
class Linear:
    """Scalars of n records, in directions that whoever asks may choose: all public.

    Parameters
    ----------
    statistic
        What was summed.
    gamma, sigma
        Lattice and noise of the scalars.
    """

    def __init__(self, statistic: StatisticSum, gamma: float, sigma: float, n: int) -> None:
        self._family, self._numbers, self.gamma, self.sigma, self.n = statistic.family, statistic[1:], gamma, sigma, n
        lo, hi, middle = statistic.box
        self._half = (hi - lo + 2) / 2 * statistic.gamma
        self._own_error = evaluation_error(statistic.family, statistic.matrix)
        self.shift = n * middle.astype(np.float64) * statistic.gamma
        """What the statistics of all records together were shifted by."""

    @property
    def statistic(self) -> StatisticSum:
        """What was summed."""
        return StatisticSum(self._family, *self._numbers)

    def proven(self, direction: Array) -> Array:
        """Proven width of one record's product with every chain's direction."""
        root, family = jnp.asarray(self.statistic.matrix), self.statistic.family
        return jax.vmap(lambda u: family.width(root @ u))(direction)

    def widths(self, proven: Array, direction: Array) -> Array:
        """What one record can move every chain's scalar by, rounding included."""
        size = jnp.abs(direction)
        error = float_error(len(self._half)) * self.n * jnp.sum(size * self._half, axis=1)
        error += jnp.sum(size * self._own_error, axis=1)
        return proven * (1 + 1e-9) + self.statistic.gamma * jnp.sum(size, axis=1) + 2 * error + self.gamma

    def price(self, direction: Array, proven: Array, possible: Array, widest: float = np.inf) -> Priced:
        """Widths and cost.

        A scalar wider than `widest`, or too large for 64 bits, is not asked for. Both rules are symmetric in the pair.
        """
        widths = self.widths(proven, direction)
        reach = self.n * jnp.sum(jnp.abs(direction) * self._half, axis=1) / self.gamma
        asked = possible & jnp.isfinite(widths) & (widths <= widest) & (reach < lattice.SUM_LIMIT)
        widths = jnp.where(asked, widths, 0.0)
        return Priced(
            widths, asked, lattice.quanta_of(widths, asked, self.sigma), jnp.where(asked[:, None], direction, 0.0)
        )

    def exact(self, total: Array, direction: Array) -> Array:
        """Every chain's scalar on its lattice. Private: never leaves `vault/` without noise."""
        product = (direction * self.statistic.gamma) @ total.astype(jnp.float64)
        return jnp.round(product / self.gamma).astype(jnp.int64)


def langevin_scalars(statistic: StatisticSum, sigma: float, gamma: float, n: int, first_sigma: float) -> "Corrections":
    """Scalars of Langevin steps whose first answer has noise `first_sigma`."""
    first = (statistic.moved / first_sigma) ** 2
    return Corrections(Linear(statistic, gamma, sigma, n), cost_quanta(first), float(sigma * (TOO_DEAR * first) ** 0.5))


class Corrections(NamedTuple):
    """Langevin's scalars, what one chain's first answer costs, and the width that is still asked for (`TOO_DEAR`)."""

    linear: Linear
    first_cost: int
    widest: float

    def price(self, direction: Array, possible: Array) -> Priced:
        """Widths and cost; of a stray move that would be too dear nothing is asked."""
        return self.linear.price(direction, self.linear.proven(direction), possible, self.widest)


# -- for the compiled loop ----------------------------------------------------------------------------------------------


@as_tree("linear", fixed=("_model", "_range"))
class WalkSource:
    """Scalars of a walk on a family. The loop holds the exact sum of statistics."""

    first: ClassVar[None] = None
    options: ClassVar[None] = None

    def __init__(self, family: Family, model: Model, range_: Range, sigma: float, n: int) -> None:
        # As fine as float64 allows.
        gamma = float(2.0 ** (ceil(log2(max(float(largest_statistic(family).max()), 1e-300) * n)) - SUM_LOG2))
        self.linear = Linear(
            statistic_sum(family, np.eye(family.size), gamma, n), lattice.choose_gamma(sigma, n), sigma, n
        )
        self._model, self._range = model, range_

    @property
    def noises(self) -> list[tuple[float, int, int | None]]:
        """One scalar for each chain and step."""
        return [(self.linear.sigma / self.linear.gamma, 1, 1)]

    def enter(self, table: LocalEngine, states: State) -> tuple[Array, Array]:
        """What the loop holds. Private."""
        return jax.device_put(table.sum(self.linear.statistic)), jnp.zeros((len(states.theta), 0))

    def _natural(self, theta: Array) -> tuple[Array, Array]:
        values, family = self._model.constrain(theta), self.linear.statistic.family
        return family.natural(values), family.log_g(values)

    def price(self, held: Array, states: State, kept: Array, move: Move) -> Priced:
        """Widths and cost."""
        phi, log_g = jax.vmap(self._natural)(states.theta)
        phi_prop, log_g_prop = jax.vmap(self._natural)(move.theta_prop)
        public = self.linear.n * (log_g_prop - log_g)
        low, high = jax.vmap(self._range)(states.theta, move.theta_prop)
        priced = self.linear.price(phi_prop - phi, high - low, move.possible & jnp.isfinite(public))
        return priced._replace(clamp=(priced.clamp, public))

    def answer(
        self, held: Array, states: State, kept: Any, move: Move, priced: Priced, fresh: Fresh
    ) -> tuple[Heard, Any]:
        """The scalars, with noise, and what is public of the log ratio."""
        linear, (direction, public) = self.linear, priced.clamp
        released = linear.exact(held, direction) + fresh.scalars
        heard = lattice.heard(released, priced.answered, linear.gamma, linear.sigma)
        return heard._replace(d_n_noisy=heard.d_n_noisy + direction @ linear.shift + public), kept


@as_tree("corrections", "_cost", fixed=())
class LangevinSource:
    """Statistics and corrections of Langevin on a family. The loop holds the exact sum of statistics."""

    options: ClassVar[None] = None

    def __init__(self, family: Family | None, kernel: Langevin, sigma: float, n: int, chains: int) -> None:
        if family is None:
            raise InvalidInput("kernel='langevin' needs an exponential family such as sf.families.Bernoulli().")
        first, gamma = kernel.proposal_sigma, lattice.choose_gamma(sigma, n)
        self.statistic = statistic_sum(family, kernel.matrix, lattice.choose_gamma(first, n), n)
        self.corrections = langevin_scalars(self.statistic, sigma, gamma, n, first)
        self._cost = lattice.first_of_all(self.corrections.first_cost, chains)
        # No pass over the records a step: OpenDP's sampler would be all that one waits for.
        self.noises = [(first / self.statistic.gamma, kernel.matrix.shape[1], 1), (sigma / gamma, 1, 1)]

    def enter(self, table: LocalEngine, states: State) -> tuple[Array, Array]:
        """What the loop holds. Private."""
        return jax.device_put(table.sum(self.statistic)), jnp.zeros((len(states.theta), 0))

    def first(self, held: Array, fresh: Fresh) -> tuple[Array, Array]:
        """The noisy statistic, afresh for every chain."""
        linear = self.corrections.linear
        drawn = (held + fresh.vectors).astype(jnp.float64) * linear.statistic.gamma + linear.shift
        return drawn, jnp.asarray(self._cost)

    def price(self, held: Array, states: State, kept: Array, move: Move) -> Priced:
        """Widths and cost."""
        return self.corrections.price(move.along, move.possible)

    def answer(
        self, held: Array, states: State, kept: Any, move: Move, priced: Priced, fresh: Fresh
    ) -> tuple[Heard, Any]:
        """The scalars, with noise of their own."""
        linear = self.corrections.linear
        released = fresh.scalars + linear.exact(held, -priced.clamp)
        heard = lattice.heard(released, priced.answered, linear.gamma, linear.sigma)
        return lattice.shifted(heard, priced.clamp, linear.shift), kept


# -- by rounds --------------------------------------------------------------------------------------------------------


@shared_program
def _price_alone(chains: int, dim: int) -> Callable[..., Array]:
    """Compile price and exact scalar in one call: the scalar waits until it is paid for and has its noise."""

    def run(corrections: Corrections, total: Array, numbers: Array) -> Array:
        asked, direction = unpack(numbers, (bool, (chains,)), (float, (chains, dim)))
        priced = corrections.price(direction, asked)
        return packed_price(priced, corrections.linear.exact(total, -priced.clamp))

    return jax.jit(run)


@closed("exact sums and unused noise")
class LinearRounds:
    """Corrections of Langevin on a family: scalars of one exact sum."""

    def __init__(self, corrections: Corrections, total: np.ndarray, chains: int, pool: NoisePool) -> None:
        linear, dim = corrections.linear, len(total)
        self._gamma, self._chains, self._dim, self.pools = linear.gamma, chains, dim, [pool]

        self._price = _price_alone(chains, dim)
        with x64():
            self._numbers, self._total = jax.device_put((corrections, total))

    def quote(self, question: questions.Linear, covered: int) -> Quote:
        """Price the scalars."""
        asked = flags_of(question.asked, self._chains)
        direction = numbers_of("direction", question.direction, self._chains, self._dim)
        with x64():
            row = self._price(self._numbers, self._total, pack_lists(asked, direction))
        priced = PricedScalars.read(row, self._chains, 1)
        return priced.quote(self._gamma, lambda: priced.whole[0], self.pools[0])
