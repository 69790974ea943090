"""The pieces of a plan's batches that a graph can hold, and when it pays to make a graph."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import numpy as np
from numpy.typing import NDArray

from metareplay._core.plan import Plan

MOST = 128  # steps per graph: thousands of kernels, captured in a second
PATIENCE = 3  # examples in a row with batches of the same length before graphs are made for them


@final
@dataclass(frozen=True)
class Piece:
    """Name rows of one batch that are learned in one go: the whole batch, or part of a very long one.

    Args:
        start: Where it begins in the plan's rows.
        size: How many rows it has.
        opens: Whether the batch begins here.
        closes: Whether the batch ends here, so that the Reptile line follows.
    """

    start: int
    size: int
    opens: bool
    closes: bool

    @property
    def kind(self) -> tuple[int, bool, bool]:
        """The kind of the piece; pieces of one kind differ only in their rows."""
        return self.size, self.opens, self.closes


def pieces(plan: Plan, example: int, most: int = MOST) -> list[Piece]:
    """Return the batches of an example as pieces, with very long batches cut into parts of nearly equal size.

    Args:
        plan: The plan.
        example: The example's number in the plan.
        most: The largest number of steps in a piece.
    """
    found = []
    for start, end in pairwise(plan.ends[example * plan.s : (example + 1) * plan.s + 1].tolist()):
        parts = 1 if plan.together else -(-(end - start) // most)
        cuts = [start + (end - start) * part // parts for part in range(parts + 1)]
        found += [Piece(a, b - a, a == start, b == end) for a, b in pairwise(cuts)]
    return found


def row_rates(plan: Plan) -> NDArray[np.float64] | None:
    """Return the rate of each of the plan's rows; None if all rates are equal, or each batch is one step."""
    if plan.together or plan.rates.current == plan.rates.memory:
        return None
    example = np.repeat(np.arange(len(plan)), np.diff(plan.ends[:: plan.s]))
    return np.where(plan.rows == plan.incoming + example, plan.rates.current, plan.rates.memory)


@final
class Patience:
    """Decide when a kind of example has come often enough in a row to make graphs for it.

    Args:
        needed: How often it must come.
    """

    def __init__(self, needed: int = PATIENCE) -> None:
        self._needed = needed
        self._kinds = set[object]()
        self._count = 0

    def ends(self, kinds: Iterable[object]) -> bool:
        """Count an example that has pieces of these kinds; return whether it is time to make graphs."""
        kinds = set(kinds)
        self._count = self._count + 1 if kinds == self._kinds else 1
        self._kinds = kinds
        return self._count >= self._needed
