"""RA, LA, BTI and FTI from one accuracy matrix, each defined once.

Rows: row 0 before training, row t after task t. Columns: tasks. So accuracy[t, t - 1] is the t-th task's accuracy just
after it was learned and accuracy[t - 1, t - 1] just before. Values in percent; NaN marks an entry nobody asked for.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from metareplay.errors import InputError

Matrix = NDArray[np.float64]


@final
@dataclass(frozen=True)
class Metrics:
    """What the paper reports, in percent."""

    ra: float  # retained accuracy: mean over all tasks at the end of training
    la: float  # learning accuracy: mean over tasks, each just after it was learned
    bti: float  # backward transfer and interference: mean of (at the end - just after learning); forgetting is negative
    fti: float  # forward transfer and interference: mean of (just before learning - at the first weights)

    @staticmethod
    def of(accuracy: Matrix) -> "Metrics":
        """The four metrics of a (T + 1, T) matrix; all means are over T tasks, as in the paper.

        >>> Metrics.of(np.array([[10.0, 10.0], [90.0, 30.0], [70.0, 80.0]]))
        Metrics(ra=75.0, la=85.0, bti=-10.0, fti=10.0)
        """
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
    """Which entries of the matrix the metrics use: first and last row, just before and just after each task.

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
