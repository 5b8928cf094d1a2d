"""Is private Langevin exact at every step size? Variance of its draws over the posterior's, by simulation with the real vault.

    python benchmarks/exactness.py [--chains 500] [--draws 1000000]

A family of one dimension (Bernoulli, 400 records, so that the posterior is not quite normal), its log odds; many chains from
the posterior itself. The variance within chains, averaged, is short of the posterior's by the factor 1 - 1/ESS that any finite
chain shows (ESS of one chain: posterior variance over the mean squared error of its mean); the ratio is corrected for it. The
error is the standard error across chains. Last, the saboteur: the same chain with every proposal accepted.
The same without sampling: `tests/statistical/test_langevin_operator.py`.
"""

import argparse
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from efficiency import Endless
from scipy.special import digamma, polygamma

import sfumato as sf
from sfumato.families.langevin import public_part
from sfumato.kernel import Langevin, PublicStream, State, penalty
from sfumato.study.target import make_study
from sfumato.vault import records
from sfumato.vault.vault import Vault

N, ONES, SIGMA = 400, 121, 0.3
A, B = 1 + ONES, 1 + N - ONES


def ratio(h: float, chains: int, steps: int) -> tuple[float, float]:
    """Corrected variance ratio and its standard error."""
    mean, variance = digamma(A) - digamma(B), polygamma(1, A) + polygamma(1, B)
    study = make_study(sf.families.Bernoulli(), kernel="langevin")
    table = records.load({"y": (np.arange(N) < ONES).astype(int)}, study.domain)
    vault = Vault(table, study, Endless())
    kernel = Langevin(np.eye(1) * variance**0.5, h, public_part(study.family, study.model, N))
    p, stream = np.random.default_rng(0).beta(A, B, chains), PublicStream(0, chains)
    with jax.enable_x64(True):
        theta = jnp.asarray(np.log(p / (1 - p)))[:, None]
        log_prior = jax.vmap(study.model.log_prior)(theta)
        states = State(theta, log_prior, jnp.ones((chains, 1)), jnp.full((chains, 1), jnp.nan))
    vault.begin(kernel, SIGMA, states)
    size = 1000
    total, square = np.zeros(chains), np.zeros(chains)
    for _ in range(steps // size):
        chunk = vault.chunk(states, stream.peek(kernel, size), size, 2**62)
        states = chunk.states
        stream.consume(size)
        error = chunk.transcript.theta[:, :, 0] - mean
        total += error.sum(0)
        square += (error**2).sum(0)
    vault.close()
    means = total / (steps // size * size)
    within = square / (steps // size * size) - means**2
    ess = variance / np.mean(means**2)
    each = within / (variance * (1 - 1 / ess))
    # Chains are independent; what a chain lacks inside is in its mean, so the sum of both is what varies.
    spread = (square / (steps // size * size)) / variance
    return float(each.mean()), float(spread.std(ddof=1) / chains**0.5)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, default=500)
    parser.add_argument("--draws", type=int, default=1_000_000, help="worth of independent draws of the square, in all")
    options = parser.parse_args()
    failed = 0
    for h in (0.02, 0.5):
        steps = max(1000, round(options.draws / options.chains / h / 1000 + 0.5) * 1000)
        got, error = ratio(h, options.chains, steps)
        failed += abs(got - 1) > 0.01
        print(f"h = {h:<5} {options.chains} chains of {steps:,}: variance ratio {got:.4f} +- {error:.4f}", flush=True)
    with mock.patch.object(penalty, "accepts", lambda draw, d, log_ratio, q, sigma: jnp.ones_like(log_ratio, bool)):
        got, error = ratio(0.5, options.chains, 2000)
    print(f"h = 0.5, every proposal accepted: variance ratio {got:.4f} +- {error:.4f} (must be off by more than 0.01)")
    return int(failed > 0 or abs(got - 1) < 0.01)


if __name__ == "__main__":
    raise SystemExit(main())
