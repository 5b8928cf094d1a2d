"""The round-at-a-time path is the compiled path: same noise, same draws, to the last bit."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import sfumato as sf
from helpers import FALSE_ALARM
from sfumato.errors import BudgetSpent, InvalidInput, LedgerError
from sfumato.families.langevin import public_part
from sfumato.kernel import (
    Componentwise,
    FreeMoves,
    Guided,
    Langevin,
    PublicStream,
    RandomWalk,
    ReferenceLangevin,
    State,
)
from sfumato.owners.local import LocalDoor, facts_of
from sfumato.owners.rounds import Rounds
from sfumato.privacy.budget import QUANTA_PER_UNIT
from sfumato.protocol.questions import Linear, Naming, Ratio, Release, Statistic, Terms
from sfumato.study.target import make_study
from sfumato.vault import engine, records
from sfumato.vault.blocks import Evaluation
from sfumato.vault.desk import Desk
from sfumato.vault.lattice import choose_gamma
from sfumato.vault.ledger import Ledger
from sfumato.vault.queries import linear
from sfumato.vault.queries import ratio as ratios
from sfumato.vault.vault import Vault
from unit.owners.fixed_noise import Fixed

CAP = 2**60
CHAINS, STEPS = 3, 40
RNG = np.random.default_rng(5)
N = 1003
X = RNG.uniform(-1, 1, (N, 4))
TABLE = {"x": X, "y": (RNG.random(N) < 1 / (1 + np.exp(-X @ np.array([1.0, -0.5, 0.2, 0.0])))).astype(int)}
DOMAIN = {"x": sf.Box(-1, 1, shape=(4,)), "y": sf.Binary()}


def logistic(x, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


LOGISTIC = make_study(logistic, DOMAIN)
FAMILY = sf.families.Categorical(4)
NATURAL = make_study(FAMILY, kernel="langevin")
LABELS = {"y": RNG.integers(0, 4, N)}
WALKS = [RandomWalk(np.eye(4) * 0.07, 0.6), Componentwise(np.eye(4) * 0.07, 1.5), Guided(np.eye(4) * 0.07, 1.0)]


def walk_case(kernel=WALKS[0]):
    return SimpleNamespace(study=LOGISTIC, table=TABLE, kernel=kernel, sigma=1.7)


def langevin_case(h=0.4):
    kernel = Langevin(np.linalg.cholesky(np.eye(3) * 0.01 + 0.004), h, public_part(FAMILY, NATURAL.model, N))
    return SimpleNamespace(study=NATURAL, table=LABELS, kernel=kernel, sigma=0.4)


def copies_case(h=0.4):
    """The same with corrections made from second copies."""
    case = langevin_case(h)
    case.kernel = dataclasses.replace(case.kernel, copy_sigma=6.0)
    return case


def reference_case(h=0.8):
    centre, root = np.array([0.9, -0.5, 0.1, 0.05]), np.linalg.cholesky(np.eye(4) * 0.012 + 0.002)
    kernel = ReferenceLangevin(root, h, LOGISTIC.model.log_prior, centre, np.eye(4) * 60.0, 14.0)
    return SimpleNamespace(study=LOGISTIC, table=TABLE, kernel=kernel, sigma=0.4, start=centre)


def hierarchy(group, y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    effect = numpyro.sample("effect", dist.Normal(mu, spread).expand([3]).to_event(1))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=effect[group]), obs=y)


HIERARCHY = make_study(hierarchy, {"group": sf.Categories(3), "y": sf.Binary()})
GROUPED = {"group": RNG.integers(0, 3, N), "y": TABLE["y"]}


def free_case(walk=False):
    """The same with a mean and a spread that move freely."""
    centre, root = np.full(5, 0.01), np.diag([0.4, 0.5, 0.13, 0.13, 0.13])  # at zero itself logits have a kink
    free = FreeMoves(root[:, :2])
    kernel = ReferenceLangevin(
        root, 0.8, HIERARCHY.model.log_prior, centre, np.diag([0.0, 0, 65, 65, 65]), 14.0, free=free
    )
    kernel = Guided(root, 1.0, free=free) if walk else kernel
    return SimpleNamespace(study=HIERARCHY, table=GROUPED, kernel=kernel, sigma=0.6)


def states_of(case, stream):
    dim = case.study.model.dim
    with jax.enable_x64(True):
        theta = jnp.asarray(np.random.default_rng(2).normal(size=(CHAINS, dim)) * 0.05 + getattr(case, "start", 0.0))
        directions = jnp.asarray(stream.directions(case.kernel.matrix.shape[1]))
        pending = jnp.full(theta.shape, jnp.nan) if isinstance(case.kernel, Langevin) else None
        return State(theta, jax.jit(jax.vmap(case.study.model.log_prior))(theta), directions, pending)


def drive(case, access, stream, sizes):
    """Some chunks; the transcript in one piece."""
    states, parts = states_of(case, stream), []
    access.begin(case.kernel, case.sigma, states)
    for size in sizes:
        chunk = access.chunk(states, stream.peek(case.kernel, size), size, 2**58)
        states = chunk.states
        stream.consume(chunk.steps)
        parts.append(chunk.transcript)
    access.close()
    names = ("theta", "theta_prop", "d_n_noisy", "sensitivity", "accepted", "t_noisy", "copy_noisy")
    return {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in names
        if getattr(parts[0], name, None) is not None
    }


def compiled(case):
    with Ledger.in_memory(CAP) as ledger:
        table = records.load(case.table, case.study.domain)
        vault = Vault(
            table, case.study, ledger.account("a", CAP), source=Fixed,
        )  # fmt: skip
        return drive(case, vault, PublicStream(1, CHAINS), [STEPS])


def door_of(case, ledger, name="a", table=None, source=Fixed, cap=CAP):
    loaded = records.load(case.table if table is None else table, case.study.domain)
    desk = Desk(engine.LocalEngine(loaded, case.study), case.study, ledger.account(name, cap), source=source)
    return LocalDoor(desk, facts_of(case.study, desk, name, 1.0, 1e-6, 1.0, "refuse", "float64", True))


def by_rounds(case, sizes=(STEPS,), ahead=0):
    with Ledger.in_memory(CAP) as ledger:
        rounds = Rounds(case.study.model, [door_of(case, ledger)], run_id="run", ahead=ahead)
        return drive(case, rounds, PublicStream(1, CHAINS), sizes)


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert np.array_equal(one[name], other[name], equal_nan=one[name].dtype != bool), name


@pytest.mark.parametrize("kernel", WALKS, ids=lambda k: k.name)
def test_walks_by_rounds_are_the_compiled_walks(kernel):
    whole = compiled(walk_case(kernel))
    assert 0.1 < whole["accepted"].mean() < 0.95
    assert_same(whole, by_rounds(walk_case(kernel)))


def test_langevin_by_rounds_is_the_compiled_one():
    whole = compiled(langevin_case())
    assert 0.1 < whole["accepted"].mean() < 1.0
    assert_same(whole, by_rounds(langevin_case()))


def test_a_stray_dear_move_is_rejected_unasked_by_rounds_as_in_the_compiled_loop(monkeypatch):
    """It would take the budget of a thousand steps, or end the run: neither road asks about it, in either direction."""
    case = langevin_case()
    monkeypatch.setattr(linear, "TOO_DEAR", 2.0)
    one, other = by_rounds(case), compiled(case)
    assert_same(one, other)
    unasked = np.isnan(one["d_n_noisy"])
    assert 0 < unasked.sum() < unasked.size
    assert np.all(one["sensitivity"][unasked] == 0) and not np.any(one["accepted"][unasked])
    with Ledger.in_memory(CAP) as ledger:
        door = door_of(case, ledger)
        agreed_on = Terms(
            kernel="langevin", chains=1, sigma=case.sigma, gamma=choose_gamma(case.sigma, N),
            proposal_sigma=case.kernel.proposal_sigma, proposal_gamma=choose_gamma(case.kernel.proposal_sigma, N),
            matrix=case.kernel.matrix.tolist(),
        )  # fmt: skip
        door.begin(agreed_on)
        far, near = np.array([2.0, -1.0, 0.5]), np.array([0.02, -0.01, 0.005])
        answered = [
            door.ask(str(i), Linear(direction=[u.tolist()], asked=[True])).answered[0]
            for i, u in enumerate((far, -far, near, -near))
        ]
        door.close()
    assert answered == [False, False, True, True]


def assert_close(one, other, digits=1e-9):
    """The same chain up to the last bits of compiled floating point: the same decisions, numbers to nine digits."""
    assert one.keys() == other.keys()
    assert np.array_equal(one["accepted"], other["accepted"])
    for name in one:
        assert np.allclose(one[name], other[name], rtol=digits, atol=digits, equal_nan=True), name


@pytest.mark.parametrize(
    ("case", "bound"),
    [(walk_case, 0.3), (langevin_case, 0.15), (copies_case, 0.15), (reference_case, 0.95)],
    ids=["walk", "langevin", "copies", "reference"],
)
def test_what_lies_outside_an_owners_box_is_rejected_unasked(case, bound):
    """The box cuts through where the chain would go."""
    case, stream, asked = case(), PublicStream(1, CHAINS), []
    with Ledger.in_memory(CAP) as ledger:
        door = door_of(case, ledger)
        door.facts = msgspec.structs.replace(door.facts, theta_bound=bound)
        door.ask = watched(door.ask, asked)
        rounds = Rounds(case.study.model, [door], run_id="run")
        with jax.enable_x64(True):
            states = states_of(case, stream)
            states = states._replace(theta=jnp.clip(states.theta, -bound, bound))
        rounds.begin(case.kernel, case.sigma, states)
        rows = rounds.chunk(states, stream.peek(case.kernel, STEPS), STEPS, 2**58).transcript
        rounds.close()
    outside = np.abs(rows.theta_prop).max(axis=-1) > bound
    assert outside.any() and not outside.all()
    assert np.all(np.abs(rows.theta) <= bound)
    assert not rows.accepted[outside].any() and rows.accepted.any()
    assert np.all(rows.sensitivity[outside] == 0)
    # A second copy is paid for before it is known where the step goes.
    assert np.all(rows.widths[outside] == 0) == (not getattr(case.kernel, "copy_sigma", 0))
    for question in asked:
        for row in (*getattr(question, "theta", ()), *getattr(question, "theta_prop", ())):
            assert np.max(np.abs(row)) <= bound


def test_of_several_boxes_the_smallest_counts():
    bounds = (np.inf, 3.0, 50.0)
    doors = [SimpleNamespace(facts=SimpleNamespace(theta_bound=bound)) for bound in bounds]
    rounds = Rounds(LOGISTIC.model, doors, run_id="run")
    there = np.array([[0.0, 3.0], [0.0, -3.1], [np.nan, 0.0], [1.0, 1.0]])
    assert rounds.may_ask(there, np.array([True, True, True, False])).tolist() == [True, False, False, False]


def watched(ask, seen):
    def asking(query_id, question):
        seen.append(question)
        return ask(query_id, question)

    return asking


@pytest.mark.parametrize("kept", [True, False])
def test_langevin_around_a_reference_point_by_rounds_is_the_compiled_one(kept, monkeypatch):
    whole = compiled(reference_case())
    assert 0.1 < whole["accepted"].mean() < 1
    if not kept:
        monkeypatch.setattr(engine, "CACHE_TERMS", 0)
    assert_same(whole, by_rounds(reference_case(), sizes=(7, STEPS - 7)))


def test_langevin_around_a_reference_point_is_the_same_if_nothing_is_kept(monkeypatch):
    """Beyond a size the loop is compiled in another way besides, which takes less memory."""
    whole = compiled(reference_case())
    monkeypatch.setattr(engine, "CACHE_TERMS", 0)
    assert_same(whole, compiled(reference_case()))


@pytest.mark.parametrize("walk", [False, True])
def test_free_moves_by_rounds_are_the_compiled_ones(walk, monkeypatch):
    """They move at every step, and terms of records are kept all the same: none depends on what moved."""
    whole = compiled(free_case(walk))
    steps = np.diff(whole["theta"], axis=0)
    assert (steps[..., :2] != 0).mean() > 0.7
    if not walk:
        assert np.array_equal((steps[..., 2:] != 0).any(axis=-1), whole["accepted"][1:])
    scored = []
    real = engine.LocalEngine.terms
    monkeypatch.setattr(engine.LocalEngine, "terms", lambda *a: (scored.append(1), real(*a))[1])
    monkeypatch.setattr(engine, "FEW_TERMS", 0)
    assert_same(whole, by_rounds(free_case(walk), sizes=(7, STEPS - 7)))
    assert len(scored) == 1


def test_free_moves_keep_to_the_owners_box():
    """The paid step is the posterior's on the box; were the free one the whole posterior's, together they would be nobody's."""
    case = free_case()
    with Ledger.in_memory(CAP) as ledger:
        door = door_of(case, ledger)
        door.facts = msgspec.structs.replace(door.facts, theta_bound=0.7)
        seen = drive(case, Rounds(case.study.model, [door], run_id="run"), PublicStream(1, CHAINS), [STEPS])
    assert np.abs(seen["theta"]).max() <= 0.7 < np.abs(compiled(case)["theta"]).max()


