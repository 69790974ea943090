"""Tables of a report: what is shown in a cell, and what it is sorted by."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final, final

from metareplay._core.text import duration, spread

UNKNOWN: Final = "-"


@final
@dataclass(frozen=True)
class Cell:
    """Hold one cell of a table.

    Args:
        text: What is shown.
        value: What it is sorted by; None to sort by the text.
        note: What is shown below it, smaller.
    """

    text: str
    value: float | None = None
    note: str = ""

    @staticmethod
    def of(values: Sequence[float], digits: int = 2, note: str = "") -> "Cell":
        """Return mean and deviation over seeds.

        Args:
            values: The number of each seed; those that are not finite were not measured.
            digits: How many decimal places to show.
            note: What is shown below it, if all of them were measured.
        """
        known = [value for value in values if math.isfinite(value)]
        if not known or len(known) < len(values):
            return Cell(UNKNOWN)
        return Cell(spread(known, digits), fmean(known), note)

    @staticmethod
    def of_seconds(values: Sequence[float]) -> "Cell":
        """Return a mean time.

        Args:
            values: The seconds of each seed.
        """
        return Cell(duration(fmean(values)), fmean(values))

    @staticmethod
    def of_count(count: int | None) -> "Cell":
        """Return a whole number.

        Args:
            count: The number; None if there is none.
        """
        return Cell(UNKNOWN) if count is None else Cell(str(count), float(count))

    @staticmethod
    def of_memory(capacity: int | None, kind: str) -> "Cell":
        """Return the size of a memory, and below it the kind.

        Args:
            capacity: How many examples it holds; None if there is no memory.
            kind: What kind of memory it is.
        """
        return Cell(UNKNOWN, 0.0) if capacity is None else Cell(str(capacity), float(capacity), kind)


@final
@dataclass(frozen=True)
class Column:
    """Describe a column of a table.

    Args:
        head: Its head.
        is_number: Whether its cells are numbers, which are on the right.
        about: What it means, if the head does not say it.
    """

    head: str
    is_number: bool = False
    about: str = ""


@final
@dataclass(frozen=True)
class Table:
    """Hold a table.

    Args:
        columns: Its columns.
        rows: Its rows.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]

    def without_empty_columns(self) -> "Table":
        """Return the table without the columns of numbers that no row knows."""
        kept = [
            number
            for number, column in enumerate(self.columns)
            if not column.is_number or any(row[number].text != UNKNOWN for row in self.rows)
        ]
        return Table([self.columns[i] for i in kept], [[row[i] for i in kept] for row in self.rows])
