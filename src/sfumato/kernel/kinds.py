r"""Kernels by name, and what a planner asks of each: pure functions of public numbers, as the kernels are.

A planner looks at a standard normal posterior, one coordinate of it: `OnNormal` says where a step leads from x and at what log
ratio. What the step is worth and what noise it stands follows from that (`planner.efficiency`), so a kernel that is registered
here is planned, sampled and reported like any other.
"""

from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np

from sfumato.errors import InvalidInput
from sfumato.kernel.base import Kernel

AUTO = "auto"
"""Stands for every kernel, where one is asked for by its name."""


class OnNormal(NamedTuple):
    """What one step does to one coordinate of a standard normal: a quadrature over its moves.

    Attributes
    ----------
    after
        Where the moves lead, shape (position, move).
    weight
        Probability of each move, shape (move,).
    log_ratio
        Exact log acceptance ratio of each, shape (position, move).
    """

    after: np.ndarray
    weight: np.ndarray
    log_ratio: np.ndarray


class Kind(Kernel, Protocol):
    """A kernel that can be planned for. All of this is about the class, before there is a matrix or a step.

    Attributes
    ----------
    whole
        Whether a step moves all coordinates; else it moves along one column of the matrix.
    persistent
        Whether it keeps its direction when it is accepted, and turns round when it is not (a lifted chain).
    ordinary_share
        Share of the one-shot limit that it gets where the posterior is ordinary: for the upper end of a plan's band.
    """

    whole: ClassVar[bool]
    persistent: ClassVar[bool]
    ordinary_share: ClassVar[float]

    @classmethod
    def on_normal(cls, x: np.ndarray, step: float) -> OnNormal:
        """A step from the positions x, shape (position, 1)."""
        ...

    @classmethod
    def others(cls, step: float, dim: int) -> float:
        """Variance that the other coordinates add to the log ratio, dim of them in all."""
        ...

    @classmethod
    def log_ratio_variance(cls, steps: np.ndarray, roughness: float) -> float:
        """Variance of the log ratio of a proposal, from the step in every coordinate and how rough the covariance is known."""
        ...


K = TypeVar("K", bound=type[Any])
KINDS: dict[str, tuple[type[Kind], ...]] = {}
"""All kernels by name. A name may stand for several that differ in their second query: a study answers one of them."""


def register(kind: K) -> K:
    """Class decorator: the kernel can be asked for by its name, and is looked at where the planner has the choice.

    Raises
    ------
    InvalidInput
        The name is taken.
    """
    there = KINDS.get(kind.name, ())
    if kind.name == AUTO or any(other.second == kind.second for other in there):
        raise InvalidInput(f"a kernel needs a name of its own, and {kind.name!r} is taken; choose another.")
    KINDS[kind.name] = (*there, kind)
    return kind


def kinds(name: str = AUTO) -> list[type[Kind]]:
    """Kernels of a name, those without a first query first; of "auto", all."""
    named = [kind for known, same in KINDS.items() if name in (AUTO, known) for kind in same]
    return sorted(named, key=lambda kind: kind.first)


def asks_first(name: str) -> bool:
    """Whether kernels of this name ask twice in a step: then their step is a size h, and their noise that of a correction."""
    return any(kind.first for kind in kinds(name))
