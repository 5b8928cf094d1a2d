"""Give freed memory back to the operating system.

Compiling a model and reading a file leave a hundred megabytes and more that glibc keeps for later. Beside a table of
several gigabytes that does not matter; beside one of a few hundred megabytes it decides whether the run fits.
"""

import ctypes
import gc
import mmap
import sys
from collections.abc import Iterator
from contextlib import suppress

import jax

from sfumato.kernel.shared_programs import forget_programs

LARGE = 1 << 24
"""Numbers in a table from which on its memory, 64 MB and more, and that of what was compiled are worth keeping apart."""


def release_memory(*, code: bool = False) -> None:
    """Return free memory to the system where the C library can (glibc), and what Arrow kept of a file it has read.

    With `code`, also the pages of libraries' machine code that were read so far: XLA's compiler, Arrow and all the others have
    some 130 MB of them, and the next stage of a run needs a part.
    """
    if (arrow := sys.modules.get("pyarrow")) is not None:
        arrow.default_memory_pool().release_unused()
    if sys.platform != "linux":
        return
    with suppress(OSError):  # a system without /proc, or one that does not say: nothing depends on it
        library = ctypes.CDLL(None)
        if (trim_heap := getattr(library, "malloc_trim", None)) is not None:
            trim_heap(0)
        if code and (advise := getattr(library, "madvise", None)) is not None:
            advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
            for start, end in _code_of_libraries():
                advise(start, end - start, mmap.MADV_DONTNEED)


def _code_of_libraries() -> Iterator[tuple[int, int]]:
    """Where the machine code of shared libraries lies in this process.

    Its pages are clean copies of a file, read again when they are next run. Only code is given, mapped `r-x`, and of it only
    mappings without a page of their own: what somebody has written to, the file does not hold.
    """
    place: tuple[int, int] | None = None
    with open("/proc/self/smaps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            parts = line.split(maxsplit=5)
            if not parts[0].endswith(":"):  # addresses, rights, offset, device, inode, and of a file its path
                code = len(parts) > 5 and parts[1] == "r-xp" and ".so" in parts[5]
                start, end = parts[0].split("-")
                place = (int(start, 16), int(end, 16)) if code else None
            elif parts[0] in ("Private_Dirty:", "Anonymous:", "Swap:") and parts[1] != "0":
                place = None
            elif parts[0] == "VmFlags:" and place is not None:
                yield place


def forget_compiled() -> None:
    """Drop every program that JAX keeps in this process, and return the memory.

    Planning alone leaves some 80 MB of programs that nobody calls again, and JAX has no way to drop those alone. So this is for
    runs on a `LARGE` table, between their stages. A function of the caller's that was compiled before is compiled again when it
    is next called.
    """
    forget_programs()
    jax.clear_caches()  # type: ignore[no-untyped-call]
    gc.collect()
    release_memory(code=True)
