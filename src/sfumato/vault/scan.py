"""The compiled heart: propose, charge, answer, decide, many steps to a call.

One `lax.while_loop` runs the kernel's pure functions and the vault's own sums. It stops before the first step whose
charge would pass the allowance, and what it hands out is the transcript and nothing else: per-record values live in the
loop's carry, on the private side, and are never returned to a caller outside `vault/`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sfumato.domain import Domain
from sfumato.kernel import Draw, Kernel, State, accepts
from sfumato.model import Model
from sfumato.model.base import WHOLE
from sfumato.vault import lattice
from sfumato.vault.blocks import Rows, add_up, sum_over_blocks

Array: TypeAlias = Any
Range: TypeAlias = Callable[[Array, Array], tuple[Array, Array]]

CACHE_TERMS = 1 << 22
"""Up to this many (chain, record) pairs, the terms at the current theta are kept; beyond it they are computed again."""
BLOCK = 1 << 13
"""Records summed at a time when nothing is kept, so that memory does not grow with n. Four times as many take no less time, and
four times the memory: what one block needs in between should stay in the processor's cache."""
WIDE: dict[str, bool | int | str] = {"xla_cpu_prefer_vector_width": 512}
"""XLA's options for the chain: as many records to an instruction as the processor has room for (XLA's own choice is half of
it). The arithmetic of a record is the same, and so is every bit of it; a processor without such registers does not mind."""


class Transcript(NamedTuple):
    """The adversary's view of some steps: arrays (step, chain, ...). Every field is public."""

    theta: Array
    theta_prop: Array
    d_n_noisy: Array
    sensitivity: Array
    accepted: Array
    t_noisy: Array = None


class Answered(NamedTuple):
    """What one compiled call gives back."""

    states: State
    transcript: Transcript
    steps: Array
    spent: Array
    needed: Array


@dataclass(frozen=True)
class Question:
    """What is asked, step after step: all public."""

    model: Model
    domain: Mapping[str, Domain]
    kernel: Kernel
    range: Range
    sigma: float
    gamma: float
    n: int
    rows: int
    chains: int
    precision: str

    @property
    def cached(self) -> bool:
        """Whether the terms at the current theta are kept between steps."""
        return self.rows * self.chains <= CACHE_TERMS


def terms(question: Question, records: Rows, theta: Array) -> Array:
    """Log-likelihood of every row under every chain's theta, shape (chain, row).

    Each record is scored alone (`vmap` over single records): a term depends on its own record by construction.
    """
    cast = {
        name: cast_column(question.domain[name], column, question.precision) for name, column in records.columns.items()
    }
    one_chain = jax.vmap(question.model.log_likelihood, in_axes=(None, 0))
    return jax.vmap(one_chain, in_axes=(0, None))(theta.astype(question.precision), cast)


def cast_column(domain: Domain, column: Array, precision: str) -> Array:
    """Type a stored column for evaluation: whole numbers as models see them, reals in the chosen precision."""
    return column.astype(WHOLE if domain.discrete else precision)


def _sum_cached(question: Question, records: Rows, kept: Array, theta: Array, clamp: lattice.Clamp) -> Any:
    proposed = terms(question, records, theta)
    column = lattice.Clamp(*(part[:, None] for part in clamp))
    return add_up(lattice.to_lattice(proposed - kept, column, question.gamma), records, axis=1), proposed


def _sum_blocks(question: Question, records: Rows, old: Array, new: Array, clamp: lattice.Clamp) -> Array:
    """Sum over blocks of records, evaluating both parameters: flat memory, any n."""
    column = lattice.Clamp(*(part[:, None] for part in clamp))

    def block_sum(block: Rows) -> Array:
        change = terms(question, block, new) - terms(question, block, old)
        return add_up(lattice.to_lattice(change, column, question.gamma), block, axis=1)

    zero = jnp.zeros(question.chains, jnp.int64)
    return sum_over_blocks(records, BLOCK, block_sum, zero)


def steps_within(limit: Array, draws: Draw, *noise: Array) -> Array:
    """Steps that a compiled loop may take: as many as were asked for, and no step beyond the last row of noise or draws.

    Noise is used once. JAX reads the last row in the place of every row that is not there, so a loop that went on would give two
    answers with the same noise, and their difference is exact.
    """
    return jnp.minimum(limit, min(len(rows) for rows in (*draws, *noise)))