def test_rounds_do_not_depend_on_how_they_are_cut_into_chunks():
    assert_same(by_rounds(walk_case()), by_rounds(walk_case(), (7, 1, STEPS - 8)))


def test_without_kept_terms_the_rounds_are_the_same(monkeypatch):
    """Beyond a size nothing is kept and both parameters are evaluated: the sums are the same whole numbers."""
    kept = by_rounds(walk_case())
    monkeypatch.setattr(ratios, "KEEP_TERMS", 1)
    assert_same(kept, by_rounds(walk_case()))


def test_other_noise_gives_another_chain():
    """The comparison can fail."""
    with Ledger.in_memory(CAP) as ledger:
        case = walk_case()
        rounds = Rounds(
            case.study.model, [door_of(case, ledger, source=lambda scale: Fixed(scale, seed=8))], run_id="run"
        )
        other = drive(case, rounds, PublicStream(1, CHAINS), [STEPS])
    assert not np.array_equal(other["theta"], by_rounds(case)["theta"])


def test_a_round_costs_one_pass_over_the_records(monkeypatch):
    """Terms are kept with the parameter they belong to: after the first round, one likelihood per chain and record."""
    scored = []
    real = Evaluation.terms_of_all
    monkeypatch.setattr(Evaluation, "terms_of_all", lambda *a: (scored.append(1), real(*a))[1])
    monkeypatch.setattr(engine, "FEW_TERMS", 0)
    case = walk_case()
    with Ledger.in_memory(CAP) as ledger:
        door = door_of(case, ledger)
        inner = door._desk._engine
        rounds = Rounds(case.study.model, [door], run_id="run")
        stream = PublicStream(1, CHAINS)
        states = states_of(case, stream)
        rounds.begin(case.kernel, case.sigma, states)
        chunk = rounds.chunk(states, stream.peek(case.kernel, 30), 30, 1)
        assert len(scored) == 2  # each program scores once: the start's terms, and a round
        assert set(inner._compiled) == {"terms", "ratio"}
        calls = []
        inner._compiled["terms"] = lambda *a: calls.append(1)
        stream.consume(30)
        rounds.chunk(chunk.states, stream.peek(case.kernel, 30), 30, 1)
        assert not calls
        rounds.close()


