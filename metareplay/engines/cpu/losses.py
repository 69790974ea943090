"""Losses as the compiled kernels take them: which one, and each row's share in it."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from metareplay._core.draws import Ints
from metareplay._core.table import Table
from metareplay.engines.chain import LossKind
from metareplay.engines.objective import Objective, Supervised

Reals = NDArray[np.float64]


def loss_kind(objective: Supervised) -> LossKind | None:
    """Return which of the kernel's losses an objective has; None for any other, or where the targets do not fit it.

    Args:
        objective: What steps minimise.
    """
    kind = LossKind.of(objective.criterion)
    return None if kind is None or (kind is LossKind.CROSS_ENTROPY) == objective.regression else kind


def loss_obstacle(objective: Objective) -> str | None:
    """Say what the kernels would need that an objective does not have; None if they can minimise it.

    Args:
        objective: What steps minimise.
    """
    if not isinstance(objective, Supervised):
        return "a supervised objective"
    return None if loss_kind(objective) else "cross-entropy for labels, squared or Huber error for real targets"


def target_obstacle(objective: Objective, target: torch.Size, outputs: int) -> str | None:
    """Say which targets the kernels would need; None if these are right. A user's own loss may take others.

    Args:
        objective: What steps minimise.
        target: The shape of one target.
        outputs: How many outputs the network has.
    """
    labels = isinstance(objective, Supervised) and loss_kind(objective) is LossKind.CROSS_ENTROPY
    needed = torch.Size() if labels else torch.Size([outputs])
    return None if target == needed else f"targets of shape {tuple(needed)}"


def loss_number(objective: Supervised) -> int:
    """Return the kernel's number for an objective's loss.

    Args:
        objective: What steps minimise.
    """
    from metareplay.engines.cpu import layout  # here: numba is slow to import

    numbers: dict[Any, int] = {
        LossKind.CROSS_ENTROPY: layout.CROSS_ENTROPY,
        LossKind.SQUARED_ERROR: layout.SQUARED_ERROR,
        LossKind.HUBER: layout.HUBER,
    }
    return numbers[loss_kind(objective)]  # the engine has looked


def shares_of(table: Table, rows: Ints, ends: Ints, by_task: bool) -> Reals:
    """Weigh each row's loss in its batch: by 1 / the batch's size, or by 1 / the number of its rows with this task.

    Args:
        table: The examples by row.
        rows: The rows of all batches.
        ends: Where batches begin and end in `rows`.
        by_task: Whether the tasks of a batch count alike.
    """
    sizes = np.diff(ends)
    if not by_task:
        return np.repeat(1 / sizes, sizes)
    _, tasks = np.unique(table.tasks(rows).numpy(), return_inverse=True)
    groups = np.repeat(np.arange(len(sizes)), sizes) * (len(rows) + 1) + tasks
    _, which, counts = np.unique(groups, return_inverse=True, return_counts=True)
    shares: Reals = 1 / counts[which]
    return shares
