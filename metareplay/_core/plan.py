"""Plans: what to do with a chunk of examples, as integers. Drawn first; an engine computes afterwards.

In Algorithms 1 and 3 to 7 neither what is stored nor what is drawn depends on the weights, so both are settled here.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import final

import numpy as np

from metareplay._core.draws import Ints


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
