"""How far one record can move an answer: proven, clipped or declared ranges of its log-likelihood ratio."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from sfumato.bounds.bounds import Bounds
from sfumato.bounds.certifier import certified
from sfumato.bounds.methods import Clip, Lipschitz, Range
from sfumato.domain import Domain, check_record_domain
from sfumato.errors import InvalidInput
from sfumato.model import Model
from sfumato.model.base import theta_of
from sfumato.tools.quick_jit import quick_jit

__all__ = ["Bounds", "Clip", "Lipschitz", "Range", "bounds_for", "certify"]


def bounds_for(model: Model, domain: Mapping[str, Domain], method: Any = "certify") -> Bounds:
    """Build the range of one record's log ratio.

    Parameters
    ----------
    model
        What is inferred.
    domain
        Where each column of a record lives.
    method
        "certify", or an instance of `Clip`, `Lipschitz` or `Range`.

    Returns
    -------
    Bounds
        Its `range` is pure JAX and must be called in 64-bit mode.

    Raises
    ------
    Unsupported
        If the model uses an operation without a sound rule; `.primitive` names it.
    """
    checked = check_record_domain(domain)
    with jax.enable_x64(True):
        if method == "certify":
            return certified(model, checked)
        if isinstance(method, Clip | Lipschitz | Range):
            return method.bounds(model)
    raise InvalidInput(f"sensitivity must be 'certify', or sf.Clip, sf.Lipschitz or sf.Range; got {method!r}.")


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
    from sfumato.study.target import make_study  # which imports this package

    study = make_study(model, domain)
    here, there = theta_of(study.model, theta, "theta"), theta_of(study.model, theta_prop, "theta_prop")
    with jax.enable_x64(True):
        lo, hi = quick_jit(study.bounds.range)(jnp.asarray(here), jnp.asarray(there))
    return float(lo), float(hi)
