r"""Theorem 1 and Corollary 1: how many iterations, at which :math:`(\varepsilon, \delta)`.

The printed epsilon of Theorem 1 is **not** what its proof gives: putting
:math:`k = k_0 n^{2\alpha}/\log n` and :math:`\log(1/\delta') = \beta\log n` into the proof's own bound leaves a factor
:math:`\sqrt{\log n}` in the first term. Exact accounting shows that the printed value is nevertheless true where
:math:`2\alpha + \beta \ge 1/2`, and false for smaller exponents at large n. All readings are returned.
"""

from dataclasses import dataclass, fields
from math import floor
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sfumato.paper._checks import Array, exponent, positive, records, require
from sfumato.privacy import gdp
from sfumato.privacy.composition import advanced_composition


@dataclass(frozen=True, slots=True)
class Theorem1:
    """Theorem 1 in numbers. Fields are floats for scalar arguments, arrays otherwise.

    Attributes
    ----------
    iterations
        k(n), rounded down; an ``int`` for scalars, whole float64 numbers in arrays.
    delta
        The delta the theorem states, at which every epsilon here holds (or, if printed, is claimed to).
    epsilon_printed
        As printed; the proof gives sqrt(log n) times the first term. **Do not promise it**: it is never below
        `epsilon_exact` where ``2 * alpha + beta >= 1/2``, but that is the exact account's doing.
    epsilon_corrected
        What the proof gives after its last simplification. A guarantee.
    epsilon_unsimplified
        The composition bound before it: k rounded down, exp not bounded. A guarantee, with the paper's split of delta.
    epsilon_exact
        Exact Gaussian accounting of the same releases. A guarantee, and the truth for sensitivity c n^-alpha.
    epsilon_step, delta_step
        Of one iteration, by Theorem 2.
    mu
        Gaussian-DP parameter of all iterations together.
    """

    iterations: Any
    delta: Any
    epsilon_printed: Any
    epsilon_corrected: Any
    epsilon_unsimplified: Any
    epsilon_exact: Any
    epsilon_step: Any
    delta_step: Any
    mu: Any


@dataclass(frozen=True, slots=True)
class Corollary1(Theorem1):
    """Corollary 1 in numbers: Theorem 1's, and the noise on the released statistic.

    Attributes
    ----------
    xi
        Variance of the noise on every coordinate of the released statistic.
    sigma_squared_bound
        Bound on the variance of the noise in the log ratio, whatever n.
    """

    xi: Any
    sigma_squared_bound: Any


def minimum_sigma(alpha: ArrayLike, beta: ArrayLike, c: ArrayLike) -> Any:
    r"""Infimum of the sigma that Theorem 1 admits for every n, in closed form.

    .. math:: \max_{n \ge 1} c\,n^{-\alpha}\sqrt{2\beta'\log n} = c\,\sqrt{\beta'/(\alpha e)},
              \qquad \beta' = 2\alpha + \beta ,

    reached at :math:`n = e^{1/(2\alpha)}`. The paper leaves the maximum as it stands.

    Parameters
    ----------
    alpha
        Exponent of Assumption 1, above 0.
    beta
        Exponent of delta, above 0.
    c
        Constant of Assumption 1, above 0.

    Returns
    -------
    float or array
    """
    alpha_, beta_, c_ = positive(alpha=alpha, beta=beta, c=c)
    return _plain(c_ * np.sqrt((2 * alpha_ + beta_) / (alpha_ * np.e)))


def assumption_bound(c: ArrayLike, d_theta: ArrayLike, M: ArrayLike, n: ArrayLike, alpha: ArrayLike) -> Any:  # noqa: N803
    r"""Sensitivity that Assumptions 2 and 3 give: the constant for Assumption 1.

    .. math:: \nabla_2 d_n(\cdot, \theta, \theta') \le 2\,c\,d_\theta\,M\,n^{-\alpha}

    The paper drops the c. In Theorem 1, ``2 * c * d_theta * M`` takes the part of c.

    Parameters
    ----------
    c, alpha
        Every coordinate moves by less than ``c * n**-alpha`` (Assumption 3).
    d_theta
        Dimension of theta.
    M
        Bound on every partial derivative of the log-likelihood of one record (Assumption 2).
    n
        Number of records.

    Returns
    -------
    float or array
    """
    c_, d_, m_, n_ = positive(c=c, d_theta=d_theta, M=M, n=n)
    return _plain(2 * c_ * d_ * m_ * n_ ** -exponent(alpha))


