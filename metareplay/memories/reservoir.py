"""Reservoir sampling: Algorithm 3 of Riemer et al. (2019), after Vitter (1985)."""

from typing import ClassVar, Literal, final

import numpy as np

from metareplay._core.checks import choice
from metareplay._core.draws import Draws, Ints, Purpose
from metareplay._core.table import Storage
from metareplay.memories.memory import Memory


@final
class Reservoir(Memory):
    """Hold a uniform sample of all examples seen: each is held with probability capacity / N.

    Args:
        capacity: The largest number of examples to hold (M).
        rule: With "paper" (Algorithm 3), after N earlier examples the next one goes to slot j, drawn from 0 .. N, if
            j < capacity; so it is kept with probability capacity / (N + 1). With "official", as in the authors' code, j
            is drawn from 0 .. N + 1; so it is kept with probability capacity / (N + 2), which very slightly favours
            old examples.
        storage: Where the examples are kept; None keeps them on the model's device.

    >>> Reservoir(3).place(Draws(seed=0), tasks=np.zeros(8, np.int64))
    array([ 0,  1,  2, -1,  1,  1,  0, -1])
    """

    looks_ahead: ClassVar[bool] = True

    def __init__(
        self, capacity: int, rule: Literal["paper", "official"] = "paper", storage: Storage | None = None
    ) -> None:
        super().__init__(capacity, storage)
        choice("rule", rule, ("paper", "official"))
        self.rule = rule

    def place(self, draws: Draws, tasks: Ints) -> Ints:
        """Fill slots 0, 1, 2 ... until the memory is full; then slot j, if j < capacity."""
        earlier = self.seen + np.arange(len(tasks), dtype=np.int64)  # N, for each of the next examples
        j = draws.each(Purpose.KEEP, self.seen, earlier + (1 if self.rule == "paper" else 2))
        return np.where(earlier < self.capacity, earlier, np.where(j < self.capacity, j, -1))

    def settings(self) -> dict[str, object]:
        """Return kind, capacity and rule."""
        return {"kind": "Reservoir", "capacity": self.capacity, "rule": self.rule}
