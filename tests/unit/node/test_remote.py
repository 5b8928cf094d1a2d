"""A run over the wire is the local run: same noise, same draws, to the last bit; and it survives a broken line."""

import io
import json
import threading
import time

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest

import sfumato as sf
from node_helpers import YES, N, Process, call, load, prepare, threaded, wait_for
from sfumato.errors import BudgetSpent, CheckpointError, InvalidInput, LedgerError, OwnerRefused
from sfumato.families.langevin import public_part
from sfumato.kernel import Guided, Langevin, PublicStream, ReferenceLangevin, State
from sfumato.owners import remote
from sfumato.owners.remote import connect
from sfumato.owners.rounds import Rounds
from sfumato.privacy.budget import QUANTA_PER_UNIT, cap_quanta
from sfumato.protocol.frames import Ask
from sfumato.protocol.questions import Ratio, Release, Statistic, Terms, decode_reply, encode
from sfumato.study.target import make_study
from sfumato.vault import records
from sfumato.vault.lattice import choose_gamma
from sfumato.vault.ledger import Ledger
from sfumato.vault.vault import Vault
from unit.owners.fixed_noise import Fixed

CHAINS, STEPS, CAP = 3, 50, 2**60
DOMAIN = {"y": sf.Binary()}
WALK = Terms(kernel="walk", chains=1, sigma=2.0, gamma=choose_gamma(2.0, N))
RATIO = Ratio(theta=[[-0.8]], theta_prop=[[-0.81]], asked=[True])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("owner")
    return folder, prepare(folder)


@pytest.fixture(scope="module")
def node(folder):
    with threaded(folder[0], source=Fixed) as running:
        yield running


@pytest.fixture(scope="module")
def alice(node, folder):
    return connect(node.url, token=folder[1]["alice"])


def door_for(owner, folder, name="coin", kernel="guided", run_id="run", epsilon=2.0):
    approved, study, n = owner.study(load(folder[0], name), kernel=kernel)
    assert (approved, n) == (name, N)
    return study, owner.door(approved, study.model.fingerprint(), epsilon=epsilon, delta=1e-6, run_id=run_id)


def drive(study, kernel, sigma, access, stream):
    with jax.enable_x64(True):
        theta = jnp.asarray(np.linspace(-0.9, -0.8, CHAINS)[:, None])
        pending = jnp.full(theta.shape, jnp.nan) if isinstance(kernel, Langevin) else None
        states = State(
            theta, jax.jit(jax.vmap(study.model.log_prior))(theta), jnp.asarray(stream.directions(1)), pending
        )
    access.begin(kernel, sigma, states)
    chunk = access.chunk(states, stream.peek(kernel, STEPS), STEPS, 2**58)
    access.close()
    assert chunk.steps == STEPS
    names = ("theta", "theta_prop", "d_n_noisy", "sensitivity", "accepted")
    return {name: np.asarray(getattr(chunk.transcript, name)) for name in names}


def local(study, kernel, sigma):
    with Ledger.in_memory(CAP) as ledger:
        table = records.load({"y": YES}, study.domain)
        vault = Vault(table, study, ledger.account("a", CAP), source=Fixed)
        return drive(study, kernel, sigma, vault, PublicStream(3, CHAINS))


@pytest.mark.parametrize(("name", "kind"), [("coin", "guided"), ("bern", "langevin"), ("coin", "langevin")])
def test_draws_over_the_wire_are_the_local_ones_bit_for_bit(alice, folder, name, kind):
    study, door = door_for(alice, folder, name, kind, run_id=f"bits-{name}-{kind}", epsilon=8.0)
    if kind == "guided":
        kernel, sigma = Guided(np.eye(1) * 0.05, 0.7), 3.0
    elif study.family is not None:
        kernel, sigma = Langevin(np.eye(1) * 0.05, 0.3, public_part(study.family, study.model, N)), 2.0
    else:
        centre, information = np.array([-0.8]), np.array([[500.0]])
        kernel, sigma = ReferenceLangevin(np.eye(1) * 0.05, 0.3, study.model.log_prior, centre, information, 12.0), 2.0
    rounds = Rounds(study.model, [door], run_id="bits", ahead=32)
    remote = drive(study, kernel, sigma, rounds, PublicStream(3, CHAINS))
    here = local(study, kernel, sigma)
    assert 0 < here["accepted"].mean() < 1
    for key, value in here.items():
        assert np.array_equal(value, remote[key], equal_nan=value.dtype != bool), key


