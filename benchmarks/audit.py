"""How close does an audit come to the promise? Honest studies, kernel by kernel, at the default confidence.

    python benchmarks/audit.py [--trials 1000] [--epsilon 1.0] [--only langevin]

`reach` is the share of the promised mu that the attack can see where all is well: the run that asked most, over the cap.
`share of mu` is what it proves, with 99 % confidence: it comes nearer to `reach` like one over the root of the number of runs.
"""

import argparse
import time

import numpyro
import numpyro.distributions as dist

import sfumato as sf


def coin(y):
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(probs=p), obs=y)


def logistic(x, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 2.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


BALL = {"x": sf.Ball(1.0, dim=3), "y": sf.Binary()}
ROWS = [
    ("coin", coin, {"y": sf.Binary()}, "random-walk"),
    ("coin", coin, {"y": sf.Binary()}, "guided"),
    ("coin", coin, {"y": sf.Binary()}, "langevin"),
    ("logistic, ball, d = 3", logistic, BALL, "random-walk"),
    ("logistic, ball, d = 3", logistic, BALL, "guided"),
    ("logistic, ball, d = 3", logistic, BALL, "langevin"),
    ("Bernoulli family", sf.families.Bernoulli(), None, "guided"),
    ("Bernoulli family", sf.families.Bernoulli(), None, "langevin"),
    ("five Bernoullis", sf.families.Bernoullis(5), None, "langevin"),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000, help="runs on each table")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--only", default="", help="rows whose model or kernel contains this")
    options = parser.parse_args()
    print(f"{'model':<24} {'kernel':<12} {'promised':>8} {'found':>7} {'share of mu':>11} {'reach':>6} {'s':>5}")
    failed = 0
    for name, model, domain, kernel in ROWS:
        if options.only not in name and options.only not in kernel:
            continue
        began = time.perf_counter()
        audit = sf.audit(model, domain, epsilon=options.epsilon, delta=1e-6, kernel=kernel, trials=options.trials)
        share, reach = audit.mu_lower / audit.mu_promised, audit.mu_at_stake / audit.mu_promised
        failed += not audit.passed
        print(
            f"{name:<24} {kernel:<12} {audit.epsilon_promised:>8g} {audit.epsilon_lower:>7.3f} {share:>11.1%} {reach:>6.1%} "
            f"{time.perf_counter() - began:>5.0f}{'' if audit.passed else '  FAILED'}",
            flush=True,
        )
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
