"""Draws from a memory, made before anything is learned."""

from collections.abc import Iterator
from typing import Self, final

import numpy as np

from metareplay._core.draws import Draws, Fractions, Ints, Purpose, below
from metareplay._core.plan import Plan, Rates
from metareplay.errors import InputError
from metareplay.memories.memory import Memory


@final
class Sampler:
    """Draw rows from a memory as it stands before each of the next examples, although none is stored yet.

    Use it in a `with` block and go through the examples in order:

        for current in memory.incoming():
            for drawn in memory.sample(...):
                memory.visit(current, drawn)
            memory.store()
        return memory.plan(...)

    An example may also be stored before anything is sampled, as in Algorithm 8; it can then be among what is drawn.

    Args:
        memory: The memory to draw from; it is left as it was.
        draws: The learner's random draws.
        first: The number of the next example in the stream.
        tasks: The task of each of the next examples.
    """

    def __init__(self, memory: Memory, draws: Draws, first: int, tasks: Ints) -> None:
        self.slots = memory.place(draws, tasks)
        self._rows = memory.capacity + np.arange(len(tasks), dtype=np.int64)
        self._memory, self._draws, self._first = memory, draws, first
        self._count = len(memory)
        self._fresh: set[int] = set()  # slots filled for the first time by these examples
        self._ahead: Fractions | None = None
        self._places = draws.fractions(Purpose.PLACE, first, len(tasks), 1)[:, 0]
        self._at = 0
        self._stored = 0  # examples offered so far
        self._drawn = 0  # numbers drawn for the current example so far
        self._batches: list[tuple[Ints, ...]] = []
        self._weights = None if memory.weights is None else memory.weights.copy()

    def incoming(self) -> Iterator[Ints]:
        """Go through the next examples; each is given as its table row, an array of one number."""
        for i in range(len(self._rows)):
            yield self._rows[i : i + 1]
            self._at += 1
            self._drawn = 0

    def sample(self, batches: int, size: int) -> Ints:
        """Draw rows from the memory, uniformly and with replacement.

        While fewer than `size` examples are held, a batch has only as many draws as there are examples, as in the
        official code; from an empty memory nothing is drawn.

        Args:
            batches: How many batches to draw.
            size: How many rows each of them has.

        Returns:
            An array of row numbers, one batch per row.
        """
        needed = self._drawn + batches * size
        if self._ahead is None or self._ahead.shape[1] < needed:  # for all examples at once
            self._ahead = self._draws.fractions(Purpose.REPLAY, self._first, len(self.slots), needed)
        size = min(size, self._count)
        end = self._drawn + batches * size
        fractions = self._ahead[self._at, self._drawn : end]
        drawn = below(fractions, self._count) if self._weights is None else self._by_weight(fractions, self._weights)
        self._drawn = end
        rows: Ints = self._memory.row_of[self._memory.order[drawn]]
        return rows.reshape(batches, size)

    def _by_weight(self, fractions: Fractions, weights: Fractions) -> Ints:
        """Draw in proportion to the weights of the examples held; equally often if all of these are 0."""
        edges = np.cumsum(weights[self._memory.order[: self._count]])
        if not len(edges) or edges[-1] == 0:
            return below(fractions, self._count)
        found: Ints = np.searchsorted(edges, fractions * edges[-1], side="right")
        return found

    def position(self, size: int) -> int:
        """Draw a place for the current example among others: before the first (0), ..., after the last (`size`).

        Args:
            size: How many others there are.
        """
        return int(self._places[self._at] * (size + 1))

    def visit(self, *rows: Ints) -> None:
        """Add a batch to the plan: the steps go through these rows in order, then the Reptile line follows.

        Args:
            rows: The rows of the batch, as parts that follow one another.
        """
        self._batches.append(rows)

    def store(self) -> None:
        """Offer the current example to the memory: from now on, draws may find it in its slot."""
        slot = int(self.slots[self._at])
        if slot >= 0:
            self._memory.row_of[slot] = self._rows[self._at]
            if self._weights is not None:
                self._weights[slot] = 1.0
            if not self._memory.is_filled[slot] and slot not in self._fresh:
                self._fresh.add(slot)
                self._memory.order[self._count] = slot
                self._count += 1
        self._stored += 1

    def plan(self, rates: Rates, *, s: int = 1, together: bool = False) -> Plan:
        """Make the plan of all the batches that were visited.

        Args:
            rates: How far steps and Reptile lines go.
            s: Batches per example.
            together: Take one step on the mean loss of a batch, instead of one step per row.
        """
        if self._stored != len(self.slots) or len(self._batches) != s * len(self.slots):
            raise InputError(
                f"a plan of s={s} batches for each of {len(self.slots)} examples, but {len(self._batches)} batches "
                f"were visited and {self._stored} examples stored: visit s batches per example, then call store()"
            )
        rows = np.concatenate([part for batch in self._batches for part in batch])
        ends = np.cumsum([0, *(sum(map(len, batch)) for batch in self._batches)])
        return Plan(rows, ends, s, self.slots, rates, self._first, self._memory.capacity, together)

    def __enter__(self) -> Self:
        """Begin to look ahead."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the memory's rows as they were: nothing has been stored yet."""
        touched = self.slots[self.slots >= 0]
        self._memory.row_of[touched] = touched