def test_plan_and_sample_take_an_owner_wherever_data_are_taken(alice, node, folder, tmp_path):
    coin = load(folder[0], "coin")
    plan = sf.plan(coin, alice, epsilon=3.0, delta=1e-6, chains=2, kernel="guided")
    assert (plan.n, plan.epsilon) == (N, 3.0)
    with pytest.raises(InvalidInput, match="the owner's to say"):
        sf.plan(coin, alice, n=7, epsilon=3.0, delta=1e-6)
    with pytest.raises(InvalidInput, match="sees no data"):
        sf.plan(coin, {"y": YES}, epsilon=3.0, delta=1e-6)
    run = sf.sample(
        coin, alice, epsilon=3.0, delta=1e-6, chains=2, max_iterations=120, seed=1, checkpoint=tmp_path / "kept"
    )
    assert run.draws["p"].shape[0] == 2
    assert 0.2 < float(run.draws["p"].mean()) < 0.4
    assert (run.privacy.epsilon, run.privacy.n, run.privacy.shared_ledger) == (3.0, N, True)
    spent = [state.spent for state in node.node.books.ledger.accounts() if state.about.get("epsilon") == 3.0]
    assert run.privacy.spent_mu**2 == pytest.approx(spent[0] / QUANTA_PER_UNIT, rel=1e-6)


def forget_runs(node):
    """What a restart does to runs whose clients are away."""
    until = time.monotonic() + 20
    while any(run.holder is not None for run in node.runs.values()) and time.monotonic() < until:
        time.sleep(0.01)
    for run in list(node.runs.values()):
        node._close_run(run)
    assert not node.runs


def test_outside_the_owners_box_nobody_is_asked_and_the_statement_says_so(node, folder, tmp_path, monkeypatch):
    """The posterior of the logit is about N(-0.85, 0.04): pilot, starts and proposals all point out of this box."""
    bound, study = 0.7, node.node.studies["coin"]
    before = node.node.metrics.refusals["outside-support"]
    with monkeypatch.context() as boxed:
        boxed.setattr(study, "entry", msgspec.structs.replace(study.entry, theta_bound=bound))
        run = sf.sample(
            load(folder[0], "coin"), connect(node.url, token=folder[1]["bob"]), epsilon=2.0, delta=1e-6, chains=4,
            iterations=30, seed=3, kernel="guided", force=True, progress=False, checkpoint=tmp_path / "kept",
        )  # fmt: skip
        assert any(abs(release["theta"][0]) == bound for release in run.pilot["releases"])
        outside = np.abs(run.transcript["theta_prop"][..., 0]) > bound
        assert outside.any() and not outside.all()
        assert np.all(np.abs(run.transcript["theta"]) <= bound)  # from the first draw on
        assert np.all(run.transcript["sensitivity"][outside] == 0)  # nobody was asked, nobody charged
        assert node.node.metrics.refusals["outside-support"] == before
        assert f"no coordinate beyond {bound:g}" in run.privacy.exact
        bob = connect(node.url, token=folder[1]["bob"])
        _, door = door_for(bob, folder, run_id="box", epsilon=1.0)
        door.close()
        forget_runs(node.node)
    with pytest.raises(CheckpointError, match="one target"):  # the box is 100 now
        sf.resume(tmp_path / "kept", bob, model=load(folder[0], "coin"), progress=False)
    with pytest.raises(OwnerRefused, match="another target"):
        door.begin(WALK)


def test_a_node_that_answers_in_another_way_is_not_taken_for_the_one_the_run_began_with(node, folder, monkeypatch):
    """Restarted with another owner.toml: the second half of the chain would be of other records, or less exact."""
    bob = connect(node.url, token=folder[1]["bob"])
    _, door = door_for(bob, folder, run_id="other-file", epsilon=1.0)
    door.close()
    forget_runs(node.node)
    file = node.node.file
    data = msgspec.structs.replace(file.data, outside="clamp", precision="float32")
    monkeypatch.setattr(node.node, "file", msgspec.structs.replace(file, data=data))
    with pytest.raises(OwnerRefused, match="outside = 'clamp', precision = 'float32'") as refused:
        door.begin(WALK)
    assert refused.value.code == "other-terms"
    forget_runs(node.node)


