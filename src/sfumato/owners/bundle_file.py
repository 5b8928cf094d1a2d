"""The bundle's file: one Parquet table of noisy copies, a header, and a checksum over both.

The file holds released values only. One float64 column per coordinate of the statistic, one row per copy; the header is JSON
under the key ``sfumato.bundle`` of the file's metadata, the SHA-256 of header and rows under ``sfumato.sha256``. The checksum
finds accidents and careless edits; whoever can write the file can also write a new checksum, so it is not a signature.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from sfumato.errors import BundleError, InvalidInput

FORMAT = 1
HEADER_KEY, CHECKSUM_KEY = b"sfumato.bundle", b"sfumato.sha256"
_BATCH = 1 << 16


def column_names(size: int) -> list[str]:
    """Name the columns of a statistic of `size` coordinates."""
    return [f"s_{j}" for j in range(size)]


def number_kind(header: dict[str, Any]) -> str:
    """What the numbers are: reals; or of a sealed bundle, whole numbers under masks."""
    return "<i8" if header.get("sealed") else "<f8"


class Checksum:
    """SHA-256 of a header and of rows, however they are cut into blocks."""

    def __init__(self, header: dict[str, Any]) -> None:
        self._kind = number_kind(header)
        self._digest = hashlib.sha256(json.dumps(header, sort_keys=True, allow_nan=False).encode())

    def add(self, rows: np.ndarray) -> None:
        """Add rows, shape (m, d)."""
        self._digest.update(np.ascontiguousarray(rows, dtype=self._kind).data)

    def hex(self) -> str:
        """The checksum so far."""
        return self._digest.hexdigest()


class Writer:
    """Writes a bundle row group by row group; the file appears under its name when it is whole and on the disk.

    Parameters
    ----------
    path
        Where to; never over an existing file, which was paid for.
    header
        Everything public about the release.
    """

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        import pyarrow
        import pyarrow.parquet

        if path.exists():
            raise InvalidInput(
                f"{path} exists, and a bundle is never overwritten: it was paid for. Choose another path."
            )
        self._path, self._draft = path, path.with_name(f".{path.name}.{os.getpid()}.tmp")
        self._sum, self._rows = Checksum(header), 0
        names = column_names(header["size"])
        kind = pyarrow.int64() if header.get("sealed") else pyarrow.float64()
        self._schema = pyarrow.schema([pyarrow.field(name, kind, nullable=False) for name in names])
        metadata = {HEADER_KEY: json.dumps(header, sort_keys=True).encode()}
        try:
            self._file = self._draft.open("wb")
        except OSError as error:
            raise InvalidInput(f"{path} cannot be written ({error.strerror}); choose another path.") from None
        self._parquet = pyarrow.parquet.ParquetWriter(
            self._file, self._schema.with_metadata(metadata), compression="none", use_dictionary=False
        )

    def write(self, rows: np.ndarray) -> None:
        """Add one row group."""
        import pyarrow

        columns = [pyarrow.array(np.ascontiguousarray(rows[:, j])) for j in range(rows.shape[1])]
        self._parquet.write_table(pyarrow.table(columns, schema=self._schema))
        self._sum.add(rows)

    def finish(self) -> None:
        """Write the checksum, flush to the disk, rename, flush the folder."""
        self._parquet.add_key_value_metadata({CHECKSUM_KEY: self._sum.hex().encode()})
        self._parquet.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._draft.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            try:
                self.finish()
                return
            finally:
                self._draft.unlink(missing_ok=True)
        with suppress(Exception):  # on the way out of another error, which is the one to tell
            self._parquet.close()
        self._file.close()
        self._draft.unlink(missing_ok=True)


def read_header(path: Path) -> dict[str, Any]:
    """Read the header alone; the rows are not checked."""
    with _opened(path) as file:
        return _header(path, file)


def read_rows(path: Path) -> Iterator[np.ndarray]:
    """Read rows, block by block; after the last one the checksum is compared.

    Raises
    ------
    BundleError
        The file is truncated, edited, not a bundle, or of another version.
    """
    with _opened(path) as file:
        header = _header(path, file)
        total = Checksum(header)
        seen = 0
        try:
            for batch in file.iter_batches(batch_size=_BATCH, use_threads=False):
                rows = np.stack([column.to_numpy(zero_copy_only=False) for column in batch.columns], axis=1)
                total.add(rows)
                seen += len(rows)
                yield rows
        except (OSError, ValueError) as error:
            raise _damaged(path, type(error).__name__) from None
        stated = (file.metadata.metadata or {}).get(CHECKSUM_KEY, b"").decode("ascii", "replace")
        if seen != header["copies"] or stated != total.hex():
            raise _damaged(path, "its checksum does not fit")


def _opened(path: Path) -> Any:
    import pyarrow.parquet

    if not path.exists():
        raise BundleError(f"no bundle at {path}; give a file that sf.release wrote.")
    try:
        return pyarrow.parquet.ParquetFile(path, pre_buffer=False)
    except (OSError, ValueError) as error:
        raise _damaged(path, type(error).__name__) from None


def _header(path: Path, file: Any) -> dict[str, Any]:
    metadata = file.metadata.metadata or {}
    if HEADER_KEY not in metadata:
        raise BundleError(f"{path.name} is a Parquet file but no bundle; give a file that sf.release wrote.")
    try:
        header: dict[str, Any] = json.loads(metadata[HEADER_KEY])
        version = header["format"]
    except (ValueError, KeyError, TypeError):
        raise _damaged(path, "its header cannot be read") from None
    if version != FORMAT:
        raise BundleError(
            f"{path.name} has bundle format {version!r}, and this version of sfumato reads {FORMAT}; use the sfumato that "
            "wrote it, or release again."
        )
    if file.schema_arrow.names != column_names(header.get("size", 0)):
        raise _damaged(path, "its columns do not fit its header")
    return header


def _damaged(path: Path, why: str) -> BundleError:
    return BundleError(
        f"{path.name} is truncated, edited or mixed up ({why}); fetch it again from whoever released it. Its budget stays spent."
    )
