"""Sealed sums: what they are worth, what a round of them costs, and what part of that is masks.

**Worth.** Effective draws at equal promises, sealed and unsealed, of one logistic regression. Everybody promises the same: N = 3
with c = 1 assumed colluder, and N = 10 with c = 3. Owners are in this process, so keys and masks are real and the wire is not.
A figure is the median of so many runs, each the effective draws of the median coefficient (ArviZ's bulk ESS). Wanted: at least
1.9 times as many (N = 3), 6 times (N = 10), and the plan's forecast within a factor of 1.2.

**Cost.** A round over three node processes, sealed against unsealed, in turns, as in `owners.py`. Wanted: at most 1.25 times.

**Masks.** Processor time of masking at N = 10, d = 20, against all of an owner's answers to questions of Langevin around a
reference point (statistics asked ahead, a scalar for each chain). Wanted: below a fifth.

    python benchmarks/owners.py --sealed
"""

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import owners as over

import sfumato as sf
from sfumato.owners.local import open_door
from sfumato.protocol.consortium import named
from sfumato.protocol.questions import AHEAD, Remainder, Statistic, Terms
from sfumato.study.target import make_study
from sfumato.vault.lattice import choose_gamma
from sfumato.vault.sealed.identity import Identity
from sfumato.vault.sealed.session import RunKeys

CASES = {(3, 1): 1.9, (10, 3): 6.0}
FORECAST, ROUND, MASKS = 1.2, 1.25, 0.2
EPSILON, DELTA, DIM, RECORDS, CHAINS = 3.0, 1e-6, 2, 20_000, 2


def table_of(n: int, d: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, d))
    beta = np.linspace(0.8, -0.8, d)
    return {"x": x, "y": (rng.random(n) < 1 / (1 + np.exp(-x @ beta))).astype(int)}


def owners_of(size: int, colluders: int) -> list[sf.Owner]:
    """So many owners of equal parts of one table, with equal promises."""
    names = [f"owner-{i:02d}" for i in range(size)]
    members = sf.Consortium.among(names, colluders=colluders)
    whole, each = table_of(RECORDS, DIM, 1), RECORDS // size
    return [
        sf.Owner(
            {k: v[i * each : (i + 1) * each] for k, v in whole.items()}, name=name, epsilon=EPSILON, delta=DELTA,
            consortium=members[name],
        )
        for i, name in enumerate(names)
    ]  # fmt: skip


def typical_ess(run: Any) -> float:
    """Effective draws of the median coefficient: what a forecast speaks of."""
    values = az.ess(run.to_arviz(), method="bulk").data_vars.values()
    return float(np.median(np.concatenate([np.ravel(value) for value in values])))


def effective(size: int, colluders: int, sealed: bool, runs: int) -> tuple[float, float]:
    """Median effective draws, and the median ratio of the forecast (after the pilot) to them."""
    found, ratios = [], []
    for seed in range(runs):
        owners = owners_of(size, colluders)
        for owner in owners:
            owner.consortium = owner.consortium if sealed else None
        run = sf.sample(
            logistic, owners, domain={"x": sf.Box(-1, 1, shape=(DIM,)), "y": sf.Binary()}, seed=seed, chains=CHAINS,
            force=True, progress=False,
        )  # fmt: skip
        found.append(typical_ess(run))
        ratios.append(run.plan.forecast_ess / found[-1])
    return float(np.median(found)), float(np.median(ratios))


def logistic(x: Any, y: Any) -> None:
    import numpyro
    import numpyro.distributions as dist

    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([DIM]).to_event(1))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


def worth(runs: int) -> bool:
    met = True
    for (size, colluders), wanted in CASES.items():
        (sealed, forecast), (plain, _) = (effective(size, colluders, how, runs) for how in (True, False))
        off = max(forecast, 1 / forecast)
        print(
            f"N = {size}, c = {colluders}: {sealed:.0f} effective draws sealed, {plain:.0f} unsealed, {sealed / plain:.2f} times "
            f"(wanted {wanted:g}); forecast over attained {forecast:.2f} (wanted within {FORECAST:g})",
            flush=True,
        )
        met &= sealed >= wanted * plain and off <= FORECAST
    return met


# -- what a round costs -------------------------------------------------------------------------------------------------