def test_the_handshake_says_what_is_public_and_no_more(alice, node, folder):
    study = alice.studies["coin"]
    assert (alice.name, study.n, study.domain) == ("St Elsewhere", N, {"y": {"kind": "binary"}})
    status, said = call(f"{node.url}/api/handshake", folder[1]["alice"])
    assert status == 200
    assert set(said) == {"name", "outside", "precision", "studies", "analyst", "budget", "version", "protocol", "seat"}
    assert set(said["budget"]) == {"epsilon", "delta", "epsilon_left", "cap", "left", "studies", "limited"}


CAPS = "per_analyst = { epsilon = 2.0, delta = 1e-6 }\nper_study = { epsilon = 1.0, delta = 1e-6 }"


def spend(node, who, study="coin", epsilon=1.0, share=1.0, run="r"):
    account, _ = node.books.run(who, study, run, epsilon, 1e-6, "model")
    account.reserve(int(account.cap * share))


def test_an_analyst_sees_the_budget_and_what_is_left_of_it(tmp_path):
    tokens = prepare(tmp_path, budgets=CAPS, total=3.0)
    with threaded(tmp_path) as running:
        owner = connect(running.url, token=tokens["alice"])
        assert "epsilon 2 of 2 left at delta 1e-06; coin: epsilon 1 of 1 left" in repr(owner)
        assert "\n" not in repr(owner)
        spend(running.node, "alice", share=0.5)
        now = owner.budget
        assert (now.epsilon, now.delta, now.studies["coin"].epsilon) == (2.0, 1e-6, 1.0)
        assert 0 < now.studies["coin"].epsilon_left < 1 and now.studies["bern"].epsilon_left == 1
        assert now.left == pytest.approx(now.cap - now.studies["coin"].cap / 2)
        assert f"coin: epsilon {now.studies['coin'].epsilon_left:g} of 1 left" in repr(owner)
        assert call(f"{running.url}/api/status", tokens["alice"])[1]["budget"] == msgspec.to_builtins(now)
        fits = now.studies["coin"].epsilon_left
        with pytest.raises(BudgetSpent):
            door_for(owner, (tmp_path, tokens), run_id="more", epsilon=fits + 0.002)
        door_for(owner, (tmp_path, tokens), run_id="fits", epsilon=fits)[
            1
        ].close()  # what is said to be left can be had


def test_the_budget_tells_nothing_of_what_others_spent_but_that_the_total_leaves_less(tmp_path):
    tokens = prepare(tmp_path, budgets=CAPS, total=1.9)
    with threaded(tmp_path) as running:
        alice, bob = (connect(running.url, token=tokens[who]) for who in ("alice", "bob"))
        before = alice.budget
        assert not before.limited
        spend(running.node, "bob", share=0.1)
        assert alice.budget == before
        spend(running.node, "bob", share=0.9, run="s", epsilon=0.9)
        assert alice.budget == msgspec.structs.replace(before, limited=True)
        assert bob.budget.left < before.left
        assert repr(alice).endswith("; the node's total leaves less>")
        assert call(f"{running.url}/api/handshake", tokens["alice"])[1]["budget"] == msgspec.to_builtins(alice.budget)


def test_a_model_the_owner_did_not_approve_is_refused_on_both_sides(alice, folder):
    def other(y):
        import numpyro
        import numpyro.distributions as dist

        p = numpyro.sample("p", dist.Beta(2, 2))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("obs", dist.Bernoulli(p), obs=y)

    with pytest.raises(InvalidInput, match="approved: coin"):
        alice.study(other)
    with pytest.raises(OwnerRefused) as refused:
        alice.door("coin", make_study(other, DOMAIN).model.fingerprint(), epsilon=1.0, delta=1e-6, run_id="x")
    assert refused.value.code == "other-model"


@pytest.mark.parametrize("theirs", [(3.0, 1.0), (1.0, 0.5)])
def test_a_model_of_the_same_text_that_computes_something_else_is_refused(tmp_path, theirs):
    """A fingerprint is that of a text, which does not show the variables outside of the function."""
    text = """
import numpyro
import numpyro.distributions as dist

LINK, PRIOR = {}, {}


def coin(y):
    b = numpyro.sample("b", dist.Normal(0.0, PRIOR))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("obs", dist.Bernoulli(logits=LINK * b), obs=y)
"""
    tokens = prepare(tmp_path / "owner", studies=("coin",))
    (tmp_path / "analyst").mkdir()
    (tmp_path / "owner" / "model.py").write_text(text.format(*theirs))
    (tmp_path / "analyst" / "model.py").write_text(text.format(1.0, 1.0))
    with threaded(tmp_path / "owner") as running:
        owner = connect(running.url, token=tokens["alice"])
        with pytest.raises(InvalidInput, match="computes something else"):
            owner.study(load(tmp_path / "analyst", "coin"))
        assert owner.study(load(tmp_path / "owner", "coin"))[0] == "coin"


