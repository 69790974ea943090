"""One table of examples: the memory's slots first, then room for the examples that have just come in."""

from typing import final

import numpy as np
import torch
from torch import Tensor

from metareplay._core.draws import Ints


@final
class Table:
    """Rows 0 .. capacity - 1 are memory slots; row capacity + i is the i-th incoming example.

    Preallocated, in the dtype of the data (images stay uint8), on the model's device. Plans name examples by row, so
    that an engine needs this table and integers, nothing else.
    """

    def __init__(self, capacity: int, room: int, xs: Tensor, ys: Tensor, device: torch.device) -> None:
        """`capacity` slots and `room` rows for incoming examples, shaped like the rows of `xs` and `ys`."""
        self.capacity = capacity
        self.xs = torch.zeros((capacity + room, *xs.shape[1:]), dtype=xs.dtype, device=device)
        self.ys = torch.zeros((capacity + room, *ys.shape[1:]), dtype=ys.dtype, device=device)
        self.tasks = torch.zeros(capacity + room, dtype=torch.int64, device="cpu")
        self.writes = np.zeros(capacity + room, np.int64)  # how often each row was written: who has a copy can tell

    def bring(self, xs: Tensor, ys: Tensor, tasks: Tensor) -> None:
        """Write incoming examples into the rows behind the slots."""
        first, last = self.capacity, self.capacity + len(xs)
        self.writes[first:last] += 1
        for part, new in zip(self._parts(), (xs, ys, tasks), strict=True):
            part[first:last] = new

    def keep(self, slots: Ints) -> None:
        """Copy the i-th incoming example into slots[i] (-1: nowhere); of several for one slot the last one stays."""
        last = {int(slot): self.capacity + i for i, slot in enumerate(slots) if slot >= 0}
        if last:
            to, source = torch.tensor([*last.keys()], device="cpu"), torch.tensor([*last.values()], device="cpu")
            self.writes[to.numpy()] += 1
            for part in self._parts():
                part[to.to(part.device)] = part[source.to(part.device)]

    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.xs, self.ys, self.tasks
