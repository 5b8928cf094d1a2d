"""Standard output: as wide as is good for reading, and without blanks at the ends of lines in a pipe."""

import re
import sys
from typing import TextIO, cast

from rich.console import Console

WIDEST = 100  # paragraphs wider than this are hard to read


class _Trimmed:
    """A pipe in which no line ends with blanks."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        """Write, without the blanks before the ends of lines."""
        return self._file.write(re.sub(r"[ \t]+(?=\n)", "", text))

    def flush(self) -> None:
        """Pass on."""
        self._file.flush()


def console(piped: int = WIDEST) -> Console:
    """Open standard output, no wider than is good for reading; a pipe gets so many columns and no trailing blanks."""
    plain = Console(highlight=False)
    if plain.is_terminal:
        return Console(highlight=False, width=min(plain.width, WIDEST))
    return Console(highlight=False, width=piped, file=cast(TextIO, _Trimmed(sys.stdout)))
