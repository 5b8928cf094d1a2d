r"""How many effective draws one step of a noisy chain is worth, computed, not simulated.

For a standard normal target in one dimension, the asymptotic variance of the mean is
:math:`v = 2\langle f, g\rangle - \langle f, f\rangle` with :math:`(I - P) g = f`, :math:`f(x) = x`. The equation is
solved by Galerkin projection onto Hermite polynomials (and their products with the direction of travel, for the guided
walk); inner products are quadratures. The acceptance inside is the exact expected one, :math:`\alpha_\sigma(\lambda)`, so
the price of the noise is exact too.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.polynomial.hermite_e import hermevander
from numpy.polynomial.legendre import leggauss
from scipy.special import gammaln, ndtr

from sfumato.kernel.walks import GUIDED_SPREAD
from sfumato.paper.acceptance import expected_acceptance

_DEGREE = 9
_X = np.linspace(-7.0, 7.0, 141)
_WEIGHT = np.exp(-(_X**2) / 2) / np.exp(-(_X**2) / 2).sum()


class _Moves(NamedTuple):
    """A quadrature over (position, move): flattened positions after the move, weights, log ratios."""

    after: np.ndarray
    weight: np.ndarray
    log_ratio: np.ndarray


def _moves(lengths: np.ndarray, weight: np.ndarray) -> _Moves:
    after = _X[:, None] + lengths
    return _Moves(after, _WEIGHT[:, None] * weight, (_X[:, None] ** 2 - after**2) / 2)


def _basis(x: np.ndarray) -> np.ndarray:
    """Orthonormal Hermite polynomials along the last axis."""
    return np.asarray(hermevander(x, _DEGREE) * np.exp(-0.5 * gammaln(np.arange(_DEGREE + 1) + 1)))


@lru_cache(maxsize=512)
def random_walk(step: float, sigmas: tuple[float, ...]) -> tuple[float, ...]:
    """Effective draws per step of a normal random walk of scale `step`, for each noise level."""
    z = np.linspace(-5, 5, 51)
    moves = _moves(step * z, np.exp(-(z**2) / 2) / np.exp(-(z**2) / 2).sum())
    return _reversible_worth(moves, sigmas)


def _reversible_worth(moves: _Moves, sigmas: Sequence[float | np.ndarray]) -> tuple[float, ...]:
    """Solve a reversible chain from its moves; a noise may differ from move to move."""
    odd = slice(1, None, 2)  # the target and f are symmetric: only odd polynomials matter
    change = _basis(moves.after)[..., odd] - _basis(_X)[:, None, odd]
    size = change.shape[-1]
    pairs = (change[..., :, None] * change[..., None, :]).reshape(-1, size * size)
    out = []
    for sigma in sigmas:
        # Dirichlet form of a reversible chain: symmetric by construction, so quadrature errors cannot spoil its sign.
        joint = (moves.weight * expected_acceptance(moves.log_ratio, sigma)).ravel()
        form = 0.5 * (joint @ pairs).reshape(size, size)
        out.append(1 / (2 * np.linalg.solve(form, np.eye(size)[0])[0] - 1))
    return tuple(map(float, out))


@lru_cache(maxsize=512)
def guided(step: float, sigmas: tuple[float, ...]) -> tuple[float, ...]:
    """Effective draws per step of the guided walk with lengths uniform on (0.8, 1.2) times `step`."""
    u, weight = leggauss(5)
    moves = _moves(step * (1 + GUIDED_SPREAD * u), weight / 2)
    here = np.broadcast_to(_basis(_X)[:, None, :], (*moves.after.shape, _DEGREE + 1))
    there = _basis(moves.after)
    size = _DEGREE + 1
    to_there = (here[..., :, None] * there[..., None, :]).reshape(-1, size * size)
    to_here = (here[..., :, None] * here[..., None, :]).reshape(-1, size * size)
    out = []
    for sigma in sigmas:
        alpha = expected_acceptance(moves.log_ratio, sigma)
        moved = ((moves.weight * alpha).ravel() @ to_there).reshape(size, size)
        stayed = ((moves.weight * (1 - alpha)).ravel() @ to_here).reshape(size, size)
        out.append(_lifted_worth(moved, stayed))
    return tuple(map(float, out))


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


@lru_cache(maxsize=512)
def langevin(h: float, sigmas: tuple[float, ...], dim: int = 1) -> tuple[float, ...]:
    r"""Effective draws per step and coordinate of exact private Langevin on a standard normal, for each second noise.

    The move is :math:`x' \sim N((1 - h/2)x, h)` and the log ratio :math:`-\tfrac h8 (x'^2 - x^2)`, as for any Langevin
    step on a normal; the second query's noise enters through the expected acceptance. The other coordinates act as noise of
    variance :math:`(d-1)(h^3/16 + h^6/512)`, that of their log ratios (see `full`).
    """
    noises = tuple(float(np.sqrt(sigma**2 + _others(h, dim))) for sigma in sigmas)
    return _reversible_worth(_langevin_moves(h), noises)


@lru_cache(maxsize=512)
def langevin_copies(h: float, ratios: tuple[float, ...], dim: int = 1) -> tuple[float, ...]:
    r"""The same where corrections are made from second copies, for each ratio :math:`r = \xi_2 / \xi_1` of their variances.

    With :math:`\xi_1 = 4/h` the noise of a decision is :math:`\sigma^2 = \xi_2 \tfrac{h^2}{16} \lVert x' - x\rVert^2`: it grows
    with the move. Of the other coordinates' moves the mean is taken, :math:`(d-1)(h + h^2/4)`.
    """
    moves = _langevin_moves(h)
    square = h / 4 * ((moves.after - _X[:, None]) ** 2 + (dim - 1) * (h + h**2 / 4))  # sigma squared at r = 1
    return _reversible_worth(moves, [np.sqrt(r * square + _others(h, dim) + 1e-300) for r in ratios])


def _langevin_moves(h: float) -> _Moves:
    """Langevin's moves on a standard normal."""
    z = np.linspace(-5, 5, 51)
    weight = np.exp(-(z**2) / 2) / np.exp(-(z**2) / 2).sum()
    after = (1 - h / 2) * _X[:, None] + np.sqrt(h) * z
    return _Moves(after, _WEIGHT[:, None] * weight, -h / 8 * (after**2 - _X[:, None] ** 2))


