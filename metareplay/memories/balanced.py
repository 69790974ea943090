"""A memory with as many examples of rare classes as of frequent ones."""

from bisect import insort
from typing import Literal, final

import numpy as np

from metareplay._core.checks import choice
from metareplay._core.columns import Columns
from metareplay._core.draws import Draws, Ints, Purpose
from metareplay._core.table import Storage
from metareplay.errors import InputError
from metareplay.memories.memory import Memory

Ranked = list[tuple[float, int]]  # the rank and the slot of each example of a class, in the order of rank


@final
class Balanced(Memory):
    """Hold a uniform sample of each class, with sample sizes as equal as the stream allows.

    Every example draws a rank. When the memory is full, a new example takes the place of the one with the highest rank
    in the largest class, or is not kept if that is itself; so each class is represented by its examples with the lowest
    ranks. The classes need not be known in advance.

    Args:
        capacity: The largest number of examples to hold.
        by: What is balanced: "class" for labels, or "task" for task ids.
        storage: Where the examples are kept; None keeps them on the model's device.

    >>> memory = Balanced(4, by="task")
    >>> memory.place(Draws(seed=0), tasks=np.array([0, 0, 0, 0, 0, 1, 1, 1]))
    array([ 0,  1,  2,  3,  3,  0,  1, -1])
    """

    def __init__(self, capacity: int, by: Literal["class", "task"] = "class", storage: Storage | None = None) -> None:
        super().__init__(capacity, storage)
        choice("by", by, ("class", "task"))
        self.by = by
        self._labels: Ints | None = None  # of the examples that come next
        self._ranks: dict[int, Ranked] = {}  # of the examples held, by class
        self._class_of: dict[int, int] = {}  # by slot
        self._draws: Draws | None = None  # those that examples were placed with
        self._known = -1  # the `version` that the lists are of

    def coming(self, incoming: Columns) -> None:
        """Look at the labels of the examples that come next."""
        columns = dict(incoming.items())
        if self.by == "class":
            if "y" not in columns or columns["y"].is_floating_point() or columns["y"].dim() != 1:
                raise InputError("Balanced needs class labels: use by='task', or another memory")
            self._labels = columns["y"].cpu().numpy()

    def place(self, draws: Draws, tasks: Ints) -> Ints:
        """Give each example the slot of the one with the highest rank in the largest class."""
        labels = tasks if self.by == "task" else self._labels
        if labels is None or len(labels) != len(tasks):
            raise InputError("Balanced needs class labels, which only supervised learners tell it: use another memory")
        self._look(draws)
        ranks = {label: ranked.copy() for label, ranked in self._ranks.items()}
        free = np.flatnonzero(~self.is_filled)[: len(tasks)].tolist()[::-1]
        slots = np.full(len(tasks), -1)
        for i, rank in enumerate(draws.of(Purpose.KEEP, self.seen + np.arange(len(tasks))).tolist()):
            slots[i] = _admit(ranks, int(labels[i]), rank, free)
        return slots

    def keep(self, slots: Ints, tasks: Ints) -> None:
        """Record where examples went, and of which class they are."""
        labels = tasks if self.by == "task" else self._labels
        assert labels is not None, "they have been placed"
        assert self._draws is not None, "they have been placed"
        ranks = self._draws.of(Purpose.KEEP, self.seen + np.arange(len(slots))).tolist()
        for slot, label, rank in zip(slots.tolist(), labels.tolist(), ranks, strict=False):
            if slot >= 0:
                self._forget(slot)
                insort(self._ranks.setdefault(label, []), (rank, slot))
                self._class_of[slot] = label
        super().keep(slots, tasks)
        self._known = self.version

    def settings(self) -> dict[str, object]:
        """Return kind, capacity and what is balanced."""
        return {"kind": "Balanced", "capacity": self.capacity, "by": self.by}

    def _forget(self, slot: int) -> None:
        """Take a slot out of the list of its class."""
        if slot in self._class_of:
            label = self._class_of.pop(slot)
            self._ranks[label] = [one for one in self._ranks[label] if one[1] != slot]
            if not self._ranks[label]:
                del self._ranks[label]

    def _look(self, draws: Draws) -> None:
        """Make the lists anew if they are not those of what is held, for instance in a copy or after loading."""
        self._draws = draws
        if self._known != self.version:
            self._ranks, self._class_of, self._known = {}, {}, self.version
            for slots, held in self.pieces():
                labels = held["y" if self.by == "class" else "task"].tolist()
                ranks = draws.of(Purpose.KEEP, self.numbers_of(slots)).tolist()
                for slot, label, rank in zip(slots.tolist(), labels, ranks, strict=True):
                    insort(self._ranks.setdefault(label, []), (rank, slot))
                    self._class_of[slot] = label


def _admit(ranks: dict[int, Ranked], label: int, rank: float, free: list[int]) -> int:
    """Return the slot for an example of some class and rank, -1 if it is not kept; the lists are changed."""
    own = ranks.setdefault(label, [])
    if free:
        slot = free.pop()
    else:
        largest = ranks[max(ranks, key=lambda one: (len(ranks[one]), one))]
        crowded = own if len(own) + 1 >= len(largest) else largest  # with the new one, the own class may be as large
        if crowded is own and (not own or rank >= own[-1][0]):
            return -1
        slot = crowded.pop()[1]
    insort(own, (rank, slot))
    return slot
