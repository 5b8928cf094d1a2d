r"""Sums of vectors over records: the gradient and the information at a point, on the lattice.

Used by the pilot, whose releases need to be private but not exact: each record's vector is cut to a ball of stated centre
and radius, rounded to the lattice coordinate by coordinate, and summed in 64-bit integers. What is summed is the vector
less the centre: both are public, so whoever asked adds n times the centre again.
"""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.domain import Domain
from sfumato.errors import InvalidInput
from sfumato.model import Model
from sfumato.model.derivatives import size, vector_function
from sfumato.privacy.budget import RELATIVE_LOG2
from sfumato.vault import lattice
from sfumato.vault.blocks import LEAN, Rows, add_up, sum_over_blocks
from sfumato.vault.lattice import TERM_LIMIT
from sfumato.vault.scan import cast_column

Array: TypeAlias = Any

ROUNDING = 1.0 + 2.0**-20
"""Shortening in floating point (float32 at worst) can leave a vector longer than the radius by this factor at most."""
BLOCK = 1 << 13
"""Records at a time: the information of 8192 of them, with ten parameters, takes 14 MB in between, that of 32768 takes 55."""
SMALLEST = 2.0**-100
"""Of a radius or a sigma: far from where a float64, or its square, underflows."""


def compile_sum(
    what: str, model: Model, domain: Mapping[str, Domain], precision: str
) -> Callable[[Rows, Array, Array, Array, Array, Array], Array]:
    """Build the function (records, theta, matrix, centre, radius, gamma) -> integer sum of cut, rounded vectors.

    It is compiled once for a model on a domain: a second pilot, with other parameters and matrices, compiles nothing.
    """
    return _compiled(what, model, tuple(sorted(domain.items())), precision)


@lru_cache(maxsize=32)
def _compiled(
    what: str, model: Model, columns: tuple[tuple[str, Domain], ...], precision: str
) -> Callable[[Rows, Array, Array, Array, Array, Array], Array]:
    domain = dict(columns)

    def block_sum(block: Rows, theta: Array, matrix: Array, centre: Array, radius: Array, gamma: Array) -> Array:
        vector = vector_function(what, model, theta.astype(precision), matrix.astype(precision))

        def one(record: Mapping[str, Array]) -> Array:
            value = vector(record).astype(jnp.float64) - centre
            value = jnp.where(jnp.all(jnp.isfinite(value)), value, 0.0)
            short = jnp.round(jnp.clip(shortened(value, radius) / gamma, -TERM_LIMIT, TERM_LIMIT)).astype(jnp.int64)
            most = jnp.ceil(radius * ROUNDING / gamma).astype(jnp.int64)
            return jnp.clip(short, -most, most)  # whatever floating point did: no coordinate passes the radius

        cast = {name: cast_column(domain[name], column, precision) for name, column in block.columns.items()}
        return add_up(jax.vmap(one)(cast), block, axis=0)

    def run(records: Rows, *point: Array) -> Array:
        zero = jnp.zeros(size(what, model.dim), jnp.int64)
        return sum_over_blocks(records, BLOCK, lambda block: block_sum(block, *point), zero)

    return jax.jit(run, compiler_options=LEAN)


def shortened(value: Array, radius: Array) -> Array:
    """Shorten a vector to `radius`, in units of its largest entry: the square of a tiny length would underflow."""
    largest = jnp.max(jnp.abs(value))
    unit = value / jnp.where(largest > 0, largest, 1.0)
    return unit * jnp.minimum(largest, radius / jnp.maximum(jnp.linalg.norm(unit), 1.0))


def check_asked(radius: float, sigma: float) -> None:
    """Refuse lengths and noise that are no positive numbers, or so far from one that arithmetic would fail them."""
    for name, number in (("radius", radius), ("sigma", sigma)):
        if not (math.isfinite(number) and SMALLEST <= number <= 1 / SMALLEST):
            raise InvalidInput(f"{name} must lie between {SMALLEST:.2g} and {1 / SMALLEST:.2g}, got {number}.")


def check_centre(centre: np.ndarray | None, size: int) -> np.ndarray:
    """The centre of the ball that vectors are cut to, as an array; the origin where none is given."""
    if centre is None or len(centre) == 0:
        return np.zeros(size)
    given = np.asarray(centre, np.float64)
    if given.shape != (size,) or not np.all(np.abs(given) <= 1 / SMALLEST):
        raise InvalidInput(f"the centre of a release must be {size} finite numbers, got shape {given.shape}.")
    return given


def gamma_for(n: int, radius: float, sigma: float) -> float:
    r"""Lattice of a release: as fine as a chain's, or :math:`2^{-36}\sigma` where sums of vectors so long would leave 64 bits.

    The noise is discrete as finely either way; what is given up is rounding that nobody could see beside it.

    Raises
    ------
    InvalidInput
        The sum would leave 64 bits all the same.
    """
    coarse = float(2.0 ** math.floor(math.log2(sigma) + RELATIVE_LOG2))
    for gamma in (lattice.choose_gamma(sigma, n), coarse):
        if n * radius / gamma <= lattice.SUM_LIMIT:
            return gamma
    raise InvalidInput(
        f"sums of vectors up to radius = {radius:.3g} must fit 64 bits beside noise of sigma = {sigma:.3g}, and those of {n:,} "
        "records do not; use a larger sigma."
    )
