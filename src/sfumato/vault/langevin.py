r"""The private side of Langevin for families: two noisy answers a step, from one exact integer sum.

:math:`W_n = \sum_i A^\top S(y_i)` does not depend on the parameter, so it is summed once, on the lattice, and a step
costs no pass over the records. The first answer of a step is W_n plus discrete Gaussian noise. The second is a scalar,
:math:`-u^\top W_n`, for a direction u that depends on the first answer; it gets fresh noise of its own.

Sensitivity. A record is projected onto its domain, where `Family.whitened_diameter` and `Family.support` are proven; each
coordinate is clamped to its proven range besides. Rounding
a record's vector to the lattice moves it by at most :math:`\gamma\sqrt d/2`. The scalar is computed in floating point
from exact integers: its worst-case rounding error (`sufficient.float_error`, relative to the sum of magnitudes) and the
rounding to its own lattice are added to the width that is charged.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sfumato.domain import Domain
from sfumato.families.base import Family
from sfumato.kernel import Draw, State, accepts
from sfumato.kernel.langevin import Langevin
from sfumato.model import Model
from sfumato.privacy.budget import QUANTA_PER_UNIT, ROUNDING_GUARD, cost_quanta
from sfumato.vault import lattice, sufficient
from sfumato.vault.blocks import Rows
from sfumato.vault.scan import Answered, Transcript, steps_within
from sfumato.vault.sufficient import evaluation_error, float_error

Array: TypeAlias = Any

TOO_DEAR = 1000.0
"""A move whose second query would cost more than so many first ones is rejected unasked: one stray proposal near the border of
the parameter space would otherwise end the run. The width is the same in both directions, so the chain stays reversible."""


@dataclass(frozen=True)
class LangevinQuestion:
    """What is asked, step after step: all public."""

    family: Family
    model: Model
    kernel: Langevin
    sigma: float
    n: int
    chains: int

    @property
    def gamma(self) -> float:
        """Lattice of the first query."""
        return lattice.choose_gamma(self.kernel.proposal_sigma, self.n)

    @property
    def gamma_scalar(self) -> float:
        """Lattice of the second query."""
        return lattice.choose_gamma(self.sigma, self.n)

    def moved(self) -> float:
        """The most that one record can move a copy of the statistic by, rounding included."""
        diameter = self.family.known_diameter(self.kernel.matrix)
        evaluated = float(np.linalg.norm(evaluation_error(self.family, self.kernel.matrix)))
        return float(diameter * (1 + 1e-9) + self.gamma * len(self.kernel.matrix) ** 0.5 + 2 * evaluated)

    def first_mu_squared(self) -> float:
        """Mu squared of one chain's first query: the same at every step."""
        return (self.moved() / self.kernel.proposal_sigma) ** 2

    def first_cost(self) -> int:
        """Quanta of one chain's first query."""
        return cost_quanta(self.first_mu_squared())

    def widest(self) -> float:
        """The width of a second query that is still asked: see `TOO_DEAR`. Public, and the same in both directions of a move."""
        return float(self.sigma * (TOO_DEAR * self.first_mu_squared()) ** 0.5)


def coordinate_ranges(question: LangevinQuestion) -> tuple[np.ndarray, np.ndarray]:
    """Proven integer range of each coordinate of one record's A' S(y), in units of gamma."""
    return sufficient.coordinate_ranges(question.family, question.kernel.matrix, question.gamma)


def exact_sum(question: LangevinQuestion, domain: Mapping[str, Domain], records: Rows, precision: str) -> Array:
    """Sum over records of A' S(y), less the middle of its range, in units of gamma. Private: never leaves `vault/`."""
    return compile_sum(question, domain, precision)(records)


def compile_sum(question: LangevinQuestion, domain: Mapping[str, Domain], precision: str) -> Callable[[Rows], Array]:
    """Compile `exact_sum`, for one table after another."""
    root, gamma = question.kernel.matrix, question.gamma
    return sufficient.compile_sum(question.family, root, gamma, question.n, domain, precision)


def scalar_width(question: LangevinQuestion) -> Callable[[Array], Array]:
    """Function direction -> what one record can move the second query's scalar by, rounding included."""
    lo, hi = coordinate_ranges(question)
    half = jnp.asarray((hi - lo + 2) / 2 * question.gamma)
    root = jnp.asarray(question.kernel.matrix)
    own_error = jnp.asarray(evaluation_error(question.family, question.kernel.matrix))

    def width(direction: Array) -> Array:
        proven = question.family.width(root @ direction)
        error = float_error(len(lo)) * question.n * jnp.sum(jnp.abs(direction) * half)
        error += jnp.sum(jnp.abs(direction) * own_error)
        return proven * (1 + 1e-9) + question.gamma * jnp.sum(jnp.abs(direction)) + 2 * error + question.gamma_scalar

    return width