def compile_scan(question: Question) -> Callable[..., tuple[Answered, Array]]:
    """Build the compiled loop for one question.

    Returns
    -------
    A function (records, states, kept, draws, noise, limit, allowance) -> (Answered, kept). `draws` and `noise` hold one
    row per possible step; at most `limit` steps are taken, and only while their charges stay within `allowance` quanta.
    """
    log_prior, kernel = question.model.log_prior, question.kernel
    sigma, gamma, n = question.sigma, question.gamma, question.n

    def step(records: Any, states: State, kept: Array, draw: Draw, noise: Array, left: Array) -> Any:
        theta_prop = jax.vmap(kernel.propose)(states, draw)
        log_prior_prop = jax.vmap(log_prior)(theta_prop)
        # Chain by chain: measured four times faster than all at once (XLA hands small pieces to threads and waits).
        lo, hi = lax.map(lambda pair: question.range(*pair), (states.theta, theta_prop))
        clamp = lattice.clamp_for(lo, hi, gamma, n)
        # Outside the prior's support the answer is known without asking: rejected, nothing charged.
        possible = jnp.isfinite(log_prior_prop) & jnp.all(jnp.isfinite(theta_prop), axis=-1)
        clamp = clamp._replace(admissible=clamp.admissible & possible)
        charge = lattice.cost(clamp, gamma, sigma)
        affordable = charge <= left

        def answer(_: None) -> Any:
            if question.cached:
                total, proposed = _sum_cached(question, records, kept, theta_prop, clamp)
            else:
                total, proposed = _sum_blocks(question, records, states.theta, theta_prop, clamp), kept
            d_n_noisy = jnp.where(clamp.admissible, (total + noise).astype(jnp.float64) * gamma, jnp.nan)
            ratio = log_prior_prop - states.log_prior
            accepted = accepts(draw, d_n_noisy, ratio, jnp.zeros_like(ratio), sigma) & clamp.admissible
            moved = jax.vmap(kernel.update)(states, theta_prop, log_prior_prop, accepted, draw)
            new_kept = jnp.where(accepted[:, None], proposed, kept) if question.cached else kept
            widths = jnp.where(clamp.admissible, lattice.width(clamp, gamma), 0.0)
            return moved, new_kept, Transcript(moved.theta, theta_prop, d_n_noisy, widths, accepted)

        return affordable, charge, answer

    def run(records: Any, states: State, kept: Array, draws: Draw, noise: Array, limit: Array, allowance: Array) -> Any:
        size, chains, dim = noise.shape[0], question.chains, question.model.dim
        most = steps_within(limit, draws, noise)
        blank = Transcript(
            theta=jnp.zeros((size, chains, dim)),
            theta_prop=jnp.zeros((size, chains, dim)),
            d_n_noisy=jnp.zeros((size, chains)),
            sensitivity=jnp.zeros((size, chains)),
            accepted=jnp.zeros((size, chains), bool),
        )

        def goes_on(carry: Any) -> Array:
            i, *_, alive = carry
            return alive & (i < most)

        def body(carry: Any) -> Any:
            i, states, kept, out, spent, needed, _ = carry
            draw, fresh = jax.tree.map(lambda rows: lax.dynamic_index_in_dim(rows, i, keepdims=False), (draws, noise))
            affordable, charge, answer = step(records, states, kept, draw, fresh, allowance - spent)

            def take(_: None) -> Any:
                moved, new_kept, row = answer(None)
                # Not `at[i].set`, which would look every time whether i < size: four more pieces of work a step.
                written = jax.tree.map(
                    lambda buffer, value: lax.dynamic_update_index_in_dim(buffer, value, i, 0), out, row
                )
                return i + 1, moved, new_kept, written, spent + charge, charge, jnp.asarray(True)

            def stop(_: None) -> Any:
                return i, states, kept, out, spent, charge, jnp.asarray(False)

            return lax.cond(affordable, take, stop, None)

        zero = jnp.zeros((), jnp.int64)
        start = (zero, states, kept, blank, zero, zero, jnp.asarray(True))
        steps, states, kept, out, spent, needed, _ = lax.while_loop(goes_on, body, start)
        return Answered(states, out, steps, spent, needed), kept

    return jax.jit(run, donate_argnums=(2,), compiler_options=WIDE)


def as_device(draws: Draw) -> Draw:
    """Move a chunk of public random numbers onto the device."""
    return Draw(*(jax.device_put(np.asarray(part)) for part in draws))
