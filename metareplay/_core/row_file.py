"""A file of records of one size: read through a memory map, written by position."""

import mmap
import os
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final, final

import numpy as np

from metareplay._core.draws import Ints
from metareplay._core.row_form import Records

TOUCHED: Final = 2**25  # bytes of the map that may be in this process's memory before they are handed back
AROUND: Final = 2**16  # bytes that the system maps for a page that is read


@final
class RowFile:
    """Read and write the records of a file by row number.

    Reading goes through a memory map, and what has been read is handed back to the system again and again, so that the
    process stays small however large the file is. Writing goes through the file, because a map would end the process
    if the disk were full.

    Args:
        path: The file. If it is not there, it is made with room for all rows; what is not written takes no space.
        rows: How many rows it has.
        size: How many bytes a record has.
    """

    def __init__(self, path: Path, rows: int, size: int) -> None:
        self._size = size
        self._file = -1
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        if os.fstat(self._file).st_size != rows * size:
            os.ftruncate(self._file, rows * size)
        self._map = mmap.mmap(self._file, rows * size, access=mmap.ACCESS_READ)
        self._advise("MADV_RANDOM")
        self._records: Records = np.frombuffer(self._map, np.uint8).reshape(rows, size)
        self._touched = 0

    def read(self, rows: Ints) -> Records:
        """Return a copy of some records.

        Args:
            rows: Their numbers, in any order.
        """
        found, most = np.empty((len(rows), self._size), np.uint8), max(1, TOUCHED // (self._size + AROUND))
        for start in range(0, len(rows), most):
            some = rows[start : start + most]
            found[start : start + most] = self._records[some]
            self._note(len(some) * (self._size + AROUND))
        return found

    def write(self, rows: Ints, records: Records) -> None:
        """Replace some records.

        Args:
            rows: Their numbers, each at most once.
            records: The new records.
        """
        if not len(rows):
            return
        if (rows[1:] <= rows[:-1]).any():
            order = np.argsort(rows)
            rows, records = rows[order], records[order]
        content, size, file, write = bytes_of(records), self._size, self._file, getattr(os, "pwrite", _write)
        starts = np.flatnonzero(np.diff(rows, prepend=-2) != 1)  # rows that follow one another are written in one call
        offsets, bounds = (rows[starts] * size).tolist(), (np.append(starts, len(rows)) * size).tolist()
        for offset, (start, end) in zip(offsets, pairwise(bounds), strict=True):
            written = write(file, content[start:end], offset)
            if written != end - start:
                write_all(file, content[start + written : end], offset + written)

    def prefetch(self, rows: Ints) -> None:
        """Ask the system to read these rows from the disk in the background.

        Args:
            rows: Their numbers.
        """
        if hasattr(os, "posix_fadvise"):
            for row in rows.tolist():
                os.posix_fadvise(self._file, row * self._size, self._size, os.POSIX_FADV_WILLNEED)

    def sync(self) -> None:
        """Wait until everything that was written is on the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        self._records = np.zeros((0, self._size), np.uint8)
        with suppress(BufferError):  # if another thread still reads, the map goes when that is done
            self._map.close()
        self.__del__()

    def __del__(self) -> None:
        """Close the file when nobody uses it any more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _note(self, touched: int) -> None:
        """Give mapped memory back to the system if there is much of it."""
        self._touched += touched
        if self._touched > TOUCHED:
            self._touched = 0
            self._advise("MADV_DONTNEED")

    def _advise(self, name: str) -> None:
        if hasattr(self._map, "madvise") and hasattr(mmap, name):
            self._map.madvise(getattr(mmap, name))


def bytes_of(records: Records) -> memoryview:
    """Return the bytes of records, one after the other.

    Args:
        records: The records.
    """
    return memoryview(np.ascontiguousarray(records).data).cast("B")


def write_all(file: int, content: memoryview, offset: int) -> None:
    """Write bytes at a position of a file, all of them.

    Args:
        file: The descriptor of the file.
        content: The bytes.
        offset: Where they begin in the file.
    """
    while len(content):
        written = getattr(os, "pwrite", _write)(file, content, offset)
        content, offset = content[written:], offset + written


def _write(file: int, content: memoryview, offset: int) -> int:
    """Do what `os.pwrite` does, for Windows, which has none."""
    os.lseek(file, offset, os.SEEK_SET)
    return os.write(file, content)
