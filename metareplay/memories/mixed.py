"""A memory that is part recent and part reservoir, for streams that drift and come back."""

from typing import ClassVar, final

import numpy as np

from metareplay._core.checks import real, shown
from metareplay._core.draws import Draws, Ints, Purpose
from metareplay._core.table import Storage
from metareplay.errors import InputError
from metareplay.memories.memory import Memory


@final
class Mixed(Memory):
    """Hold recent examples in one part and a uniform sample of all examples in the other.

    Where the relation of inputs and labels itself changes, the examples of a reservoir become wrong and hold a learner
    back, while recent ones help it to follow. Where only the inputs change, a reservoir keeps what was learned. This
    memory serves both, each with a part of its slots.

    Args:
        capacity: The largest number of examples to hold.
        recent: The share of the slots that hold recent examples, between 0 and 1.
        storage: Where the examples are kept; None keeps them on the model's device.

    >>> Mixed(4, recent=0.5).place(Draws(seed=0), tasks=np.zeros(8, np.int64))
    array([2, 3, 2, 1, 3, 3, 2, 1])
    """

    looks_ahead: ClassVar[bool] = True

    def __init__(self, capacity: int, recent: float = 0.5, storage: Storage | None = None) -> None:
        super().__init__(capacity, storage)
        self.recent = real("recent", recent)
        self._ring = round(self.recent * self.capacity) if 0 < self.recent < 1 else 0
        if not 0 < self._ring < self.capacity:
            raise InputError(
                f"recent={shown(recent)}: both parts of {self.capacity} slots need at least one; use a share between 0 "
                f"and 1, or Recent or Reservoir"
            )

    def place(self, draws: Draws, tasks: Ints) -> Ints:
        """Apply Algorithm 3 to the second part; what it does not take goes to the slots of the first part in turn.

        The slots of the first part take turns, one for each example of the stream. If an example goes to the second
        part, the slot whose turn it was keeps what it holds: the first part does not always hold the most recent ones.
        """
        sampled = self.capacity - self._ring
        earlier = self.seen + np.arange(len(tasks), dtype=np.int64)
        j = draws.each(Purpose.KEEP, self.seen, earlier + 1)
        j = np.where(earlier < sampled, earlier, j)
        return np.where(j < sampled, self._ring + j, earlier % self._ring)

    def settings(self) -> dict[str, object]:
        """Return kind, capacity and share."""
        return {"kind": "Mixed", "capacity": self.capacity, "recent": self.recent}
