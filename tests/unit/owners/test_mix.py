"""Langevin over a bundle and owners who answer live: whose noise adds up to the proposal's, and what breaks if it does not."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest
from scipy import stats

import sfumato as sf
from helpers import CAUGHT, FALSE_ALARM
from sfumato.errors import BudgetSpent, InvalidInput
from sfumato.families.langevin import public_part
from sfumato.kernel import Langevin, PublicStream, State
from sfumato.kernel.langevin import asked_sigma
from sfumato.owners import bundle_door
from sfumato.owners.bundle_door import BundleDoor
from sfumato.owners.local import LocalDoor, facts_of
from sfumato.owners.rounds import Rounds
from sfumato.protocol.questions import LANGEVIN, Linear, Ratio, Statistic, Terms
from sfumato.study.target import make_study
from sfumato.vault import records
from sfumato.vault.desk import Desk
from sfumato.vault.engine import LocalEngine
from unit.owners.test_shards import Endless

QUIET = {"seed": 1, "chains": 2, "progress": False, "force": True}


class Copies:
    """A bundle as its door sees it: given copies, each handed out once."""

    mu, epsilon, delta, outside = 1.0, 1.0, 1e-6, "refuse"

    def __init__(self, values, xi, n, sensitivity=1.0):
        self.values, self.xi, self.n, self.sensitivity = values, xi, n, sensitivity
        self.copies, self.used = len(values), 0
        self.privacy = SimpleNamespace(sensitivity=sensitivity, shared_ledger=False)

    @property
    def left(self):
        return self.copies - self.used

    def take(self, count):
        assert count <= self.left
        self.used += count
        return self.values[self.used - count : self.used]


# -- the door, without sampling ---------------------------------------------------------------------------------------

FAMILY = sf.families.Categorical(3)
STUDY = make_study(FAMILY, kernel="langevin")
MATRIX = np.array([[0.05, 0.0], [0.03, 0.01]])
XI, AVERAGED, TOTAL, N = 400.0, 3, np.array([120.0, 90.0]), 300
LENT = 1.7 * XI / AVERAGED * np.linalg.norm(MATRIX, 2) ** 2
GAMMA = 2.0**-40
CHAINS = 2
ALONG = np.array([[0.3, -0.2], [0.0, 0.7]])


def door_of(values, copies=AVERAGED, **options):
    door = BundleDoor(
        Copies(values, XI, N), FAMILY, STUDY.model, name="cedar", chains=CHAINS, pilot_copies=0, **options
    )
    door.average(copies)
    agreed = door.begin(
        Terms(
            kernel=LANGEVIN, chains=CHAINS, sigma=1.0, gamma=GAMMA, matrix=MATRIX.tolist(), proposal_sigma=LENT**0.5,
            proposal_gamma=GAMMA,
        )
    )  # fmt: skip
    return door, np.array(agreed.middle)


def answers(door, middle, step=0, steps=1):
    """First halves of some steps, and the corrections of the first of them with what was told of their noise."""
    name = "statistics" if steps > 1 else "statistic"
    reply = door.ask(f"run/{step}/{name}", Statistic(chains=CHAINS, steps=steps))
    first = (np.array(reply.numbers).reshape(steps, CHAINS, 2) + N * middle) * GAMMA
    linear = door.ask(f"run/{step}/linear", Linear(direction=ALONG.tolist(), asked=[True] * CHAINS))
    return first, np.array(linear.numbers) * GAMMA - ALONG @ (N * middle * GAMMA), np.array(linear.sigma)


def test_the_halves_of_a_door_have_the_noise_that_they_are_asked_for(monkeypatch):
    """Every answer is linear in the copies' noise and the public one: the law of both is read off, one normal at a time."""
    shape = (CHAINS, 2)
    base, rows = None, []
    for i in range(1 + AVERAGED * 4 + 4):
        values, public = np.tile(TOTAL, (CHAINS * AVERAGED, 1)), np.zeros(shape)
        if 0 < i <= AVERAGED * 4:
            values.flat[i - 1] += XI**0.5
        elif i:
            public.flat[i - 1 - AVERAGED * 4] = 1.0
        monkeypatch.setattr(bundle_door, "split_noise", lambda seed, owner, step, size, z=public: z)
        first, correction, sigma = answers(*door_of(values))
        base = (first, correction) if base is None else base
        rows.append(np.concatenate([(first[0] - base[0][0]).ravel(), correction - base[1]]))
    np.testing.assert_allclose(base[0][0], np.tile(TOTAL @ MATRIX, (CHAINS, 1)), atol=1e-9)
    np.testing.assert_allclose(base[1], -ALONG @ (TOTAL @ MATRIX), atol=1e-9)
    covariance = np.array(rows).T @ np.array(rows)
    wanted = np.diag(
        [LENT] * 4 + (sigma**2).tolist()
    )  # of two chains' statistics, then of their corrections: independent
    np.testing.assert_allclose(covariance, wanted, atol=1e-8 * LENT)
    assert (sigma > 0).all()
    door, middle = door_of(np.tile(TOTAL, (CHAINS * AVERAGED, 1)))
    door.ask("run/0/statistic", Statistic(chains=CHAINS))
    back = door.ask("run/0/linear", Linear(direction=(-ALONG).tolist(), asked=[True] * CHAINS))
    assert back.sigma == sigma.tolist()  # the swapped pair's noise


