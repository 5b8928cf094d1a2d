"""Several nodes, one theta: the chain of one table where their noises add up, and every lie named after its node."""

from contextlib import ExitStack
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

import sfumato as sf
from node_helpers import YES, N, load, prepare, threaded
from sfumato.analysis.noise_aware import _statistics
from sfumato.errors import BadAnswer, InvalidInput, OwnerLost
from sfumato.families.langevin import natural_model, public_part
from sfumato.files.tables import Sensitivity
from sfumato.kernel import Guided, Langevin, PublicStream, ReferenceLangevin
from sfumato.node.config import StudyEntry
from sfumato.node.session import Session
from sfumato.node.state import Node
from sfumato.node.studies import ApprovedStudy
from sfumato.owners import rounds as rounds_module
from sfumato.owners.remote import connect
from sfumato.owners.rounds import Rounds
from sfumato.privacy.budget import QUANTA_PER_UNIT
from sfumato.protocol.questions import AHEAD, decode_reply, encode
from sfumato.run.opening import make_studies
from sfumato.run.parties import Given, as_parties
from sfumato.run.request import Request
from sfumato.vault import lattice
from sfumato.vault.ledger import Ledger
from unit.node.test_remote import CHAINS, drive, local
from unit.owners.fixed_noise import split
from unit.owners.test_rounds import door_of

NAMES, EDGES = ("Amber", "Birch"), (0, 900, N)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """Two nodes with unequal parts of one table; their noises add up to that of one owner."""
    with ExitStack() as stack:
        running = []
        for i, name in enumerate(NAMES):
            folder = tmp_path_factory.mktemp(name)
            tokens = prepare(folder, values=YES[EDGES[i] : EDGES[i + 1]], name=name)
            running.append(stack.enter_context(threaded(folder, source=split(len(NAMES), i, 0.0))))
            running[-1].token = tokens["alice"]
        yield running


@pytest.fixture
def owners(nodes):
    return [connect(node.url, token=node.token) for node in nodes]


def kernel_for(kind, study):
    if kind == "walk":
        return Guided(np.eye(1) * 0.05, 0.7), 3.0
    if kind in ("family", "copies"):
        copy_sigma = 60.0 if kind == "copies" else 0.0
        return Langevin(np.eye(1) * 0.05, 0.3, public_part(study.family, study.model, N), copy_sigma=copy_sigma), 2.0
    around = np.full(1, -0.85), np.eye(1) * N * 0.21
    return ReferenceLangevin(np.eye(1) * 0.05, 0.5, study.model.log_prior, *around, 12.0), 0.5


@pytest.mark.parametrize(("name", "kind"), [("coin", "walk"), ("bern", "family"), ("coin", "reference")])
def test_the_chain_over_nodes_is_that_of_one_table(nodes, owners, monkeypatch, name, kind):
    """Draw for draw. On a family each owner rounds its own scalar, which shows in the twelfth digit of the answer alone."""
    doors = []
    for owner in owners:
        wanted = "guided" if kind == "walk" else "langevin"
        approved, study, _ = owner.study(load(nodes[0].folder, name), kernel=wanted)
        doors.append(owner.door(approved, study.model.fingerprint(), epsilon=2.0, delta=1e-6, run_id=f"bits-{kind}"))
    kernel, sigma = kernel_for(kind, study)
    rounds = Rounds(study.model, doors, run_id=f"bits-{kind}", ahead=32)
    several = drive(study, kernel, sigma, rounds, PublicStream(3, CHAINS))
    real = lattice.choose_gamma  # one owner with all the noise, on the lattice that two agree on
    monkeypatch.setattr(lattice, "choose_gamma", lambda sigma, n: real(sigma / len(NAMES) ** 0.5, n))
    one = local(study, kernel, sigma)
    assert 0 < one["accepted"].mean() < 1
    for key, value in one.items():
        if kind == "family" and key == "sensitivity":
            continue  # an owner of fewer records allows for less rounding
        rounded = {"rtol": 0, "atol": 1e-9} if kind == "family" and key == "d_n_noisy" else {"rtol": 0, "atol": 0}
        assert np.allclose(value, several[key], equal_nan=value.dtype != bool, **rounded), key


