r"""The private side of Algorithm 3: noisy copies of the sum of sufficient statistics.

Each record is projected onto its declared domain once more, in float64 (a table may hold what rounding left a hair
outside a ball), its statistic :math:`S(y)` taken relative to a public centre, rounded to the lattice, clamped coordinate
by coordinate to the integer box around :math:`S(\mathcal Y)`, and summed in 64-bit integers. A copy is that sum plus a
discrete Gaussian of standard deviation :math:`\sqrt\xi` in every coordinate.

Privacy: replacing one record moves the sum by at most :math:`\Delta = \nabla_2 S + \gamma\sqrt d` (and a stated allowance for
evaluating S in floating point), so k copies cost exactly :math:`k\Delta^2/\xi`, which is reserved in the ledger, durably
and as a whole, before the first copy is drawn. A release that breaks off forfeits all of it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil, isfinite, log2, sqrt

import jax
import numpy as np

from sfumato.errors import InvalidInput
from sfumato.families.base import Family
from sfumato.privacy.budget import QUANTA_PER_UNIT, cap_quanta, cost_quanta
from sfumato.vault import lattice
from sfumato.vault.blocks import Evaluation
from sfumato.vault.closed import closed
from sfumato.vault.lattice import Box
from sfumato.vault.ledger import Account, Block
from sfumato.vault.memory import release_memory
from sfumato.vault.noise import NoisePool, Source, source_for
from sfumato.vault.queries.vector import StatisticSum
from sfumato.vault.records import Records

NUMBERS = 1 << 16
"""Noisy numbers made at a time, so that memory does not grow with the number of copies."""
EVALUATION = 2.0**-47
"""Evaluating S in float64 errs by less than this share of the largest |S|: the charge includes it."""
MAX_LATTICE_N = 1 << 24
"""Beyond so many records the lattice is no longer refined with n: sums must fit 64 bits."""


@dataclass(frozen=True)
class Terms:
    """What a release is: all public, settled before a record is touched.

    Attributes
    ----------
    copies, size
        k, and the length d of the statistic.
    sd
        Noise per coordinate, the root of xi.
    gamma
        Lattice.
    sensitivity
        Delta: how far one record moves the sum on the lattice.
    charge
        Quanta of mu squared, for all copies together.
    """

    copies: int
    size: int
    n: int
    sd: float
    gamma: float
    sensitivity: float
    charge: int

    @property
    def xi(self) -> float:
        """Noise variance per coordinate."""
        return self.sd**2


@dataclass(frozen=True)
class Shape:
    """The box around S of the record domain, its centre, and the proven diameter."""

    lo: np.ndarray
    hi: np.ndarray
    diameter: float

    @property
    def centre(self) -> np.ndarray:
        """Middle of the box: what sums are taken relative to, so that they stay small."""
        return (self.lo + self.hi) / 2

    @property
    def slack(self) -> float:
        """Allowance for evaluating S in floating point, twice: the old record and the new one."""
        return float(2 * EVALUATION * np.linalg.norm(np.maximum(np.abs(self.lo), np.abs(self.hi))))


def shape_of(family: Family) -> Shape:
    """Box and diameter of S over the record domain; the diameter is the family's, or the box's where that is smaller."""
    lo, hi = family.known_ranges(np.eye(family.size))
    diameter = min(family.diameter(), float(np.linalg.norm(hi - lo)))
    if not (np.all(np.isfinite(lo)) and np.all(np.isfinite(hi)) and isfinite(diameter) and diameter > 0):
        raise InvalidInput(f"{family!r} must have a statistic of finite, positive diameter; check its domain.")
    return Shape(lo, hi, diameter)


def terms_for(family: Family, n: int, copies: int, mu: float, xi: float | None = None) -> Terms:
    r"""Settle noise, lattice and cost.

    Parameters
    ----------
    family, n, copies
        Public facts of the release.
    mu
        Gaussian-DP parameter of the cap.
    xi
        Noise variance per coordinate; by default what the cap affords, :math:`\xi = k\Delta^2/\mu^2`.

    Raises
    ------
    InvalidInput
        If the xi that was asked for costs more than the cap.
    """
    shape, cap = shape_of(family), cap_quanta(mu)
    sd = sqrt(xi) if xi is not None else shape.diameter * sqrt(copies) / mu
    terms = _terms(shape, family.size, n, copies, sd)
    if xi is None:  # the lattice adds a little to Delta: a little more noise pays for it
        for _ in range(8):
            if terms.charge <= cap:
                break
            # Two quanta less: the cap was rounded down, the cost is rounded up.
            sd = terms.sensitivity * sqrt(copies * QUANTA_PER_UNIT / max(cap - 2, 1)) * (1 + 2.0**-44)
            terms = _terms(shape, family.size, n, copies, sd)
    if terms.charge > cap:
        needed = terms.sensitivity**2 * copies / mu**2
        raise InvalidInput(
            f"{copies:,} copies with xi = {terms.xi:.6g} cost mu squared {copies * terms.sensitivity**2 / terms.xi:.6g}, and "
            f"epsilon, delta afford {mu**2:.6g}; use xi of at least {needed:.6g}, fewer copies, or a larger epsilon."
        )
    return terms


def _terms(shape: Shape, size: int, n: int, copies: int, sd: float) -> Terms:
    unit = 2.0 ** ceil(log2(shape.diameter))  # the lattice follows the units of S
    gamma = lattice.choose_gamma(sd / unit, min(n, MAX_LATTICE_N)) * unit
    moved = shape.diameter + shape.slack + gamma * sqrt(size)
    _check_fits(shape, n, gamma, sd)
    return Terms(copies, size, n, sd, gamma, moved, cost_quanta(copies * (moved / sd) ** 2))


def _check_fits(shape: Shape, n: int, gamma: float, sd: float) -> None:
    term = float(np.max(shape.hi - shape.lo)) / gamma
    if term > lattice.TERM_LIMIT or n * term > lattice.SUM_LIMIT or sd / gamma > 2.0**50:
        raise InvalidInput(
            f"sums must fit 64 bits, and n = {n:,} records with noise of {sd:.3g} per coordinate do not; release more copies "
            "at the same budget, or a smaller epsilon."
        )


@closed("records")
class StatisticsVault:
    """Records and their noisy sums of statistics.

    Parameters
    ----------
    records, family
        The table, and what S is.
    source
        scale -> noise source. For tests alone; the public functions do not expose it.
    """

    def __init__(self, records: Records, family: Family, *, source: Callable[[float], Source] | None = None) -> None:
        self.n = records.n
        self._records, self._family, self._source = records, family, source

    def release(self, terms: Terms, account: Account) -> Iterator[np.ndarray]:
        """Reserve the whole charge, then hand out noisy copies, blocks of shape (m, d), until there are `terms.copies`."""
        block = account.reserve(terms.charge)
        return self._blocks(terms, block)

    def _blocks(self, terms: Terms, block: Block) -> Iterator[np.ndarray]:
        shape = shape_of(self._family)
        offset = self.n * (np.round(shape.centre / terms.gamma) * terms.gamma)  # public
        total = _integer_sum(self._records, self._family, shape, terms.gamma)
        release_memory()
        scale = terms.sd / terms.gamma
        draws = terms.copies * terms.size
        source = self._source(scale) if self._source else source_for(scale, self.n, draws)
        rows = max(1, NUMBERS // terms.size)
        with NoisePool(source, block=min(draws, NUMBERS), depth=2) as pool:
            for done in range(0, terms.copies, rows):
                count = min(rows, terms.copies - done)
                noisy = total + pool.take(count * terms.size).reshape(count, terms.size)
                yield noisy.astype(np.float64) * terms.gamma + offset
        block.settle(terms.charge)


def _integer_sum(records: Records, family: Family, shape: Shape, gamma: float) -> np.ndarray:
    """Sum of the rounded, clamped statistics, in lattice units relative to the centre. Private: it stays in here."""
    centre = np.round(shape.centre / gamma) * gamma
    lo, hi = (np.round((end - centre) / gamma).astype(np.int64) for end in (shape.lo, shape.hi))
    query = StatisticSum(family, np.eye(family.size), Box(lo, hi, np.zeros_like(lo)), gamma, centre)
    how = Evaluation(family.to_model(), family.domain, "float64")
    with jax.enable_x64(True):
        return np.asarray(query.program(how)(records.on_device(), *query[1:]))
