"""Plans: what to do with a piece of the stream, as integers. They are drawn first; then an engine computes.

In Algorithms 1 and 3 to 7 neither what is stored nor what is drawn depends on the weights, so a plan can say
both in advance.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import final

import numpy as np

from metareplay._core.draws import Ints


@final
@dataclass(frozen=True)
class Rates:
    """Say how far each kind of step goes.

    Args:
        memory: alpha, for a step on a stored example or on a whole batch.
        current: The rate of a step on the incoming example alone: alpha, or s * alpha in Algorithm 7.
        within: beta, for the Reptile line after each batch.
        across: gamma, for the Reptile line after all batches of one example.
    """

    memory: float
    current: float
    within: float = 1.0
    across: float = 1.0


@final
@dataclass(frozen=True)
class Plan:
    """List, for each of n examples, s batches of table rows to learn from and the slot that the example goes to.

    Batch b of example i has number i * s + b; its rows are rows[ends[number] : ends[number + 1]].

    Args:
        rows: The rows visited, one batch after the other.
        ends: The n * s + 1 boundaries of the batches in `rows`.
        s: Batches per example.
        slots: The memory slot of each example; -1 for one that is not kept.
        rates: How far steps and Reptile lines go.
        first: The number of the first example in the stream.
        incoming: The table row of the first example.
        together: Take one step on the mean loss of a batch, instead of one step per row.
    """

    rows: Ints
    ends: Ints
    s: int
    slots: Ints
    rates: Rates
    first: int
    incoming: int
    together: bool = False

    def __len__(self) -> int:
        """Count the examples that the plan is for."""
        return len(self.slots)

    @staticmethod
    def once(slots: Ints, rate: float, first: int, incoming: int, steps: int = 1) -> "Plan":
        """Plan steps on each incoming example and on nothing else: usually one, or several in one batch.

        Args:
            slots: The slot of each example; -1 for one that is not kept.
            rate: The rate of every step.
            first: The number of the first example in the stream.
            incoming: The table row of the first example.
            steps: Steps on each example.
        """
        each = np.arange(len(slots) + 1, dtype=np.int64)
        rows = np.repeat(incoming + each[:-1], steps)
        return Plan(rows, steps * each, 1, slots, Rates(memory=rate, current=rate), first, incoming)

    def batches(self, example: int) -> list[Ints]:
        """Return the rows of each batch of one example.

        Args:
            example: The example's number in the plan, counted from 0.
        """
        ends = self.ends[example * self.s : (example + 1) * self.s + 1]
        return [self.rows[start:end] for start, end in pairwise(ends.tolist())]

    def part(self, start: int, end: int) -> "Plan":
        """Return the plan for some consecutive examples of this one.

        Args:
            start: The number of the first of them in the plan, counted from 0.
            end: The number of the first that is left out.
        """
        ends = self.ends[start * self.s : end * self.s + 1]
        rows, slots = self.rows[ends[0] : ends[-1]], self.slots[start:end]
        first, incoming = self.first + start, self.incoming + start
        return replace(self, rows=rows, ends=ends - ends[0], slots=slots, first=first, incoming=incoming)
