"""The most recent examples, as in DQN (Mnih et al., 2015)."""

from typing import final

import numpy as np

from metareplay._core.draws import Draws, Ints
from metareplay.memories.memory import Memory


@final
class Recent(Memory):
    """The last `capacity` examples; the oldest makes room for the newest.

    >>> Recent(3).place(Draws(seed=0), tasks=np.zeros(5, np.int64))
    array([0, 1, 2, 0, 1])
    """

    def place(self, draws: Draws, tasks: Ints) -> Ints:
        """Round and round."""
        del draws
        return (self.seen + np.arange(len(tasks), dtype=np.int64)) % self.capacity

    def settings(self) -> dict[str, object]:
        """Kind and capacity."""
        return {"kind": "Recent", "capacity": self.capacity}
