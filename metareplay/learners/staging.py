"""Bringing the rows of a plan together in RAM, where an engine reads them quickly and as often as it likes."""

from dataclasses import replace
from typing import final

import numpy as np
import torch

from metareplay._core.columns import Columns
from metareplay._core.plan import Plan
from metareplay._core.table import Table, TensorStorage


@final
class Staging:
    """Copy the rows that a plan visits into a small table in RAM, or on the GPU; each of them is read once.

    Args:
        device: Where the engine wants them.
    """

    def __init__(self, device: torch.device) -> None:
        self._storage = TensorStorage(device)
        self._table: Table | None = None

    def bring(self, plan: Plan, table: Table) -> tuple[Plan, Table]:
        """Return a plan of the same steps on rows of a small table, and that table. Incoming examples come first.

        Args:
            plan: A plan on rows of the table.
            table: The table.
        """
        count, first = len(plan), plan.incoming
        is_incoming = (plan.rows >= first) & (plan.rows < first + count)
        others = np.unique(plan.rows[~is_incoming])
        needed = np.concatenate([first + np.arange(count), others])
        rows = np.where(is_incoming, plan.rows - first, count + np.searchsorted(others, plan.rows))
        return replace(plan, rows=rows, incoming=0), self.put(table.gather(torch.from_numpy(needed)))

    def put(self, examples: Columns) -> Table:
        """Return a table that has these examples in its first rows. It is the same one as before if it has room.

        Args:
            examples: The examples.
        """
        if self._table is None or len(self._table) < len(examples):
            self._table = Table(2 * len(examples), 0, examples.part(0, 1), self._storage)
        for name, values in examples.items():
            self._table.fill(name, torch.arange(len(examples), device="cpu"), values)
        return self._table

    def give_back(self, names: tuple[str, ...], plan: Plan, table: Table) -> None:
        """Copy the columns that an objective has filled for the incoming examples back into the table.

        Args:
            names: Their names.
            plan: The plan as it was before `bring`.
            table: The table.
        """
        rows = torch.arange(len(plan), device="cpu")
        for name in names:
            if self._table is not None and name in self._table.names:
                table.fill(name, plan.incoming + rows, self._table.column(name).gather(rows).cpu())
