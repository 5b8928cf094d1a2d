r"""A chain that watches itself: what its own transcript says about where the mode is, and when to stop before all is spent.

Everything here is a function of the plan and of what was released, so it costs nothing and reveals nothing.

*The implied mode.* Write x for theta in the coordinates of the plan, :math:`\theta = \theta^* + Ax`, :math:`AA^\top` the planned
covariance. If the plan is right the posterior is :math:`N(m, I)` there. Every answer is a noisy, linear measurement of m:

- a statistic of Langevin averages to the likelihood's gradient at :math:`\theta^*`, so :math:`m = E\,\hat T + s`, with noise
  :math:`\sigma_1/\sqrt N` after N of them, s the public part of the gradient there (`slope`);
- an answer to a walk's move :math:`x \to x'` is :math:`\hat d = (m - s - \tfrac12(x + x'))^\top(x' - x)` plus noise.

Where the planned precision is off by a factor K, m is off by :math:`(K - I)(m - x)`: what is measured is the slope.

*When to look.* At a sixteenth, an eighth, a quarter and a half of what was planned, look j at level
:math:`\alpha / (j(j + 1))`. The rules are fixed beforehand; nothing is tuned by what is seen. An alarm stops the chain.
"""

from collections.abc import Mapping, Sequence
from math import floor, log2, nan, sqrt
from typing import Any, NamedTuple

import numpy as np
from scipy.special import bdtr, chdtri, ndtr

from sfumato.kernel import kinds

FIRST_LOOK = 1 / 16
"""Share of the planned chain after which it looks at itself first; then whenever that has doubled."""
LOOKS = 4
FALSE_ALARM = 1e-4
"""Chance that a healthy chain is stopped, all looks together."""
REACH = 10.0
"""How far beyond the root of d a chain may be from the implied mode, in planned posterior standard deviations."""
TOO_FEW = 0.25
"""Share of the planned acceptance below which a chain is not the planned one."""
_ANSWERS = 4  # for every number that a regression of them has to tell
_TOLD = 1e-10  # of the largest eigenvalue: below that the regression's own rounding would speak
_CLEAR = 4.0  # sds by which a posterior must keep off the edge of its trust region: 3e-5 of it lie outside

Plain = Mapping[str, Any]
Transcript = Mapping[str, np.ndarray]


class Implied(NamedTuple):
    """Where the released answers put the mode, in the plan's coordinates, and the precision (inverse covariance) of that."""

    offset: np.ndarray
    precision: np.ndarray


def planned_acceptance(plan: Plain) -> float:
    r"""Share of proposals that the plan expects to be accepted, :math:`2\Phi(-\tfrac12\sqrt{\sigma^2 + v})`.

    v is the variance of the exact log ratio of a proposed move on a normal posterior, whose mean is :math:`-v/2`: the law of
    penalised noise (see `planner.efficiency`). NaN where nobody registered the kernel here: a run that was loaded elsewhere.
    """
    kind = next(
        (kind for kind in kinds(plan["kernel"]) if (kind.second == "remainder") == bool(plan.get("trust"))), None
    )
    if kind is None:
        return nan
    steps = np.full(len(plan["belief"]["centre"]), plan["step"])
    if kind.first:  # in the plan's coordinates
        steps *= np.linalg.svd(np.linalg.solve(_root(plan), np.asarray(plan["matrix"])), compute_uv=False) ** 2
    variance = kind.log_ratio_variance(steps, plan["belief"].get("roughness", 0.0))
    return float(2 * ndtr(-sqrt(plan["sigma"] ** 2 + variance) / 2))


def _root(plan: Plain) -> np.ndarray:
    return np.asarray(np.linalg.cholesky(np.asarray(plan["belief"]["covariance"])))


def whiten(theta: np.ndarray, plan: Plain) -> np.ndarray:
    """Parameters (..., d) in the plan's coordinates: its centre is 0, its posterior standard deviations are 1."""
    root = _root(plan)
    away = (np.asarray(theta) - np.asarray(plan["belief"]["centre"])).reshape(-1, len(root))
    return np.asarray(np.linalg.solve(root, away.T).T.reshape(np.shape(theta)))


