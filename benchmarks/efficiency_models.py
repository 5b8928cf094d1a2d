"""Rows of `efficiency.py` for models that are no exponential family: logistic, Poisson, normal and Student-t regression.

One run is: a pilot from the prior's median, a plan from what it found, a chain until the budget (pilot included) is spent. The
share is one over the mean squared error of a run's posterior means (whitened, against a long non-private NUTS run), over
ESS* = mu^2 / diameter^2 of the scores at the posterior's mean, whitened by its covariance; the variance is that of the draws
about the exact mean over the exact one, all runs together.

Many runs go through one real vault at once, as chains with their own pilots, reference points and noise; each run's draws are
cut where its own charges pass its own cap. Two shortcuts make it affordable on two cores. The n = 100 000 records are 1000
different ones with 100 copies each, which the vault counts, so a pass costs a hundredth; nothing else changes. And the runs of
a cell share h and sigma (and, for the walks, the step matrix), from the plan after the first pilot, and every pilot serves
four runs (``--pilots``): what each costs is counted for each of them.

A run's start is a draw itself, from what the pilot found, so a chain that stands still is worth one draw: where ESS* is 34 that
is a share of 0.03, whatever the kernel. How many times the walk Langevin is, is therefore judged by the draws that *steps* give:
N/tau, N the steps a run paid for and tau the integrated autocorrelation time, from the same chains run on for ``--further`` steps
that nobody counts (of Langevin a quarter of them). The figure with starts stands beside it.
"""

import argparse
import json
import time
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS

import sfumato as sf
from sfumato.domain import Domain
from sfumato.kernel import PublicStream, State
from sfumato.planner import build_kernel
from sfumato.planner.limit import limit_ess
from sfumato.planner.making import PILOT_SHARE, make_plan, replan
from sfumato.planner.pilot import run_pilot
from sfumato.planner.plan import Plan
from sfumato.planner.reference import reference_kernel
from sfumato.privacy.budget import QUANTA_PER_UNIT
from sfumato.study.target import Study, make_study
from sfumato.vault import records
from sfumato.vault.vault import Vault

N, DISTINCT = 100_000, 1_000
KERNELS = ("langevin", "guided", "random-walk")


# -- models -----------------------------------------------------------------------------------------------------------


def logistic(x, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 2.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


def poisson(x, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ beta)), obs=y)


def normal(x, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Normal(x @ beta, scale), obs=y)


def student(x, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.StudentT(4.0, x @ beta, scale), obs=y)


@dataclass(frozen=True)
class Case:
    """A model, where its records live, and how outcomes are made."""

    model: object
    x: Domain
    y: Domain

    @property
    def domain(self) -> dict[str, Domain]:
        return {"x": self.x, "y": self.y}

    def data(self) -> dict[str, np.ndarray]:
        """Made-up records: covariates uniform over their domain, outcomes from the model, cut to their domain."""
        rng = np.random.default_rng(7)
        d = self.x.size
        x = self.x.sample(rng, DISTINCT)
        mean = x @ (np.where(np.arange(d) % 2, -0.5, 1.0) / np.sqrt(d))
        if self.model is logistic:
            y = (rng.random(DISTINCT) < 1 / (1 + np.exp(-mean))).astype(int)
        elif self.model is poisson:
            y = np.minimum(rng.poisson(np.exp(mean)), int(self.y.hi))
        else:
            noise = rng.standard_normal(DISTINCT) if self.model is normal else rng.standard_t(4, DISTINCT)
            y = np.clip(mean + 0.7 * noise, self.y.lo, self.y.hi)
        return {"x": x, "y": y}


CASES = {
    "logistic-ball-2": Case(logistic, sf.Ball(1.0, dim=2), sf.Binary()),
    "logistic-ball-5": Case(logistic, sf.Ball(1.0, dim=5), sf.Binary()),
    "logistic-ball-20": Case(logistic, sf.Ball(1.0, dim=20), sf.Binary()),
    "logistic-box-5": Case(logistic, sf.Box(-1.0, 1.0, shape=(5,)), sf.Binary()),
    "poisson-ball-5": Case(poisson, sf.Ball(1.0, dim=5), sf.Integers(0, 8)),
    "normal-ball-5": Case(normal, sf.Ball(1.0, dim=5), sf.Interval(-3.0, 3.0)),
    "student-ball-5": Case(student, sf.Ball(1.0, dim=5), sf.Interval(-6.0, 6.0)),
}


