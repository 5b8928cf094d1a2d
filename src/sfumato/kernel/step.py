"""One step of all chains, in two halves: what both drivers run, the compiled loop (`kernel.loop`) and the loop over rounds."""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from sfumato.kernel.base import Kernel
from sfumato.kernel.penalty import Array, Draw, Heard, Move, State, decide, propose


def propose_all(
    kernel: Kernel,
    log_prior: Callable[[Array], Array],
    states: State,
    draw: Draw,
    first: Array,
    each: bool = False,
) -> Move:
    """Propose a move of every chain; see `penalty.propose`.

    `first` has a row for every chain, or is None. `each` says that chains have a kernel each: its arrays then have a row for
    every chain.
    """

    def one(kernel: Kernel, state: State, draw: Draw, first: Array) -> Move:
        return propose(kernel, log_prior, state, draw, first)

    rows = states, draw, first
    if not kernel.chain_by_chain:
        moves: Move = jax.vmap(one, (0 if each else None, 0, 0, 0))(kernel, *rows)
    elif each:
        moves = lax.map(lambda row: one(*row), (kernel, *rows))
    else:
        moves = lax.map(lambda row: one(kernel, *row), rows)
    return moves


def decide_all(
    kernel: Kernel,
    log_prior: Callable[[Array], Array],
    states: State,
    draw: Draw,
    move: Move,
    heard: Heard,
    each: bool = False,
) -> tuple[State, Array]:
    """Decide about every chain's move, and move what is free; see `penalty.decide`."""

    def one(kernel: Kernel, *row: Any) -> tuple[State, Array]:
        return decide(kernel, log_prior, *row)

    decided: tuple[State, Array] = jax.vmap(one, (0 if each else None, 0, 0, 0, 0))(kernel, states, draw, move, heard)
    return decided
