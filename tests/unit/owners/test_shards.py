"""However the records are spread over owners, the chain is the same where the noise is the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import sfumato as sf
from helpers import FALSE_ALARM
from sfumato.kernel import PublicStream, RandomWalk, State
from sfumato.owners import rounds as rounds_module
from sfumato.owners.rounds import Rounds
from sfumato.vault import lattice
from sfumato.vault.ledger import Ledger
from unit.owners.fixed_noise import split
from unit.owners.test_rounds import (
    CAP,
    CHAINS,
    STEPS,
    WALKS,
    N,
    assert_same,
    by_rounds,
    compiled,
    copies_case,
    door_of,
    drive,
    langevin_case,
    reference_case,
    walk_case,
)


def on_their_lattice(monkeypatch, case, parts):
    """One owner with all the noise, compiled, on the lattice that so many owners with a part of it would agree on."""
    real = lattice.choose_gamma
    with monkeypatch.context() as patch:
        patch.setattr(lattice, "choose_gamma", lambda sigma, n: real(sigma / parts**0.5, n))
        return compiled(case)


def over_owners(case, parts, source=split):
    """The same table cut into unequal pieces, one per owner; the noise cut so that it adds up to that of one owner.

    Large and small ones take turns: what is compiled for one serves all of its size.
    """
    large = np.arange(parts) % 2 == 0
    small = int(N / (large.sum() * 2 + (~large).sum()))
    sizes = np.where(large, 2 * small, small)
    sizes[0] += N - sizes.sum()
    cuts = [slice(end - size, end) for end, size in zip(np.cumsum(sizes), sizes, strict=True)]
    with Ledger.in_memory(CAP) as ledger:
        doors = [
            door_of(case, ledger, f"owner {i}", {k: v[cut] for k, v in case.table.items()}, source(parts, i, 0.0))
            for i, cut in enumerate(cuts)
        ]
        result = drive(case, Rounds(case.study.model, doors, run_id="run"), PublicStream(1, CHAINS), [STEPS])
        spent = [a.spent for a in ledger.accounts()]
    return result, spent


@pytest.mark.parametrize("parts", [2, 3, 8])
def test_a_walk_over_owners_is_the_compiled_walk_to_the_last_bit(monkeypatch, parts):
    case = walk_case(WALKS[2])
    several, spent = over_owners(case, parts)
    assert_same(on_their_lattice(monkeypatch, case, parts), several)
    assert len(spent) == parts
    assert min(spent) > 0


@pytest.mark.parametrize("parts", [3, 8])
def test_langevin_around_a_reference_point_over_owners_is_the_compiled_one_to_the_last_bit(monkeypatch, parts):
    case = reference_case()
    several, spent = over_owners(case, parts)
    assert_same(on_their_lattice(monkeypatch, case, parts), several)
    assert 0.1 < several["accepted"].mean() < 1.0
    assert min(spent) > 0


@pytest.mark.parametrize("parts", [2, 3, 8])
def test_langevin_with_second_copies_over_owners_is_that_over_one_to_the_last_bit(monkeypatch, parts):
    """Both copies are whole numbers that add up: nobody rounds a scalar of its own."""
    case, real = copies_case(), lattice.choose_gamma
    several, spent = over_owners(case, parts)
    with monkeypatch.context() as patch:  # one owner with all the noise, on the lattice that several agree on
        patch.setattr(rounds_module, "choose_gamma", lambda sigma, n: real(sigma / parts**0.5, n))
        assert_same(by_rounds(case), several)
    assert 0.1 < several["accepted"].mean() < 1.0
    assert min(spent) > 0


@pytest.mark.parametrize("parts", [3, 8])
def test_langevin_over_owners_is_the_compiled_one(monkeypatch, parts):
    """The first query's integers add up exactly; each owner rounds its own scalar, which shows in the twelfth digit."""
    case = langevin_case()
    one, (several, _) = on_their_lattice(monkeypatch, case, parts), over_owners(case, parts)
    for name in ("accepted", "theta", "theta_prop", "t_noisy"):
        assert np.array_equal(one[name], several[name]), name
    assert np.allclose(one["d_n_noisy"], several["d_n_noisy"], rtol=0, atol=1e-9)