# -- the exact posterior ------------------------------------------------------------------------------------------------


def exact_posterior(study: Study, data: dict[str, np.ndarray], draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance from a long NUTS run on the same counted records."""
    with jax.enable_x64(True):
        table = {k: jnp.asarray(v) for k, v in data.items()}
        each = jax.vmap(study.model.log_likelihood, (None, 0))

        def potential(theta):
            return -study.model.log_prior(theta) - N / DISTINCT * each(theta, table).sum()

        mode = jnp.zeros(study.model.dim)
        for _ in range(30):
            mode = mode - jnp.linalg.solve(jax.hessian(potential)(mode), jax.grad(potential)(mode))
        kernel = NUTS(potential_fn=potential, dense_mass=True)
        mcmc = MCMC(
            kernel, num_warmup=500, num_samples=draws, num_chains=2, chain_method="vectorized", progress_bar=False
        )
        mcmc.run(jax.random.key(0), init_params=jnp.stack([mode, mode]))
        theta = np.asarray(mcmc.get_samples())
    return theta.mean(0), np.cov(theta.T)


# -- many runs at once --------------------------------------------------------------------------------------------------


class Meter:
    """An account that always pays and remembers how much."""

    quanta = left = 2**62

    def __init__(self) -> None:
        self.spent = 0

    def reserve(self, quanta: int) -> "Meter":
        self.spent += quanta
        return self

    def reserve_up_to(self, quanta: int, at_least: int) -> "Meter":
        return self

    def settle(self, quanta: int) -> None:
        pass


@dataclass
class Runs:
    """Runs of one cell: draws (step, run, d), how many steps each could pay, what was forecast."""

    theta: np.ndarray
    paid: np.ndarray
    plan: Plan
    pilot_error: np.ndarray
    accepted: float
    second_share: float
    further: np.ndarray  # means over the steps that went on, one per run
    further_steps: int


def run_many(
    study: Study, data, plan: Plan, kernel: str, runs: int, pilots: list, different: int, further: int
) -> Runs:
    """Chains with the pilots given, each until its own budget is spent."""
    table = records.load(data, study.domain)
    counted = records.Records(table.columns, N, np.full(DISTINCT, N // DISTINCT))
    meter = Meter()
    vault = Vault(counted, study, meter)  # type: ignore[arg-type]
    if not pilots:
        for _ in range(different):
            before = meter.spent
            with jax.enable_x64(True):
                found = run_pilot(
                    study.model,
                    study.domain,
                    N,
                    plan.belief.centre,
                    plan.pilot_share * plan.mu**2 * 0.999,
                    vault.release,
                    covariance=plan.belief.covariance,
                    most=0.999 * max(plan.pilot_share, PILOT_SHARE) * plan.mu**2,
                )
            pilots.append((found.belief, meter.spent - before))
        pilots[:] = [pilots[i % different] for i in range(runs)]
    left = 1 - pilots[0][1] / QUANTA_PER_UNIT / plan.mu**2
    tuned = replan(plan, study, pilots[0][0], left, kernel=kernel, max_iterations=plan.iterations)
    rng = np.random.default_rng(1)
    roots = [np.linalg.cholesky(p.covariance) for p, _ in pilots]
    start = np.stack([p.centre + np.linalg.cholesky(p.start) @ rng.standard_normal(len(p.centre)) for p, _ in pilots])
    stream = PublicStream(1, runs)
    with jax.enable_x64(True):
        theta = jnp.asarray(start)
        pending = jnp.full(theta.shape, jnp.nan) if kernel == "langevin" else None
        direction = jnp.asarray(stream.directions(tuned.matrix.shape[1]))
        states = State(theta, jax.vmap(study.model.log_prior)(theta), direction, pending)
        first = np.zeros(runs)
        if kernel == "langevin":
            kernels = [reference_kernel(study, p, r, tuned.step) for (p, _), r in zip(pilots, roots, strict=True)]
            vault.begin_each(kernels, tuned.sigma, states)
            proven = [study.reference_bounds.at(k.centre, k.matrix).gradients.diameter for k in kernels]
            first = (np.array(proven) / kernels[0].proposal_sigma) ** 2
            drawer = kernels[0]
        else:
            drawer = build_kernel(study, tuned)
            vault.begin(drawer, tuned.sigma, states)
    cap = plan.mu**2 - np.array([spent / QUANTA_PER_UNIT for _, spent in pilots])
    parts, spent, size = [], np.zeros(runs), int(np.clip(tuned.iterations // 4, 16, 256))
    while spent.min() < cap.min() and (spent < cap).any() and len(parts) * size < 4 * tuned.iterations:
        chunk = vault.chunk(states, stream.peek(drawer, size), size, 2**62)
        stream.consume(chunk.steps)
        states = chunk.states
        parts.append(chunk.transcript)
        cost = (np.asarray(chunk.transcript.sensitivity) / tuned.sigma) ** 2 + first
        spent += cost.sum(0)
    means, counted_steps = go_on(vault, states, stream, drawer, size, further)
    vault.close()
    draws, widths, accepted = (
        np.concatenate([getattr(p, k) for p in parts]) for k in ("theta", "sensitivity", "accepted")
    )
    second = (widths / tuned.sigma) ** 2
    charged = np.cumsum(second + first, axis=0)
    paid = np.minimum((charged <= cap).sum(0), tuned.iterations if kernel != "langevin" else 10**9)
    inside = np.arange(len(draws))[:, None] < paid
    share = float((second * inside).sum() / ((second + first) * inside).sum())
    found = np.stack([p.centre for p, _ in pilots])
    return Runs(draws, paid, tuned, found, float(accepted[inside].mean()), share, means, counted_steps)


def go_on(vault: Vault, states: State, stream: PublicStream, drawer, size: int, further: int) -> tuple[np.ndarray, int]:
    """Means of the same chains over the last three quarters of further steps; the first quarter forgets the start."""
    total, steps = np.zeros(np.shape(states.theta)), 0
    for number in range(-(-further // size)):
        chunk = vault.chunk(states, stream.peek(drawer, size), size, 2**62)
        stream.consume(chunk.steps)
        states = chunk.states
        if number * size >= further // 4:
            total += np.asarray(chunk.transcript.theta).sum(0)
            steps += chunk.steps
    return total / max(steps, 1), steps


def judge(runs: Runs, mean: np.ndarray, covariance: np.ndarray, limit: float) -> dict:
    """Shares and variance, in coordinates whitened by the exact posterior."""
    root = np.linalg.inv(np.linalg.cholesky(covariance))
    inside = (np.arange(len(runs.theta))[:, None] < runs.paid)[..., None]
    z = (runs.theta - mean) @ root.T
    means = (z * inside).sum(0) / runs.paid[:, None]
    error = float((means**2).mean())
    per_run = ((z**2) * inside).sum(0) / runs.paid[:, None]
    weight = runs.paid[:, None] / runs.paid.mean()
    variance = per_run * weight
    off = (runs.pilot_error - mean) @ root.T
    on = (runs.further - mean) @ root.T
    per_step = 1 / float((on**2).mean()) / runs.further_steps  # 1 / tau
    return {
        "by_steps": per_step * float(runs.paid.mean()) / limit,
        "by_steps_error": per_step * float(runs.paid.mean()) / limit * (2 / on.size) ** 0.5,
        "share": 1 / error / limit,
        "share_error": (2 / means.size) ** 0.5 / error / limit,
        "forecast": runs.plan.forecast_ess / limit,
        "variance": float(variance.mean()),
        "variance_error": float(variance.mean(1).std() / len(variance) ** 0.5),
        "ess": 1 / error,
        "limit": limit,
        "h": runs.plan.step,
        "sigma": runs.plan.sigma,
        "iterations": int(np.median(runs.paid)),
        "accepted": runs.accepted,
        "second": runs.second_share,
        "pilot_rms": float(np.sqrt((off**2).mean())),
        "pilot_within_2": float((np.abs(off) < 2).mean()),
    }


def cell(name: str, epsilon: float, args: argparse.Namespace, exact: tuple[np.ndarray, np.ndarray]) -> list[dict]:
    case = CASES[name]
    study, data = make_study(case.model, case.domain), case.data()
    out, pilots = [], []
    mean, covariance = exact
    auto = make_plan(study, n=N, epsilon=epsilon, delta=1e-6, chains=1, max_iterations=20_000)
    with jax.enable_x64(True):
        picture = type(auto.belief)(mean, covariance, "exact")
        limit = limit_ess(study.model, study.domain, picture, auto.mu)
    for kernel in KERNELS:
        began = time.perf_counter()
        steps = 20_000 if kernel == "langevin" else args.walk_steps
        plan = make_plan(
            study, n=N, epsilon=epsilon, delta=1e-6, kernel=kernel, chains=1, max_iterations=steps,
            pilot_share=auto.pilot_share,
        )  # fmt: skip
        further = args.further // 4 if kernel == "langevin" else args.further
        found = run_many(study, data, replace(plan, iterations=steps), kernel, args.runs, pilots, args.pilots, further)
        row = {"case": name, "epsilon": epsilon, "kernel": kernel, "auto": auto.kernel, "pilot": auto.pilot_share}
        row |= judge(found, mean, covariance, limit) | {"seconds": time.perf_counter() - began, "runs": args.runs}
        row["refused"] = plan.weak or found.plan.weak
        out.append(row)
    return out


def verdict(row: dict, walk: dict | None) -> str:
    """What a Langevin row misses of what is wanted, in a word; walks, and what `sample` would refuse, are only shown."""
    if row["kernel"] != "langevin" or row["refused"]:
        return ""
    dim = int(row["case"].rsplit("-", 1)[1])
    logistic_one = row["case"].startswith("logistic")
    missed = []
    if logistic_one and row["share"] < {5: 0.65, 20: 0.55}.get(dim, 0.0):
        missed.append("share")
    if walk is not None and logistic_one and row["by_steps"] < {5: 5.0, 20: 20.0}.get(dim, 1.0) * walk["by_steps"]:
        missed.append("times the walk")
    if abs(row["variance"] - 1) > 0.02:
        missed.append("variance")
    if row["auto"] != "langevin":
        missed.append("auto")
    if not 1 / 1.5 <= row["share"] / row["forecast"] <= 1.5:
        missed.append("forecast")
    if row["pilot_rms"] > 2:
        missed.append("pilot")
    return ", ".join(missed)


HEADER = (
    f"{'model':<17} {'kernel':<12} {'runs':>4} {'eps':>4} {'ESS*':>7} {'h/step, sigma':>14} {'k':>6} {'accept':>6} {'2nd':>5} "
    f"{'share':>7} {'+-':>6} {'forecast':>8} {'ratio':>6} {'variance':>8} {'+-':>6} {'pilot off':>9} {'s':>5}"
)


def line(row: dict, missed: str) -> str:
    """A row of the table."""
    tuning = f"{row['h']:.3g}, {row['sigma']:.2g}"
    return (
        f"{row['case']:<17} {row['kernel']:<12} {row['runs']:>4} {row['epsilon']:>4g} {row['limit']:>7.1f} {tuning:>14} "
        f"{row['iterations']:>6} {row['accepted']:>6.3f} {row['second']:>5.3f} {row['share']:>7.4f} {row['share_error']:>6.4f} "
        f"{row['forecast']:>8.4f} {row['share'] / row['forecast']:>6.3f} {row['variance']:>8.4f} {row['variance_error']:>6.4f} "
        f"{row['pilot_rms']:>6.2f} sd {row['seconds']:>5.0f}{'  MISSED: ' + missed if missed else ''}"
        f"{'  refused: PlanTooWeak' if row['refused'] else ''}"
    )


def table(args: argparse.Namespace) -> int:
    """Print the rows as they come; return how many miss what is wanted."""
    print(HEADER)
    missed = 0
    for name in [name for name in CASES if args.only in name]:
        case = CASES[name]
        exact = exact_posterior(make_study(case.model, case.domain), case.data(), args.draws)
        for epsilon in args.epsilon:
            rows = cell(name, epsilon, args, exact)
            walk = next(row for row in rows if row["kernel"] == "random-walk")
            for row in rows:
                found = verdict(row, walk)
                missed += bool(found)
                print(line(row, found), flush=True)
            times, starts = (rows[0][key] / walk[key] for key in ("by_steps", "share"))
            error = times * sum((row["by_steps_error"] / row["by_steps"]) ** 2 for row in (rows[0], walk)) ** 0.5
            print(
                f"{'':<17} N/tau over ESS*: "
                + ", ".join(f"{row['kernel']} {row['by_steps']:.4f} (+- {row['by_steps_error']:.4f})" for row in rows)
                + f"; langevin over random-walk: {times:.1f} (+- {error:.1f}) times; starts counted: {starts:.1f} times"
            )
            if args.out:
                with args.out.open("a") as file:
                    file.writelines(json.dumps(row) + "\n" for row in rows)
    print(
        "pilot off: root mean square of the pilot's error in posterior standard deviations, coordinate by coordinate."
    )
    return missed
