"""`[example]` of a study file: public records that look like the private ones, for planning.

Written into the file, column by column, or a CSV file beside it. They are read here, by Python's own reader, and by nothing that
sees private records; a file that the study names as private is refused.
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sfumato.errors import InvalidInput

FILE = "data"
"""The key whose text is the path of a CSV file; every other key is a column."""


def check_example(raw: Mapping[str, Any]) -> None:
    """Check an `[example]`: a path, or columns that are lists."""
    if isinstance(raw.get(FILE), str):
        if len(raw) > 1:
            raise InvalidInput(
                f"[example] must have {FILE} = a path, or columns, not both; got {sorted(set(raw) - {FILE})} besides."
            )
        return
    for name, values in raw.items():
        if not isinstance(values, list) or not values:
            raise InvalidInput(
                f"[example] must have columns of public records, such as {name} = [0.1, 0.7], or {FILE} = the path of a CSV "
                f"file; got {name} = {values!r:.80}."
            )


def read_example(
    spec: Mapping[str, Any],
    base: Path,
    private: Sequence[Path],
    domain: Mapping[str, Any] | None,
    columns: Mapping[str, Any],
) -> dict[str, Any] | None:
    """Public records by column, for `example=`; None where the study has none.

    Parameters
    ----------
    base
        Folder that paths start from.
    private
        Tables of the study's own: none of them may be the example.
    domain
        Domains by column; None: an owner's node has them, and all columns of the file are taken.
    columns
        Which raw columns make up each name.
    """
    if not spec:
        return None
    if not isinstance(spec.get(FILE), str):
        return dict(spec)
    path = base / spec[FILE]
    if any(path.resolve() == table.resolve() for table in private):
        raise InvalidInput(
            f"an example is public, and {spec[FILE]!r} is a table of private records; give a file that may be published, or "
            "leave [example] out."
        )
    table = _read(path)
    if domain is None:
        return {name: _numbers(values) or values for name, values in table.items()}
    return {name: _column(name, d, columns.get(name, name), table) for name, d in domain.items()}


def _read(path: Path) -> dict[str, list[str]]:
    if path.suffix.lower() != ".csv":
        raise InvalidInput(f"the file of an [example] must be a CSV file with a header line, got {path.name!r}.")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(
            f"the example {path} cannot be read ({type(error).__name__}); give the path of a CSV file."
        ) from None
    if len(rows) < 2 or any(len(row) != len(rows[0]) for row in rows):
        raise InvalidInput(
            f"the example {path.name} must have a header line and at least one record, each with as many values; correct it."
        )
    return {name: [row[i] for row in rows[1:]] for i, name in enumerate(rows[0])}


def _column(name: str, domain: Any, raw: Any, table: Mapping[str, list[str]]) -> Any:
    if raw == name and name not in table and domain.shape:
        raw = [f"{name}_{i}" for i in range(domain.size)]
    parts = [raw] if isinstance(raw, str) else list(raw)
    if missing := [part for part in parts if part not in table]:
        raise InvalidInput(
            f"the example has no column {missing}, which {name!r} is made of; it has {sorted(table)[:20]}."
        )
    labels = getattr(domain, "labels", None)
    if labels is not None:
        by_text = {str(label): label for label in labels}
        return [by_text.get(text, text) for text in table[parts[0]]]
    numbers = [_numbers(table[part]) for part in parts]
    for part, found in zip(parts, numbers, strict=True):
        if found is None:
            raise InvalidInput(
                f"column {part!r} of the example must hold numbers; correct it, or leave such records out."
            )
    return numbers[0] if isinstance(raw, str) else [list(row) for row in zip(*numbers, strict=True)]


def _numbers(texts: Sequence[str]) -> list[float] | None:
    try:
        return [float(text) for text in texts]
    except ValueError:
        return None