def test_few_rows_are_priced_and_summed_in_one_call_to_the_same_bits(monkeypatch):
    few = by_rounds(walk_case())
    monkeypatch.setattr(engine, "FEW_TERMS", 0)
    assert {name: value.tobytes() for name, value in by_rounds(walk_case()).items()} == {
        name: value.tobytes() for name, value in few.items()
    }


def test_no_record_is_looked_at_for_a_price_that_nothing_is_reserved_for(monkeypatch):
    case = walk_case()
    with Ledger.in_memory(CAP) as ledger:
        desk = door_of(case, ledger)._desk
        desk.begin(Terms(kernel="walk", chains=2, sigma=1.5, gamma=2.0**-36))
        looked, add_up = [], ratios.sum_kept
        monkeypatch.setattr(
            ratios, "sum_kept", lambda *a: (jax.debug.callback(lambda: looked.append(1)), add_up(*a))[1]
        )
        desk.answer("first", ratio())  # no block is open: priced, paid, then summed
        jax.effects_barrier()
        assert len(looked) == 1
        with pytest.raises(BudgetSpent):
            desk.answer("far", ratio(shift=6.0))  # dearer than all there is
        jax.effects_barrier()
        assert len(looked) == 1
        desk.answer("near", ratio())  # the refusal closed the block
        desk.answer("nearer", ratio(shift=0.005))  # the open block covers it: priced and summed at once
        jax.effects_barrier()
        assert len(looked) == 3
        desk.close()


