"""The interface of memories, which decide what examples are held and in which slots. The data are in a Table."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metareplay._core.archive import read_arrays, write_arrays
from metareplay._core.checks import check_count, check_room, instance, path_of, whole
from metareplay._core.columns import Columns
from metareplay._core.draws import Draws, Ints
from metareplay._core.table import Storage, Table
from metareplay.errors import InputError
from metareplay.streams.stream import Examples

BYTES = 17  # of the lists of slots, for each slot


class Memory(ABC):
    """Hold a bounded number of the examples seen. An implementation defines `place`: where an example goes.

    Args:
        capacity: The largest number of examples to hold.
        storage: Where the examples are kept; None keeps them on the model's device.

    Attributes:
        looks_ahead: Whether `place` depends on nothing but counts and draws, and not on the tasks that it is given.
    """

    looks_ahead: ClassVar[bool] = False

    def __init__(self, capacity: int, storage: Storage | None = None) -> None:
        self.capacity = check_capacity("capacity", capacity)
        if storage is not None:
            instance("storage", storage, Storage, "a Storage, or None")
        self.storage = storage
        self.seen = 0  # examples offered so far, kept or not: N in Algorithm 3
        self.seen_of: Counter[int] = Counter()  # the same count for each task
        self.order = np.zeros(self.capacity, np.int64)  # the first len(self): slots in the order they were first filled
        self.is_filled = np.zeros(self.capacity, np.bool_)
        self.row_of = np.arange(self.capacity)  # the table row of each slot; a Sampler looks ahead in it
        self._count = 0
        self._claimed = False
        self.task_count: int | None = None  # how many tasks there are, for a memory that needs to know the tasks
        self.table: Table | None = None  # the examples themselves; None before the first one

    def __len__(self) -> int:
        """Count the examples held."""
        return self._count

    @abstractmethod
    def place(self, draws: Draws, tasks: Ints) -> Ints:
        """Choose a slot for each of the next examples, without changing anything.

        Args:
            draws: The learner's random draws, addressed by the number of an example (the next one is `self.seen`).
            tasks: The task of each of the next examples; -1 if none was given.

        Returns:
            The slot that each example will go to, -1 for one that is not kept.
        """

    @abstractmethod
    def settings(self) -> dict[str, object]:
        """Return the kind and the options of this memory as plain JSON values, for records and checkpoints."""

    def groups(self, task: int) -> list[Ints]:
        """Return the sets of slots on which GEM must not get worse while it learns `task`; by default one set of all.

        Args:
            task: The task that is being learned.
        """
        del task
        return [self.filled] if len(self.filled) else []

    @property
    def filled(self) -> Ints:
        """The slots that hold an example, in the order they were first filled."""
        return self.order[: self._count]

    @final
    def claim(self) -> None:
        """Reserve this memory for one learner; raise InputError if it belongs to another one already."""
        if self._claimed:
            raise InputError("this memory already belongs to another learner: make a new one")
        self._claimed = True

    @final
    def restore(self, filled: Ints, seen_of: dict[int, int], seen: int, table: Table | None) -> None:
        """Take over the state of a saved memory.

        Args:
            filled: The slots that hold an example, in the order they were first filled.
            seen_of: How many examples of each task were offered.
            seen: How many examples were offered.
            table: The examples.
        """
        self._count, self.table, self.seen, self.seen_of = len(filled), table, seen, Counter(seen_of)
        self.order[: len(filled)] = filled
        self.is_filled[filled] = True

    @final
    def remember(self) -> Callable[[], None]:
        """Remember what is held and counted, without the examples; calling the returned function restores it."""
        count, seen, seen_of, table = self._count, self.seen, self.seen_of.copy(), self.table
        order, is_filled = self.order.copy(), self.is_filled.copy()

        def undo() -> None:
            self._count, self.seen, self.seen_of, self.table = count, seen, seen_of, table
            self.order[:], self.is_filled[:] = order, is_filled

        return undo

    @final
    def keep(self, slots: Ints, tasks: Ints) -> None:
        """Record that examples were offered and where they went.

        Args:
            slots: The slot that each example went to; -1 for one that was not kept.
            tasks: The task of each example.
        """
        for slot in slots.tolist():
            if slot >= 0 and not self.is_filled[slot]:
                self.order[self._count] = slot
                self.is_filled[slot] = True
                self._count += 1
        self.seen += len(slots)
        self.seen_of.update(tasks.tolist())

    @final
    def held(self) -> Columns:
        """Return a copy of the examples held, with all their columns, in slot order."""
        if self.table is None:
            raise InputError("the memory is empty: let a learner observe examples first")
        found = self.table.gather(torch.from_numpy(np.sort(self.filled)))
        return Columns({name: values.cpu() for name, values in found.items()})

    @final
    def examples(self) -> Examples:
        """Return a copy of the inputs and targets held, in slot order."""
        held = self.held()
        if "y" not in dict(held.items()):
            raise InputError("this memory holds transitions, which have no targets: use held()")
        return Examples(held["x"], held["y"])

    @final
    def tasks(self) -> Ints:
        """Return the task of each example held, in slot order (-1 if none was given)."""
        return self.held().task_ids() if self.table is not None else np.zeros(0, np.int64)

    @final
    def export(self, path: str | Path) -> None:
        """Write the examples held as a NumPy archive with the arrays xs, ys, tasks, slots and seen.

        `read_export` reads it and checks its checksum; `numpy.load` reads it, too.

        Args:
            path: The file to write, usually *.npz.
        """
        held = self.examples()
        arrays = {"xs": _array(held.xs), "ys": _array(held.ys), "tasks": self.tasks(), "slots": np.sort(self.filled)}
        write_arrays(path_of("path", path), arrays | {"seen": np.array(self.seen)})

    def __repr__(self) -> str:
        """Show the options and how full the memory is."""
        options = ", ".join(f"{name}={value!r}" for name, value in self.settings().items() if name != "kind")
        return f"<{type(self).__name__}({options}), {len(self)} held of {self.seen} seen>"


def check_capacity(name: str, value: int) -> int:
    """Return how many examples a memory is to hold; raise InputError for a number that it cannot hold.

    Args:
        name: What the user calls the number.
        value: The number.
    """
    check_count(name, value, "a memory holds at least one example")
    capacity = whole(name, value)
    check_room(name, capacity, BYTES * capacity)
    return capacity


def read_export(path: str | Path) -> dict[str, NDArray[Any]]:
    """Read what `Memory.export` wrote; raise CheckpointError if a single bit of it is wrong.

    Args:
        path: The file.

    Returns:
        The arrays xs, ys, tasks, slots and seen.
    """
    there = path_of("path", path)
    return read_arrays(there, "export", f"{there} is damaged or not an export of a memory: export it again")


def _array(values: Tensor) -> NDArray[Any]:
    """Convert to NumPy, which has no bfloat16."""
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
