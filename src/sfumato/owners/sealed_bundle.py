r"""Sealed bundles: files of several owners that only add up together.

Every member of a consortium releases its noisy copies under masks made from static keys, with nobody between them: no server,
no round trip. What is released is agreed on beforehand (a release id, the number of copies, the noise of all together). The masks
cancel in the sum of all files. Where one is missing, noise is left.

.. math:: \hat S^{(t)} = \sum_i \bigl(S_i + e_i^{(t)}\bigr), \qquad \xi = \sum_i \xi_i

Notes
-----
docs/proofs/sealed-sums.md; `privacy.coalition` says what each owner pays.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from sfumato.errors import BadAnswer, BundleError
from sfumato.owners.bundle import Bundle
from sfumato.owners.sealing import opened
from sfumato.privacy.coalition import left_of
from sfumato.privacy.joint import join
from sfumato.protocol.consortium import SealedRelease


def gathered(bundles: Sequence[Bundle]) -> list[Bundle]:
    """The same list; of sealed bundles, the one that all of them are together.

    Raises
    ------
    BundleError
        Some are sealed and some are not, or one of a release is missing, doubled, or of another agreement.
    """
    sealed = [bundle for bundle in bundles if bundle.sealed is not None]
    if not sealed:
        return list(bundles)
    if len(sealed) < len(bundles):
        raise BundleError("sealed bundles only add up among themselves; leave out those that are not sealed.")
    return [_open(sealed)]


def _open(bundles: Sequence[Bundle]) -> Bundle:
    first = _terms(bundles[0])
    for bundle in bundles:
        other = _terms(bundle)
        if other.release != first.release or other.roster != first.roster:
            raise BundleError(
                f"bundles of one release only open together, and {other.name!r} is of {other.release!r}, {first.name!r} of "
                f"{first.release!r}."
            )
        if other.tag != first.tag:
            raise BundleError(
                f"all owners must release what was agreed, and {other.name!r} has other terms than {first.name!r} (copies, "
                "noise, shares, number of records or family): nothing opens. Agree on a new release id, and release again."
            )
        bundle.check_untouched()
    places = [_terms(bundle).position for bundle in bundles]
    missing = [name for i, name in enumerate(first.members) if i not in places]
    if missing or len(set(places)) < len(places):
        raise BundleError(
            f"a sealed sum opens with the bundles of all {len(first.members)} owners, each once, and "
            f"{', '.join(missing) or 'one of them'} is {'missing' if missing else 'given twice'}. Without it the others are "
            "noise."
        )
    n = sum(bundle.n for bundle in bundles)
    if n != first.records:
        raise BundleError(f"the owners agreed on {first.records:,} records in all, and these bundles have {n:,}.")
    try:
        total = opened(np.stack([bundle.masked_rows().ravel() for bundle in bundles]), np.ones(1, bool))
    except BadAnswer:
        raise BundleError(
            "the masks of these bundles do not cancel: a file is not the one its owner released."
        ) from None
    size = bundles[0].size
    values = total.reshape(-1, size).astype(np.float64) * bundles[0].gamma + n * np.array(first.centre)
    shares = list(first.shares)
    dearest = max(
        bundle.sensitivity / left_of(shares, place, _terms(bundle).colluders) ** 0.5
        for bundle, place in zip(bundles, places, strict=True)
    )
    promises = [replace(bundle.privacy, owner=_terms(bundle).name) for bundle in bundles]
    weakest: dict[str, Any] = {name: max(getattr(b, name) for b in bundles) for name in ("epsilon", "delta", "mu")}
    outside = "clamp" if any(bundle.outside == "clamp" for bundle in bundles) else "refuse"
    header = bundles[0].header | weakest | {"id": first.release, "n": n, "outside": outside, "sealed": None}
    whole = Bundle(header | {"sensitivity": dearest}, values=values, family=bundles[0].family, privacy=join(promises))
    return whole


def _terms(bundle: Bundle) -> SealedRelease:
    return msgspec.convert(bundle.sealed, SealedRelease)
