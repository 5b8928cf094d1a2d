"""Records: the only object in sfumato that holds rows.

Reading, checking against the domain, and typing happen here; nothing else in the package opens a data file. Messages
name columns and rules, never values, row numbers or counts: an error is a release too.
"""

import hmac
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sfumato.domain import UNDECLARED, Domain
from sfumato.errors import InvalidData, InvalidInput
from sfumato.vault.blocks import Rows
from sfumato.vault.closed import closed
from sfumato.vault.memory import LARGE

PRECISIONS = ("float64", "float32")
_PARQUET = (".parquet", ".pq")
_SLICE = 1 << 18  # records checked at a time, so that checking never doubles the memory
_BATCH = 1 << 13  # records read from a file at a time: more are no faster, and take more memory
_BUFFER = 1 << 16  # bytes of each column of a file that are held while it is read


@closed("records")
@dataclass(frozen=True, repr=False)
class Records:
    """A validated table: one typed array per column, rows along the first axis.

    A row is one of the n records, or, with `counts`, stands for so many equal ones.
    """

    columns: Mapping[str, np.ndarray]
    n: int
    counts: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.counts is not None and int(self.counts.sum()) != self.n:
            raise ValueError("the counts of a table must add up to its number of records.")

    def mac(self, key: bytes) -> str:
        """Keyed digest of the table: tells whether a resumed run got the same records. Stays on the private side."""
        digest = hmac.new(key, digestmod="sha256")
        for name in sorted(self.columns):
            array = self.columns[name]
            digest.update(repr((name, str(array.dtype), array.shape)).encode())
            for start in range(0, len(array), _SLICE):
                digest.update(np.ascontiguousarray(array[start : start + _SLICE]).data)
        return digest.hexdigest()

    def part(self, start: int, size: int) -> "Records":
        """Some rows of a table without counts, as they stand in memory."""
        return Records({name: column[start : start + size] for name, column in self.columns.items()}, size)

    def only(self, names: Iterable[str]) -> "Records":
        """The same records with some of their columns."""
        return Records({name: self.columns[name] for name in names}, self.n, self.counts)

    def on_device(self) -> Rows:
        """Hand the columns to JAX, without a copy where it can use them as they stand. Call with 64 bits enabled."""
        columns = {name: jax.device_put(column, may_alias=True) for name, column in self.columns.items()}
        return Rows(columns, None if self.counts is None else jax.device_put(self.counts))


def load(
    data: Any,
    domain: Mapping[str, Domain],
    *,
    outside: str = "refuse",
    columns: Mapping[str, str | Sequence[str]] | None = None,
) -> Records:
    """Read, check and type a table.

    Parameters
    ----------
    data
        A dict of arrays, a pandas DataFrame, or the path of a Parquet or CSV file. Columns of a DataFrame or a file that
        the domain does not name are ignored: they are not read. In a dict, which is written for the model, they are refused,
        unless `columns` says what to take.
    domain
        Column name -> Domain.
    outside
        What happens to records outside the domain: "refuse" raises, "clamp" moves them to its nearest point. A missing
        value (NaN) or a label that was not declared is near nothing and refused in both cases.
    columns
        Which raw columns make up each name: ``{"x": ["age", "dose"], "y": "ill"}``. Without it, a vector
        named x is looked for as one array, as a list column, or as x_0, x_1, ...
    """
    check_outside(outside)
    arrays = _read(data, domain, dict(columns or {}), outside)
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) != 1:
        raise InvalidData(f"all columns must have the same number of records, got {lengths}.")
    n = next(iter(lengths.values()))
    if n < 2:
        raise InvalidData(f"a table must have at least two records, got {n}.")
    _check_joined(arrays, domain, outside)
    return Records(arrays, n)


