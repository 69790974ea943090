"""A reservoir whose rows are in files: larger than RAM, and safe against a kill at any moment."""

import os
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metareplay._core import plain_labels
from metareplay._core.archive import write_arrays
from metareplay._core.batches import Batch, batch_of, columns_of
from metareplay._core.checks import check_count, check_room, choice, instance, path_of, shown, whole
from metareplay._core.columns import Columns
from metareplay._core.disk_rows import DiskRows
from metareplay._core.draws import Draws, Ints, Purpose
from metareplay._core.folder_lock import FolderLock
from metareplay._core.interrupts import HeldBack
from metareplay._core.row_form import RowForm
from metareplay._core.table import Table
from metareplay.errors import InputError
from metareplay.memories.disk_storage import DiskStorage
from metareplay.memories.memory import Memory
from metareplay.memories.no_holes import FewMoved, FirstOnes, InOrder

PIECE: Final = 4096  # rows to move at a time
KINDS: Final = ("dict", "tuple", "tensor")  # of batches
EMPTY: Final = 0  # the mark of a reservoir without files


@final
class DiskReservoir(Memory):
    """Hold a uniform sample of all rows seen in files of a folder; opening the folder again goes on with them.

    Give it to a learner as its memory, or use it in a training loop of your own: `offer` takes batches of rows, which
    are dictionaries, tuples or single tensors with a common first dimension, and `sample` returns batches of the same
    kind. Rows are written by a thread in the background, and committed about once per second. A process that is killed
    at any moment leaves the state of the last commit; `flush` commits now. Every row carries a checksum, which is
    checked whenever the row is read.

    Args:
        folder: Where the files are. It belongs to one reservoir at a time.
        capacity: The largest number of rows to hold; None for that of the reservoir which is there already.
        seed: Decides the draws of `offer` and `sample`. A learner makes its own draws.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, DiskReservoir(folder, capacity=100) as reservoir:
    ...     reservoir.offer({"tokens": torch.zeros(500, 16, dtype=torch.int32)})
    ...     len(reservoir), reservoir.seen, reservoir.sample(8)["tokens"].shape
    (100, 500, torch.Size([8, 16]))
    """

    def __init__(self, folder: str | Path, capacity: int | None = None, seed: int = 0) -> None:
        self.folder = path_of("folder", folder)
        self._place = self.folder.absolute()  # wherever the process goes
        self._draws = Draws(seed)
        if capacity is not None:
            check_count("capacity", capacity, "a memory holds at least one example")
        self._lock, self._process = FolderLock(self._place), os.getpid()
        try:
            self._rows = DiskRows.open(self._place, self._lock, _check_state)
            if capacity is None and self._rows is None:
                raise InputError(f"there is no reservoir in {self.folder} yet: say how large it may be, capacity=...")
            there = whole("capacity", capacity) if self._rows is None else self._rows.capacity
            if capacity is not None and there != capacity:
                raise InputError(
                    f"the reservoir in {self.folder} has a capacity of {there}, not {shown(capacity)}: leave capacity "
                    f"out, or use another folder"
                )
            super().__init__(there)
        except BaseException:
            self._lock.release()
            raise
        self._on_disk = DiskStorage(self, self.capacity)
        self.storage = self._on_disk
        self._taken: tuple[Ints, dict[str, Tensor], Ints | None] | None = None  # they are written when they are counted
        self._kind, self._sampled, self._closed = "dict", 0, False
        self._named: dict[str, Any] = {}  # the labels as the folder has them
        if self._rows is not None:
            self._take_state(self._rows)

    def make_lists(self) -> None:
        """Make lists that need no memory: slots are filled in order, without holes."""
        self.order, self.row_of = cast(Ints, InOrder()), cast(Ints, FewMoved())
        self.is_filled = cast(NDArray[np.bool_], FirstOnes(self.__len__))
        self.number_of = None

    def place(self, draws: Draws, tasks: Ints) -> Ints:
        """Fill the slots in order; then Algorithm 3. After rows were removed, what comes next may fill the gap."""
        earlier = self.seen + np.arange(len(tasks), dtype=np.int64)
        j = draws.each(Purpose.KEEP, self.seen, earlier + 1)
        if len(self) == min(self.seen, self.capacity):
            return np.where(earlier < self.capacity, earlier, np.where(j < self.capacity, j, -1))
        slots, count = np.full(len(tasks), -1), len(self)
        for i in np.flatnonzero((earlier < self.capacity) | (j < self.capacity)).tolist():
            is_new = earlier[i] < self.capacity or j[i] >= count
            slots[i] = count if is_new else j[i]
            count += is_new
        return slots

    def check_labels(self, labels: tuple[Hashable, ...]) -> None:
        """Raise InputError for labels that cannot be written to the folder."""
        plain_labels.written(labels)

    def name_labels(self, labels: tuple[Hashable, ...] | None) -> None:
        """Know the labels, which are written to the folder with the next rows."""
        self._named = {} if labels is None else {"labels": plain_labels.written(labels)}
        super().name_labels(labels)

    def settings(self) -> dict[str, object]:
        """Return kind, folder, capacity and seed."""
        known = {"folder": str(self.folder), "capacity": self.capacity, "seed": self._draws.seed}
        return {"kind": "DiskReservoir", **known}

    def offer(self, batch: Batch, draws: Draws | None = None) -> None:
        """Offer rows to the reservoir, in order. Rows of another form than before raise InputError.

        Args:
            batch: A dictionary or a tuple of tensors or arrays with the same first dimension, or a single one.
            draws: The draws of the training loop that this reservoir belongs to, which has called `check_offer`; None
                for its own.
        """
        kind, columns = columns_of(batch)
        _check_draws(draws)
        if draws is None:
            if self._claimed:
                raise InputError("this reservoir belongs to a learner, which offers it what it observes: use store()")
            self.check_offer(columns)
        rows = self._make(columns)
        rows.form.check(columns)
        columns = {name: values.cpu().contiguous() for name, values in columns.items()}  # takes memory: before all else
        self._kind = kind
        for piece in Columns(columns).pieces(PIECE):
            tasks = np.full(len(piece), -1)
            with HeldBack():
                slots = self.place(draws or self._draws, tasks)
                kept, at = _last(slots)
                self._taken = kept, dict(piece.items()), at
                self.keep(slots, tasks)

    def sample(self, size: int, draws: Draws | None = None) -> Any:
        """Draw rows, uniformly and with replacement, as a batch of the kind that was offered.

        The rows of the next batch are read ahead from the disk in the background.

        Args:
            size: How many rows to draw.
            draws: The draws of what this reservoir belongs to; None for its own.
        """
        check_count("size", size, "a batch has at least one row")
        _check_draws(draws)
        rows = self._open_rows()
        check_room("size", size, whole("size", size) * rows.form.size)
        if not len(self):
            raise InputError(f"the reservoir in {self.folder} is empty: offer rows first")
        draws = draws or self._draws
        found = rows.form.columns(rows.read(self._drawn(draws, size)))
        self._sampled += 1
        rows.prefetch(self._drawn(draws, size))
        return batch_of(self._kind, found)

    def take_back(self) -> None:
        """Forget that the latest batch was sampled: the next one has the same rows again."""
        if not self._sampled:
            raise InputError(f"no batch was sampled from the reservoir in {self.folder} yet: call sample() first")
        self._sampled -= 1

    def flush(self) -> None:
        """Wait until everything offered so far is on the disk and committed; raise DiskError if it cannot be."""
        if self._rows is not None:
            self._commit_counts()
            self._open_rows().flush()

    def mark(self) -> int:
        """Commit, and return a number by which `return_to` finds the present state again, for instance on resuming.

        The two newest marks can be returned to, until rows are removed.
        """
        self._commit_counts()
        return self._open_rows().mark()

    @property
    def kind(self) -> str:
        """The kind of the latest batch: "dict", "tuple" or "tensor"."""
        return self._kind

    @property
    def marks(self) -> list[int]:
        """The marks that `return_to` can return to."""
        return [] if self._rows is None else self._rows.marks

    def return_to(self, mark: int) -> None:
        """Go back to a mark; rows that were offered later are gone, and the draws continue as they did then.

        Args:
            mark: What `mark` returned.
        """
        self.check_mark(mark)
        if mark != EMPTY:
            rows = self._open_rows()
            rows.return_to(whole("mark", mark))  # a plain number, which is written as JSON
            self._take_state(rows)

    def check_mark(self, mark: int) -> None:
        """Raise InputError if the reservoir cannot go back to a mark."""
        if whole("mark", mark) not in (self.marks if self.seen else [*self.marks, EMPTY]):
            raise InputError(
                f"the reservoir in {self.folder} cannot go back to mark {shown(mark)}: it keeps its two newest marks "
                f"({', '.join(map(str, self.marks)) or 'none'} now), and none from before rows were removed"
            )

    def saved_apart(self) -> int:
        """Return a mark for a checkpoint, which holds it instead of the rows."""
        return self.mark() if self._rows is not None else EMPTY

    def sorted_slots(self) -> Sequence[int]:
        """Return the slots that hold a row, without a list of them."""
        return range(len(self))

    def copy(self) -> Memory:
        """Refuse to be copied: the files belong to one object."""
        raise InputError(f"a reservoir on disk cannot be copied: close it, and open {self.folder} where it is needed")

    def check(self) -> list[int]:
        """Read everything; return the slots whose checksums are wrong."""
        rows, wrong = self._open_rows(), list[int]()
        for start in range(0, len(self), PIECE):
            intact = rows.intact(start, min(start + PIECE, len(self)))
            wrong += (start + np.flatnonzero(~intact)).tolist()
        return wrong

    def repair(self) -> int:
        """Remove rows whose checksums are wrong; return how many there were."""
        wrong = self.check()
        self.drop(np.array(wrong, np.int64))
        return len(wrong)

    def export(self, path: str | Path) -> None:
        """Write all fields of the rows held as a NumPy archive, with the arrays numbers and seen."""
        held = {name: (v.float() if v.dtype == torch.bfloat16 else v).numpy() for name, v in self.held().items()}
        write_arrays(path_of("path", path), held | {"numbers": self.numbers(), "seen": np.array(self.seen)})

    def close(self) -> None:
        """Commit everything and give the folder back; a reservoir that is closed cannot be used any more."""
        if not self._closed:
            self.flush()
            self._closed = True
            try:
                if self._rows is not None:
                    self._rows.close()
            finally:
                self._lock.release()

    def __enter__(self) -> "DiskReservoir":
        """Use the reservoir in a `with` block, which closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the reservoir."""
        self.close()

    def __reduce__(self) -> Any:
        """Refuse to be pickled, as `copy` does."""
        return self.copy()

    # What tables and checkpoints use.

    def check_column(self, name: str, like: Tensor) -> None:
        """Raise InputError if the rows on disk do not have this column.

        Args:
            name: The column's name.
            like: Some values of it.
        """
        if self._rows is not None:
            fields = {field.name: field for field in self._rows.form.fields}
            [given] = RowForm.of({name: like}).fields
            if fields.get(name) != given:
                raise InputError(
                    f"a row here has {given}, but the rows in {self.folder} have "
                    f"{'; '.join(map(str, fields.values()))}: use another folder"
                )

    def check_offer(self, columns: Mapping[str, Tensor]) -> None:
        """Raise InputError if rows have another form than those on disk, and DiskError if those cannot be written.

        Args:
            columns: The rows, by column.
        """
        if self._rows is not None:
            self._rows.form.check(columns)
            self._rows.check_writing()

    def read(self, slots: Ints) -> dict[str, Tensor]:
        """Return a copy of all fields of some slots.

        Args:
            slots: The slots, in any order.
        """
        rows = self._open_rows()
        return rows.form.columns(rows.read(slots))

    def take(self, slots: Ints, values: dict[str, Tensor]) -> None:
        """Take rows that are going to be counted by `keep`, which writes them; raise DiskError if writing fails.

        Args:
            slots: The slot of each row, each at most once.
            values: The fields of these rows.
        """
        self._make(values).check_writing()
        self._taken = slots, values, None

    def keep(self, slots: Ints, tasks: Ints) -> None:
        """Record that examples were offered and where they went, and hand them to the writer."""
        rows, offered = self._open_rows(), np.unique(tasks, return_counts=True)
        taken, self._taken = self._taken, None
        written, values, which = taken if taken is not None else (np.zeros(0, np.int64), {}, None)
        records = None
        if len(written):  # the bytes are made before anything is counted, so that a row that is counted is there
            kept, at = _last(slots)
            records = rows.form.records(values, self.seen + at[np.searchsorted(kept, written)], which)
        self._count = max(self._count, int(slots.max(initial=-1)) + 1)
        self.seen += len(slots)
        self.seen_of.update(dict(zip(*(part.tolist() for part in offered), strict=True)))
        if records is not None:
            rows.put(written, records, len(self), self._state())
        else:
            self._commit_counts()

    def numbers_of(self, slots: Ints) -> Ints:
        """Return the number in the stream of the row in each of some slots."""
        rows = self._open_rows()
        return rows.form.numbers(rows.read(slots))

    def drop(self, slots: Ints) -> None:
        """Remove rows from the files: the last rows take their places, and the undo log is deleted."""
        if not len(slots):
            return
        rows, left = self._open_rows(), len(self) - len(slots)
        with HeldBack():
            holes = np.sort(slots[slots < left])
            moved = np.setdiff1d(np.arange(left, len(self)), slots)
            self._count = left
            for start in range(0, len(holes), PIECE):
                to = holes[start : start + PIECE]
                rows.put(to, rows.read(moved[start : start + PIECE]), left, self._state())
            for start in range(left, left + len(slots), PIECE):
                gone = np.arange(start, min(start + PIECE, left + len(slots)))
                rows.put(gone, np.zeros((len(gone), rows.form.size), np.uint8), left, self._state())
            rows.forget()

    def _make(self, columns: Mapping[str, Tensor]) -> DiskRows:
        """Return the rows; make the files when the first rows come."""
        self._check_open()
        if self._rows is None:
            self._rows = DiskRows(self._place, RowForm.of(columns), self.capacity, self._state(), self._lock)
        if self.table is None:
            self._make_table(self._rows)
        return self._rows

    def _make_table(self, rows: DiskRows) -> None:
        self._on_disk.begin()
        self.table = Table(self.capacity, 0, Columns(rows.form.like()), self._on_disk)

    def _check_open(self) -> None:
        if self._closed:
            raise InputError(f"this reservoir is closed: open {self.folder} again")
        if os.getpid() != self._process:  # after a fork; two processes would overwrite each other's rows
            raise InputError(
                f"the reservoir in {self.folder} belongs to the process that opened it: open another folder in this one"
            )

    def _open_rows(self) -> DiskRows:
        self._check_open()
        if self._rows is None:
            raise InputError(f"the reservoir in {self.folder} is empty: offer rows first")
        return self._rows

    def _drawn(self, draws: Draws, size: int) -> Ints:
        return draws.integers(Purpose.REPLAY, self._sampled, size, max(1, len(self)))

    def _state(self) -> dict[str, Any]:
        counts = {"seen": self.seen, "seen_of": [list(pair) for pair in sorted(self.seen_of.items())]}
        return {**counts, "sampled": self._sampled, "kind": self._kind, **self._named}

    def _commit_counts(self) -> None:
        """Hand the number of batches sampled so far to the writer."""
        rows = self._open_rows()
        if rows.state != self._state():
            rows.put(np.zeros(0, np.int64), np.zeros((0, rows.form.size), np.uint8), len(self), self._state())

    def _take_state(self, rows: DiskRows) -> None:
        """Take over the counts of the last commit."""
        state = rows.state
        self._count, self.seen, self._sampled, self._kind = rows.count, state["seen"], state["sampled"], state["kind"]
        self.seen_of = Counter(dict(state["seen_of"]))
        self.name_labels(tuple(plain_labels.read(state["labels"])) if "labels" in state else None)
        if self.table is None:
            self._make_table(rows)


def _check_state(state: Any, count: int) -> None:
    """Raise ValueError, or what Python raises, for a state that a reservoir of this many rows cannot have."""
    of_each = {whole("task", task): whole("seen_of", seen) for task, seen in state["seen_of"]}
    if sum(of_each.values()) != state["seen"] or min(of_each.values(), default=1) < 1 or state["seen"] < count:
        raise ValueError("the counts of rows are wrong")
    if type(state["seen"]) is not int or type(state["sampled"]) is not int or not 0 <= state["sampled"] < 2**62:
        raise ValueError("the count of batches is wrong")
    choice("kind", state["kind"], KINDS)
    if "labels" in state:
        plain_labels.read(state["labels"])


def _check_draws(draws: Draws | None) -> None:
    if draws is not None:
        instance("draws", draws, Draws, "a Draws, or None")


def _last(slots: Ints) -> tuple[Ints, Ints]:
    """Return the slots that are filled, sorted, and which example comes last in each of them."""
    distinct, backwards = np.unique(slots[::-1], return_index=True)
    return distinct[distinct >= 0], (len(slots) - 1 - backwards)[distinct >= 0]
