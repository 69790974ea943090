"""Claims, by which processes that work in one folder share the runs: who holds the claim of a run is doing it."""

import errno
import os
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Final, Self, final

from metareplay.errors import DiskError

try:
    import fcntl

    _locks: ModuleType | None = fcntl
except ImportError:  # Windows
    _locks = None

NO_LOCKS: Final = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}  # said by file systems without locks

OTHER_FILES: Final = 500  # files that a process may have open besides its claims


@final
class Claim:
    """Hold the right to do one run; `take` makes one, and leaving its context gives it back.

    It is a lock on a small file. The system gives the lock back when a process ends, however it ends, so that a run
    whose process was killed is free again. Where there are no locks, everybody gets every claim.

    Args:
        path: The file.
        descriptor: The open file that holds the lock; None where there are no locks.
        made: Whether the folder was made for it, and is deleted with it if nothing else has come into it.
    """

    def __init__(self, path: Path, descriptor: int | None, made: bool) -> None:
        self._path, self._descriptor, self._made = path, descriptor, made

    @classmethod
    def take(cls, folder: Path, key: str) -> Self | None:
        """Claim a run; None if somebody else has claimed it.

        Args:
            folder: Where the record of the run is going to be.
            key: The key of the run.
        """
        path = claim_path(folder, key)
        made = False
        try:
            while _locks is not None:
                try:
                    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
                except FileNotFoundError:
                    folder.mkdir(parents=True, exist_ok=True)
                    made = True
                    continue
                try:
                    _locks.flock(descriptor, _locks.LOCK_EX | _locks.LOCK_NB)
                    if _is_at(descriptor, path):
                        return cls(path, descriptor, made)
                    os.close(descriptor)  # its last holder has deleted it between the two lines above
                except OSError as error:
                    os.close(descriptor)
                    if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                        return None
                    if error.errno not in NO_LOCKS:
                        raise
                    path.unlink(missing_ok=True)
                    break
        except OSError as error:
            raise DiskError(
                f"cannot write {folder}/: {error.strerror or error}; free some space or choose another place"
            ) from error
        return cls(path, None, made)

    def give_back(self) -> None:
        """Delete the file and give the lock back; the second time does nothing."""
        if self._descriptor is not None:
            try:
                self._path.unlink(missing_ok=True)  # while the lock is held: nobody else can have claimed it yet
            finally:
                os.close(self._descriptor)
                self._descriptor = None
        if self._made:
            with suppress(OSError):
                self._path.parent.rmdir()

    def __enter__(self) -> Self:
        """Return the claim."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give the claim back."""
        self.give_back()


def claim_path(folder: Path, key: str) -> Path:
    """Return the path of a claim's file."""
    return folder / f".{key}.claim"


def is_claimed(folder: Path, key: str) -> bool:
    """Return whether somebody is doing a run; to be asked only about runs that this process has not claimed."""
    if _locks is None:
        return False
    try:
        descriptor = os.open(claim_path(folder, key), os.O_RDWR)
    except OSError:
        return False
    try:
        _locks.flock(descriptor, _locks.LOCK_EX | _locks.LOCK_NB)
    except OSError as error:
        return error.errno not in NO_LOCKS
    else:
        return False
    finally:
        os.close(descriptor)


def allow(count: int) -> None:
    """Let this process hold this many claims at a time, if the system permits that many open files.

    Args:
        count: How many claims.
    """
    if _locks is not None:
        import resource  # which Windows does not have

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = count + OTHER_FILES if hard == resource.RLIM_INFINITY else min(count + OTHER_FILES, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def can_share(folder: Path) -> bool:
    """Return whether claims work in a folder; a file is made and deleted to find out.

    Args:
        folder: The folder, which is made if it does not exist.
    """
    claim = Claim.take(folder, f"trial-{os.getpid()}")
    if claim is None:
        return True
    with claim:
        return claim._descriptor is not None


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file is still the one at a path."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)
