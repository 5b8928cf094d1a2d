"""A finite domain has so many possible records; a table over it is how many people there are of each.

Four yes-or-no questions make sixteen possible records, whoever answers them. A step of the chain then evaluates sixteen rows
instead of two hundred thousand, and multiplies integers by counts: the sum is the same, bit for bit. All possible
records are kept, also those nobody has, so what a step costs depends on the domain alone and says nothing about the
records.
"""

from collections.abc import Mapping
from math import prod

import numpy as np

from sfumato.domain import Domain
from sfumato.vault.records import Records

WORTHWHILE = 2
"""Counting pays as soon as there are so many times fewer possible records than records."""


def possible_records(domain: Mapping[str, Domain]) -> int | None:
    """How many different records there can be; None if they are not the whole numbers of a box. Public.

    A domain that has not all of its box (`Domain.separable`) is not listed: its records are evaluated as they are.
    """
    if not all(column.discrete and column.separable for column in domain.values()):
        return None
    return prod(int(size) for column in domain.values() for size in np.ravel(column.hi - column.lo + 1))


def count_records(records: Records, domain: Mapping[str, Domain]) -> Records:
    """Replace records by the possible ones of their domain with counts, where that is shorter; the choice is public."""
    count = possible_records(domain)
    if records.counts is not None or count is None or count * WORTHWHILE > records.n:
        return records
    lows = [int(x) for name in domain for x in np.ravel(domain[name].lo)]
    sizes = [int(x) + 1 for name in domain for x in np.ravel(domain[name].hi - domain[name].lo)]
    flat = [records.columns[name].reshape(records.n, -1)[:, i] for name in domain for i in range(domain[name].size)]
    code = np.zeros(records.n, np.int64)
    for value, low, size in zip(flat, lows, sizes, strict=True):
        code = code * size + (value.astype(np.int64) - low)
    counts = np.bincount(code, minlength=count).astype(np.int64)
    grid = np.stack(np.unravel_index(np.arange(count), sizes), axis=1) + np.asarray(lows)
    columns, at = {}, 0
    for name, column in domain.items():
        part = grid[:, at : at + column.size].reshape(count, *column.shape)
        columns[name] = part.astype(records.columns[name].dtype)
        at += column.size
    return Records(columns, records.n, counts)
