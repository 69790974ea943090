"""The storage of a memory on disk: slots in a file of rows, incoming examples in RAM."""

from typing import TYPE_CHECKING, final

import numpy as np
import torch
from torch import Tensor

from metareplay._core.columns import Columns
from metareplay._core.table import Column, RowStorage
from metareplay.errors import InputError

if TYPE_CHECKING:
    from metareplay.memories.disk_reservoir import DiskReservoir


@final
class DiskColumn(Column):
    """Read one column of rows on disk; the rows behind the slots, for incoming examples, are a tensor in RAM.

    Args:
        storage: The storage that the column belongs to.
        name: The column's name.
        room: How many incoming examples there may be.
        like: Some values of the column.
    """

    def __init__(self, storage: "DiskStorage", name: str, room: int, like: Tensor) -> None:
        self._storage, self._name = storage, name
        self.room = torch.zeros((room, *like.shape[1:]), dtype=like.dtype, device="cpu")

    def gather(self, rows: Tensor) -> Tensor:
        """Return a copy of these rows' values."""
        return self._storage.read_rows(rows)[self._name]

    def write(self, rows: Tensor, values: Tensor) -> None:
        """Replace the values of incoming examples; slots are only written as whole rows."""
        self.room[rows - self._storage.capacity] = values.to("cpu")


@final
class DiskStorage(RowStorage):
    """Keep the slots of a table in the files of a reservoir.

    Args:
        reservoir: The reservoir.
        capacity: How many slots it has.
    """

    def __init__(self, reservoir: "DiskReservoir", capacity: int) -> None:
        self._reservoir, self.capacity = reservoir, capacity
        self._columns: dict[str, DiskColumn] = {}

    def column(self, name: str, rows: int, like: Tensor) -> DiskColumn:
        """Make a column; its slots are those on disk."""
        self._reservoir.check_column(name, like)
        self._columns[name] = DiskColumn(self, name, rows - self.capacity, like)
        return self._columns[name]

    def read_rows(self, rows: Tensor) -> Columns:
        """Return a copy of all columns of these rows; each row is read once."""
        numbers = rows.numpy()
        held = np.flatnonzero(numbers < self.capacity)
        if len(held) == len(numbers):
            return Columns(self._reservoir.read(numbers))
        come = torch.from_numpy(np.flatnonzero(numbers >= self.capacity))
        found = {name: column.room.new_zeros((len(rows), *column.room.shape[1:])) for name, column in self._items()}
        for name, column in self._items():
            found[name][come] = column.room[rows[come] - self.capacity]
        if len(held):
            for name, values in self._reservoir.read(numbers[held]).items():
                found[name][torch.from_numpy(held)] = values
        return Columns(found)

    def write_rows(self, rows: Tensor, values: Columns) -> None:
        """Hand the rows to the reservoir, which writes them when it has counted them."""
        self._reservoir.take(rows.numpy(), dict(values.items()))

    def begin(self) -> None:
        """Forget the columns of an earlier table."""
        self._columns = {}

    def _items(self) -> list[tuple[str, DiskColumn]]:
        if not self._columns:
            raise InputError("the memory is empty: let a learner observe examples first")
        return list(self._columns.items())
