"""The outcome of one setting: its runs with all seeds, and what they measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isnan
from statistics import fmean
from typing import final

from metareplay._core.text import deviation
from metareplay.experiments.base import BaseRecord
from metareplay.runners import Failure
from metareplay.sweeps.grid import Settings
from metareplay.sweeps.subject import Measure, measured

Found = BaseRecord | Failure | None  # what became of a run


@final
@dataclass(frozen=True)
class Outcome:
    """Hold what became of one setting.

    Args:
        number: The place of the setting in the grid, counted from 0.
        settings: The value of each field of the grid.
        found: The record or the failure of each seed; None for a run that could not be finished.
        measure: What settings are compared by.
        tasks: After how many tasks its runs were stopped; None if they learned all of them.
    """

    number: int
    settings: Settings
    found: tuple[Found, ...]
    measure: Measure
    tasks: int | None = None

    @cached_property
    def records(self) -> list[BaseRecord]:
        """The records of the seeds that finished."""
        return [one for one in self.found if isinstance(one, BaseRecord)]

    @property
    def failures(self) -> list[Failure]:
        """The failures of the other seeds, as far as their reasons are known."""
        return [one for one in self.found if isinstance(one, Failure)]

    @property
    def failed(self) -> int:
        """How many seeds did not finish."""
        return len(self.found) - len(self.records)

    @cached_property
    def scores(self) -> list[float]:
        """What was measured with each seed that finished."""
        return [measured(record, self.measure) for record in self.records]

    @cached_property
    def mean(self) -> float | None:
        """The mean over the seeds that finished; None if there is none."""
        return fmean(self.scores) if self.scores else None

    @cached_property
    def std(self) -> float | None:
        """The standard deviation over seeds (n - 1); None for fewer than two."""
        return deviation(self.scores)

    @cached_property
    def complete(self) -> bool:
        """Whether every seed finished and could be measured; only then can the setting be chosen."""
        return not self.failed and not any(map(isnan, self.scores))


def ranked(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return outcomes with the best first; those with a seed that failed come last, and equal ones stay in order.

    Args:
        outcomes: The outcomes, all after the same number of tasks.
    """
    return sorted(outcomes, key=lambda one: (not one.complete, -one.mean if one.mean is not None else float("inf")))
