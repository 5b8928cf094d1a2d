"""The penalty rule accepts most among all exact rules that see one normal log ratio (`docs/proofs/penalty-rule.md`)."""

import numpy as np
import pytest
from scipy.stats import norm

from sfumato.paper import lab

SIGMA = 1.3
Z, DZ = np.linspace(-9, 9, 3601, retstep=True)
PI = lab.normal_target(15, 3.0)
Q = lab.walk(15, 4)
EVEN = {
    "penalty": np.ones_like,
    "barker": lambda u: 1 / (1 + np.exp(-np.abs(u))),
    "lazy": lambda u: np.full_like(u, 0.4),
    "picky": lambda u: np.exp(-(u**2)),
    "wavy": lambda u: 0.5 + 0.5 * np.cos(3 * u),
}


def accepted(rule, log_ratio):
    """A rule's acceptance with the noise integrated out, at each log ratio."""
    x = np.asarray(log_ratio)[..., None] + SIGMA * Z
    return np.sum(rule(x - SIGMA**2 / 2) * norm.pdf(Z), axis=-1) * DZ


def rule_of(s):
    """The rule min{1, e^u} s(u), u the noisy ratio less the penalty."""
    return lambda u: np.exp(np.minimum(u, 0.0)) * s(u)


def chain(rule):
    """The transition matrix of a rule."""
    moves = Q * accepted(rule, lab.log_ratios(PI, Q))
    np.fill_diagonal(moves, 0.0)
    return moves + np.diag(1 - moves.sum(axis=1))


@pytest.mark.parametrize("name", EVEN)
def test_every_even_factor_keeps_detailed_balance(name):
    assert lab.imbalance(PI, chain(rule_of(EVEN[name]))) < 1e-9


def test_a_factor_that_is_not_even_does_not():
    assert lab.imbalance(PI, chain(rule_of(lambda u: 1 / (1 + np.exp(-u))))) > 1e-4


@pytest.mark.parametrize("name", [name for name in EVEN if name != "penalty"])
def test_the_penalty_rule_dominates(name):
    best, other = lab.penalty(PI, Q, SIGMA), chain(rule_of(EVEN[name]))
    assert lab.peskun_excess(other, best) < 1e-9
    assert lab.efficiency(PI, best) > 1.01 * lab.efficiency(PI, other)


@pytest.mark.parametrize("place", [-3.0, -1.5, -0.5])
@pytest.mark.parametrize("width", [0.1, 0.5])
def test_accepting_a_little_more_anywhere_breaks_detailed_balance(place, width):
    """Above zero the rule accepts everything already; below, a bump that its mirror image cannot answer shows."""

    def bumped(u):
        return np.minimum(1.0, rule_of(EVEN["penalty"])(u) * (1 + 0.2 * np.exp(-(((u - place) / width) ** 2))))

    assert lab.peskun_excess(lab.penalty(PI, Q, SIGMA), chain(bumped)) < 1e-9  # it does accept more
    assert lab.imbalance(PI, chain(bumped)) > 1e-6  # a thousand times rounding
