"""Exact integer sums over records, for a counter that answers one round at a time. Nothing here leaves `vault/`.

Each sum is additive over any split of the records: that is what lets shards, on one machine or many, stand in for one table.
Up to a size a round costs one pass over the records: the terms at both parameters of the last round are kept, each with the
parameter it belongs to, and a chain goes on from one of the two. Beyond it both are evaluated, which is then faster.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sfumato.bounds.body import Body
from sfumato.bounds.reference import Reference
from sfumato.errors import InvalidInput
from sfumato.study.target import Study
from sfumato.vault import lattice, moments, reference, scan
from sfumato.vault.blocks import Rows
from sfumato.vault.closed import closed
from sfumato.vault.counting import count_records
from sfumato.vault.langevin import LangevinQuestion, exact_sum
from sfumato.vault.memory import release_memory
from sfumato.vault.packing import pack, pack_lists, packed, unpack, unpacked, x64
from sfumato.vault.records import Records, check_precision

Array: TypeAlias = Any

KEEP_TERMS = 1 << 19
"""Up to this many (chain, row) pairs, terms are kept between rounds. Measured on one thread, against evaluating both parameters
block by block: 0.83 of the time at 4 x 100,000, but 2.0 times at 4 x 1,000,000, where writing the terms out costs more than
computing them again."""

FEW_TERMS = 1 << 12
"""Up to this many (chain, row) pairs a log ratio is priced and summed in one call, which evaluates both parameters."""


class Spot(NamedTuple):
    """Where a log ratio is asked: parameters, one row per chain, and the integer range each term is clamped into."""

    theta: np.ndarray
    theta_prop: np.ndarray
    lo: np.ndarray
    hi: np.ndarray
    gamma: float


class Asked(NamedTuple):
    """Where log ratios are asked (row after row), of which chains, their noise, and the quanta reserved for them already."""

    theta: list[float]
    theta_prop: list[float]
    asked: list[bool]
    gamma: float
    sigma: float
    covered: int


@closed("exact sums")
class Priced(NamedTuple):
    """What log ratios cost, each chain's width, range and admissibility; the integer ratios, if they were covered. Private."""

    charge: int
    widths: list[float]
    lo: list[int]
    hi: list[int]
    admissible: list[bool]
    totals: list[int] | None = None


Price: TypeAlias = Callable[..., tuple[Array, Array, lattice.Clamp]]
"""Function (theta, theta_prop, asked, gamma, n, sigma) -> charge, widths, clamps. Public: it knows of no record."""


class Place(NamedTuple):
    """The body at a reference point, the whitening matrix, and the integer range of each coordinate of one record's vector."""

    body: Body
    matrix: np.ndarray
    low: np.ndarray
    high: np.ndarray
    gamma: float


class Bend(NamedTuple):
    """Where second-order scalars are asked: as a `Spot`, with the direction v of every chain and the body there."""

    theta: np.ndarray
    theta_prop: np.ndarray
    slope: np.ndarray
    body: Body
    lo: np.ndarray
    hi: np.ndarray
    gamma: float


class _Sums(NamedTuple):
    """See `sfumato.vault.reference.Sums`."""

    model: Any
    domain: Any
    precision: str
    reference: Reference
    gamma: float
    gamma_scalar: float


class Engine(Protocol):
    """Sums over all records of one owner, wherever they lie."""

    @property
    def n(self) -> int:
        """Number of records: public."""
        ...

    @property
    def rows(self) -> int:
        """Rows evaluated a round: n, or the kinds of record of a small finite domain. Public either way."""
        ...

    @property
    def here(self) -> bool:
        """Whether sums are computed in this process: one need not wait for anybody."""
        ...

    def ratio(self, spot: Spot) -> np.ndarray:
        """Integer log-likelihood ratio of every chain."""
        ...

    def priced_ratio(self, price: "Price", asked: "Asked") -> "Priced | None":
        """Price of log ratios and, if it is covered, the ratios themselves, in one compiled call: for few rows.

        None where one must come after the other. No record is looked at for a price that nothing was reserved for.
        """
        ...

    def vector(
        self, what: str, theta: np.ndarray, matrix: np.ndarray, centre: np.ndarray, radius: float, gamma: float
    ) -> np.ndarray:
        """Integer sum of a pilot's vectors, each less the centre and cut to the radius."""
        ...

    def statistic(self, question: LangevinQuestion) -> np.ndarray:
        """Integer sum of whitened statistics, less the middle of their range."""
        ...

    def gradient(self, place: Place) -> np.ndarray:
        """Integer sum of whitened vectors at a reference point: gradients, cut to the body there."""
        ...

    def remainder(self, bend: Bend) -> np.ndarray:
        """Integer sum of every chain's second-order scalars."""
        ...

    def forget(self) -> None:
        """Drop what is kept between rounds."""
        ...

    def close(self) -> None:
        """Let go of the records."""
        ...


