"""What a round costs: over three nodes against one, and against the number of owners, records, dimensions and chains.

**Nodes.** Real node processes on loopback (`sfumato serve`, with its ledger on the disk), asked by the analyst's own loop.
Rounds over one node and over three take turns in short slices, so that whatever else the machine does falls on both; of each
side the fastest tenth counts, as the slices that other work disturbed least. Wanted: a round over three at most 1.4 times a
round over one, where the same records lie with three owners instead of one (on a family it does not matter how many there
are). The processor time of all processes is told with it: with fewer cores than processes it sets a floor. Beside it, without
a demand, three nodes with a table each as large as the single one's: that is three times the work, which two cores cannot do
at once. The exit code is 1 if the demand is missed.

**One process.** Logistic regression, walks; owners' ledgers in memory. One figure varies at a time. Compilation is not
counted. The last line fits the model of `docs/measurements/scaling.md`: a part per round and owner, a part per (chain, record).

    python benchmarks/owners.py                  (both; some minutes)
    python benchmarks/owners.py --only nodes
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from node import free_port

import sfumato as sf
from sfumato.families.langevin import public_part
from sfumato.files.study import load_model
from sfumato.kernel import Guided, Langevin, PublicStream, State
from sfumato.node.config import read_owner
from sfumato.node.tokens import TokenFile
from sfumato.owners.local import LocalDoor, facts_of
from sfumato.owners.remote import connect
from sfumato.owners.rounds import Rounds
from sfumato.planner.belief import Belief
from sfumato.planner.reference import reference_kernel
from sfumato.study.target import make_study
from sfumato.vault import records
from sfumato.vault.desk import Desk
from sfumato.vault.engine import LocalEngine
from sfumato.vault.ledger import Ledger

BASE = {"owners": 1, "n": 20_000, "d": 4, "chains": 4}
SWEEPS = {"owners": (1, 2, 4, 8), "n": (2_000, 20_000, 200_000), "d": (2, 4, 8), "chains": (1, 4, 16)}


def study_of(d: int):
    def logistic(x, y):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([d]).to_event(1))
        with numpyro.plate("records", y.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)

    return make_study(logistic, {"x": sf.Box(-1, 1, shape=(d,)), "y": sf.Binary()})


def measure(study, owners: int, n: int, d: int, chains: int, rounds: int) -> tuple[float, float]:
    """Median milliseconds a round, on the clock and of processor time; n records in all, spread evenly."""
    rng, ledger, doors = np.random.default_rng(0), Ledger.in_memory(2**62), []
    for i in range(owners):
        size = n // owners
        table = {"x": rng.uniform(-1, 1, (size, d)), "y": rng.integers(0, 2, size)}
        desk = Desk(LocalEngine(records.load(table, study.domain), study), study, ledger.account(f"o{i}", 2**56))
        doors.append(LocalDoor(desk, facts_of(study, desk, f"o{i}", 1.0, 1e-6, 1.0, "refuse", "float64", True)))
    access, stream = Rounds(study.model, doors, run_id="bench"), PublicStream(0, chains)
    kernel = Guided(np.eye(d) / n**0.5, 1.0)
    with jax.enable_x64(True):
        theta = jnp.zeros((chains, d))
        states = State(theta, jax.vmap(study.model.log_prior)(theta), jnp.ones((chains, d)))
    access.begin(kernel, 2.0, states)
    states = access.chunk(states, stream.peek(kernel, 8), 5, 1).states
    clock, work = [], []
    for _ in range(5):
        began, worked = time.perf_counter(), time.process_time()
        states = access.chunk(states, stream.peek(kernel, rounds), rounds, 1).states
        clock.append((time.perf_counter() - began) / rounds * 1e3)
        work.append((time.process_time() - worked) / rounds * 1e3)
    access.close()
    ledger.close()
    return float(np.median(clock)), float(np.median(work))


def sweep(rounds: int) -> None:
    """All owners in one process; one figure varies at a time."""
    studies, rows = {}, []
    for what, values in SWEEPS.items():
        for value in values:
            case = BASE | {what: value}
            if any(row[0] == case for row in rows):
                continue
            study = studies.setdefault(case["d"], study_of(case["d"]))
            rows.append((case, *measure(study, **case, rounds=rounds)))
            print(f"{case}: {rows[-1][1]:.2f} ms a round ({rows[-1][2]:.2f} ms of processor time)", flush=True)
    fit = [(c, w) for c, _, w in rows if c["d"] == BASE["d"]]
    design = np.array([[1.0, c["owners"], c["n"] * c["chains"]] for c, _ in fit])
    scale = np.array([1 / w for _, w in fit])  # relative errors
    loop, owner, term = np.linalg.lstsq(design * scale[:, None], np.ones(len(fit)), rcond=None)[0]
    print(
        f"model: {loop:.2f} ms a round + {owner:.2f} ms an owner + {term * 1e6:.1f} ns a chain and record (processor time)"
    )


# -- nodes ------------------------------------------------------------------------------------------------------------

WANTED = 1.4
DIM, CHAINS, SLICE = 4, 4, 32
OWNER = """
name = "{name}"
log = "node.log"
[data]
path = "table.parquet"
[domain.x]
kind = "box"
lower = -1.0
upper = 1.0
shape = [4]
[domain.y]
kind = "binary"
[studies.logistic]
model = "model.py:logistic"
[studies.coin]
model = "model.py:coin"
[budgets]
total = {{ epsilon = 8.0, delta = 1e-3 }}
[listen]
port = {port}
[limits]
messages_per_second = 1e9
requests_per_second = 1e9
"""
MODEL = """
import numpyro
import numpyro.distributions as dist
import sfumato as sf

