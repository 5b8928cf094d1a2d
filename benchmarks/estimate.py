"""Does an estimate cover? Truths from the prior, tables from the model, estimates from simulated releases.

    python benchmarks/estimate.py [--sets 400] [--cells logistic-3-500-0.1-uniform,...] [--owners 3] [--jobs 2] [--straight]

Every cell is a model, a number of parameters, of records, an epsilon and a way covariates lie. For each set a truth is drawn from
the prior, a table from the truth, and an estimate is made as `sf.estimate` makes it. Wanted: 90 % intervals cover in 85 to 95 %
of the cases in each cell, and in 89 to 91 % of all (beyond chance: a cell's share has a standard error of its own, printed). The
error is compared with that of the one-shot limit: a single release of the score, at the mode, with the whole budget. Wanted: 1.3
times that at the most, where the limit is one draw or more. With several owners each has an equal budget and adds noise of its
own; the limit is that of as many who each release once.

A release is simulated: an exact sum over the table and NumPy's normal noise. The vault's own sums, noise and charges have tests
of their own. The price of every release is added up all the same, and an estimate that passes its budget ends the benchmark.
"""

import argparse
import json
import multiprocessing
import sys
import time
import zlib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import sfumato as sf
from sfumato.analysis import from_releases, local_normal
from sfumato.analysis.estimate import drawn, judge
from sfumato.bounds import synthetic
from sfumato.bounds.reach import Search, diameter
from sfumato.model import Model
from sfumato.model.derivatives import vector_function
from sfumato.model.trials import as_model_input
from sfumato.planner.belief import positive, prior_precision, safe_inverse
from sfumato.planner.centre import summit
from sfumato.planner.making import first_belief
from sfumato.planner.owners import share_out
from sfumato.planner.placing import place
from sfumato.privacy.promise import budget_mu
from sfumato.study.target import Study, make_study

DELTA = 1e-6
LEVEL = 0.9
EACH, ALL = (0.85, 0.95), (0.89, 0.91)
LARGEST_ERROR = 1.3


class Cell(NamedTuple):
    """A model, its parameters, records, budget, and the way covariates lie."""

    model: str
    dim: int
    n: int
    epsilon: float
    covariates: str

    @property
    def name(self) -> str:
        return f"{self.model}-{self.dim}-{self.n}-{self.epsilon:g}-{self.covariates}"


CELLS = [
    Cell("logistic", 3, 500, 0.1, "uniform"), Cell("logistic", 3, 500, 2.0, "skewed"), Cell("logistic", 3, 5_000, 0.5, "rare"),
    Cell("logistic", 10, 5_000, 2.0, "uniform"), Cell("logistic", 10, 50_000, 0.5, "skewed"),
    Cell("logistic", 3, 50_000, 8.0, "uniform"), Cell("logistic", 10, 500, 8.0, "rare"),
    Cell("poisson", 3, 500, 0.5, "uniform"), Cell("poisson", 3, 5_000, 0.1, "skewed"), Cell("poisson", 3, 5_000, 8.0, "rare"),
    Cell("poisson", 10, 50_000, 2.0, "uniform"), Cell("poisson", 10, 5_000, 0.5, "skewed"),
    Cell("poisson", 3, 50_000, 0.5, "rare"),
    Cell("normal", 3, 500, 2.0, "uniform"), Cell("normal", 3, 5_000, 0.5, "skewed"), Cell("normal", 10, 5_000, 8.0, "uniform"),
    Cell("normal", 10, 50_000, 2.0, "rare"), Cell("normal", 3, 50_000, 0.1, "uniform"), Cell("normal", 3, 500, 8.0, "rare"),
    Cell("student", 3, 500, 8.0, "uniform"), Cell("student", 3, 5_000, 0.5, "rare"), Cell("student", 10, 50_000, 2.0, "skewed"),
    Cell("student", 3, 50_000, 0.1, "skewed"), Cell("student", 10, 5_000, 2.0, "uniform"),
]  # fmt: skip


# -- models -----------------------------------------------------------------------------------------------------------------


def logistic(x, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1] + 1]).to_event(1))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=beta[0] + x @ beta[1:]), obs=y)


