"""How far one record can move an answer: proven, clipped or declared ranges of its log-likelihood ratio."""

from collections.abc import Mapping
from typing import Any

import jax

from sfumato.bounds.bounds import Bounds
from sfumato.bounds.certifier import certified
from sfumato.bounds.methods import Clip, Lipschitz, Range
from sfumato.bounds.searched_ratio import searched_bounds
from sfumato.domain import Domain, check_record_domain
from sfumato.errors import InvalidInput, Unsupported
from sfumato.model import Model

AUTO, CERTIFY = "auto", "certify"
FROM_THE_MODEL = (AUTO, CERTIFY)
"""Ways to know a width that need nobody's word: proven where there is a proof, else searched for; or proven only."""

__all__ = ["AUTO", "CERTIFY", "FROM_THE_MODEL", "Bounds", "Clip", "Lipschitz", "Range", "bounds_for"]


def bounds_for(model: Model, domain: Mapping[str, Domain], method: Any = AUTO) -> Bounds:
    """Build the range of one record's log ratio.

    Parameters
    ----------
    model
        What is inferred.
    domain
        Where each column of a record lives.
    method
        "certify" (a proof), "auto" (a proof where the program has rules for it, else a search), or an instance of `Clip`,
        `Lipschitz` or `Range`.

    Returns
    -------
    Bounds
        Its `range` is pure JAX and must be called in 64-bit mode.

    Raises
    ------
    Unsupported
        "certify", and the model uses an operation without a sound rule; `.primitive` names it.
    """
    checked = check_record_domain(domain)
    with jax.enable_x64(True):
        if method == CERTIFY:
            return certified(model, checked)
        if method == AUTO:
            return _best(model, checked)
        if isinstance(method, Clip | Lipschitz | Range):
            return method.bounds(model)
    raise InvalidInput(
        f"sensitivity must be 'auto' or 'certify', or sf.Clip, sf.Lipschitz or sf.Range; got {method!r}."
    )


def _best(model: Model, domain: Mapping[str, Domain]) -> Bounds:
    try:
        return certified(model, domain)
    except Unsupported:
        return searched_bounds(model, domain)
