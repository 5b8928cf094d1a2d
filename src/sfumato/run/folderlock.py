"""One run in a folder at a time: a lock that dies with the process that holds it.

The lock is a file in the folder, held by `flock` while the run is under way and removed when it ends. The operating system lets
go of it when the process ends, however it ends: after ``kill -9`` the file is still there and nobody holds it. Programs that
the process starts do not inherit it, and a forked child closes its copy, so no worker keeps the folder from being resumed.

Where `flock` is missing (Windows), two threads of one process are still kept apart, and two processes are not. A disk that
knows no locks is refused.
"""

import os
import platform
import threading
from contextlib import suppress
from io import FileIO
from pathlib import Path

from sfumato.errors import CheckpointError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

NAME = "run.lock"


class FolderLock:
    """Hold a folder until `release`.

    Raises
    ------
    CheckpointError
        Somebody holds it already, here or in another process; or it cannot be locked.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._key = os.path.realpath(self._path)
        with _registering:
            if self._key in _held:
                raise _refusal(folder, "another run in this process")
            self._file = _claim(self._path)
            _held[self._key] = self

    def release(self) -> None:
        """Let go; a second time changes nothing, and neither does a fork of the process that holds it."""
        with _registering:
            if self._file.closed:
                return
            if _is_at(self._file, self._path):
                with suppress(OSError):  # Windows removes no open file
                    self._path.unlink()
            self._file.close()
            del _held[self._key]


_held: dict[str, FolderLock] = {}
_registering = threading.Lock()  # held across a fork: no lock may be missed


def _claim(path: Path) -> FileIO:
    while True:
        try:
            file = path.open("a+b", buffering=0)  # Python opens files so that no other program inherits them
        except OSError as error:
            raise CheckpointError(
                f"a run holds its checkpoint folder by a file in it, and {path} cannot be written ({error.strerror}); make the "
                "folder writable, or copy it to a disk where it is."
            ) from None
        try:
            _flock(file, path)
            if _is_at(file, path):
                _sign(file)
                return file
        except BaseException:
            file.close()
            raise
        file.close()  # whoever held it has removed it between our opening and our locking: this is no longer the lock


def _flock(file: FileIO, path: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _refusal(path.parent, _holder(path)) from None
    except OSError as error:
        raise CheckpointError(
            f"a checkpoint folder is held by one run at a time, and {path.parent} is on a disk that knows no locks "
            f"({error.strerror}); choose a folder on another disk, or copy this one there."
        ) from None


def _is_at(file: FileIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False


def _sign(file: FileIO) -> None:
    """Write down who holds the lock, for the message of whoever comes next."""
    with suppress(OSError):  # a full disk: then nobody is named
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}".encode())


def _holder(path: Path) -> str:
    try:
        return path.read_text(errors="replace") or "another process"
    except OSError:
        return "another process"


def _refusal(folder: Path, holder: str) -> CheckpointError:
    return CheckpointError(
        f"a checkpoint folder is held by one run at a time, and {folder} is held by {holder}; wait until that run has ended, or "
        "end it, and then go on with this folder."
    )


def _forget_in_child() -> None:
    """Close, and never unlock: a child's copy is the parent's lock, which closing leaves alone."""
    for lock in _held.values():
        lock._file.close()
    _held.clear()
    _registering.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_registering.acquire, after_in_parent=_registering.release, after_in_child=_forget_in_child
    )
