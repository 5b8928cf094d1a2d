r"""How much slower than Metropolis-Hastings the penalty chain can be (Propositions 2 and 3, Lemma 1)."""

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from sfumato.errors import InvalidInput
from sfumato.paper._checks import numbers, require, unwrap

Kind = Literal["printed", "proof", "sharp"]


def kappa(B: ArrayLike, kind: Kind = "sharp") -> Any:  # noqa: N803 (the paper's letter)
    r"""Constant of the minorisation :math:`\alpha_\sigma \ge \kappa\,\alpha` (proof of Proposition 2).

    ============  =============================  =========================================================
    kind          value                          where from
    ============  =============================  =========================================================
    ``printed``   :math:`1 - \Phi(B/2)`          the paper; valid for every B, though one step of its proof
                                                 (:math:`\sigma \le B`) is false for B < 1
    ``proof``     :math:`1 - \Phi(\sqrt B/2)`    the same proof with :math:`\sigma \le \sqrt B`
    ``sharp``     :math:`2\Phi(-\sqrt B/2)`      the best constant, reached at :math:`\lambda = 0`
    ============  =============================  =========================================================

    Parameters
    ----------
    B
        Supremum of the noise **variance** over all pairs, at least 0.
    kind
        Which of the three.

    Returns
    -------
    float or array
        In (0, 1].

    Raises
    ------
    InvalidInput
        If B is negative or the kind unknown.
    """
    bound = numbers("B", B)
    require(bound >= 0, "B, the supremum of a variance, must be at least 0", B, "Pass sigma squared.")
    if kind == "printed":
        return unwrap(ndtr(-bound / 2), B)
    if kind == "proof":
        return unwrap(ndtr(-np.sqrt(bound) / 2), B)
    if kind == "sharp":
        return unwrap(2 * ndtr(-np.sqrt(bound) / 2), B)
    raise InvalidInput(f"kind must be 'printed', 'proof' or 'sharp'; got {kind!r}. Use 'sharp' for the best constant.")


def rejection_bound(rho: ArrayLike, B: ArrayLike, kind: Kind = "sharp") -> Any:  # noqa: N803
    r"""Bound on the rejection probability of the penalty chain (Lemma 1).

    .. math:: \operatorname{ess\,sup}\rho_\sigma \le (1 - \kappa) + \kappa \operatorname{ess\,sup}\rho

    Parameters
    ----------
    rho
        Rejection probability of Metropolis-Hastings (or its essential supremum), in [0, 1].
    B
        Supremum of the noise variance, at least 0.
    kind
        Which :func:`kappa`.

    Returns
    -------
    float or array
        Below 1 wherever `rho` is.
    """
    rejected = numbers("rho", rho)
    require((rejected >= 0) & (rejected <= 1), "rho must be a probability", rho, "Pass a value in [0, 1].")
    return unwrap(1 - np.asarray(kappa(B, kind)) * (1 - rejected), rho, B)
