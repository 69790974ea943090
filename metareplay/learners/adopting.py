"""Examples that come into a learner's memory without being learned: with the memory itself, or by `store`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from metareplay._core.columns import Columns
from metareplay._core.interrupts import HeldBack
from metareplay.errors import InputError
from metareplay.learners.labels import Labels, some

if TYPE_CHECKING:
    from metareplay._core.table import Table
    from metareplay.learners.table_learner import TableLearner
    from metareplay.memories.memory import Memory


def adopted(memory: Memory, like: Columns) -> Columns:
    """Return some examples with the columns of what a memory holds already; raise InputError if they do not fit.

    Args:
        memory: A memory that comes with examples.
        like: Examples with the columns that the learner needs.
    """
    held = next(memory.pieces())[1].part(0, 1)
    there, here = dict(held.items()), dict(like.items())
    for name, values in here.items():
        if name not in there or there[name].dtype != values.dtype or there[name].shape[1:] != values.shape[1:]:
            old = f"{there[name].dtype} {tuple(there[name].shape[1:])}" if name in there else "missing"
            raise InputError(
                f"the memory comes with examples that do not fit: {name} is {old} there and {values.dtype} "
                f"{tuple(values.shape[1:])} here; use a new memory"
            )
    return held


def adopt_labels(labels: Labels | None, memory: Memory) -> None:
    """Start from the labels of the examples that a memory comes with; raise InputError if these are others.

    Args:
        labels: The learner's labels; None if they are the numbers of its model's outputs.
        memory: A memory that comes with examples.
    """
    if labels is None:
        if memory.labels is not None and memory.labels != tuple(range(len(memory.labels))):
            raise InputError(
                f"the memory comes with examples of the labels {some(memory.labels)}: set classes='grow', or name them "
                f"in this order, classes=[...]"
            )
        return
    held = memory.labels if memory.labels is not None else tuple(range(1 + max(memory.class_counts(), default=-1)))
    if labels.grows and labels.known != held:
        labels.replace(held)
    elif labels.known[: len(held)] != held:
        raise InputError(
            f"the memory comes with examples of the labels {some(held)}, but classes are {some(labels.known)}: name "
            f"them in the same order, or use a new memory"
        )


def adopt(learner: TableLearner, memory: Memory, table: Table) -> None:
    """Check the examples that a memory comes with against a learner, and copy them into its table.

    Args:
        learner: The learner.
        memory: The memory, which still has its earlier table.
        table: The learner's table.
    """
    for slots, held in memory.pieces():
        try:
            learner.check_held(held)
        except (InputError, KeyError) as error:
            raise InputError(f"the memory comes with examples that this learner cannot learn: {error}") from error
        if not table.in_rows:
            for name, values in held.items():
                table.fill(name, torch.from_numpy(slots), values)


def check_storing(learner: TableLearner) -> None:
    """Raise InputError if examples cannot be stored without learning from them.

    Args:
        learner: The learner.
    """
    if learner.own_memory is None:
        raise InputError(f"{type(learner).__name__} has no memory to store examples in: use a learner that replays")
    if learner.objective.stores:
        raise InputError(
            f"the objective stores the column {learner.objective.stores[0]!r} with each example when it is learned: "
            f"observe the examples instead"
        )


def store(learner: TableLearner, incoming: Columns, table: Table) -> None:
    """Offer checked examples to a learner's memory without learning from them.

    Args:
        learner: The learner.
        incoming: The examples.
        table: The learner's table.
    """
    memory = learner.own_memory
    assert memory is not None, "`check_storing` has looked"
    for piece in incoming.pieces(learner.piece_size()):
        with HeldBack():
            tasks = piece.task_ids()
            table.bring(piece)
            memory.coming(piece)
            slots = memory.place(learner.draws, tasks)
            table.keep(slots)
            memory.keep(slots, tasks)
