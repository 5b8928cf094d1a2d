"""One table on Ray against the same table in one process, on the same cores: time an iteration, memory of the driver.

Each side runs in a process of its own, one after the other, on a Parquet table of made-up records (logistic regression,
d = 4). In process: the compiled loop (`Vault.chunk`). On Ray: two actors (`--workers`), one thread each, asked a round at a time
by a driver that holds no record. The order is turned round between repetitions, and the ratio is that of the medians. Beside
time on the clock it shows processor time (of all processes that work for one side), which other work on the machine hardly
changes.

    python benchmarks/ray_table.py --rows 2000000
    python benchmarks/ray_table.py --rows 20000000 --steps 6
    python benchmarks/ray_table.py --workers 1       (and 4: what is promised is for as many as there are cores)
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

DIM = 4
BETA = np.array([1.0, -0.5, 0.2, 0.0])


PROMISED = 1.2


def logistic(x, y):
    import numpyro
    import numpyro.distributions as dist

    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([DIM]).to_event(1))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


def make_table(folder: Path, rows: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng, size = np.random.default_rng(0), 1_000_000
    for number in range(-(-rows // size)):
        n = min(size, rows - number * size)
        x = rng.uniform(-1, 1, (n, DIM)).astype(np.float32)
        y = (rng.random(n) < 1 / (1 + np.exp(-x @ BETA))).astype(np.int8)
        columns = {f"x_{i}": x[:, i] for i in range(DIM)} | {"y": y}
        pq.write_table(pa.table(columns), folder / f"{number:04d}.parquet", row_group_size=250_000)


def resident() -> float:
    """Memory of this process alone, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def processor(actors: list) -> float:
    """Seconds of processor time used so far, by this process and by the actors."""
    if not actors:
        return time.process_time()
    import ray

    theirs = [actor.__ray_call__.remote(lambda self: time.process_time()) for actor in actors]
    return time.process_time() + sum(ray.get(theirs))


def side(which: str, folder: str, chains: int, steps: int, repeats: int, workers: int) -> None:
    """Time iterations on one side; prints one line of JSON."""
    import jax
    import jax.numpy as jnp

    import sfumato as sf
    from sfumato.kernel import PublicStream, RandomWalk, State
    from sfumato.study.target import make_study
    from sfumato.vault.ledger import Ledger

    domain = {"x": sf.Box(-1, 1, shape=(DIM,)), "y": sf.Binary()}
    study = make_study(logistic, domain)
    before, began = resident(), time.perf_counter()
    ledger = Ledger.in_memory(2**62)
    account = ledger.account("a", 2**62)
    if which == "ray":
        from sfumato.owners.local import LocalDoor, facts_of
        from sfumato.owners.rounds import Rounds
        from sfumato.vault.desk import Desk
        from sfumato.vault.ray_engine import RayEngine
        from sfumato.vault.ray_shards import RayShards

        shards = RayShards(sf.RayTable(f"{folder}/*.parquet", workers=workers), study.domain)
        engine = RayEngine(shards, study, own=True)
        desk = Desk(engine, study, account)
        facts = facts_of(study, desk, "a", 1.0, 1e-6, 1.0, "refuse", "float64", True)
        access = Rounds(study.model, [LocalDoor(desk, facts, engine=engine)], run_id="bench")
    else:
        from sfumato.vault.shards import deal_out, find_files, pieces_of, read_shard
        from sfumato.vault.vault import Vault

        table = read_shard(deal_out(pieces_of(find_files(f"{folder}/*.parquet")), 1)[0], study.domain, {}, "refuse")
        access = Vault(table, study, account)
    loaded = time.perf_counter() - began
    n = access.n
    kernel, stream = RandomWalk(np.eye(DIM) * 2 / n**0.5, 0.5), PublicStream(0, chains)
    with jax.enable_x64(True):
        theta = jnp.asarray(np.tile(BETA, (chains, 1)))
        states = State(theta, jax.vmap(study.model.log_prior)(theta), jnp.ones((chains, DIM)))
    access.begin(kernel, 2.0, states)
    states = access.chunk(states, stream.peek(kernel, steps), 1, 2**55).states  # compiles
    actors = shards._actors if which == "ray" else []
    times, work, memory = [], [], [resident()]
    for _ in range(repeats):
        began, worked = time.perf_counter(), processor(actors)
        states = access.chunk(states, stream.peek(kernel, steps), steps, 2**55).states
        times.append((time.perf_counter() - began) / steps)
        work.append((processor(actors) - worked) / steps)
        memory.append(resident())
    access.close()
    print(
        json.dumps({"times": times, "work": work, "memory": memory, "before": before, "loaded": loaded, "n": n}),
        flush=True,
    )
    os._exit(0)


def run_side(which: str, folder: str, options: argparse.Namespace) -> dict:
    command = [sys.executable, __file__, "--side", which, "--folder", folder, "--chains", str(options.chains)]
    command += ["--steps", str(options.steps), "--repeats", str(options.repeats), "--workers", str(options.workers)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2, help="how often both sides are run")
    parser.add_argument("--side", choices=["ray", "process"])
    parser.add_argument("--folder")
    options = parser.parse_args()
    if options.side:
        side(options.side, options.folder, options.chains, options.steps, options.repeats, options.workers)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        make_table(Path(folder), options.rows)
        results: dict[str, list[dict]] = {"ray": [], "process": []}
        for number in range(options.rounds):
            for which in ("ray", "process") if number % 2 else ("process", "ray"):
                results[which].append(run_side(which, folder, options))
    medians = {which: float(np.median([t for r in runs for t in r["times"]])) for which, runs in results.items()}
    works = {which: float(np.median([t for r in runs for t in r["work"]])) for which, runs in results.items()}
    for which, runs in results.items():
        memory = [m for r in runs for m in r["memory"]]
        print(
            f"{which:8s} {medians[which] * 1e3:9.1f} ms an iteration "
            f"({works[which] * 1e3:.1f} ms of processor time), {options.chains} chains, {options.rows:,} records; "
            f"loaded in {np.median([r['loaded'] for r in runs]):.1f} s; driver {min(memory):.0f} to {max(memory):.0f} MB "
            f"(before loading {np.median([r['before'] for r in runs]):.0f} MB)"
        )
    ratio, work = medians["ray"] / medians["process"], works["ray"] / works["process"]
    print(f"ratio    {ratio:.2f} ({work:.2f} in processor time); at most {PROMISED} is promised")
    return int(ratio > PROMISED)


if __name__ == "__main__":
    raise SystemExit(main())
