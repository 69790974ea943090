"""Reservoir sampling: Algorithm 3 of Riemer et al. (2019), after Vitter (1985)."""

from typing import Literal, final

import numpy as np

from metareplay._core.draws import Draws, Ints, Purpose
from metareplay.errors import InputError
from metareplay.memories.memory import Memory


@final
class Reservoir(Memory):
    """A uniform sample of all examples seen: each is held with probability capacity / N.

    After N earlier examples the next one goes to slot j, drawn from 0 .. N, if j < capacity ("paper": Algorithm 3,
    kept with probability capacity / (N + 1)). The official code draws from 0 .. N + 1 ("official": kept with
    capacity / (N + 2), very slightly favouring old examples).

    >>> from metareplay._core.draws import Draws
    >>> Reservoir(3).place(Draws(seed=0), tasks=np.zeros(8, np.int64))
    array([ 0,  1,  2, -1,  1,  1,  0, -1])
    """

    def __init__(self, capacity: int, rule: Literal["paper", "official"] = "paper") -> None:
        super().__init__(capacity)
        if rule not in ("paper", "official"):
            raise InputError(f"reservoir rule {rule!r}: use 'paper' or 'official'")
        self.rule = rule

    def place(self, draws: Draws, tasks: Ints) -> Ints:
        """Slots 0, 1, 2 ... until the memory is full, then j if j < capacity."""
        earlier = self.seen + np.arange(len(tasks), dtype=np.int64)  # N, for each of the next examples
        j = draws.each(Purpose.KEEP, self.seen, earlier + (1 if self.rule == "paper" else 2))
        return np.where(earlier < self.capacity, earlier, np.where(j < self.capacity, j, -1))

    def settings(self) -> dict[str, object]:
        """Kind, capacity and rule."""
        return {"kind": "Reservoir", "capacity": self.capacity, "rule": self.rule}
