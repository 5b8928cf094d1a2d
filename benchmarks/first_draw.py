"""How long until the first draw? Processor time of a plan, and of a run until its first chunk is there.

    python benchmarks/first_draw.py            d = 10 and d = 50
    python benchmarks/first_draw.py --quick    d = 10 alone

Each figure is a process of its own: logistic regression, n = 100 000, epsilon = 1, four chains. *Cold*: nothing was compiled
before, in a new cache folder. *Second process*: another one that finds what the first has kept. *Second sample*: the same call
once more in one process. Counted is the processor time of the call, on all cores, the imports that it makes among it; JAX,
NumPyro and NumPy were imported before. A run is ended at its first draws, and forced, whatever its plan promises.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

N = 100_000
WANTED = {
    ("plan", "cold"): 4.0, ("first draw", "cold"): 10.0, ("plan", "second process"): 3.0,
    ("first draw", "second process"): 6.0, ("first draw", "second sample"): 2.0,
}  # fmt: skip
"""Seconds at d = 10."""


class Drawn(Exception):
    """The first draws are there."""


def child(what: str, d: int) -> None:
    """Do it, and print the seconds; of a first draw also those of a second sample."""
    import numpy as np
    import numpyro
    import numpyro.distributions as dist

    def logistic(x: Any, y: Any) -> None:
        beta = numpyro.sample("beta", dist.Normal(0.0, 2.0).expand([d]).to_event(1))
        with numpyro.plate("records", y.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)

    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (N, d))
    y = (rng.random(N) < 1 / (1 + np.exp(-x @ np.linspace(-1, 1, d)))).astype(np.int8)
    began = time.process_time()

    import sfumato as sf

    study: dict[str, Any] = {
        "epsilon": 1.0,
        "delta": 1e-6,
        "domain": {"x": sf.Box(-1, 1, shape=(d,)), "y": sf.Binary()},
    }

    def stop(done: int, expected: int, text: str) -> None:
        if done > 0 and text == "sampling":
            raise Drawn

    def until_drawn() -> None:
        try:
            sf.sample(logistic, {"x": x, "y": y}, seed=1, force=True, progress=stop, **study)
        except Drawn:
            return
        raise SystemExit("the run ended before its first draw")

    seconds = []
    for _ in range(1 if what == "plan" else 2):
        if what == "plan":
            sf.plan(logistic, n=N, **study)
        else:
            until_drawn()
        seconds.append(time.process_time() - began)
        began = time.process_time()
    print(json.dumps(seconds))


def measured(what: str, d: int, cache: str) -> list[float]:
    """Seconds of a child with this cache folder."""
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, __file__, "--child", what, str(d)], check=True, stdout=subprocess.PIPE, text=True,
        env=environment | {"SFUMATO_PROGRAMS": cache},
    )  # fmt: skip
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="d = 10 alone")
    parser.add_argument("--child", nargs=2, metavar=("WHAT", "D"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.child[0], int(given.child[1]))
        return 0
    failed = 0
    print(f"{'':<14}{'':<16}{'processor s':>12}   wanted")
    for d in (10,) if given.quick else (10, 50):
        print(f"d = {d}")
        for what in ("plan", "first draw"):
            with tempfile.TemporaryDirectory() as cache:
                cold, second = measured(what, d, cache), measured(what, d, cache)
            rows = {"cold": cold[0], "second process": second[0]}
            if len(cold) > 1:
                rows["second sample"] = cold[1]
            for when, seconds in rows.items():
                most = WANTED[what, when] if d == 10 else float("inf")
                failed += seconds > most
                told = f"{most:6.1f}   {'ok' if seconds <= most else 'ABOVE'}" if d == 10 else "     -"
                print(f"  {what:<12}{when:<16}{seconds:12.2f}   {told}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