def test_a_step_has_the_same_halves_however_it_is_asked_for():
    values = TOTAL + XI**0.5 * np.random.default_rng(0).standard_normal((100 * CHAINS * AVERAGED, 2))
    door, middle = door_of(values, seed=5, position=1)
    first, correction, _ = answers(door, middle, step=32, steps=16)
    again = answers(door, middle, step=32)  # an owner refused sixteen steps: the first of them alone
    assert np.array_equal(again[0][0], first[0]) and np.array_equal(again[1], correction)
    later = door_of(values, seed=5, position=1)[0]  # the run was killed and goes on
    assert np.array_equal(answers(later, middle, step=37)[0][0], first[5])
    other = door_of(values, seed=5, position=2)[0]
    assert not np.array_equal(answers(other, middle, step=37)[0][0], first[5])


def test_a_door_refuses_what_would_use_a_copy_twice_or_none():
    door, middle = door_of(np.tile(TOTAL, (3 * CHAINS * AVERAGED, 1)))
    ask = Linear(direction=ALONG.tolist(), asked=[True] * CHAINS)
    with pytest.raises(InvalidInput, match="follows its step's statistic"):
        door.ask("run/0/linear", ask)
    answers(door, middle, step=1)
    with pytest.raises(InvalidInput, match="a copy is used once"):
        door.ask("run/0/statistic", Statistic(chains=CHAINS))
    with pytest.raises(BudgetSpent, match="a step needs 6"):
        door.ask("run/2/statistics", Statistic(chains=CHAINS, steps=2))
    answers(door, middle, step=2)  # what does not reach for two steps does for one
    with pytest.raises(InvalidInput, match="begun for"):
        door.ask("run/3/ratio", Ratio(theta=[[0.0]], theta_prop=[[0.0]], asked=[True]))
    with pytest.raises(InvalidInput, match="average more copies"):
        door_of(np.zeros((9, 2)), copies=1)


# -- exactness, with the operating system's noise for owners who answer live ------------------------------------------

COIN = sf.families.Bernoulli()
COINS = make_study(COIN, kernel="langevin")
SIZE, MANY, H = 400, 300, 1.5
Y = (np.random.default_rng(3).random(SIZE) < 0.3).astype(int)
PARTS = np.split(np.arange(SIZE), [160, 320])  # the bundle's, and those of two owners
POSTERIOR = stats.beta(1 + Y.sum(), 1 + SIZE - Y.sum())
TAU = 1 / np.sqrt(SIZE * 0.21)
FUNCTIONS = [lambda x: x, lambda x: x**2, lambda x: (x > 1) * 1.0, lambda x: (x < -1) * 1.0]
TRUTHS = [0.0, 1.0, stats.norm.sf(1), stats.norm.sf(1)]
SHARES = (0.0, 0.6, 0.4)


