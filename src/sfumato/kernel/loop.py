"""The compiled driver: many penalty steps to a call, as long as their answers are paid for.

One `lax.while_loop` proposes, asks a `Source`, decides. It stops before the first step whose charge would pass the allowance.
What it hands out is the transcript and nothing else. Where the answers come from is the source's affair: exact sums and fresh
noise inside a vault; copies that were released before, from a bundle.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from sfumato.kernel.base import Kernel
from sfumato.kernel.penalty import Array, Draw, Heard, Move, State
from sfumato.kernel.shared_programs import shared_program
from sfumato.kernel.step import decide_all, propose_all


class Transcript(NamedTuple):
    """The adversary's view of some steps: arrays (step, chain, ...). Every field is public.

    Attributes
    ----------
    sensitivity
        What one record can move the answer by, as it was charged; 0 where nothing was asked.
    t_noisy, copy_noisy
        Langevin only: the noisy statistic that moved the chain, and the second copy of it that a correction was made from.
    widths
        Several owners only: what each of them charged for, (step, chain, owner).
    """

    theta: Array
    theta_prop: Array
    d_n_noisy: Array
    sensitivity: Array
    accepted: Array
    sigma: Array
    t_noisy: Array = None
    copy_noisy: Array = None
    widths: Array = None


class Priced(NamedTuple):
    """What a question about every chain's move costs: all public.

    Attributes
    ----------
    widths, answered
        Of each chain: what is charged for, and whether there is an answer at all.
    quanta
        Of all chains together.
    clamp
        What the source needs besides, to answer.
    """

    widths: Array
    answered: Array
    quanta: Array
    clamp: Any = None


First: TypeAlias = Callable[[Any, Any], tuple[Array, Array]]
"""(held, fresh) -> answers to the first queries of a step, a row for each chain, and their quanta."""


class Source(Protocol):
    """Where a compiled chain gets its answers: its numbers are arguments of the compiled loop (`kernel.base.as_tree`).

    `held` is what it holds of the records, `fresh` what is used up by one step.
    """

    @property
    def first(self) -> First | None:
        """Answers the first query of every chain; None for walks."""
        ...

    def price(self, held: Any, states: State, kept: Any, move: Move) -> Priced:
        """Price of what the moves still lack."""
        ...

    def answer(self, held: Any, states: State, kept: Any, move: Move, priced: Priced, fresh: Any) -> tuple[Heard, Any]:
        """The answers; and what to keep of every chain that goes where it proposed (arrays, chains first)."""
        ...


class Looped(NamedTuple):
    """What one compiled call gives back.

    `needed`: quanta of what did not fit, if the loop stopped before its limit.
    """

    states: State
    transcript: Transcript
    steps: Array
    spent: Array
    needed: Array


def steps_within(limit: Array, draws: Draw, fresh: Any) -> Array:
    """Steps that the loop may take: as many as were asked for, and no step beyond the last row of draws or of what is used once.

    JAX reads the last row in the place of every row that is not there. A loop that went on would give two answers with the same
    noise, and their difference is exact.
    """
    return jnp.minimum(limit, min(len(rows) for rows in jax.tree.leaves((draws, fresh))))


def compile_loop(
    source: Source,
    log_prior: Callable[[Array], Array],
    *,
    copies: bool = False,
    each: bool = False,
    options: Mapping[str, bool | int | str] | None = None,
) -> Callable[..., tuple[Looped, Any]]:
    """Build the compiled loop.

    A second chain on the same model finds the program of the first, whatever its numbers are: noise, steps, matrices, reference
    point.

    Parameters
    ----------
    copies
        Whether answers are made from second copies of the statistic, which the transcript shows.
    each
        Whether chains have a kernel each.
    options
        Of the compiler.

    Returns
    -------
    A function (held, kernel, states, kept, draws, fresh, limit, allowance) -> (Looped, kept). `draws` and `fresh` have one row
    per possible step; at most `limit` steps are taken, and only while their charges stay within `allowance` quanta.

    A step whose second query does not fit stops the loop: its first answer has been released and charged, and is kept in the
    state (`pending`), so that the step goes on where it stopped. It is never drawn anew, which would favour cheap moves, and
    never counted as a rejection.
    """
    return partial(_program(log_prior, copies, each, tuple(sorted((options or {}).items()))), source)


@shared_program
def _program(
    log_prior: Callable[[Array], Array], copies: bool, each: bool, options: tuple[tuple[str, Any], ...]
) -> Callable[..., tuple[Looped, Any]]:
    """The loop, and whatever was compiled of it in this process: a function of a source and of what `compile_loop` says."""

    def step(
        source: Source, held: Any, kernel: Kernel, states: State, kept: Any, draw: Draw, fresh: Any, left: Array
    ) -> Any:
        heard_first, charge = None, jnp.zeros((), jnp.int64)
        if source.first is not None:
            waiting = jnp.isfinite(states.pending[0, 0])
            drawn, quanta = source.first(held, fresh)
            heard_first, charge = jnp.where(waiting, states.pending, drawn), jnp.where(waiting, 0, quanta)
        move = propose_all(kernel, log_prior, states, draw, heard_first, each)
        priced = source.price(held, states, kept, move)
        for_first = charge <= left
        # Compared apart: a cost beyond 64 bits is the largest integer there is, and adding to it would wrap round.
        for_both = for_first & (priced.quanta <= left - charge)

        def take() -> Any:
            heard, proposed = source.answer(held, states, kept, move, priced, fresh)
            moved, accepted = decide_all(kernel, log_prior, states, draw, move, heard, each)
            after = jax.tree.map(lambda new, old: jnp.where(_column(accepted, new), new, old), proposed, kept)
            row = Transcript(
                moved.theta,
                move.theta_prop,
                heard.d_n_noisy,
                priced.widths,
                accepted,
                heard.sigma,
                heard_first,
                heard.copy,
            )
            return moved, after, row

        return take, for_first, for_both, charge, priced.quanta, heard_first

    def run(
        source: Source, held: Any, kernel: Kernel, states: State, kept: Any, draws: Draw, fresh: Any, limit: Array,
        allowance: Array,
    ) -> tuple[Looped, Any]:  # fmt: skip
        size, most = len(draws.log_u), steps_within(limit, draws, fresh)
        out = _blank(size, states, source.first is not None, copies)

        def goes_on(carry: Any) -> Array:
            return carry[-1] & (carry[0] < most)

        def body(carry: Any) -> Any:
            i, states, kept, out, spent, _, _ = carry
            draw, now = jax.tree.map(lambda rows: lax.dynamic_index_in_dim(rows, i, keepdims=False), (draws, fresh))
            take, for_first, for_both, charge, second, heard_first = step(
                source, held, kernel, states, kept, draw, now, allowance - spent
            )

            def taken() -> Any:
                moved, after, row = take()
                # Not `at[i].set`, which would look every time whether i < size: four more pieces of work a step.
                written = jax.tree.map(lambda rows, row: lax.dynamic_update_index_in_dim(rows, row, i, 0), out, row)
                return i + 1, moved, after, written, spent + charge + second, second, jnp.asarray(True)

            def stopped() -> Any:
                waiting = states
                if heard_first is not None:
                    waiting = states._replace(pending=jnp.where(for_first, heard_first, states.pending))
                paid, needed = jnp.where(for_first, charge, 0), jnp.where(for_first, second, charge)
                return i, waiting, kept, out, spent + paid, needed, jnp.asarray(False)

            return lax.cond(for_both, taken, stopped)

        zero = jnp.zeros((), jnp.int64)
        start = (zero, states, kept, out, zero, zero, jnp.asarray(True))
        steps, states, kept, out, spent, needed, _ = lax.while_loop(goes_on, body, start)
        return Looped(states, out, steps, spent, needed), kept

    return jax.jit(run, donate_argnums=(4,), compiler_options=dict(options) if options else None)


def _column(accepted: Array, values: Array) -> Array:
    return accepted.reshape(-1, *[1] * (values.ndim - 1))


def _blank(size: int, states: State, first: bool, copies: bool) -> Transcript:
    chains, dim = states.theta.shape
    wide, narrow = jnp.zeros((size, chains, dim)), jnp.zeros((size, chains))
    return Transcript(
        wide, wide, narrow, narrow, narrow.astype(bool), narrow, wide if first else None, wide if copies else None
    )
