"""The most recent examples, as in DQN (Mnih et al., 2015)."""

from typing import ClassVar, final

import numpy as np

from metareplay._core.draws import Draws, Ints
from metareplay.memories.memory import Memory


@final
class Recent(Memory):
    """Hold the most recent examples; the oldest makes room for the newest.

    Args:
        capacity: The largest number of examples to hold.
        storage: Where the examples are kept; None keeps them on the model's device.

    >>> Recent(3).place(Draws(seed=0), tasks=np.zeros(5, np.int64))
    array([0, 1, 2, 0, 1])
    """

    looks_ahead: ClassVar[bool] = True

    def place(self, draws: Draws, tasks: Ints) -> Ints:
        """Overwrite the oldest slot."""
        del draws
        return (self.seen + np.arange(len(tasks), dtype=np.int64)) % self.capacity

    def settings(self) -> dict[str, object]:
        """Return kind and capacity."""
        return {"kind": "Recent", "capacity": self.capacity}
