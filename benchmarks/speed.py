"""How fast is a private chain? Ratios against rivals, measured side by side in one run.

    python benchmarks/speed.py            all comparisons
    python benchmarks/speed.py --quick    smaller, for a look

What is compared, and how it is kept fair: the same logistic regression, the same records, the same number of chains, the
same number of steps, compilation left out everywhere, the best of several repetitions taken of each, repetitions of the
rivals interleaved. The private chain includes everything a user's run includes: drawing the noise, proving each step's
sensitivity, rounding and clamping every record's term, integer sums, the filter, the (in-memory) ledger.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import sfumato as sf
from sfumato.kernel import PublicStream, RandomWalk, ReferenceLangevin, State
from sfumato.privacy.budget import cap_quanta
from sfumato.study.target import make_study
from sfumato.vault import lattice, records
from sfumato.vault.blocks import LEAN, WIDE, Evaluation, Rows, sum_over_blocks
from sfumato.vault.ledger import Ledger
from sfumato.vault.vault import Vault

SIGMA, SCALE = 2.0, 0.005


def make_model(d: int) -> Callable[..., None]:
    def logistic(x: Any, y: Any) -> None:
        beta = numpyro.sample("beta", dist.Normal(0.0, 2.0).expand([d]).to_event(1))
        with numpyro.plate("records", y.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)

    return logistic


def make_data(n: int, d: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (n, d))
    y = (rng.random(n) < 1 / (1 + np.exp(-x @ np.linspace(-1, 1, d)))).astype(np.int8)
    return {"x": x, "y": y}


class Private:
    """The private chain, as `sf.sample` runs it once the plan is made."""

    def __init__(self, n: int, d: int, chains: int, steps: int, precision: str = "float64") -> None:
        domain = {"x": sf.Box(-1, 1, shape=(d,)), "y": sf.Binary()}
        self.study = make_study(make_model(d), domain)
        data = make_data(n, d)
        if precision == "float32":
            data["x"] = data["x"].astype(np.float32)
        self.kernel = RandomWalk(np.eye(d) * SCALE, 1.0)
        self.ledger = Ledger.in_memory(cap_quanta(64.0))
        account = self.ledger.account("bench", cap_quanta(64.0))
        self.vault = Vault(records.load(data, domain), self.study, account, precision=precision)
        self.stream = PublicStream(0, chains)
        with jax.enable_x64(True):
            theta = jnp.broadcast_to(jnp.linspace(-1, 1, d), (chains, d))
            self.states = State(theta, jax.vmap(self.study.model.log_prior)(theta), jnp.ones((chains, d)))
        self.vault.begin(self.kernel, SIGMA, self.states)
        self.steps = steps
        self.chunk = min(steps, 8192)

    def __call__(self) -> None:
        done = 0
        while done < self.steps:
            draws = self.stream.peek(self.kernel, self.chunk)
            chunk = self.vault.chunk(self.states, draws, self.chunk, self.vault.left // 64)
            assert chunk.steps == self.chunk, "the benchmark's budget ended early"
            chunk.settle()
            self.states = chunk.states
            self.stream.consume(chunk.steps)
            done += chunk.steps


class Around:
    """Private Langevin around a reference point, as `sf.sample` runs it; and one bare pass: the likelihoods of all chains."""

    def __init__(self, n: int, d: int, chains: int) -> None:
        study = make_study(make_model(d), {"x": sf.Box(-1, 1, shape=(d,)), "y": sf.Binary()})
        account = Ledger.in_memory(cap_quanta(64.0)).account("bench", cap_quanta(64.0))
        self.vault = Vault(records.load(make_data(n, d), study.domain), study, account)
        sd, centre = (12.0 / n) ** 0.5, np.linspace(-1, 1, d)
        kernel = ReferenceLangevin(np.eye(d) * sd, 1.0, study.model.log_prior, centre, np.eye(d) / sd**2, d**0.5 + 10)
        self.pairs, self.kernel, self.stream = n * chains, kernel, PublicStream(0, chains)
        self.steps = max(4, min(64, 16_000_000 // self.pairs))
        with jax.enable_x64(True):
            theta = jnp.asarray(centre + sd * np.random.default_rng(1).standard_normal((chains, d)))
            log_prior = jax.vmap(study.model.log_prior)(theta)
            self.states = State(theta, log_prior, jnp.ones((chains, d)), jnp.full((chains, d), jnp.nan))
            self.vault.begin(kernel, 1.0, self.states)
            how, self.rows = Evaluation(study.model, study.domain, "float64"), self.vault._engine.records
            zero = jnp.zeros(chains)
            self.bare = jax.jit(
                lambda rows, t: sum_over_blocks(rows, lambda block: how.terms_of_all(block, t).sum(axis=1), zero),
                compiler_options=LEAN | WIDE,
            )

    def step(self) -> float:
        """Processor time of a step, in nanoseconds a (chain, record)."""
        draws = self.stream.peek(self.kernel, self.steps)
        began = time.process_time()
        chunk = self.vault.chunk(self.states, draws, self.steps, self.vault.left // 64)
        return (time.process_time() - began) / chunk.steps / self.pairs * 1e9

    def one_pass(self) -> float:
        """The same of a bare pass."""
        with jax.enable_x64(True):
            began = time.process_time()
            for _ in range(self.steps):
                jax.block_until_ready(self.bare(self.rows, self.states.theta))
        return (time.process_time() - began) / self.steps / self.pairs * 1e9

    def close(self) -> None:
        self.vault.close()


def around(sizes: tuple[int, ...], repetitions: int) -> list[tuple[str, float, float]]:
    """What a (chain, record) costs Langevin at each size, beside a bare pass; best of several, taken in turns."""
    print("\nLangevin around a reference point, d = 10, 4 chains: ns of processor time a (chain, record)")
    found = {}
    for n in sizes:
        run = Around(n, 10, 4)
        run.step(), run.one_pass()
        pairs = [(run.step(), run.one_pass()) for _ in range(repetitions)]
        step, bare = (min(column) for column in zip(*pairs, strict=True))
        found[n] = step, bare
        print(f"  n = {n:<12,} a step {step:8.1f}   a bare pass {bare:8.1f}   times {step / bare:6.2f}", flush=True)
        run.close()
    steps = [step for step, _ in found.values()]
    worst = max(step / bare for step, bare in found.values())
    spread = "rate of a bare pass against a Langevin step, worst n", 1 / worst, 1 / 1.5
    return [("(chain, record) at the best n against the worst", min(steps) / max(steps), 1 / 1.3), spread]


class BlackJAX:
    """BlackJAX's random-walk Metropolis on the same likelihood, float64, all chains in one compiled scan."""

    def __init__(self, n: int, d: int, chains: int, steps: int) -> None:
        with jax.enable_x64(True):
            data = make_data(n, d)
            x, y = jnp.asarray(data["x"]), jnp.asarray(data["y"], jnp.int32)

            def log_density(beta: Any) -> Any:
                prior = dist.Normal(0.0, 2.0).log_prob(beta).sum()
                return prior + dist.Bernoulli(logits=x @ beta).log_prob(y).sum()

            walk = blackjax.normal_random_walk(log_density, jnp.full(d, SCALE))
            start = jnp.broadcast_to(jnp.linspace(-1, 1, d), (chains, d))
            self.state = jax.jit(jax.vmap(walk.init))(start)

            def step(state: Any, key: Any) -> Any:
                state, info = jax.vmap(walk.step)(jax.random.split(key, chains), state)
                return state, (state.position, info.is_accepted)

            self.run = jax.jit(lambda s, key: jax.lax.scan(step, s, jax.random.split(key, steps)))
        self.key = 0

    def __call__(self) -> None:
        with jax.enable_x64(True):
            self.key += 1
            self.state, _ = jax.block_until_ready(self.run(self.state, jax.random.key(self.key)))


