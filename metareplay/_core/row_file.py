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
LONGEST: Final = 2**24  # bytes to write in one call


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
        order = np.argsort(rows, kind="stable")
        places, most = rows[order], max(1, LONGEST // self._size)
        starts = np.flatnonzero(np.diff(places, prepend=-2) != 1).tolist()
        in_order = len(starts) == 1 and rows[0] == places[0]
        for start, end in pairwise([*starts, len(places)] if starts else []):
            for first in range(start, end, most):
                last = min(first + most, end)
                some = records[first:last] if in_order else records[order[first:last]]
                write_all(self._file, some, int(places[first]) * self._size)

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


def write_all(file: int, records: Records, offset: int) -> None:
    """Write bytes at a position of a file, all of them.

    Args:
        file: The descriptor of the file.
        records: The bytes.
        offset: Where they begin in the file.
    """
    content = memoryview(np.ascontiguousarray(records).data).cast("B")
    while len(content):
        if hasattr(os, "pwrite"):
            written = os.pwrite(file, content, offset)
        else:  # Windows
            os.lseek(file, offset, os.SEEK_SET)
            written = os.write(file, content)
        content, offset = content[written:], offset + written