coin = sf.families.Bernoulli()


def logistic(x, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)
"""


class Node(NamedTuple):
    """The analyst's end of a node, and its process."""

    owner: Any
    pid: int


@contextmanager
def node_of(folder: Path, n: int):
    """A node process with n records."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    rng = np.random.default_rng(n)
    table = {f"x_{i}": rng.uniform(-1, 1, n) for i in range(DIM)} | {"y": rng.integers(0, 2, n)}
    pq.write_table(pa.table(table), folder / "table.parquet")
    (folder / "model.py").write_text(MODEL)
    (folder / "owner.toml").write_text(OWNER.format(name=folder.name, port=free_port()))
    file = read_owner(folder / "owner.toml")
    token, url = TokenFile(file.place(file.tokens)).add("bench"), f"http://127.0.0.1:{file.listen.port}"
    code = "from sfumato.cli import main; raise SystemExit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "serve", str(file.path)], stdout=subprocess.DEVNULL,
        env=os.environ | {"SFUMATO_STATE": str(folder)},
    )  # fmt: skip
    try:
        while process.poll() is None:
            try:
                urllib.request.urlopen(f"{url}/healthz", timeout=5).close()  # noqa: S310 (loopback)
                break
            except OSError:
                time.sleep(0.1)
        yield Node(connect(url, token=token, patience=120.0), process.pid)
    finally:
        process.terminate()
        process.wait(60)


def kernel_for(kind: str, study: Any, n: int) -> Any:
    """A kernel of this kind whose steps are as long as they would be at the posterior of n records."""
    if kind == "guided":
        return Guided(np.eye(study.model.dim) / n**0.5, 1.0)
    if study.family is not None:
        # As `planner.langevin` has it for one parameter: over nodes corrections come from second copies.
        public = public_part(study.family, study.model, n)
        return Langevin(np.eye(1) * 2 / n**0.5, 0.02, public, copy_sigma=(4 * 45 / 0.02) ** 0.5)
    covariance = np.eye(study.model.dim) * 12 / n  # of uniform covariates in [-1, 1] and even odds
    with jax.enable_x64(True):
        picture = Belief(np.zeros(study.model.dim), covariance, "benchmark")
        return reference_kernel(study, picture, np.linalg.cholesky(covariance), 0.002)


def processor_time(pids: list[int]) -> float:
    """Milliseconds that all threads of some processes have run so far."""
    threads = [path for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(path.read_text().split()[0]) for path in threads) / 1e6


class Walker:
    """A chain over some nodes that goes on from slice to slice."""

    def __init__(self, nodes: list[Node], what: str, kind: str, folder: Path, run: str) -> None:
        doors, self._pids = [], [os.getpid(), *(node.pid for node in nodes)]
        for owner, _ in nodes:
            name, study, _ = owner.study(load_model(f"model.py:{what}", folder), kernel=kind)
            doors.append(owner.door(name, study.model.fingerprint(), epsilon=2.0, delta=1e-4, run_id=run))
        self._rounds, self._stream = Rounds(study.model, doors, run_id=run, ahead=10**9), PublicStream(0, CHAINS)
        dim = study.model.dim
        self._kernel = kernel_for(kind, study, self._rounds.n)
        with jax.enable_x64(True):
            theta = jnp.zeros((CHAINS, dim))
            pending = jnp.full(theta.shape, jnp.nan) if kind == "langevin" else None
            prior = jax.vmap(study.model.log_prior)(theta)
            self._states = State(theta, prior, jnp.ones((CHAINS, dim)), pending)
        self._rounds.begin(self._kernel, 50.0, self._states)
        self.slice()  # compiles

    def slice(self) -> tuple[float, float]:
        """Milliseconds a round, and milliseconds of processor time of all processes that take part."""
        used, draws, began = processor_time(self._pids), self._stream.peek(self._kernel, SLICE), time.perf_counter()
        chunk = self._rounds.chunk(self._states, draws, SLICE, 1)
        took = (time.perf_counter() - began) / SLICE * 1e3
        used = (processor_time(self._pids) - used) / SLICE
        assert chunk.steps == SLICE
        self._states = chunk.states
        self._stream.consume(SLICE)
        return took, used

    def close(self) -> None:
        self._rounds.close()


def compare(title: str, one: list[Node], three: list[Node], what: str, kind: str, folder: Path, slices: int) -> float:
    """Ratio of a round over three nodes to one over a single node, taking turns."""
    run = "".join(c if c.isalnum() else "-" for c in title)
    sides = [Walker(nodes, what, kind, folder, f"{run}-{len(nodes)}") for nodes in (one, three)]
    times = np.array([[side.slice() for side in sides] for _ in range(slices)])
    for side in sides:
        side.close()
    (best, _), (median, used) = np.quantile(times, 0.1, axis=0).T, np.median(times, axis=0).T
    ratio, cores = float(best[1] / best[0]), os.cpu_count() or 1
    print(
        f"{title}: {best[0]:.2f} ms a round over one node, {best[1]:.2f} over three, {ratio:.2f} times (fastest tenth of "
        f"{slices} slices; medians {median[0]:.2f} and {median[1]:.2f}, {median[1] / median[0]:.2f} times)\n    processor "
        f"time of all who take part: {used[0]:.2f} and {used[1]:.2f} ms; {cores} cores need {used[1] / cores:.2f} ms for the "
        f"latter, {used[1] / cores / best[0]:.2f} times a round over one, were all of it shared out evenly",
        flush=True,
    )
    return ratio


def over_nodes(slices: int, n: int) -> bool:
    """Three nodes against one; whether what is wanted was met."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        names = ("amber", "birch", "cedar")
        thirds = [stack.enter_context(node_of(folder / owner, n // 3)) for owner in names]
        whole = stack.enter_context(node_of(folder / "all", n))
        where = folder / "amber"
        ratios = [
            compare(f"walk, {n} records in all", [whole], thirds, "logistic", "guided", where, slices),
            compare(f"Langevin, {n} records in all", [whole], thirds, "logistic", "langevin", where, slices),
            compare("Langevin on a family", thirds[:1], thirds, "coin", "langevin", where, slices),
        ]
        compare(f"walk, {n // 3} records each", thirds[:1], thirds, "logistic", "guided", where, slices)
    met = max(ratios) <= WANTED
    print(
        f"three nodes: at worst {max(ratios):.2f} times a round over one, wanted {WANTED:g}: {'met' if met else 'MISSED'}"
    )
    return met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["nodes", "process"])
    parser.add_argument("--rounds", type=int, default=30, help="rounds of each measurement in one process")
    parser.add_argument("--slices", type=int, default=150, help="slices of each side, over nodes")
    parser.add_argument("--records", type=int, default=30_000, help="of all nodes together")
    options = parser.parse_args()
    if options.only != "nodes":
        sweep(options.rounds)
    if options.only != "process" and not over_nodes(options.slices, options.records):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