class PythonLoop:
    """What a script does: one chain after the other, a jitted likelihood called from a Python loop, NumPy for the rest."""

    def __init__(self, n: int, d: int, chains: int, steps: int) -> None:
        with jax.enable_x64(True):
            data = make_data(n, d)
            x, y = jnp.asarray(data["x"]), jnp.asarray(data["y"], jnp.int32)
            self.log_likelihood = jax.jit(lambda beta: dist.Bernoulli(logits=x @ beta).log_prob(y).sum())
        self.thetas = [np.linspace(-1, 1, d)] * chains
        self.steps, self.rng = steps, np.random.default_rng(0)

    def __call__(self) -> None:
        with jax.enable_x64(True):
            self.thetas = [self.chain(theta) for theta in self.thetas]

    def chain(self, theta: np.ndarray) -> np.ndarray:
        current = float(self.log_likelihood(theta))
        for _ in range(self.steps):
            proposed = theta + SCALE * self.rng.standard_normal(theta.shape)
            value = float(self.log_likelihood(proposed))
            noisy = value - current + SIGMA * self.rng.standard_normal()
            prior = (theta @ theta - proposed @ proposed) / 8
            if np.log(self.rng.random()) < noisy + prior - SIGMA**2 / 2:
                theta, current = proposed, value
        return theta