def rows_ahead(
    data: Any, domain: Mapping[str, Domain], columns: Mapping[str, str | Sequence[str]] | None = None
) -> int | None:
    """Number of records of a large Parquet file, from its footer: no record is read.

    None for all other data, and for a file that is no table of this domain: what is wrong with it is for `load` to say.
    """
    if not isinstance(data, str | Path) or Path(data).suffix.lower() not in _PARQUET:
        return None
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(data, pre_buffer=False) as file:
            _raw_columns(domain, dict(columns or {}), file.schema_arrow.names)
            n = int(file.metadata.num_rows)
    except (OSError, ValueError, KeyError):
        return None
    return n if n * sum(column.size for column in domain.values()) >= LARGE else None


def check_outside(outside: str) -> None:
    """Refuse what is no rule for records outside the domain."""
    if outside not in ("refuse", "clamp"):
        raise InvalidInput(f'outside must be "refuse" or "clamp", got {outside!r}.')


def check_precision(precision: str) -> None:
    """Refuse any other way to evaluate records than those that a statement can name."""
    if precision not in PRECISIONS:
        raise InvalidInput(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}.")


# -- reading ----------------------------------------------------------------------------------------------------------


def _read(data: Any, domain: Mapping[str, Domain], columns: dict[str, Any], outside: str) -> dict[str, np.ndarray]:
    if isinstance(data, str | Path):
        return _from_file(Path(data), domain, columns, outside)
    if hasattr(data, "columns") and hasattr(data, "to_numpy"):
        names = {str(name): name for name in data.columns}
        wanted = _raw_columns(domain, columns, [str(name) for name in data.columns])
        return _from_columns(wanted, lambda c: data[names[c]], domain, outside)
    if isinstance(data, Mapping):
        wanted = _raw_columns(domain, columns, list(data))
        if not columns:
            _refuse_others(wanted, data)
        return _from_columns(wanted, lambda c: data[c], domain, outside)
    raise InvalidData(
        f"data must be a dict of arrays, a DataFrame, or the path of a Parquet or CSV file, got {type(data).__name__}."
    )


def _refuse_others(wanted: Mapping[str, Any], present: Iterable[Any]) -> None:
    """A dict is written for the model: what is in it besides the domain's columns is a slip."""
    if others := [name for name in present if name not in _names(wanted)]:
        raise InvalidData(
            f"a dict must have the columns of the domain, {sorted(wanted)}, and no others, got {others[:20]} besides; leave them "
            "out, or say with columns={...} which ones are meant."
        )


def _names(wanted: Mapping[str, Any]) -> list[str]:
    """All raw columns that are wanted, each once."""
    return sorted({c for raw in wanted.values() for c in ([raw] if isinstance(raw, str) else raw)})


def _from_columns(
    wanted: Mapping[str, Any], get: Callable[[str], Any], domain: Mapping[str, Domain], outside: str
) -> dict[str, np.ndarray]:
    out = {}
    for name, raw in wanted.items():
        values = domain[name].encode(_gather(name, raw, get))
        _check_shape(name, values, domain[name])
        out[name] = _blank(domain[name], len(values), values.dtype)
        for part in _slices(len(values)):
            _store(name, out[name], part, values[part], domain[name], outside)
    return out


def _raw_columns(domain: Mapping[str, Domain], columns: dict[str, Any], present: list[str]) -> dict[str, Any]:
    """Which raw columns make up each name; every one must be present."""
    wanted: dict[str, Any] = {}
    for name, column in domain.items():
        raw = columns.get(name, name)
        if raw == name and name not in present and column.shape:
            raw = [f"{name}_{i}" for i in range(column.size)]
        found = {c: present.count(c) for c in ([raw] if isinstance(raw, str) else raw)}
        if twice := [c for c, times in found.items() if times > 1]:
            raise InvalidData(
                f"column {name!r} needs the raw columns {twice}, which the table has more than once; rename them."
            )
        if missing := [c for c, times in found.items() if times == 0]:
            raise InvalidData(
                f"column {name!r} needs the raw columns {missing}, which the table does not have (it has {present[:20]}); "
                "name them with columns={...}."
            )
        wanted[name] = raw
    return wanted


