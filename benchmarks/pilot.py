"""Does the pilot arrive, and if it does not, does it say so? Then: is any run wrong in silence?

    python benchmarks/pilot.py [--problems adult,coin] [--pilots 100] [--jobs 2] [--seed S] [--json FILE]
    python benchmarks/pilot.py --runs 20 [--problems ...]

The problems are in `problems.py`, each at three epsilons: too small, middle, comfortable. A cell is so many pilots from the
start of `sf.plan`, for the share of the budget that the plan gives them, 10 % at the most.

`off` is the distance between the pilot's centre and the mode in posterior standard deviations, root mean square over the
coordinates. A pilot is *within* if it is off by at most 1.5, or twice its stated error if that is larger. It fails *silently* if
it says that it arrived and is not within. A *chain* begins if the plan, the pilot and the plan after the pilot all let it.

Wanted: where the limit is at least 20 draws, 99 % of all pilots together are within, and no more fail silently than chance
allows. A pilot whose stated error e is right is off by more than max(1.5, 2e) with probability P(chi^2_d > d max(1.5, 2e)^2/e^2).
These add up to an expected number; a Poisson variable with that mean exceeds what is allowed with probability FALSE_ALARM. Where
the limit is less, no chain begins. No pilot spends more than its share.

A release is simulated here: an exact sum over counted records, compiled once a problem, and NumPy's normal noise. The vault's own
sums, noise and charges have tests of their own and would take many times as long. The price of every release is added up all the
same, and a pilot that passes its share ends the benchmark.

With ``--runs`` whole runs of `sf.sample` are compared with long non-private ones instead: see `pilot_runs.py`.
"""

import argparse
import json
import multiprocessing
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pilot_runs
from pilot_runs import FALSE_ALARM
from problems import FOLDER, PROBLEMS, Missing, Problem, Reference, limit, reference
from scipy import stats

import sfumato as sf
from sfumato.errors import SfumatoError
from sfumato.model.derivatives import size, vector_function
from sfumato.planner import replan, run_pilot
from sfumato.planner.pilot import Piloted
from sfumato.planner.plan import Plan
from sfumato.study.target import Study

MOST = 0.1
"""Share of the budget that a pilot may spend, at the most."""
NEAR, ERRORS = 1.5, 2.0
"""A pilot is within this distance, or so many times its stated error."""
ENOUGH = 20.0
"""Draws of the limit from which a study is worth doing."""
WANTED = 0.99


# -- a release without a vault ------------------------------------------------------------------------------------------


@cache
def sums(known: Reference, what: str) -> Callable[..., jax.Array]:
    """Compile (theta, matrix, radius, centre) -> sum over the records of their vectors, cut to a ball about the centre."""

    def total(table: Any, theta: Any, matrix: Any, radius: Any, centre: Any) -> jax.Array:
        columns, count = table

        def one(record: Any) -> jax.Array:
            apart = vector_function(what, known.study.model, theta, matrix)(record) - centre
            apart = jnp.where(jnp.all(jnp.isfinite(apart)), apart, 0.0)
            return apart * jnp.minimum(1.0, radius / jnp.maximum(jnp.linalg.norm(apart), 1e-300))

        return count @ jax.vmap(one)(columns) + count.sum() * centre

    table = jax.device_put((known.records.columns, known.records.count.astype(float)))
    return partial(jax.jit(total), table)


@dataclass
class Release:
    """What a vault's `release` answers, simulated, and what it would have cost."""

    known: Reference
    rng: np.random.Generator
    cap: float
    spent: float = 0.0

    def __call__(
        self,
        what: str,
        theta: np.ndarray,
        matrix: np.ndarray,
        radius: float,
        sigma: float,
        centre: np.ndarray | None = None,
    ) -> np.ndarray:
        self.spent += (2 * radius / sigma) ** 2
        if self.spent > self.cap:
            raise Overspent(f"a pilot may spend {self.cap:.6g} of mu squared, and this one asked for {self.spent:.6g}.")
        numbers = size(what, self.known.study.model.dim)
        middle = np.zeros(numbers) if centre is None else np.asarray(centre, float)
        point = (np.asarray(x, float) for x in (theta, matrix, radius, middle))
        return np.asarray(sums(self.known, what)(*point)) + sigma * self.rng.standard_normal(numbers)


class Overspent(Exception):
    """A pilot asked for more than its share."""


# -- one pilot ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """Where one pilot ended, and what it said."""

    spent: float
    off: float = np.nan
    error: float = np.nan
    off_by: float = np.nan
    arrived: bool = False
    chain: bool = False
    seconds: float = np.nan
    raised: str = ""

    @property
    def within(self) -> bool:
        return self.off <= max(NEAR, ERRORS * self.error)

    @property
    def silent(self) -> bool:
        return self.arrived and not self.within

    def by_chance(self, dim: int) -> float:
        """Chance that a pilot whose stated error is right fails silently."""
        return float(stats.chi2.sf(dim * max(NEAR / self.error, ERRORS) ** 2, dim)) if self.arrived else 0.0


