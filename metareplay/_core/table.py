"""One table of examples: the memory's slots first, then room for the examples that have just come in."""

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any, ClassVar, Final, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metareplay._core.columns import Columns
from metareplay._core.draws import Ints

PIECE: Final = 4096  # rows to erase at a time


class Column(ABC):
    """Hold one column of a table. Implementations decide where its values live: in RAM, on a GPU or on disk.

    Attributes:
        in_memory: Whether writing cannot fail. It is False for columns of the user's own.
    """

    in_memory: ClassVar[bool] = False

    @abstractmethod
    def gather(self, rows: Tensor) -> Tensor:
        """Return a copy of these rows' values.

        Args:
            rows: Row numbers (int64), in any order, repeated or not.
        """

    @abstractmethod
    def write(self, rows: Tensor, values: Tensor) -> None:
        """Replace the values of these rows.

        Args:
            rows: Row numbers (int64), each at most once.
            values: The new values, one per row.
        """

    def copy(self, to: Tensor, source: Tensor) -> None:
        """Copy the values of some rows to others.

        Args:
            to: The rows to replace, each at most once.
            source: The rows to copy, as many.
        """
        self.write(to, self.gather(source))


class Storage(ABC):
    """Make the columns of a table, and so decide where they are kept."""

    @abstractmethod
    def column(self, name: str, rows: int, like: Tensor) -> Column:
        """Make an empty column.

        Args:
            name: The column's name.
            rows: How many rows it has.
            like: Some values of the column, whose row shape and dtype it takes over.
        """


class RowStorage(Storage):
    """Keep the slots of a table row by row, with all columns of a row in one place, for instance in a file on disk."""

    @abstractmethod
    def read_rows(self, rows: Tensor) -> Columns:
        """Return a copy of all columns of these rows.

        Args:
            rows: Row numbers (int64), in any order, repeated or not.
        """

    @abstractmethod
    def write_rows(self, rows: Tensor, values: Columns) -> None:
        """Replace all columns of these rows; all of them, or nothing if this raises an exception.

        Args:
            rows: Row numbers (int64), each at most once.
            values: The new values of every column.
        """


@final
class TensorColumn(Column):
    """Hold a column as one preallocated tensor, in the dtype of the data (images stay uint8).

    Args:
        rows: How many rows it has.
        like: Some values of the column, whose row shape and dtype it takes over.
        device: Where the tensor lives.
    """

    in_memory: ClassVar[bool] = True

    def __init__(self, rows: int, like: Tensor, device: torch.device) -> None:
        self.values = torch.zeros((rows, *like.shape[1:]), dtype=like.dtype, device=device)

    def gather(self, rows: Tensor) -> Tensor:
        """Return a copy of these rows' values."""
        return self.values[rows.to(self.values.device)]

    def write(self, rows: Tensor, values: Tensor) -> None:
        """Replace the values of these rows; one by one, which takes no memory, if a GPU has none left."""
        try:
            self.values[rows.to(self.values.device)] = values.to(self.values.device)
        except torch.cuda.OutOfMemoryError:
            for row, value in zip(rows.tolist(), values, strict=True):
                self.values[row].copy_(value)

    def copy(self, to: Tensor, source: Tensor) -> None:
        """Copy the values of some rows to others; one by one if a GPU has no memory left."""
        try:
            self.write(to, self.gather(source))
        except torch.cuda.OutOfMemoryError:
            for row, other in zip(to.tolist(), source.tolist(), strict=True):
                self.values[row].copy_(self.values[other])


