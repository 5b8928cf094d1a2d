r"""The paper's route to :math:`(\varepsilon, \delta)`: Gaussian mechanism, then advanced composition.

Theorems 2 and 3 of the paper as functions, and the bound they give together for k releases. They are a baseline,
shown beside the exact account of :mod:`sfumato.privacy.gdp`, never instead of it: at mu = 0.3, 100 000 releases and
delta = 1e-6 they say 16.4 (11.4 with exact steps) where the truth is 1.29.
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import InvalidInput
from sfumato.privacy import gdp

Array = NDArray[np.float64]
Step = Literal["theorem2", "exact"]

_MARGIN = 1e-12
_GRID = 33
_ROUNDS = 6


def gaussian_mechanism(epsilon: ArrayLike, delta: ArrayLike, sensitivity: ArrayLike = 1.0) -> Any:
    r"""Noise that Theorem 2 (Gaussian mechanism) asks for.

    .. math:: \sigma = \nabla_2 f\,\sqrt{2\log(1.25/\delta)}\,/\,\varepsilon, \qquad \varepsilon \in (0, 1)

    Any larger standard deviation makes the release :math:`(\varepsilon, \delta)`-DP.

    Parameters
    ----------
    epsilon
        In (0, 1): the theorem says nothing beyond.
    delta
        In (0, 1).
    sensitivity
        The l2 sensitivity of the released function, at least 0.

    Returns
    -------
    float or array
        Standard deviation, in the units of `sensitivity`.

    Raises
    ------
    InvalidInput
        If an argument is outside its range; Theorem 2's condition is named when it is epsilon.
    """
    epsilon_, delta_, sensitivity_ = (np.asarray(x, dtype=float) for x in (epsilon, delta, sensitivity))
    _require_theorem2(epsilon_)
    _require_delta(delta_)
    _require(np.all(np.isfinite(sensitivity_) & (sensitivity_ >= 0)), "sensitivity", "at least 0", sensitivity)
    return _unwrap(sensitivity_ * np.sqrt(2 * np.log(1.25 / delta_)) / epsilon_, epsilon, delta, sensitivity)


def gaussian_epsilon(mu: ArrayLike, delta: ArrayLike) -> Any:
    r"""Epsilon that Theorem 2 gives to one release of sensitivity over noise `mu`.

    .. math:: \varepsilon_1 = \mu\,\sqrt{2\log(1.25/\delta)}, \quad\text{infinite where that is not below } 1

    Parameters
    ----------
    mu
        Sensitivity over noise standard deviation of the release, at least 0.
    delta
        In (0, 1).

    Returns
    -------
    float or array
    """
    mu_, delta_ = np.asarray(mu, dtype=float), np.asarray(delta, dtype=float)
    _require_mu(mu_)
    _require_delta(delta_)
    return _unwrap(_theorem2_epsilon(mu_, np.log(delta_)), mu, delta)


def advanced_composition(epsilon: ArrayLike, k: ArrayLike, delta_prime: ArrayLike) -> Any:
    r"""Epsilon of k adaptive releases by Theorem 3 (advanced composition).

    .. math:: \varepsilon' = \sqrt{2k\log(1/\delta')}\,\varepsilon + k\varepsilon\,(e^{\varepsilon} - 1)

    The k releases, each :math:`(\varepsilon, \delta)`-DP, are together
    :math:`(\varepsilon', k\delta + \delta')`-DP. All k must have the same :math:`\varepsilon` and :math:`\delta`.

    Parameters
    ----------
    epsilon
        Of each release, at least 0.
    k
        Number of releases, at least 0.
    delta_prime
        The part of delta that pays for composing, in (0, 1].

    Returns
    -------
    float or array
    """
    epsilon_, k_, delta_ = (np.asarray(x, dtype=float) for x in (epsilon, k, delta_prime))
    _require(np.all(epsilon_ >= 0), "epsilon", "at least 0", epsilon)
    _require(np.all(np.isfinite(k_) & (k_ >= 0)), "k", "finite and at least 0", k)
    _require(np.all((delta_ > 0) & (delta_ <= 1)), "delta_prime", "in (0, 1]", delta_prime)
    return _unwrap(_compose(epsilon_, k_, np.log(delta_)), epsilon, k, delta_prime)


def paper_epsilon(mu: ArrayLike, releases: ArrayLike, delta: ArrayLike, *, step: Step = "theorem2") -> Any:
    r"""Epsilon of k equal Gaussian releases by the paper's route, unsimplified.

    Each release has :math:`\mu_t = \mu/\sqrt{k}`. Theorem 2 makes it :math:`(\varepsilon_1, \delta_1)`-DP with
    :math:`\varepsilon_1 = \mu_t\sqrt{2\log(1.25/\delta_1)}`; Theorem 3 composes:

    .. math:: \varepsilon = \min_{k\delta_1 + \delta' = \delta}
              \sqrt{2k\log(1/\delta')}\,\varepsilon_1 + k\varepsilon_1(e^{\varepsilon_1} - 1)

    The split of delta between the steps and the composition is optimised (the paper fixes it); every split is valid,
    so the result is a guarantee whichever split the search ends at.

    Theorem 3 needs equal steps. For steps that differ, k equal ones with the same sum of squares are used, which is
    the comparison the paper's theorem allows, not a proof for unequal steps; the exact account needs no such device.

    Parameters
    ----------
    mu
        Gaussian-DP parameter of all releases together: the root of the sum of squares. At least 0.
    releases
        Number k of releases, at least 1.
    delta
        Target for the total, in (0, 1).
    step
        How one step is bounded: ``"theorem2"`` as in the paper, ``"exact"`` by the exact Gaussian curve.

    Returns
    -------
    float or array
        Infinite where Theorem 2's condition :math:`\varepsilon_1 < 1` cannot be met. Rounded up.

    Raises
    ------
    InvalidInput
        If an argument is outside its range.
    """
    mu_, k, delta_ = np.broadcast_arrays(*(np.asarray(x, dtype=float) for x in (mu, releases, delta)))
    _require_mu(mu_)
    _require(np.all(np.isfinite(k) & (k >= 1)), "releases", "finite and at least 1", releases)
    _require_delta(delta_)
    _require(step in ("theorem2", "exact"), "step", "'theorem2' or 'exact'", step)

    def total(logit: Array) -> Array:
        # delta' = s delta and delta_1 = (1 - s) delta / k, with s the logistic function of `logit`.
        log_composed = np.log(delta_)[..., None] - np.logaddexp(0, -logit)
        log_step = np.log(delta_ / k)[..., None] - np.logaddexp(0, logit)
        mu_step = np.broadcast_to((mu_ / np.sqrt(k))[..., None], logit.shape)
        if step == "theorem2":
            epsilon_step = _theorem2_epsilon(mu_step, log_step)
        else:
            epsilon_step = np.asarray(gdp.epsilon(mu_step, np.maximum(np.exp(log_step), np.finfo(float).tiny)))
        return _compose(epsilon_step, k[..., None], log_composed)

    best = _minimum(total, mu_.shape) * (1 + _MARGIN)
    return _unwrap(np.where(mu_ == 0, 0.0, best), mu, releases, delta)


def paper_mu(epsilon: float, releases: float, delta: float) -> float:
    """Largest total mu that k releases may have by the paper's route: the inverse of `paper_epsilon`.

    Parameters
    ----------
    epsilon
        Target, above 0.
    releases
        Number k of releases, at least 1.
    delta
        Target, in (0, 1).

    Returns
    -------
    float
        Rounded down by bisection: `paper_epsilon` at the result does not exceed `epsilon`.
    """
    _require(np.isfinite(epsilon) and epsilon > 0, "epsilon", "finite and above 0", epsilon)
    low, high = 0.0, float(gdp.mu(epsilon, delta))  # the exact account allows more than any composition theorem
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if paper_epsilon(middle, releases, delta) <= epsilon else (low, middle)
    return low


def _theorem2_epsilon(mu: Array, log_delta: Array) -> Array:
    """Epsilon of one step, infinite where Theorem 2 is silent."""
    epsilon = mu * np.sqrt(2 * (np.log(1.25) - log_delta))
    return np.where(epsilon < 1, epsilon, np.inf)


def _compose(epsilon: Array, k: Array, log_delta: Array) -> Array:
    """Theorem 3 with log(delta'), so that tiny delta' do not underflow; infinite stays infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.sqrt(-2 * k * log_delta) * epsilon + k * epsilon * np.expm1(epsilon))


def _minimum(function: Any, shape: tuple[int, ...]) -> Array:
    """Minimum over one free variable by a grid that is refined around its best point; any point is a valid answer."""
    centre, reach = np.zeros(shape), 60.0
    best = np.full(shape, np.inf)
    for _ in range(_ROUNDS):
        grid = centre[..., None] + reach * np.linspace(-1, 1, _GRID)
        values = function(grid)
        index = values.argmin(axis=-1)
        best = np.minimum(best, values.min(axis=-1))
        centre = np.take_along_axis(grid, index[..., None], axis=-1)[..., 0]
        reach *= 4 / _GRID
    return best


def _require(holds: Any, name: str, rule: str, value: Any) -> None:
    if not holds:
        raise InvalidInput(f"{name} must be {rule}; got {value!r}. Change {name} and call again.")


def _require_mu(mu: Array) -> None:
    _require(np.all(np.isfinite(mu) & (mu >= 0)), "mu", "finite and at least 0", mu)


def _require_delta(delta: Array) -> None:
    _require(np.all((delta > 0) & (delta < 1)), "delta", "in (0, 1)", delta)


def _require_theorem2(epsilon: Array) -> None:
    if not np.all((epsilon > 0) & (epsilon < 1)):
        raise InvalidInput(
            f"Theorem 2 (Gaussian mechanism) holds for epsilon in (0, 1) only; got {epsilon!r}. "
            "Use a smaller epsilon, or the exact account sfumato.privacy.gdp, which has no such condition."
        )


def _unwrap(result: Any, *given: ArrayLike) -> Any:
    """Give a Python float if every argument was a scalar, else the array."""
    return float(result) if all(np.ndim(x) == 0 for x in given) else np.asarray(result)