def test_the_domain_is_the_owners(alice, folder):
    with pytest.raises(InvalidInput, match="the owner's to declare"):
        alice.study(load(folder[0], "coin"), {"y": sf.Integers(0, 3)})


def test_the_same_id_gives_the_same_bytes_for_ever_and_other_content_is_refused(alice, folder):
    _, door = door_for(alice, folder, run_id="same")
    door.begin(WALK)
    first = door.ask("q/1", RATIO)
    spent = door.left
    assert door.ask("q/1", RATIO) == first
    assert door.left == spent
    again = door_for(alice, folder, run_id="same")[1]  # a second connection takes the run over
    again.begin(WALK)
    assert again.ask("q/1", RATIO) == first
    with pytest.raises(LedgerError, match="another content"):
        again.ask("q/1", Ratio(theta=[[-0.8]], theta_prop=[[-0.82]], asked=[True]))
    assert again.ask("q/2", RATIO) != first
    again.close()


def test_runs_of_two_analysts_do_not_share_ids(node, alice, folder):
    bob = connect(node.url, token=folder[1]["bob"])
    doors = [door_for(owner, folder, run_id="twin")[1] for owner in (alice, bob)]
    answers = []
    for door in doors:
        door.begin(WALK)
        answers.append([door.ask(f"q/{i}", RATIO).numbers for i in range(3)])
        door.close()
    assert len(node.node.books.ledger.accounts()) >= 6
    assert {"run alice/twin", "run bob/twin"} <= {state.name for state in node.node.books.ledger.accounts()}
    assert answers[0] == answers[1]  # the injected noise starts anew for each run: only their accounts differ


def test_what_was_spent_is_what_the_answers_cost(node, alice, folder):
    _, door = door_for(alice, folder, run_id="costs")
    cap = door.facts.cap
    assert cap == cap_quanta(door.facts.mu)
    door.begin(WALK)
    cost = sum(door.ask(f"q/{i}", RATIO).quanta for i in range(5))
    assert door.left == cap - cost
    door.close()


def test_a_budget_ends_with_budget_spent_and_old_answers_stay(alice, folder):
    study, door = door_for(alice, folder, run_id="small", epsilon=0.2)
    wide = Ratio(theta=[[-0.8]], theta_prop=[[-0.78]], asked=[True])
    door.begin(WALK)
    first, asked = door.ask("q/0", wide), 1
    with pytest.raises(BudgetSpent):
        for asked in range(1, 10_000):
            door.ask(f"q/{asked}", wide)
    assert asked > 1
    assert door.ask("q/0", wide) == first
    assert 0 <= door.left < first.quanta
    door.close()


def test_the_end_of_a_run_by_budget_is_no_refusal_that_an_owner_should_worry_about(node, alice, folder):
    """One line in the log, a count of its own; a run that is opened for more than there is stays a refusal."""
    metrics, log = node.node.metrics, folder[0] / "node.log"
    before, counted = metrics.refusals.copy(), metrics.spent["coin"]
    _, door = door_for(alice, folder, run_id="last", epsilon=0.2)
    door.begin(WALK)
    wide = Ratio(theta=[[-0.8]], theta_prop=[[-0.78]], asked=[True])
    with pytest.raises(BudgetSpent):
        for i in range(10_000):
            door.ask(f"q/{i}", wide)
    with pytest.raises(BudgetSpent):
        door.ask("once more", wide)
    door.close()
    assert metrics.refusals == before and metrics.spent["coin"] == counted + 2
    shown = call(f"{node.url}/api/console/state", folder[1]["owner"])[1]["log"]
    for lines in (shown, [json.loads(line) for line in log.read_text().splitlines()]):
        assert [line["event"] for line in lines if "run last ends" in line.get("what", "")] == ["spent"]
    assert f'sfumato_spent_total{{study="coin"}} {counted + 2}' in call(f"{node.url}/metrics", folder[1]["watch"])[1]
    with pytest.raises(BudgetSpent):
        door_for(alice, folder, run_id="too-much", epsilon=12.0)
    assert metrics.refusals["budget-spent"] == before["budget-spent"] + 1


