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

from sfumato.domain import Domain
from sfumato.families.base import Family
from sfumato.kernel import Heard, Langevin, Move, State
from sfumato.kernel.loop import Priced
from sfumato.model import Model
from sfumato.privacy.budget import cost_quanta
from sfumato.vault import lattice, sufficient
from sfumato.vault.blocks import Fresh, Rows
from sfumato.vault.sufficient import evaluation_error, float_error, scalar_quanta

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


def exact_scalar(question: LangevinQuestion, total: Array, direction: Array) -> Array:
    """Minus u' W_n of every chain, on the scalar's lattice. Private: never leaves `vault/` without noise."""
    exact = -(direction * question.gamma) @ total.astype(jnp.float64)
    return jnp.round(exact / question.gamma_scalar).astype(jnp.int64)


class Corrections:
    """Statistics and corrections for the compiled loop, from one exact sum (`held`)."""

    def __init__(self, question: LangevinQuestion) -> None:
        self._question, self._widest, self._width = question, question.widest(), scalar_width(question)
        self._cost = lattice.first_of_all(question.first_cost(), question.chains)
        lo, hi = coordinate_ranges(question)
        self._shift = (
            question.n * ((lo + hi) // 2).astype(np.float64) * question.gamma
        )  # of all records together: public

    def first(self, held: Array, fresh: Fresh) -> tuple[Array, Array]:
        """The noisy statistic, afresh for every chain."""
        drawn = (held + fresh.vectors).astype(jnp.float64) * self._question.gamma + self._shift
        return drawn, jnp.asarray(self._cost)

    def price(self, held: Array, states: State, kept: Array, move: Move) -> Priced:
        """Widths and cost; a stray move that would be too dear is not asked about (`TOO_DEAR`)."""
        widths = jax.vmap(self._width)(move.along)
        asked = move.possible & (widths <= self._widest)
        widths = jnp.where(asked, widths, 0.0)
        return Priced(widths, asked, scalar_quanta(widths, asked, self._question.sigma))

    def answer(
        self, held: Array, states: State, kept: Any, move: Move, priced: Priced, fresh: Fresh
    ) -> tuple[Heard, Any]:
        """The scalars, with noise of their own."""
        question, along = self._question, jnp.where(priced.answered[:, None], move.along, 0.0)
        released = exact_scalar(question, held, along) + fresh.scalars
        heard = lattice.heard(released, priced.answered, question.gamma_scalar, question.sigma)
        return lattice.shifted(heard, along, self._shift), kept