def live_door(cut, name):
    desk = Desk(LocalEngine(records.load({"y": Y[cut]}, COINS.domain), COINS), COINS, Endless())
    return LocalDoor(desk, facts_of(COINS, desk, name, 1.0, 1e-6, 1.0, "refuse", "float64", True))


def mixed_draws(steps=400, ahead=0, meddle=None):
    """Chains over a bundle and two owners in this process: (step, chain), accepted, and the owners' noise in the first answer."""
    kernel = Langevin(np.eye(1) * TAU, H, public_part(COIN, COINS.model, SIZE), averaged=2, lent=0.5 * 4 / H)
    xi = 0.8 * kernel.lent / TAU**2 * kernel.averaged  # a second half with four times the noise of the first
    rng = np.random.default_rng(9)
    copies = Y[PARTS[0]].sum() + rng.normal(0, xi**0.5, ((steps + 16) * MANY * kernel.averaged, 1))
    cedar = BundleDoor(Copies(copies, xi, 160), COIN, COINS.model, name="cedar", chains=MANY, pilot_copies=0, seed=4)
    doors = [cedar, *(live_door(cut, f"owner {i}") for i, cut in enumerate(PARTS[1:]))]
    access = Rounds(COINS.model, doors, run_id="run", shares=SHARES, ahead=ahead)
    if meddle is not None:
        meddle(cedar, access)
    with jax.enable_x64(True):
        theta = jnp.full((MANY, 1), -0.85)
        prior = jax.jit(jax.vmap(COINS.model.log_prior))(theta)
        states = State(theta, prior, jnp.ones((MANY, 1)), jnp.full((MANY, 1), jnp.nan))
    access.begin(kernel, 0.4, states)
    chunk = access.chunk(states, PublicStream(4, MANY).peek(kernel, steps), steps, 1)
    access.close()
    assert chunk.steps == steps
    return chunk.transcript