def test_the_noise_of_the_parts_must_add_up():
    """The comparison can fail: owners with independent fixed noise give another chain."""
    case = walk_case()
    other, _ = over_owners(case, 2, lambda parts, part, total: split(parts, part, total, seed=11))
    assert not np.array_equal(other["theta"], by_rounds(case)["theta"])


# -- the law ----------------------------------------------------------------------------------------------------------

SIGMA, N_COIN = 2.0, 300
Y = (np.random.default_rng(3).random(N_COIN) < 0.3).astype(int)
FAMILY = sf.families.Bernoulli()
STUDY = sf.study.target.make_study(FAMILY, kernel="guided")
POSTERIOR = stats.beta(1 + Y.sum(), 1 + N_COIN - Y.sum())


class Endless:
    """An account that always pays, and keeps no answers."""

    left = cap = 2**62
    spent = 0
    quanta = 2**62

    def reserve_up_to(self, quanta, at_least):
        return self

    def replay(self, query_id, name):
        return None

    def record(self, query_id, name, block, quanta, body, *, sync=True):
        return body

    def settle(self, spent):
        return 0


def moments_p(shares, chains=200, steps=500):
    """Unequal owners with real noise against the exact Beta posterior: t-tests over independent chains."""
    from sfumato.owners.local import LocalDoor, facts_of
    from sfumato.vault import records
    from sfumato.vault.desk import Desk
    from sfumato.vault.engine import LocalEngine

    doors = []
    for i, cut in enumerate(np.array_split(np.arange(N_COIN), len(shares))):
        loaded = records.load({"y": Y[cut]}, STUDY.domain)
        desk = Desk(LocalEngine(loaded, STUDY), STUDY, Endless())
        doors.append(LocalDoor(desk, facts_of(STUDY, desk, f"owner {i}", 1.0, 1e-6, 1.0, "refuse", "float64", True)))
    access, stream = Rounds(STUDY.model, doors, run_id="run", shares=shares), PublicStream(4, chains)
    kernel = RandomWalk(np.eye(1) * 0.126, 1.5)
    with jax.enable_x64(True):
        theta = jnp.full((chains, 1), -0.85)
        states = State(theta, jax.jit(jax.vmap(STUDY.model.log_prior))(theta), jnp.ones((chains, 1)))
    access.begin(kernel, SIGMA, states)
    chunk = access.chunk(states, stream.peek(kernel, steps), steps, 1)
    access.close()
    with jax.enable_x64(True):
        p = jax.vmap(jax.vmap(STUDY.model.constrain))(jnp.asarray(chunk.transcript.theta[steps // 7 :]))["p"]
    z = stats.norm.ppf(np.clip(POSTERIOR.cdf(np.asarray(p)), 1e-12, 1 - 1e-12))
    functions = [(lambda x: x, 0.0), (lambda x: x**2, 1.0), (lambda x: (np.abs(x) > 1) * 1.0, 2 * stats.norm.sf(1))]
    return [float(stats.ttest_1samp(f(z).mean(0), t).pvalue) for f, t in functions]


def test_unequal_owners_together_sample_the_exact_posterior():
    assert min(moments_p([0.6, 0.3, 0.1])) > FALSE_ALARM / 3


def test_a_penalty_for_one_owners_noise_alone_is_not_enough(monkeypatch):
    """Saboteur: sigma of the first owner in the decision instead of the root of the sum of squares."""
    real = rounds_module._total_sigma
    monkeypatch.setattr(rounds_module, "_total_sigma", lambda sigma, extra: real(sigma * 0.6**0.5, extra))
    assert min(moments_p([0.6, 0.3, 0.1])) < FALSE_ALARM / 3
