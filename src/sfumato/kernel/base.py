"""What every kernel is: a frozen description with four pure functions on one chain.

A kernel is a tree of numbers to JAX (`as_tree`): step and matrices are arguments of compiled programs, so a second chain with
other numbers compiles nothing, and chains may have a kernel each.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.kernel.penalty import Array, Draw, State, Weighed

if TYPE_CHECKING:
    from sfumato.kernel.free import FreeMoves

K = TypeVar("K")


class Kernel(Protocol):
    """What a chain needs of a kernel; see `sfumato.kernel.walks.RandomWalk` for the smallest one."""

    name: ClassVar[str]
    first: ClassVar[bool]
    """Whether a move needs the answer to a first query: the noisy statistic, whose noise is the proposal's."""
    second: ClassVar[str]
    """What is asked about a move: a "ratio" of likelihoods, a number "linear" in the statistic, a "remainder" of second order."""
    chain_by_chain: ClassVar[bool]
    """Whether moves are computed one chain after another: faster for long programs, which XLA else cuts into small pieces."""

    @property
    def free(self) -> "FreeMoves | None":
        """How coordinates that no record speaks of are moved after every step; None where there are none."""
        ...

    @property
    def matrix(self) -> np.ndarray:
        """Step matrix; columns are directions."""
        ...

    @property
    def step(self) -> float:
        """Step length in units of the matrix."""
        ...

    @property
    def proposal_sigma(self) -> float:
        """Noise in each coordinate of the answer to the first query; infinite where none is asked."""
        ...

    @property
    def copy_sigma(self) -> float:
        """Noise in each coordinate of a second copy of the statistic, where the second query is for one; else 0."""
        ...

    @property
    def numbers_a_step(self) -> int:
        """Numbers that a step of one chain releases."""
        ...

    @property
    def trust_radius(self) -> float | None:
        """Radius of the region that it keeps to, in units of the matrix; None where it goes everywhere."""
        ...

    def public_part(self, log_prior: Callable[[Array], Array]) -> Callable[[Array], Array]:
        """What is public of the log posterior: the prior, and more where the model's own form says more."""
        ...

    def draw(self, rng: "Streams", size: int) -> Draw:
        """Public random numbers for `size` steps of one chain, from that chain's streams."""
        ...

    def propose(self, state: State, draw: Draw, first: Array) -> Array:
        """The proposed parameter, from the answer to the first query if there is one."""
        ...

    def weigh(self, state: State, theta_prop: Array, log_prior_prop: Array) -> Weighed:
        """What is known of the log acceptance ratio without asking."""
        ...

    def inside(self, theta: Array) -> Array:
        """Whether a parameter lies where the kernel goes: public, and the chain's target is restricted to it."""
        ...

    def update(self, state: State, theta_prop: Array, log_prior_prop: Array, accepted: Array, draw: Draw) -> State:
        """The next state."""
        ...


class Streams:
    """The public stream of one chain: independent generators for steps, directions, decisions and free moves."""

    def __init__(self, seed: np.random.SeedSequence) -> None:
        self.steps, self.directions, self.decisions, self.free = (np.random.default_rng(s) for s in seed.spawn(4))

    def log_u(self, size: int) -> np.ndarray:
        """Logarithms of uniforms on (0, 1]."""
        return np.log1p(-self.decisions.random(size))


def as_tree(*arrays: str, fixed: tuple[str, ...] | None = None) -> Callable[[type[K]], type[K]]:
    """Class decorator: the named attributes are numbers to JAX, arguments of every program that is given such an object.

    What is fixed is part of a program, and has a hash: by default all other fields of a dataclass. What JAX hands back while it
    traces was checked when it was made, so it is not checked again.
    """

    def register(kind: type[K]) -> type[K]:
        others = fixed
        if others is None:
            others = tuple(field.name for field in fields(kind) if field.name not in arrays)  # type: ignore[arg-type]

        def flatten(made: K) -> tuple[list[Any], tuple[Any, ...]]:
            return [getattr(made, name) for name in arrays], tuple(getattr(made, name) for name in others)

        def unflatten(rest: tuple[Any, ...], leaves: Any) -> K:
            made = object.__new__(kind)
            for name, value in (*zip(arrays, leaves, strict=True), *zip(others, rest, strict=True)):
                object.__setattr__(made, name, value)
            return made

        jax.tree_util.register_pytree_node(kind, flatten, unflatten)
        return kind

    return register


def move_if(accepted: Array, state: State, theta_prop: Array, log_prior_prop: Array) -> State:
    """The state after a decision; its direction stays, and nothing is pending any more."""
    return State(
        theta=jnp.where(accepted, theta_prop, state.theta),
        log_prior=jnp.where(accepted, log_prior_prop, state.log_prior),
        direction=state.direction,
        pending=None if state.pending is None else jnp.full_like(state.pending, jnp.nan),
    )
