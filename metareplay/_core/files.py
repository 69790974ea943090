"""Writing files so that a reader never sees half of one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from metareplay.errors import DiskError


@contextmanager
def write_atomically(path: Path) -> Iterator[BinaryIO]:
    """Open a file beside `path` for writing; it takes the name `path` only once all of it is on disk.

    If the disk is full, the process is killed or an error is raised, whatever was at `path` before stays as it was.

    Args:
        path: The file to write.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise DiskError(
            f"cannot write {path}: {error.strerror or error}; free some space or choose another place"
        ) from error
    finally:
        with suppress(OSError):
            part.unlink()


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