def theorem1(  # noqa: PLR0917 (the paper's symbols, in its order)
    n: ArrayLike,
    k0: ArrayLike,
    alpha: ArrayLike,
    beta: ArrayLike,
    c: ArrayLike,
    sigma: ArrayLike,
    *,
    every_n: bool = True,
) -> Theorem1:
    r"""Evaluate Theorem 1: iterations, delta, and epsilon as printed, corrected, unsimplified and exact.

    .. math::

       k(n) &= \lfloor k_0 n^{2\alpha}/\log n \rfloor, \qquad
       \delta = 1.25\,k_0 n^{-\beta}/\log n + n^{-\beta} \\
       \varepsilon_{\text{printed}} &= 2\sqrt{k_0\beta'\beta}\,c/\sigma + 4k_0\beta'c^2/\sigma^2 \\
       \varepsilon_{\text{corrected}} &= 2\sqrt{k_0\beta'\beta\log n}\,c/\sigma + 4k_0\beta'c^2/\sigma^2 \\
       \varepsilon_{\text{unsimplified}} &=
       \sqrt{2k\log(1/\delta')}\,\varepsilon_1 + k\varepsilon_1(e^{\varepsilon_1}-1), \\
       \varepsilon_1 &= (c/\sigma)n^{-\alpha}\sqrt{2\beta'\log n}, \quad \delta' = n^{-\beta} \\
       \varepsilon_{\text{exact}} &: \ \delta_\mu(\varepsilon) = \delta, \quad \mu^2 = k\,c^2n^{-2\alpha}/\sigma^2

    with :math:`\beta' = 2\alpha + \beta`.

    Privacy: holds for a run whose every move satisfies Assumption 1, sensitivity at most ``c * n**-alpha``, and
    covers everything the adversary sees: theta, proposals and noisy log ratios. `epsilon_printed` is not proved.

    Parameters
    ----------
    n
        Number of records, at least 2.
    k0
        Constant of the number of iterations, above 0.
    alpha
        Exponent of Assumption 1, in (0, 1/2]; larger ones warn.
    beta
        Exponent of delta, above 0; above 1 for delta = o(1/n).
    c
        Constant of Assumption 1, above 0.
    sigma
        Standard deviation of the noise, above :func:`minimum_sigma`.
    every_n
        True asks of sigma what the theorem asks: that Theorem 2's condition hold at every n. False asks for it at
        this n only, which is all that the guarantee at this n needs.

    Returns
    -------
    Theorem1

    Raises
    ------
    InvalidInput
        If an argument is outside its range, or Theorem 2's condition fails.
    """
    n_ = records(n)
    alpha_ = exponent(alpha)
    k0_, beta_, c_, sigma_ = positive(k0=k0, beta=beta, c=c, sigma=sigma)
    if every_n:
        _require_sigma(alpha_, beta_, c_, sigma_)
    return Theorem1(**_theorem1(*np.broadcast_arrays(n_, k0_, alpha_, beta_, c_, sigma_)))


def corollary1(  # noqa: PLR0917 (as theorem1)
    n: ArrayLike,
    k0: ArrayLike,
    alpha: ArrayLike,
    beta: ArrayLike,
    c: ArrayLike,
    sigma: ArrayLike,
    sensitivity: ArrayLike = 1.0,
    *,
    every_n: bool = True,
) -> Corollary1:
    r"""Theorem 1 for exponential families: k noisy copies of the sufficient statistic (Corollary 1, Algorithm 3).

    .. math:: \xi_n = \sigma^2(\nabla_2 S)^2 n^{2\alpha}/c^2, \qquad
              \sigma_n^2(\theta, \theta') = \|\varphi(\theta') - \varphi(\theta)\|^2\,\xi_n \le (\nabla_2 S)^2\sigma^2

    Parameters
    ----------
    n, k0, beta, every_n
        As in :func:`theorem1`.
    alpha, c
        Of Assumption 4: the natural parameter moves by less than ``c * n**-alpha``.
    sigma
        As in :func:`theorem1`; dimensionless here, the noise in the log ratio is at most ``sensitivity * sigma``.
    sensitivity
        :math:`\nabla_2 S`, the diameter of the set of statistics of one record, above 0.

    Returns
    -------
    Corollary1
    """
    result = theorem1(n, k0, alpha, beta, c, sigma, every_n=every_n)
    n_, alpha_, c_, sigma_, width = positive(n=n, alpha=alpha, c=c, sigma=sigma, sensitivity=sensitivity)
    bound = (width * sigma_) ** 2
    shared = {field.name: getattr(result, field.name) for field in fields(Theorem1)}
    return Corollary1(**shared, xi=_plain(bound * n_ ** (2 * alpha_) / c_**2), sigma_squared_bound=_plain(bound))