def _others(h: float, dim: int) -> float:
    """Variance of the other coordinates' log ratios."""
    return (dim - 1) * (h**3 / 16 + h**6 / 512)


def autoregression(h: float, sigma: float) -> float:
    r"""Effective draws per step of Langevin around a reference point, on a normal posterior.

    The proposal :math:`x' = \rho x + \sqrt{1-\rho^2} z`, :math:`\rho = 1 - h/2`, leaves the posterior invariant, so only noise
    rejects: with chance :math:`1 - a`, :math:`a = 2\Phi(-\sigma/2)`, whatever the move. The chain's autocorrelation is
    :math:`1 - a(1-\rho)` to the power of the lag, so a step is worth :math:`a(1-\rho)/(2 - a(1-\rho))`.
    """
    move = 2 * ndtr(-sigma / 2) * h / 2
    return float(move / (2 - move))


def full(step: float, sigmas: tuple[float, ...], dim: int) -> tuple[float, ...]:
    r"""Effective draws per step, for each coordinate, of a random walk in `dim` dimensions.

    The other coordinates contribute to the log ratio a normal with variance :math:`v = s^2(d-1)` and mean :math:`-v/2` (for
    their typical length): the very law of penalised noise, so they act as noise of variance v.
    """
    return random_walk(step, tuple(float(np.sqrt(s**2 + (dim - 1) * step**2)) for s in sigmas))