@closed("terms of records")
class _Kept(NamedTuple):
    """Terms of every record at the last round's two parameters: private."""

    theta: np.ndarray
    theta_prop: np.ndarray
    here: Array
    there: Array


@closed("records")
class LocalEngine:
    """The records of this process.

    Parameters
    ----------
    records
        The validated table.
    study
        Public: the model and the domain.
    precision
        How records are evaluated.
    compiled
        Where compiled sums are kept: engines of one study with as many rows may share it.
    whole
        Rows of the table that these are a part of; what is kept in memory is bounded for all of it.
    """

    def __init__(
        self,
        records: Records,
        study: Study,
        *,
        precision: str = "float64",
        compiled: dict[Any, Callable[..., Any]] | None = None,
        whole: int | None = None,
    ) -> None:
        check_precision(precision)
        self._count, self._study, self._precision = records.n, study, precision
        self._near = study.reference_bounds or Reference(
            study.model, study.domain
        )  # nothing is built before it is asked for
        with jax.enable_x64(True):
            self._records: Rows | None = count_records(records, study.domain).on_device()
        self._rows = self._records.number
        self._whole = self._rows if whole is None else whole
        release_memory()
        self._compiled: dict[Any, Callable[..., Any]] = {} if compiled is None else compiled
        self._kept: _Kept | None = None
        self._vectors: tuple[np.ndarray, Array] | None = None

    @property
    def n(self) -> int:
        """Number of records."""
        return self._count

    @property
    def rows(self) -> int:
        """Rows evaluated a round."""
        return self._rows

    @property
    def here(self) -> bool:
        """Sums are computed in this process."""
        return True

    # -- log ratios -----------------------------------------------------------------------------------------------

    def ratio(self, spot: Spot) -> np.ndarray:
        """Integer log-likelihood ratio of every chain."""
        with x64():
            chains = len(spot.theta)
            kept = self.rows * chains <= KEEP_TERMS and self._whole * chains <= scan.CACHE_TERMS
            return np.asarray(self._ratio_cached(spot) if kept else self._ratio_blocks(spot))

    def priced_ratio(self, price: Price, asked: Asked) -> Priced | None:
        """One call for both where there are few rows: dispatch is then most of what a round costs.

        Nothing is kept between rounds, so that no array goes in or comes out but one.
        """
        chains = len(asked.asked)
        if self.rows * chains > FEW_TERMS:
            return None
        with x64():
            run = self._build(
                ("priced", asked.gamma, asked.sigma, chains),
                lambda: _compile_priced(self._question(asked.gamma, chains), price, asked.sigma),
            )
            row = run(self._held(), pack_lists([asked.covered, *asked.asked], asked.theta + asked.theta_prop))
            parts = (int, 1), (bool, 1), (float, chains), (int, chains), (int, chains), (bool, chains), (int, chains)
            (charge,), (covered,), widths, lo, hi, admissible, totals = unpacked(row, *parts)
            return Priced(charge, widths, lo, hi, admissible, totals if covered else None)

    def _question(self, gamma: float, chains: int) -> scan.Question:
        study, nothing = self._study, cast(Any, None)  # proposals, widths and noise are the desk's
        return scan.Question(
            study.model, study.domain, nothing, nothing, gamma, self.n, self.rows, chains, self._precision
        )

    def _ratio_cached(self, spot: Spot) -> Array:
        chains = len(spot.theta)
        run = self._build(("ratio", spot.gamma, chains), lambda: _compile_ratio(self._question(spot.gamma, chains)))
        total, here, there = run(self._held(), *self._terms_at(spot.theta), spot.theta_prop, spot.lo, spot.hi)
        self._kept = _Kept(spot.theta, spot.theta_prop, here, there)
        return total

    def _terms_at(self, theta: np.ndarray) -> tuple[Array, Array, np.ndarray]:
        """Terms at the last round's two parameters and which of the two every chain went on from; scored anew if neither."""
        kept, chosen = self._kept, _chosen(self._kept, theta)
        if kept is not None and chosen is not None:
            return kept.here, kept.there, chosen
        question = self._question(1.0, len(theta))  # terms know of no lattice
        score = self._build(("terms", len(theta)), lambda: jax.jit(lambda r, t: scan.terms(question, r, t)))
        scored = score(self._held(), jax.device_put(theta))
        return scored, scored, np.zeros(len(theta), bool)

    def _ratio_blocks(self, spot: Spot) -> Array:
        chains = len(spot.theta)
        run = self._build(("blocks", spot.gamma, chains), lambda: _compile_blocks(self._question(spot.gamma, chains)))
        return run(self._held(), spot.theta, spot.theta_prop, spot.lo, spot.hi)

    # -- vectors --------------------------------------------------------------------------------------------------

    def vector(
        self, what: str, theta: np.ndarray, matrix: np.ndarray, centre: np.ndarray, radius: float, gamma: float
    ) -> np.ndarray:
        """Integer sum of a pilot's vectors, each less the centre and cut to the radius."""
        with jax.enable_x64(True):
            study = self._study
            run = self._build(what, lambda: moments.compile_sum(what, study.model, study.domain, self._precision))
            return np.asarray(
                run(self._held(), *(jnp.asarray(x, jnp.float64) for x in (theta, matrix, centre, radius, gamma)))
            )

    def statistic(self, question: LangevinQuestion) -> np.ndarray:
        """Integer sum of whitened statistics, less the middle of their range."""
        with jax.enable_x64(True):
            return np.asarray(exact_sum(question, self._study.domain, self._held(), self._precision))

    # -- around a reference point -----------------------------------------------------------------------------------

    def gradient(self, place: Place) -> np.ndarray:
        """Integer sum of whitened vectors at a reference point."""
        with jax.enable_x64(True):
            sums = self._sums(place.gamma)
            run = self._build(
                ("gradient", place.gamma), lambda: jax.jit(lambda rows, *at: reference.exact_total(sums, rows, *at))
            )
            return np.asarray(run(self._held(), *(jax.device_put(part) for part in place[:4])))

    def remainder(self, bend: Bend) -> np.ndarray:
        """Integer sum of every chain's second-order scalars: one pass, the terms of the last round and the vectors kept."""
        with x64():
            sums, (chains, dim) = self._sums(bend.gamma), bend.theta.shape
            cached = self._whole * chains <= scan.CACHE_TERMS and self._whole * dim <= reference.CACHE_GRADIENTS
            run = self._build(("remainder", bend.gamma, chains), lambda: _compile_remainder(sums, chains))
            vectors, here, there = self._vectors_at(sums, bend.body) if cached else bend.body, None, None
            chosen = _chosen(self._kept, bend.theta) if cached else None
            if cached and (self._kept is None or chosen is None):
                score = self._build(
                    ("terms", chains),
                    lambda: jax.jit(jax.vmap(lambda r, theta: reference.terms(sums, r, theta), (None, 0))),
                )
                here = there = score(self._held(), jax.device_put(bend.theta))
                chosen = np.zeros(chains, bool)
            elif cached and self._kept is not None:
                here, there = self._kept.here, self._kept.there
            else:
                here = there = jnp.zeros((chains, 0))
                chosen = np.zeros(chains, bool)
            numbers = pack(np.asarray(chosen), bend.theta, bend.theta_prop, bend.slope, bend.lo, bend.hi)
            total, here, there = run(self._held(), vectors, here, there, numbers)
            self._kept = _Kept(bend.theta, bend.theta_prop, here, there) if cached else None
            return np.asarray(total)

    def _sums(self, gamma: float) -> _Sums:
        return _Sums(self._study.model, self._study.domain, self._precision, self._near, gamma, gamma)

    def _vectors_at(self, sums: _Sums, body: Body) -> Array:
        centre = np.asarray(body.theta)
        if self._vectors is None or not np.array_equal(self._vectors[0], centre):
            run = self._build("vectors", lambda: jax.jit(lambda rows, at: reference.all_vectors(sums, rows, at)))
            self._vectors = centre, run(self._held(), jax.device_put(body))
        return self._vectors[1]

    # -- housekeeping ---------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Drop kept terms and compiled sums."""
        self._kept = self._vectors = None
        self._compiled.clear()
        release_memory()

    def close(self) -> None:
        """Let go of the records."""
        self.forget()
        self._records = None

    def _held(self) -> Rows:
        if self._records is None:
            raise InvalidInput("this engine was closed; open the owner's records again.")
        return self._records

    def _build(self, key: Any, make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
        if key not in self._compiled:
            self._compiled[key] = make()
        return self._compiled[key]


def _chosen(kept: _Kept | None, theta: np.ndarray) -> np.ndarray | None:
    """Which chains went on from the last proposal (True) or stayed (False); None if one did neither."""
    if kept is None or kept.theta.shape != theta.shape:
        return None
    if len(theta) == 1:  # the same answer for one chain, at a fraction of the cost
        now = theta.tobytes()
        if now == kept.theta.tobytes():
            return np.zeros(1, bool)
        return np.ones(1, bool) if now == kept.theta_prop.tobytes() else None
    stayed, went = (kept.theta == theta).all(axis=1), (kept.theta_prop == theta).all(axis=1)
    return ~stayed if bool(np.all(stayed | went)) else None


def _clamp(lo: Array, hi: Array) -> lattice.Clamp:
    return lattice.Clamp(lo, hi, jnp.ones(lo.shape, bool))


def _compile_ratio(question: scan.Question) -> Callable[..., Any]:
    def run(records: Rows, here: Array, there: Array, chosen: Array, theta_prop: Array, lo: Array, hi: Array) -> Any:
        kept = jnp.where(chosen[:, None], there, here)
        total, proposed = scan._sum_cached(question, records, kept, theta_prop, _clamp(lo, hi))
        return total, kept, proposed

    return jax.jit(run)


def _compile_priced(question: scan.Question, price: Price, sigma: float) -> Callable[..., Any]:
    chains, dim = question.chains, question.model.dim
    rows = float, (chains, dim)

    def run(records: Rows, numbers: Array) -> Array:
        left, asked, theta, theta_prop = unpack(numbers, (int, ()), (bool, (chains,)), rows, rows)
        charge, widths, clamp = price(theta, theta_prop, asked, question.gamma, question.n, sigma)
        covered = charge <= left

        def answer() -> Array:
            kept = scan.terms(question, records, theta)
            return scan._sum_cached(question, records, kept, theta_prop, clamp)[0]

        total = lax.cond(covered, answer, lambda: jnp.zeros(chains, jnp.int64))
        return packed(charge, covered, widths, *clamp, total)

    return jax.jit(run)


def _compile_blocks(question: scan.Question) -> Callable[..., Any]:
    def run(records: Rows, theta: Array, theta_prop: Array, lo: Array, hi: Array) -> Any:
        return scan._sum_blocks(question, records, theta, theta_prop, _clamp(lo, hi))

    return jax.jit(run)


def _compile_remainder(sums: _Sums, chains: int) -> Callable[..., Any]:
    dim = sums.model.dim
    each, whole = (float, (chains, dim)), (int, (chains,))
    asked = ((bool, (chains,)), each, each, each, whole, whole)

    def run(rows: Rows, vectors: Array | Body, here: Array, there: Array, numbers: Array) -> Any:
        chosen, theta, theta_prop, slope, lo, hi = unpack(numbers, *asked)
        kept = jnp.where(chosen[:, None], there, here)

        def one(a: Array, kept: Array, b: Array, v: Array, low: Array, high: Array) -> Any:
            return reference.scalar_sum(sums, rows, (a, kept), b, v, _clamp(low, high), vectors)

        total, proposed = jax.vmap(one)(theta, kept, theta_prop, slope, lo, hi)
        return total, kept, proposed

    return jax.jit(run)