def pilot_options(study: Study, plan: Plan) -> dict[str, Any]:
    """What `sf.sample` passes to the pilot besides model, domain, start and budget."""
    return {
        "known": study.knows_information, "covariance": plan.belief.covariance, "most": 0.999 * MOST * plan.mu**2,
        "widest": plan.mu / plan.enough_ess**0.5,
    }  # fmt: skip


def says(found: Piloted) -> tuple[bool, float]:
    """Whether a pilot says that it arrived, and how far off it may be; a pilot without such a test goes on to the chain."""
    return bool(getattr(found, "arrived", True)), float(getattr(found, "off_by", np.nan))


def one_pilot(known: Reference, plan: Plan, share: float, rng: np.random.Generator, small: bool) -> Ended:
    """Pilot; on a budget that is too small also the plan after it, which may still refuse the chain."""
    study, budget = known.study, share * plan.mu**2
    release, began = Release(known, rng, cap=MOST * plan.mu**2), time.process_time()
    try:
        with jax.enable_x64(True):
            found = run_pilot(
                study.model, study.domain, known.records.n, plan.belief.centre, budget * 0.999, release,
                **pilot_options(study, plan),
            )  # fmt: skip
    except SfumatoError as error:  # so does the run: nobody is misled
        return Ended(raised=f"{type(error).__name__}: {error}", spent=release.spent / plan.mu**2)
    seconds = time.process_time() - began
    arrived, off_by = says(found)
    return Ended(
        off=known.off(found.belief.centre),
        error=float(found.belief.error),
        off_by=off_by,
        arrived=arrived,
        chain=small and begins(known, plan, found, release.spent),
        spent=release.spent / plan.mu**2,
        seconds=seconds,
    )


def begins(known: Reference, plan: Plan, found: Piloted, spent: float) -> bool:
    """Whether a chain begins: after the plan, the pilot, and the plan with what the pilot found (which takes seconds)."""
    if plan.weak or not says(found)[0]:
        return False
    try:
        left = 1 - spent / plan.mu**2
        return not replan(plan, known.study, found.belief, left, kernel="auto", max_iterations=None).weak
    except SfumatoError:
        return False


# -- one cell -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """All pilots of a problem at one epsilon."""

    problem: str
    dim: int
    n: int
    epsilon: float
    limit: float
    start: float
    ratio: float
    share: float
    forecast: float
    weak: bool
    ended: list[Ended] = field(repr=False)
    refused: str = ""

    def count(self, what: str) -> int:
        return sum(getattr(one, what) for one in self.ended)

    def row(self) -> str:
        """A line of the table."""
        lead = (
            f"{self.problem:<17}{self.dim:>3}{self.n:>8}{self.epsilon:>6g}{self.limit:>7.3g}{self.start:>9.3g}"
            f"{self.ratio:>9.2g}"
        )
        if not self.ended:
            return f"{lead}  refused: {self.refused}"
        done = [one for one in self.ended if not one.raised] or self.ended
        off = np.array([one.off for one in done])
        error, off_by, seconds = (
            np.median([getattr(one, name) for one in done]) for name in ("error", "off_by", "seconds")
        )
        raised = Counter(one.raised for one in self.ended if one.raised)
        shares = (self.count(what) / len(self.ended) for what in ("arrived", "within"))
        return (
            f"{lead}{self.share:>6.0%}{self.forecast:>9.3g}{'w' if self.weak else ' '}"
            f"{np.median(off):>9.3g}{np.quantile(off, 0.99):>9.3g}{off.max():>9.3g}{error:>8.2g}{off_by:>8.2g}"
            + "".join(f"{share:>8.0%}" for share in shares)
            + f"{self.count('silent'):>7}{self.count('chain') if self.limit < ENOUGH else '-':>7}{seconds:>7.2f}"
            + "".join(f"  {count} raised {words}" for words, count in raised.items())
        )


HEADER = (
    f"{'problem':<17}{'d':>3}{'n':>8}{'eps':>6}{'limit':>7}{'start':>9}{'ratio':>9}{'share':>6}{'forecast':>9} "
    f"{'off':>9}{'99 %':>9}{'max':>9}{'stated':>8}{'off_by':>8}{'arrived':>8}{'within':>8}{'silent':>7}{'chains':>7}{'s':>7}"
)
LEGEND = """start: distance of the plan's start from the mode, in posterior sd. ratio: largest true over believed precision in any
direction. forecast: effective draws the plan promises, w if it refuses. s: processor seconds a pilot."""