def scalar_quanta(widths: Array, asked: Array, sigma: float) -> Array:
    """Whole quanta of the second queries of all chains; beyond 64 bits it saturates."""
    quanta = jnp.where(asked, jnp.ceil((widths / sigma) ** 2 * (ROUNDING_GUARD * QUANTA_PER_UNIT)), 0.0)
    fits = quanta.sum() < 2.0**62
    return jnp.where(fits, jnp.where(fits, quanta, 0.0).astype(jnp.int64).sum(), lattice.BEYOND // 2)


def exact_scalar(question: LangevinQuestion, total: Array, direction: Array) -> Array:
    """Minus u' W_n of every chain, on the scalar's lattice. Private: never leaves `vault/` without noise."""
    exact = -(direction * question.gamma) @ total.astype(jnp.float64)
    return jnp.round(exact / question.gamma_scalar).astype(jnp.int64)


def compile_langevin(question: LangevinQuestion) -> Callable[..., Answered]:  # noqa: PLR0915 (one loop, told in order)
    """Build the compiled loop: (total, states, draws, noise, scalar_noise, limit, allowance) -> Answered.

    A step stops the loop if its second query does not fit: the first answer has then been released and charged, and is
    kept in the state (`pending`), so that the step goes on where it stopped. It is never drawn anew, which would favour
    cheap moves, and never counted as a rejection.
    """
    kernel, sigma, chains = question.kernel, question.sigma, question.chains
    gamma, gamma_scalar = question.gamma, question.gamma_scalar
    lo, hi = coordinate_ranges(question)
    middle, second_width = (lo + hi) // 2, scalar_width(question)
    shift = jnp.asarray(question.n * middle.astype(np.float64) * gamma)
    first = lattice.first_of_all(question.first_cost(), chains)
    widest = question.widest()
    dim = len(middle)

    def step(total: Array, states: State, draw: Draw, noise: Array, scalar_noise: Array, left: Array) -> Any:
        waiting = jnp.isfinite(states.pending[0, 0])
        fresh = (total + noise).astype(jnp.float64) * gamma + shift
        t_noisy = jnp.where(waiting, states.pending, fresh)
        charge = jnp.where(waiting, 0, first)
        theta_prop = jax.vmap(kernel.propose)(states, t_noisy)
        log_prior_prop = jax.vmap(question.model.log_prior)(theta_prop)
        turn = jax.vmap(kernel.turn)(states.theta, theta_prop)
        widths = jax.vmap(second_width)(turn.direction)
        asked = jnp.isfinite(log_prior_prop) & jnp.isfinite(turn.log_ratio) & (widths <= widest)
        widths = jnp.where(asked, widths, 0.0)
        second = scalar_quanta(widths, asked, sigma)

        direction = jnp.where(asked[:, None], turn.direction, 0.0)
        released = exact_scalar(question, total, direction) + scalar_noise
        d_n_noisy = jnp.where(asked, released.astype(jnp.float64) * gamma_scalar - direction @ shift, jnp.nan)
        accepted = accepts(draw, d_n_noisy, turn.log_ratio, jnp.zeros(chains), sigma) & asked
        moved = State(
            jnp.where(accepted[:, None], theta_prop, states.theta),
            jnp.where(accepted, log_prior_prop, states.log_prior),
            states.direction,
            jnp.full_like(states.pending, jnp.nan),
        )
        row = Transcript(moved.theta, theta_prop, d_n_noisy, widths, accepted)
        enough_for_first = charge <= left
        enough = enough_for_first & (second <= left - charge)  # not their sum, which could wrap round
        return enough_for_first, enough, charge, second, moved, row, t_noisy

    def run(
        total: Array, states: State, draws: Draw, noise: Array, scalar_noise: Array, limit: Array, allowance: Array
    ) -> Any:
        size, most = noise.shape[0], steps_within(limit, draws, noise, scalar_noise)
        blank = Transcript(
            theta=jnp.zeros((size, chains, dim)),
            theta_prop=jnp.zeros((size, chains, dim)),
            d_n_noisy=jnp.zeros((size, chains)),
            sensitivity=jnp.zeros((size, chains)),
            accepted=jnp.zeros((size, chains), bool),
        )
        statistics = jnp.zeros((size, chains, dim))

        def goes_on(carry: Any) -> Array:
            return carry[-1] & (carry[0] < most)

        def body(carry: Any) -> Any:
            i, states, out, stats, spent, needed, _ = carry
            draw = jax.tree.map(lambda a: a[i], draws)
            enough_for_first, enough, charge, second, moved, row, t_noisy = step(
                total, states, draw, noise[i], scalar_noise[i], allowance - spent
            )
            held = states._replace(pending=jnp.where(enough_for_first, t_noisy, states.pending))
            states = jax.tree.map(lambda a, b: jnp.where(enough, a, b), moved, held)
            out = jax.tree.map(lambda buffer, value: buffer.at[i].set(jnp.where(enough, value, buffer[i])), out, row)
            stats = stats.at[i].set(jnp.where(enough_for_first, t_noisy, stats[i]))
            paid = jnp.where(enough, charge + second, jnp.where(enough_for_first, charge, 0))
            needed = jnp.where(enough_for_first, second, charge)
            return i + enough, states, out, stats, spent + paid, needed, enough

        zero = jnp.zeros((), jnp.int64)
        start = (zero, states, blank, statistics, zero, zero, jnp.asarray(True))
        steps, states, out, stats, spent, needed, _ = lax.while_loop(goes_on, body, start)
        return Answered(states, out._replace(t_noisy=stats), steps, spent, needed)

    return jax.jit(run)
