"""What is proven about one record near a reference point: gradients apart by so much, scalars within such a range."""

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np

from sfumato.domain import Domain
from sfumato.errors import Unsupported
from sfumato.haste import hastily
from sfumato.model.base import Model
from sfumato.sensitivity.gradients import GradientSet, gradient_set
from sfumato.sensitivity.interval import Array
from sfumato.sensitivity.pointwise import record_gradient
from sfumato.sensitivity.remainder import Anchor, Remainder

FINER = 8
"""Cells for the gradients at the reference point, over those for the scalars of every step: they are looked at once."""

KEPT = 4
"""Reference points remembered: a plan has one before its pilot and one after."""


class Proven(NamedTuple):
    """Bounds at one reference point."""

    anchor: Anchor
    gradients: GradientSet


class Reference:
    """Proven bounds for Langevin around reference points of one model; built when first asked for.

    Raises
    ------
    Unsupported
        On first use, if the model has an operation without a proven second derivative.
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
        """Raise `Unsupported` now, if the model cannot be bounded."""
        _ = self.remainder

    @property
    def possible(self) -> bool:
        """Whether the model can be bounded at all."""
        return not self.why_not

    @property
    def why_not(self) -> str:
        """Why the model cannot be bounded; empty where it can."""
        try:
            self.check()
        except Unsupported as error:
            return str(error)
        return ""

    @cached_property
    def _anchors(self) -> Any:
        return hastily(lambda theta: (self.remainder.anchor(theta), self.remainder.anchor(theta, FINER)))

    def at(self, centre: np.ndarray, matrix: np.ndarray) -> Proven:
        """Prove what can be proven at a reference point; a planner asks about the same one again and again."""
        point, root = np.asarray(centre, np.float64), np.asarray(matrix, np.float64)
        return self._prove(point.tobytes(), root.tobytes())

    def _prove_at(self, point: bytes, root: bytes) -> Proven:
        centre = np.frombuffer(point)
        with jax.enable_x64(True):
            coarse, fine = self._anchors(jax.device_put(centre))
            return Proven(coarse, gradient_set(self.remainder, fine, np.frombuffer(root).reshape(len(centre), -1)))

    def gradient(self, theta: Array, record: Mapping[str, Array]) -> Array:
        """Gradient of one record, by the program that the bounds are proven for; pure JAX, in 64-bit mode."""
        return record_gradient(self.remainder.program, theta, record)

    def range(self, anchor: Anchor, theta: Array, theta_prop: Array, lag: Array) -> tuple[Array, Array]:
        """Range of one record's second-order scalar; pure JAX, in 64-bit mode."""
        return self.remainder.range(anchor, theta, theta_prop, lag)
