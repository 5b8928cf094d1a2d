"""Langevin whose corrections come from second copies of the statistic: exact, and each of its parts is needed."""

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest
from scipy import stats

import sfumato as sf
from helpers import CAUGHT, FALSE_ALARM
from sfumato.families.langevin import public_part
from sfumato.kernel import Langevin, PublicStream, State
from sfumato.owners.local import LocalDoor, facts_of
from sfumato.owners.rounds import Rounds
from sfumato.planner import efficiency
from sfumato.study.target import make_study
from sfumato.vault import records
from sfumato.vault.desk import Desk
from sfumato.vault.engine import LocalEngine
from unit.owners.test_shards import Endless

N, CHAINS = 400, 400
Y = (np.random.default_rng(3).random(N) < 0.3).astype(int)
FAMILY = sf.families.Bernoulli()
STUDY = make_study(FAMILY, kernel="langevin")
POSTERIOR = stats.beta(1 + Y.sum(), 1 + N - Y.sum())
TAU = 1 / np.sqrt(N * 0.21)
FUNCTIONS = [lambda x: x, lambda x: x**2, lambda x: (x > 1) * 1.0, lambda x: (x < -1) * 1.0]
TRUTHS = [0.0, 1.0, stats.norm.sf(1), stats.norm.sf(1)]


def kernel_of(h, ratio):
    return Langevin(np.eye(1) * TAU, h, public_part(FAMILY, STUDY.model, N), copy_sigma=float(np.sqrt(4 * ratio / h)))


# -- without sampling --------------------------------------------------------------------------------------------------


def imbalance(correct, h=0.7, ratio=2.0):
    """Largest gap in alpha(a, b) = e^lambda alpha(b, a), the second copy's noise integrated out of the kernel's own numbers.

    Along the direction of the correction the noise of a copy is one normal number; what is orthogonal to it drops out.
    """
    family, rng = sf.families.Categorical(4), np.random.default_rng(1)
    study = make_study(family, kernel="langevin")
    dim, n = study.model.dim, 60
    root = np.linalg.cholesky(np.cov(rng.normal(size=(dim, 30))) * 0.01)
    t_n = root.T @ np.array([12.0, 20.0, 9.0])[:dim]
    z = np.linspace(-9, 9, 4001)
    weight = stats.norm.pdf(z) * (z[1] - z[0])
    with jax.enable_x64(True):
        kernel = Langevin(root, h, public_part(family, study.model, n), copy_sigma=float(np.sqrt(4 * ratio / h)))
        weigh = jax.jit(kernel.known)
        decide = jax.jit(jax.vmap(lambda u, copy: correct(kernel, u, copy), (None, 0)))

        def alpha(here, there):
            known, u = weigh(here, there)
            unit = u / jnp.linalg.norm(u)
            d_n_noisy, sigma = decide(u, t_n + kernel.copy_sigma * z[:, None] * unit)
            log_alpha = np.minimum(0.0, np.asarray(known + d_n_noisy - sigma**2 / 2))
            return float(weight @ np.exp(log_alpha)), float(known - u @ t_n)

        gaps = []
        for _ in range(8):
            a, b = rng.normal(size=(2, dim)) * 0.3
            (there, lam), (back, _) = alpha(a, b), alpha(b, a)
            gaps.append(abs(there - np.exp(lam) * back) / max(there, 1e-300))
        return max(gaps)


def test_the_decision_is_reversible_whatever_the_pair():
    assert imbalance(lambda kernel, u, copy: kernel.correct(u, copy)) < 1e-6


@pytest.mark.parametrize("penalty", [0.0, 2.0])
def test_another_penalty_is_not(penalty):
    def correct(kernel, u, copy):
        d_n_noisy, sigma = kernel.correct(u, copy)
        return d_n_noisy, penalty * sigma

    assert imbalance(correct) > 1e-2


def test_the_noise_of_a_correction_is_what_the_kernel_says():
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        kernel = Langevin(np.eye(3), 0.5, jnp.sum, copy_sigma=7.0)
        u = np.array([0.3, -0.2, 0.05])
        copies = 7.0 * rng.standard_normal((200_000, 3)) + np.array([100.0, -4.0, 2.0])
        d_n_noisy, sigma = jax.jit(jax.vmap(kernel.correct, (None, 0)))(u, copies)
        assert float(sigma[0]) == pytest.approx(7.0 * np.linalg.norm(u))
        chi = np.sum((np.asarray(d_n_noisy) + u @ np.array([100.0, -4.0, 2.0])) ** 2) / float(sigma[0]) ** 2
        assert FALSE_ALARM / 2 < stats.chi2.cdf(chi, 200_000) < 1 - FALSE_ALARM / 2
        assert kernel.correct(-u, copies[0])[1] == sigma[0]


