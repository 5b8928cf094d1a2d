"""A chain over the wire has the law of a local one: the same tests, through a real node with real noise, and a saboteur."""

import msgspec
import numpy as np
import pytest

from helpers import CAUGHT, FALSE_ALARM
from node_helpers import load, prepare, threaded
from sfumato.kernel import Guided, PublicStream
from sfumato.owners.remote import connect
from sfumato.owners.rounds import Rounds
from statistical.harness import grid_posterior, moment_p_values, starting_states

CHAINS, STEPS, BURN = 64, 800, 150
SIGMA, STEP = 1.7, 0.28
VALUES = (np.random.default_rng(20).random(60) < 0.3).astype(int)


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """A node with a budget no owner would give: a law is tested on more steps than any budget buys."""
    folder = tmp_path_factory.mktemp("law")
    tokens = prepare(folder, values=VALUES, studies=("coin",))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sfumato.privacy.gdp.mu", lambda epsilon, delta: 60.0)
        patch.setattr("sfumato.planner.budget_mu", lambda epsilon, delta: 40.0)
        with threaded(folder) as running:
            running.owner = connect(running.url, token=tokens["alice"])
            yield running


def draws_over_the_wire(node, run_id: str, terms_change=lambda terms: terms) -> np.ndarray:
    name, study, _ = node.owner.study(load(node.folder, "coin"), kernel="guided")
    door = node.owner.door(name, study.model.fingerprint(), epsilon=2.0, delta=1e-6, run_id=run_id)
    begin = door.begin
    door.begin = lambda terms: begin(terms_change(terms))
    rounds, stream, kernel = (
        Rounds(study.model, [door], run_id=run_id),
        PublicStream(4, CHAINS),
        Guided(np.eye(1), STEP),
    )
    states = starting_states(study, kernel, stream, np.array([-0.8]), CHAINS)
    rounds.begin(kernel, SIGMA, states)
    parts, done = [], 0
    while done < STEPS:
        chunk = rounds.chunk(states, stream.peek(kernel, 200), 200, 1)
        states, done = chunk.states, done + chunk.steps
        stream.consume(chunk.steps)
        parts.append(chunk.transcript.theta)
    rounds.close()
    return np.concatenate(parts)[BURN:]


def p_values(node, draws: np.ndarray) -> list[float]:
    _, study, _ = node.owner.study(load(node.folder, "coin"), kernel="guided")
    return moment_p_values(draws[..., 0], *grid_posterior(study, {"y": VALUES}, -3.5, 2.5))


def test_the_law_over_the_wire_is_the_posterior(node):
    found = p_values(node, draws_over_the_wire(node, "law"))
    assert min(found) > FALSE_ALARM / len(found)


def test_a_node_that_adds_other_noise_than_agreed_is_caught(node):
    """A saboteur: the analyst's penalty is for sigma, the node's noise is twice that."""
    found = p_values(
        node, draws_over_the_wire(node, "sabotage", lambda t: msgspec.structs.replace(t, sigma=2 * t.sigma))
    )
    assert min(found) < CAUGHT