def poisson(x, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 0.5).expand([x.shape[1] + 1]).to_event(1))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(beta[0] + x @ beta[1:])), obs=y)


def normal(x, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1] + 1]).to_event(1))
    sigma = numpyro.sample("sigma", dist.LogNormal(0.0, 0.5))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Normal(beta[0] + x @ beta[1:], sigma), obs=y)


def student(x, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1] + 1]).to_event(1))
    sigma = numpyro.sample("sigma", dist.LogNormal(0.0, 0.5))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.StudentT(4.0, beta[0] + x @ beta[1:], sigma), obs=y)


MODELS: dict[str, tuple[Any, Any, int]] = {
    "logistic": (logistic, sf.Binary(), 1),
    "poisson": (poisson, sf.Integers(0, 30), 1),
    "normal": (normal, sf.Interval(-10.0, 10.0), 2),
    "student": (student, sf.Interval(-15.0, 15.0), 2),
}
"""Function, domain of the outcome, parameters besides the slopes."""


def covariates(kind: str, n: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    """Uniform; skewed towards one end; or rare ones among zeros (3 %)."""
    if kind == "uniform":
        return rng.uniform(-1.0, 1.0, (n, columns))
    if kind == "skewed":
        return 2 * rng.beta(0.8, 4.0, (n, columns)) - 1
    return (rng.random((n, columns)) < 0.03).astype(float)


@cache
def study_of(model: str, dim: int) -> Study:
    function, outcome, others = MODELS[model]
    return make_study(function, {"x": sf.Box(-1.0, 1.0, shape=(dim - others,)), "y": outcome})


def table_of(study: Study, cell: Cell, theta: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Records at the truth; outcomes that would leave the domain are clamped, as an owner's would be."""
    columns = study.domain["x"].shape[0]
    x = covariates(cell.covariates, cell.n, columns, rng)
    batch = {"x": x, "y": as_model_input(study.domain["y"], np.zeros(cell.n))}
    return synthetic.with_outcomes(study.model, study.domain, theta, batch, int(rng.integers(2**31)))


# -- releases without a vault -------------------------------------------------------------------------------------------------


@cache
def sums(model: Model, what: str) -> Any:
    """Compile (table, theta, matrix, radius, centre) -> sum of the records' vectors, each cut to the ball."""

    def total(table: Any, theta: Any, matrix: Any, radius: Any, centre: Any) -> jax.Array:
        def one(record: Any) -> jax.Array:
            apart = vector_function(what, model, theta, matrix)(record) - centre
            return apart * jnp.minimum(1.0, radius / jnp.maximum(jnp.linalg.norm(apart), 1e-300))

        return jax.vmap(one)(table).sum(axis=0) + len(table["y"]) * centre

    return jax.jit(total)


@dataclass
class Release:
    """What vaults would answer, and what each would have charged; each owner adds noise of its own."""

    study: Study
    table: dict[str, np.ndarray]
    rng: np.random.Generator
    cap: float
    owners: int = 1
    spent: float = 0.0

    def __call__(self, what: str, theta: Any, matrix: Any, radius: float, sigma: float, centre: Any) -> np.ndarray:
        own = sigma / self.owners**0.5
        self.spent += (2 * radius / own) ** 2
        if self.spent > self.cap:
            raise RuntimeError(f"an estimate may spend {self.cap:.6g} of mu squared, and asked for {self.spent:.6g}.")
        total = np.asarray(sums(self.study.model, what)(self.table, theta, matrix, radius, np.asarray(centre, float)))
        return total + own * self.rng.standard_normal((self.owners, len(total))).sum(axis=0)


# -- one estimate -------------------------------------------------------------------------------------------------------------


class Made(NamedTuple):
    """How one estimate compares with the truth, parameter by parameter (unconstrained)."""

    covers: list[bool]
    bare: list[bool]
    error: list[float]
    width: list[float]
    prior: float
    off: float
    limit: float
    surprise: bool
    effective: float
    seconds: float
    verdict: str


def one(cell: Cell, seed: int, number: int, straight: bool, owners: int = 1) -> Made:
    rng = np.random.default_rng([seed, zlib.crc32(cell.name.encode()), number])
    study, mu = study_of(cell.model, cell.dim), budget_mu(cell.epsilon, DELTA)
    model = study.model
    with jax.enable_x64(True):
        truth = np.asarray(model.sample_prior(jax.random.key(int(rng.integers(2**31)))))
        table = table_of(study, cell, truth, rng)
        belief = first_belief(study, cell.n, None, None)
        release, began = Release(study, table, rng, cap=mu**2, owners=owners), time.process_time()
        mu = share_out([mu**2] * owners, [1.0] * owners)[1]
        placed = place(model, study.domain, cell.n, belief.centre, 0.999 * mu**2, release, covariance=belief.covariance)
        found = from_releases.by_scores(model, study.domain, cell.n, placed.asked, seed=number, straight=straight)
        seconds = time.process_time() - began
        theta = found.theta[drawn(found.weight, 4000, number)]
        about = found.about | {"surprise": placed.surprise, "limit": (mu / placed.width) ** 2}
        said: Any = SimpleNamespace(about=about, label="", of_prior=found.of_prior)
        low, high = np.quantile(theta, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
        mode, covariance = posterior(study, table, truth)
        sd = np.sqrt(np.diag(covariance))
        root = np.linalg.cholesky(covariance)
        limit = (mu / diameter(Search(model, [study.domain]).vectors("gradient", mode, root))) ** 2
    return Made(
        ((low <= truth) & (truth <= high)).tolist(), (np.abs(mode - truth) < 1.645 * sd).tolist(),
        ((found.weight @ found.theta - mode) / sd).tolist(),
        ((high - low) / (3.29 * sd)).tolist(), float(np.median(list(found.of_prior.values()))), placed.off, limit,
        placed.surprise, found.about["effective"], seconds, judge(said).level,
    )  # fmt: skip


def posterior(study: Study, table: dict[str, np.ndarray], start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mode and covariance without privacy."""
    dim, theta = study.model.dim, start
    eye, zero = np.eye(dim), np.zeros(dim)
    for _ in range(30):
        score = np.asarray(sums(study.model, "gradient")(table, theta, eye, 1e300, zero))
        each = np.asarray(sums(study.model, "information")(table, theta, eye, 1e300, np.zeros(dim * (dim + 1) // 2)))
        information = positive(local_normal.triangle_to_matrix(each, dim))
        moved = summit(study.model, theta, score, information)
        if np.max(np.abs(moved - theta)) < 1e-8:
            break
        theta = moved
    return theta, safe_inverse(information + prior_precision(study.model, theta))


# -- all of them ----------------------------------------------------------------------------------------------------------------


HEADER = (
    f"{'cell':<32}{'sets':>5}{'limit':>8}{'covered':>9}{'+-':>6}{'bare':>7}{'width':>7}{'error':>7}{'/limit':>7}{'prior':>7}{'off':>6}"
    f"{'!':>4}{'said':>9}{'eff':>7}{'s':>6}"
)
LEGEND = """limit: one-shot, median. covered: share of 90 % intervals with the truth in them; bare: the same without
privacy, by the same tables: their luck. width: of intervals, beside those
without privacy. error: of the mean, in posterior sds without privacy; /limit: over limit^(-1/2), set by set. prior: posterior
over prior sd. off: length of the last gradient. !: surprises. said: verdicts, good/rough/unusable.
eff: effective points, the least. s: processor seconds."""


class Row(NamedTuple):
    """A cell's figures."""

    name: str
    sets: int
    covered: float
    error_of_it: float
    limit: float
    over_limit: float
    prior: float
    verdicts: dict[str, int]
    covered_by_verdict: dict[str, float]
    text: str


def row(cell: Cell, sets: int, seed: int, straight: bool, owners: int = 1) -> Row:
    return summed(cell, [one(cell, seed, number, straight, owners) for number in range(sets)])


def summed(cell: Cell, made: Sequence[Made]) -> Row:
    covers = np.array([m.covers for m in made], dtype=float)
    covered, se = covers.mean(), covers.mean(axis=1).std() / max(len(made), 2) ** 0.5
    limit = float(np.median([m.limit for m in made]))
    square = np.mean(np.square([m.error for m in made]), axis=1)
    over_limit = float(np.sqrt(np.mean(square * [m.limit for m in made])))
    prior = float(np.median([m.prior for m in made]))
    said = [m.verdict for m in made]
    verdicts = {level: said.count(level) for level in ("good", "rough", "unusable")}
    by_verdict = {
        level: float(np.mean([m.covers for m in made if m.verdict == level]))
        for level, times in verdicts.items() if times
    }  # fmt: skip
    text = (
        f"{cell.name:<32}{len(made):>5}{limit:>8.3g}{covered:>9.1%}{se:>6.1%}"
        f"{np.mean([m.bare for m in made]):>7.1%}{np.median([m.width for m in made]):>7.2f}"
        f"{np.mean(square) ** 0.5:>7.2f}{over_limit:>7.2f}{prior:>7.2f}{np.median([m.off for m in made]):>6.2g}"
        f"{sum(m.surprise for m in made):>4}{'/'.join(map(str, verdicts.values())):>9}"
        f"{min(m.effective for m in made):>7.0f}{np.median([m.seconds for m in made]):>6.2f}"
    )
    return Row(cell.name, len(made), float(covered), float(se), limit, over_limit, prior, verdicts, by_verdict, text)


def missed(rows: list[Row]) -> bool:
    """Print what is wanted and what was found; chance is allowed for with three standard errors."""
    weight = np.array([r.sets for r in rows], float)
    pooled = float(np.average([r.covered for r in rows], weights=weight))
    spread = float(np.sqrt(np.sum((weight / weight.sum() * [r.error_of_it for r in rows]) ** 2)))
    outside = [r.name for r in rows if not EACH[0] - 3 * r.error_of_it <= r.covered <= EACH[1] + 3 * r.error_of_it]
    inside = ALL[0] - 3 * spread <= pooled <= ALL[1] + 3 * spread
    print(f"{'ok    ' if not outside else 'MISSED'} every cell covers in 85 to 95 %: {', '.join(outside) or 'all'}")
    print(f"{'ok    ' if inside else 'MISSED'} all together in 89 to 91 %: {pooled:.1%} +- {spread:.1%}")
    far = [f"{r.name} ({r.over_limit:.2f})" for r in rows if r.limit >= 1 and r.over_limit > LARGEST_ERROR]
    print(
        f"{'ok    ' if not far else 'MISSED'} error at most 1.3 of the limit's, from one draw on: {', '.join(far) or 'all'}"
    )
    return bool(outside or far) or not inside


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", default=",".join(c.name for c in CELLS), help="names, with commas; default: all")
    parser.add_argument("--sets", type=int, default=40, help="data sets a cell")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--owners", type=int, default=1, help="owners with equal budgets, each with noise of its own")
    parser.add_argument(
        "--seed", type=int, default=None, help="of truths, tables and noise; default: a fresh one, printed"
    )
    parser.add_argument(
        "--straight", action="store_true", help="with straight means, to see what bending them is worth"
    )
    parser.add_argument("--json", type=Path, default=None, help="write the rows here as well")
    args = parser.parse_args()
    known = {c.name: c for c in CELLS}
    if unknown := set(args.cells.split(",")) - set(known):
        parser.error(f"cells must be among {', '.join(known)}, got {', '.join(sorted(unknown))}.")
    seed = args.seed if args.seed is not None else int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}\n{HEADER}", flush=True)
    work, chosen = (
        partial(row, sets=args.sets, seed=seed, straight=args.straight, owners=args.owners),
        [known[c] for c in args.cells.split(",")],
    )
    rows: list[Row] = []

    def keep(found: Row) -> None:
        rows.append(found)
        print(found.text, flush=True)
        if args.json is not None:  # after every cell: what was measured is kept when the rest is not waited for
            args.json.write_text(json.dumps([r._asdict() for r in rows], indent=1))

    if args.jobs > 1:
        with ProcessPoolExecutor(args.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
            for found in pool.map(work, chosen):
                keep(found)
    else:
        for cell in chosen:
            keep(work(cell))
    print(LEGEND)
    sys.exit(missed(rows))


if __name__ == "__main__":
    main()
