"""`sf.certify`: a proven range of one record's log ratio, for a single pair of parameters."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from sfumato.bounds import CERTIFY
from sfumato.domain import Domain
from sfumato.model.base import theta_of
from sfumato.study.target import make_study
from sfumato.tools.kept_programs import kept_programs
from sfumato.tools.quick_jit import quick_jit


@kept_programs()
def certify(
    model: Any,
    domain: Mapping[str, Domain] | None,
    theta: Mapping[str, Any],
    theta_prop: Mapping[str, Any],
) -> tuple[float, float]:
    r"""Prove a range of one record's log-likelihood ratio.

    .. math:: lo \le \log p(r\mid\theta') - \log p(r\mid\theta) \le hi\quad\text{for every record r of the domain.}

    Parameters
    ----------
    model
        A NumPyro model function, a `Model`, or a family: its own range is exact where it says so.
    domain
        Where each column of a record lives; None for a family, which brings its own.
    theta, theta_prop
        Values by site, inside the sites' own supports.

    Returns
    -------
    tuple
        lo and hi; the sensitivity of the log ratio of a data set is hi - lo.

    Raises
    ------
    InvalidInput
        A value is missing, of the wrong shape, or outside its support.
    """
    study = make_study(model, domain, CERTIFY)
    here, there = theta_of(study.model, theta, "theta"), theta_of(study.model, theta_prop, "theta_prop")
    with jax.enable_x64(True):
        lo, hi = quick_jit(study.bounds.range)(jnp.asarray(here), jnp.asarray(there))
    return float(lo), float(hi)
