"""An estimate whose records are behind nodes: one or several, a model or a family; its node calls it by its kind."""

import numpy as np
import pytest

import sfumato as sf
from node_helpers import YES, N, call, load, prepare, threaded
from sfumato.errors import BudgetSpent
from sfumato.owners.remote import connect

BUDGET = {"epsilon": 1.0, "delta": 1e-6}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """Two nodes with unequal parts of one table."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        running = []
        for name, part in (("Amber", slice(0, 900)), ("Birch", slice(900, N))):
            folder = tmp_path_factory.mktemp(name)
            tokens = prepare(folder, values=YES[part], name=name, total=4.0)
            running.append(stack.enter_context(threaded(folder)))
            running[-1].token = tokens["alice"]
        yield running


def owner_of(node):
    return connect(node.url, token=node.token)


def status(node):
    code, told = call(f"{node.url}/api/status", node.token)
    assert code == 200
    return told


def test_a_node_answers_an_estimate_and_calls_it_one(nodes, tmp_path):
    node = nodes[1]
    coin, owner = load(node.folder, "coin"), owner_of(node)
    found = sf.estimate(coin, owner, **BUDGET, seed=1, progress=False, checkpoint=tmp_path / "kept")
    assert abs(found.draws["p"].mean() - YES[900:].mean()) < 5 * found.draws["p"].std() < 0.2
    assert found.privacy.n == N - 900 and found.privacy.epsilon == BUDGET["epsilon"]
    [run] = [run for run in status(node)["runs"] if run["run"].startswith("estimate-")]
    assert run["answers"] > 0
    again = sf.resume(tmp_path / "kept", owner, model=coin, progress=False)
    np.testing.assert_array_equal(again.draws["p"], found.draws["p"])
    assert [run["answers"] for run in status(node)["runs"]] == [run["answers"]]  # nothing was asked again


def test_several_nodes_give_one_estimate_of_a_family(nodes):
    bern = load(nodes[0].folder, "bern")
    found = sf.estimate(bern, [owner_of(node) for node in nodes], **BUDGET, seed=1, progress=False)
    assert found.label.startswith("By the exact law of the counts")
    assert abs(found.draws["p"].mean() - YES.mean()) < 5 * found.draws["p"].std() < 0.2
    assert [owner.n for owner in found.privacy.owners] == [900, N - 900]


def test_a_node_and_a_table_give_one_estimate(nodes):
    coin = load(nodes[0].folder, "coin")
    mixed = [owner_of(nodes[0]), sf.Owner({"y": YES[900:]}, name="here")]
    found = sf.estimate(coin, mixed, domain={"y": sf.Binary()}, **BUDGET, seed=1, progress=False)
    assert abs(found.draws["p"].mean() - YES.mean()) < 5 * found.draws["p"].std() < 0.2


def test_a_budget_that_the_node_has_not_is_refused_before_anything_is_asked(nodes):
    with pytest.raises(BudgetSpent, match="Birch"):
        sf.estimate(load(nodes[1].folder, "coin"), owner_of(nodes[1]), epsilon=4.0, delta=1e-5, progress=False)
