"""A plan's batches in the pieces that a graph can hold, and when it pays to make one."""

from dataclasses import dataclass
from itertools import pairwise
from typing import final

import numpy as np
from numpy.typing import NDArray

from metareplay._core.plan import Plan

MOST = 128  # steps per graph: thousands of kernels, captured in a second
PATIENCE = 3  # examples in a row with batches of one length before a graph is made for it


@final
@dataclass(frozen=True)
class Piece:
    """Rows of one batch that are learned in one go: the whole batch, or part of a very long one."""

    start: int  # in the plan's rows
    size: int
    opens: bool  # the batch begins here
    closes: bool  # it ends here: the Reptile line follows

    @property
    def kind(self) -> tuple[int, bool, bool]:
        """Pieces of one kind differ in their rows alone."""
        return self.size, self.opens, self.closes


def pieces(plan: Plan, example: int, most: int = MOST) -> list[Piece]:
    """An example's batches, the very long ones in parts of nearly equal size."""
    found = []
    for start, end in pairwise(plan.ends[example * plan.s : (example + 1) * plan.s + 1].tolist()):
        parts = 1 if plan.together else -(-(end - start) // most)
        cuts = [start + (end - start) * part // parts for part in range(parts + 1)]
        found += [Piece(a, b - a, a == start, b == end) for a, b in pairwise(cuts)]
    return found


def row_rates(plan: Plan) -> NDArray[np.float64] | None:
    """The rate of each of the plan's rows; None if all have the same, or belong to batches of one step."""
    if plan.together or plan.rates.current == plan.rates.memory:
        return None
    example = np.repeat(np.arange(len(plan)), np.diff(plan.ends[:: plan.s]))
    return np.where(plan.rows == plan.incoming + example, plan.rates.current, plan.rates.memory)


@final
class Patience:
    """Says when a kind of example has come often enough in a row to make graphs for it."""

    def __init__(self, needed: int = PATIENCE) -> None:
        self._needed = needed
        self._kinds: set[tuple[int, bool, bool]] = set()
        self._count = 0

    def ends(self, kinds: set[tuple[int, bool, bool]]) -> bool:
        """Count an example that has pieces of these kinds."""
        self._count = self._count + 1 if kinds == self._kinds else 1
        self._kinds = kinds
        return self._count >= self._needed
