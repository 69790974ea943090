"""Stand-ins for a memory's lists of slots where slots are filled in order and there may be very many of them."""

from typing import Any, final

import numpy as np

from metareplay._core.draws import Ints


@final
class InOrder:
    """Stand for the array 0, 1, 2, ... without its memory: the slots in the order they were first filled."""

    def __getitem__(self, index: Any) -> Any:
        """Return what the array has there.

        Args:
            index: An array of numbers, or a slice with an end.
        """
        return np.arange(index.stop, dtype=np.int64)[index.start :] if isinstance(index, slice) else index

    def __setitem__(self, index: Any, value: Any) -> None:
        """Do nothing: only what the array has already is ever written into it."""

    def copy(self) -> "InOrder":
        """Return itself, which never changes."""
        return self


@final
class FirstOnes:
    """Stand for an array of booleans of which those below a count are True.

    Args:
        count: Returns the count.
    """

    def __init__(self, count: Any) -> None:
        self._count = count

    def __getitem__(self, slot: Any) -> Any:
        """Return whether a slot is below the count."""
        return slot < self._count()

    def __setitem__(self, slot: Any, value: Any) -> None:
        """Do nothing: the count says it all."""

    def copy(self) -> "FirstOnes":
        """Return itself, which has no values of its own."""
        return self


@final
class FewMoved:
    """Stand for the array 0, 1, 2, ... of which a few entries have been replaced for a while."""

    def __init__(self) -> None:
        self._moved: dict[int, int] = {}

    def __getitem__(self, slots: Ints) -> Ints:
        """Return the row of each slot."""
        if not self._moved:
            return slots
        found = self._moved
        return np.array([found.get(slot, slot) for slot in slots.ravel().tolist()], np.int64).reshape(slots.shape)

    def __setitem__(self, slots: Any, rows: Any) -> None:
        """Replace the row of a slot, or put back those of some slots: then both are the same array."""
        if np.ndim(slots) == 0:
            self._moved[int(slots)] = int(rows)
        else:
            self._moved.clear()
