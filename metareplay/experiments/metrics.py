"""RA, LA, BTI and FTI from one accuracy matrix, each defined once.

Row 0 is measured before training and row t after task t; there is one column per task. So accuracy[t, t - 1] is the
accuracy on the t-th task just after it was learned, and accuracy[t - 1, t - 1] just before. Values are in percent; NaN
marks an entry that was not measured.
"""

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from metareplay._core.checks import check_room, described
from metareplay.errors import InputError

Matrix = NDArray[np.float64]


@final
@dataclass(frozen=True)
class Metrics:
    """Hold what the paper reports, in percent.

    Args:
        ra: Retained accuracy: the mean over all tasks at the end of training.
        la: Learning accuracy: the mean over tasks, each just after it was learned.
        bti: Backward transfer and interference: the mean of (at the end - just after learning); forgetting is negative.
        fti: Forward transfer and interference: the mean of (just before learning - at the first weights).
    """

    ra: float
    la: float
    bti: float
    fti: float

    @staticmethod
    def of(accuracy: Matrix) -> "Metrics":
        """Compute the four metrics of a (T + 1, T) matrix; all means are over T tasks, as in the paper.

        Args:
            accuracy: Row 0 before training, row t after task t; one column per task; in percent.

        >>> Metrics.of(np.array([[10.0, 10.0], [90.0, 30.0], [70.0, 80.0]]))
        Metrics(ra=75.0, la=85.0, bti=-10.0, fti=10.0)
        """
        if not isinstance(accuracy, np.ndarray) or accuracy.dtype.kind != "f":
            raise InputError(f"accuracy is {described(accuracy)}: use a NumPy array of real numbers")
        tasks = accuracy.shape[1] if accuracy.ndim == 2 else 0
        if tasks == 0 or accuracy.shape != (tasks + 1, tasks):
            raise InputError(f"an accuracy matrix of shape {accuracy.shape}: use (T + 1, T) with T >= 1")
        learned, last, before = np.diag(accuracy[1:]), accuracy[-1], np.diag(accuracy[:-1])
        return Metrics(
            ra=float(last.mean()),
            la=float(learned.mean()),
            bti=float((last - learned).mean()),
            fti=float((before - accuracy[0]).mean()),
        )


def needed(tasks: int) -> NDArray[np.bool_]:
    """Return which entries of the matrix the metrics use: first and last row, and just before and after each task.

    >>> needed(3).astype(int)
    array([[1, 1, 1],
           [1, 1, 0],
           [0, 1, 1],
           [1, 1, 1]])
    """
    mask = np.zeros((tasks + 1, tasks), np.bool_)
    mask[0] = mask[-1] = True
    each = np.arange(tasks)
    mask[each, each] = mask[each + 1, each] = True
    return mask


@final
class Accuracies:
    """Fill in an accuracy matrix.

    Args:
        tasks: How many tasks there are.
        full_matrix: Measure every task after every task; otherwise only what the metrics need.
    """

    def __init__(self, tasks: int, full_matrix: bool) -> None:
        check_room("tasks", tasks, 10 * tasks * (tasks + 1))
        self.values: Matrix = np.full((tasks + 1, tasks), math.nan)
        self._wanted = np.ones_like(self.values, np.bool_) if full_matrix else needed(tasks)

    @property
    def more_than_needed(self) -> bool:
        """Whether more is measured than the metrics need; with up to two tasks they need everything."""
        return bool((self._wanted & ~needed(self.values.shape[1])).any())

    def missing(self, finished: int) -> list[int]:
        """Return the tasks that are still to be measured at the moment when `finished` tasks have been learned."""
        tasks: list[int] = np.flatnonzero(self._wanted[finished] & np.isnan(self.values[finished])).tolist()
        return tasks

    def to_json(self) -> list[list[float | None]]:
        """Return plain JSON values, which have no NaN."""
        return [[None if math.isnan(value) else value for value in row] for row in self.values.tolist()]

    def restore(self, rows: list[list[float | None]]) -> None:
        """Restore what `to_json` returned."""
        found = np.array([[math.nan if value is None else value for value in row] for row in rows], np.float64)
        self.values[:] = found.reshape(self.values.shape)
