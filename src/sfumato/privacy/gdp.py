r"""Exact Gaussian differential privacy: :math:`\mu`, :math:`\varepsilon` and :math:`\delta` from one another.

A :math:`\mu`-GDP mechanism is :math:`(\varepsilon, \delta)`-DP exactly when

.. math:: \delta \ge \delta_\mu(\varepsilon)
          = \Phi(-\varepsilon/\mu + \mu/2) - e^{\varepsilon}\,\Phi(-\varepsilon/\mu - \mu/2)

(Dong, Roth & Su 2022; Balle & Wang 2018). The difference cancels badly, so it is never formed as printed. With
:math:`a = \varepsilon/\mu - \mu/2`, :math:`b = \varepsilon/\mu + \mu/2` and the Mills ratio
:math:`M = \Phi(-\cdot)/\varphi`, the identity :math:`\varphi(a) = e^{\varepsilon}\varphi(b)` gives

.. math:: \delta_\mu(\varepsilon) = \varphi(a)\,[M(a) - M(b)] = \varphi(a) \int_a^b \{1 - x M(x)\}\,dx ,

whose integrand is positive. The same function is one minus the expected acceptance of the penalty algorithm,
:math:`\delta_\mu(\varepsilon) = 1 - \alpha_\mu(\varepsilon)`: see :mod:`sfumato.paper`.

Everything rounds towards privacy: `delta` and `epsilon` are never below the truth, `mu` never above it. The declared
margin is relative, `MARGIN` in delta (for mu up to 1000; it widens beyond), plus `MARGIN` in the result itself.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfcx, log_ndtr, ndtr

from sfumato.errors import InvalidInput

MARGIN = 1e-11
"""Relative margin by which results are moved towards privacy; it covers the float64 error with room to spare."""

_LOG_SQRT_2PI = 0.5 * np.log(2 * np.pi)
_SQRT_HALF_PI = np.sqrt(np.pi / 2)
_SMALL_MU = 1.0  # below it the difference of Mills ratios is integrated, above it subtracted
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_TAIL = 5.0  # beyond it 1 - x M(x) comes from the continued fraction
_FRACTION_TERMS = 60
_MAX_STEPS = 200
_SOLVED = 1e-13

Array = NDArray[np.float64]


def delta(mu: ArrayLike, epsilon: ArrayLike) -> Any:
    r"""Smallest :math:`\delta` for which a `mu`-GDP mechanism is :math:`(\varepsilon, \delta)`-DP.

    .. math:: \delta_\mu(\varepsilon) = \Phi(-\varepsilon/\mu + \mu/2) - e^\varepsilon \Phi(-\varepsilon/\mu - \mu/2)

    Parameters
    ----------
    mu
        Gaussian-DP parameter, finite, at least 0.
    epsilon
        Finite, at least 0.

    Returns
    -------
    float or array
        In [0, 1], rounded up: never below the truth. A value too small for float64 comes back as the smallest
        positive float, not as zero.

    Raises
    ------
    InvalidInput
        If an argument is negative, infinite or not a number.
    """
    mu_, epsilon_ = _checked(mu=mu, epsilon=epsilon)
    # A float below 5e-324 is no float: the smallest positive one is the honest way to round it up.
    raised = np.maximum(np.exp(_log_delta_up(mu_, epsilon_)), np.nextafter(0.0, 1.0))
    return _unwrap(np.where(mu_ == 0, 0.0, np.minimum(raised, 1.0)), mu, epsilon)


def epsilon(mu: ArrayLike, delta: ArrayLike) -> Any:
    r"""Smallest :math:`\varepsilon` for which a `mu`-GDP mechanism is :math:`(\varepsilon, \delta)`-DP.

    :math:`\log\delta_\mu` is concave and decreasing in :math:`\varepsilon`, so Newton's method started anywhere
    lands on the safe side of the root and descends to it.

    Parameters
    ----------
    mu
        Gaussian-DP parameter, finite, at least 0.
    delta
        In (0, 1).

    Returns
    -------
    float or array
        At least 0, rounded up: never below the truth.

    Raises
    ------
    InvalidInput
        If an argument is outside its range.
    """
    mu_, delta_ = _checked(mu=mu, delta=delta)
    # The truth at mu = 0 is zero; the substitute only keeps the iteration free of 0/0.
    safe, target = np.where(mu_ == 0, 1.0, mu_), np.log(delta_)
    # delta <= Phi(-a) <= exp(-a^2/2), so a = sqrt(2 log 1/delta) is to the right of the root.
    result = np.asarray(safe * (safe / 2 + np.sqrt(-2 * target)))
    for _ in range(_MAX_STEPS):
        gap = _log_delta_up(safe, result) - target
        step = gap * np.exp(_log_delta(safe, result) - result - log_ndtr(-result / safe - safe / 2))
        before, result = result, np.maximum(result + step, 0.0)
        if np.all((np.abs(result - before) <= _SOLVED * result) | (np.abs(gap) <= _SOLVED)):
            break
    free = (mu_ == 0) | (_log_delta_up(safe, np.zeros_like(safe)) <= target)
    return _unwrap(np.where(free, 0.0, result * (1 + MARGIN)), mu, delta)


def mu(epsilon: ArrayLike, delta: ArrayLike) -> Any:
    r"""Largest :math:`\mu` for which every `mu`-GDP mechanism is :math:`(\varepsilon, \delta)`-DP.

    This is the cap that an :math:`(\varepsilon, \delta)` budget buys. Solved by Newton's method in
    :math:`\log\mu`, with :math:`d\delta_\mu/d\mu = \varphi(\varepsilon/\mu - \mu/2)`, kept inside a bracket.

    Parameters
    ----------
    epsilon
        Finite, at least 0.
    delta
        In (0, 1).

    Returns
    -------
    float or array
        Positive, rounded down: never above the truth.

    Raises
    ------
    InvalidInput
        If an argument is outside its range.
    """
    epsilon_, delta_ = _checked(epsilon=epsilon, delta=delta)
    target = np.log(delta_)

    def gap(log_mu: Array) -> tuple[Array, Array]:
        candidate = np.exp(log_mu)
        a = epsilon_ / candidate - candidate / 2
        slope = np.exp(log_mu - a * a / 2 - _LOG_SQRT_2PI - _log_delta(candidate, epsilon_))
        return _log_delta_up(candidate, epsilon_) - target, slope

    # Below both: delta <= exp(-a^2/2), and delta <= delta at epsilon = 0 <= mu phi(0).
    root = np.sqrt(-2 * target)
    low = np.log(np.maximum(2 * epsilon_ / (root + np.sqrt(root * root + 2 * epsilon_)), 2.5 * delta_)) - 1e-9
    return _unwrap(np.exp(_rising_root(gap, low)) * (1 - MARGIN), epsilon, delta)


def lattice_slack(releases: ArrayLike, epsilon: ArrayLike, gamma_over_sigma: ArrayLike) -> Any:
    r"""By how much :math:`\delta` rises because the noise lives on a lattice.

    .. math:: K\,(1 + e^{\varepsilon})\,(\gamma/\sigma)^2 / 40

    A discrete Gaussian of standard deviation :math:`\sigma` on the multiples of :math:`\gamma \le 2^{-30}\sigma` is
    within total variation :math:`(\gamma/\sigma)^2/40` of a rounded continuous one, which is post-processing.

    Parameters
    ----------
    releases
        Number K of released coordinates, at least 0.
    epsilon
        Finite, at least 0.
    gamma_over_sigma
        Lattice spacing over noise standard deviation, in (0, 2**-30].

    Returns
    -------
    float or array
        To be added to delta; rounded up.

    Raises
    ------
    InvalidInput
        If an argument is outside its range.
    """
    releases_, epsilon_ = _checked(releases=releases, epsilon=epsilon)
    spacing = np.asarray(gamma_over_sigma, dtype=float)
    if not np.all((spacing > 0) & (spacing <= 2.0**-30)):
        raise InvalidInput(
            f"gamma_over_sigma must lie in (0, 2**-30], got {gamma_over_sigma!r}; choose a finer lattice."
        )
    slack = releases_ * (1 + np.exp(epsilon_)) * spacing**2 / 40
    return _unwrap(np.asarray(slack * (1 + MARGIN)), releases, epsilon, gamma_over_sigma)


def _log_delta(mu: Array, epsilon: Array) -> Array:
    """Log of delta, to float64 accuracy; minus infinity at mu = 0."""
    with np.errstate(divide="ignore", over="ignore", under="ignore", invalid="ignore"):
        a, b = epsilon / mu - mu / 2, epsilon / mu + mu / 2
        density = -a * a / 2 - _LOG_SQRT_2PI
        # Left of zero M(a) overflows; there Phi(-a) is above one half and can be used as it stands.
        near = np.log(ndtr(-a) - np.exp(epsilon + log_ndtr(-b)))
        far = density + np.log(np.where(mu < _SMALL_MU, _mills_integral(a, mu), _mills(a) - _mills(b)))
        result = np.where((mu >= _SMALL_MU) & (a < 0), near, far)
        # fmin drops a NaN in favour of delta = 1: should the arithmetic ever fail, it must not fail towards zero.
        return np.where(mu == 0, -np.inf, np.fmin(result, 0.0))


def _log_delta_up(mu: Array, epsilon: Array) -> Array:
    """Log of delta with the margin on top: the only form in which the public functions use it."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        a = np.abs(epsilon / mu - mu / 2)
        # d(log delta) = -a da, and a itself is known to a few units in the last place of epsilon/mu and mu/2.
        error = 8 * np.finfo(float).eps * (a + 1) * (a + mu)
    return _log_delta(mu, epsilon) + np.where(np.isfinite(error), np.maximum(MARGIN, error), MARGIN)