def test_with_second_copies_the_chain_over_nodes_is_that_of_one_table_to_the_last_bit(nodes, owners, monkeypatch):
    """Over two nodes with the noise split, and in this process over one owner of all records."""
    doors = []
    for owner in owners:
        approved, study, _ = owner.study(load(nodes[0].folder, "bern"), kernel="langevin")
        doors.append(owner.door(approved, study.model.fingerprint(), epsilon=2.0, delta=1e-6, run_id="bits-copies"))
    kernel, sigma = kernel_for("copies", study)
    several = drive(
        study, kernel, sigma, Rounds(study.model, doors, run_id="bits-copies", ahead=32), PublicStream(3, CHAINS)
    )
    real = lattice.choose_gamma
    monkeypatch.setattr(rounds_module, "choose_gamma", lambda sigma, n: real(sigma / len(NAMES) ** 0.5, n))
    with Ledger.in_memory(2**60) as ledger:
        case = SimpleNamespace(study=study, table={"y": YES})
        one = drive(
            study, kernel, sigma, Rounds(study.model, [door_of(case, ledger)], run_id="one"), PublicStream(3, CHAINS)
        )
    assert 0 < one["accepted"].mean() < 1
    for key, value in one.items():
        assert np.array_equal(value, several[key], equal_nan=value.dtype != bool), key


def test_a_run_on_a_family_over_nodes_asks_for_all_it_needs_ahead(nodes, owners, monkeypatch, tmp_path):
    """Through the public function: a message for sixteen steps, both copies in the transcript, every quantum accounted for."""
    asked, real = [], Rounds.add

    def add(rounds, name, *rest):
        asked.append(name)
        return real(rounds, name, *rest)

    monkeypatch.setattr(Rounds, "add", add)
    family = load(nodes[0].folder, "bern")
    wishes = {"epsilon": 3.0, "delta": 1e-6, "max_iterations": 70, "chains": 2, "pilot_share": 0.0, "guess": {"p": 0.3}}
    plan = sf.plan(family, owners, **wishes)
    assert plan.copy_sigma > 0 and "asked ahead" in plan.table()
    run = sf.sample(family, owners, **wishes, seed=1, force=True, progress=False)
    assert (run.planned["kernel"], run.planned["copy_sigma"], run.iterations) == ("langevin", plan.copy_sigma, 70)
    assert asked == [f"{first}/statistics" for first in range(0, 64, AHEAD)] + [
        f"{step}/statistic" for step in range(64, 70)
    ]
    t = run.transcript
    assert t["copy_noisy"].shape == t["t_noisy"].shape == (2, 70, 1)
    assert np.isfinite(t["d_n_noisy"]).all() and run.acceptance > 0.5
    assert run.privacy.owners[0].releases == 2 * t["t_noisy"].size
    for i, statement in enumerate(run.privacy.owners):
        share = run.planned["owners"][i]["share"]
        total = (t["widths"][..., i] ** 2 * (run.planned["step"] / 4 + run.planned["copy_sigma"] ** -2) / share).sum()
        assert statement.spent_mu**2 == pytest.approx(total, rel=1e-6)
    assert t["mu_squared"].sum() == pytest.approx(total, rel=1e-6)
    _, average, noise = _statistics(run)  # what is known of the sum in the end: both copies count
    precisions = np.array([run.planned["step"] / 4, run.planned["copy_sigma"] ** -2])
    means = np.array([t[name].mean() for name in ("t_noisy", "copy_noisy")])
    assert average[0] == pytest.approx(means @ precisions / precisions.sum())
    assert noise[0] ** -2 == pytest.approx(140 * precisions.sum())
    run.save(tmp_path / "run.npz")
    assert np.array_equal(sf.load(tmp_path / "run.npz").transcript["copy_noisy"], t["copy_noisy"])


def lying(monkeypatch, liar, lie, after=0):
    """Let a node lie, once, after so many honest answers."""
    honest, heard = Session._answer, []

    async def answer(session, data):
        reply = await honest(session, data)
        if session.node is liar:
            heard.append(data)
            if len(heard) == after + 1:
                return lie(reply)
        return reply

    monkeypatch.setattr(Session, "_answer", answer)
    monkeypatch.setattr(Session, "at_once", lambda session, data: None)  # every answer goes that way


def test_langevin_on_any_model_over_nodes_until_one_of_them_lies(nodes, owners, monkeypatch):
    """Each pays from its own account; the liar is named, nothing of the lie is used, and what was drawn before is there."""
    steps = 6
    lying(
        monkeypatch, nodes[1].node, LIES["not a number"], after=1 + steps
    )  # many steps' statistics, a question a step
    with pytest.raises(BadAnswer, match="'Birch' sent") as caught:
        sf.sample(
            load(nodes[0].folder, "coin"), owners, epsilon=2.0, delta=1e-6, kernel="langevin", max_iterations=40, chains=2,
            seed=1, pilot_share=0.0, guess={"p": 0.3}, force=True, progress=False,
        )  # fmt: skip
    assert caught.value.owner == "Birch"
    run = caught.value.run
    assert (run.planned["kernel"], run.iterations) == ("langevin", steps)
    assert np.isfinite(run.transcript["d_n_noisy"]).all()
    assert "planned posterior standard deviations" in str(run.privacy)
    assert [owner.owner for owner in run.privacy.owners] == list(NAMES)
    for i, node in enumerate(nodes):
        (account,) = [a for a in node.node.books.ledger.accounts() if a.about.get("epsilon") == 2.0][-1:]
        share = run.planned["owners"][i]["share"]
        scalars = ((run.transcript["widths"][..., i] / run.planned["sigma"]) ** 2).sum() / share
        # What the public transcript says each step cost; and statistics asked ahead, and a scalar, that were not used.
        total = run.transcript["mu_squared"].sum()
        assert 0 < scalars < total < account.spent / QUANTA_PER_UNIT
        expected = (total - scalars) * AHEAD / steps + scalars * (steps + 1) / steps
        assert account.spent / QUANTA_PER_UNIT == pytest.approx(expected, rel=0.1)