def test_the_owner_sees_who_was_answered_and_how_every_run_stands(tmp_path):
    """Who looked in, or was refused, was told nothing; a run that is over is not one whose analyst has vanished."""
    tokens = prepare(tmp_path, studies=("coin",))
    with threaded(tmp_path) as running:
        url, node = running.url, running.node
        alice, bob = (connect(url, token=tokens[name]) for name in ("alice", "bob"))

        def seen():
            node.books.journal.fold()
            return call(f"{url}/api/console/state", tokens["owner"])[1]

        def stands(run, state):
            until = time.monotonic() + 10
            while (now := {line["run"]: line["state"] for line in seen()["runs"]}[run]) != state:
                assert time.monotonic() < until, now
                time.sleep(0.02)

        with pytest.raises(BudgetSpent):
            door_for(bob, (tmp_path, tokens), run_id="too-much", epsilon=12.0)
        assert seen()["analysts"] == 0 and "0 answers to 0 analysts on" in seen()["statement"]
        _, idle = door_for(bob, (tmp_path, tokens), run_id="opened-only", epsilon=0.5)
        _, door = door_for(alice, (tmp_path, tokens), run_id="first", epsilon=0.5)
        door.begin(WALK)
        door.ask("q/0", RATIO)
        assert seen()["analysts"] == 1 and "1 answers to 1 analyst on" in seen()["statement"]
        stands("first", "connected")
        door._socket._socket.close()  # its machine is switched off
        stands("first", "disconnected")
        assert {line["run"]: line["since"] for line in seen()["runs"]}["first"]
        door.ask("q/0", RATIO)
        stands("first", "connected")
        door.close()
        stands("first", "finished")
        _, door = door_for(alice, (tmp_path, tokens), run_id="second", epsilon=0.2)
        door.begin(WALK)
        with pytest.raises(BudgetSpent):
            for i in range(10_000):
                door.ask(f"q/{i}", msgspec.structs.replace(RATIO, theta_prop=[[-0.78]]))
        door.close()
        stands("second", "budget spent")
        idle.close()
        forget_runs(node)
        stands("first", "finished")
        stands("second", "budget spent")
        node.ended.clear()  # as after a restart: the ledger knows
        stands("second", "budget spent")


def test_a_broken_line_is_mended_and_the_question_asked_again(node, alice, folder):
    _, door = door_for(alice, folder, run_id="broken")
    door.begin(WALK)
    first = door.ask("q/0", RATIO)
    door._socket._socket.shutdown(2)  # the cable
    assert door.ask("q/0", RATIO) == first
    door._socket._socket.shutdown(2)
    assert door.ask("q/1", RATIO).id == "q/1"
    door.close()


def test_a_pause_holds_answers_back_and_a_patient_client_gets_them(node, alice, folder):
    _, door = door_for(alice, folder, run_id="pause")
    door.begin(WALK)
    node.node.pause("owner")
    done = []
    asking = threading.Thread(target=lambda: done.append(door.ask("q/0", RATIO)))
    asking.start()
    time.sleep(0.5)
    assert not done
    node.node.resume("owner")
    asking.join(20)
    assert done[0].id == "q/0"
    door.close()


def test_opening_a_run_on_a_paused_node_ends_in_the_nodes_refusal(node, folder, tmp_path):
    """Nothing of it stays: no connection, no account, no checkpoint folder."""
    owner = connect(node.url, token=folder[1]["alice"], patience=0.2)
    opened = node.node.metrics.opened
    node.node.pause("owner")
    try:
        with pytest.raises(OwnerRefused, match="paused") as refused:
            door_for(owner, folder, run_id="too-early")
        assert refused.value.code == "paused"
        with pytest.raises(OwnerRefused, match="paused"):
            sf.sample(
                load(folder[0], "coin"), owner, epsilon=1.0, delta=1e-6, checkpoint=tmp_path / "run", progress=False
            )
    finally:
        node.node.resume("owner")
    assert node.node.metrics.opened == opened and not (tmp_path / "run").exists()
    until = time.monotonic() + 10
    while any(session.token.name == "alice" and session._run is None for session in node.node.sessions):
        assert time.monotonic() < until, "a connection stayed open"
        time.sleep(0.01)


