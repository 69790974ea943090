"""Writing files so that a reader never sees half of one."""

import errno
import os
import platform
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from metareplay.errors import DiskError

MACHINE: Final = f"{zlib.crc32(platform.node().encode()):08x}"  # in names, so that machines can share a folder


@contextmanager
def write_atomically(path: Path, sync: bool = True) -> Iterator[BinaryIO]:
    """Open a file beside `path` for writing; it takes the name `path` only once all of it is on disk.

    If the disk is full, the process is killed or an error is raised, whatever was at `path` before stays as it was.

    Args:
        path: The file to write.
        sync: Wait until the content is on disk; False for a file that need not survive a loss of power.
    """
    if not path.name:
        raise DiskError(f"cannot write {path}: it is a folder; give the name of a file")
    part = path.with_name(f".{path.name}.{MACHINE}-{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        clean(path)
        part.unlink(missing_ok=True)  # if there is a link of this name, it must not be followed
        with part.open("wb") as file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise DiskError(
            f"cannot write {path}: {error.strerror or error}; free some space or choose another place"
        ) from error
    finally:
        with suppress(OSError):
            part.unlink()


def clean(path: Path) -> None:
    """Delete what processes of this machine that have died while they were writing `path` have left.

    What live processes and other machines are writing is left alone.

    Args:
        path: The file that was to be written.
    """
    for name in names_in(path.parent):
        if name.startswith(f".{path.name}.") and name.endswith(".part"):
            writer = name.removeprefix(f".{path.name}.").removesuffix(".part")
            process = writer.removeprefix(f"{MACHINE}-")  # earlier versions did not write the machine
            if process.isascii() and process.isdigit() and not is_alive(int(process)):
                with suppress(OSError):
                    path.with_name(name).unlink()


def is_alive(process: int) -> bool:
    """Return whether there is a process with this number, even if it is somebody else's.

    Args:
        process: The number.
    """
    if os.name != "posix":  # there, asking would end it
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def read_file(path: Path) -> bytes:
    """Return the content of a file; raise OSError for a pipe or a device, which may never end.

    Args:
        path: The file.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path.read_bytes()


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, unless it is there; raise DiskError if that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DiskError(f"cannot write to {path}: {error.strerror or error}; choose another folder") from error


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with write_atomically(path) as file:
        file.write(text.encode())


def exists(path: Path) -> bool:
    """Return whether a file exists; False if we are not allowed to look."""
    try:
        return path.exists()
    except OSError:
        return False


def remove(path: Path) -> None:
    """Delete a file if it exists."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise DiskError(f"cannot delete {path}: {error.strerror or error}; choose another place") from error


def names_in(folder: Path) -> list[str]:
    """Return the names of everything in a folder; none if there is no such folder, or we are not allowed to look."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries]
    except OSError:
        return []
