"""One run of each road (table, owners, bundle, a mix, a node), with noise that repeats: what a rebuilding must not change.

A case is a whole run through the public interface. The two noise sources are replaced by a stream that follows from their scale
alone, so that a case gives the same numbers whoever draws first. `PYTHONPATH=tests python tests/golden/golden_cases.py [NAME]`
writes them down anew; `test_golden.py` compares.
"""

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpyro
import numpyro.distributions as dist

import sfumato as sf
from sfumato.vault.gaussian import ExactSource
from sfumato.vault.noise import OpenDPSource

FOLDER = Path(__file__).parent / "kept"
RNG = np.random.default_rng(16)
N = 6_000
X = RNG.uniform(-1, 1, (N, 2))
LOGISTIC = {"x": X, "y": (RNG.random(N) < 1 / (1 + np.exp(-0.3 - X @ np.array([1.0, -0.5])))).astype(int)}
DOMAIN = {"x": sf.Box(-1, 1, shape=(2,)), "y": sf.Binary()}
FLIPS = {"y": (RNG.random(N) < 0.3).astype(int)}
LABELS = {"y": RNG.integers(0, 3, N)}
BERNOULLI, CATEGORICAL = sf.families.Bernoulli(), sf.families.Categorical(3)
PROMISE: dict[str, Any] = {"epsilon": 4.0, "delta": 1e-6}
ASKED: dict[str, Any] = {"chains": 2, "seed": 3, "max_iterations": 30, "force": True, "progress": False}


def logistic(x, y):
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 2.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=alpha + x @ beta), obs=y)


def _draw(self: Any, size: int) -> np.ndarray:
    """Rounded normals from a stream of the source's own that its scale seeds."""
    if "repeating" not in self.__dict__:
        rounded = np.float64(
            f"{self.scale:.6e}"
        )  # another processor may round the last bit of a pilot's scale differently
        self.repeating = np.random.default_rng([int.from_bytes(rounded.tobytes()), 5])
    return np.rint(self.scale * self.repeating.standard_normal(size)).astype(np.int64)


@contextmanager
def repeating_noise() -> Iterator[None]:
    """Replace the operating system's entropy: in this process, for golden runs alone."""
    with mock.patch.object(ExactSource, "draw", _draw), mock.patch.object(OpenDPSource, "draw", _draw):
        yield


def parts(table: dict[str, np.ndarray], **options: Any) -> list[sf.Owner]:
    """Two owners of unequal parts of one table, with unequal promises."""
    cut = {"amber": slice(0, 2_500), "birch": slice(2_500, None)}
    promised = {"amber": 4.0, "birch": 3.0}
    return [
        sf.Owner({k: v[rows] for k, v in table.items()}, name=name, epsilon=promised[name], delta=1e-6, **options)
        for name, rows in cut.items()
    ]


# -- cases --------------------------------------------------------------------------------------------------------------

Case = Callable[[Path], sf.Run]
CASES: dict[str, Case] = {}


def case(name: str) -> Callable[[Case], Case]:
    return lambda make: CASES.setdefault(name, make)


def _sampled(name: str, model: Any, data: Any, **options: Any) -> None:
    CASES[name] = lambda folder: sf.sample(model, data(folder) if callable(data) else data, **ASKED | options)


_sampled("table-categorical-guided", CATEGORICAL, LABELS, kernel="guided", **PROMISE)
_sampled("table-model-langevin", logistic, LOGISTIC, domain=DOMAIN, kernel="langevin", **PROMISE)
_sampled("owners-categorical-langevin", CATEGORICAL, lambda _: parts(LABELS), kernel="langevin")


def released(family: Any, table: Any, copies: int = 400) -> sf.Bundle:
    return sf.release(family, table, copies=copies, progress=False, **PROMISE)


_sampled("bundle-categorical-guided", CATEGORICAL, lambda _: released(CATEGORICAL, LABELS), kernel="guided")


@case("mix-bernoulli-langevin")
def bundle_beside_owner(folder: Path) -> sf.Run:
    first, second = ({"y": FLIPS["y"][rows]} for rows in (slice(0, 2_500), slice(2_500, None)))
    owners = [sf.Owner(second, name="birch", **PROMISE), released(BERNOULLI, first)]
    return sf.sample(BERNOULLI, owners, kernel="langevin", **ASKED)


@case("node-bern-guided")
def on_a_node(folder: Path) -> sf.Run:
    from node_helpers import YES, load, prepare, threaded

    tokens = prepare(folder / "node", name="node 0", values=YES)
    with threaded(folder / "node") as running:
        owner = sf.connect(running.url, token=tokens["alice"])
        return sf.sample(load(folder / "node", "bern"), [owner], kernel="guided", **PROMISE, **ASKED)


# -- what is written down -----------------------------------------------------------------------------------------------

PLANNED = ("kernel", "sigma", "step", "iterations", "forecast_ess", "limit_ess", "mu", "pilot_share")


def told(run: sf.Run) -> dict[str, Any]:
    """Everything a run says, but for its transcript."""
    statements = getattr(run.privacy, "owners", None) or (run.privacy,)
    return {
        "stop_reason": str(run.stop_reason),
        "stop_owner": run.stop_owner,
        "discarded": run.discarded,
        "plan": {name: run.planned[name] for name in PLANNED},
        "pilot_share": run.pilot["share"],
        "releases": [s.releases for s in statements],
        "spent_mu": [s.spent_mu for s in statements],
        "statement": re.sub("bundle [0-9a-f]{16}", "bundle", str(run.privacy)),  # a bundle's name is drawn
    }


def run_case(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What the run says, and its transcript."""
    with tempfile.TemporaryDirectory() as folder, repeating_noise():
        with mock.patch.dict(os.environ, {"SFUMATO_STATE": str(Path(folder) / "state")}):
            run = CASES[name](Path(folder))
        return told(run), dict(run.transcript)


def write(names: list[str]) -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in names:
        words, transcript = run_case(name)
        np.savez_compressed(FOLDER / f"{name}.npz", words=np.array(json.dumps(words)), **transcript)
        print(
            name, words["stop_reason"], len(transcript["accepted"][0]), f"{transcript['accepted'].mean():.0%} accepted"
        )


if __name__ == "__main__":
    write(sys.argv[1:] or list(CASES))
