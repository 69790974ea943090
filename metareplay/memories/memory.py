"""The interface of memories, which decide what examples are held and in which slots. The data are in a Table."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any, ClassVar, Self, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metareplay._core.archive import read_arrays, write_arrays
from metareplay._core.checks import check_count, check_room, function, instance, path_of, whole
from metareplay._core.columns import Columns
from metareplay._core.draws import Draws, Ints
from metareplay._core.interrupts import HeldBack
from metareplay._core.table import Storage, Table, TensorStorage
from metareplay.errors import InputError
from metareplay.memories.governing import slots_to_remove, weights_of
from metareplay.streams.stream import Examples

BYTES = 25  # of the lists of slots, for each slot
PIECE = 4096  # examples to look at in one go


class Memory(ABC):
    """Hold a bounded number of the examples seen. An implementation defines `place`: where an example goes.

    Args:
        capacity: The largest number of examples to hold.
        storage: Where the examples are kept; None keeps them on the model's device.

    Attributes:
        looks_ahead: Whether `place` depends on nothing but counts and draws, and not on the tasks that it is given.
        version: How often what is held, counted or weighed has changed.
        labels: The labels that the numbers in the column `y` stand for; None if these are the labels themselves.
    """

    looks_ahead: ClassVar[bool] = False

    def __init__(self, capacity: int, storage: Storage | None = None) -> None:
        self.capacity = check_capacity("capacity", capacity)
        if storage is not None:
            instance("storage", storage, Storage, "a Storage, or None")
        self.storage = storage
        self.seen = 0  # examples offered so far, kept or not: N in Algorithm 3
        self.seen_of: Counter[int] = Counter()  # the same count for each task
        self.version = 0
        self.labels: tuple[Hashable, ...] | None = None
        self._count = 0
        self._claimed = False
        self.task_count: int | None = None  # how many tasks there are, for a memory that needs to know the tasks
        self.table: Table | None = None  # the examples themselves; None before the first one
        self.augment: Callable[[Tensor], Any] | None = None  # transforms inputs when they are replayed
        self.weights: NDArray[np.float64] | None = None  # how often each slot is drawn, in proportion; None for equally
        self.make_lists()

    def make_lists(self) -> None:
        """Make the lists of slots, all of them empty."""
        self.order = np.zeros(self.capacity, np.int64)  # the first len(self): slots in the order they were first filled
        self.is_filled = np.zeros(self.capacity, np.bool_)
        self.row_of = np.arange(self.capacity)  # the table row of each slot; a Sampler looks ahead in it
        self.number_of: Ints | None = np.full(self.capacity, -1)  # which example of the stream each slot holds

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

    def check_labels(self, labels: tuple[Hashable, ...]) -> None:
        """Raise InputError for labels that the memory cannot keep with its examples.

        Args:
            labels: The labels.
        """
        del labels

    def name_labels(self, labels: tuple[Hashable, ...] | None) -> None:
        """Know the labels that the numbers in the column `y` stand for.

        Args:
            labels: The label with number 0, that with number 1, and so on; None if the numbers are the labels.
        """
        self.labels = labels

    def coming(self, incoming: Columns) -> None:
        """Look at the examples that `place` is asked about next, for a memory whose choice depends on them.

        Args:
            incoming: The examples.
        """
        del incoming

    @abstractmethod
    def settings(self) -> dict[str, object]:
        """Return the kind and the options of this memory as plain JSON values, for records and checkpoints."""

    @final
    def all_settings(self) -> dict[str, object]:
        """Return `settings`, with the name of the augmentation if there is one."""
        name = getattr(self.augment, "__name__", type(self.augment).__name__)
        return self.settings() | ({} if self.augment is None else {"augment": name})

    @final
    def augmented(self, augment: Callable[[Tensor], Any]) -> Self:
        """Transform inputs whenever they are replayed; incoming examples are learned as they are. Return the memory.

        Torch's random numbers are seeded for each incoming example from the learner's draws, so that results can be
        repeated. A checkpoint cannot hold the function: pass the memory again when you load one.

        Args:
            augment: Takes a batch of inputs as they are stored, and returns a batch of the same shape and dtype.
        """
        if self._claimed:
            raise InputError("this memory belongs to a learner already: call augmented() before that")
        self.augment = function("augment", augment)
        return self

    @final
    def weigh(self, weights: Callable[[Columns], Any] | Sequence[float] | NDArray[Any] | Tensor | None) -> None:
        """Let examples be drawn in proportion to weights; examples that come later have weight 1.

        Args:
            weights: A weight for each example held, in slot order, or a function that takes some examples as columns
                and returns their weights; None to draw all examples equally often again.
        """
        if weights is not None and self.number_of is None:
            raise InputError(f"the examples of a {type(self).__name__} are drawn equally often: use another memory")
        self.weights = None if weights is None else weights_of(self, weights)
        self.version += 1

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

    def saved_apart(self) -> int | None:
        """Prepare for a checkpoint: return a mark if the examples are in files of the memory's own, and None if not.

        The checkpoint then holds the mark instead of the examples, and `return_to` goes back to it.
        """
        return None

    def check_mark(self, mark: int) -> None:
        """Raise InputError if the memory cannot go back to a mark.

        Args:
            mark: What `saved_apart` returned.
        """
        raise InputError(f"{type(self).__name__} keeps its examples in checkpoints, but this one has mark {mark}")

    def return_to(self, mark: int) -> None:
        """Go back to the examples and counts of a mark.

        Args:
            mark: What `saved_apart` returned.
        """
        self.check_mark(mark)

    def copy(self) -> "Memory":
        """Return a copy of this memory with copies of its examples in RAM, which may belong to another learner."""
        made = copy(self)
        made.version += 1  # lists that a memory makes of what it holds are made anew, and not shared
        made._claimed, made.storage, made.seen_of = False, None, self.seen_of.copy()
        made.order, made.is_filled, made.row_of = self.order.copy(), self.is_filled.copy(), self.row_of.copy()
        made.number_of = None if self.number_of is None else self.number_of.copy()
        made.weights = None if self.weights is None else self.weights.copy()
        if self.table is not None:
            like = self.table.gather(torch.zeros(1, dtype=torch.int64))
            made.table = Table(self.capacity, 0, like, TensorStorage(torch.device("cpu")))
            for slots, held in self.pieces():
                for name, values in held.items():
                    made.table.fill(name, torch.from_numpy(slots), values)
        return made

    @final
    def claim(self) -> None:
        """Reserve this memory for one learner; raise InputError if it belongs to another one already."""
        if self._claimed:
            raise InputError("this memory already belongs to another learner: make a new one, or use its copy()")
        self._claimed = True
        self.version += 1  # the draws are those of another learner from now on

    @final
    def restore(
        self,
        filled: Ints,
        seen_of: dict[int, int],
        seen: int,
        table: Table | None,
        numbers: Ints | None = None,
    ) -> None:
        """Take over the state of a saved memory.

        Args:
            filled: The slots that hold an example, in the order they were first filled.
            seen_of: How many examples of each task were offered.
            seen: How many examples were offered.
            table: The examples.
            numbers: The number in the stream of the example in each of these slots; None if that is not known.
        """
        self.version += 1
        self._count, self.table, self.seen, self.seen_of = len(filled), table, seen, Counter(seen_of)
        self.order[: len(filled)] = filled
        self.is_filled[:] = False
        self.is_filled[filled] = True
        if self.number_of is not None:
            self.number_of[:] = -1
            self.number_of[filled] = -1 if numbers is None else numbers

    @final
    def remember(self) -> Callable[[], None]:
        """Remember what is held and counted, without the examples; calling the returned function restores it."""
        count, seen, seen_of, table = self._count, self.seen, self.seen_of.copy(), self.table
        order, is_filled = self.order.copy(), self.is_filled.copy()
        number_of = None if self.number_of is None else self.number_of.copy()
        weights, labels = None if self.weights is None else self.weights.copy(), self.labels

        def undo() -> None:
            self.version += 1
            self.name_labels(labels)
            self._count, self.seen, self.seen_of, self.table = count, seen, seen_of, table
            self.order[:], self.is_filled[:], self.number_of, self.weights = order, is_filled, number_of, weights

        return undo

    def keep(self, slots: Ints, tasks: Ints) -> None:
        """Record that examples were offered and where they went.

        Args:
            slots: The slot that each example went to; -1 for one that was not kept.
            tasks: The task of each example.
        """
        self.version += 1
        for number, slot in enumerate(slots.tolist(), self.seen):
            if slot >= 0:
                if not self.is_filled[slot]:
                    self.order[self._count] = slot
                    self.is_filled[slot] = True
                    self._count += 1
                if self.number_of is not None:
                    self.number_of[slot] = number
                if self.weights is not None:
                    self.weights[slot] = 1.0
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
    def numbers(self) -> Ints:
        """Return the number in the stream of each example held, in slot order: 0 for the first one offered.

        It is -1 for examples from checkpoints of earlier versions, and for those of compiled games.
        """
        return self.numbers_of(np.sort(self.filled))

    def numbers_of(self, slots: Ints) -> Ints:
        """Return the number in the stream of the example in each of some slots.

        Args:
            slots: The slots.
        """
        assert self.number_of is not None, "a memory without this list has a method of its own"
        return self.number_of[slots]

    @final
    def class_counts(self) -> dict[Any, int]:
        """Return how many examples of each label are held, by label."""
        counts: Counter[int] = Counter()
        for _, held in self.pieces():
            if "y" not in dict(held.items()) or held["y"].is_floating_point() or held["y"].dim() != 1:
                raise InputError("this memory holds no class labels: use held()")
            counts.update(held["y"].tolist())
        labels = self.labels
        return {number if labels is None else labels[number]: count for number, count in sorted(counts.items())}

    @final
    def pieces(self) -> Iterator[tuple[Ints, Columns]]:
        """Go through the examples held in slot order, some at a time: their slots, and a copy of their columns."""
        slots = self.sorted_slots()
        for start in range(0, len(slots), PIECE):
            some = np.asarray(slots[start : start + PIECE], np.int64)
            if self.table is not None:
                found = self.table.gather(torch.from_numpy(some))
                yield some, Columns({name: values.cpu() for name, values in found.items()})

    def sorted_slots(self) -> Sequence[int] | Ints:
        """Return the slots that hold an example, in slot order."""
        return np.sort(self.filled)

    @final
    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """Go through the examples held in slot order; each is a dictionary of its columns and its `number`.

        The column `y` has the numbers of labels; `labels[y]` is the label.
        """
        for slots, held in self.pieces():
            for i, number in enumerate(self.numbers_of(slots).tolist()):
                yield {name: values[i] for name, values in held.items()} | {"number": torch.tensor(number)}

    @final
    def remove(
        self,
        where: Callable[[Columns], Any] | None = None,
        *,
        numbers: Iterable[int] | None = None,
        older_than: int | None = None,
    ) -> int:
        """Remove examples for good, for instance because somebody asked for it; return how many were removed.

        An example is removed if any of the conditions holds. Nothing of it is left in the memory's table or files.
        What the model has learned from it stays learned. The memory fills up again while the stream goes on. In a
        reservoir, each of the examples that stay, and of those that come later, is still held with the same
        probability; a `Balanced` memory keeps every example that comes until it is full again.

        Args:
            where: Takes some examples as columns and returns for each whether to remove it, for instance
                `lambda held: held["y"] == 3`. The column `y` has the numbers of labels: `labels.index("cat")`.
            numbers: Numbers of examples in the stream, counted from 0 as `memory.seen` counts them.
            older_than: Remove examples that came before the last `older_than` ones of the stream.
        """
        found = slots_to_remove(self, where, numbers, older_than)
        if len(found):
            self.drop(found)
        return len(found)

    def drop(self, slots: Ints) -> None:
        """Empty some slots that are filled, and erase what was in them.

        Args:
            slots: The slots, each at most once.
        """
        assert self.table is not None, "there are examples"
        assert self.number_of is not None, "a memory without this list has a method of its own"
        with HeldBack():
            self.version += 1
            self.table.erase(slots)
            left = self.filled[~np.isin(self.filled, slots)]
            self._count = len(left)
            self.order[: len(left)] = left
            self.is_filled[slots] = False
            self.number_of[slots] = -1

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
