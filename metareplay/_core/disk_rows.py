"""Rows on disk that survive a kill at any moment, written in the background."""

import errno
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Condition, Thread
from time import monotonic
from typing import Any, Final, final

import numpy as np

from metareplay._core.checks import shortened, shown
from metareplay._core.draws import Ints
from metareplay._core.files import read_file, write_atomically
from metareplay._core.folder_lock import FolderLock
from metareplay._core.interrupts import HeldBack
from metareplay._core.row_file import RowFile
from metareplay._core.row_form import Records, RowForm
from metareplay._core.seal import opened_json, sealed_json
from metareplay._core.undo_log import UndoLog
from metareplay._version import __version__
from metareplay.errors import CheckpointError, DiskError, InputError

FORMAT: Final = 1
DOCUMENT: Final = "reservoir.json"
PENDING: Final = 2**23  # bytes of rows that may wait to be written
SECONDS: Final = 1.0  # between two commits
FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
MOST: Final = 2**62  # of anything that is counted
MARKS: Final = 2  # marks that are kept: a checkpoint that refers to one may be written just when the next is made


@dataclass(frozen=True)
class _Change:
    """Rows to be written, and the state that holds when they are."""

    rows: Ints
    records: Records
    count: int
    state: dict[str, Any]

    def patch(self, rows: Ints, into: Records) -> None:
        """Replace the records of those of some rows that this changes."""
        if len(self.rows):
            order = np.argsort(self.rows, kind="stable")
            at = np.minimum(np.searchsorted(self.rows[order], rows), len(order) - 1)
            found = self.rows[order][at] == rows
            into[found] = self.records[order[at[found]]]


