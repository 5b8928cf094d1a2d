"""Is the noise-aware posterior calibrated where a chain cannot mix?

    python benchmarks/calibration.py [--sets 1000] [--large 20000]

Parameters are drawn from the prior, records from the parameter, one measurement of their sum with the noise of the budget; the
posterior is evaluated on a grid, for all data sets at once. Printed: how many of the central 90 % intervals hold the truth
(binomial standard error beside it), with the exact law of the counts and with the central limit theorem, and the one-shot
limit of the effective draws of any chain on the same budget (a bound, averaged over the prior).
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np

import sfumato as sf
from sfumato.analysis.noise_aware import log_base, moments_of

GRID = 801


def sums(name: str, family, n: int, sets: int, rng: np.random.Generator):
    """Parameters (unconstrained) from the prior, and sums of n records."""
    if name == "Bernoulli":
        p = rng.beta(1, 1, sets)
        return np.log(p / (1 - p)), rng.binomial(n, p).astype(float)
    if name == "Poisson":
        rate = rng.gamma(1.0, family.max_count / 4, sets)
        return np.log(rate), rng.poisson(n * rate).astype(float)
    mean = rng.normal(0, 4, sets)
    return mean, rng.normal(n * mean, n**0.5)


def below(family, n: int, z: np.ndarray, sd: float, theta: np.ndarray, grid: np.ndarray, exact: bool) -> np.ndarray:
    """Posterior probability below the truth."""
    model = family.to_model()

    def column(t):
        values = model.constrain(t[None])
        if exact:
            s = jnp.asarray(np.arange(0.0, n * float(family.domain["y"].hi) + 1)[:4000])
            mass = jnp.asarray(log_base(family, n, np.asarray(np.arange(0.0, len(s)))))
            inner = mass + family.natural(values)[0] * s
            noise = -((z[:, None] - s) ** 2) / (2 * sd**2)
            return (
                model.log_prior(t[None]) + n * family.log_g(values) + jax.scipy.special.logsumexp(inner + noise, axis=1)
            )
        mean, covariance = moments_of(family, False)(values)
        total = n * covariance[0, 0] + sd**2
        return model.log_prior(t[None]) - (z - n * mean[0]) ** 2 / (2 * total) - jnp.log(total) / 2

    with jax.enable_x64(True):
        values = np.asarray(jax.lax.map(column, jnp.asarray(grid))).T
    weight = np.exp(values - values.max(axis=1, keepdims=True))
    weight /= weight.sum(axis=1, keepdims=True)
    return np.array([w[grid <= t].sum() for w, t in zip(weight, theta, strict=True)])


CASES = {
    # family, n, mu of the budget, grid of theta
    "Bernoulli": (sf.families.Bernoulli(), 1000, 0.05, np.linspace(-12, 12, GRID)),
    "Poisson": (sf.families.Poisson(4), 200, 0.05, np.linspace(-9, 4, GRID)),
    "Normal": (sf.families.Normal(1.0, -8.0, 8.0), 1000, 0.1, np.linspace(-14, 14, GRID * 8)),
}


def limit(name: str, theta: np.ndarray, n: int, mu: float, width: float) -> float:
    """Mean over the prior of ESS* = mu^2/(width^2 posterior variance of the natural parameter)."""
    p = 1 / (1 + np.exp(-theta))
    information = {"Bernoulli": n * p * (1 - p), "Poisson": n * np.exp(theta), "Normal": np.full(len(theta), float(n))}[
        name
    ]
    return float(np.mean(mu**2 * information / width**2))


def report(sets: int, only_normal: bool) -> int:
    missed = 0
    for name, (family, n, mu, grid) in CASES.items():
        rng = np.random.default_rng(7)
        theta, total = sums(name, family, n, sets, rng)
        sd = family.diameter() / mu
        z = total + sd * rng.standard_normal(sets)
        ess = limit(name, theta, n, mu, family.diameter())
        for exact in (False, True):
            if exact and (only_normal or name == "Normal"):
                continue
            rank = below(family, n, z, sd, theta, grid, exact)
            share = np.mean((rank > 0.05) & (rank < 0.95))
            law = "exact counts" if exact else "central limit"
            error = (share * (1 - share) / sets) ** 0.5
            missed += not 0.88 <= share <= 0.92
            print(f"{name:>10} n={n:<5} {law:>13} {sets:>7,} sets: covered {share:.2%} +- {error:.2%}   ESS* {ess:.2g}")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=1000)
    parser.add_argument("--large", type=int, default=20_000, help="data sets for a sharper figure; 0 leaves it out")
    options = parser.parse_args()
    missed = report(options.sets, only_normal=False)
    if options.large:
        missed += report(options.large, only_normal=True)
    print("90 % intervals should cover 88 to 92 %:", f"{missed} rows do not" if missed else "all rows do")
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