class BatchedPythonLoop:
    """A cleverer script: all chains in one jitted call a step."""

    def __init__(self, n: int, d: int, chains: int, steps: int) -> None:
        with jax.enable_x64(True):
            data = make_data(n, d)
            x, y = jnp.asarray(data["x"]), jnp.asarray(data["y"], jnp.int32)
            one = lambda beta: dist.Bernoulli(logits=x @ beta).log_prob(y).sum()  # noqa: E731
            self.log_likelihood = jax.jit(jax.vmap(one))
        self.theta = np.tile(np.linspace(-1, 1, d), (chains, 1))
        self.steps, self.rng = steps, np.random.default_rng(0)

    def __call__(self) -> None:
        with jax.enable_x64(True):
            current = np.asarray(self.log_likelihood(self.theta))
            for _ in range(self.steps):
                proposed = self.theta + SCALE * self.rng.standard_normal(self.theta.shape)
                value = np.asarray(self.log_likelihood(proposed))
                noisy = value - current + SIGMA * self.rng.standard_normal(len(current))
                prior = ((self.theta**2).sum(1) - (proposed**2).sum(1)) / 8
                accepted = np.log(self.rng.random(len(current))) < noisy + prior - SIGMA**2 / 2
                self.theta = np.where(accepted[:, None], proposed, self.theta)
                current = np.where(accepted, value, current)