def test_an_owner_without_proven_bounds_is_asked_for_walks_only(nodes, owners):
    coin, there = load(nodes[0].folder, "coin"), nodes[1].node.studies["coin"]
    parties = as_parties(owners, Given(epsilon=2.0, delta=1e-6))
    assert all(study.reference_bounds is not None for study in make_studies(coin, parties, None, Request()))
    clipped = StudyEntry(model="model.py:coin", sensitivity=Sensitivity(kind="clip", bound=0.5))
    stated = ApprovedStudy("coin", clipped, coin, {"y": sf.Binary()}, there.n).public()
    assert (there.public().reference, stated.reference) == (True, False)
    owners[1].studies["coin"] = stated
    assert all(study.reference_bounds is None for study in make_studies(coin, parties, None, Request()))
    with pytest.raises(InvalidInput, match="the owner can prove for study 'coin'"):
        owners[1].study(coin, kernel="langevin")


def changed(reply, **fields):
    """A reply with fields that no honest program would send, as the wire would carry them."""
    return msgspec.msgpack.encode(msgspec.to_builtins(decode_reply(reply)) | fields)


LIES = {
    "garbage": lambda reply: b"\xc1 these are no numbers",
    "nothing": lambda reply: b"",
    "not a number": lambda reply: changed(reply, numbers=[float("nan")] * 2),
    "text": lambda reply: changed(reply, numbers=["1", "2"]),
    "an endless width": lambda reply: changed(reply, widths=[float("inf")]),
    "another id": lambda reply: encode(msgspec.structs.replace(decode_reply(reply), id="another")),
    "too many": lambda reply: changed(reply, numbers=[1] * 3),
}


def test_whatever_a_node_sends_in_place_of_an_answer_its_name_is_on_it(nodes, owners, monkeypatch):
    doors = [
        owner.door("bern", owner.studies["bern"].models[0], epsilon=0.2, delta=1e-6, run_id="lies") for owner in owners
    ]
    rounds = Rounds(natural_model(sf.families.Bernoulli()), doors, run_id="lies")
    arguments = "gradient", np.zeros(1), np.eye(1), 1.0, 300.0
    assert np.isfinite(rounds.release(*arguments)).all()
    for lie in LIES.values():
        with monkeypatch.context() as patch:
            lying(patch, nodes[1].node, lie)
            with pytest.raises(BadAnswer, match="'Birch' sent") as caught:
                rounds.release(*arguments)
        assert caught.value.owner == "Birch"
    rounds.close()


def test_a_node_that_comes_with_another_promise_is_named(nodes, owners, monkeypatch):
    opened = Node.open_run

    def other(self, *arguments):
        run = opened(self, *arguments)
        run.facts = msgspec.structs.replace(run.facts, epsilon=9.0)
        return run

    monkeypatch.setattr(Node, "open_run", other)
    with pytest.raises(BadAnswer, match="'Amber' sent another promise"):
        owners[0].door("bern", owners[0].studies["bern"].models[0], epsilon=0.2, delta=1e-6, run_id="other")


def test_a_node_that_stays_paused_counts_as_lost(nodes, owners):
    owners[1]._line.patience = 0.1
    doors = [
        owner.door("bern", owner.studies["bern"].models[0], epsilon=0.2, delta=1e-6, run_id="p") for owner in owners
    ]
    rounds = Rounds(natural_model(sf.families.Bernoulli()), doors, run_id="p")
    nodes[1].node.pause("owner")
    try:
        with pytest.raises(
            OwnerLost, match=r"'Birch' did not but refused as long as it was asked \(paused\)"
        ) as caught:
            rounds.release("gradient", np.zeros(1), np.eye(1), 1.0, 300.0)
    finally:
        nodes[1].node.resume("owner")
    assert caught.value.owner == "Birch"
    assert rounds.left > 0
    rounds.close()
