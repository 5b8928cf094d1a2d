r"""A noisy linear measurement of the sum of statistics, and what it says of a part of that sum."""

from typing import NamedTuple

import numpy as np


class Measurement(NamedTuple):
    r"""Everything released, as one measurement :math:`z = U^\top S_n + N(0, V)`.

    Attributes
    ----------
    basis
        U, shape (d, r): the directions that were measured at all.
    value
        z, shape (r,).
    variance
        Diagonal of V, shape (r,).
    n
        Number of records.
    """

    basis: np.ndarray
    value: np.ndarray
    variance: np.ndarray
    n: int

    @classmethod
    def nothing(cls, size: int, n: int) -> "Measurement":
        """No direction measured."""
        return cls(np.zeros((size, 0)), np.zeros(0), np.zeros(0), n)


def split(measurement: Measurement, own: int) -> tuple[Measurement, Measurement]:
    r"""Two measurements with independent noise of variance one: of the first `own` coordinates alone, and the rest.

    Rows of the whitened U that belong to the other coordinates span a space. What is measured at right angles to it speaks of
    the first coordinates alone.
    """
    whitened = measurement.basis / np.sqrt(measurement.variance)
    value = measurement.value / np.sqrt(measurement.variance)
    unit = np.maximum(np.abs(whitened[own:]).max(axis=1, initial=0.0), 1e-300)[:, None]
    _, singular, rows = np.linalg.svd(whitened[own:] / unit, full_matrices=True)
    rank = int(np.sum(singular > 1e-12 * max(singular.max(initial=0.0), 1e-300)))

    def along(turn: np.ndarray) -> Measurement:
        return Measurement(whitened @ turn.T, turn @ value, np.ones(len(turn)), measurement.n)

    return along(rows[rank:]), along(rows[:rank])
