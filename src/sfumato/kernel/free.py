r"""Free moves: coordinates that no record speaks of are moved by the prior alone, after every paid step, at no cost.

The hyperparameters :math:`\eta` of a centred hierarchy enter the prior and not the likelihood, so their full conditional
:math:`\pi(\eta \mid \varphi, y) \propto p(\eta, \varphi)` is public. Each sub-step is Metropolis along one public direction with
a symmetric length, hence reversible; a composition of kernels that each leave the posterior invariant leaves it invariant.
The directions are fixed before the chain. Lengths vary over a factor of ten, so that a conditional that is wider or narrower
elsewhere is still walked through.

References
----------
Tierney 1994 (compositions and mixtures of kernels).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import lax
from scipy.special import ndtri

from sfumato.kernel.base import as_tree

Array: TypeAlias = Any

SUBSTEPS = 16
"""Sub-steps after a paid step, or one along every direction where there are more of those."""
SHORTEST, LONGEST = 0.5, 5.0
"""Lengths are normal times a factor whose logarithm is uniform between these."""


@as_tree("directions", "bound")
@dataclass(frozen=True)
class FreeMoves:
    """Metropolis along public directions that no record speaks of.

    Parameters
    ----------
    directions
        Shape (d, q): columns, one conditional standard deviation long when the plan is good; rows of all other coordinates are 0.
    bound
        Largest coordinate that owners answer for. The paid step never leaves that box, so neither does this one: both must leave
        the same law invariant.
    """

    directions: np.ndarray
    bound: float = math.inf

    @property
    def spoken(self) -> Array:
        """Mask of the coordinates that do not move freely."""
        return jnp.all(jnp.asarray(self.directions) == 0, axis=1)

    @property
    def substeps(self) -> int:
        """Whole turns through the directions."""
        number = self.directions.shape[1]
        return number * max(1, SUBSTEPS // number)

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Signed lengths and logarithms of the deciding uniforms, shape (size, sub-steps, 2)."""
        uniform = rng.random((size, self.substeps, 3))
        factor = SHORTEST * (LONGEST / SHORTEST) ** uniform[..., 1]
        return np.stack([ndtri(uniform[..., 0]) * factor, np.log1p(-uniform[..., 2])], axis=-1)

    def move(
        self, log_prior: Callable[[Array], Array], theta: Array, density: Array, drawn: Array
    ) -> tuple[Array, Array]:
        """Theta after all sub-steps, and the log prior there; `density` is the one at theta."""
        columns = jnp.asarray(self.directions).T
        turns = jnp.tile(jnp.arange(len(columns)), drawn.shape[0] // len(columns))

        def substep(here: tuple[Array, Array], row: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
            theta, density = here
            (length, log_u), turn = row
            there = theta + length * columns[turn]
            density_there = log_prior(there)
            inside = jnp.all(jnp.where(columns[turn] != 0, jnp.abs(there) <= self.bound, True))
            accepted = (log_u < density_there - density) & inside  # a NaN compares false: it stays
            return (jnp.where(accepted, there, theta), jnp.where(accepted, density_there, density)), None

        return lax.scan(substep, (theta, density), (drawn, turns))[0]