def rounds_over_nodes(slices: int, n: int) -> bool:
    """Three nodes, sealed against unsealed, taking turns."""
    names = ("amber", "birch", "cedar")
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        identities = {owner: Identity.new(folder / f"{owner}.key") for owner in names}
        members = "\n".join(f'{owner} = "{identity.public}"' for owner, identity in identities.items())
        more = '[consortium]\nname = "bench"\ncolluders = 1\nunsealed = true\nidentity = "../{owner}.key"\n[consortium.members]\n'
        nodes = [
            stack.enter_context(over.node_of(folder / owner, n // 3, more.format(owner=owner) + members))
            for owner in names
        ]
        ratios = []
        for title, what, kind in (
            ("walk", "logistic", "guided"),
            ("Langevin", "logistic", "langevin"),
            ("a family", "coin", "langevin"),
        ):
            sides = [
                over.Walker(nodes, what, kind, folder / "amber", f"{what}-{kind}-{sealed}", sealed=sealed)
                for sealed in (False, True)
            ]
            times = np.array([[side.slice()[0] for side in sides] for _ in range(slices)])
            for side in sides:
                side.close()
            best = np.quantile(times, 0.1, axis=0)
            ratios.append(float(best[1] / best[0]))
            print(
                f"{title}: {best[0]:.2f} ms a round unsealed, {best[1]:.2f} sealed, {ratios[-1]:.2f} times", flush=True
            )
    print(f"a sealed round: at worst {max(ratios):.2f} times an unsealed one, wanted {ROUND:g}")
    return max(ratios) <= ROUND


def masks_of_a_node(rounds: int) -> bool:
    """Processor time of masks, as a share of an owner's whole answer, at N = 10 and d = 20."""
    size, d, n, chains = 10, 20, 3000, 4
    names = [f"o{i}" for i in range(size)]
    members = sf.Consortium.among(names, colluders=3)

    def model(x: Any, y: Any) -> None:
        import numpyro
        import numpyro.distributions as dist

        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([d]).to_event(1))
        with numpyro.plate("records", y.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)

    study = make_study(model, {"x": sf.Box(-1, 1, shape=(d,)), "y": sf.Binary()}, kernel="langevin")
    door = open_door(
        study, table_of(n, d, 2), name=names[0], epsilon=8.0, delta=1e-6, mu=30.0, run_id="masks",
        consortium=members[names[0]],
    )  # fmt: skip
    others = [members[name].run("masks", study.model.fingerprint(), n) for name in names[1:]]
    keyset = door.agree([door.key_message(), *(keys.message() for keys in others)])
    sigma, first, matrix = 50.0, 4000.0, (np.eye(d) * 0.02).tolist()
    gammas = [choose_gamma(s / size**0.5, size * n) for s in (sigma, first)]
    door.begin(
        Terms(
            kernel="langevin", chains=chains, sigma=sigma, gamma=gammas[0], proposal_sigma=first, proposal_gamma=gammas[1],
            matrix=matrix, centre=[0.0] * d, shares=[1 / size] * size,
        )
    )  # fmt: skip
    masked, real = 0.0, RunKeys.seal

    def timed(*arguments: Any) -> Any:
        nonlocal masked
        began = time.thread_time()
        result = real(*arguments)
        masked += time.thread_time() - began
        return result

    RunKeys.seal = timed  # type: ignore[method-assign]
    rng = np.random.default_rng(0)
    try:
        for i in range(rounds + 3):
            if i == 3:  # compiled by now
                masked, began = 0.0, time.process_time()
            theta, there, slope = (rng.normal(0, 0.02, (chains, d)).tolist() for _ in range(3))
            asked = [True] * chains
            if i % AHEAD == 0:
                door.ask(named(f"masks/{i}/statistics", keyset), Statistic(chains=chains, steps=AHEAD))
            door.ask(
                named(f"masks/{i}/remainder", keyset),
                Remainder(theta=theta, theta_prop=there, slope=slope, asked=asked),
            )
        whole = time.process_time() - began
    finally:
        RunKeys.seal = real  # type: ignore[method-assign]
        door.close()
    share = masked / whole
    print(
        f"masks at N = {size}, d = {d}: {masked / rounds * 1e3:.3f} ms of the {whole / rounds * 1e3:.3f} ms of processor time "
        f"that a step takes ({n} records, {chains} chains), {share:.0%}; wanted below {MASKS:.0%}"
    )
    return share < MASKS


def sealed(runs: int, slices: int, records: int) -> bool:
    """All three; whether what is wanted was met."""
    met = [masks_of_a_node(400), rounds_over_nodes(slices, records), worth(runs)]
    return all(met)
