"""Beside other private estimates at the same (epsilon, delta): how far from the posterior, and does an interval cover it?

    python benchmarks/rivals.py [--tables adult,wages] [--epsilon 0.5 1 2 4 8] [--repeats 20]

Two public tables (`problems.py`): Adult, a logistic regression with seven coefficients; wages, a linear regression with four
coefficients whose residual scale is known. Everybody gets the table, the same public domain, and delta = 1e-6.

`error` is the root mean square over coefficients and repeats of |estimate - non-private posterior mean| in non-private posterior
standard deviations. `covers` is the share of 90 % intervals that hold the non-private posterior mean: the intervals of a
noise-aware posterior know of the noise, and must hold it at least that often. Rivals state no interval.

- *sf.estimate* is given the model, *family* `LinearRegression`, whose scale is unknown (where there is one it must
  not be behind), *bundle* the same family released once, for `noise_aware()`.
- *one release*: X'X, X'y and y'y with Gaussian noise, once, then least squares (replacement of one record, as here).
- *diffprivlib* 0.6 (``pip install diffprivlib "scikit-learn<1.6"``; its rows are left out without it): its linear and logistic
  regression. They promise epsilon with delta = 0, a stronger promise, for which they pay.
"""

import argparse
import itertools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from problems import FOLDER, PROBLEMS, Problem, Reference, reference

import sfumato as sf

DELTA = 1e-6
TABLES = {"adult": "adult", "wages": "wages-known"}
SIGNIFICANT = 2.0
"""Standard errors by which a rival may be ahead and it is still noise."""


class Case(NamedTuple):
    """A table, its posterior without privacy, and who estimates it."""

    problem: Problem
    known: Reference
    x: np.ndarray
    y: np.ndarray
    sd: np.ndarray

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        domain = self.problem.domain["x"]
        return np.broadcast_to(domain.lo, domain.shape), np.broadcast_to(domain.hi, domain.shape)


class Estimated(NamedTuple):
    """Coefficients (intercept first), and the ends of their 90 % intervals if there are any."""

    value: np.ndarray
    lower: np.ndarray | None = None
    upper: np.ndarray | None = None


def load(name: str, folder: Path) -> Case:
    problem = PROBLEMS[TABLES[name]]
    known, table = reference(problem, folder), problem.table(folder)
    return Case(problem, known, table["x"], table["y"], np.sqrt(np.diag(known.covariance)))


# -- who estimates ------------------------------------------------------------------------------------------------------


def ours(case: Case, epsilon: float, rng: np.random.Generator) -> Estimated:
    estimate = sf.estimate(
        case.problem.model, {"x": case.x, "y": case.y}, domain=case.problem.domain, epsilon=epsilon, delta=DELTA,
        seed=int(rng.integers(2**31)), progress=False,
    )  # fmt: skip
    draws = {name: np.asarray(value).reshape(-1, *np.shape(value)[2:]) for name, value in estimate.draws.items()}
    flat = np.column_stack([draws["alpha"], draws["beta"]])
    return of_draws(flat)


def regression(case: Case) -> sf.families.LinearRegression:
    """The same regression as a family; its scale is unknown."""
    return sf.families.LinearRegression(case.problem.domain["x"], case.problem.domain["y"], intercept=True)


def our_family(case: Case, epsilon: float, rng: np.random.Generator) -> Estimated:
    estimate = sf.estimate(
        regression(case), {"x": case.x, "y": case.y}, epsilon=epsilon, delta=DELTA, seed=int(rng.integers(2**31)),
        progress=False,
    )  # fmt: skip
    return of_draws(estimate.draws["coefficients"])


def our_bundle(case: Case, epsilon: float, rng: np.random.Generator) -> Estimated:
    bundle = sf.release(
        regression(case), {"x": case.x, "y": case.y}, epsilon=epsilon, delta=DELTA, copies=1, progress=False
    )
    return of_draws(bundle.noise_aware(seed=int(rng.integers(2**31))).draws["coefficients"])


def of_draws(coefficients: np.ndarray) -> Estimated:
    flat = np.asarray(coefficients).reshape(-1, np.shape(coefficients)[-1])
    return Estimated(flat.mean(axis=0), *np.quantile(flat, [0.05, 0.95], axis=0))


