"""Shards of a Parquet table: which row groups go together, and reading one shard and nothing else.

A table is cut where its files are cut, at row groups, and the pieces are dealt out by bytes: the largest first, each to the
shard that has least so far. Nobody ever reads the whole table.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from glob import glob
from typing import Any, NamedTuple

from sfumato.domain import Domain
from sfumato.errors import InvalidData, InvalidInput
from sfumato.vault.records import Filling, Records


class Piece(NamedTuple):
    """One row group of one file."""

    path: str
    row_group: int
    rows: int
    size: int


class Shard(NamedTuple):
    """What one worker holds."""

    pieces: tuple[Piece, ...]

    @property
    def rows(self) -> int:
        """Records in it."""
        return sum(piece.rows for piece in self.pieces)

    @property
    def size(self) -> int:
        """Bytes in it, as stored."""
        return sum(piece.size for piece in self.pieces)


def find_files(pattern: str) -> list[str]:
    """List the files of a table: on this machine by name, elsewhere through Arrow's file systems."""
    if "://" in pattern:
        import pyarrow.fs

        folder, _, names = pattern.rpartition("/")
        system, path = pyarrow.fs.FileSystem.from_uri(folder)
        found = system.get_file_info(pyarrow.fs.FileSelector(path))
        files = sorted(f"{folder}/{info.base_name}" for info in found if fnmatch(info.base_name, names))
    else:
        files = sorted(glob(pattern))
    if not files:
        raise InvalidData(f"no file fits {pattern!r}; give the names of Parquet files, such as 'folder/*.parquet'.")
    return files


@contextmanager
def parquet(path: str) -> Any:
    """Open a Parquet file, wherever it is. Messages name the file, never what is in it."""
    import pyarrow.fs
    import pyarrow.parquet

    try:
        if "://" in path:
            system, inside = pyarrow.fs.FileSystem.from_uri(path)
            source: Any = system.open_input_file(inside)
        else:
            source = path
        with pyarrow.parquet.ParquetFile(source, pre_buffer=False, buffer_size=1 << 20) as file:
            yield file
    except InvalidInput:
        raise
    except (OSError, ValueError, KeyError) as error:
        name = path.rpartition("/")[2]
        raise InvalidData(f"{name} could not be read as Parquet ({type(error).__name__}); check the file.") from None


def pieces_of(files: Sequence[str]) -> list[Piece]:
    """Row groups of all files, from their footers alone."""
    pieces = []
    for path in files:
        with parquet(path) as file:
            for group in range(file.metadata.num_row_groups):
                facts = file.metadata.row_group(group)
                pieces.append(Piece(path, group, int(facts.num_rows), int(facts.total_byte_size)))
    return [piece for piece in pieces if piece.rows > 0]


def deal_out(pieces: Sequence[Piece], workers: int) -> list[Shard]:
    """Shards of nearly equal bytes; fewer than asked for if there are not so many pieces."""
    hands: list[list[Piece]] = [[] for _ in range(min(workers, len(pieces)))]
    sizes = [0] * len(hands)
    for piece in sorted(pieces, key=lambda p: (-p.size, p.path, p.row_group)):
        lightest = sizes.index(min(sizes))
        hands[lightest].append(piece)
        sizes[lightest] += piece.size
    return [Shard(tuple(sorted(hand))) for hand in hands]


def read_shard(
    shard: Shard,
    domain: Mapping[str, Domain],
    columns: Mapping[str, Any],
    outside: str,
    tell: Callable[[int], None] = lambda rows: None,
) -> Records:
    """Read one shard, batch by batch, checked record by record; `tell` hears how many records there are so far."""
    filling: Filling | None = None
    for piece in shard.pieces:
        with parquet(piece.path) as file:
            if filling is None:
                filling = Filling(file, shard.rows, domain, dict(columns), outside)
            tell(filling.read(file, [piece.row_group]))
    if filling is None:
        raise InvalidData("a shard must hold at least one record.")
    return filling.records()
