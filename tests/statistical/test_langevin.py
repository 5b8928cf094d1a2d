"""Langevin on families is exact at every step size, and each of its parts is needed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import sfumato as sf
from helpers import CAUGHT, FALSE_ALARM
from sfumato.families.langevin import public_part
from sfumato.kernel import Langevin, PublicStream, State, penalty
from sfumato.privacy.budget import QUANTA_PER_UNIT
from sfumato.study.target import make_study
from sfumato.vault import records
from sfumato.vault.blocks import Evaluation, Rows
from sfumato.vault.engine import LocalEngine
from sfumato.vault.ledger import Ledger
from sfumato.vault.queries.linear import LangevinSource
from sfumato.vault.vault import Vault
from statistical.harness import run_chains

N = 400
CHAINS, STEPS = 64, 4_000
Y = (np.random.default_rng(3).random(N) < 0.3).astype(int)
FAMILY = sf.families.Bernoulli()
STUDY = make_study(FAMILY, kernel="langevin")
POSTERIOR = stats.beta(1 + Y.sum(), 1 + N - Y.sum())
TAU = 1 / np.sqrt(N * 0.21)


def kernel_of(h):
    return Langevin(np.eye(1) * TAU, h, public_part(FAMILY, STUDY.model, N))


def moments_p(h, sigma=0.4, steps=STEPS):
    """t-tests across independent chains of mean, spread and tails of p against the Beta posterior."""
    draws = run_chains(STUDY, {"y": Y}, kernel_of(h), sigma=sigma, chains=CHAINS, steps=steps, start=np.array([-0.85]))
    z = stats.norm.ppf(np.clip(POSTERIOR.cdf(1 / (1 + np.exp(-draws[steps // 5 :, :, 0]))), 1e-12, 1 - 1e-12))
    functions = [lambda x: x, lambda x: x**2, lambda x: (x > 1) * 1.0, lambda x: (x < -1) * 1.0]
    truths = [0.0, 1.0, stats.norm.sf(1), stats.norm.sf(1)]
    return [float(stats.ttest_1samp(f(z).mean(0), t).pvalue) for f, t in zip(functions, truths, strict=True)]


@pytest.mark.parametrize("h", [0.02, 0.5, 1.5])
def test_it_is_exact_at_every_step_size(h):
    steps = 3 * STEPS if h < 0.1 else STEPS
    assert min(moments_p(h, steps=steps)) > FALSE_ALARM / 4


def test_without_the_correction_it_is_not(monkeypatch):
    """Plain private Langevin: every proposal accepted."""
    monkeypatch.setattr(penalty, "accepts", lambda draw, d, ratio, q, sigma: jnp.ones_like(ratio, bool))
    assert min(moments_p(0.5)) < 1e-9


def test_without_the_penalty_it_is_not(monkeypatch):
    monkeypatch.setattr(penalty, "accepts", lambda draw, d, ratio, q, sigma: draw.log_u < d + ratio)
    assert min(moments_p(1.5, sigma=2.0)) < CAUGHT


def test_with_the_first_release_reused_in_the_decision_it_is_not(monkeypatch):
    """The correction computed from the released statistic instead of a second query: its noise is the proposal's."""

    def known(self, theta, theta_prop):
        honest = real(self, theta, theta_prop)
        root, h = jnp.asarray(self.matrix), self.step
        b = root.T @ jax.grad(self.public)(theta)
        t_noisy = jnp.linalg.solve(root, (theta_prop - theta) * 2 / h) - b
        return honest._replace(log_ratio=honest.log_ratio - honest.along @ t_noisy, along=0 * honest.along)

    real = Langevin.known
    monkeypatch.setattr(Langevin, "known", known)
    assert min(moments_p(0.5)) < FALSE_ALARM / 4


def test_the_log_ratio_is_that_of_the_proposal_as_a_normal_density():
    """lambda from the kernel's formula equals log [pi' q(theta|theta') / pi q(theta'|theta)], preconditioned, d = 3."""
    family = sf.families.Categorical(4)
    study = make_study(family, kernel="langevin")
    rng = np.random.default_rng(1)
    root = np.linalg.cholesky(np.cov(rng.normal(size=(3, 30))) * 0.01)
    h, n, s_n = 0.7, 50, np.array([12.0, 20.0, 9.0])
    with jax.enable_x64(True):
        public = public_part(family, study.model, n)
        kernel = Langevin(root, h, public)
        m = root @ root.T
        weigh, level = jax.jit(kernel.known), jax.jit(jax.value_and_grad(public))

        def log_q(there, here):
            mean = here + h / 2 * m @ (np.asarray(level(here)[1]) + s_n)
            return stats.multivariate_normal(mean, h * m).logpdf(there)

        for _ in range(5):
            a, b = rng.normal(size=(2, 3)) * 0.3
            known, direction = (np.asarray(part) for part in weigh(a, b))
            ours = float(known - direction @ (root.T @ s_n))
            truth = float(level(b)[0] - level(a)[0]) + float((b - a) @ s_n) + log_q(a, b) - log_q(b, a)
            assert ours == pytest.approx(truth, rel=1e-9, abs=1e-7)


