"""Copies of a table's rows: which of them are out of date, and their targets."""

import numpy as np
import pytest
import torch

from metareplay._core.columns import Columns
from metareplay._core.table import Table, TensorStorage
from metareplay.engines.cpu.row_copies import RowCopies


def made(ys: torch.Tensor) -> Table:
    """A table without a memory that holds these targets."""
    columns = Columns({"x": torch.rand(len(ys), 2), "y": ys, "task": torch.zeros(len(ys), dtype=torch.int64)})
    table = Table(0, len(ys), columns, TensorStorage(torch.device("cpu")))
    table.bring(columns)
    return table


def started(table: Table, rows: np.ndarray) -> RowCopies:
    copies = RowCopies(2, np.dtype(np.float64))
    assert len(copies) == 0
    copies.make_room(len(table))
    copies.turn_to(table)
    assert copies.stale(table, rows).tolist() == np.unique(rows).tolist()
    copies.take(table, copies.stale(table, rows))
    return copies


def test_only_what_has_changed_is_stale() -> None:
    ys = torch.tensor([2, 0, 1, 1])
    table, rows = made(ys), np.array([3, 1, 1, 0])
    copies = started(table, rows)
    assert copies.labels.tolist() == [2, 0, 0, 1]
    assert copies.stale(table, np.arange(4)).tolist() == [2]
    assert copies.stale(table, rows).tolist() == []
    table.bring(Columns({"x": torch.rand(4, 2), "y": ys, "task": torch.zeros(4, dtype=torch.int64)}))
    assert copies.stale(table, rows).tolist() == [0, 1, 3]


def test_real_values_are_kept_beside_labels() -> None:
    ys = torch.rand(3, 2, dtype=torch.float64)
    copies = started(made(ys), np.arange(3))
    np.testing.assert_array_equal(copies.values, ys.numpy())
    assert copies.labels.tolist() == [0, 0, 0]


@pytest.mark.parametrize("rows", [3, 5])
def test_nothing_is_left_of_another_table(rows: int) -> None:
    first, second = made(torch.tensor([1, 2, 1])), made(torch.ones(rows, dtype=torch.int64))
    copies = started(first, np.arange(3))
    assert copies.are_of(first)
    assert not copies.are_of(second)
    if len(copies) < rows:
        copies.make_room(rows)
    copies.turn_to(second)
    assert copies.are_of(second)
    assert copies.stale(second, np.arange(rows)).tolist() == list(range(rows))