def p_values(**options):
    transcript = mixed_draws(**options)
    draws = transcript.theta[..., 0]
    assert 0.1 < transcript.accepted.mean() < 1.0
    z = stats.norm.ppf(np.clip(POSTERIOR.cdf(1 / (1 + np.exp(-draws[len(draws) // 5 :]))), 1e-12, 1 - 1e-12))
    return [float(stats.ttest_1samp(f(z).mean(0), t).pvalue) for f, t in zip(FUNCTIONS, TRUTHS, strict=True)]


@pytest.mark.parametrize("ahead", [0, 320])
def test_a_mix_is_exact(ahead):
    assert min(p_values(ahead=ahead)) > FALSE_ALARM / 4


def test_all_noise_adds_up_to_that_of_the_proposal():
    kernel = Langevin(np.eye(1) * TAU, H, public_part(COIN, COINS.model, SIZE), averaged=2, lent=1.0)
    assert asked_sigma(kernel) ** 2 + kernel.lent == pytest.approx(4 / H) == kernel.proposal_sigma**2
    told = []

    def note(cedar, access):
        for door in access.doors:
            door.begin = lambda terms, begin=door.begin: told.append(terms.proposal_sigma**2) or begin(terms)

    mixed_draws(steps=2, meddle=note)
    assert sum(told) == pytest.approx(4 / H)
    assert told == pytest.approx([2 / H, 0.6 * 2 / H, 0.4 * 2 / H])


def full_noise(cedar, access):
    """The owners who answer live add all that the proposal needs, as if there were no bundle."""
    access._first_noise = lambda kernel: [(kernel.lent) ** 0.5, *(kernel.proposal_sigma * s**0.5 for s in SHARES[1:])]
    cedar.average(2)


def unheard(cedar, access):
    """The noise of the bundle's corrections is left out of the penalty."""
    ask = cedar.ask
    cedar.ask = lambda query_id, question: msgspec.structs.replace(ask(query_id, question), sigma=[])


def twice(cedar, access):
    """The half that moves the chain decides as well."""
    ask = cedar.ask

    def asking(query_id, question):
        if isinstance(question, Linear) and cedar._halves.second is not cedar._halves.first:
            cedar._halves = cedar._halves._replace(second=cedar._halves.first)
        return ask(query_id, question)

    cedar.ask = asking


@pytest.mark.parametrize("meddle", [full_noise, unheard, twice])
def test_with_noise_that_is_not_counted_it_is_not(meddle):
    assert min(p_values(meddle=meddle)) < CAUGHT


# -- whole runs -------------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
TABLES = [{"y": RNG.integers(0, 3, n)} for n in (10_000, 15_000, 20_000)]


@pytest.fixture(autouse=True)
def state(monkeypatch, tmp_path):
    monkeypatch.setenv("SFUMATO_STATE", str(tmp_path / "state"))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    found = tmp_path_factory.mktemp("bundle") / "cedar.parquet"
    sf.release(FAMILY, TABLES[0], epsilon=2.0, delta=1e-6, copies=8_000, path=found, progress=False)
    return found


def live():
    return [sf.Owner(t, name=f"owner {i}", epsilon=2.0, delta=1e-6) for i, t in enumerate(TABLES[1:])]


@pytest.fixture(scope="module")
def run(path):
    return sf.sample(FAMILY, [*live(), sf.Bundle.open(path)], **QUIET)


def test_the_plan_takes_langevin_and_says_what_walks_would_be_worth(run):
    shares = dict(run.planned["considered"])
    assert run.planned["kernel"] == "langevin" == next(iter(shares))
    assert set(shares) == {"langevin", "guided", "componentwise", "random-walk"}
    assert shares["langevin"] > 1.5 * max(shares["guided"], shares["componentwise"], shares["random-walk"])
    assert run.planned["forecast_ess"] == pytest.approx(shares["langevin"] * run.planned["limit_ess"])
    assert run.planned["averaged"] >= 1 and 0 < run.planned["lent"] < 4 / run.planned["step"]


def test_the_mix_has_the_posterior_of_all_records(run):
    y = np.concatenate([table["y"] for table in TABLES])
    p = np.bincount(y) / len(y)
    sd = np.sqrt(p * (1 - p) / len(y))
    assert (
        np.abs(run.draws["p"].reshape(-1, 3).mean(axis=0) - p) < 6 * sd
    ).all()  # few draws: finds blunders, not bias
    assert run.verdict.level in ("good", "rough")
    assert (run.transcript["sigma"][np.isfinite(run.transcript["d_n_noisy"])] > run.planned["sigma"]).all()


def test_everybody_pays_what_the_transcript_says(run):
    *answered, released = run.privacy.owners
    shares = [owner["share"] for owner in run.planned["owners"]]
    assert shares[-1] == 0 and sum(shares) == pytest.approx(1)
    for owner in answered:
        assert 0.9 * owner.mu < owner.spent_mu <= owner.mu
    assert released.owner.startswith("bundle")


def test_a_mixed_run_that_was_stopped_goes_on_with_the_same_halves(path, tmp_path):
    asked = QUIET | {"kernel": "langevin", "max_iterations": 80, "checkpoint": tmp_path / "c"}
    whole = sf.sample(FAMILY, [sf.Bundle.open(path), *live()], **asked)
    chunks = sorted((tmp_path / "c").glob("chunk-*.npz"))
    assert len(chunks) > 1
    chunks[-1].unlink()  # its answers are in the owners' ledgers
    again = sf.resume(tmp_path / "c", [sf.Bundle.open(path), *live()], model=FAMILY, progress=False)
    assert again.iterations == whole.iterations
    assert np.array_equal(again.transcript["theta"], whole.transcript["theta"])


def test_langevin_is_refused_where_copies_are_too_noisy_for_it(tmp_path):
    noisy = sf.release(FAMILY, TABLES[0], epsilon=0.001, delta=1e-6, copies=8, progress=False)
    with pytest.raises(InvalidInput, match="bundles of more copies"):
        sf.sample(FAMILY, [noisy, *live()], **QUIET | {"kernel": "langevin", "pilot_share": 0.0})
