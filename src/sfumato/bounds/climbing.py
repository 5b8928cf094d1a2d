r"""The range of a record's scalar, searched for: values on made-up records, the furthest of them moved on, and a margin.

One step is that of Frank and Wolfe (1956): real columns go towards the corner of the domain that the scalar's slope points to,
all or part of the way, if that is further. Whole-numbered columns stay, so the made-up records must have their values. Pure JAX:
the search is made again for every pair of parameters.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

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
    """Moves records of a domain to where a scalar is larger: their real columns, but for those that are to stay."""

    def __init__(self, domain: Mapping[str, Domain], still: Collection[str] = ()) -> None:
        self._domain = dict(domain)
        self.reals = [name for name, d in domain.items() if not d.discrete and name not in still]

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
            start = {name: jnp.asarray(column)[which] for name, column in records.items()}
            reached = jax.vmap(lambda s, r: self.climb(lambda x: s * scalar(x), r)[1])(sign, start)
            low, high = jnp.minimum(low, jnp.min(sign * reached)), jnp.maximum(high, jnp.max(sign * reached))
        room = MARGIN * (high - low)
        return low - room, high + room

    def climb(self, value: Callable[..., Array], record: Mapping[str, Array]) -> tuple[dict[str, Array], Array]:
        """Move one record on `STEPS` times; where it ends, and its value there. A loop: one step is compiled."""

        def once(_: Array, held: tuple[dict[str, Array], Array]) -> tuple[dict[str, Array], Array]:
            return self.step(value, held[0])

        return jax.lax.fori_loop(0, STEPS, once, (dict(record), value(record)))

    def step(self, value: Callable[..., Array], record: Mapping[str, Array]) -> tuple[dict[str, Array], Array]:
        """Move one record's real columns towards the corner that the slope points to; stay where that is no further."""
        fixed = dict(record)
        reals = {name: fixed.pop(name) for name in self.reals}
        corner = {}
        for name, direction in jax.grad(lambda r: value(fixed | r))(reals).items():
            d = self._domain[name]
            usable = jnp.where(jnp.all(jnp.isfinite(direction)), direction, 0.0)
            corner[name] = d.clamp(jax.grad(d.support)(usable))
        movers = [self.reals] if len(self.reals) == 1 else [self.reals, *([name] for name in self.reals)]
        tried = [reals] + [
            reals | {k: (1 - part) * reals[k] + part * corner[k] for k in moving} for moving in movers for part in PARTS
        ]
        stacked = {k: jnp.stack([r[k] for r in tried]) for k in reals}
        values = jax.vmap(lambda r: value(fixed | r))(stacked)  # compiled once for all that are tried
        # The record itself may have no finite value: then it stays, and its value is what it is.
        best = jnp.argmax(jnp.where(jnp.isfinite(values), values, -jnp.inf))
        return fixed | {k: column[best] for k, column in stacked.items()}, values[best]


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
