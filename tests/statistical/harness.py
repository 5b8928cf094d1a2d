"""Chains on real vaults with a budget that never ends, and what they are compared with."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from sfumato.kernel import Kernel, Langevin, PublicStream, State
from sfumato.study.target import Study, make_study
from sfumato.vault import records
from sfumato.vault.noise import Source
from sfumato.vault.vault import Vault


def run_chains(
    study: Study,
    data: dict[str, Any],
    kernel: Kernel | Langevin,
    *,
    sigma: float,
    chains: int,
    steps: int,
    start: np.ndarray,
    seed: int = 0,
    source: Callable[[float], Source] | None = None,
) -> np.ndarray:
    """Unconstrained draws (step, chain, dimension) from the vault itself: real sums, real noise."""
    table = records.load(data, study.domain)
    vault = Vault(table, study, Endless(), source=source)  # type: ignore[arg-type]
    stream = PublicStream(seed, chains)
    states = starting_states(study, kernel, stream, start, chains)
    vault.begin(kernel, sigma, states)
    try:
        parts: list[np.ndarray] = []
        done, size = 0, min(steps, 250)
        while done < steps:
            chunk = vault.chunk(states, stream.peek(kernel, size), min(size, steps - done), 2**62)
            assert chunk.steps > 0
            states = chunk.states
            stream.consume(chunk.steps)
            parts.append(chunk.transcript.theta)
            done += chunk.steps
    finally:
        vault.close()
    return np.concatenate(parts)


def starting_states(
    study: Study, kernel: Kernel | Langevin, stream: PublicStream, start: np.ndarray, chains: int
) -> State:
    """All chains at one point."""
    with jax.enable_x64(True):
        theta = jnp.broadcast_to(jnp.asarray(start, dtype=float), (chains, study.model.dim))
        direction = jnp.asarray(stream.directions(kernel.matrix.shape[1]))
        pending = jnp.full(theta.shape, jnp.nan) if isinstance(kernel, Langevin) else None
        return State(theta, jax.jit(jax.vmap(study.model.log_prior))(theta), direction, pending)


class Endless:
    """An account that always pays: the law of a chain is tested on more steps than any budget buys."""

    left = 2**62

    def reserve_up_to(self, quanta: int, at_least: int) -> "Endless":
        return self

    def reserve(self, quanta: int) -> "Endless":
        return self

    def settle(self, spent: int) -> None:
        pass

    quanta = 2**62


def study_of(model: Callable[..., Any], domain: dict[str, Any], sensitivity: Any = "certify") -> Study:
    return make_study(model, domain, sensitivity)


def grid_posterior(study: Study, data: dict[str, Any], lo: float, hi: float, size: int = 20_001) -> tuple[Any, Any]:
    """One-dimensional posterior on a grid of the unconstrained parameter: points and probabilities."""
    with jax.enable_x64(True):
        points = jnp.linspace(lo, hi, size)
        one = jax.vmap(study.model.log_likelihood, in_axes=(None, 0))
        table = {k: jnp.asarray(v) for k, v in data.items()}

        def log_density(t: Any) -> Any:
            return study.model.log_prior(t[None]) + one(t[None], table).sum()

        values = jax.jit(lambda at: jax.lax.map(log_density, at, batch_size=512))(points)
        weight = jnp.exp(values - values.max())
        return np.asarray(points), np.asarray(weight / weight.sum())


def moment_p_values(draws: np.ndarray, points: np.ndarray, weight: np.ndarray) -> list[float]:
    """Test mean, spread and both tails: chain averages are independent, so a t-test across chains is exact enough."""
    mean = float(points @ weight)
    sd = float(np.sqrt((points - mean) ** 2 @ weight))
    functions: list[Callable[[np.ndarray], np.ndarray]] = [
        lambda x: (x - mean) / sd,
        lambda x: ((x - mean) / sd) ** 2,
        lambda x: (x > mean + sd) * 1.0,
        lambda x: (x < mean - sd) * 1.0,
    ]
    out = []
    for function in functions:
        truth = float(function(points) @ weight)
        averages = function(draws).mean(axis=0)
        out.append(float(stats.ttest_1samp(averages, truth).pvalue))
    return out
