"""What holds for one record near a reference point: a body its vector is cut to, and a range its scalars lie in."""

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.bounds.body import Body, body_at, record_vector
from sfumato.bounds.gradients import GradientSet, gradient_set
from sfumato.bounds.interval import Array
from sfumato.bounds.remainder import Anchor, Remainder
from sfumato.domain import Domain
from sfumato.errors import Unsupported
from sfumato.model.base import Model
from sfumato.model.trials import as_model_input
from sfumato.tools.quick_jit import quick_jit

FINER = 8
"""Cells for the vectors at the reference point, over those for the scalars of every step: they are looked at once."""

KEPT = 4
"""Reference points remembered: a plan has one before its pilot and one after."""

TRIED_RECORDS = 64
"""Made-up records at which vectors are compared with the model's gradient: half inside the domain, half at its ends."""
TRIED_PARAMETERS = 4
"""At so many draws from the prior."""
ROUNDING = 1e-6, 1e-9
"""Of what two ways to compute a gradient may differ by: a part of this record's, and of the longest at that parameter."""


class Proven(NamedTuple):
    """What holds at one reference point: of scalars, and of vectors."""

    anchor: Anchor
    gradients: GradientSet
    body: Body

    @property
    def searched(self) -> bool:
        """Found by a search, not proven."""
        return False


class ReferenceBounds(Protocol):
    """What is asked of bounds around a reference point, however they are known: the vault enforces them."""

    def __hash__(self) -> int: ...

    @property
    def possible(self) -> bool:
        """Whether the model can be bounded at all."""
        ...

    @property
    def why_not(self) -> str:
        """Why it cannot; empty where it can."""
        ...

    def check(self) -> None:
        """Raise `Unsupported` if it cannot."""
        ...

    def at(self, centre: np.ndarray, matrix: np.ndarray) -> Any:
        """What holds there: `anchor`, `gradients`, `body`; and whether it was `searched` for."""
        ...

    def vector(self, body: Any, record: Mapping[str, Array]) -> Array:
        """Vector of one record, as both queries use it: its gradient, cut to the body."""
        ...

    def whitened(self, body: Any, matrix: Array, record: Mapping[str, Array]) -> Array:
        """The same, whitened: two of them are no further apart than `gradients.diameter`."""
        ...

    def range(self, anchor: Any, theta: Array, theta_prop: Array, lag: Array) -> tuple[Array, Array]:
        """Range of one record's second-order scalar; pure JAX, in 64-bit mode."""
        ...


class Reference:
    """Bounds for Langevin around reference points of one model; built when first asked for.

    Raises
    ------
    Unsupported
        On first use, if the model has an operation without a proven second derivative, or if what the vault would sum is not
        the model's gradient.
    """

    def __init__(self, model: Model, domain: Mapping[str, Domain]) -> None:
        self._model, self._domain = model, domain
        self._prove = lru_cache(maxsize=KEPT)(self._prove_at)

    @cached_property
    def remainder(self) -> Remainder:
        """The bound of second-order scalars."""
        with jax.enable_x64(True):
            return Remainder(self._model, self._domain)

    def check(self) -> None:
        """Raise `Unsupported` now, if the model cannot be bounded, or is not what the bounds are about."""
        _ = self.remainder
        if self._disagrees:
            names = self.record_functions
            told = f" (of the record it takes {', '.join(map(repr, names))})" if names else ""
            raise Unsupported(
                "kernel='langevin' needs each record's vector to be the gradient of the model's own program, and on made-up "
                f"records it is not{told}; use kernel='guided', or rewrite the model without such an operation.",
                primitive=names[0] if len(names) == 1 else None,
            )

    @property
    def possible(self) -> bool:
        """Whether the model can be bounded at all."""
        return not self.why_not

    @cached_property
    def why_not(self) -> str:
        """Why the model cannot be bounded; empty where it can."""
        try:
            self.check()
        except Unsupported as error:
            return str(error)
        return ""

    @property
    def record_functions(self) -> list[str]:
        """Operations of the program on the record alone, by name."""
        return self.remainder.record_functions

    @cached_property
    def _disagrees(self) -> bool:
        """Whether the vectors of both queries differ from the model's gradient by more than rounding, on made-up records.

        Records are drawn inside the domain and at its ends, parameters from the prior: none of them is on a kink of the
        program, but for those where its gradient is not a number. There is nothing to compare with then.
        """
        rng, model = np.random.default_rng(0), self._model
        half = TRIED_RECORDS // 2
        table = {
            name: np.concatenate([as_model_input(d, d.sample(rng, half)), as_model_input(d, d.extremes(rng, half))])
            for name, d in self._domain.items()
        }

        def both(theta: Array, body: Body, record: Mapping[str, Array]) -> tuple[Array, Array]:
            return self.vector(body, record), jax.grad(model.log_likelihood)(theta, record)

        with jax.enable_x64(True):
            thetas = [jnp.asarray(model.sample_prior(jax.random.key(i)), jnp.float64) for i in range(TRIED_PARAMETERS)]
            bodies = [body_at(self._anchors(theta)[1]) for theta in thetas]
            compare = quick_jit(jax.vmap(both, (None, None, 0)))
            found = [compare(theta, body, table) for theta, body in zip(thetas, bodies, strict=True)]
        return any(_apart(np.asarray(ours), np.asarray(theirs)) for ours, theirs in found)

    @cached_property
    def _anchors(self) -> Any:
        return quick_jit(lambda theta: (self.remainder.anchor(theta), self.remainder.anchor(theta, FINER, even=True)))

    def at(self, centre: np.ndarray, matrix: np.ndarray) -> Proven:
        """Prove what can be proven at a reference point; a planner asks about the same one again and again."""
        point, root = np.asarray(centre, np.float64), np.asarray(matrix, np.float64)
        return self._prove(point.tobytes(), root.tobytes())

    def _prove_at(self, point: bytes, root: bytes) -> Proven:
        centre = np.frombuffer(point)
        with jax.enable_x64(True):
            coarse, fine = self._anchors(jax.device_put(centre))
            gradients = gradient_set(self.remainder, fine, np.frombuffer(root).reshape(len(centre), -1))
            return Proven(coarse, gradients, body_at(fine))

    def vector(self, body: Body, record: Mapping[str, Array]) -> Array:
        """Vector of one record, as both queries use it: its gradient, cut to the body; pure JAX, in 64-bit mode."""
        return record_vector(self.remainder.program, self.remainder.region, body, record)

    def whitened(self, body: Body, matrix: Array, record: Mapping[str, Array]) -> Array:
        """The same, whitened."""
        return matrix.T @ self.vector(body, record)

    def range(self, anchor: Anchor, theta: Array, theta_prop: Array, lag: Array) -> tuple[Array, Array]:
        """Range of one record's second-order scalar; pure JAX, in 64-bit mode."""
        return self.remainder.range(anchor, theta, theta_prop, lag)


def _apart(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Whether two computations of gradients, shape (record, d), differ where the second is a number."""
    usual = np.all(np.isfinite(theirs), axis=1)
    if not usual.any():
        return False
    ours, theirs = ours[usual], theirs[usual]
    own = np.abs(theirs).max(axis=1, keepdims=True)
    return not bool(np.all(np.abs(ours - theirs) <= ROUNDING[0] * own + ROUNDING[1] * own.max()))
