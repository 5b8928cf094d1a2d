"""What is sampled where that is no posterior of a likelihood: a generalised posterior, in words and in numbers."""

from collections.abc import Mapping
from typing import Any, NamedTuple

LISTED = 12
"""Parameters whose ratios are listed one by one; of more, the least and the largest."""
NARROW, WIDE = 0.9, 1.15
"""Width of an interval over that of a calibrated one from which on a run is rough."""
UNSUITED = 1.25
"""Times that the weight may be off, either way, before another one is named."""


class Target(NamedTuple):
    """A density-power loss in place of a log-likelihood, and how wide the posterior is that it makes.

    Attributes
    ----------
    betas
        By observed site.
    weight, place
        What the loss is multiplied by, and where that number comes from.
    here
        The weight that would suit the parameters where ratios were computed.
    at
        Where that is, in words.
    ratios
        Width of each parameter's interval over that of a calibrated one, by made-up records: below 1, it is too narrow.
    efficiency
        What the best estimate's variance is of the loss's, parameter by parameter: what robustness costs.
    """

    betas: tuple[tuple[str, float], ...]
    weight: float
    place: str
    here: float
    at: str
    ratios: dict[str, float]
    efficiency: dict[str, float]

    @property
    def name(self) -> str:
        """What stands in place of what."""
        sites = ", ".join(f"{site} (beta = {beta:g})" for site, beta in self.betas)
        return (
            f"a generalised posterior, not the posterior of a likelihood: the density-power loss of {sites}, times "
            f"{self.weight:g} (fixed by {self.place}), stands in for the log-likelihood"
        )

    @property
    def sentence(self) -> str:
        """The target, and between which ratios its intervals lie."""
        return f"This is {self.name}. {self._between}{self._better}"

    @property
    def paragraph(self) -> str:
        """The same with every parameter's ratio."""
        if not 0 < len(self.ratios) <= LISTED:
            return self.sentence
        each = ", ".join(f"{name} {ratio:.2f}" for name, ratio in self.ratios.items())
        return (
            f"This is {self.name}. Widths of its intervals over those of calibrated ones, by "
            f"made-up records at {self.at}: {each}.{self._better}"
        )

    @property
    def uncalibrated(self) -> str:
        """What is wrong with the widths of intervals, in a sentence; empty where nothing is."""
        if not self.ratios:
            return "How wide its intervals are beside calibrated ones cannot be computed."
        if NARROW <= min(self.ratios.values()) and max(self.ratios.values()) <= WIDE:
            return ""
        return "Intervals are not calibrated to within " + f"{1 - NARROW:.0%} below and {WIDE - 1:.0%} above."

    @property
    def _between(self) -> str:
        if not self.ratios:
            return ""
        low, high = (end(self.ratios, key=self.ratios.__getitem__) for end in (min, max))
        return (
            f"By made-up records at {self.at} its intervals are {self.ratios[low]:.2f} ({low}) to "
            f"{self.ratios[high]:.2f} ({high}) times as wide as calibrated ones."
        )

    @property
    def _better(self) -> str:
        if 1 / UNSUITED <= self.here / self.weight <= UNSUITED:
            return ""
        return f" sf.robust(..., weight={self.here:g}) would suit these parameters better."

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return self._asdict() | {"betas": dict(self.betas)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Target":
        """Inverse of `to_dict`."""
        return cls(**{name: plain[name] for name in cls._fields} | {"betas": tuple(plain["betas"].items())})
