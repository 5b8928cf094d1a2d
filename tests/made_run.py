"""A run made by hand: draws of known laws, with everything that a real run carries."""

import math

import numpy as np

from sfumato.analysis.facts import Facts
from sfumato.analysis.result import Run, StopReason
from sfumato.analysis.wording import Label, Words
from sfumato.privacy.statement import Statement

NASTY = "<script>alert('x')</script>"


def make_run(
    *,
    chains=2,
    steps=600,
    shift=0.0,
    names=("a", "b"),
    epsilon=1.0,
    shared=False,
    stop=StopReason.BUDGET_SPENT,
    words=None,
):
    rng = np.random.default_rng(3)
    draws = {name: rng.normal(size=(chains, steps)) + shift * np.arange(chains)[:, None] for name in names}
    draws["vector"] = rng.normal(5.0, 0.02, size=(chains, steps, 2))
    theta = np.concatenate([*(draws[n][..., None] for n in names), draws["vector"]], axis=2)
    transcript = {
        "theta": theta,
        "theta_prop": theta,
        "d_n_noisy": rng.normal(size=(chains, steps)),
        "sigma": np.full((chains, steps), 2.0),
        "sensitivity": np.full((chains, steps), 0.01),
        "mu_squared": np.full(
            (chains, steps), 0.8 * (0.01 / 2) ** 2
        ),  # not what the two above say: there may be other answers
        "accepted": rng.random((chains, steps)) < 0.37,
    }
    spent = 0.8 * chains * steps * (0.01 / 2) ** 2 + 0.005
    privacy = Statement(
        epsilon=epsilon, delta=1e-6, mu=0.25, releases=1234, spent_mu=math.sqrt(spent), n=54321, lattice_slack=1e-15,
        sensitivity="Proven.", exact="Exact.", precision="float64", shared_ledger=shared,
    )  # fmt: skip
    plan = {"kernel": "guided", "step": 0.4, "sigma": 2.0, "chains": chains, "iterations": steps, "forecast_ess": 31.0}
    plan |= {"limit_ess": 99.0, "assumptions": ["the pilot's releases", NASTY]}
    facts = Facts(
        words=words or Words(), date="2026-01-31", model=f"def model(): {NASTY}", prior={"a": (-9.0, 0.0, 9.0)}
    )
    release = {"what": "gradient", "theta": [0.0], "sigma": 0.5, "radius": 0.1, "answer": [1.5, -2.5]}
    return Run(
        draws=draws, transcript=transcript, privacy=privacy, stop_reason=stop, planned=plan,
        pilot={"releases": [release], "share": 0.1}, coordinates=(*names, "vector[0]", "vector[1]"), seed=17, facts=facts,
    )  # fmt: skip


WORDS = Words(
    title="A trial", question="Does it help?", answer="b", source="a register",
    parameters={"a": Label("The share", scale="percent"), "b": Label("The odds ratio", scale="exp"), "vector": Label("Entry")},
)  # fmt: skip
