"""What a round costs: against the number of owners, records, dimensions and chains, all in one process.

Logistic regression, walks; owners' ledgers in memory. One figure varies at a time. Compilation is not counted. The last
line fits the model of `docs/scaling.md`: a fixed part a round and owner, and a part per (chain, record).

    python benchmarks/owners.py
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import sfumato as sf
from sfumato.access.local import LocalDoor, facts_of
from sfumato.access.rounds import Rounds
from sfumato.kernel import Guided, PublicStream, State
from sfumato.study import make_study
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    studies, rows = {}, []
    for what, values in SWEEPS.items():
        for value in values:
            case = BASE | {what: value}
            if any(row[0] == case for row in rows):
                continue
            study = studies.setdefault(case["d"], study_of(case["d"]))
            rows.append((case, *measure(study, **case, rounds=options.rounds)))
            print(f"{case}: {rows[-1][1]:.2f} ms a round ({rows[-1][2]:.2f} ms of processor time)", flush=True)
    fit = [(c, w) for c, _, w in rows if c["d"] == BASE["d"]]
    design = np.array([[1.0, c["owners"], c["n"] * c["chains"]] for c, _ in fit])
    scale = np.array([1 / w for _, w in fit])  # relative errors
    loop, owner, term = np.linalg.lstsq(design * scale[:, None], np.ones(len(fit)), rcond=None)[0]
    print(
        f"model: {loop:.2f} ms a round + {owner:.2f} ms an owner + {term * 1e6:.1f} ns a chain and record (processor time)"
    )


if __name__ == "__main__":
    main()
