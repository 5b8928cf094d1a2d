"""Searched bounds of Langevin: does any other record lie outside, and what do they cost?

    python benchmarks/searched.py [--problems adult,groups] [--moves 40] [--records 20000]

For each study of `problems.py` bounds are searched for around a point 0.6 posterior standard deviations off the mode, whether or
not there is a proof. Other made-up records, half of the columns extreme and half anywhere, are compared with them. *cut*: records
whose vector the first query would cut. *outside*: records outside of the second query's range, of all moves together. *charged*:
diameter over the largest distance of two scores that a longer search finds. *used*: part of the range that other records fill.

Wanted: none is cut, none is outside.
"""

import argparse
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from problems import PROBLEMS, Missing, Reference, reference

from sfumato.bounds.climbing import mixed
from sfumato.bounds.reach import Search, diameter
from sfumato.bounds.searched import SearchedReference

OFF = 0.6
STEPS = (0.05, 0.3, 1.0)


def measure(known: Reference, moves: int, number: int) -> dict[str, Any]:
    """What a search found beside other records, at one reference point."""
    model, domain, rng = known.study.model, known.study.domain, np.random.default_rng(7)
    root, dim = np.linalg.cholesky(known.covariance), model.dim
    centre = known.mode + OFF * root @ rng.standard_normal(dim)
    found = SearchedReference(model, domain)
    with jax.enable_x64(True):
        held = found.at(centre, root)
        records = {name: jnp.asarray(column) for name, column in mixed(domain, rng, number).items()}
        vectors = jax.jit(jax.vmap(lambda record: found.vector(held.body, record)))(records)
        plain = np.asarray(jax.jit(jax.vmap(jax.grad(model.log_likelihood), (None, 0)))(centre, records))
        usual = np.isfinite(plain).all(axis=1)
        apart = np.abs(np.asarray(vectors) - plain).max(axis=1) > 1e-9 * (1 + np.abs(plain).max(axis=1))
        met = diameter(Search(model, [domain]).vectors("gradient", centre, root))
        terms, bounded = jax.jit(jax.vmap(model.log_likelihood, (None, 0))), jax.jit(found.range)
        outside, used = 0, []
        for i in range(moves):
            h, x = STEPS[i % len(STEPS)], rng.standard_normal(dim)
            x_prop = (1 - h / 2) * x + np.sqrt(h * (1 - h / 4)) * rng.standard_normal(dim)
            here, there = known.mode + root @ x, known.mode + root @ x_prop
            lag = 0.03 * rng.standard_normal() * (there - here)
            low, high = map(float, bounded(held.anchor, here, there, lag))
            scalars = np.asarray(terms(there, records) - terms(here, records) - vectors @ (there - here - lag))[usual]
            outside += int(np.sum((scalars < low) | (scalars > high)))
            used.append(float(np.ptp(scalars)) / (high - low))
    return {
        "d": dim, "cut": int(np.sum(apart & usual)), "outside": outside, "charged": held.gradients.diameter / met,
        "used": float(np.median(used)), "jump": float(held.anchor.jump),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", default=",".join(PROBLEMS), help="names, with commas between them; default: all")
    parser.add_argument("--moves", type=int, default=40)
    parser.add_argument("--records", type=int, default=20_000)
    args = parser.parse_args()
    print(f"{'problem':<20}{'d':>4}{'cut':>8}{'outside':>9}{'charged':>9}{'used':>7}  kinks", flush=True)
    missed = 0
    for name in args.problems.split(","):
        try:
            row = measure(reference(PROBLEMS[name]), args.moves, args.records)
        except Missing as error:
            print(f"{name:<20} {error}", flush=True)
            continue
        missed += row["cut"] + row["outside"]
        print(
            f"{name:<20}{row['d']:>4}{row['cut']:>8}{row['outside']:>9}{row['charged']:>9.2f}{row['used']:>7.2f}"
            f"  {'yes' if row['jump'] else ''}",
            flush=True,
        )
    print(f"{'ok    ' if not missed else 'MISSED'} no record is cut or outside: {missed}")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