# -- with the real noise -----------------------------------------------------------------------------------------------


def draws_of(h, ratio, steps, parts=(0.6, 0.4), meddle=None):
    """Chains over owners in this process, each with the operating system's noise: (step, chain)."""
    doors = []
    for i, cut in enumerate(np.array_split(np.arange(N), len(parts))):
        desk = Desk(LocalEngine(records.load({"y": Y[cut]}, STUDY.domain), STUDY), STUDY, Endless())
        door = LocalDoor(desk, facts_of(STUDY, desk, f"owner {i}", 1.0, 1e-6, 1.0, "refuse", "float64", True))
        if meddle is not None:
            door.ask = meddle(door.ask)
        doors.append(door)
    kernel, stream = kernel_of(h, ratio), PublicStream(4, CHAINS)
    access = Rounds(STUDY.model, doors, run_id="run", shares=parts, ahead=steps)
    with jax.enable_x64(True):
        theta = jnp.full((CHAINS, 1), -0.85)
        prior = jax.jit(jax.vmap(STUDY.model.log_prior))(theta)
        states = State(theta, prior, jnp.ones((CHAINS, 1)), jnp.full((CHAINS, 1), jnp.nan))
    access.begin(kernel, 1.0, states)
    chunk = access.chunk(states, stream.peek(kernel, steps), steps, 1)
    access.close()
    assert chunk.steps == steps
    return chunk.transcript.theta[..., 0], chunk.transcript.accepted


def moments_p(draws):
    z = stats.norm.ppf(np.clip(POSTERIOR.cdf(1 / (1 + np.exp(-draws[len(draws) // 5 :]))), 1e-12, 1 - 1e-12))
    return [float(stats.ttest_1samp(f(z).mean(0), t).pvalue) for f, t in zip(FUNCTIONS, TRUTHS, strict=True)]


@pytest.mark.parametrize(("h", "ratio", "steps"), [(0.1, 8.0, 1000), (0.5, 2.0, 600), (1.5, 0.5, 600)])
def test_it_is_exact_at_every_step_size(h, ratio, steps):
    draws, accepted = draws_of(h, ratio, steps)
    assert 0.2 < accepted.mean() < 1.0
    assert min(moments_p(draws)) > FALSE_ALARM / 4


def test_with_the_first_copy_as_the_second_it_is_not():
    """The proposal's own noise judges the proposal: what a copy that is used twice does."""

    def meddle(ask):
        def asking(query_id, question):
            reply = ask(query_id, question)
            numbers = np.array(reply.numbers).reshape(-1, 2, 1)
            numbers[:, 1] = numbers[:, 0]
            return msgspec.structs.replace(reply, numbers=numbers.ravel().tolist())

        return asking

    assert min(moments_p(draws_of(0.5, 1.0, 600, meddle=meddle)[0])) < CAUGHT


def test_without_the_penalty_it_is_not(monkeypatch):
    real = Langevin.correct
    monkeypatch.setattr(Langevin, "correct", lambda *a: (real(*a)[0], 0.0 * real(*a)[1] + 1e-9))
    assert min(moments_p(draws_of(1.5, 2.0, 600)[0])) < CAUGHT


# -- what it is worth --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("h", "ratio"), [(0.2, 8.0), (0.5, 16.0)])
def test_a_step_is_worth_what_the_planner_says(h, ratio):
    """Variance of the chains' means against the forecast: one chi-squared test over independent chains."""
    steps, burn = 1500, 300
    draws, _ = draws_of(h, ratio, steps)
    z = stats.norm.ppf(POSTERIOR.cdf(1 / (1 + np.exp(-draws[burn:]))))
    measured = 1 / np.var(z.mean(axis=0), ddof=1) / (steps - burn)
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], CHAINS - 1) / (CHAINS - 1)
    # What the posterior is not normal by, and the ends of a chain, are within 5 %.
    fits = [0.95 / high < measured / worth < 1.05 / low for worth in efficiency.langevin_copies(h, (ratio, 1e-6))]
    assert fits[0]
    assert ratio < 16 or not fits[1]  # with so much noise, one that forgets it is told apart
