"""A table of examples: what is erased is erased in all columns, or in none."""

from functools import partial

import numpy as np
import pytest
import torch

from metareplay._core.columns import Columns
from metareplay._core.table import PIECE, Table, TensorStorage
from torture.disturbance import Disturbance, OutOfMemory, OutOfMemoryOnce


def table_of(capacity: int) -> Table:
    """Return a table without zeros; every row has the same values in all columns."""
    count = capacity + 2
    values = torch.arange(1, count + 1)
    held = Columns({"x": values.float()[:, None].expand(-1, 3), "y": values, "task": values})
    table = Table(capacity, 2, held, TensorStorage(torch.device("cpu")))
    for name, column in held.items():
        table.fill(name, torch.arange(count), column)
    return table


def erased(table: Table) -> set[tuple[int, ...]]:
    """Return which rows are zeros, once for each different answer of a column."""
    held = table.gather(torch.arange(len(table)))
    return {tuple(np.flatnonzero((v.reshape(len(v), -1) == 0).all(1).numpy()).tolist()) for _, v in held.items()}


@pytest.mark.parametrize("kind", [OutOfMemoryOnce, OutOfMemory])
def test_rows_are_erased_in_all_columns_or_in_none_when_memory_runs_out(kind: type[Disturbance]) -> None:
    table, whole = table_of(6), kind()
    whole.during(lambda: table.erase(np.array([1, 4])))
    assert erased(table) == {(1, 4, 6, 7)}
    assert whole.count
    for number in range(whole.count):
        table = table_of(6)
        assert kind(number).during(partial(table.erase, np.array([1, 4]))) is None
        assert erased(table) in ({()}, {(1, 4, 6, 7)}), number


def test_any_number_of_rows_is_erased() -> None:
    table = table_of(2 * PIECE)
    table.erase(np.arange(3, 2 * PIECE))
    assert erased(table) == {tuple(range(3, 2 * PIECE + 2))}
    assert table.gather(torch.tensor([2]))["y"].tolist() == [3]
