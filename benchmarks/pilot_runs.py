"""Part of `pilot.py --runs 20`: whole runs against long non-private ones. Is a run wrong, and called good or rough?

A run is `sf.sample` as a user calls it, on the problems of `problems.py` at the middle and the comfortable epsilon, with a limit
on its steps. Its means are compared with those of a long NUTS run on the same records (kept on disk). A mean is *wrong* if it is
further off than 3 Monte Carlo errors plus 0.3 posterior standard deviations. A run whose verdict is "unusable", or that was
refused, has told its user; a run without a verdict has not.

Sound runs pass that limit by chance: a mean with error e and posterior standard deviation s does with probability
P(|Z| > 3 + 0.3 s/e). These add up to an expected number; more wrong runs than a Poisson variable with that mean exceeds with
probability FALSE_ALARM end the benchmark with an error.
"""

import argparse
import hashlib
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import MCMC, NUTS
from problems import PROBLEMS, Missing, Problem, Reference, limit, reference
from scipy import stats

import sfumato as sf
from sfumato.analysis.result import quiet_arviz
from sfumato.errors import SfumatoError

FALSE_ALARM = 1e-5
"""As in the tests: how often the benchmark may blame a sound sampler."""
ERRORS, SPREADS = 3.0, 0.3
EXACT = 0.05
"""Monte Carlo error of the non-private means in posterior standard deviations, at the most."""
TRUSTED = ("good", "rough", "none")
"""Verdicts after which somebody will use the run; "none" is a run that has no verdict."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=0, help="whole runs a cell instead of pilots")
    parser.add_argument("--iterations", type=int, default=1000, help="steps a chain in whole runs, at the most")
    parser.add_argument("--draws", type=int, default=2000, help="draws of each of four chains of the non-private run")
    parser.add_argument("--progress", action="store_true", help="print every whole run")


# -- the truth ----------------------------------------------------------------------------------------------------------


class Long(NamedTuple):
    """Posterior means and standard deviations of all numbers of all sites, as `flat` lays them out."""

    mean: np.ndarray
    sd: np.ndarray


def flat(draws: Mapping[str, np.ndarray]) -> np.ndarray:
    """Draws of all sites as one array (chain, draw, number), sites by name."""
    return np.concatenate([np.reshape(draws[name], (*np.shape(draws[name])[:2], -1)) for name in sorted(draws)], axis=2)


def monte_carlo_errors(draws: np.ndarray) -> np.ndarray:
    """Standard error of each mean; 0 where it cannot be told, so that nothing is forgiven there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of chains that stand still
        errors = [np.ravel(quiet_arviz().mcse(draws[..., k], method="mean"))[0] for k in range(draws.shape[2])]
    return np.nan_to_num(np.array(errors), nan=0.0, posinf=0.0)


def long_run(problem: Problem, known: Reference, folder: Path, draws: int) -> Long:
    """Means and standard deviations of a long run without privacy; from disk if the same posterior was sampled before."""
    mark = hashlib.sha256(known.mode.tobytes() + known.covariance.tobytes() + str(draws).encode()).hexdigest()[:16]
    path = folder / f"long-{problem.name}-{mark}.npz"
    if not path.exists():
        exact = flat(problem.exact(problem.table(folder), draws) if problem.exact else sample_exactly(known, draws))
        mean, sd, error = exact.mean((0, 1)), exact.std((0, 1)), monte_carlo_errors(exact)
        worst = float(np.max(error / sd))
        assert 0 < worst < EXACT, f"{problem.name}: means of the non-private run have errors of {worst:.2g} sd"
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(path, mean=mean, sd=sd)
    with np.load(path) as kept:
        return Long(kept["mean"], kept["sd"])


def sample_exactly(known: Reference, draws: int) -> dict[str, np.ndarray]:
    """Draws (chain, draw, ...) of every site, in its own support: NUTS in coordinates whitened at the mode."""
    model = known.study.model
    with jax.enable_x64(True):
        columns, count = jax.device_put((known.records.columns, known.records.count.astype(float)))
        mode, root = jnp.asarray(known.mode), jnp.linalg.cholesky(jnp.asarray(known.covariance))

        def potential(z: Any) -> Any:
            theta = mode + root @ z
            return -jnp.sum(count * jax.vmap(model.log_likelihood, (None, 0))(theta, columns)) - model.log_prior(theta)

        chains = MCMC(
            NUTS(potential_fn=potential, dense_mass=True), num_warmup=500, num_samples=draws, num_chains=4,
            chain_method="vectorized", progress_bar=False,
        )  # fmt: skip
        starts = np.random.default_rng(0).standard_normal((4, model.dim))
        chains.run(jax.random.key(0), init_params=jnp.asarray(starts))
        theta = mode + chains.get_samples(group_by_chain=True) @ root.T
        return {k: np.asarray(v) for k, v in jax.jit(jax.vmap(jax.vmap(model.constrain)))(theta).items()}


# -- runs ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ran:
    """How one run ended: its verdict, or the error that refused it."""

    ending: str
    off: float = np.nan
    wrong: bool = False
    by_chance: float = 0.0
    accepted: float = np.nan
    seconds: float = 0.0

    @property
    def trusted(self) -> bool:
        return self.ending in TRUSTED


