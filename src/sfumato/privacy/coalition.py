r"""What one member of a consortium pays for an answer that only all of them together give.

Member j adds the share :math:`r_j` of the noise variance :math:`\sigma^2`, :math:`\sum_j r_j = 1`. Whoever sees the sum and works
with c of the others can subtract the noise of those c. What is left is at least

.. math:: \sigma^2\Bigl(1 - \sum_{c\text{ largest } j \ne i} r_j\Bigr)

and that is what member i charges for. With everybody against it, its own share is left: :math:`r_i\sigma^2`.

References
----------
docs/proofs/sealed-sums.md; Kairouz, Liu & Steinke 2021, Proposition 14.
"""

from collections.abc import Sequence
from math import ceil, fsum, isfinite, sqrt
from typing import NamedTuple

from sfumato.errors import InvalidInput

GUARD = 1.0 - 2.0**-40
"""Shares are floats: what is left of the noise is taken a little smaller than their sum says."""
SMALLEST_SHARE = 2.0**-10
"""Of an equal share. The sum of discrete Gaussians on one lattice is as good as one if none of them is very small."""


def check_shares(shares: Sequence[float], members: int) -> None:
    """Refuse what is no way of sharing noise out among so many.

    Raises
    ------
    InvalidInput
        The number of shares, one of them or their sum is wrong.
    """
    fine = len(shares) == members and all(isfinite(share) and share >= SMALLEST_SHARE / members for share in shares)
    if not fine or abs(fsum(shares) - 1.0) > 2.0**-40:
        raise InvalidInput(
            f"the noise of a sealed sum is shared out among all {members} members, in shares of at least "
            f"{SMALLEST_SHARE / members:.2g} that add up to one, got {list(shares)!r:.80}."
        )


def left_of(shares: Sequence[float], member: int, colluders: int) -> float:
    """Share of the noise variance that a coalition with so many others cannot subtract, rounded down."""
    if not 0 <= colluders < len(shares):
        raise InvalidInput(
            f"0 to {len(shares) - 1} of {len(shares)} members may collude with the analyst, got {colluders}."
        )
    others = sorted(share for i, share in enumerate(shares) if i != member)
    kept = others[: len(others) - colluders]
    return fsum([shares[member], *kept]) * GUARD


class Part(NamedTuple):
    """One owner's part of an answer.

    Attributes
    ----------
    own, paid, least, most
        Standard deviations, in units of that of all the noise: what this owner adds; what it charges for; the smallest and the
        largest that any owner adds.
    n
        Records of everybody whose numbers are in the sum: it must fit as if each had the range of this owner's.
    dearer
        How many times as much an answer costs against everybody as against the coalition; 0 where nobody else adds noise.
    """

    own: float
    paid: float
    least: float
    most: float
    n: int
    dearer: float


def alone(n: int) -> Part:
    """The part of an owner whose answer stands by itself: all the noise in it is its own."""
    return Part(1.0, 1.0, 1.0, 1.0, n, 0.0)


def part_of(shares: Sequence[float], member: int, colluders: int, n: int) -> Part:
    """A member's part of a sealed sum over n records in all."""
    left = left_of(shares, member, colluders)
    dearer = left / (shares[member] * GUARD * GUARD)
    return Part(sqrt(shares[member]), sqrt(left), sqrt(min(shares)), sqrt(max(shares)), n, dearer)


def quanta_for_everybody(quanta: int, dearer: float) -> int:
    """Quanta against everybody of an answer that costs so many against the coalition, rounded up."""
    return -(-quanta * ceil(dearer * 2.0**30) // 2**30)
