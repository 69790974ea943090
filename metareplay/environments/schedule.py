"""Schedules: a parameter of an environment that changes at regular intervals."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Generic, Literal, TypeVar, final, get_args

import numpy as np

from metareplay._core.checks import check_count, choice, shown, whole
from metareplay.errors import InputError

Value = TypeVar("Value")
Order = Literal["published", "reversed", "shuffled"]

# The paper's six tasks. Its text gives the first pellet speed as 0.608, PLE's default on a screen of 640 pixels; on
# PLE's default screen of 64 pixels it is 0.0608. Both readings add one pixel per tick with every task.
CATCHER_SPEEDS: Final = (0.0608, 0.0908, 0.1208, 0.1508, 0.1808, 0.2108)
CATCHER_SPEEDS_640: Final = (0.608, 0.638, 0.668, 0.698, 0.728, 0.758)
FLAPPY_BIRD_GAPS: Final = (100, 95, 90, 85, 80, 75)


@final
@dataclass(frozen=True)
class Schedule(Generic[Value]):
    """Say which value of a parameter holds at which frame. Each value holds for the same time; the last one stays.

    A frame is one step of the environment; the first has the number 0. Tasks keep the numbers of their values whatever
    the order in which they come.

    >>> schedule = Schedule(FLAPPY_BIRD_GAPS, frames=25_000)
    >>> schedule.value(0), schedule.value(24_999), schedule.value(25_000), schedule.value(10**6)
    (100, 100, 95, 75)
    >>> schedule.switches, schedule.total
    ((25000, 50000, 75000, 100000, 125000), 150000)
    >>> backwards = Schedule(FLAPPY_BIRD_GAPS, order="reversed")
    >>> backwards.value(0), backwards.task(0), backwards.tasks
    (75, 5, (5, 4, 3, 2, 1, 0))

    Args:
        values: The value of the parameter in each task.
        frames: For how many frames each value holds.
        order: "published" takes the values as they are given, "reversed" from the last to the first, and "shuffled" in
            an order that the seed decides.
        seed: Decides the order if it is "shuffled".
    """

    values: Sequence[Value]
    frames: int = 25_000
    order: Order = "published"
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse options that cannot be used, and keep the values from being changed."""
        if isinstance(self.values, str) or not isinstance(self.values, Sequence) or not len(self.values):
            raise InputError(f"values={shown(self.values)}: use a list with the value of each task")
        object.__setattr__(self, "values", tuple(self.values))
        check_count("frames", self.frames, "every value holds for at least one frame")
        choice("order", self.order, get_args(Order))
        if whole("seed", self.seed) < 0:
            raise InputError(f"seed={shown(self.seed)}: use a whole number of at least 0")
        for name in ("frames", "seed"):
            object.__setattr__(self, name, whole(name, getattr(self, name)))

    @cached_property
    def tasks(self) -> tuple[int, ...]:
        """The numbers of the tasks in the order in which they come."""
        numbers = range(len(self.values))
        if self.order == "shuffled":
            return tuple(np.random.default_rng(self.seed).permutation(len(self.values)).tolist())
        return tuple(numbers if self.order == "published" else reversed(numbers))

    @property
    def switches(self) -> tuple[int, ...]:
        """The frames with which the second and every later task begins."""
        return tuple(range(self.frames, self.total, self.frames))

    @property
    def total(self) -> int:
        """The number of frames of all tasks together."""
        return self.frames * len(self.values)

    def task(self, frame: int) -> int:
        """Return the number of the task that a frame belongs to.

        Args:
            frame: The number of the frame.
        """
        if whole("frame", frame) < 0:
            raise InputError(
                f"frame={shown(frame)}: the first frame has the number 0; use a whole number of at least 0"
            )
        return self.tasks[min(frame // self.frames, len(self.values) - 1)]

    def value(self, frame: int) -> Value:
        """Return the value that holds at a frame.

        Args:
            frame: The number of the frame.
        """
        return self.values[self.task(frame)]
