r"""Efficiency of chains whose noise grows with the step.

On bundles :math:`\sigma_t = \lVert\varphi' - \varphi\rVert\sqrt\xi`.

In units of the posterior's standard deviation a move of length s carries noise :math:`\sigma = c\,|s|`, c the *noise per
posterior sd*. The copies are there already, so nothing is saved by small steps: the step that is worth most is chosen, large
enough to travel, small enough to be heard. As :math:`c\to\infty` the best share of the one-shot limit :math:`k/c^2` is 0.186.
The equations are solved as in `efficiency`, with the same Hermite polynomials.
"""

from functools import lru_cache

import numpy as np
from numpy.polynomial.legendre import leggauss

from sfumato.kernel.walks import GUIDED_SPREAD
from sfumato.paper.acceptance import expected_acceptance
from sfumato.planner.efficiency import _DEGREE, _X, _basis, _lifted_worth, _moves


@lru_cache(maxsize=2048)
def walk(step: float, noise: float, dim: int = 1) -> float:
    r"""Effective draws per step, for each coordinate, of a normal random walk with :math:`\sigma = c\,s\lVert z\rVert`.

    The other dim - 1 coordinates act on one as noise of variance :math:`s^2(d-1)` (see `efficiency.full`), and their moves
    add :math:`c^2s^2(d-1)` to the variance of the answer.
    """
    z = np.linspace(-5, 5, 51)
    moves = _moves(step * z, np.exp(-(z**2) / 2) / np.exp(-(z**2) / 2).sum())
    sigma = step * np.sqrt(noise**2 * (z**2 + dim - 1) + dim - 1)
    odd = slice(1, None, 2)
    change = _basis(moves.after)[..., odd] - _basis(_X)[:, None, odd]
    joint = moves.weight * expected_acceptance(moves.log_ratio, np.broadcast_to(sigma, moves.log_ratio.shape))
    form = 0.5 * np.einsum("xz,xzi,xzj->ij", joint, change, change, optimize=True)
    return float(1 / (2 * np.linalg.solve(form, np.eye(len(form))[0])[0] - 1))


@lru_cache(maxsize=2048)
def guided(step: float, noise: float) -> float:
    r"""Effective draws per step of the guided walk with :math:`\sigma = c\,s\,\ell`, :math:`\ell` uniform on (0.8, 1.2)."""
    u, weight = leggauss(5)
    lengths = step * (1 + GUIDED_SPREAD * u)
    moves = _moves(lengths, weight / 2)
    alpha = expected_acceptance(moves.log_ratio, np.broadcast_to(noise * lengths, moves.log_ratio.shape))
    here = np.broadcast_to(_basis(_X)[:, None, :], (*moves.after.shape, _DEGREE + 1))
    moved = np.einsum("xz,xzi,xzj->ij", moves.weight * alpha, here, _basis(moves.after), optimize=True)
    stayed = np.einsum("xz,xzi,xzj->ij", moves.weight * (1 - alpha), here, here, optimize=True)
    return _lifted_worth(moved, stayed)


def worth(kernel: str, step: float, noise: float, dim: int) -> float:
    """Effective draws per step and coordinate, for a kernel by name."""
    if kernel == "random-walk":
        return walk(step, noise, dim)
    return (guided(step, noise) if kernel == "guided" else walk(step, noise)) / dim


def best_step(kernel: str, noise: float, dim: int) -> tuple[float, float]:
    """Step (in posterior standard deviations) that is worth most, and its worth."""
    # Around the step that makes sigma of order one, or the classical one where there is hardly any noise.
    scale = 2.4 / np.hypot(1.0, noise) / (np.sqrt(dim) if kernel == "random-walk" else 1.0)
    coarse = [(worth(kernel, float(s), noise, dim), float(s)) for s in scale * np.geomspace(0.2, 1.6, 10)]
    middle = max(coarse)[1]
    fine = [(worth(kernel, float(s), noise, dim), float(s)) for s in middle * np.geomspace(0.8, 1.25, 7)]
    value, step = max(coarse + fine)
    return step, value