@final
class TensorStorage(Storage):
    """Keep columns as tensors on one device.

    Args:
        device: The model's device, so that nothing has to be copied while learning.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def column(self, name: str, rows: int, like: Tensor) -> TensorColumn:
        """Make an empty column. Task ids stay on the CPU, where plans are made and parts of models are chosen."""
        return TensorColumn(rows, like, torch.device("cpu") if name == "task" else self._device)


@final
class Table:
    """Hold examples by row: rows 0 .. capacity - 1 are memory slots, row capacity + i is the i-th incoming example.

    Plans name examples by row, so an engine needs only this table and integers. Engines read with `gather`; the storage
    decides where the values live.

    Args:
        capacity: How many memory slots there are.
        room: How many incoming examples fit.
        like: Some examples, whose columns the table takes over.
        storage: Where the columns are kept.
    """

    def __init__(self, capacity: int, room: int, like: Columns, storage: Storage) -> None:
        self.capacity = capacity
        counts: type = np.uint32 if isinstance(storage, RowStorage) else np.int64  # there may be very many rows on disk
        self.writes: NDArray[Any] = np.zeros(capacity + room, counts)  # how often each row was written, for caches
        self._storage = storage
        self._columns: dict[str, Column] = {}
        self._shapes: dict[str, torch.Size] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        for name, values in like.items():
            self._add(name, values)

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.writes)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self._columns)

    @property
    def columns(self) -> dict[str, Column]:
        """All columns by name."""
        return dict(self._columns)

    @property
    def in_memory(self) -> bool:
        """Whether writing cannot fail, because all columns are tensors; a user's own may be on a disk that is full."""
        return all(column.in_memory for column in self._columns.values())

    @property
    def in_rows(self) -> bool:
        """Whether the slots are kept row by row, so that it pays to read whole rows and each of them once."""
        return isinstance(self._storage, RowStorage)

    def column(self, name: str) -> Column:
        """Return one column.

        Args:
            name: The column's name.
        """
        return self._columns[name]

    def shape(self, name: str) -> torch.Size:
        """Return the shape of one row of a column.

        Args:
            name: The column's name.
        """
        return self._shapes[name]

    def gather(self, rows: Tensor) -> Columns:
        """Return a copy of all columns of these rows.

        Args:
            rows: Row numbers (int64), in any order, repeated or not.
        """
        if isinstance(self._storage, RowStorage):
            return self._storage.read_rows(rows)
        return Columns({name: column.gather(rows) for name, column in self._columns.items()})

    def tasks(self, rows: Ints) -> Tensor:
        """Return the tasks of these rows, on the CPU.

        Args:
            rows: Row numbers.
        """
        return self._columns["task"].gather(torch.from_numpy(rows))

    def bring(self, incoming: Columns) -> None:
        """Write incoming examples into the rows behind the slots.

        Args:
            incoming: The examples, with the columns that the table has.
        """
        rows = torch.arange(self.capacity, self.capacity + len(incoming), device="cpu")
        self.writes[self.capacity : self.capacity + len(incoming)] += 1
        for name, values in incoming.items():
            self._columns[name].write(rows, values)

    def keep(self, slots: Ints) -> None:
        """Copy the i-th incoming example into slots[i], unless that is -1. Of several in one slot the last stays.

        If a storage of the user's own raises an exception, the slots are written back as they were.

        Args:
            slots: The slot of each incoming example, in order.
        """
        last = {int(slot): self.capacity + i for i, slot in enumerate(slots) if slot >= 0}
        if last:
            to, source = torch.tensor([*last.keys()], device="cpu"), torch.tensor([*last.values()], device="cpu")
            self.writes[to.numpy()] += 1
            if isinstance(self._storage, RowStorage):
                self._storage.write_rows(to, self.gather(source))
                return
            before = None if self.in_memory else self.gather(to)
            try:
                for column in self._columns.values():
                    column.copy(to, source)
            except BaseException:
                for name, values in before.items() if before is not None else ():
                    with suppress(Exception):
                        self._columns[name].write(to, values)
                raise

    def erase(self, rows: Ints) -> None:
        """Overwrite rows with zeros, and the incoming examples with them, so that nothing is left of what was there.

        Args:
            rows: Row numbers.
        """
        gone = torch.from_numpy(np.concatenate([rows, np.arange(self.capacity, len(self))]))
        zeros = {  # of all columns, before anything is erased: memory may run out
            name: torch.zeros((1, *shape), dtype=self._dtypes[name], device="cpu")
            for name, shape in self._shapes.items()
        }
        self.writes[gone.numpy()] += 1
        for name, column in self._columns.items():
            for some in gone.split(PIECE):
                column.write(some, zeros[name].expand(len(some), *self._shapes[name]))

    def fill(self, name: str, rows: Tensor, values: Tensor) -> None:
        """Write values into one column, which is added if the table does not have it yet.

        Args:
            name: The column's name.
            rows: Row numbers (int64).
            values: The values, one per row.
        """
        if name not in self._columns:
            self._add(name, values)
        self.writes[rows.numpy()] += 1
        self._columns[name].write(rows, values)

    def _add(self, name: str, like: Tensor) -> None:
        self._columns[name] = self._storage.column(name, len(self), like)
        self._shapes[name], self._dtypes[name] = like.shape[1:], like.dtype