def test_a_line_that_breaks_during_a_pause_is_mended_when_the_pause_ends(node, alice, folder):
    """A new connection has its run and its terms before anything is asked on it, however long that takes."""
    _, door = door_for(alice, folder, run_id="broken-pause")
    door.begin(WALK)
    first = door.ask("q/0", RATIO)
    node.node.pause("owner")
    door._socket._socket.shutdown(2)
    ending = threading.Timer(0.3, node.node.resume, ("owner",))
    ending.start()
    assert door.ask("q/0", RATIO) == first
    ending.join()
    door.close()


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("watched", [True, False], ids=["terminal", "pipe"])
def test_whoever_watches_is_told_once_that_a_node_is_away_and_once_that_it_is_back(tmp_path, monkeypatch, watched):
    shown = Terminal() if watched else io.StringIO()
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setattr(remote, "WORD_SECONDS", 0.1)
    tokens, done = prepare(tmp_path, studies=("coin",)), []
    with threaded(tmp_path) as running:
        _, door = door_for(connect(running.url, token=tokens["alice"]), (tmp_path, tokens))
        door.begin(WALK)
        door.ask("q/0", RATIO)
    asking = threading.Thread(target=lambda: done.append(door.ask("q/1", RATIO)))
    asking.start()
    time.sleep(1.0)
    away = shown.getvalue()
    with threaded(tmp_path):
        asking.join(20)
        door.ask("q/2", RATIO)
        door.close()
    back = shown.getvalue()[len(away) :]
    assert done[0].id == "q/1"
    if watched:
        assert away == "'St Elsewhere' does not answer (ConnectionRefusedError); asking again.\n"
        assert back == "'St Elsewhere' answers again.\n"
    else:
        assert away + back == ""


def test_the_first_ratio_does_not_hold_up_the_others(node, alice, folder, monkeypatch):
    """It compiles: so it is answered on a thread, and in the loop that serves everybody only those after it."""
    from sfumato.vault.desk import Desk

    where, answer = [], Desk.answer_bytes

    def watched(desk, *question):
        where.append(threading.current_thread() is node._thread)
        return answer(desk, *question)

    monkeypatch.setattr(Desk, "answer_bytes", watched)
    _, door = door_for(alice, folder, run_id="threads")
    release = Release(what="gradient", theta=[-0.8], matrix=[[0.05]], radius=1.0, sigma=20.0)
    for round_, terms in enumerate((WALK, msgspec.structs.replace(WALK, sigma=2.1), WALK)):
        door.begin(terms)
        for i in range(3):
            door.ask(f"q/{round_}/{i}", RATIO)
        door.ask(f"pilot/{round_}", release)
        assert where == [False, True, True, False]
        where.clear()
    door.close()


def test_begin_in_a_loop_keeps_nobody_else_waiting_and_ends_by_its_rate(tmp_path, monkeypatch):
    """Settling terms proves and compiles, for nothing: one at a time for a token, apart from answers, and so many a minute."""
    from sfumato.vault.desk import Desk

    tokens = prepare(tmp_path, studies=("coin",))
    file = tmp_path / "owner.toml"
    file.write_text(file.read_text().replace("begins_per_minute = 100000.0", "begins_per_minute = 24.0"))
    begin, begun, let_go = Desk.begin, [], threading.Event()

    def slowly(desk, terms):
        if terms.sigma > 3.0:  # alice's, as if each were a large model's
            begun.append(terms)
            assert let_go.wait(60)
        return begin(desk, terms)

    monkeypatch.setattr(Desk, "begin", slowly)
    with threaded(tmp_path) as running:
        hasty = connect(running.url, token=tokens["alice"], patience=0.0)
        doors = [door_for(hasty, (tmp_path, tokens), run_id=f"loop-{i}", epsilon=1.0)[1] for i in range(12)]
        wanted = [msgspec.structs.replace(WALK, sigma=4.0 + i) for i in range(12)]
        loops = [threading.Thread(target=door.begin, args=(terms,)) for door, terms in zip(doors, wanted, strict=True)]
        for loop in loops:
            loop.start()
        until = time.monotonic() + 30
        while sum(run.busy for run in running.node.runs.values()) < 12 or not begun:  # until all are with the node
            assert time.monotonic() < until
            time.sleep(0.01)
        bob = connect(running.url, token=tokens["bob"], patience=0.0)
        _, door = door_for(bob, (tmp_path, tokens), run_id="ordinary", epsilon=1.0)
        door.begin(WALK)
        answers = [door.ask(f"q/{i}", RATIO).id for i in range(20)]
        assert len(answers) == 20 and door.left > 0
        assert len(begun) == 1 and all(loop.is_alive() for loop in loops)
        let_go.set()
        for loop in loops:
            loop.join(60)
        assert len(begun) == 12
        with pytest.raises(OwnerRefused, match="Too many") as refused:
            for i in range(100):
                doors[0].begin(msgspec.structs.replace(WALK, sigma=40.0 + i))
        assert refused.value.code == "too-fast"
        doors[1].begin(wanted[1])  # terms that are settled already cost nothing: a client may come back at any time
        door.begin(msgspec.structs.replace(WALK, sigma=2.5))  # nor does the rate concern another analyst
        for one in (*doors, door):
            one.close()


