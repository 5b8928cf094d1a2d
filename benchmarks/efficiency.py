"""What share of the one-shot limit does each kernel reach? Measured over independent runs, beside the planner's forecast.

    python benchmarks/efficiency.py [--runs 200] [--part families|bundles|models] [--only bernoulli]

Exponential families first, then models that are none (`efficiency_models.py`).

ESS* = mu^2 / sup |A'(S(x) - S(y))|^2, AA' the posterior covariance, is what one Gaussian release of the sum of statistics
with the whole budget is worth. A run is worth (posterior variance) / (mean squared error of its mean) draws; the share is
that over ESS*. The posterior mean is known in closed form here, the error is squared and averaged over the runs (and over the
20 coordinates), and the error bar is the standard error of that average. At d = 1 there are ten times as many runs.

A run is what `sf.sample(..., chains=1)` does, with the whole budget at its disposal: its own pilot (paid for out of the
budget; it gives the start and the scale), then a chain with real noise until the first step it cannot pay for. For speed many
runs go side by side as the chains of one vault, each with an account of its own: a run's charges are summed from its
transcript, and it ends where its cap ends. Runs side by side share the kernel that the planner chose after the pilot of one
of them. `forecast` is the planner's, made at that moment.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import efficiency_models
import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import digamma, polygamma

import sfumato as sf
from sfumato.kernel import Langevin, PublicStream, State
from sfumato.planner import budget_mu, build_kernel, make_plan, replan, run_pilot
from sfumato.planner.making import FAMILY_PILOT_SHARE
from sfumato.privacy.budget import QUANTA_PER_UNIT
from sfumato.study.target import Study, make_study
from sfumato.vault import records
from sfumato.vault.queries.linear import LangevinSource
from sfumato.vault.vault import Vault

N, D, DELTA, RADIUS = 100_000, 20, 1e-6, 6.0
BATCHES = 4
COPIES, WANTED_OF_BUNDLES = 20_000, 0.85


class Problem(NamedTuple):
    """A family, its records, and the posterior they have."""

    name: str
    family: Any
    data: dict[str, np.ndarray]
    mean: np.ndarray
    sd: np.ndarray


class Row(NamedTuple):
    """A line of the table; `target` is the share wanted, None where it is only shown."""

    problem: Problem
    kernel: str
    epsilon: float
    target: float | None


class Measured(NamedTuple):
    """What the runs of a row were like."""

    limit: float
    share: float
    error: float
    steps: float
    accepted: float
    second: float
    forecast: float
    limit_forecast: float
    tuning: str
    seconds: float


class Endless:
    """An account that always pays: here each chain's own budget is watched from outside."""

    left = quanta = 2**62

    def reserve_up_to(self, quanta: int, at_least: int) -> "Endless":
        return self

    def reserve(self, quanta: int) -> "Endless":
        return self

    def settle(self, spent: int) -> None:
        pass


def bernoulli() -> Problem:
    """MATH's own example: n = 100 000, 22 % ones."""
    y = (np.random.default_rng(0).permutation(N) < 0.22 * N).astype(int)
    a, b = 1 + y.sum(), 1 + N - y.sum()
    return Problem(
        "Bernoulli", sf.families.Bernoulli(), {"y": y},
        np.array([digamma(a) - digamma(b)]), np.sqrt([polygamma(1, a) + polygamma(1, b)]),
    )  # fmt: skip


def bernoullis() -> Problem:
    """Twenty yes-or-no answers a record, with rates from 0.1 to 0.5: a box."""
    y = (np.random.default_rng(1).random((N, D)) < np.linspace(0.1, 0.5, D)).astype(int)
    a, b = 1 + y.sum(0), 1 + N - y.sum(0)
    return Problem(
        "Bernoullis on a box", sf.families.Bernoullis(D), {"y": y},
        digamma(a) - digamma(b), np.sqrt(polygamma(1, a) + polygamma(1, b)),
    )  # fmt: skip


def normals() -> Problem:
    """Mean of normal vectors with known covariance, records in a ball."""
    domain = sf.Ball(RADIUS, dim=D)
    y = domain.clamp(np.random.default_rng(2).normal(np.linspace(-0.5, 0.5, D), 1.0, (N, D)))
    family = sf.families.MultivariateNormal(np.eye(D).tolist(), domain)
    with jax.enable_x64(True):
        posterior = family.posterior(jnp.asarray(y.sum(0)), N)["mean"]
        return Problem(
            "normal mean on a ball",
            family,
            {"y": y},
            np.asarray(posterior.mean),
            np.sqrt(np.asarray(posterior.variance)),
        )