def cell(problem: Problem, epsilon: float, pilots: int, seed: int, folder: Path) -> Cell:
    """Plan, then that many pilots; a plan that cannot be made is shown with its reason."""
    known = reference(problem, folder)
    facts: dict[str, Any] = {
        "problem": problem.name, "dim": len(known.mode), "n": known.records.n, "epsilon": epsilon,
        "limit": limit(known, epsilon, problem.delta),
    }  # fmt: skip
    try:
        plan = sf.plan(
            problem.model, n=known.records.n, domain=problem.domain, epsilon=epsilon, delta=problem.delta,
            guess=problem.guess,
        )  # fmt: skip
    except SfumatoError as error:
        nothing = {"start": np.nan, "ratio": np.nan, "share": 0.0, "forecast": 0.0, "weak": True}
        return Cell(**facts, **nothing, ended=[], refused=f"{type(error).__name__}: {error}")
    share = min(plan.pilot_share, MOST)
    facts |= {"start": known.off(plan.belief.centre), "ratio": information_ratio(known, plan)}
    ended = []
    for number in range(pilots):
        rng = np.random.default_rng([seed, zlib.crc32(problem.name.encode()), int(epsilon * 1000), number])
        ended.append(one_pilot(known, plan, share, rng, facts["limit"] < ENOUGH))
    return Cell(**facts, share=share, forecast=plan.forecast_ess, weak=plan.weak, ended=ended)


def information_ratio(known: Reference, plan: Plan) -> float:
    """Largest ratio, over directions, of the posterior's precision to the one the plan believes in."""
    believed = np.linalg.cholesky(plan.belief.covariance)
    return float(np.linalg.eigvalsh(believed.T @ np.linalg.inv(known.covariance) @ believed).max())


def cells(name: str, pilots: int, seed: int, folder: Path) -> list[Cell] | str:
    """All cells of a problem; or why there are none."""
    problem = PROBLEMS[name]
    try:
        return [cell(problem, epsilon, pilots, seed, folder) for epsilon in problem.epsilons]
    except Missing as error:
        return f"SKIPPED: {error}"
    except SfumatoError as error:  # the model itself is refused: so would a user be
        return f"refused: {type(error).__name__}: {error}"


# -- all of them --------------------------------------------------------------------------------------------------------


def pilots_missed(found: list[Cell]) -> bool:
    """Print what is wanted and what was found; whether anything was missed."""
    enough, small = ([c for c in found if (c.limit >= ENOUGH) == yes] for yes in (True, False))
    within, silent = (sum(c.count(what) for c in enough) for what in ("within", "silent"))
    expected = sum(one.by_chance(c.dim) for c in enough for one in c.ended)
    allowed = int(stats.poisson.ppf(1 - FALSE_ALARM, expected))
    chains = sum(c.count("chain") for c in small)
    total, tried = (sum(len(c.ended) for c in part) for part in (enough, small))
    said = [
        (within >= WANTED * total, f"within: {within} of {total} pilots where the limit is {ENOUGH:g} or more (99 %)"),
        (
            silent <= allowed,
            f"silent failures: {silent} of these (expected by chance {expected:.2g}, so at most {allowed})",
        ),
        (chains == 0, f"chains: {chains} of {tried} where the limit is less (none)"),
    ]
    for met, line in said:
        print(f"{'ok    ' if met else 'MISSED'} {line}")
    return not all(met for met, _ in said)


def each(jobs: int, work: Callable[[str], Any], names: list[str]) -> Iterator[tuple[str, Any]]:
    """What `work` makes of each name, in order; on several processes if wanted."""
    if jobs <= 1:
        yield from ((name, work(name)) for name in names)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from zip(names, pool.map(work, names), strict=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", default=",".join(PROBLEMS), help="names, with commas between them; default: all")
    parser.add_argument("--pilots", type=int, default=100, help="pilots a cell")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seed", type=int, default=None, help="of the simulated noise; default: a fresh one, printed")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="keeps downloaded wheels and long non-private runs")
    parser.add_argument("--json", type=Path, default=None, help="write the results here as well")
    pilot_runs.add_options(parser)
    args = parser.parse_args()
    names = args.problems.split(",")
    if unknown := set(names) - set(PROBLEMS):
        parser.error(f"problems must be among {', '.join(PROBLEMS)}, got {', '.join(sorted(unknown))}.")
    if args.seed is None:
        args.seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {args.seed}")
    if args.runs:
        work, header, legend, missed = pilot_runs.work(args), pilot_runs.HEADER, pilot_runs.LEGEND, pilot_runs.missed
    else:
        work = partial(cells, pilots=args.pilots, seed=args.seed, folder=args.folder)
        header, legend, missed = HEADER, LEGEND, pilots_missed
    print(header)
    found: list[Any] = []
    for name, rows in each(args.jobs, work, names):
        if isinstance(rows, str):
            print(f"{name:<17} {rows}", flush=True)
            continue
        for row in rows:
            print(row.row(), flush=True)
        found += rows
    print(legend)
    if args.json is not None:
        plain = json.loads(json.dumps([asdict(row) for row in found]), parse_constant=lambda _: None)  # JSON has no NaN
        args.json.write_text(json.dumps(plain, indent=1))
    sys.exit(missed(found))


if __name__ == "__main__":
    main()
