"""Every way to run, with noise that repeats: what a rebuilding must not change.

A case is a whole run through the public interface. The two noise sources are replaced by a stream that follows from their scale
alone, so that a case gives the same numbers whoever draws first. `PYTHONPATH=tests python tests/golden/golden_cases.py [NAME]`
writes them down anew; `test_golden.py` compares.
"""

import json
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
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
HEIGHTS = {"y": np.clip(RNG.normal(1.0, 1.5, N), -6, 6)}
BERNOULLI, CATEGORICAL = sf.families.Bernoulli(), sf.families.Categorical(3)
NORMAL = sf.families.Normal(scale=1.5, lower=-6.0, upper=6.0)
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
        rounded = np.float64(f"{self.scale:.6e}")  # another processor may round the last bit of a pilot's scale differently
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


WALKS = ("random-walk", "componentwise", "guided")
for walk in (*WALKS, "langevin"):
    _sampled(f"table-model-{walk}", logistic, LOGISTIC, domain=DOMAIN, kernel=walk, **PROMISE)
    _sampled(f"table-categorical-{walk}", CATEGORICAL, LABELS, kernel=walk, **PROMISE)
    _sampled(f"owners-model-{walk}", logistic, lambda _: parts(LOGISTIC), domain=DOMAIN, kernel=walk)
    _sampled(f"owners-categorical-{walk}", CATEGORICAL, lambda _: parts(LABELS), kernel=walk)
_sampled("table-bernoulli-auto", BERNOULLI, FLIPS, **PROMISE)
_sampled("table-normal-langevin", NORMAL, HEIGHTS, kernel="langevin", **PROMISE)
_sampled("table-model-no-pilot", logistic, LOGISTIC, domain=DOMAIN, kernel="guided", pilot_share=0.0, **PROMISE)
_sampled("table-model-clip", logistic, LOGISTIC, domain=DOMAIN, sensitivity=sf.Clip(0.2), kernel="guided", **PROMISE)
_sampled("table-model-float32", logistic, LOGISTIC, domain=DOMAIN, precision="float32", **PROMISE)
_sampled("table-model-truncated", logistic, LOGISTIC, domain=DOMAIN, truncate=0.05, **PROMISE)
_sampled("owner-model-langevin", logistic, lambda _: parts(LOGISTIC)[:1], domain=DOMAIN, kernel="langevin")


@case("table-model-spent")
def table_until_spent(folder: Path) -> sf.Run:
    """Until the budget ends in the middle of a chunk."""
    asked = ASKED | {"max_iterations": 4_000, "chains": 3}
    return sf.sample(logistic, LOGISTIC, domain=DOMAIN, kernel="langevin", epsilon=0.4, delta=1e-6, **asked)


@case("owners-model-spent")
def owners_until_spent(folder: Path) -> sf.Run:
    two = parts(LOGISTIC)
    for owner in two:
        owner.epsilon = 0.3
    asked = ASKED | {"max_iterations": 4_000}
    return sf.sample(logistic, two, domain=DOMAIN, kernel="langevin", **asked)


@case("table-model-resumed")
def resumed_table(folder: Path) -> sf.Run:
    return _resumed(folder, lambda: LOGISTIC, **PROMISE)


@case("owners-model-resumed")
def resumed_owners(folder: Path) -> sf.Run:
    return _resumed(folder, lambda: parts(LOGISTIC))


def _resumed(folder: Path, data: Callable[[], Any], **promise: Any) -> sf.Run:
    """A run whose folder lost its last half, as if it had been killed there; its noise starts afresh."""
    kept, asked = folder / "checkpoint", ASKED | {"max_iterations": 96}
    sf.sample(logistic, data(), domain=DOMAIN, kernel="guided", checkpoint=kept, **promise, **asked)
    chunks = sorted(kept.glob("chunk-*.npz"))
    assert len(chunks) > 1
    for chunk in chunks[len(chunks) // 2 :]:
        chunk.unlink()
    return sf.resume(kept, data(), model=logistic, progress=False)


def released(family: Any, table: Any, name: str, copies: int = 400) -> sf.Bundle:
    return sf.release(family, table, copies=copies, progress=False, **PROMISE)


for walk in WALKS:
    _sampled(f"bundle-categorical-{walk}", CATEGORICAL, lambda _: released(CATEGORICAL, LABELS, "one"), kernel=walk)


@case("bundles-normal-auto")
def two_bundles(folder: Path) -> sf.Run:
    first, second = ({"y": HEIGHTS["y"][rows]} for rows in (slice(0, 2_500), slice(2_500, None)))
    bundles = [released(NORMAL, first, "one"), released(NORMAL, second, "two", 300)]
    return sf.sample(NORMAL, bundles, **ASKED)


@case("mix-bernoulli-guided")
def bundle_beside_owner(folder: Path) -> sf.Run:
    first, second = ({"y": FLIPS["y"][rows]} for rows in (slice(0, 2_500), slice(2_500, None)))
    bundle = released(BERNOULLI, first, "one")
    return sf.sample(BERNOULLI, [sf.Owner(second, name="birch", **PROMISE), bundle], kernel="guided", **ASKED)


def _on_node(name: str, study: str, kernel: str, owners: int) -> None:
    def run(folder: Path) -> sf.Run:
        from node_helpers import YES, load, prepare, threaded

        with ExitStack() as stack:
            found = []
            for i in range(owners):
                place = folder / f"node-{i}"
                tokens = prepare(place, name=f"node {i}", values=YES[i::owners])
                running = stack.enter_context(threaded(place))
                found.append(sf.connect(running.url, token=tokens["alice"]))
            return sf.sample(load(folder / "node-0", study), found, kernel=kernel, **PROMISE, **ASKED)

    CASES[name] = run


for study in ("coin", "bern"):
    for kernel in ("guided", "langevin"):
        _on_node(f"node-{study}-{kernel}", study, kernel, 1)
        _on_node(f"nodes-{study}-{kernel}", study, kernel, 2)


def _on_ray(kernel: str) -> None:
    def run(folder: Path) -> sf.Run:
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = {f"x_{i}": X[:, i] for i in range(2)} | {"y": LOGISTIC["y"]}
        pq.write_table(pa.table(columns), folder / "table.parquet", row_group_size=900)
        table = sf.RayTable(folder / "*.parquet", workers=2)
        os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return sf.sample(
                logistic, table, domain=DOMAIN, kernel=kernel, columns={"x": ["x_0", "x_1"]}, **PROMISE, **ASKED
            )

    CASES[f"ray-model-{kernel}"] = run


for kernel in ("guided", "langevin"):
    _on_ray(kernel)


# -- what is written down -----------------------------------------------------------------------------------------------

PLANNED = ("kernel", "sigma", "step", "iterations", "forecast_ess", "limit_ess", "mu", "pilot_share")


def told(run: sf.Run) -> dict[str, Any]:
    """Everything a run says, but for its transcript."""
    statements = getattr(run.privacy, "owners", None) or (run.privacy,)
    return {
        "stop_reason": str(run.stop_reason),
        "stop_owner": run.stop_owner,
        "discarded": run.discarded,
        "plan": {name: run.plan[name] for name in PLANNED},
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