def implied_mode(transcript: Transcript, plan: Plain) -> Implied:
    """The mode that the answers so far imply."""
    slope = np.asarray(plan["slope"])
    if "t_noisy" in transcript:
        released = transcript["t_noisy"].reshape(-1, len(slope))
        released = released[np.isfinite(released).all(axis=1)]
        if not len(released):
            return _nothing(len(slope))
        variance = 4 / plan["step"] - (1 if plan.get("trust") else 0)
        # From the kernel's coordinates, A' S_n, to the plan's.
        turn = np.linalg.solve(np.asarray(plan["matrix"]), _root(plan))
        precision = np.linalg.inv(turn.T @ turn) * len(released) / variance
        return Implied(released.mean(axis=0) @ turn + slope, precision)
    return _from_ratios(transcript, plan, slope)


def _nothing(dim: int) -> Implied:
    return Implied(np.zeros(dim), np.zeros((dim, dim)))


def _from_ratios(transcript: Transcript, plan: Plain, slope: np.ndarray) -> Implied:
    """Regression of a walk's answers on its moves; the first move of a chain is left out, its start is not in the transcript."""
    if transcript["theta"].shape[1] < 2:
        return _nothing(len(slope))
    here, there = whiten(transcript["theta"][:, :-1], plan), whiten(transcript["theta_prop"][:, 1:], plan)
    d_n_noisy, sigma = transcript["d_n_noisy"][:, 1:], transcript["sigma"][:, 1:]
    asked = np.isfinite(d_n_noisy)
    move, middle = (there - here)[asked], ((there + here) / 2)[asked]
    known = d_n_noisy[asked] + move @ slope + np.sum(middle * move, axis=1)
    weighted = move / sigma[asked][:, None] ** 2
    precision = weighted.T @ move
    return Implied(np.linalg.pinv(precision, hermitian=True) @ (weighted.T @ known), precision)


class Curvature(NamedTuple):
    """The likelihood's curvature around the draws, in the plan's coordinates, and the covariance of its entries.

    `rows`, `columns`: which entry of the upper triangle each row of the covariance is about.
    """

    matrix: np.ndarray
    covariance: np.ndarray
    rows: np.ndarray
    columns: np.ndarray

    def along(self, direction: np.ndarray) -> tuple[float, float]:
        """Curvature along a direction of length one, and its standard deviation."""
        twice = np.where(self.rows == self.columns, 1.0, 2.0)
        weights = twice * direction[self.rows] * direction[self.columns]
        return float(direction @ self.matrix @ direction), float(sqrt(max(weights @ self.covariance @ weights, 0.0)))


def implied_curvature(transcript: Transcript, plan: Plain) -> Curvature | None:
    r"""Curvature that the scalar answers imply; None where they do not tell it (too few; Langevin on a family).

    A walk is answered :math:`\ell(x') - \ell(x)`, Langevin around a reference point nearly the same less a part that is linear in
    :math:`x' - x`. So the answers are regressed on :math:`x' - x` and on :math:`-\tfrac12(x'x'^\top - xx^\top)`. On the draws
    of a chain that has mixed, the inverse of what is found is their own covariance, whatever the shape of the posterior (Stein's
    identity, for short steps).
    """
    if "t_noisy" in transcript and not plan.get("trust"):
        return None
    here, there = whiten(transcript["theta"][:, :-1], plan), whiten(transcript["theta_prop"][:, 1:], plan)
    d_n_noisy, sigma = transcript["d_n_noisy"][:, 1:], transcript["sigma"][:, 1:]
    asked, dim = np.isfinite(d_n_noisy), here.shape[-1]
    rows, columns = np.triu_indices(dim)
    if asked.sum() < _ANSWERS * (len(rows) + dim):
        rows = columns = np.arange(dim)
    if asked.sum() < _ANSWERS * (len(rows) + dim):
        return None
    here, there, noise = here[asked], there[asked], sigma[asked][:, None]
    bends = (here[:, rows] * here[:, columns] - there[:, rows] * there[:, columns]) * np.where(
        rows == columns, 0.5, 1.0
    )
    known = np.concatenate([there - here, bends], axis=1) / noise
    precision = known.T @ known
    sizes = np.linalg.eigvalsh(precision)
    if not sizes[0] > _TOLD * sizes[-1]:
        return None
    spread = np.linalg.inv(precision)
    found = (spread @ (known.T @ (d_n_noisy[asked] / noise[:, 0])))[dim:]
    matrix = np.zeros((dim, dim))
    matrix[rows, columns] = matrix[columns, rows] = found
    return Curvature(matrix, spread[dim:, dim:], rows, columns)