# -- the desk ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def desk():
    case = walk_case()
    with Ledger.in_memory(CAP) as ledger:
        door = door_of(case, ledger)
        made = door._desk
        made.begin(Terms(kernel="walk", chains=2, sigma=1.5, gamma=2.0**-36))
        yield made
        made.close()


def ratio(shift=0.01, asked=(True, True)):
    theta = np.zeros((2, 4))
    return Ratio(theta=theta.tolist(), theta_prop=(theta + shift).tolist(), asked=list(asked))


def test_the_same_id_gets_the_same_bytes_and_pays_once(desk):
    first = desk.answer("q1", ratio())
    left = desk.left
    assert desk.answer("q1", ratio()) == first
    assert desk.left == left
    assert desk.answer("q2", ratio()).numbers != first.numbers
    assert desk.left < left


def test_the_same_id_with_other_content_or_other_terms_is_refused(desk):
    desk.answer("q1", ratio())
    with pytest.raises(LedgerError, match="same id, other content"):
        desk.answer("q1", ratio(0.02))
    desk.begin(Terms(kernel="walk", chains=2, sigma=1.6, gamma=2.0**-36))
    with pytest.raises(LedgerError, match="same id, other content"):
        desk.answer("q1", ratio())


def test_beginning_again_with_the_same_terms_changes_nothing(desk):
    chain = desk._rounds
    desk.begin(Terms(kernel="walk", chains=2, sigma=1.5, gamma=2.0**-36))
    assert desk._rounds is chain


