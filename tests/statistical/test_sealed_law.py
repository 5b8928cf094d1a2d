"""N sealed owners have the law of one owner with the total variance: the noise of a sum, and the chain that follows from it."""

import numpy as np
import pytest
from scipy import stats

import sfumato as sf
from helpers import FALSE_ALARM
from sealed_helpers import House, parts_of
from sfumato.owners.sealing import opened
from sfumato.protocol.consortium import named
from sfumato.protocol.questions import Ratio, Terms
from sfumato.study.target import make_study
from sfumato.vault.lattice import choose_gamma

N, CHAINS, ROUNDS, SIGMA = 600, 64, 60, 8.0
SHARES = [0.5, 0.125, 0.375]
STUDY = make_study(sf.families.Bernoulli(), kernel="guided")
TABLE = {"y": (np.arange(N) % 10 < 3).astype(int)}


@pytest.fixture(scope="module")
def noises():
    """The noise of sealed sums of one question: what opens, less the exact sum, in units of the total sigma."""
    gamma = choose_gamma(SIGMA * min(SHARES) ** 0.5, N)
    terms = Terms(kernel="walk", chains=CHAINS, sigma=SIGMA, gamma=gamma, shares=SHARES)
    question = Ratio(theta=[[0.1]] * CHAINS, theta_prop=[[0.4]] * CHAINS, asked=[True] * CHAINS)
    with House(STUDY, parts_of(TABLE, 3), sealed=True) as house:
        keyset = house.agree()
        for door in house.doors:
            door.begin(terms)
        rows = [
            [door.ask(named(f"run/{i}/ratio", keyset), question).numbers for door in house.doors] for i in range(ROUNDS)
        ]
    sums = np.concatenate([opened(np.array(row, np.int64), np.ones(CHAINS, bool)) for row in rows]) * gamma
    yes = TABLE["y"].sum()
    p, q = (1 / (1 + np.exp(-x)) for x in (0.1, 0.4))
    exact = yes * np.log(q / p) + (N - yes) * np.log((1 - q) / (1 - p))
    return (sums - exact) / SIGMA


def test_the_noise_of_a_sealed_sum_is_one_gaussian_of_the_total_variance(noises):
    assert stats.kstest(noises, "norm").pvalue > FALSE_ALARM / 2
    spread = np.sum(noises**2)
    assert (
        stats.chi2.cdf(spread, noises.size) > FALSE_ALARM / 4 and stats.chi2.sf(spread, noises.size) > FALSE_ALARM / 4
    )


def test_the_test_can_fail(noises):
    """The variance that is left without one owner is not the total one."""
    assert stats.kstest(noises * (1 - SHARES[1]) ** 0.5, "norm").pvalue < stats.kstest(noises, "norm").pvalue
    assert stats.chi2.cdf(np.sum(noises**2) * (1 - SHARES[1]), noises.size) < FALSE_ALARM


def test_a_sealed_chain_has_the_exact_posterior():
    """Conjugate: Beta(1 + yes, 1 + no). Means of thinned draws, by their own Monte Carlo error."""
    members = sf.Consortium.among("abc", colluders=1)
    owners = [
        sf.Owner(table, name=name, consortium=members[name])
        for name, table in zip("abc", parts_of({"y": np.tile(TABLE["y"], 10)}, 3), strict=True)
    ]
    run = sf.sample(
        sf.families.Bernoulli(), owners, epsilon=8.0, delta=1e-6, kernel="guided", seed=5, chains=8, iterations=500,
        force=True,
    )  # fmt: skip
    exact = stats.beta(1 + 10 * TABLE["y"].sum(), 1 + 10 * (N - TABLE["y"].sum()))
    means = run.draws["p"][:, 50:].mean(axis=1)
    t = (means.mean() - exact.mean()) / (means.std(ddof=1) / len(means) ** 0.5)
    assert abs(t) < stats.t.isf(FALSE_ALARM / 2, len(means) - 1)
    assert 0.7 < run.draws["p"].std() / exact.std() < 1.4
