"""Draws from a memory, made ahead of the learning that they are for."""

from typing import final

from metareplay._core.draws import Draws, Fractions, Ints, Purpose, below
from metareplay.memories.memory import Memory


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