def forgiven(plan: Plain) -> float:
    r"""How far the mode may be from the centre of a trust region, in planned standard deviations.

    The largest m with :math:`d + m^2 + 4\sqrt{4m^2 + 2d} \le R^2`: the squared distance of a draw from the centre has mean
    :math:`d + m^2` and standard deviation :math:`\sqrt{4m^2 + 2d}`, so that next to nothing of the posterior is cut off.
    """
    dim, radius = len(plan["slope"]), float(plan["trust"])
    reach = np.linspace(0.0, radius, 2001)
    fits = dim + reach**2 + _CLEAR * np.sqrt(4 * reach**2 + 2 * dim) <= radius**2
    return float(reach[fits].max(initial=0.0))


# -- alarms -----------------------------------------------------------------------------------------------------------


def due(before: float, now: float) -> int:
    """Number of the look that is due after a chunk, from the shares of the plan done before it and after it; 0 if none is."""
    number = _passed(now)
    return number if number > _passed(before) else 0


def _passed(share: float) -> int:
    if share < FIRST_LOOK:
        return 0
    return min(floor(log2(share / FIRST_LOOK)) + 1, LOOKS)


def level(look: int) -> float:
    """Chance of a false alarm at this look."""
    return FALSE_ALARM / (look * (look + 1))


def alarms(transcript: Transcript, plan: Plain, chance: float) -> list[str]:
    """What is plainly wrong with a chain so far, in sentences; each rule cries falsely with a third of `chance` at the most."""
    rules = (_rejecting, _standing, _elsewhere)
    return [sentence for rule in rules if (sentence := rule(transcript, plan, chance / len(rules)))]


def _rejecting(transcript: Transcript, plan: Plain, chance: float) -> str:
    accepted, planned = transcript["accepted"], planned_acceptance(plan)
    if not bdtr(float(accepted.sum()), int(accepted.size), TOO_FEW * planned) < chance:
        return ""
    return f"Only {accepted.mean():.1%} of the proposals were accepted; the plan expected about {planned:.0%}."


def _standing(transcript: Transcript, plan: Plain, chance: float) -> str:
    accepted = transcript["accepted"]
    each, steps = accepted.sum(axis=1), accepted.shape[1]
    chances = bdtr(each.astype(float), steps, TOO_FEW * planned_acceptance(plan))
    still = np.flatnonzero(chances < chance / len(each))
    if not len(still):
        return ""
    moved = ", ".join(f"{each[i]:,}" for i in still)
    return f"{_chains(still)} hardly moved: {moved} of {steps:,} proposals accepted."


def _elsewhere(transcript: Transcript, plan: Plain, chance: float) -> str:
    """The implied mode is outside of what a trust region forgives, or beyond the reach of a chain's present place."""
    found = implied_mode(transcript, plan)
    dim = len(found.offset)
    noise = sqrt(chdtri(dim, chance / (len(transcript["accepted"]) + 1)))
    if plan.get("trust") and _length(found, 0.0) > forgiven(plan) * _sharpest(found) + noise:
        return (
            f"The statistics put the mode {np.linalg.norm(found.offset):.0f} planned posterior sds from the pilot's centre; "
            f"the trust region around it forgives {forgiven(plan):.1f}."
        )
    x = whiten(transcript["theta"], plan)
    places = x[:, x.shape[1] // 2 :].mean(axis=1)
    limit = (sqrt(dim) + REACH) * _sharpest(found) + noise
    far = [i for i, place in enumerate(places) if _length(found, place) > limit]
    if not far:
        return ""
    away = max(float(np.linalg.norm(found.offset - places[i])) for i in far)
    return f"{_chains(far)} moved around a place that the answers put {away:.0f} planned posterior sds from the mode."


def _length(found: Implied, place: np.ndarray | float) -> float:
    """Length of the way from a place to the implied mode, in standard deviations of what is known of the mode."""
    away = found.offset - place
    return float(sqrt(max(away @ found.precision @ away, 0.0)))


def _sharpest(found: Implied) -> float:
    """Inverse of the smallest noise in any direction."""
    return float(sqrt(max(np.linalg.eigvalsh(found.precision)[-1], 0.0)))


def _chains(numbers: Sequence[int] | np.ndarray) -> str:
    shown = ", ".join(str(int(i) + 1) for i in numbers)
    return f"Chain {shown}" if len(numbers) == 1 else f"Chains {shown}"
