"""Give freed memory back to the operating system.

Compiling a model and reading a file leave a hundred megabytes and more that glibc keeps for later. Beside a table of
several gigabytes that does not matter; beside one of a few hundred megabytes it decides whether the run fits.
"""

import ctypes
import gc
import sys

import jax

LARGE = 1 << 24
"""Numbers in a table from which on its memory, 64 MB and more, and that of what was compiled are worth keeping apart."""


def trim() -> None:
    """Return free memory to the system where the C library can (glibc), and what Arrow kept of a file it has read."""
    if (arrow := sys.modules.get("pyarrow")) is not None:
        arrow.default_memory_pool().release_unused()
    if sys.platform != "linux":
        return
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        return


def forget_compiled() -> None:
    """Drop every program that JAX keeps in this process, and return the memory.

    Planning alone leaves some 80 MB of programs that nobody calls again, and JAX has no way to drop those alone. So this is for
    runs on a `LARGE` table, between their stages. A function of the caller's that was compiled before is compiled again when it
    is next called.
    """
    jax.clear_caches()  # type: ignore[no-untyped-call]
    gc.collect()
    trim()
