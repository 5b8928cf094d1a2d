r"""Acceptance of the penalty algorithm with the noise averaged out (Sec. 2 and appendix of the paper)."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erfcx, log_ndtr, ndtr

from sfumato.paper._checks import Array, numbers, require, unwrap

_SQRT_2PI = np.sqrt(2 * np.pi)


def acceptance(log_ratio: ArrayLike) -> Any:
    r"""Give the acceptance probability of Metropolis-Hastings, :math:`\alpha = \min\{1, e^{\lambda}\}` (Sec. 2).

    Parameters
    ----------
    log_ratio
        Exact log acceptance ratio :math:`\lambda`.

    Returns
    -------
    float or array
    """
    return unwrap(np.exp(np.minimum(numbers("log_ratio", log_ratio), 0.0)), log_ratio)


def expected_acceptance(log_ratio: ArrayLike, sigma: ArrayLike) -> Any:
    r"""Average the acceptance probability of one penalty step over its noise (appendix, proof of Proposition 1).

    .. math:: \alpha_\sigma(\lambda) = \mathrm{E}\min\{1, e^{\hat\lambda - \sigma^2/2}\}
              = \Phi(\lambda/\sigma - \sigma/2) + e^{\lambda}\,\Phi(-\lambda/\sigma - \sigma/2)

    Computed at :math:`|\lambda|`, where nothing overflows, and carried over by
    :math:`\alpha_\sigma(\lambda) = e^{\lambda}\alpha_\sigma(-\lambda)`, which is detailed balance.
    One minus this function is the privacy curve: :math:`1 - \alpha_\mu(\varepsilon) = \delta_\mu(\varepsilon)`.

    Parameters
    ----------
    log_ratio
        Exact log acceptance ratio :math:`\lambda`; any size.
    sigma
        Standard deviation of the noise, at least 0; 0 is Metropolis-Hastings.

    Returns
    -------
    float or array
    """
    lam, sigma_ = _arguments(log_ratio, sigma)
    a, b = _edges(np.abs(lam), sigma_)
    with np.errstate(under="ignore", over="ignore"):
        # e^lambda Phi(-b) = phi(a) Phi(-b)/phi(b) = phi(a) sqrt(pi/2) erfcx(b/sqrt 2).
        larger = ndtr(a) + np.exp(-a * a / 2) * erfcx(b / np.sqrt(2)) / 2
        result = np.exp(np.minimum(lam, 0.0)) * np.minimum(larger, 1.0)
    return unwrap(result, log_ratio, sigma)


def log_expected_acceptance(log_ratio: ArrayLike, sigma: ArrayLike) -> Any:
    r"""Logarithm of :func:`expected_acceptance`, for arguments where that one underflows.

    Parameters
    ----------
    log_ratio
        Exact log acceptance ratio :math:`\lambda`; any size.
    sigma
        Standard deviation of the noise, at least 0.

    Returns
    -------
    float or array
    """
    lam, sigma_ = _arguments(log_ratio, sigma)
    a, b = _edges(np.abs(lam), sigma_)
    with np.errstate(divide="ignore", under="ignore", over="ignore"):
        second = -a * a / 2 + np.log(erfcx(b / np.sqrt(2)) / 2)
    return unwrap(np.minimum(lam, 0.0) + np.minimum(np.logaddexp(log_ndtr(a), second), 0.0), log_ratio, sigma)


def expected_acceptance_derivative(log_ratio: ArrayLike, sigma: ArrayLike) -> Any:
    r"""Differentiate :func:`expected_acceptance` in sigma (Proposition 1): negative, so more noise accepts less.

    .. math:: \frac{d\alpha_\sigma}{d\sigma} = -\varphi(\sigma/2 - \lambda/\sigma)

    Parameters
    ----------
    log_ratio
        Exact log acceptance ratio :math:`\lambda`; any size.
    sigma
        Standard deviation of the noise, at least 0; at 0 the limit from the right is returned.

    Returns
    -------
    float or array
    """
    lam, sigma_ = _arguments(log_ratio, sigma)
    a, _ = _edges(lam, sigma_)
    with np.errstate(under="ignore", over="ignore"):
        return unwrap(-np.exp(-a * a / 2) / _SQRT_2PI, log_ratio, sigma)


def _arguments(log_ratio: ArrayLike, sigma: ArrayLike) -> tuple[Array, Array]:
    lam, sigma_ = np.broadcast_arrays(numbers("log_ratio", log_ratio), numbers("sigma", sigma))
    require(~np.isnan(lam), "log_ratio must be a number", log_ratio, "Check the log densities it came from.")
    require(np.isfinite(sigma_) & (sigma_ >= 0), "sigma must be finite and at least 0", sigma, "Choose another sigma.")
    return lam, sigma_


def _edges(lam: Array, sigma: Array) -> tuple[Array, Array]:
    """Evaluate lambda/sigma -+ sigma/2, with 0/0 = 0: the limits at sigma = 0."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scaled = np.where(lam == 0, 0.0, lam / sigma)
    return scaled - sigma / 2, scaled + sigma / 2
