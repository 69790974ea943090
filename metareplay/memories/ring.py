"""GEM's memory: the most recent examples of each task (Lopez-Paz and Ranzato, 2017)."""

from typing import final

import numpy as np

from metareplay._core.checks import shown, whole
from metareplay._core.draws import Draws, Ints
from metareplay._core.table import Storage
from metareplay.errors import InputError
from metareplay.memories.memory import Memory


@final
class Ring(Memory):
    """Hold the most recent examples of each task, capacity // tasks of them. Learning then needs task ids.

    Args:
        capacity: The largest number of examples to hold, over all tasks.
        tasks: How many tasks there are; their ids are 0 to tasks - 1.
        storage: Where the examples are kept; None keeps them on the model's device.

    >>> Ring(4, tasks=2).place(Draws(seed=0), tasks=np.array([0, 0, 0, 1, 1, 1]))
    array([0, 1, 0, 2, 3, 2])
    """

    def __init__(self, capacity: int, tasks: int, storage: Storage | None = None) -> None:
        super().__init__(capacity, storage)
        tasks = whole("tasks", tasks)
        if not 1 <= tasks <= self.capacity:
            raise InputError(
                f"a ring of {self.capacity} slots for {shown(tasks)} tasks: use at least one slot per task"
            )
        self.task_count = tasks
        self.share = self.capacity // tasks

    def place(self, draws: Draws, tasks: Ints) -> Ints:
        """Overwrite the oldest slot of the example's own task."""
        del draws
        seen_of = self.seen_of.copy()
        slots = np.empty(len(tasks), np.int64)
        for i, task in enumerate(tasks.tolist()):
            slots[i] = task * self.share + seen_of[task] % self.share
            seen_of[task] += 1
        return slots

    def settings(self) -> dict[str, object]:
        """Return kind, capacity and number of tasks."""
        return {"kind": "Ring", "capacity": self.capacity, "tasks": self.task_count}

    def groups(self, task: int) -> list[Ints]:
        """Return the slots of each other task that was seen; each task is one constraint for GEM."""
        slots = [
            other * self.share + np.arange(min(self.seen_of[other], self.share), dtype=np.int64)
            for other in sorted(self.seen_of)
            if other != task
        ]
        held = [some[self.is_filled[some]] for some in slots]
        return [some for some in held if len(some)]
