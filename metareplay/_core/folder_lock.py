"""Locks on folders and files, so that only one object at a time works with them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Final, final

from metareplay._core.files import exists, make_folder
from metareplay.errors import DiskError, InputError

try:
    import fcntl

    _locks: ModuleType | None = fcntl
except ImportError:  # Windows
    _locks = None


NAME: Final = "lock"  # of the file in a folder that is held or was held


def was_held(folder: Path) -> bool:
    """Return whether a folder is held, or was ever held.

    Args:
        folder: The folder.
    """
    return exists(folder / NAME)


@contextmanager
def holding(path: Path) -> Iterator[None]:
    """Wait until no other thread or process holds a file, which is made if need be, and hold it meanwhile.

    Where there are no locks, nothing is waited for.

    Args:
        path: The file.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if _locks is not None:
            with suppress(OSError):  # a file system without locks
                _locks.flock(descriptor, _locks.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@final
class FolderLock:
    """Hold a folder, which is made if need be. The system gives the lock back when the process ends, however it ends.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self._file: int | None = None
        make_folder(folder)
        try:
            self._file = os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise DiskError(f"cannot write to {folder}: {error.strerror or error}; choose another folder") from error
        try:
            if _locks is not None:
                _locks.flock(self._file, _locks.LOCK_EX | _locks.LOCK_NB)
        except BlockingIOError as error:
            self.release()
            raise InputError(
                f"{folder} is in use: close the reservoir that was opened there, or wait for it"
            ) from error
        except OSError:  # a file system without locks
            pass

    def release(self) -> None:
        """Give the folder back; calling this again does nothing."""
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
            self._file = None

    def __del__(self) -> None:
        """Give the folder back when nobody uses it any more."""
        self.release()
