"""Give freed memory back to the operating system.

Compiling a model and reading a file leave a hundred megabytes and more that glibc keeps for later. Beside a table of
several gigabytes that does not matter; beside one of a few hundred megabytes it decides whether the run fits.
"""

import ctypes
import sys


def trim() -> None:
    """Return free memory to the system where the C library can (glibc); elsewhere nothing happens."""
    if sys.platform != "linux":
        return
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        return