def _gather(name: str, raw: str | Sequence[str], get: Callable[[str], Any]) -> np.ndarray:
    try:
        return np.asarray(get(raw)) if isinstance(raw, str) else np.stack([np.asarray(get(c)) for c in raw], axis=1)
    except ValueError:  # NumPy's own message may quote a cell
        raise InvalidData(
            f"all records of column {name!r} must have the same number of values, and they differ; fill or drop those that lack "
            "some."
        ) from None


def _from_file(
    path: Path, domain: Mapping[str, Domain], columns: dict[str, Any], outside: str
) -> dict[str, np.ndarray]:
    if not path.exists():
        raise InvalidData(f"no data file at {path}; give the path of a Parquet or CSV file.")
    read = (dict.fromkeys(_PARQUET, _from_parquet) | dict.fromkeys((".csv", ".txt"), _from_csv)).get(
        path.suffix.lower()
    )
    if read is None:
        raise InvalidData(f"a data file must end in .parquet or .csv, got {path.name}.")
    try:
        return read(path, domain, columns, outside)
    except InvalidInput:
        raise
    except (OSError, ValueError, KeyError) as error:
        # The reader's own message may quote a cell; only its type is safe to show.
        raise InvalidData(
            f"{path.name} could not be read as a table ({type(error).__name__}); check the file."
        ) from None


def _from_csv(path: Path, domain: Mapping[str, Domain], columns: dict[str, Any], outside: str) -> dict[str, np.ndarray]:
    import pyarrow.csv

    if path.stat().st_size == 0:
        raise InvalidData(f"{path.name} is empty; give a CSV file with a header line.")
    with pyarrow.csv.open_csv(path) as head:
        present = head.schema.names
    wanted = _raw_columns(domain, columns, present)
    table = pyarrow.csv.read_csv(
        path,
        # In a table of one column a blank line is a record whose value is missing; with more columns it is no record.
        parse_options=pyarrow.csv.ParseOptions(ignore_empty_lines=len(present) > 1),
        convert_options=pyarrow.csv.ConvertOptions(include_columns=_names(wanted)),
    )
    return _from_columns(wanted, lambda c: table[c].to_numpy(zero_copy_only=False), domain, outside)


def _from_parquet(
    path: Path, domain: Mapping[str, Domain], columns: dict[str, Any], outside: str
) -> dict[str, np.ndarray]:
    """Read batch by batch into arrays of the final type: the table is never in memory twice."""
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER) as file:
        filling = Filling(file, file.metadata.num_rows, domain, columns, outside)
        filling.read(file)
    return filling.out


@closed("records")
class Filling:
    """Columns of a table that is read piece by piece.

    Parameters
    ----------
    file
        An open Parquet file: the others must have its columns.
    n
        Records of all pieces together.
    """

    def __init__(self, file: Any, n: int, domain: Mapping[str, Domain], columns: dict[str, Any], outside: str) -> None:
        self._domain, self._outside, self._at = domain, outside, 0
        self._wanted = _raw_columns(domain, columns, file.schema_arrow.names)
        self._names = _names(self._wanted)
        self.out = {
            name: _blank(domain[name], n, _float_type(file.schema_arrow, raw)) for name, raw in self._wanted.items()
        }

    def read(self, file: Any, row_groups: Sequence[int] | None = None) -> int:
        """Read some row groups, or all of them; returns how many records there are now."""
        import pyarrow

        groups = None if row_groups is None else list(row_groups)
        for batch in file.iter_batches(batch_size=_BATCH, row_groups=groups, columns=self._names, use_threads=False):
            part = slice(self._at, self._at + len(batch))
            for name, raw in self._wanted.items():
                column = self._domain[name]
                values = column.encode(_gather(name, raw, partial(_batch_column, batch)))
                values = values.reshape(len(batch), *column.shape) if values.size else values
                _check_shape(name, values, column)
                _store(name, self.out[name], part, values, column, self._outside)
            self._at += len(batch)
            pyarrow.default_memory_pool().release_unused()  # Arrow's pool would keep what it has freed
        return self._at

    def records(self) -> Records:
        """The table, once all of it was read."""
        _check_joined(self.out, self._domain, self._outside)
        return Records(self.out, self._at)