def one_release(case: Case, epsilon: float, rng: np.random.Generator) -> Estimated:
    """Sufficient statistics of least squares, once, with noise for the two records that are furthest apart."""
    lo, hi = case.bounds
    corners = np.array(list(itertools.product(*zip(lo, hi, strict=True))))
    ends = [
        statistics(np.atleast_2d(x), np.array([y]))
        for x in corners
        for y in (case.problem.domain["y"].lo, case.problem.domain["y"].hi)
    ]
    moved = max(np.linalg.norm(a - b) for a, b in itertools.combinations(ends, 2))
    sigma = moved / sf.gdp.mu(epsilon, DELTA)
    noisy = statistics(case.x, case.y) + sigma * rng.standard_normal(len(ends[0]))
    d = case.x.shape[1] + 1
    gram = np.zeros((d, d))
    gram[np.triu_indices(d)] = noisy[: d * (d + 1) // 2]
    gram = gram + np.triu(gram, 1).T
    return Estimated(np.linalg.lstsq(gram, noisy[-d:], rcond=None)[0])


def statistics(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """X'X above the diagonal, and X'y; with an intercept."""
    design = np.column_stack([np.ones(len(x)), x])
    gram = design.T @ design
    return np.concatenate([gram[np.triu_indices(len(gram))], design.T @ np.ravel(y)])


def diffprivlib_logistic(case: Case, epsilon: float, rng: np.random.Generator) -> Estimated:
    from diffprivlib.models import LogisticRegression

    norm = float(np.linalg.norm(np.maximum(*np.abs(case.bounds))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = LogisticRegression(epsilon=epsilon, data_norm=norm, C=4.0, max_iter=1000, random_state=None)
        fit.fit(case.x, case.y)
    return Estimated(np.concatenate([fit.intercept_, fit.coef_[0]]))


def diffprivlib_linear(case: Case, epsilon: float, rng: np.random.Generator) -> Estimated:
    from diffprivlib.models import LinearRegression

    ends = case.problem.domain["y"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = LinearRegression(epsilon=epsilon, bounds_X=case.bounds, bounds_y=(float(ends.lo), float(ends.hi)))
        fit.fit(case.x, case.y)
    return Estimated(np.concatenate([[float(np.ravel(fit.intercept_)[0])], np.ravel(fit.coef_)]))


RIVALS: dict[str, dict[str, Callable[..., Estimated]]] = {
    "adult": {"sf.estimate": ours, "diffprivlib": diffprivlib_logistic},
    "wages": {
        "sf.estimate": ours, "family": our_family, "bundle": our_bundle, "one release": one_release,
        "diffprivlib": diffprivlib_linear,
    },
}  # fmt: skip
OURS = ("sf.estimate", "family", "bundle")


# -- the table ----------------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """Of one estimator at one epsilon."""

    error: float
    uncertain: float
    covers: float


def measure(case: Case, who: Callable[..., Estimated], epsilon: float, repeats: int, seed: int) -> Row:
    squares, covered = [], []
    for number in range(repeats):
        found = who(case, epsilon, np.random.default_rng([seed, number]))
        off = (found.value - case.known.mode) / case.sd
        squares.append(np.mean(off**2))
        if found.lower is not None and found.upper is not None:
            covered.append(np.mean((found.lower <= case.known.mode) & (case.known.mode <= found.upper)))
    error = float(np.sqrt(np.mean(squares)))
    uncertain = float(np.std(squares) / max(repeats - 1, 1) ** 0.5 / (2 * error))
    return Row(error, uncertain, float(np.mean(covered)) if covered else np.nan)


def estimators(table: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, who in RIVALS[table].items():
        if name == "diffprivlib":
            try:
                import diffprivlib  # noqa: F401
            except ImportError:
                print(
                    'diffprivlib is not installed (pip install diffprivlib "scikit-learn<1.6"): its rows are left out'
                )
                continue
        yield name, who


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--epsilon", nargs="*", type=float, default=[0.5, 1.0, 2.0, 4.0, 8.0])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the rivals' noise; ours has none")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="keeps downloaded wheels")
    args = parser.parse_args()
    print(f"{'table':<8}{'epsilon':>8}  {'who':<14}{'error':>8}{'+-':>7}{'covers':>8}")
    missed = []
    for table in args.tables.split(","):
        case, who = load(table, args.folder), dict(estimators(table))
        for epsilon in args.epsilon:
            rows = {name: measure(case, one, epsilon, args.repeats, args.seed) for name, one in who.items()}
            for name, row in rows.items():
                print(
                    f"{table:<8}{epsilon:>8g}  {name:<14}{row.error:>8.2f}{row.uncertain:>7.2f}"
                    + (f"{row.covers:>8.0%}" if np.isfinite(row.covers) else ""),
                    flush=True,
                )
            mine = rows["family"] if "family" in rows else rows["sf.estimate"]
            for name, row in rows.items():
                behind = mine.error - row.error > SIGNIFICANT * np.hypot(mine.uncertain, row.uncertain)
                if name not in OURS and behind:
                    missed.append(f"{table}, epsilon = {epsilon:g}: behind {name}")
                if row.covers < 0.85:
                    missed.append(f"{table}, epsilon = {epsilon:g}: {name} covers {row.covers:.0%}")
    print("\n".join(["MISSED " + line for line in missed] or ["ok     never behind, and covering"]))
    raise SystemExit(bool(missed))


if __name__ == "__main__":
    main()