def limit_epsilon(k0: ArrayLike, beta: ArrayLike, c: ArrayLike, sigma: ArrayLike) -> Any:
    r"""Where the exact epsilon of Theorem 1 settles as n grows: the O(1) that the paper concludes.

    .. math:: \lim_{n\to\infty}\varepsilon_{\text{exact}} = \sqrt{2 k_0 \beta}\,c/\sigma

    Parameters
    ----------
    k0, beta, c, sigma
        As in :func:`theorem1`.

    Returns
    -------
    float or array
    """
    k0_, beta_, c_, sigma_ = positive(k0=k0, beta=beta, c=c, sigma=sigma)
    return _plain(np.sqrt(2 * k0_ * beta_) * c_ / sigma_)


def _theorem1(  # noqa: PLR0917 (as theorem1)
    n: Array, k0: Array, alpha: Array, beta: Array, c: Array, sigma: Array
) -> dict[str, Any]:
    """Evaluate the formulas on arrays of one shape."""
    log_n, ratio, beta_prime = np.log(n), c / sigma, 2 * alpha + beta
    epsilon_step = ratio * n**-alpha * np.sqrt(2 * beta_prime * log_n)
    require(
        epsilon_step < 1,
        "Theorem 2 (Gaussian mechanism) needs epsilon_1 = (c/sigma) n^-alpha sqrt(2 (2 alpha + beta) log n) < 1",
        _plain(epsilon_step),
        "Use a larger sigma or n, or account exactly with sfumato.privacy.gdp.",
    )
    with np.errstate(over="ignore"):
        real_k = k0 * n ** (2 * alpha) / log_n
    require(np.isfinite(real_k), "k(n) must be a finite float", _plain(real_k), "Use a smaller n or alpha.")
    k = np.floor(real_k)
    delta_prime = n**-beta
    stated = delta_prime * (1 + 1.25 * k0 / log_n)
    require(stated > 0, "n^-beta must not underflow", _plain(stated), "Use a smaller n or beta.")
    second = 4 * k0 * beta_prime * ratio**2
    first = 2 * np.sqrt(k0 * beta_prime * beta) * ratio
    mu = np.sqrt(k) * n**-alpha * ratio
    return {
        "iterations": floor(float(k)) if k.ndim == 0 else k,
        "delta": _plain(stated),
        "epsilon_printed": _plain(first + second),
        "epsilon_corrected": _plain(first * np.sqrt(log_n) + second),
        "epsilon_unsimplified": _plain(advanced_composition(epsilon_step, k, delta_prime)),
        # At a delta of 1 or more (tiny n) the statement is empty: epsilon comes out as 0, which satisfies it.
        "epsilon_exact": _plain(np.where(stated < 1, gdp.epsilon(mu, np.where(stated < 1, stated, 0.5)), 0.0)),
        "epsilon_step": _plain(epsilon_step),
        "delta_step": _plain(1.25 * n**-beta_prime),
        "mu": _plain(mu),
    }


def _require_sigma(alpha: Array, beta: Array, c: Array, sigma: Array) -> None:
    least = np.asarray(minimum_sigma(alpha, beta, c))
    require(
        sigma > least,
        f"Theorem 1 needs sigma > max_n c n^-alpha sqrt(2 (2 alpha + beta) log n) = {np.max(least):.6g}, "
        "so that Theorem 2's condition epsilon_1 < 1 holds at every n",
        _plain(sigma),
        "Use a larger sigma, or every_n=False to ask for the condition at this n only.",
    )


def _plain(value: Any) -> Any:
    """Give a Python float for a zero-dimensional result."""
    return float(value) if np.ndim(value) == 0 else np.asarray(value)
