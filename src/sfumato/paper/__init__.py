"""The paper as functions: every result of "On the Use of Penalty MCMC for Differential Privacy" (Yıldırım 2016).

Pure NumPy and SciPy; importing it loads neither JAX nor matplotlib. `docs/explanation/paper.md` lists each definition,
assumption, result, algorithm and remark with its function, its test and its figure, and the slips with numeric witnesses.

`lab` computes chains on finite spaces exactly; `figures` draws the pictures the paper does not have.
"""

from sfumato.paper import lab
from sfumato.paper.acceptance import (
    acceptance,
    expected_acceptance,
    expected_acceptance_derivative,
    log_expected_acceptance,
)
from sfumato.paper.ergodicity import kappa, rejection_bound
from sfumato.paper.inverse import epsilon_for, k0_for, minimum_n, sigma_for
from sfumato.paper.theorem import (
    Corollary1,
    Theorem1,
    assumption_bound,
    corollary1,
    limit_epsilon,
    minimum_sigma,
    theorem1,
)
from sfumato.privacy.composition import advanced_composition, gaussian_mechanism, paper_epsilon

__all__ = [
    "Corollary1",
    "Theorem1",
    "acceptance",
    "advanced_composition",
    "assumption_bound",
    "corollary1",
    "epsilon_for",
    "expected_acceptance",
    "expected_acceptance_derivative",
    "gaussian_mechanism",
    "k0_for",
    "kappa",
    "lab",
    "limit_epsilon",
    "log_expected_acceptance",
    "minimum_n",
    "minimum_sigma",
    "paper_epsilon",
    "rejection_bound",
    "sigma_for",
    "theorem1",
]
