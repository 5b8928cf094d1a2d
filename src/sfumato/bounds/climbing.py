r"""The range of a record's scalar, searched for: values on made-up records, the furthest of them moved on, and a margin.

One step is that of Frank and Wolfe (1956): real columns go towards the corner of the domain that the scalar's slope points to,
all or part of the way, if that is further. Whole-numbered columns stay, so the made-up records must have their values. Pure JAX:
the search is made again for every pair of parameters.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sfumato.bounds.interval import Array
from sfumato.domain import Domain
from sfumato.model.trials import as_model_input

MARGIN = 0.1
"""Of the width met, added on either side of a range."""
CLIMBED = 6
"""Records at either end that are moved on."""
STEPS = 3
"""Times that they are moved."""
PARTS = (0.03, 0.1, 0.3, 1.0)
"""Of the way that are tried, by each real column alone and by all together: the furthest record may lie inside of one."""


class Climber:
    """Moves records of a domain to where a scalar is larger."""

    def __init__(self, domain: Mapping[str, Domain]) -> None:
        self._domain = dict(domain)
        self.reals = [name for name, d in domain.items() if not d.discrete]
        movers = [self.reals] if len(self.reals) == 1 else [self.reals, *([name] for name in self.reals)]
        self._shares = {
            name: np.array([0.0] + [part if name in moving else 0.0 for moving in movers for part in PARTS])
            for name in self.reals
        }
        """Of each real column, how much of its way it goes in everything that is tried."""

    def typed(self, batch: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Columns as the vault types them: whole numbers, and float64."""
        return {
            name: np.asarray(batch[name]).astype(d.dtype if d.discrete else np.float64)
            for name, d in self._domain.items()
        }

    def widest(self, scalar: Callable[..., Array], records: Mapping[str, Array], met: Array) -> tuple[Array, Array]:
        """Least and largest value, given those of the records, with a margin; of the negated scalar they are these negated."""
        low, high = jnp.min(met), jnp.max(met)
        if self.reals:
            which = jnp.concatenate([jax.lax.top_k(sign * met, CLIMBED)[1] for sign in (1.0, -1.0)])
            sign = jnp.repeat(jnp.array([1.0, -1.0]), CLIMBED)
            moved = {name: jnp.asarray(column)[which] for name, column in records.items()}

            def turn(_: Array, so_far: tuple[dict[str, Array], Array, Array]) -> tuple[dict[str, Array], Array, Array]:
                moved, low, high = so_far
                moved, values = jax.vmap(lambda s, r: self.step(lambda x: s * scalar(x), r))(sign, moved)
                return moved, jnp.minimum(low, jnp.min(sign * values)), jnp.maximum(high, jnp.max(sign * values))

            # A loop, and all that is tried at once: written out one after the other it is forty times the program to compile.
            _, low, high = lax.fori_loop(0, STEPS, turn, (moved, low, high))
        room = MARGIN * (high - low)
        return low - room, high + room

    def step(self, value: Callable[..., Array], record: Mapping[str, Array]) -> tuple[dict[str, Array], Array]:
        """Move one record's real columns towards the corner that the slope points to; stay where that is no further."""
        fixed = dict(record)
        reals = {name: fixed.pop(name) for name in self.reals}
        corner = {}
        for name, direction in jax.grad(lambda r: value(fixed | r))(reals).items():
            d = self._domain[name]
            usable = jnp.where(jnp.all(jnp.isfinite(direction)), direction, 0.0)
            corner[name] = d.clamp(jax.grad(d.support)(usable))
        tried = {}
        for name, shares in self._shares.items():
            share = shares.reshape(-1, *[1] * jnp.ndim(reals[name]))
            tried[name] = jnp.where(share > 0, (1 - share) * reals[name] + share * corner[name], reals[name])
        values = jax.vmap(lambda r: value(fixed | r))(tried)
        # The record itself may have no finite value: then it stays, and its value is what it is.
        best = jnp.argmax(jnp.where(jnp.isfinite(values), values, -jnp.inf))
        return fixed | {name: column[best] for name, column in tried.items()}, values[best]


def mixed(domain: Mapping[str, Domain], rng: np.random.Generator, size: int) -> dict[str, np.ndarray]:
    """Records of which each column is extreme or anywhere in its domain, as chance has it."""
    batch = {}
    for name, d in domain.items():
        ends = rng.random((size, *[1] * len(d.shape))) < 0.5
        batch[name] = as_model_input(d, np.where(ends, d.extremes(rng, size), d.sample(rng, size)))
    return batch


def joined(batches: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Batches one after the other."""
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