def test_rows_that_were_not_asked_are_not_charged(desk):
    both, one = desk.answer("q1", ratio()), desk.answer("q2", ratio(asked=(True, False)))
    assert one.answered == [True, False]
    assert (one.numbers[1], one.widths[1]) == (0, 0.0)
    assert both.quanta == pytest.approx(2 * one.quanta, rel=1e-9)
    assert both.quanta >= sum((w / 1.5) ** 2 for w in both.widths) * QUANTA_PER_UNIT


def test_a_spent_budget_is_refused_and_nothing_is_answered():
    case = walk_case()
    terms = Terms(kernel="walk", chains=2, sigma=1.5, gamma=2.0**-36)
    with Ledger.in_memory(CAP) as ledger:
        door = door_of(case, ledger, "free")
        door.begin(terms)
        cost = door.ask("q", ratio()).quanta
        door.close()
        tight = door_of(case, ledger, "tight", cap=int(2.5 * cost))
        tight.begin(terms)
        tight.ask("q1", ratio())
        tight.ask("q2", ratio())
        with pytest.raises(BudgetSpent):
            tight.ask("q3", ratio())
        assert tight.ask("q1", ratio()).quanta == cost
        tight.close()
        assert {a.name: a.spent for a in ledger.accounts()}["tight"] == 2 * cost
        assert ledger.verify().ok


def test_budget_is_reserved_ahead_in_blocks_and_the_rest_given_back():
    case = walk_case()
    with Ledger.in_memory(CAP) as ledger:
        door = door_of(case, ledger)
        door.begin(Terms(kernel="walk", chains=2, sigma=1.5, gamma=2.0**-36))
        paid = sum(door.ask(f"q{i}", ratio(0.001 * (1 + i % 3))).quanta for i in range(100))
        reserved = sum(1 for e in ledger.entries() if '"reserve"' in e["entry"])
        assert reserved <= 12
        assert ledger.spent > paid
        door.close()
        assert ledger.spent == paid


