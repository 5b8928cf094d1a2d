"""Widths that are stated, not derived: clipping, a Lipschitz constant, a user's own function.

The vault clamps every record's term to the range it is charged for, so none of these can cost privacy. They can cost
exactness: where a term is clamped, the chain targets another posterior.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from sfumato.bounds.bounds import Bounds
from sfumato.bounds.interval import Array
from sfumato.errors import InvalidInput
from sfumato.model.base import Model


def _check_positive(name: str, value: float | None) -> None:
    if value is None or not (0 < float(value) < float("inf")):
        raise InvalidInput(f"{name} must be a positive number, got {value}; it is the largest change one record makes.")


@dataclass(frozen=True)
class Clip:
    r"""Clamp every record's log ratio to a symmetric range.

    Parameters
    ----------
    bound
        The range is [-bound, bound], whatever the step.
    per_step
        The range is :math:`\pm L\lVert\theta'-\theta\rVert_2` in unconstrained coordinates, so that small steps stay
        cheap. Give one of the two.
    """

    bound: float | None = None
    per_step: float | None = None

    def __post_init__(self) -> None:
        if (self.bound is None) == (self.per_step is None):
            raise InvalidInput("Clip takes one of bound= and per_step=, for instance Clip(per_step=2.0).")
        _check_positive("bound" if self.per_step is None else "per_step", self.per_step or self.bound)

    def bounds(self, model: Model) -> Bounds:
        """Build the range."""

        def around_zero(theta: Array, theta_prop: Array) -> tuple[Array, Array]:
            if self.per_step is None:
                reach = jnp.full((), float(self.bound or 0.0))
            else:
                reach = self.per_step * jnp.linalg.norm(theta_prop - theta)
            return -reach, reach

        return Bounds(around_zero, "clipped", proven=False)


@dataclass(frozen=True)
class Lipschitz:
    r"""Declare that one record's log-likelihood has Lipschitz constant L in the unconstrained parameter.

    Parameters
    ----------
    constant
        L in :math:`|\ell(r,\theta')-\ell(r,\theta)|\le L\lVert\theta'-\theta\rVert`.
    norm
        Order of the norm: 1, 2 or infinity.
    """

    constant: float
    norm: float = 2

    def __post_init__(self) -> None:
        _check_positive("the Lipschitz constant", self.constant)
        if self.norm not in (1, 2, float("inf")):
            raise InvalidInput(f"norm must be 1, 2 or infinity, got {self.norm}.")

    def bounds(self, model: Model) -> Bounds:
        """Build the range."""

        def around_zero(theta: Array, theta_prop: Array) -> tuple[Array, Array]:
            reach = self.constant * jnp.linalg.norm(theta_prop - theta, ord=self.norm)
            return -reach, reach

        return Bounds(around_zero, "declared", proven=False)


@dataclass(frozen=True)
class Range:
    """Declare the range by a function.

    Parameters
    ----------
    function
        (theta, theta_prop), each a dict of constrained values by site, to (lo, hi); written with `jax.numpy`. It is
        evaluated both ways round, and the two answers are intersected, so that the width is symmetric.
    """

    function: Callable[[dict[str, Any], dict[str, Any]], tuple[Any, Any]]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InvalidInput(f"Range takes a function of (theta, theta_prop), got {type(self.function).__name__}.")

    def bounds(self, model: Model) -> Bounds:
        """Build the range."""

        def both_ways(theta: Array, theta_prop: Array) -> tuple[Array, Array]:
            here, there = model.constrain(theta), model.constrain(theta_prop)
            lo, hi = self.function(here, there)
            back_lo, back_hi = self.function(there, here)
            low, high = jnp.maximum(lo, -jnp.asarray(back_hi)), jnp.minimum(hi, -jnp.asarray(back_lo))
            undefined = jnp.isnan(low) | jnp.isnan(high)
            return jnp.where(undefined, -jnp.inf, low), jnp.where(undefined, jnp.inf, high)

        return Bounds(both_ways, "declared", proven=False)