def _mills(x: Array) -> Array:
    """Mills ratio, the normal tail over the normal density."""
    return np.asarray(_SQRT_HALF_PI * erfcx(x / np.sqrt(2)))


def _mills_integral(a: Array, width: Array) -> Array:
    """M(a) - M(a + width) without subtracting: the integral of 1 - x M(x), by Gauss-Legendre."""
    half = np.minimum(width, _SMALL_MU)[..., None] / 2
    x = a[..., None] + half * (1 + _NODES)
    return np.asarray((half * _WEIGHTS * _tail(x)).sum(axis=-1))


def _tail(x: Array) -> Array:
    """1 - x M(x); beyond `_TAIL` by the continued fraction M = 1/(x + 1/(x + 2/(x + ...)))."""
    far = np.maximum(x, _TAIL)
    rest = far.copy()
    for term in range(_FRACTION_TERMS, 1, -1):
        rest = far + term / rest
    near = np.minimum(x, _TAIL)
    return np.where(x > _TAIL, 1 / (1 + far * rest), 1 - near * _mills(near))


def _rising_root(function: Callable[[Array], tuple[Array, Array]], low: Array) -> Array:
    """Root of a rising function, by Newton's method inside a bracket that starts at `low`.

    What comes back has a value of at most `_SOLVED`, which the margin in delta covers a hundred times over.
    """
    high = low + 1.0
    while np.any(short := function(high)[0] <= 0):
        low, high = np.where(short, high, low), np.where(short, high + 1.0, high)
    x = low
    for _ in range(_MAX_STEPS):
        root = x
        value, slope = function(root)
        low, high = np.where(value <= 0, np.maximum(x, low), low), np.where(value > 0, np.minimum(x, high), high)
        solved = np.abs(value) <= _SOLVED
        if np.all((high - low <= _SOLVED) | solved):
            break
        with np.errstate(divide="ignore", invalid="ignore"):
            x = root - value / slope
        x = np.where(solved, root, np.where((x > low) & (x < high), x, (low + high) / 2))
    return np.where(solved, root, low)


