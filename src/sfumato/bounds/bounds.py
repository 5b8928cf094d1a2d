"""What the vault asks for: a range of one record's log ratio, and how it is known."""

from collections.abc import Callable
from dataclasses import dataclass

from sfumato.bounds.interval import Array

SEARCHED = "searched"
"""A width that was searched for."""
SEARCHED_SENTENCE = (
    "The width was searched for over the declared domain, with a margin, and every record's term is cut to it: private always, "
    "exact unless a record of the domain reaches further than the search and its margin."
)

_SENTENCES = {
    SEARCHED: SEARCHED_SENTENCE,
    "exact": "The width is the exact range of one record's log-likelihood ratio over the declared domain.",
    "certified": "The width is a proven bound of one record's log-likelihood ratio over the declared domain.",
    "clipped": "Every record's log-likelihood ratio is clamped to a stated range: private always, exact only while "
    "no record is clamped.",
    "declared": "The width is declared by the user and enforced by clamping: private always, exact if the declaration "
    "is true.",
}

_MANY_RECORDS = 5000


@dataclass(frozen=True)
class Bounds:
    """Range of one record's log ratio as a function of the two parameters.

    Parameters
    ----------
    range
        (theta, theta_prop) -> (lo, hi) with lo <= log p(r | theta_prop) - log p(r | theta) <= hi for every record r;
        pure JAX, float64 scalars. Swapping the arguments negates and swaps the ends.
    kind
        "exact", "certified", "searched", "clipped" or "declared".
    proven
        Whether the range follows from the model and the domain alone. False for what was searched for or clipped: the
        answers are then exact only while nothing is clamped.
    quick
        The same, a little wider and faster to find, for small tables.
    statistic
        Whether the range is that of a family's own statistic over its domain, so that the sum of statistics can answer in
        place of the records.
    """

    range: Callable[[Array, Array], tuple[Array, Array]]
    kind: str
    proven: bool
    quick: Callable[[Array, Array], tuple[Array, Array]] | None = None
    statistic: bool = False

    def range_for(self, n: int) -> Callable[[Array, Array], tuple[Array, Array]]:
        """Choose the range to use on a table of so many records (public, so the charge stays public)."""
        return self.range if self.quick is None or n >= _MANY_RECORDS else self.quick

    def describe(self) -> str:
        """Say in one sentence how the width is known."""
        return _SENTENCES[self.kind]