@final
class DiskRows:
    """Keep rows in a folder, together with a state in plain JSON values that belongs to them.

    The rows are in `rows.bin`. A change takes effect at once for readers and is written by a thread in the background.
    About once per second what has been written is committed: it is synced, and `reservoir.json`, which carries a
    checksum, is replaced by one that says how many rows and which state there are. What a row was at the last commit is
    in the undo log before it is overwritten. So a folder whose process was killed opens with the last commit.

    A mark is a commit to which one can go back later, for a checkpoint. The two newest are kept, for which the undo log
    may become a few times as large as the rows.

    Args:
        folder: Where the files are.
        form: The form of the rows.
        capacity: How many rows there can be.
        state: The state of a new file.
        lock: The lock of the folder, which is held as long as anything is still being written.
        document: What `reservoir.json` says; None makes a new, empty file of rows.
    """

    def __init__(
        self,
        folder: Path,
        form: RowForm,
        capacity: int,
        state: dict[str, Any],
        lock: FolderLock,
        document: dict[str, Any] | None = None,
    ) -> None:
        self._lock = lock
        self.folder, self.form, self.capacity = folder, form, capacity
        begun = document or {"count": 0, "state": state, "segment": 0, "entries": 0, "marks": [], "returning": None}
        self.count: int = begun["count"]
        self.state: dict[str, Any] = begun["state"]
        self._committed: int = begun["count"]
        self._marks: list[tuple[int, int, dict[str, Any]]] = [(s, c, dict(v)) for s, c, v in begun["marks"]]
        self._log = UndoLog(folder, form.size, begun["segment"], begun["entries"])
        if self._log.entries < begun["entries"] <= 2 * capacity:  # a longer one may have been compacted
            raise CheckpointError(
                f"undo-{self._log.segment}.bin in {folder} is damaged: restore the folder from a copy, or delete it "
                f"and start again"
            )
        self._complete: dict[int, int] = (  # entries of segments before the current one
            dict(begun["complete"]) if "complete" in begun else self._log.lengths()  # as it was with earlier versions
        )
        self._waiting: list[_Change] = []  # the writer has not taken these yet
        self._writing: list[_Change] = []  # the writer is at work on these
        self._logged = False  # whether what they overwrite is in the log
        self._changed = Condition()
        self._thread: Thread | None = None
        self._hurry = False
        self._dirty = False  # whether rows or states have been written that are not committed
        self._last = _Change(np.zeros(0, np.int64), np.zeros((0, form.size), np.uint8), self.count, self.state)
        self._error: Exception | None = None
        with HeldBack(), self._told():
            (folder / "rows.bin").touch()
            self._file = RowFile(folder / "rows.bin", capacity, form.size)
            if document is None:
                self._log.keep_only(self._needed())
                self._write_document()
            elif begun["returning"] is not None:
                self._go_back(begun["returning"])
            else:
                for segment in range(self._log.newest(), self._log.segment, -1):
                    self._undo(segment, 0)
                self._undo(self._log.segment, self._log.entries)
                self._log.keep_only(self._needed())
                if self._log.entries != begun["entries"]:  # killed in `compact`; later entries must not fill the rest
                    self._write_document()

    @classmethod
    def open(cls, folder: Path, lock: FolderLock, check_state: Callable[[Any, int], None]) -> "DiskRows | None":
        """Open what is in a folder, as it was at the last commit; None if there is nothing.

        Args:
            folder: The folder.
            lock: Its lock.
            check_state: Raises any exception for a state that cannot be one, given how many rows it belongs to.
        """
        damaged = f"{folder / DOCUMENT} is damaged: restore the folder from a copy, or delete it and start again"
        try:
            document, sealed = opened_json(read_file(folder / DOCUMENT))
            if not sealed:
                raise CheckpointError(damaged)
            if document["format"] != FORMAT:
                raise CheckpointError(
                    f"{folder} has format {shown(document['format'])}, made by metareplay "
                    f"{shortened(str(document['metareplay']))}; this version reads format {FORMAT}"
                )
            form, capacity = RowForm.from_plain(document["form"]), document["capacity"]
            _check(document, check_state)
            if (folder / "rows.bin").stat().st_size != capacity * form.size:
                raise CheckpointError(f"{folder / 'rows.bin'} does not have its size: restore it from a copy")
        except FileNotFoundError as error:
            if error.filename != str(folder / DOCUMENT):
                raise CheckpointError(f"{error.filename} is missing: restore it from a copy") from error
            return None
        except CheckpointError:
            raise
        except OSError as error:
            raise CheckpointError(f"cannot read {folder}: {error.strerror or error}; check its permissions") from error
        except Exception as error:
            raise CheckpointError(damaged) from error
        return cls(folder, form, capacity, {}, lock, document)

    def put(self, rows: Ints, records: Records, count: int, state: dict[str, Any]) -> None:
        """Replace some rows, and the state; all of it or nothing survives a kill.

        This always succeeds; what cannot be written waits, and `check_writing` and `flush` say so.

        Args:
            rows: Their numbers, each at most once.
            records: What they are to be; their checksums are written here.
            count: How many rows there are then; rows from there on mean nothing.
            state: The state, as plain JSON values.
        """
        change = _Change(rows, self.form.seal(records, rows), count, state)
        with HeldBack(), self._changed:
            while self._error is None and self._size() > PENDING:
                self._changed.wait()
            self._waiting.append(change)
            self.count, self.state = count, state
            self._go()

    def check_writing(self) -> None:
        """Raise DiskError if rows that wait could not be written and still cannot be; they go on waiting."""
        with self._changed:
            if self._error is not None:
                self._error = None
                self._go()
                while self._error is None and self._writing:
                    self._changed.wait()
                if self._error is not None:
                    raise _told(self.folder, self._error) from self._error

    def read(self, rows: Ints) -> Records:
        """Return a copy of some rows' records; raise CheckpointError if one is damaged.

        Args:
            rows: Their numbers, in any order, repeated or not.
        """
        return self._checked(rows, self._now(rows))

    def intact(self, start: int, end: int) -> Any:
        """Return for each of some rows that follow one another whether its checksum is right.

        Args:
            start: The first row.
            end: The row after the last one.
        """
        rows = np.arange(start, end)
        return self.form.intact(self._now(rows), rows)

    def prefetch(self, rows: Ints) -> None:
        """Ask the system to read rows from the disk in the background.

        Args:
            rows: Their numbers.
        """
        self._file.prefetch(rows)

    def flush(self) -> None:
        """Wait until everything is written and committed; raise DiskError if it cannot be."""
        with self._changed:
            self._hurry, self._error = True, None
            if self._waiting or self._writing or self._dirty:
                self._go()
            while self._error is None and (self._waiting or self._writing or self._dirty):
                self._changed.wait()
            self._hurry = False
            if self._error is not None:
                raise _told(self.folder, self._error) from self._error

    def mark(self) -> int:
        """Commit, and return a number by which one can go back to the rows and the state as they are now."""
        self.flush()
        with HeldBack(), self._changed, self._told():
            number, before = self._log.segment + 1, self._marks
            self._complete[self._log.segment] = self._log.entries
            self._log.begin(number)
            self._marks = [*before, (number, self.count, self.state)][-MARKS:]
            try:
                self._write_document()
            except BaseException:
                self._marks = before
                raise
            self._log.keep_only(self._needed())
            return number

    @property
    def marks(self) -> list[int]:
        """The marks that one can go back to."""
        return [number for number, _, _ in self._marks]

    def return_to(self, mark: int) -> None:
        """Go back to a mark; what came after it is gone.

        Args:
            mark: What `mark` returned.
        """
        if mark not in self.marks:
            raise InputError(f"{self.folder} cannot go back to mark {mark}: it has {self.marks or 'none'}")
        self.flush()
        with HeldBack(), self._changed, self._told():
            self._go_back(mark)

    def forget(self) -> None:
        """Commit, and delete the undo log and all marks, so that nothing that was overwritten can be found again."""
        self.flush()
        with HeldBack(), self._changed, self._told():
            self._marks = []
            self._log.begin(self._log.segment + 1)
            self._write_document()
            self._log.keep_only(self._needed())

    def close(self) -> None:
        """Commit and close the files."""
        try:
            self.flush()
        finally:
            thread = self._thread
            if thread is not None:
                thread.join()
            self._file.close()

    def _now(self, rows: Ints) -> Records:
        """Return records as they are now, whether they have been written or not."""
        with self._changed:
            changes = [*self._writing, *self._waiting]
        found = self._file.read(rows)
        for change in changes:
            change.patch(rows, found)
        return found

    def _checked(self, rows: Ints, records: Records) -> Records:
        if not self.form.intact(records, rows).all():
            self.flush()  # another thread may have changed rows while they were read
            records = self._file.read(rows)
            wrong = np.unique(rows[~self.form.intact(records, rows)])
            if len(wrong):
                raise CheckpointError(
                    f"row {wrong[0]} of {self.folder} is damaged ({len(wrong)} of those read): repair() removes such "
                    f"rows"
                )
        return records

    def _size(self) -> int:
        return sum(change.records.nbytes for change in [*self._writing, *self._waiting])

    def _go(self) -> None:
        """Let the writer work; it ends when there has been nothing to do for a while."""
        if self._thread is None:
            self._thread = Thread(target=self._work, name="metareplay reservoir")
            self._thread.start()
        self._changed.notify_all()

    def _work(self) -> None:
        """Write and commit until everything is on the disk, or something cannot be written."""
        last = monotonic()
        while True:
            with self._changed:
                due = last + SECONDS - monotonic()
                if not self._waiting and not self._writing and self._dirty and due > 0 and not self._hurry:
                    self._changed.wait(due)
                if not self._writing:
                    self._writing, self._waiting, self._logged = self._waiting, [], False
                if not self._writing and not self._dirty:
                    self._thread = None
                    self._changed.notify_all()
                    return
            try:
                if self._writing:
                    self._write()
                if self._dirty and (self._hurry or monotonic() - last >= SECONDS):
                    self._commit()
                    last = monotonic()
            except Exception as error:  # kept for whoever asks next; the changes go on waiting
                with self._changed:
                    self._error, self._thread = error, None
                    self._changed.notify_all()
                    return

    def _write(self) -> None:
        """Write the rows of all changes that were taken, in the order of the file: it takes them much faster so."""
        changes = self._writing
        rows = np.concatenate([change.rows for change in changes])
        if (rows[1:] <= rows[:-1]).any():
            rows, backwards = np.unique(rows[::-1], return_index=True)  # the last change of each row
            records = np.concatenate([change.records for change in changes])[::-1][backwards]
            changes = [_Change(rows, records, changes[-1].count, changes[-1].state)]
        old = rows[rows < self._committed]
        if len(old) and not self._logged:
            self._log.append(old, self._file.read(old))
        self._logged = True
        for change in changes:
            self._file.write(change.rows, change.records)
        with self._changed:
            self._last, self._writing, self._dirty = self._writing[-1], [], True
            self._changed.notify_all()

    def _commit(self) -> None:
        """Make what has been written the state that a new process finds."""
        self._file.sync()
        count, state = self._last.count, self._last.state
        if not self._marks and self._log.entries:
            self._log.begin(self._log.segment + 1)
        self._write_document(count, state)
        self._committed = count
        if self._log.entries > 2 * self.capacity:
            self._log.compact(self.capacity)
            self._write_document(count, state)
        self._log.keep_only(self._needed())
        with self._changed:
            self._dirty = False
            self._changed.notify_all()

    def _needed(self) -> dict[int, int]:
        """Return the segments before the current one that the marks need, and how many entries each has."""
        return {segment: entries for segment, entries in self._complete.items() if segment >= self._oldest()}

    def _oldest(self) -> int:
        return self._marks[0][0] if self._marks else self._log.segment

    def _go_back(self, mark: int) -> None:
        """Undo everything since a mark; if this is interrupted, opening the folder goes on with it."""
        self._check_log(mark)
        self._write_document(returning=mark)
        undone = range(self._log.newest(), mark - 1, -1)
        for segment in undone:
            self._undo(segment, 0)
        [(_, count, state)] = [one for one in self._marks if one[0] == mark]
        self.count, self._committed, self.state = count, count, dict(state)
        self._marks = [one for one in self._marks if one[0] <= mark]
        self._complete = {segment: entries for segment, entries in self._complete.items() if segment < mark}
        self._log.begin(undone[0] + 1)  # a number that no checkpoint knows: no later mark is taken for an earlier one
        self._write_document()
        self._log.keep_only(self._needed())

    def _check_log(self, mark: int) -> None:
        """Raise CheckpointError if something is missing of what is needed in order to go back to a mark."""
        known = self._complete | {self._log.segment: self._log.entries}
        for segment, entries in known.items():
            if segment >= mark and not self._log.is_whole(segment, entries):
                raise CheckpointError(
                    f"undo-{segment}.bin in {self.folder} is damaged, so that mark {mark} cannot be returned to: "
                    f"restore the folder from a copy, or go on from a later mark"
                )

    def _undo(self, segment: int, start: int) -> None:
        """Write back what the entries of a segment from `start` on say."""
        pieces = self._log.entries_backwards(segment, start)
        for first, end in pieces:
            self._file.write(*self._log.read(segment, first, end))
        if pieces:
            self._file.sync()

    def _write_document(
        self, count: int | None = None, state: dict[str, Any] | None = None, returning: int | None = None
    ) -> None:
        document = {
            "format": FORMAT,
            "metareplay": __version__,
            "capacity": self.capacity,
            "form": self.form.plain(),
            "count": self.count if count is None else count,
            "state": self.state if state is None else state,
            "segment": self._log.segment,
            "entries": self._log.entries,
            "marks": self._marks,
            "complete": list(self._needed().items()),
            "returning": returning,
        }
        with write_atomically(self.folder / DOCUMENT) as file:
            file.write(sealed_json(document))

    def _told(self) -> "_Told":
        return _Told(self.folder)