_RULES: dict[str, tuple[Callable[[Array], Any], str]] = {
    "mu": (lambda x: np.isfinite(x) & (x >= 0), "finite and at least 0; it is the sensitivity over the noise"),
    "epsilon": (lambda x: np.isfinite(x) & (x >= 0), "finite and at least 0; choose one, for example 1.0"),
    "delta": (lambda x: (x > 0) & (x < 1), "in (0, 1); choose one well below 1/n, for example 1e-6"),
    "releases": (lambda x: np.isfinite(x) & (x >= 0), "finite and at least 0; count the released coordinates"),
}


def _checked(**values: ArrayLike) -> list[Array]:
    """Broadcast the arguments to a common shape, or say which rule which one breaks."""
    for name, value in values.items():
        passes, rule = _RULES[name]
        try:
            fine = bool(np.all(passes(np.asarray(value, dtype=float))))
        except (TypeError, ValueError):  # no number
            fine = False
        if not fine:
            raise InvalidInput(f"{name} must be {rule}; got {value!r}.")
    return [np.array(x, dtype=float) for x in np.broadcast_arrays(*(np.asarray(v, float) for v in values.values()))]


def _unwrap(result: Array, *given: ArrayLike) -> Any:
    """Give a Python float if every argument was a scalar, else the array."""
    return float(result) if all(np.ndim(x) == 0 for x in given) else result
