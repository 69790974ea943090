"""Which rows of a table a kernel has copies of, and their targets."""

from typing import Any, final

import numpy as np
import torch

from metareplay._core.draws import Ints
from metareplay._core.table import Table


@final
class RowCopies:
    """Keep the targets of a table's rows, and know which rows have changed since they were copied.

    Args:
        outputs: How many outputs the network has.
        dtype: The dtype of the weights.

    Attributes:
        labels: The target of each row if it is a label.
        values: The target of each row if it consists of real values.
        copied: `Table.writes` of each row when it was copied; 0 for a row that was not.
    """

    def __init__(self, outputs: int, dtype: np.dtype[Any]) -> None:
        self._outputs, self._dtype = outputs, dtype
        self._table: Table | None = None
        self.make_room(0)

    def __len__(self) -> int:
        """Return for how many rows there is room."""
        return len(self.copied)

    def make_room(self, rows: int) -> None:
        """Make room for more rows, of which none is copied yet. The kernel makes room for their inputs first.

        Args:
            rows: How many rows there are.
        """
        self.labels, self.values = np.zeros(rows, np.int64), np.zeros((rows, self._outputs), self._dtype)
        self.copied = np.zeros(rows, np.int64)

    def are_of(self, table: Table) -> bool:
        """Return whether this is the table that rows were copied from.

        Args:
            table: The examples by row.
        """
        return table is self._table

    def turn_to(self, table: Table) -> None:
        """Forget what was copied, because it is from another table.

        Args:
            table: The examples by row.
        """
        self.copied[:], self._table = 0, table

    def stale(self, table: Table, rows: Ints) -> Ints:
        """Return those of some rows whose copies are out of date, in ascending order.

        Args:
            table: The examples by row.
            rows: The rows.
        """
        return np.unique(rows[self.copied[rows] != table.writes[rows]])

    def take(self, table: Table, rows: Ints) -> None:
        """Copy the targets of some rows, whose inputs the kernel has just copied.

        Args:
            table: The examples by row.
            rows: The rows.
        """
        ys = table.column("y").gather(torch.from_numpy(rows)).cpu()
        if ys.is_floating_point():
            self.values[rows] = ys.numpy()
        else:
            self.labels[rows] = ys.numpy()
        self.copied[rows] = table.writes[rows]