def test_a_run_goes_on_as_the_analyst_who_began_it(node, folder, tmp_path):
    """Under another token it would have a whole cap of its own, and its statement would promise too much."""
    alice, bob = (connect(node.url, token=folder[1][who]) for who in ("alice", "bob"))
    model, kept = load(folder[0], "coin"), tmp_path / "kept"
    asked = {
        "epsilon": 0.5,
        "delta": 1e-6,
        "chains": 2,
        "seed": 3,
        "kernel": "guided",
        "force": True,
        "progress": False,
    }
    run = sf.sample(model, alice, iterations=5, checkpoint=kept, **asked)
    with pytest.raises(CheckpointError, match="analyst who began it"):
        sf.resume(kept, bob, model=model, progress=False)
    again = sf.resume(kept, alice, model=model, progress=False)
    assert np.array_equal(again.transcript["theta"], run.transcript["theta"])


def test_replies_come_in_the_order_of_the_questions(alice, folder):
    """A question that compiles goes to a thread; those behind it, which could be answered at once, wait their turn."""
    _, door = door_for(alice, folder, run_id="pipelined")
    door.begin(msgspec.structs.replace(WALK, sigma=2.3))
    names = [f"q/{i}" for i in range(6)]
    for name in names:
        door._socket.send(encode(Ask(name, RATIO)))
    replies = [door._socket.recv(timeout=60) for _ in names]
    assert [decode_reply(reply[1:]).id for reply in replies] == names
    # Both in one piece: the text is refused by the session's task, the question could be answered where it is read.
    raw = door._socket
    raw._protocol.send_text(b"hello")
    raw._protocol.send_binary(encode(Ask("q/6", RATIO)))
    raw._flush()
    refused, answered = raw.recv(timeout=60), raw.recv(timeout=60)
    assert msgspec.msgpack.decode(refused[1:])["code"] == "bad-request"
    assert decode_reply(answered[1:]).id == "q/6"
    door.close()


def test_a_question_with_a_farewell_is_kept_and_ends_in_peace(alice, folder, caplog):
    _, door = door_for(alice, folder, run_id="farewell")
    door.begin(WALK)
    door.ask("q/0", RATIO)
    left = door.left
    door._socket._protocol.send_binary(encode(Ask("q/1", RATIO)))
    door._socket._protocol.send_close()
    door._socket._flush()
    door._hang_up()
    again = door_for(alice, folder, run_id="farewell")[1]
    again.begin(WALK)
    answers = [again.ask("q/1", RATIO) for _ in range(2)]
    assert answers[0] == answers[1]
    assert again.left == left - answers[0].quanta
    again.close()
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]


def test_a_question_about_nobody_is_not_free_and_harms_nobody(node, alice, folder):
    """The ledger takes no answer that cost nothing: one in the journal would keep all others from getting there."""
    _, door = door_for(alice, folder, run_id="nobody")
    door.begin(WALK)
    door.ask("q/0", RATIO)
    nobody = door.ask("q/1", msgspec.structs.replace(RATIO, asked=[False]))
    assert nobody.answered == [False] and nobody.quanta > 0
    node.node.books.journal.fold()
    assert door.ask("q/2", RATIO).quanta > 0
    door.close()


