"""How long does a draw of noise take, and how long does a run wait for it?

    python benchmarks/noise.py [--opendp 16384] [--exact 1048576] [--repeat 5]

OpenDP's sampler and ours, side by side, same law, same machine, one thread. Each source draws in blocks; the best of
`--repeat` blocks is printed (the others measure what else the machine did). The last column drains a pool as fast as it can,
so it shows what handing out costs on top.

Then chunks of four chains as `sf.sample` asks for them, Langevin and a walk at d = 1 and d = 20, where a step is no pass over
the records and the noise is the largest part of the work: the share of the time (compilation left out) in which the chain
stood still because its noise was not drawn yet, and what it would be if nothing were drawn ahead.
"""

import argparse
from time import perf_counter

import jax
import jax.numpy as jnp
from efficiency import DELTA, Endless, N, Problem, bernoulli, bernoullis, normals

from sfumato.kernel import Langevin, PublicStream, State
from sfumato.planner import build_kernel, make_plan
from sfumato.study.target import make_study
from sfumato.vault import records
from sfumato.vault.gaussian import ExactSource
from sfumato.vault.noise import NoisePool, OpenDPSource, Source
from sfumato.vault.vault import Vault

SCALES = {"1.5": 1.5, "2^30 * 1.37": 2.0**30 * 1.37, "2^45": 2.0**45}
BLOCK = 2**16


def microseconds_a_draw(source: Source, draws: int, block: int, repeat: int) -> float:
    """Return the best of `repeat` timings of `draws` draws in blocks."""
    best = float("inf")
    for _ in range(repeat):
        started = perf_counter()
        for _ in range(max(1, draws // block)):
            source.draw(block)
        best = min(best, (perf_counter() - started) / (max(1, draws // block) * block))
    return 1e6 * best


def microseconds_from_pool(source: Source, draws: int, k: int = 1024) -> float:
    """Return the time per draw of a consumer that does nothing but take."""
    with NoisePool(source, block=BLOCK) as pool:
        pool.take(BLOCK)
        started = perf_counter()
        for _ in range(draws // k):
            pool.take(k)
        return 1e6 * (perf_counter() - started) / (draws // k * k)


def waiting(
    problem: Problem, kernel: str, epsilon: float, chunks: int = 12, chains: int = 4, size: int = 4096
) -> float:
    """Print the share of a run's time that went by waiting for noise."""
    study = make_study(problem.family, kernel=kernel)
    vault = Vault(
        records.load(problem.data, study.domain),
        study,
        Endless(),
    )
    plan = make_plan(study, n=N, epsilon=epsilon, delta=DELTA, kernel=kernel, chains=chains)
    walk, stream = build_kernel(study, plan), PublicStream(0, chains)
    with jax.enable_x64(True):
        theta = jnp.broadcast_to(jnp.asarray(plan.belief.centre), (chains, len(plan.belief.centre)))
        pending = jnp.full(theta.shape, jnp.nan) if isinstance(walk, Langevin) else None
        directions = jnp.asarray(stream.directions(theta.shape[1]))
        states = State(theta, jax.vmap(study.model.log_prior)(theta), directions, pending)
    vault.begin(walk, plan.sigma, states)
    states = vault.chunk(states, stream.peek(walk, size), size, 2**62).states  # compiles
    stream.consume(size)
    before, began = vault.waited, perf_counter()
    for _ in range(chunks):
        states = vault.chunk(states, stream.peek(walk, size), size, 2**62).states
        stream.consume(size)
    took, waited = perf_counter() - began, vault.waited - before
    vault.close()
    draws = chunks * size * chains * (1 + (len(walk.matrix) if isinstance(walk, Langevin) else 0))
    source, began = ExactSource(2.0**36), perf_counter()
    source.draw(min(draws, 2**20))
    alone = (perf_counter() - began) * draws / min(draws, 2**20)
    step = 1e6 * took / (chunks * size)
    name = f"{problem.name}, {kernel}"
    print(
        f"{name:<36} d = {len(problem.mean):<3} {step:6.1f} us for {chains} chains, waiting {waited / took:6.1%} of it "
        f"(noise alone: {alone / (took - waited + alone):.0%})"
    )
    return waited / took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--opendp", type=int, default=2**14, help="draws per timing of OpenDP's source")
    parser.add_argument("--exact", type=int, default=2**20, help="draws per timing of ExactSource")
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    print(f"{'scale':>12} {'OpenDP us':>10} {'exact us':>10} {'ratio':>7} {'exact, from a pool us':>22}")
    for name, scale in SCALES.items():
        reference = microseconds_a_draw(OpenDPSource(scale), options.opendp, options.opendp, options.repeat)
        exact = microseconds_a_draw(ExactSource(scale), options.exact, BLOCK, options.repeat)
        pooled = microseconds_from_pool(ExactSource(scale), options.exact)
        print(f"{name:>12} {reference:10.3f} {exact:10.4f} {reference / exact:7.0f} {pooled:22.4f}")
    shares = [
        waiting(problem, kernel, epsilon)
        for problem, epsilon in ((bernoulli(), 0.3), (bernoullis(), 1.5), (normals(), 1.5))
        for kernel in ("langevin", "guided")
    ]
    print(f"longest wait: {max(shares):.0%} of a run (at most a third is promised)")
    return int(max(shares) > 1 / 3)


if __name__ == "__main__":
    raise SystemExit(main())
