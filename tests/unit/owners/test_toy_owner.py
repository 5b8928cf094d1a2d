"""One more kind of owner in one file: records in a process of their own, asked through a pipe. Nothing else is touched."""

import multiprocessing
from multiprocessing.connection import Connection

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sfumato as sf
from sfumato.owners.local import open_door
from sfumato.planner import budget_mu
from sfumato.study.target import make_study

DOMAIN = {"y": sf.Binary()}
PROMISE = {"epsilon": 2.0, "delta": 1e-6}


def coin(y):
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(probs=p), obs=y)


def flips(n: int, p: float, seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).random(n) < p).astype(int)


def keep_records(line: Connection, n: int, p: float, seed: int) -> None:
    """The owner's process: its table, its desk, its ledger. Questions come in, paid answers go out."""
    study, door = make_study(coin, DOMAIN), None
    while (asked := line.recv()) is not None:
        what, *parts = asked
        try:
            if what == "open":
                name, run_id, epsilon, delta = parts
                mu = budget_mu(epsilon, delta)
                door = open_door(
                    study, {"y": flips(n, p, seed)}, name=name, epsilon=epsilon, delta=delta, mu=mu, run_id=run_id
                )
                line.send(door.facts)
            else:
                found = getattr(door, what)
                line.send(found(*parts) if callable(found) else found)
        except sf.errors.SfumatoError as error:
            line.send(error)
    if door is not None:
        door.close()


class PipeDoor:
    """A `Door` at the end of a pipe."""

    def __init__(self, line: Connection, name: str, facts) -> None:
        self._line, self.name, self.facts = line, name, facts

    def _ask(self, *asked):
        self._line.send(asked)
        if isinstance(answer := self._line.recv(), Exception):
            raise answer
        return answer

    @property
    def left(self):
        return self._ask("left")

    def begin(self, terms):
        return self._ask("begin", terms)

    def ask(self, query_id, question):
        return self._ask("ask", query_id, question)

    def close(self):
        """The process is let go of with its owner."""


class PipeOwner:
    """An `AnsweringOwner`: records of a process that nobody else can look into."""

    def __init__(self, name: str, n: int, p: float, seed: int) -> None:
        self.name, self._n = name, n
        context = multiprocessing.get_context("spawn")
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=keep_records, args=(theirs, n, p, seed), daemon=True)
        self._process.start()

    def study(self, model, domain, sensitivity, kernel):
        return "coin", make_study(model, DOMAIN, sensitivity, kernel), self._n

    def door(self, approved, fingerprint, *, epsilon, delta, run_id):
        self._line.send(("open", self.name, run_id, epsilon, delta))
        return PipeDoor(self._line, self.name, self._line.recv())

    def close(self) -> None:
        self._line.send(None)
        self._process.join(30)


@pytest.fixture
def owner():
    made = PipeOwner("next door", 3_000, 0.3, 1)
    yield made
    made.close()


def test_a_new_kind_of_owner_is_planned_and_sampled(owner):
    assert sf.plan(coin, owner, **PROMISE).n == 3_000
    run = sf.sample(coin, owner, **PROMISE, chains=2, seed=1, max_iterations=60, force=True, progress=False)
    assert run.iterations > 0 and run.privacy.n == 3_000
    assert abs(run.draws["p"].mean() - 0.3) < 0.1


def test_it_stands_beside_another_owner(owner):
    beside = sf.Owner({"y": flips(2_000, 0.3, 2)}, name="here", domain=DOMAIN)
    run = sf.sample(
        coin, [owner, beside], domain=DOMAIN, **PROMISE, chains=2, seed=1, max_iterations=40, force=True, progress=False
    )
    assert [said.owner for said in run.privacy.owners] == ["next door", "here"]


def test_its_budget_ends_the_run_like_any_other(owner):
    run = sf.sample(
        coin, owner, epsilon=0.05, delta=1e-6, chains=2, seed=1, kernel="random-walk", pilot_share=0.0, guess={"p": 0.3},
        max_iterations=5_000, force=True, progress=False,
    )  # fmt: skip
    assert run.stop_reason is sf.StopReason.BUDGET_SPENT and run.privacy.spent_mu <= run.privacy.mu
