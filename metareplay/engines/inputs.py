"""Conversion of stored examples into the form that a model takes."""

import torch
from torch import Tensor

from metareplay._core.columns import Columns
from metareplay._core.table import Table
from metareplay._core.weights import Weights

INPUTS = ("x", "next_x")  # the columns that a model takes; `next_x` is what a transition leads to


def scale_of(xs: Tensor) -> float:
    """Return what inputs are divided by: 255 for images in bytes, otherwise 1."""
    return 255.0 if xs.dtype == torch.uint8 else 1.0


def as_input(xs: Tensor, weights: Weights) -> Tensor:
    """Convert stored inputs: uint8 scaled to [0, 1], real numbers to the model's dtype, integers as they are.

    Args:
        xs: Stored inputs.
        weights: The weights of the model that takes them.
    """
    if xs.dtype == torch.uint8:
        return xs.to(weights.device, weights.dtype).div_(scale_of(xs))
    if xs.is_floating_point():
        return xs.to(weights.device, weights.dtype)
    return xs.to(weights.device)


def gather(table: Table, rows: Tensor, weights: Weights, tasks: Tensor | None = None) -> Columns:
    """Gather rows of a table: inputs as the model takes them, and everything but the task ids on the model's device.

    Args:
        table: The examples by row.
        rows: Row numbers.
        weights: The weights of the model.
        tasks: The task ids of these rows, if the caller has them already; None to gather them too.
    """
    found = {name: table.column(name).gather(rows) for name in table.names if name != "task"}
    found = {name: values.to(weights.device) for name, values in found.items()}
    of_rows = table.column("task").gather(rows) if tasks is None else tasks
    inputs = {name: as_input(found[name], weights) for name in INPUTS if name in found}
    return Columns(found | inputs | {"task": of_rows})
