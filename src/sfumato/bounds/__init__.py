"""How far one record can move an answer: proven, clipped or declared ranges of its log-likelihood ratio."""

from collections.abc import Mapping
from typing import Any

import jax

from sfumato.bounds.bounds import Bounds
from sfumato.bounds.certifier import certified
from sfumato.bounds.methods import Clip, Lipschitz, Range
from sfumato.domain import Domain, check_record_domain
from sfumato.errors import InvalidInput
from sfumato.model import Model

__all__ = ["Bounds", "Clip", "Lipschitz", "Range", "bounds_for"]


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