def one_run(problem: Problem, table: Any, truth: Long, epsilon: float, iterations: int, seed: int) -> Ran:
    """A run as a user makes it, compared with the truth."""
    began = time.process_time()
    try:
        run = sf.sample(
            problem.model, table, domain=problem.domain, epsilon=epsilon, delta=problem.delta, guess=problem.guess, chains=4,
            max_iterations=iterations, seed=seed, progress=False,
        )  # fmt: skip
    except SfumatoError as error:
        return Ran(type(error).__name__, seconds=time.process_time() - began)
    return judge(run, truth, time.process_time() - began)


def judge(run: sf.Run, truth: Long, seconds: float) -> Ran:
    """Compare means; without a draw there is nothing to be wrong about."""
    level = getattr(getattr(run, "verdict", None), "level", "none")
    if not run.iterations:
        return Ran("no draws", seconds=seconds)
    draws = flat(run.draws)
    error, off = monte_carlo_errors(draws), np.abs(draws.mean((0, 1)) - truth.mean)
    with np.errstate(divide="ignore"):
        chance = 2 * stats.norm.sf(ERRORS + SPREADS * truth.sd / error)
    return Ran(
        level, float(np.max(off / truth.sd)), bool(np.any(off > ERRORS * error + SPREADS * truth.sd)),
        min(1.0, float(chance.sum())), run.acceptance, seconds,
    )  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """All runs of a problem at one epsilon."""

    problem: str
    dim: int
    epsilon: float
    limit: float
    ran: list[Ran]

    @property
    def wrong(self) -> int:
        """Runs that somebody would use and that are wrong."""
        return sum(one.wrong and one.trusted for one in self.ran)

    @property
    def by_chance(self) -> float:
        """How many of them would be wrong if all were sound."""
        return sum(one.by_chance for one in self.ran if one.trusted)

    def row(self) -> str:
        """A line of the table."""
        endings = ", ".join(
            f"{count} {ending}" for ending, count in Counter(one.ending for one in self.ran).most_common()
        )
        trusted = [one for one in self.ran if one.trusted]
        off, accepted = (np.median([getattr(one, what) for one in trusted] or [np.nan]) for what in ("off", "accepted"))
        worst = max((one.off for one in trusted), default=np.nan)
        seconds = np.median([one.seconds for one in self.ran])
        return (
            f"{self.problem:<17}{self.dim:>3}{self.epsilon:>6g}{self.limit:>7.3g}{off:>8.3g}{worst:>8.3g}{accepted:>9.0%}"
            f"{self.wrong:>7}{self.by_chance:>10.2g}{seconds:>7.1f}  {endings}"
        )


HEADER = (
    f"{'problem':<17}{'d':>3}{'eps':>6}{'limit':>7}{'off':>8}{'worst':>8}{'accepted':>9}{'wrong':>7}{'by chance':>10}{'s':>7}"
    "  endings"
)
LEGEND = """off: largest distance of a mean from the long run's, in posterior sd; median and worst of the runs that are not
unusable. s: processor seconds a run."""


def cells(
    name: str, runs: int, iterations: int, draws: int, seed: int, folder: Path, progress: bool
) -> list[Cell] | str:
    """All runs of a problem, at its middle and at its comfortable epsilon; or why there are none."""
    problem = PROBLEMS[name]
    try:
        known, table = reference(problem, folder), problem.table(folder)
    except Missing as error:
        return f"SKIPPED: {error}"
    except SfumatoError as error:  # the model itself is refused: so would a user be
        return f"refused: {type(error).__name__}: {error}"
    truth, found = long_run(problem, known, folder, draws), []
    for epsilon in problem.epsilons[1:]:
        ran = []
        for number in range(runs):
            ran.append(one_run(problem, table, truth, epsilon, iterations, seed + number))
            if progress:
                print(f"  {name} at {epsilon:g}, run {number + 1}: {ran[-1]}", flush=True)
        found.append(Cell(name, len(known.mode), epsilon, limit(known, epsilon, problem.delta), ran))
    return found


def work(args: argparse.Namespace) -> Callable[[str], list[Cell] | str]:
    """What is done for each problem."""
    return partial(
        cells, runs=args.runs, iterations=args.iterations, draws=args.draws, seed=args.seed % 2**31, folder=args.folder,
        progress=args.progress,
    )  # fmt: skip


def missed(found: list[Cell]) -> bool:
    """Print the totals; whether more runs were wrong than chance allows."""
    ran = [one for cell in found for one in cell.ran]
    wrong, expected = sum(cell.wrong for cell in found), sum(cell.by_chance for cell in found)
    allowed = int(stats.poisson.ppf(1 - FALSE_ALARM, expected))
    told, refused = (
        sum(test(one) for one in ran) for test in (lambda r: r.ending == "unusable", lambda r: np.isnan(r.off))
    )
    share = 1 / max(len(ran), 1)
    print(f"{len(ran)} runs; unusable: {told * share:.0%}; refused or without a draw: {refused * share:.0%}")
    verdict = "MISSED" if wrong > allowed else "ok    "
    print(f"{verdict} wrong in silence: {wrong} (expected by chance {expected:.2g}, so at most {allowed})")
    return wrong > allowed
