"""How fast is Algorithm 3 on a ready bundle, and what does making one cost?

    python benchmarks/bundles.py [--steps 1000000] [--repeat 3]

1. A million iterations from a ready bundle of a one-dimensional family (Bernoulli, one chain, guided walk) against a bare
   `lax.scan` of the same length and arithmetic: the same propose, natural parameter, log-normaliser, prior, penalty and
   decision on numbers that are already on the device, and the same outputs, but no checks, no chunks, no files. The library's
   time includes taking the copies, drawing the public random numbers, chunks, and collecting the transcript; reading the file
   is shown separately. Both are compiled beforehand; the best of `--repeat` is taken, alternating.
2. Releasing ten thousand, a hundred thousand and a million copies of eight numbers: seconds, and how far the peak of memory
   rose each time (the first includes compiling; a pool of noise and one row group are all that is ever held).
"""

import argparse
import resource
import tempfile
from pathlib import Path
from time import perf_counter

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import sfumato as sf
from sfumato.kernel import Guided, PublicStream, State
from sfumato.run.copies import CopiesAccess

N, P = 100_000, 0.22
PROMISED = 3.0
SCALE = 0.0076  # posterior sd of the log odds


def bare_scan(n: int, xi: float, step: float):
    """The arithmetic of one step, by hand, in a loop that does nothing else."""

    def log_prior(theta):  # uniform on p, with the Jacobian of the logistic function
        return -jax.nn.softplus(-theta) - jax.nn.softplus(theta)

    def body(carry, row):
        theta, prior, phi, log_g, sign = carry
        length, log_u, copy = row
        theta_prop = theta + sign * length * step
        p = jax.nn.sigmoid(theta_prop)
        phi_prop = jnp.log(p) - jnp.log1p(-p)
        log_g_prop, prior_prop = -jax.nn.softplus(phi_prop), log_prior(theta_prop)
        move = phi_prop - phi
        sigma = jnp.sqrt(xi * move**2)
        d = n * (log_g_prop - log_g) + move * copy
        accepted = log_u < jnp.minimum(0.0, d + prior_prop - prior - sigma**2 / 2)
        after = (
            jnp.where(accepted, theta_prop, theta),
            jnp.where(accepted, prior_prop, prior),
            jnp.where(accepted, phi_prop, phi),
            jnp.where(accepted, log_g_prop, log_g),
            jnp.where(accepted, sign, -sign),
        )
        return after, (after[0], theta_prop, d, sigma, sigma, accepted)

    def run(theta, lengths, log_u, copies):
        start = (theta, log_prior(theta), theta, -jax.nn.softplus(theta), jnp.ones(()))
        return lax.scan(body, start, (lengths, log_u, copies))

    return jax.jit(run)


def time_bare(run, steps: int, copies: np.ndarray, rng: np.random.Generator) -> float:
    lengths, log_u = jnp.asarray(rng.uniform(0.8, 1.2, steps)), jnp.asarray(np.log(rng.random(steps)))
    values = jnp.asarray(copies[:steps, 0])
    began = perf_counter()
    jax.block_until_ready(run(jnp.asarray(-1.2656), lengths, log_u, values))
    return perf_counter() - began


def time_library(bundle: sf.Bundle, steps: int, family, model, kernel) -> float:
    stream, done = PublicStream(0, 1), 0
    theta = jnp.full((1, 1), -1.2656)
    states = State(theta, jax.vmap(model.log_prior)(theta), jnp.ones((1, 1)))
    began = perf_counter()
    access = CopiesAccess(family, model, [bundle], [], 1)
    access.begin(kernel, 0.0, states)
    while done < steps:
        size = min(access.longest, steps)
        chunk = access.chunk(states, stream.peek(kernel, size), min(size, steps - done), 0)
        states, done = chunk.states, done + chunk.steps
        stream.consume(chunk.steps)
    return perf_counter() - began


def compare(steps: int, repeat: int, path: Path) -> float:
    family = sf.families.Bernoulli()
    y = np.random.default_rng(0).random(N) < P
    began = perf_counter()
    sf.release(family, {"y": y}, epsilon=2.0, delta=1e-6, copies=steps, path=path)
    print(f"releasing {steps:,} copies: {perf_counter() - began:.2f} s")
    began = perf_counter()
    bundle = sf.Bundle.open(path)
    values = bundle._all()
    print(f"opening them (read and check twice): {perf_counter() - began:.2f} s")
    model = family.to_model()
    step = 2.0 / (SCALE * bundle.xi**0.5)  # sigma of about two
    kernel = Guided(np.eye(1) * SCALE, step)
    bare, library = [], []
    with jax.enable_x64(True):
        run = bare_scan(N, bundle.xi, SCALE * step)
        rng = np.random.default_rng(1)
        time_bare(run, steps, values, rng)  # compiles
        first = time_library(sf.Bundle(bundle._header, values=values), steps, family, model, kernel)  # compiles
        for _ in range(repeat):
            bare.append(time_bare(run, steps, values, rng))
            library.append(time_library(sf.Bundle(bundle._header, values=values), steps, family, model, kernel))
    low, high = min(bare), min(library)
    print(f"{steps:,} iterations: bare scan {low:.3f} s, Algorithm 3 {high:.3f} s")
    print(f"(the first time, compilation included: {first:.3f} s)")
    print(f"ratio {high / low:.2f}  (at most {PROMISED:g} is promised)")
    return high / low


def memory(folder: Path) -> None:
    """Growth of the largest resident size from one release to the next, larger one."""
    domain = sf.Ball(1.0, dim=8)
    family = sf.families.MultivariateNormal(np.eye(8).tolist(), domain)
    y = domain.extremes(np.random.default_rng(0), 20_000)
    ticks: list[int] = []
    for copies in (10_000, 100_000, 1_000_000):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = perf_counter()
        sf.release(
            family, {"y": y}, epsilon=1.0, delta=1e-6, copies=copies, path=folder / f"{copies}.parquet",
            progress=lambda done, total, text: ticks.append(done),
        )  # fmt: skip
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        size = (folder / f"{copies}.parquet").stat().st_size / 2**20
        print(
            f"{copies:,} copies of 8 numbers: {perf_counter() - began:.2f} s, file {size:.1f} MB, peak memory + {grown:.1f} MB"
        )
    print(f"progress was reported {len(ticks)} times")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        memory(Path(folder))
        return int(compare(options.steps, options.repeat, Path(folder) / "bundle.parquet") > PROMISED)


if __name__ == "__main__":
    raise SystemExit(main())