class BareScan:
    """The same arithmetic in a bare `lax.scan`: terms, lattice, range, decision; no filter, ledger or noise pool."""

    def __init__(self, n: int, d: int, chains: int, steps: int) -> None:
        domain = {"x": sf.Box(-1, 1, shape=(d,)), "y": sf.Binary()}
        study = make_study(make_model(d), domain)
        gamma = lattice.choose_gamma(SIGMA, n)
        with jax.enable_x64(True):
            data = Rows({k: jnp.asarray(v) for k, v in make_data(n, d).items()})
            how, range_ = Evaluation(study.model, domain, "float64"), study.bounds.range_for(n)
            theta = jnp.broadcast_to(jnp.linspace(-1, 1, d), (chains, d))
            self.carry = (theta, jax.jit(lambda t: how.terms_of_all(data, t))(theta))
            rng = np.random.default_rng(0)
            self.moves = jnp.asarray(SCALE * rng.standard_normal((steps, chains, d)))
            self.noise = jnp.asarray((rng.standard_normal((steps, chains)) * SIGMA / gamma).astype(np.int64))
            self.log_u = jnp.asarray(np.log(rng.random((steps, chains))))

            def step(carry: Any, drawn: Any) -> Any:
                theta, kept = carry
                move, noise, log_u = drawn
                proposed = theta + move
                prior = jax.vmap(study.model.log_prior)(proposed) - jax.vmap(study.model.log_prior)(theta)
                lo, hi = jax.lax.map(lambda pair: range_(*pair), (theta, proposed))
                clamp = lattice.clamp_for(lo, hi, gamma, n)
                value = how.terms_of_all(data, proposed)
                column = lattice.Clamp(*(part[:, None] for part in clamp))
                total = lattice.to_lattice(value - kept, column, gamma).sum(axis=1) + noise
                accepted = log_u < total * gamma + prior - SIGMA**2 / 2
                row = accepted[:, None]
                return (jnp.where(row, proposed, theta), jnp.where(row, value, kept)), (proposed, accepted)

            self.run = jax.jit(lambda c, m, z, u: jax.lax.scan(step, c, (m, z, u)))

    def __call__(self) -> None:
        with jax.enable_x64(True):
            self.carry, _ = jax.block_until_ready(self.run(self.carry, self.moves, self.noise, self.log_u))


def compare(title: str, rivals: dict[str, Callable[[], None]], steps: int, repetitions: int) -> dict[str, float]:
    """Best time per step of each, in microseconds, repetitions interleaved."""
    best = dict.fromkeys(rivals, float("inf"))
    for run in rivals.values():
        run()  # compile
    for _ in range(repetitions):
        for name, run in rivals.items():
            began = time.perf_counter()
            run()
            best[name] = min(best[name], (time.perf_counter() - began) / steps * 1e6)
    print(f"\n{title}")
    for name, microseconds in best.items():
        print(f"  {name:<34} {microseconds:10.1f} us a step")
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps and repetitions")
    quick = parser.parse_args().quick
    repetitions = 2 if quick else 5
    verdicts: list[tuple[str, float, float]] = []

    steps = 60 if quick else 200
    large = (100_000, 10, 4, steps)
    best = compare(
        "n = 100 000, d = 10, 4 chains",
        {"BlackJAX, not private, float64": BlackJAX(*large), "sfumato, float64": Private(*large),
         "sfumato, float32": Private(*large, precision="float32")},
        steps, repetitions,
    )  # fmt: skip
    black = best["BlackJAX, not private, float64"]
    verdicts.append(("rate against BlackJAX, float64", black / best["sfumato, float64"], 0.8))
    verdicts.append(("rate against BlackJAX, float32 chosen", black / best["sfumato, float32"], 1.5))

    steps = 2_000 if quick else 8_192
    middle = (1_000, 10, 4, steps)
    best = compare(
        "n = 1 000, d = 10, 4 chains",
        {
            "Python loop": PythonLoop(*middle),
            "Python loop, chains batched": BatchedPythonLoop(*middle),
            "sfumato": Private(*middle),
        },
        steps,
        repetitions,
    )
    verdicts.append(("rate against a Python loop, n = 1 000", best["Python loop"] / best["sfumato"], 5.0))

    steps = 8_192
    small = (100, 10, 4, steps)
    best = compare(
        "n = 100, d = 10, 4 chains", {"bare lax.scan": BareScan(*small), "sfumato": Private(*small)}, steps, repetitions
    )
    verdicts.append(("rate against a bare lax.scan, n = 100", best["bare lax.scan"] / best["sfumato"], 1 / 3))

    verdicts += around((100_000, 1_000_000) if quick else (100_000, 1_000_000, 5_000_000, 20_000_000), repetitions)
    print("\nratio                                                measured   wanted")
    failed = 0
    for what, ratio, wanted in verdicts:
        failed += ratio < wanted
        print(f"{what:<52} {ratio:8.2f}   {wanted:6.2f}   {'ok' if ratio >= wanted else 'BELOW'}")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
