r"""The questions people really ask of Theorem 1, answered by either account.

``route="exact"`` uses Gaussian accounting, ``route="paper"`` the unsimplified advanced composition behind Theorem 1
(:func:`sfumato.privacy.composition.paper_epsilon`, the best the paper's tools can do). Both are guarantees; the exact
one asks for far less noise. Sensitivity is :math:`c\,n^{-\alpha}` throughout (Assumption 1).
"""

from math import ceil, exp, isfinite, log
from typing import Literal, NamedTuple

from sfumato.errors import InvalidInput
from sfumato.paper._checks import exponent, positive, records, require
from sfumato.privacy import gdp
from sfumato.privacy.composition import paper_epsilon, paper_mu

Route = Literal["exact", "paper"]


class Epsilons(NamedTuple):
    """Epsilon of one and the same run by both accounts."""

    exact: float
    paper: float


def epsilon_for(*, sigma: float, iterations: int, n: float, alpha: float, c: float, delta: float) -> Epsilons:
    r"""Given sigma and k: which epsilon, exactly and by the paper.

    .. math:: \mu^2 = k\,c^2 n^{-2\alpha}/\sigma^2

    Parameters
    ----------
    sigma
        Standard deviation of the noise in every answer.
    iterations
        Number k of iterations, at least 1.
    n, alpha, c
        Records, and Assumption 1's exponent and constant.
    delta
        At which both epsilons hold, in (0, 1).

    Returns
    -------
    Epsilons
        `paper` is infinite where Theorem 2's condition fails.
    """
    mu = _mu(sigma, iterations, n, alpha, c)
    return Epsilons(float(gdp.epsilon(mu, delta)), float(paper_epsilon(mu, iterations, delta)))


def sigma_for(
    *, epsilon: float, delta: float, n: float, iterations: int, alpha: float, c: float, route: Route = "exact"
) -> float:
    r"""Given a target and k: the smallest sigma.

    .. math:: \sigma = \sqrt{k}\,c\,n^{-\alpha}/\mu(\varepsilon, \delta)

    Parameters
    ----------
    epsilon, delta
        Target.
    n, alpha, c
        Records, and Assumption 1's exponent and constant.
    iterations
        Number k of iterations wanted, at least 1.
    route
        ``"exact"`` or ``"paper"``.

    Returns
    -------
    float
        Rounded up.
    """
    unit = _mu(1.0, iterations, n, alpha, c)
    cap = _cap(epsilon, delta, iterations, route)
    return unit / cap * (1 + gdp.MARGIN)


def k0_for(
    *, epsilon: float, delta: float, n: float, sigma: float, alpha: float, c: float, route: Route = "exact"
) -> float:
    r"""Given a target and sigma: the largest :math:`k_0`, that is :math:`k = k_0 n^{2\alpha}/\log n` iterations.

    Exactly, :math:`k_0 = \mu^2\sigma^2\log n/c^2`; by the paper, the root of a rising function of k.

    Parameters
    ----------
    epsilon, delta
        Target.
    n, alpha, c
        Records, and Assumption 1's exponent and constant.
    sigma
        Standard deviation of the noise in every answer.
    route
        ``"exact"`` or ``"paper"``.

    Returns
    -------
    float
        Rounded down. A value that leaves less than one iteration is still returned: the caller sees how far off.
    """
    records(n)
    exponent(alpha)
    per_step = _mu(sigma, 1, n, alpha, c)
    scale = float(log(n) * float(n) ** (-2 * alpha))
    most = (_cap(epsilon, delta, 1, "exact") / per_step) ** 2 * (1 - gdp.MARGIN)
    if _known(route) == "exact":
        return most * scale

    def affordable(k: float) -> bool:
        return float(paper_epsilon(per_step * k**0.5, max(k, 1.0), delta)) <= epsilon

    low, high = 0.0, most  # the exact account allows more than any composition theorem
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if affordable(middle) else (low, middle)
    return low * scale


def minimum_n(
    *,
    epsilon: float,
    sigma: float,
    iterations: int,
    alpha: float,
    c: float,
    delta: float | None = None,
    beta: float | None = None,
    route: Route = "exact",
) -> int:
    r"""Which n makes a study feasible: the fewest records for which k iterations at sigma stay within epsilon.

    .. math:: n = \lceil (k\,c^2/\{\sigma\,\mu(\varepsilon, \delta)\}^2)^{1/(2\alpha)} \rceil

    Parameters
    ----------
    epsilon, sigma, iterations, alpha, c
        Target, noise, number of iterations, and Assumption 1's exponent and constant.
    delta, beta
        Exactly one of them: a fixed delta, or :math:`\delta = n^{-\beta}` as in the paper.
    route
        ``"exact"`` or ``"paper"``.

    Returns
    -------
    int
        At least 2.
    """
    if (delta is None) == (beta is None):
        raise InvalidInput(f"give exactly one of delta and beta; got delta={delta!r}, beta={beta!r}. Drop one of them.")
    positive(sigma=sigma, iterations=iterations, c=c)
    exponent(alpha)

    def fewest(at_delta: float) -> float:
        return log(iterations**0.5 * c / (sigma * _cap(epsilon, at_delta, iterations, route))) / alpha

    if delta is not None:
        return max(2, _whole(fewest(delta)))
    exponent_of_delta = float(positive(beta=beta if beta is not None else 1.0)[0])
    # More records shrink the sensitivity (a power of n) faster than they shrink mu(epsilon, n^-beta) (a root of log n).
    low, high = log(2.0), 700.0 / max(exponent_of_delta, 1.0)

    def surplus(log_n: float) -> float:
        return log_n - fewest(exp(-exponent_of_delta * log_n))

    if surplus(low) >= 0:
        return 2
    require(surplus(high) > 0, "some n must be enough", high, "Use a larger epsilon or sigma, or fewer iterations.")
    from scipy.optimize import brentq  # here: twelve megabytes that a run does not need

    return max(2, _whole(float(brentq(surplus, low, high, xtol=1e-13)) + 1e-12))


def _mu(sigma: float, iterations: float, n: float, alpha: float, c: float) -> float:
    """Gaussian-DP parameter of k iterations at sensitivity c n^-alpha."""
    sigma_, k, c_ = positive(sigma=sigma, iterations=iterations, c=c)
    require(k >= 1, "iterations must be at least 1", iterations, "Ask for one iteration or more.")
    return float(k**0.5 * c_ * records(n) ** -exponent(alpha) / sigma_)


def _cap(epsilon: float, delta: float, iterations: float, route: Route) -> float:
    """Mu that the target allows; zero is turned into an error, because nothing can be released then."""
    cap = gdp.mu(epsilon, delta) if _known(route) == "exact" else paper_mu(epsilon, iterations, delta)
    require(isfinite(cap) and cap > 0, "the target must allow some release", (epsilon, delta), "Use a larger epsilon.")
    return float(cap)


def _known(route: Route) -> Route:
    if route not in ("exact", "paper"):
        raise InvalidInput(f"route must be 'exact' or 'paper'; got {route!r}. Use 'exact' for the tight account.")
    return route


def _whole(log_n: float) -> int:
    """Turn the logarithm of a number of records into the next whole number."""
    require(log_n < 700, "n must be a float", log_n, "Use a larger epsilon or sigma, or fewer iterations.")
    return ceil(exp(log_n))
