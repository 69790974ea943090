"""What a memory is: which of the examples seen are held, and in which slots. Integers only; the data are in a Table."""

from abc import ABC, abstractmethod
from collections import Counter
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metareplay._core.checks import check_count, whole
from metareplay._core.draws import Draws, Ints
from metareplay._core.files import write_atomically
from metareplay._core.table import Table
from metareplay.errors import InputError
from metareplay.streams.stream import Examples


class Memory(ABC):
    """A bounded set of examples. Implementations only say where an example goes: `place`."""

    def __init__(self, capacity: int) -> None:
        check_count("capacity", capacity, "a memory holds at least one example")
        self.capacity = whole("capacity", capacity)
        self.seen = 0  # examples offered so far, kept or not: N in Algorithm 3
        self.seen_of: Counter[int] = Counter()  # the same, task by task
        self.order = np.zeros(self.capacity, np.int64)  # the first len(self): slots in the order they were first filled
        self.is_filled = np.zeros(self.capacity, np.bool_)
        self.row_of = np.arange(self.capacity)  # the table's row for each slot; a Sampler looks ahead in it
        self._count = 0
        self._claimed = False
        self.task_count: int | None = None  # tasks 0 .. task_count - 1 only, where a memory needs to know the task
        self.table: Table | None = None  # the examples themselves, once the first has come

    def __len__(self) -> int:
        """How many examples are held."""
        return self._count

    @property
    def filled(self) -> Ints:
        """The slots that hold an example, in the order they were first filled."""
        return self.order[: self._count]

    @final
    def claim(self) -> None:
        """Belong to one learner, for good."""
        if self._claimed:
            raise InputError("this memory already belongs to another learner: make a new one")
        self._claimed = True

    @abstractmethod
    def place(self, draws: Draws, tasks: Ints) -> Ints:
        """The slot that each of the next examples will go to, -1 for one that is not kept. Changes nothing."""

    @abstractmethod
    def settings(self) -> dict[str, object]:
        """What this memory was made with, for the record."""

    def groups(self, task: int) -> list[Ints]:
        """The sets of slots GEM must not get worse at while it learns `task`: here, all that is held, as one."""
        del task
        return [self.filled] if len(self.filled) else []

    @final
    def restore(self, filled: Ints, seen_of: dict[int, int], seen: int, table: Table | None) -> None:
        """The bookkeeping of a saved memory."""
        self._count, self.table, self.seen, self.seen_of = len(filled), table, seen, Counter(seen_of)
        self.order[: len(filled)] = filled
        self.is_filled[filled] = True

    @final
    def keep(self, slots: Ints, tasks: Ints) -> None:
        """Record that examples of these tasks were offered and went to these slots."""
        for slot in slots.tolist():
            if slot >= 0 and not self.is_filled[slot]:
                self.order[self._count] = slot
                self.is_filled[slot] = True
                self._count += 1
        self.seen += len(slots)
        self.seen_of.update(tasks.tolist())

    @final
    def examples(self) -> Examples:
        """A copy of what is held, in slot order."""
        if self.table is None:
            raise InputError("the memory is empty: let a learner observe examples first")
        slots = np.sort(self.filled)
        return Examples(self.table.xs[slots].cpu(), self.table.ys[slots].cpu())

    @final
    def tasks(self) -> Ints:
        """The task of each example held, in slot order (-1 where none was given)."""
        return self.table.tasks[np.sort(self.filled)].numpy() if self.table is not None else np.zeros(0, np.int64)

    @final
    def export(self, path: str | Path) -> None:
        """Write what is held as a NumPy archive: xs, ys, tasks, slots, seen."""
        held = self.examples()
        slots, seen = np.sort(self.filled), np.int64(self.seen)
        with write_atomically(Path(path)) as file:
            np.savez(file, xs=_array(held.xs), ys=_array(held.ys), tasks=self.tasks(), slots=slots, seen=seen)


def _array(values: Tensor) -> NDArray[Any]:
    """As NumPy, which has no bfloat16."""
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