@final
class _Told:
    """Turn an OSError in a `with` block into a DiskError that says what to do."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError):
            raise _told(self._folder, error) from error


def _told(folder: Path, error: Exception) -> Exception:
    if not isinstance(error, OSError):
        return error
    what = "free some space" if error.errno in FULL else "make it writable again"
    return DiskError(f"cannot write {folder}: {error.strerror or error}; {what}, nothing is lost so far")


def _check(document: dict[str, Any], check_state: Callable[[Any, int], None]) -> None:
    """Raise ValueError, or what Python raises, for a document that no `DiskRows` would have written."""
    states = [(document["count"], document["state"]), *((count, state) for _, count, state in document["marks"])]
    numbers = [document[name] for name in ("capacity", "segment", "entries")] + [count for count, _ in states]
    numbers += [mark for mark, _, _ in document["marks"]] + [
        one for pair in document.get("complete", []) for one in pair
    ]
    if any(type(number) is not int or not 0 <= number < MOST for number in numbers):
        raise ValueError("a number is not one of rows, marks or segments")
    if document["returning"] not in (None, *(mark for mark, _, _ in document["marks"])):
        raise ValueError("it goes back to a mark that is not there")
    for count, state in states:
        if count > document["capacity"]:
            raise ValueError("more rows than it can hold")
        check_state(state, count)