def small_vault(ledger, cap, h=0.3, sigma=0.3, chains=2):
    vault = Vault(
        records.load({"y": Y}, STUDY.domain),
        STUDY,
        ledger.account("a", cap),
    )
    stream = PublicStream(0, chains)
    with jax.enable_x64(True):
        theta = jnp.full((chains, 1), -0.85)
        states = State(
            theta,
            jax.jit(jax.vmap(STUDY.model.log_prior))(theta),
            jnp.ones((chains, 1)),
            jnp.full((chains, 1), jnp.nan),
        )
    kernel = kernel_of(h)
    vault.begin(kernel, sigma, states)
    return vault, stream, states, kernel


def test_every_step_is_charged_for_both_queries_and_the_cap_holds():
    cap = 2 * QUANTA_PER_UNIT
    with Ledger.in_memory(cap) as ledger:
        vault, stream, states, kernel = small_vault(ledger, cap)
        chunk = vault.chunk(states, stream.peek(kernel, 200), 200, cap)
        first = (TAU / kernel.proposal_sigma) ** 2
        second = (chunk.transcript.sensitivity / 0.3) ** 2
        realised = chunk.steps * 2 * first + second.sum()
        assert realised <= chunk.spent / QUANTA_PER_UNIT <= realised * (1 + 1e-6) + 2 * first
        assert ledger.spent <= cap
        vault.close()


def test_a_step_whose_second_query_does_not_fit_goes_on_where_it_stopped():
    """The released proposal is kept, not drawn anew: drawing anew would favour cheap moves."""
    cap = 10 * QUANTA_PER_UNIT
    with Ledger.in_memory(cap) as ledger:
        vault, stream, states, kernel = small_vault(ledger, cap)
        first = 2 * LangevinSource(FAMILY, kernel, 0.3, N, 2).corrections.first_cost
        stopped = vault.chunk(states, stream.peek(kernel, 10), 10, first + 1, first + 1)
        assert (stopped.steps, stopped.spent) == (0, first)
        pending = np.asarray(stopped.states.pending)
        assert np.isfinite(pending).all()
        went_on = vault.chunk(stopped.states, stream.peek(kernel, 10), 1, cap // 2, stopped.needed)
        assert went_on.steps == 1
        assert np.array_equal(went_on.transcript.t_noisy[0], pending)
        assert went_on.spent == stopped.needed
        assert np.isnan(np.asarray(went_on.states.pending)).all()
        vault.close()


def test_the_scalar_charge_covers_any_pair_of_records():
    """Brute force on a finite domain: replace one record by any other and compare the exact scalars."""
    family = sf.families.Categorical(4)
    study = make_study(family, kernel="langevin")
    root = np.linalg.cholesky(np.eye(3) * 0.02 + 0.01)
    with jax.enable_x64(True):
        kernel = Langevin(root, 0.3, public_part(family, study.model, 60))
        query = LangevinSource(family, kernel, 0.3, 60, 1).statistic
        table = np.arange(60) % 4
        sums = []
        for value in range(4):
            changed = table.copy()
            changed[7] = value
            sums.append(LocalEngine(records.load({"y": changed}, study.domain), study).sum(query))
        differences = [(a - b) * query.gamma for a in sums for b in sums]
        diameter = float(family.whitened_diameter(jnp.asarray(root)))
        assert max(np.linalg.norm(d) for d in differences) <= diameter + query.gamma * 3**0.5
        directions = np.random.default_rng(0).normal(size=(20, 3))
        widths = np.asarray(jax.jit(jax.vmap(family.width))(directions @ root.T))
        moved = np.abs(directions @ np.stack(differences).T).max(axis=1)
        assert np.all(moved <= widths + query.gamma * np.abs(directions).sum(axis=1))


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (1000.0, 1010.0), (2000.0, 2010.0)])
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_both_charges_cover_what_a_record_moves_far_from_zero(low, high, precision):
    """Where statistics are large and differ little, rounding them is no longer small beside their width."""
    family = sf.families.NormalMeanScale(low, high)
    study, n, rng = make_study(family, kernel="langevin"), 500, np.random.default_rng(0)
    ys = np.concatenate([rng.uniform(low, high, 60), low + (high - low) * 0.002 * rng.random(20), [low, high]])
    with jax.enable_x64(True):
        statistics = np.stack([ys, ys**2], axis=1)
        covariance = np.linalg.inv(n * np.cov(statistics.T) + 1e-12 * np.eye(2))
        root = np.linalg.cholesky((covariance + covariance.T) / 2)
        kernel = Langevin(root, 0.1, lambda phi: phi.sum())
        linear = LangevinSource(family, kernel, 0.3, n, 1).corrections.linear
        query = linear.statistic
        total = jax.jit(query.program(Evaluation(study.model, study.domain, precision)))
        one = [np.asarray(total(Rows({"y": np.array([y])}), *query[1:])) for y in ys]
        moved = (np.stack(one)[:, None] - np.stack(one)[None]).reshape(-1, 2) * query.gamma
        assert np.max(np.linalg.norm(moved, axis=1)) <= query.moved
        directions = np.concatenate([np.eye(2), rng.normal(size=(20, 2))])
        widths = jax.jit(lambda u: linear.widths(linear.proven(u), u))(directions)
        assert np.all(np.max(np.abs(moved @ directions.T), axis=0) <= np.asarray(widths))