def _float_type(schema: Any, raw: Any) -> np.dtype[Any]:
    """float32 if every raw column is, else float64."""
    import pyarrow.types

    kinds = [schema.field(c).type for c in ([raw] if isinstance(raw, str) else raw)]
    kinds = [kind.value_type if hasattr(kind, "value_type") else kind for kind in kinds]
    return np.dtype(np.float32 if all(pyarrow.types.is_float32(kind) for kind in kinds) else np.float64)


def _batch_column(batch: Any, name: str) -> np.ndarray:
    column = batch.column(name)
    if hasattr(column, "flatten") and hasattr(column.type, "value_type"):
        if column.null_count or (hasattr(column, "value_lengths") and len(column.value_lengths().unique()) > 1):
            raise ValueError("lists of different lengths")  # flattened, one record's values would end up in the next
        return column.flatten().to_numpy(zero_copy_only=False).reshape(len(batch), -1)
    return column.to_numpy(zero_copy_only=False)


# -- checking ---------------------------------------------------------------------------------------------------------


def _check_shape(name: str, values: np.ndarray, domain: Domain) -> None:
    if values.ndim == 0 or values.shape[1:] != domain.shape:
        raise InvalidData(
            f"column {name!r} must have shape (n, {', '.join(map(str, domain.shape))}) to fit its domain "
            f"{domain.name}, got {values.shape}."
        )
    if values.dtype.kind not in "bifu":
        raise InvalidData(f"column {name!r} must hold numbers, got dtype {values.dtype}; encode it first.")
    if len(values) == 0:
        raise InvalidData(f"column {name!r} is empty; a table must have at least two records.")


def _store(name: str, out: np.ndarray, part: slice, values: np.ndarray, domain: Domain, outside: str) -> None:
    """Check some records, then store them in their final type (checking first: a narrow type would wrap round).

    Also records that pass are clamped: it moves only those that a bound's own rounding let in.
    """
    values = values.astype(np.float64 if values.dtype.kind != "f" else values.dtype, copy=False)
    _check(name, values, domain, outside)
    out[part] = domain.clamp(values)


def _check_joined(arrays: dict[str, np.ndarray], domain: Mapping[str, Domain], outside: str) -> None:
    """Check columns that never exceed another one, or cut them to it."""
    for name, column in domain.items():
        if column.at_most is None:
            continue
        for part in _slices(len(arrays[name])):
            most = arrays[column.at_most][part]
            if outside == "refuse" and np.any(arrays[name][part] > most):
                raise InvalidData(
                    f"column {name!r} has records above {column.at_most!r}, which its domain says it never exceeds; widen the "
                    f"domain, "
                    'or say outside="clamp" to cut them to it.'
                )
            arrays[name][part] = np.minimum(arrays[name][part], most)


def _blank(domain: Domain, n: int, given: np.dtype[Any]) -> np.ndarray:
    """Memory for a column, on a 64-byte boundary so that JAX can use it as it stands instead of copying it."""
    dtype = domain.storage(given)
    size = n * domain.size * dtype.itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(n, *domain.shape)


def _slices(n: int) -> Iterator[slice]:
    for start in range(0, n, _SLICE):
        yield slice(start, start + _SLICE)


def _check(name: str, values: np.ndarray, domain: Domain, outside: str) -> None:
    if np.any(np.isnan(values)):
        raise InvalidData(f"column {name!r} has missing values (NaN); drop or fill those records.")
    if domain.labels is not None and np.any(values == UNDECLARED):
        raise InvalidData(
            f"column {name!r} has a label that was not declared; declared are {list(domain.labels)!r:.300}, and upper and lower "
            "case are two. Declare every label, or rename those of the table."
        )
    if outside == "refuse" and not np.all(domain.contains(values)):
        raise InvalidData(
            f"column {name!r} has records outside its domain {domain.name}; widen the domain, or say "
            'outside="clamp" to move them to its nearest point.'
        )
