"""Plans: what to do with a chunk of examples, as integers. Drawn first; an engine computes afterwards.

In Algorithms 1 and 3 to 7 neither what is stored nor what is drawn depends on the weights, so both are settled here.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import final

import numpy as np

from metareplay.draws import Draws, Fractions, Ints, Purpose, below
from metareplay.memories.memory import Memory


@final
@dataclass(frozen=True)
class Rates:
    """How far each kind of step goes."""

    memory: float  # alpha, for a step on a stored example or a batch
    current: float  # for a step on the incoming example alone: alpha, or s * alpha in Algorithm 7
    within: float = 1.0  # beta, the Reptile line after each batch
    across: float = 1.0  # gamma, the Reptile line after the batches of one example


@final
@dataclass(frozen=True)
class Plan:
    """For each of n examples s batches of rows of a Table, then the slot the example goes to.

    Batch b of example i is number i * s + b; its rows are rows[ends[number] : ends[number + 1]].
    """

    rows: Ints  # the rows visited, one batch after the other
    ends: Ints  # n * s + 1 boundaries in `rows`
    s: int  # batches for each example
    slots: Ints  # n slots, -1: not kept
    rates: Rates
    first: int  # the first example's number in the stream
    incoming: int  # the first example's row in the table
    together: bool = False  # one step on a batch's mean loss, instead of one step a row
    balanced: bool = False  # with `together`: the sum over tasks of each task's mean loss (Algorithm 5)

    def __len__(self) -> int:
        """How many examples the plan is for."""
        return len(self.slots)

    @staticmethod
    def once(slots: Ints, rate: float, first: int, incoming: int) -> "Plan":
        """A step on each incoming example and on nothing else."""
        n, each = len(slots), np.arange(len(slots) + 1, dtype=np.int64)
        return Plan(incoming + each[:n], each, 1, slots, Rates(memory=rate, current=rate), first, incoming)

    def batches(self, example: int) -> list[Ints]:
        """The rows of each batch of one example."""
        ends = self.ends[example * self.s : (example + 1) * self.s + 1]
        return [self.rows[start:end] for start, end in pairwise(ends.tolist())]


@final
class Sampler:
    """Draws rows from a memory as it stands before each example of a chunk, although the chunk is not stored yet."""

    def __init__(self, memory: Memory, draws: Draws, first: int, tasks: Ints) -> None:
        """Look ahead from the memory's state over examples first, first + 1, ... of these tasks; `close` it after."""
        self.slots = memory.place(draws, tasks)
        self.incoming = memory.capacity
        self._memory, self._draws, self._first = memory, draws, first
        self._count = len(memory)
        self._fresh: set[int] = set()  # slots filled for the first time in this chunk
        self._ahead: Fractions | None = None
        self._places = draws.fractions(Purpose.PLACE, first, len(tasks), 1)[:, 0]
        self._at = 0

    def sample(self, batches: int, size: int) -> Ints:
        """A (batches, size) array of rows, each drawn uniformly and with replacement.

        While fewer than `size` examples are held, a batch has only as many draws as there are examples, as in the
        official code; from an empty memory nothing is drawn.
        """
        if self._ahead is None:  # for the whole chunk at once
            self._ahead = self._draws.fractions(Purpose.REPLAY, self._first, len(self.slots), batches * size)
        size = min(size, self._count)
        drawn = below(self._ahead[self._at, : batches * size], self._count)
        rows: Ints = self._memory.row_of[self._memory.order[drawn]]
        return rows.reshape(batches, size)

    def position(self, size: int) -> int:
        """A random place for the current example among `size` others: before the first, ..., after the last."""
        return int(self._places[self._at] * (size + 1))

    def store(self) -> None:
        """Go on to the next example: from now on, draws may find this one in its slot."""
        slot = int(self.slots[self._at])
        if slot >= 0:
            self._memory.row_of[slot] = self.incoming + self._at
            if not self._memory.is_filled[slot] and slot not in self._fresh:
                self._fresh.add(slot)
                self._memory.order[self._count] = slot
                self._count += 1
        self._at += 1

    def close(self) -> None:
        """Leave the memory's rows as they were: nothing has been stored yet."""
        touched = self.slots[self.slots >= 0]
        self._memory.row_of[touched] = touched