def measure(row: Row, runs: int, max_iterations: int, seed: int) -> Measured:
    """All runs of one row."""
    began = time.perf_counter()
    problem, mu = row.problem, budget_mu(row.epsilon, DELTA)
    study = make_study(problem.family, kernel=row.kernel)
    table = records.load(problem.data, study.domain)
    account: Any = Endless()
    vault = Vault(table, study, account)
    with jax.enable_x64(True):
        limit = mu**2 / float(problem.family.whitened_diameter(jnp.diag(problem.sd))) ** 2
    public = make_plan(
        study, n=N, epsilon=row.epsilon, delta=DELTA, kernel=row.kernel, chains=1, max_iterations=max_iterations
    )
    parts, plans = [], []
    for batch in range(BATCHES):
        pictures = [_pilot(study, public, vault, mu) for _ in range(runs // BATCHES)]
        plan = replan(
            public, study, pictures[0], 1 - FAMILY_PILOT_SHARE, kernel=row.kernel, max_iterations=max_iterations
        )
        parts.append(_chains(study, plan, vault, pictures, (1 - FAMILY_PILOT_SHARE) * mu**2, seed + batch))
        plans.append(plan)
    vault.close()
    means, steps, accepted, second = (np.concatenate(part) for part in zip(*parts, strict=True))
    square = (((means - problem.mean) / problem.sd) ** 2).mean(axis=1)
    share = 1 / square.mean() / limit
    return Measured(
        limit, share, share * square.std(ddof=1) / square.mean() / len(square) ** 0.5, steps.mean(), accepted.mean(),
        second.mean(), float(np.mean([p.forecast_ess for p in plans])), float(np.mean([p.limit_ess for p in plans])),
        f"{plans[0].step:.3g}, {plans[0].sigma:.2g}", time.perf_counter() - began,
    )  # fmt: skip


def _pilot(study: Study, plan: sf.Plan, vault: Vault, mu: float) -> Any:
    with jax.enable_x64(True):
        budget = FAMILY_PILOT_SHARE * mu**2 * 0.999
        return run_pilot(study.model, study.domain, N, plan.belief.centre, budget, vault.release, known=True).belief


def _chains(
    study: Study, plan: sf.Plan, vault: Vault, pictures: list[Any], cap: float, seed: int
) -> tuple[np.ndarray, ...]:
    """One chain per picture, each until its own budget ends: mean, steps, acceptance, share of the second query."""
    chains = len(pictures)
    stream, kernel = PublicStream(seed, chains), build_kernel(study, plan)
    langevin = isinstance(kernel, Langevin)
    rng = np.random.default_rng(seed + 10**6)
    starts = np.stack(
        [p.centre + np.linalg.cholesky(p.covariance) @ rng.standard_normal(len(p.centre)) for p in pictures]
    )
    with jax.enable_x64(True):
        theta = jnp.asarray(starts)
        direction = jnp.asarray(stream.directions(kernel.matrix.shape[1]))
        pending = jnp.full(theta.shape, jnp.nan) if langevin else None
        states = State(theta, jax.vmap(study.model.log_prior)(theta), direction, pending)
    first = 0.0
    if langevin:
        first = LangevinSource(study.family, kernel, plan.sigma, N, chains).corrections.first_cost / QUANTA_PER_UNIT
    vault.begin(kernel, plan.sigma, states)
    size = max(128, 400_000 // (chains * len(kernel.matrix)))
    total, steps, accepted = np.zeros(starts.shape), np.zeros(chains), np.zeros(chains)
    spent, scalar, alive = np.zeros(chains), np.zeros(chains), np.ones(chains, bool)
    done = 0
    while alive.any() and done < plan.iterations * 2:
        chunk = vault.chunk(states, stream.peek(kernel, size), size, 2**62)
        states, out = chunk.states, chunk.transcript
        stream.consume(chunk.steps)
        done += chunk.steps
        each = (out.sensitivity / plan.sigma) ** 2
        within = (spent + np.cumsum(first + each, axis=0) <= cap) & alive
        spent += (first + each).sum(0)
        total += (out.theta * within[:, :, None]).sum(0)
        scalar += (each * within).sum(0)
        accepted += (out.accepted & within).sum(0)
        steps += within.sum(0)
        alive &= within[-1]
    return total / steps[:, None], steps, accepted / steps, scalar / cap


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--runs", type=int, default=200, help="independent runs (of families at d = 1, ten times as many)"
    )
    parser.add_argument("--part", choices=("families", "bundles", "models", "all"), default="all")
    parser.add_argument("--only", default="", help="rows whose problem or kernel (of the models: name) contains this")
    models = parser.add_argument_group("models")
    models.add_argument("--pilots", type=int, default=25, help="different pilots among the runs")
    models.add_argument("--epsilon", nargs="*", type=float, default=[1.0, 4.0])
    models.add_argument("--draws", type=int, default=50_000, help="NUTS draws of each of two chains")
    models.add_argument("--walk-steps", type=int, default=2_000, help="steps of the walks at the most")
    models.add_argument("--further", type=int, default=8_000, help="steps of the walks that nobody counts, for tau")
    models.add_argument("--out", type=Path, help="append one JSON line per row")
    parser.add_argument("--seed", type=int, default=0, help="of proposals and decisions; noise has none")
    options = parser.parse_args()
    parts = {"families": families, "bundles": bundles, "models": efficiency_models.table}
    missed = sum(part(options) for name, part in parts.items() if options.part in (name, "all"))
    return int(missed > 0)


def families(options: argparse.Namespace) -> int:
    """Print the rows of exponential families; return how many miss what is wanted."""
    problems: dict[str, Callable[[], Problem]] = {"b1": bernoulli, "b20": bernoullis, "n20": normals}
    wanted = [
        ("b1", "random-walk", 0.3, 0.29), ("b1", "guided", 0.3, 0.42), ("b1", "langevin", 0.3, 0.88),
        ("b20", "componentwise", 1.5, 0.29), ("b20", "guided", 1.5, 0.42), ("b20", "langevin", 1.5, 0.88),
        ("n20", "random-walk", 8.0, None), ("n20", "guided", 8.0, None), ("n20", "langevin", 1.5, 0.88),
    ]  # fmt: skip
    print(
        f"{'problem':<22} {'kernel':<14} {'d':>3} {'runs':>5} {'eps':>4} {'ESS*':>6} {'h/step, sigma':>14} {'k':>8} "
        f"{'accept':>6} {'2nd':>5} {'share':>7} {'+-':>6} {'wanted':>6} {'forecast':>8} {'ratio':>6} {'s':>5}"
    )
    missed = 0
    for key, kernel, epsilon, target in wanted:
        row = Row(problems[key](), kernel, epsilon, target)
        if options.only not in row.problem.name.lower() and options.only not in kernel:
            continue
        dim = len(row.problem.mean)
        runs = options.runs * (10 if dim == 1 else 1)
        got = measure(row, runs, 400_000, options.seed)
        ratio = got.share * got.limit / got.forecast
        bad = (target is not None and got.share < target) or not 1 / 1.25 <= ratio <= 1.25
        missed += bad
        print(
            f"{row.problem.name:<22} {kernel:<14} {dim:>3} {runs:>5} {epsilon:>4g} {got.limit:>6.1f} {got.tuning:>14} "
            f"{got.steps:>8.0f} {got.accepted:>6.3f} {got.second:>5.3f} {got.share:>7.4f} {got.error:>6.4f} "
            f"{'' if target is None else target:>6} {got.forecast / got.limit:>8.4f} {ratio:>6.3f} {got.seconds:>5.0f}"
            f"{'  MISSED' if bad else ''}", flush=True,
        )  # fmt: skip
    print("forecast: as a share of the true ESS*; ratio: measured over forecast, wanted within 1.25.")
    return missed


def bundles(options: argparse.Namespace) -> int:
    """Print what `sf.sample` gets from a bundle, the copies that find its start included; return how many miss 0.85."""
    rows = ((bernoulli(), 0.3, 2 * options.runs), (bernoullis(), 1.5, max(options.runs // 4, 2)))
    print(
        f"{'bundle of':<22} {'d':>3} {'runs':>5} {'eps':>4} {'copies':>7} {'ESS*':>6} {'accept':>6} {'share':>7} {'+-':>6}"
    )
    missed = 0
    for problem, epsilon, runs in rows:
        with jax.enable_x64(True):
            diameter = float(problem.family.whitened_diameter(jnp.diag(problem.sd)))
        limit, squares, accepted = (budget_mu(epsilon, DELTA) / diameter) ** 2, [], []
        for seed in range(runs):
            copies = sf.release(
                problem.family, problem.data, epsilon=epsilon, delta=DELTA, copies=COPIES, progress=False
            )
            run = sf.sample(problem.family, copies, chains=1, seed=seed, force=True, progress=False)
            squares.append(np.mean(((run.transcript["theta"][0].mean(axis=0) - problem.mean) / problem.sd) ** 2))
            accepted.append(run.acceptance)
        share = 1 / np.mean(squares) / limit
        error = share * np.std(squares, ddof=1) / np.mean(squares) / len(squares) ** 0.5
        missed += share + error < WANTED_OF_BUNDLES
        print(
            f"{problem.name:<22} {len(problem.mean):>3} {runs:>5} {epsilon:>4g} {COPIES:>7} {limit:>6.1f} "
            f"{np.mean(accepted):>6.3f} {share:>7.4f} {error:>6.4f}", flush=True,
        )  # fmt: skip
    print(f"wanted: {WANTED_OF_BUNDLES} of ESS*, within the error")
    return missed


if __name__ == "__main__":
    raise SystemExit(main())
