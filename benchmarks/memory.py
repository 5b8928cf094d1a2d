"""How much memory does a large table take? Peak resident memory of a whole run over the size of the data.

    python benchmarks/memory.py [--records 5000000] [--precision float32]

A child process samples from a Parquet file of float32 covariates (pilot included) and reports its own peak; the parent
prints the ratio. The interpreter and the libraries alone are measured too, because they are part of the peak.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

D = 10


def write_table(path: Path, n: int) -> int:
    """Write the table row group by row group; give back the bytes of its columns in memory."""
    import pyarrow as pa
    import pyarrow.parquet

    rng = np.random.default_rng(0)
    beta = np.linspace(-1, 1, D)
    schema = pa.schema([(f"x_{i}", pa.float32()) for i in range(D)] + [("y", pa.int8())])
    with pa.parquet.ParquetWriter(path, schema, compression="none") as writer:
        for start in range(0, n, 250_000):
            size = min(250_000, n - start)
            x = rng.uniform(-1, 1, (size, D)).astype(np.float32)
            y = (rng.random(size) < 1 / (1 + np.exp(-x @ beta))).astype(np.int8)
            writer.write_table(pa.table([*x.T, y], schema=schema))
    return n * D * 4


def child(path: str, precision: str, chains: int) -> None:
    """Sample, and print the peak in bytes."""
    import numpyro
    import numpyro.distributions as dist

    import sfumato as sf

    def logistic(x: object, y: object) -> None:
        beta = numpyro.sample("beta", dist.Normal(0.0, 2.0).expand([D]).to_event(1))
        with numpyro.plate("records", y.shape[0]):  # type: ignore[attr-defined]
            numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)  # type: ignore[operator]

    domain = {"x": sf.Box(-1, 1, shape=(D,)), "y": sf.Binary()}
    run = sf.sample(
        logistic, path, domain=domain, epsilon=1.0, delta=1e-8, chains=chains, seed=0, max_iterations=12,
        precision=precision, force=True, progress=False,
    )  # fmt: skip
    assert run.iterations > 0
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def peak(*arguments: str) -> int:
    done = subprocess.run([sys.executable, *arguments], check=True, capture_output=True, text=True)
    return int(done.stdout.split()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--precision", default="float64", choices=["float32", "float64"])
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--child")
    options = parser.parse_args()
    if options.child:
        child(options.child, options.precision, options.chains)
        return 0
    libraries = (
        "import sfumato.run.sampling, resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.parquet"
        size = write_table(path, options.records)
        used = peak(__file__, "--child", str(path), "--precision", options.precision, "--chains", str(options.chains))
    base = peak("-c", libraries)
    print(f"{options.records:,} x {D} float32 records: {size / 1e6:.0f} MB")
    print(
        f"libraries alone: {base / 1e6:.0f} MB; whole run, {options.chains} chains, {options.precision}: {used / 1e6:.0f} MB"
    )
    print(f"ratio of peak to data: {used / size:.2f} (wanted: below 3)")
    return int(used >= 3 * size)


if __name__ == "__main__":
    raise SystemExit(main())
