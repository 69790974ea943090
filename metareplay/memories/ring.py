"""GEM's memory: the most recent examples of each task (Lopez-Paz and Ranzato, 2017)."""

from typing import final

import numpy as np

from metareplay._core.checks import whole
from metareplay._core.draws import Draws, Ints
from metareplay.errors import InputError
from metareplay.memories.memory import Memory


@final
class Ring(Memory):
    """capacity // tasks slots a task, each a ring of that task's last examples. Needs task ids from 0 to tasks - 1.

    >>> Ring(4, tasks=2).place(Draws(seed=0), tasks=np.array([0, 0, 0, 1, 1, 1]))
    array([0, 1, 0, 2, 3, 2])
    """

    def __init__(self, capacity: int, tasks: int) -> None:
        super().__init__(capacity)
        if not 1 <= whole("tasks", tasks) <= capacity:
            raise InputError(f"a ring of {capacity} slots for {tasks} tasks: use at least one slot a task")
        self.task_count = tasks
        self.share = capacity // tasks

    def place(self, draws: Draws, tasks: Ints) -> Ints:
        """The next slot of the task's own ring."""
        del draws
        seen_of = self.seen_of.copy()
        slots = np.empty(len(tasks), np.int64)
        for i, task in enumerate(tasks.tolist()):
            slots[i] = task * self.share + seen_of[task] % self.share
            seen_of[task] += 1
        return slots

    def settings(self) -> dict[str, object]:
        """Kind, capacity and number of tasks."""
        return {"kind": "Ring", "capacity": self.capacity, "tasks": self.task_count}

    def groups(self, task: int) -> list[Ints]:
        """What is held of each other task that was seen: one constraint of GEM's each."""
        return [
            other * self.share + np.arange(min(self.seen_of[other], self.share), dtype=np.int64)
            for other in sorted(self.seen_of)
            if other != task
        ]