def test_numbers_have_a_floor_price_so_their_count_stays_under_the_stated_one():
    """Tiny steps cost next to nothing; the lattice slack was stated for ten million numbers."""
    case = walk_case()
    with Ledger.in_memory(CAP) as ledger:
        door = door_of(case, ledger)
        door.begin(Terms(kernel="walk", chains=2, sigma=1.5, gamma=2.0**-36))
        assert door.ask("q", ratio(1e-12)).quanta >= 2 * CAP / 10_000_000
        door.close()


@pytest.mark.parametrize(
    "change",
    [
        {"kernel": "hmc"}, {"chains": 0}, {"chains": 10**6}, {"sigma": 0.0}, {"sigma": float("nan")}, {"sigma": 1e-9},
        {"sigma": float("inf")}, {"gamma": 0.3}, {"gamma": 2.0**-20}, {"gamma": 2.0**-60}, {"gamma": float("nan")},
        {"kernel": "langevin"},
    ],
    ids=str,
)  # fmt: skip
def test_terms_outside_what_a_desk_answers_for_are_refused(desk, change):
    good = {"kernel": "walk", "chains": 2, "sigma": 1.5, "gamma": 2.0**-36}
    with pytest.raises(InvalidInput):
        desk.begin(Terms(**(good | change)))


@pytest.mark.parametrize(
    "bad",
    [
        ratio(float("nan")),
        ratio(float("inf")),
        ratio(asked=(True,)),
        Ratio(theta=[[0.0] * 4], theta_prop=[[0.0] * 4], asked=[True]),
        Ratio(theta=[[0.0] * 3] * 2, theta_prop=[[0.0] * 3] * 2, asked=[True, True]),
        Release(what="gradient", theta=[0.0] * 4, matrix=np.eye(4).tolist(), radius=-1.0, sigma=1.0),
        Release(what="gradient", theta=[0.0] * 4, matrix=np.eye(3).tolist(), radius=1.0, sigma=1.0),
    ],
)
def test_questions_that_do_not_fit_are_refused_and_cost_nothing(desk, bad):
    left = desk.left
    with pytest.raises(InvalidInput):
        desk.answer("q", bad)
    assert desk.left == left


def test_the_pilots_releases_are_the_vaults():
    case = walk_case()
    arguments = ("information", np.zeros(4), np.eye(4) * 0.05, 0.01, 0.2)
    with Ledger.in_memory(CAP) as ledger:
        loaded = records.load(case.table, case.study.domain)
        vault = Vault(loaded, case.study, ledger.account("v", CAP), source=Fixed)
        one = vault.release(*arguments)
        rounds = Rounds(case.study.model, [door_of(case, ledger)], run_id="run")
        assert np.array_equal(rounds.release(*arguments), one)
        rounds.close()
        spent = {a.name: a.spent for a in ledger.accounts()}
        assert spent["a"] == spent["v"]


# -- second copies ----------------------------------------------------------------------------------------------------