def test_a_pilots_release_needs_no_terms_but_a_chain_does(alice, folder):
    _, door = door_for(alice, folder, run_id="pilot")
    release = Release(what="gradient", theta=[-0.8], matrix=[[0.05]], radius=1.0, sigma=20.0)
    assert len(door.ask("pilot/0", release).numbers) == 1
    with pytest.raises(OwnerRefused) as refused:
        door.ask("q/0", RATIO)
    assert refused.value.code == "not-begun"
    door.begin(WALK)
    with pytest.raises(OwnerRefused) as refused:
        door.ask("q/0", Statistic(chains=1))
    assert refused.value.code == "bad-request"
    door.close()


def test_plain_http_to_another_machine_is_refused_before_the_token_is_sent():
    with pytest.raises(InvalidInput, match="in the clear"):
        connect("http://node.example:8750", token="sfu_a_b")
    with pytest.raises(InvalidInput, match="https://host:port"):
        connect("ftp://node.example", token="sfu_a_b")


def test_a_wrong_token_and_a_wrong_address_are_told_apart(node, tmp_path):
    with pytest.raises(OwnerRefused) as refused:
        connect(node.url, token="sfu_alice_" + "A" * 43)
    assert refused.value.code == "unauthorised"
    with pytest.raises(ConnectionError, match="no node answers"):
        connect("http://127.0.0.1:9", token="sfu_alice_" + "A" * 43)


def test_a_tick_releases_answers_on_the_beat(tmp_path):
    tokens = prepare(tmp_path, limits="answer_tick_ms = 60")
    with threaded(tmp_path) as running:
        owner = connect(running.url, token=tokens["alice"])
        _, door = door_for(owner, (tmp_path, tokens))
        door.begin(WALK)
        door.ask("q/0", RATIO)
        times = []
        for i in range(1, 6):
            began = time.monotonic()
            door.ask(f"q/{i}", RATIO)
            times.append(time.monotonic() - began)
        assert 0.05 < float(np.median(times)) < 0.5
        door.close()


def test_a_stopped_node_gives_the_unspent_rest_back_and_keeps_its_answers(tmp_path):
    tokens = prepare(tmp_path)
    running = Process(tmp_path)
    owner = connect(running.url, token=tokens["alice"], patience=60.0)
    _, door = door_for(owner, (tmp_path, tokens))
    door.begin(WALK)
    first = [door.ask(f"q/{i}", RATIO) for i in range(4)]
    running.stop()
    with Ledger(tmp_path / "owner.ledger") as ledger:
        assert ledger.spent == sum(reply.quanta for reply in first)
        assert ledger.verify().ok
    assert (tmp_path / "owner.ledger.journal").stat().st_size == 0
    running = Process(tmp_path)
    try:
        wait_for(running.url)
        assert [door.ask(f"q/{i}", RATIO) for i in range(4)] == first  # the same door: it dials again by itself
        assert door.left == door.facts.cap - sum(reply.quanta for reply in first)
    finally:
        running.stop()


def test_two_nodes_do_not_answer_from_one_ledger(node, folder):
    from sfumato.node.books import Books

    with pytest.raises(LedgerError, match="held by another"):
        Books(node.file)


def test_caps_nest(tmp_path):
    tokens = prepare(
        tmp_path, total=2.0,
        budgets="per_analyst = { epsilon = 1.0, delta = 1e-5 }\nper_study = { epsilon = 0.5, delta = 1e-5 }",
    )  # fmt: skip
    with threaded(tmp_path) as running:
        owner = connect(running.url, token=tokens["alice"])
        with pytest.raises(BudgetSpent):  # more than a study may spend: said at once, before anything is spent
            door_for(owner, (tmp_path, tokens), run_id="big", epsilon=0.9)
        _, door = door_for(owner, (tmp_path, tokens), run_id="fits", epsilon=0.49)
        with pytest.raises(OwnerRefused) as refused:
            door_for(owner, (tmp_path, tokens), run_id="tiny", epsilon=0.001)
        assert refused.value.code == "run-too-small"
        with pytest.raises(OwnerRefused) as refused:
            door_for(owner, (tmp_path, tokens), run_id="fits", epsilon=0.3)
        assert refused.value.code == "other-terms"
        accounts = {state.name: state for state in running.node.books.ledger.accounts()}
        assert accounts["run alice/fits"].parent == "study alice/coin"
        assert accounts["study alice/coin"].parent == "analyst alice"
        assert accounts["analyst alice"].parent == "node"
        total = running.node.books.total()
        assert total.cap < running.node.books.ledger.cap / QUANTA_PER_UNIT  # room for the slack of the lattice
        door.close()
