"""What was compiled is kept in the user's cache folder: the next process finds it there, and compiles nothing twice.

The cache is JAX's own, switched on while a public function of this library runs and off again when it returns: what the caller
compiles by himself is not kept. It holds programs and nothing else. Records, noise and parameters are arguments of every program
(`tests/privacy/test_kept_programs.py`), so neither an entry nor its name, a digest of the program, depends on them.

Whoever may write to such a folder could have this process run what he likes. So it is the user's alone (mode 700), and a folder
that others may write to is not used. Entries of another version of JAX, or of a processor with other instructions, lie in a
folder of their own.
"""

import hashlib
import os
import platform
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

VARIABLE = "SFUMATO_PROGRAMS"
"""The environment variable that says where compiled programs are kept; "off" for nowhere."""
MOST_BYTES = 1 << 29
"""Of all entries together; beyond it the oldest are dropped."""
_CHECKED = ".checked"
_SETTINGS: dict[str, Any] = {
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
    "jax_traceback_in_locations_limit": 0,  # where in whose sources an operation came from is nobody's business here
}
_lock = threading.Lock()
_inside = 0
_before: dict[str, Any] = {}


@contextmanager
def kept_programs() -> Iterator[None]:
    """Programs that are compiled within are looked for in the user's cache folder, and kept there. Also a decorator.

    Nothing is changed where the caller has a cache of JAX's own.
    """
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _inside  # noqa: PLW0603 (JAX has one cache for the process)
    import jax

    with _lock:
        _inside += 1
        if _inside > 1 or jax.config.jax_compilation_cache_dir or not jax.config.jax_enable_compilation_cache:  # type: ignore[attr-defined]
            return
        folder = _prepared()
        if folder is None:
            return
        for name, value in ({"jax_compilation_cache_dir": str(folder)} | _SETTINGS).items():
            _before[name] = getattr(jax.config, name)
            jax.config.update(name, value)  # type: ignore[no-untyped-call]


def _leave() -> None:
    global _inside  # noqa: PLW0603
    import jax
    from jax.experimental.compilation_cache.compilation_cache import reset_cache

    with _lock:
        _inside -= 1
        if _inside or not _before:
            return
        for name, value in _before.items():
            jax.config.update(name, value)  # type: ignore[no-untyped-call]
        _before.clear()
        reset_cache()  # JAX would go on with the folder that it has opened


# -- the folder -----------------------------------------------------------------------------------------------------------


def folder() -> Path | None:
    """Where programs of this version and this processor are kept; None where they are not."""
    said = os.environ.get(VARIABLE, "")
    if said.lower() in ("off", "0", "no", "false"):
        return None
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # nobody's home
        return None
    return (Path(said) if said else home / "sfumato" / "programs") / _versions()


def _versions() -> str:
    """A name for what a compiled program depends on besides itself."""
    words = [*map(version, ("jax", "jaxlib")), sys.version, platform.machine(), _instructions()]
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


def _instructions() -> str:
    """What this processor can do: a program for a newer one would end the process."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith(("flags", "Features")):
                return line
    return platform.processor()


def _prepared() -> Path | None:
    """The folder, there and the user's alone, and no larger than it may be; None where it cannot be had."""
    place = folder()
    if place is None:
        return None
    try:
        for own in (place.parent, place):
            own.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (_own(place) and _own(place.parent) and all(map(_stays, place.resolve().parents))):
            return None
        _tidy(place)
    except OSError:
        return None
    return place


def _own(place: Path) -> bool:
    if not hasattr(os, "getuid"):
        return True
    about = place.stat()
    return about.st_uid == os.getuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _stays(above: Path) -> bool:
    """Whether nobody else can put another folder in the place of one that lies in this one."""
    if not hasattr(os, "getuid"):
        return True
    about = above.stat()
    open_to_others = about.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not about.st_mode & stat.S_ISVTX
    return about.st_uid in (0, os.getuid()) and not open_to_others


def _tidy(place: Path) -> None:
    """Drop entries that a killed process left unfinished, which JAX would find anew each time; and the oldest ones if it is full.

    Each entry is checked once: those since the last time.
    """
    mark = place / _CHECKED
    since, began = mark.stat().st_mtime if mark.exists() else 0.0, time.time()
    entries = sorted((path.stat().st_mtime, path) for path in place.iterdir() if path.name.endswith("-cache"))
    room = MOST_BYTES
    for changed, path in reversed(entries):
        room -= path.stat().st_size
        if room < 0 or (changed >= since - 60.0 and not _whole(path.read_bytes())):
            path.unlink(missing_ok=True)
    mark.touch()
    os.utime(mark, (began, began))


def _whole(entry: bytes) -> bool:
    """Whether an entry can be unpacked."""
    from jax._src.compilation_cache import decompress_executable  # as JAX packs it, which depends on what is installed

    try:
        decompress_executable(entry)
    except Exception:  # each packer has errors of its own
        return False
    return True
