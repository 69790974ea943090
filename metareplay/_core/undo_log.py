"""The undo log of a file of rows: what rows were before they were overwritten."""

import os
from collections.abc import Container
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final, final

import numpy as np
import torch

from metareplay._core.draws import Ints
from metareplay._core.files import names_in, write_atomically
from metareplay._core.row_file import bytes_of, write_all
from metareplay._core.row_form import Field, Records, RowForm

ENTRIES: Final = 4096  # to read at a time


@final
class UndoLog:
    """Keep earlier records in files `undo-N.bin`, one per segment; each entry has a checksum of its own.

    An entry is in the log before its row is overwritten, so that a process that is killed while it writes leaves
    everything that is needed to go back.

    Args:
        folder: Where the files are.
        size: How many bytes a record has.
        segment: The number of the segment that is being written.
        entries: How many entries it has.
    """

    def __init__(self, folder: Path, size: int, segment: int, entries: int) -> None:
        self._folder, self.segment = folder, segment
        self._form = RowForm((Field("record", "uint8", (size,)),))
        self.entries = min(entries, self._count(segment))  # there are fewer after a kill in `compact`

    def append(self, rows: Ints, records: Records) -> None:
        """Add entries and wait until they are on the disk; if that fails, they are not part of the log.

        Args:
            rows: The rows that are going to be overwritten.
            records: What they are now.
        """
        made = self._form.records({"record": torch.from_numpy(records)}, rows)
        self._form.seal(made, self.entries + np.arange(len(rows)))
        file = os.open(self._path(self.segment), os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        try:
            write_all(file, bytes_of(made), self.entries * self._form.size)
            os.fsync(file)
        finally:
            os.close(file)
        self.entries += len(rows)

    def entries_backwards(self, segment: int, start: int) -> list[tuple[int, int]]:
        """Return the ranges of entries of a segment from its end back to `start`, as pieces to read in this order.

        Args:
            segment: The segment.
            start: The first entry that counts.
        """
        total = self._count(segment)
        bounds = [*range(start, total, ENTRIES), total] if total > start else [start]
        return list(pairwise(bounds))[::-1]

    def read(self, segment: int, start: int, end: int) -> tuple[Ints, Records]:
        """Return the rows and earlier records of some entries, only the first one of each row.

        Args:
            segment: The segment.
            start: The first entry.
            end: The entry after the last one; entries from the first torn one on are left out.
        """
        raw = self._raw(segment, start, end)
        right = self._form.intact(raw, start + np.arange(len(raw)))
        raw = raw if right.all() else raw[: int(np.argmin(right))]
        rows, first = np.unique(self._form.numbers(raw), return_index=True)
        return rows, self._form.columns(raw[first])["record"].numpy()

    def is_whole(self, segment: int, entries: int) -> bool:
        """Return whether the entries of a segment are all there and intact.

        Args:
            segment: The segment.
            entries: How many it must have, at least.
        """
        pieces = [(start, min(start + ENTRIES, entries)) for start in range(0, entries, ENTRIES)]
        return entries <= self._count(segment) and all(
            bool(self._form.intact(self._raw(segment, start, end), np.arange(start, end)).all())
            for start, end in pieces
        )

    def _raw(self, segment: int, start: int, end: int) -> Records:
        with self._path(segment).open("rb") as file:
            file.seek(start * self._form.size)
            return np.frombuffer(file.read((end - start) * self._form.size), np.uint8).reshape(-1, self._form.size)

    def compact(self, rows: int) -> None:
        """Keep only the first entry of each row in the current segment: that is how the row was when it began.

        This is for a moment when nothing has been written since the last commit.

        Args:
            rows: How many rows there can be.
        """
        known, kept, path = np.zeros(rows, np.bool_), 0, self._path(self.segment)
        with write_atomically(path) as file:
            for start in range(0, self.entries, ENTRIES):
                numbers, records = self.read(self.segment, start, min(start + ENTRIES, self.entries))
                new = ~known[numbers]
                known[numbers] = True
                made = self._form.records({"record": torch.from_numpy(records[new])}, numbers[new])
                file.write(self._form.seal(made, kept + np.arange(len(made))).data)
                kept += len(made)
        self.entries = kept

    def lengths(self) -> dict[int, int]:
        """Return how many entries there is room for in the file of each segment before the current one."""
        return {number: self._count(number) for number in self._segments() if number < self.segment}

    def newest(self) -> int:
        """Return the number of the newest segment, also if it came after the last commit."""
        return max([self.segment, *self._segments()])

    def begin(self, segment: int) -> None:
        """Write to another segment from now on, which must be new.

        Args:
            segment: Its number.
        """
        self.remove(segment)
        self.segment, self.entries = segment, 0

    def keep_only(self, needed: Container[int]) -> None:
        """Delete all other segments but the current one, and of that one what follows the last entry that counts.

        Args:
            needed: The segments to keep besides the current one.
        """
        for number in self._segments():
            if number != self.segment and number not in needed:
                self.remove(number)
        with suppress(FileNotFoundError):
            os.truncate(self._path(self.segment), self.entries * self._form.size)

    def remove(self, segment: int) -> None:
        """Delete the entries of a segment.

        Args:
            segment: Its number.
        """
        self._path(segment).unlink(missing_ok=True)

    def _segments(self) -> list[int]:
        names = [name for name in names_in(self._folder) if name.startswith("undo-") and name.endswith(".bin")]
        numbers = [name.removeprefix("undo-").removesuffix(".bin") for name in names]
        return sorted(int(number) for number in numbers if number.isascii() and number.isdigit())

    def _count(self, segment: int) -> int:
        try:
            return self._path(segment).stat().st_size // self._form.size
        except FileNotFoundError:
            return 0

    def _path(self, segment: int) -> Path:
        return self._folder / f"undo-{segment}.bin"
