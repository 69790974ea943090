"""What a memory holds, for people to look at: how many examples of each class, and some of the examples."""

import base64
from collections import Counter
from collections.abc import Hashable
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor

from metareplay._core.table import Table
from metareplay.learners.table_learner import TableLearner

SHOWN: Final = 24  # examples that are shown
COUNTED: Final = 2000  # examples whose labels are counted, at most
FEW: Final = 240  # likewise, where reading labels means to read whole examples from a disk
SIDE: Final = 32  # pixels on each side of a picture, at most; of larger ones every second, third, ... pixel is shown
NUMBERS: Final = 8  # numbers of an example that is no picture, at most
CLASSES: Final = 30  # classes, at most: the most frequent ones
SQUARES: Final = {784: 28, 1024: 32}  # the side of the pictures that have this many pixels


@final
class MemoryView:
    """Show what the memory of a learner holds, without any draw and without changing anything.

    The examples shown come from slots that are evenly spread over the memory, so that each picture stays in its place
    until its slot is filled anew.

    Args:
        learner: The learner.
    """

    def __init__(self, learner: TableLearner) -> None:
        self._learner = learner

    def shown(self) -> dict[str, Any] | None:
        """Return what is held as plain JSON values; None if the learner has no memory, or it is empty."""
        memory = self._learner.own_memory
        if memory is None or not len(memory) or memory.table is None:
            return None
        view: dict[str, Any] = {
            "kind": type(memory).__name__,
            "held": len(memory),
            "capacity": memory.capacity,
            "offered": memory.seen,
        }
        slots, table = memory.sorted_slots(), memory.table
        some = _spread(slots, SHOWN)
        view |= _rows(_values(table, "x", some))
        targets = _values(table, "y", some) if "y" in table.names else None
        if targets is None or targets.is_floating_point() or targets.dim() != 1:
            return view
        names = memory.labels
        counted = Counter(_values(table, "y", _spread(slots, FEW if table.in_rows else COUNTED)).tolist())
        frequent = sorted(counted.most_common(CLASSES))
        view["labels"] = [_name(target, names) for target in targets.tolist()]
        return view | {"classes": [(_name(one, names), many) for one, many in frequent], "counted": counted.total()}


def _name(target: int, names: tuple[Hashable, ...] | None) -> str:
    """Return the label that a number stands for, as a text."""
    return str(target if names is None else names[target])[:40]


def _spread(slots: Any, count: int) -> Tensor:
    """Return some slots that are evenly spread over those that are filled."""
    places = np.linspace(0, len(slots) - 1, min(count, len(slots))).astype(np.int64)
    if isinstance(slots, np.ndarray):
        return torch.from_numpy(slots[places])
    return torch.tensor([int(slots[place]) for place in places.tolist()])  # which may be a range


def _values(table: Table, name: str, rows: Tensor) -> Tensor:
    """Return one column of some rows; of a table that is kept row by row, all columns are read."""
    return table.gather(rows)[name] if table.in_rows else table.column(name).gather(rows)


def _rows(inputs: Tensor) -> dict[str, Any]:
    """Return some inputs as pictures if they look like pictures, and as numbers if not."""
    with torch.no_grad():
        pictures = _pictures(inputs)
        if pictures is not None:
            pixels = pictures.permute(0, 2, 3, 1).contiguous().cpu().numpy()
            text = base64.b64encode(pixels.tobytes()).decode()
            return {"pictures": {"shape": list(pixels.shape), "pixels": text}}
        flat = inputs.reshape(len(inputs), -1)[:, :NUMBERS].to("cpu", torch.float64)
    shape = list(inputs.shape[1:])
    return {"rows": {"shape": shape, "numbers": [[_short(value) for value in row] for row in flat.tolist()]}}


def _pictures(inputs: Tensor) -> Tensor | None:
    """Return inputs as bytes of (count, 1 or 3 channels, height, width); None if they are no pictures."""
    if inputs.dim() == 2 and inputs.shape[1] in SQUARES:
        side = SQUARES[inputs.shape[1]]
        inputs = inputs.reshape(-1, 1, side, side)
    elif inputs.dim() == 3 and min(inputs.shape[1:]) >= NUMBERS:
        inputs = inputs.unsqueeze(1)
    if inputs.dim() != 4 or inputs.is_complex():
        return None
    if inputs.shape[1] not in (1, 3):  # several pictures one after another, as an agent sees them: the last one
        inputs = inputs[:, -1:]
    step = -(-max(inputs.shape[2:]) // SIDE)
    inputs = inputs[:, :, ::step, ::step]
    if inputs.dtype == torch.uint8:
        return inputs
    values = inputs.float()
    low, high = values.min(), values.max()
    low, high = (low, high) if low < 0 or high > 1 else (torch.zeros_like(low), torch.ones_like(high))
    return ((values - low) / (high - low).clamp(min=1e-12) * 255).nan_to_num(0).to(torch.uint8)


def _short(value: float) -> float | None:
    """Return a number with four digits; None for one that JSON does not have."""
    return float(f"{value:.4g}") if np.isfinite(value) else None
