r"""How many effective draws one step of a noisy chain is worth, computed, not simulated.

For a standard normal target in one dimension, the asymptotic variance of the mean is
:math:`v = 2\langle f, g\rangle - \langle f, f\rangle` with :math:`(I - P) g = f`, :math:`f(x) = x`. The equation is
solved by Galerkin projection onto Hermite polynomials (and their products with the direction of travel, for a lifted
walk); inner products are quadratures. The acceptance inside is the exact expected one, :math:`\alpha_\sigma(\lambda)`, so
the price of the noise is exact too. What a step does to the normal, the kernel says (`kernel.kinds.OnNormal`).
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.polynomial.hermite_e import hermevander
from scipy.special import gammaln

from sfumato.kernel import Kind, Langevin, OnNormal
from sfumato.paper.acceptance import expected_acceptance

Noise: TypeAlias = float | np.ndarray
"""Standard deviation of an answer: one for all moves, or of shape (position, move)."""

_DEGREE = 9
_X = np.linspace(-7.0, 7.0, 141)
_WEIGHT = np.exp(-(_X**2) / 2) / np.exp(-(_X**2) / 2).sum()


@lru_cache(maxsize=512)
def worth(kind: type[Kind], step: float, sigmas: tuple[float, ...], dim: int = 1) -> tuple[float, ...]:
    """Effective draws per step, for each coordinate, of a kernel in `dim` dimensions; for each noise level.

    Other coordinates that move as well act on one as noise (`Kind.others`); else a coordinate moves in one step of `dim`.
    """
    moves, others = kind.on_normal(_X[:, None], step), kind.others(step, dim)
    return _solve(kind, moves, [float(np.sqrt(sigma**2 + others)) for sigma in sigmas], dim)


@lru_cache(maxsize=2048)
def worth_on_copies(kind: type[Kind], step: float, noise: float, dim: int = 1) -> float:
    r"""Effective draws per step and coordinate of a walk whose noise grows with its move: :math:`\sigma = c\lVert s\rVert`.

    On bundles :math:`\sigma_t = \lVert\varphi' - \varphi\rVert\sqrt\xi`, and c is the *noise per posterior sd*. The other
    coordinates' moves add :math:`c^2` times their variance to that of the answer.
    """
    moves, others = kind.on_normal(_X[:, None], step), kind.others(step, dim)
    square = (moves.after - _X[:, None]) ** 2
    return _solve(kind, moves, [np.sqrt(noise**2 * (square + others) + others)], dim)[0]


def best_step_on_copies(kind: type[Kind], noise: float, dim: int) -> tuple[float, float]:
    r"""Step (in posterior standard deviations) that is worth most, and its worth.

    The copies are there already, so nothing is saved by small steps: large enough to travel, small enough to be heard. As
    :math:`c\to\infty` the best share of the one-shot limit :math:`k/c^2` is 0.186.
    """
    # Around the step that makes sigma of order one, or the classical one where there is hardly any noise.
    scale = 2.4 / np.hypot(1.0, noise) / (np.sqrt(dim) if kind.whole else 1.0)
    coarse = [(worth_on_copies(kind, float(s), noise, dim), float(s)) for s in scale * np.geomspace(0.2, 1.6, 10)]
    middle = max(coarse)[1]
    fine = [(worth_on_copies(kind, float(s), noise, dim), float(s)) for s in middle * np.geomspace(0.8, 1.25, 7)]
    value, step = max(coarse + fine)
    return step, value


@lru_cache(maxsize=512)
def langevin_copies(h: float, ratios: tuple[float, ...], dim: int = 1) -> tuple[float, ...]:
    r"""Worth of Langevin whose corrections are made from second copies, for each ratio :math:`r = \xi_2 / \xi_1` of variances.

    With :math:`\xi_1 = 4/h` the noise of a decision is :math:`\sigma^2 = \xi_2 \tfrac{h^2}{16} \lVert x' - x\rVert^2`: it grows
    with the move. Of the other coordinates' moves the mean is taken, :math:`(d-1)(h + h^2/4)`.
    """
    moves, others = Langevin.on_normal(_X[:, None], h), Langevin.others(h, dim)
    square = h / 4 * ((moves.after - _X[:, None]) ** 2 + (dim - 1) * (h + h**2 / 4))  # sigma squared at r = 1
    return _solve(Langevin, moves, [np.sqrt(r * square + others + 1e-300) for r in ratios], dim)


def _solve(kind: type[Kind], moves: OnNormal, noises: Sequence[Noise], dim: int) -> tuple[float, ...]:
    solve = _lifted if kind.persistent else _reversible
    wait = 1 if kind.whole else dim  # steps until a coordinate moves again
    return tuple(each / wait for each in solve(moves, noises))


def _basis(x: np.ndarray) -> np.ndarray:
    """Orthonormal Hermite polynomials along the last axis."""
    return np.asarray(hermevander(x, _DEGREE) * np.exp(-0.5 * gammaln(np.arange(_DEGREE + 1) + 1)))


def _reversible(moves: OnNormal, noises: Sequence[Noise]) -> list[float]:
    """Solve a reversible chain."""
    odd = slice(1, None, 2)  # the target and f are symmetric: only odd polynomials matter
    change = _basis(moves.after)[..., odd] - _basis(_X)[:, None, odd]
    size = change.shape[-1]
    pairs = (change[..., :, None] * change[..., None, :]).reshape(-1, size * size)
    weight = _WEIGHT[:, None] * moves.weight
    out = []
    for sigma in noises:
        # Dirichlet form of a reversible chain: symmetric by construction, so quadrature errors cannot spoil its sign.
        joint = (weight * expected_acceptance(moves.log_ratio, sigma)).ravel()
        form = 0.5 * (joint @ pairs).reshape(size, size)
        out.append(float(1 / (2 * np.linalg.solve(form, np.eye(size)[0])[0] - 1)))
    return out


def _lifted(moves: OnNormal, noises: Sequence[Noise]) -> list[float]:
    """Solve a chain that keeps its direction while it is accepted, from its moves upwards."""
    here = np.broadcast_to(_basis(_X)[:, None, :], (*moves.after.shape, _DEGREE + 1))
    there = _basis(moves.after)
    size = _DEGREE + 1
    to_there = (here[..., :, None] * there[..., None, :]).reshape(-1, size * size)
    to_here = (here[..., :, None] * here[..., None, :]).reshape(-1, size * size)
    weight = _WEIGHT[:, None] * moves.weight
    out = []
    for sigma in noises:
        alpha = expected_acceptance(moves.log_ratio, sigma)
        moved = ((weight * alpha).ravel() @ to_there).reshape(size, size)
        stayed = ((weight * (1 - alpha)).ravel() @ to_here).reshape(size, size)
        out.append(_lifted_worth(moved, stayed))
    return out


def _lifted_worth(moved: np.ndarray, stayed: np.ndarray) -> float:
    """Solve the lifted chain from what it does when travelling upwards (p = +1).

    Functions on the lifted space are f(x) + p g(x). Moving keeps p, staying flips it. Travelling downwards is the mirror
    image x -> -x, under which a Hermite polynomial changes sign with its degree, so each block splits by parity.
    """
    size = len(moved)
    mirror = (-1.0) ** np.add.outer(np.arange(size), np.arange(size))
    (moved_even, moved_odd), (stayed_even, stayed_odd) = (
        (part * (1 + mirror) / 2, part * (1 - mirror) / 2) for part in (moved, stayed)
    )
    transition = np.block(
        [[moved_even + stayed_even, moved_odd - stayed_odd], [moved_odd + stayed_odd, moved_even - stayed_even]]
    )
    target = np.eye(2 * size)[1]
    g = np.linalg.lstsq(np.eye(2 * size) - transition, target, rcond=1e-10)[0]
    return float(1 / (2 * g[1] - 1))