def test_with_second_copies_a_step_asks_for_nothing_else_and_costs_the_same_everywhere():
    case, stream, asked = copies_case(), PublicStream(1, CHAINS), []
    with Ledger.in_memory(CAP) as ledger:
        door = door_of(case, ledger)
        door.ask = watched(door.ask, asked)
        rounds = Rounds(case.study.model, [door], run_id="run", ahead=STEPS)
        states = states_of(case, stream)
        rounds.begin(case.kernel, case.sigma, states)
        rows = rounds.chunk(states, stream.peek(case.kernel, STEPS), STEPS, 2**58).transcript
        rounds.close()
        spent = ledger.spent
    assert [q.steps for q in asked] == [16, 16, *[1] * (STEPS - 32)]
    assert 0.1 < rows.accepted.mean() < 1.0
    # The charge covers the most that a record can move either copy by, coordinate errors and the lattice included.
    diameter, xi = FAMILY.known_diameter(case.kernel.matrix), (4 / case.kernel.step, case.kernel.copy_sigma**2)
    needed = STEPS * CHAINS * diameter**2 * (1 / xi[0] + 1 / xi[1]) * QUANTA_PER_UNIT
    assert needed < spent < needed * (1 + 1e-6)
    assert rows.widths == pytest.approx(diameter, rel=1e-6)
    # What the transcript says of a decision follows from what was released.
    sigma = rows.sensitivity / diameter * case.kernel.copy_sigma
    assert np.allclose(rows.sigma, sigma, rtol=1e-6)
    with jax.enable_x64(True):
        before = np.concatenate([np.asarray(states.theta)[None], rows.theta[:-1]])
        known = jax.jit(jax.vmap(jax.vmap(case.kernel.known)))(before, rows.theta_prop)
    said = -np.einsum("...i,...i", np.asarray(known.along), rows.copy_noisy)
    assert np.allclose(said, rows.d_n_noisy, rtol=1e-9, atol=1e-9)


def test_the_two_copies_of_a_step_have_noise_of_their_own():
    case = copies_case()
    with Ledger.in_memory(CAP) as ledger:
        door = door_of(case, ledger, source=None)
        terms = copied_terms(case)
        door.begin(terms)
        replies = [door.ask(f"q{i}", Statistic(chains=CHAINS, steps=16)) for i in range(60)]
        door.close()
    numbers = np.array([reply.numbers for reply in replies]).reshape(-1, 2, 3) * terms.gamma
    rows = len(numbers)
    numbers = (numbers - numbers.mean(axis=0)) / np.array([terms.proposal_sigma, terms.sigma])[:, None]
    together = np.corrcoef(numbers.reshape(rows, 6).T)[np.triu_indices(6, 1)]
    assert np.abs(together).max() < stats.norm.isf(FALSE_ALARM / 30) / rows**0.5
    chi = stats.chi2.cdf((numbers**2).sum(axis=0), rows - 1)
    assert FALSE_ALARM / 12 < chi.min() and chi.max() < 1 - FALSE_ALARM / 12


def copied_terms(case, **changes):
    settled = {
        "kernel": "langevin", "chains": CHAINS, "sigma": case.kernel.copy_sigma, "gamma": 2.0**-36, "copies": True,
        "matrix": case.kernel.matrix.tolist(), "proposal_sigma": case.kernel.proposal_sigma, "proposal_gamma": 2.0**-36,
    }  # fmt: skip
    return Terms(**settled | changes)


def test_second_copies_are_for_families_on_one_lattice_and_have_no_scalars_beside_them():
    case = copies_case()
    with Ledger.in_memory(CAP) as ledger:
        door = door_of(case, ledger)
        for wrong in ({"gamma": 2.0**-37}, {"kernel": "walk"}, {"centre": [0.0] * 3}):
            with pytest.raises(InvalidInput, match="second copies are for Langevin on a family"):
                door.begin(copied_terms(case, **wrong))
        with pytest.raises(InvalidInput, match="sigma must lie between"):
            door.begin(copied_terms(case, sigma=0.0))
        door.begin(copied_terms(case))
        with pytest.raises(InvalidInput, match="got a Linear"):
            door.ask("q", Linear(direction=[[0.1] * 3] * CHAINS, asked=[True] * CHAINS))
        assert door.left == CAP
        door.close()


def test_the_same_question_under_other_terms_has_another_name():
    """A ledger keeps answers by these names: one chain's must not be given to another."""
    near = Terms(
        kernel="langevin", chains=1, sigma=0.5, gamma=2.0**-36, matrix=[[0.1]], proposal_sigma=6.0,
        proposal_gamma=2.0**-34, centre=[0.25],
    )  # fmt: skip
    copied = msgspec.structs.replace(near, centre=[], copies=True)
    assert Naming(copied).name(Statistic(chains=1)) != Naming(msgspec.structs.replace(near, centre=[])).name(
        Statistic(chains=1)
    )
