"""What a learner is: it observes examples one by one, or many in order, and predicts at any time."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar, final

import torch
from torch import Tensor

from metareplay._core.draws import Ints
from metareplay._core.table import Table
from metareplay.engines.engine import Outcome
from metareplay.errors import InputError, MetareplayError, NonFiniteError
from metareplay.learners import checkpoint
from metareplay.learners.predictor import Array, Incoming, Predictor, Tasks, as_tensor, loss_name, one_line
from metareplay.memories.memory import Memory


@dataclass(eq=False, repr=False, kw_only=True)
class Learner(Predictor):
    """The interface of all learners; an implementation says how it learns a piece of the stream: `learn`."""

    uses_tasks: ClassVar[bool] = False  # whether learning needs task ids even if the model does not

    def __post_init__(self) -> None:
        super().__post_init__()
        self.seen = 0  # examples learned so far
        self.table: Table | None = None

    @final
    def observe(self, x: Array, y: int | float | Array, task: int | None = None) -> None:
        """Learn from one example: x in the model's input shape, y a label (or target), the task if there is one."""
        self.observe_many(as_tensor("x", x)[None], as_tensor("y", y)[None], task)

    @final
    def observe_many(self, xs: Array, ys: Array | Sequence[int], task: Tasks = None) -> None:
        """Learn from a chunk, in order: the very same weights as a loop over `observe`.

        Bad input raises InputError before anything is learned. An example whose loss is not finite is undone and named
        by a NonFiniteError; those before it stay learned, those after it were not looked at.
        """
        xs = as_tensor("x", xs)
        if xs.shape[:1] == (0,):
            return
        incoming, table = self.accept(xs, ys, task)
        for piece in incoming.pieces(self.piece_size()):
            self.learn(piece, table)

    @final
    def accept(self, xs: Array, ys: Array | Sequence[int], task: Tasks = None) -> tuple[Incoming, Table]:
        """Examples, checked, and the table to `learn` them in; bad input raises InputError."""
        incoming = self._check(xs, ys, task, needs_tasks=self.uses_tasks or self._task_count() is not None)
        limit = self._task_count()
        if limit is not None and int(incoming.tasks.max()) >= limit:
            raise InputError(f"task {int(incoming.tasks.max())}: the memory was made for tasks 0 to {limit - 1}")
        if self.table is None:
            slots, room, device = self.slot_count(), self.piece_size(), self.weights.device
            try:
                with torch.inference_mode(False):
                    self.table = Table(slots, room, incoming.xs, incoming.ys, device)
            except torch.cuda.OutOfMemoryError as error:
                size = (slots + room) * incoming.xs[0].nbytes / 2**30
                raise MetareplayError(
                    f"{slots} memories of this size need {size:.1f} GiB, more than {device} has left: use a smaller "
                    f"memory, or fewer runs at a time"
                ) from error
            if self.held is not None:
                self.held.table = self.table
        return incoming, self.table

    @abstractmethod
    def learn(self, incoming: Incoming, table: Table) -> None:
        """Learn from checked examples, at most `piece_size` of them."""

    @property
    @abstractmethod
    def held(self) -> Memory | None:
        """The learner's memory, if it has one."""

    @abstractmethod
    def slot_count(self) -> int:
        """How many examples the table must hold besides the incoming ones."""

    def piece_size(self) -> int:
        """How many examples to plan at a time; any number gives the same weights."""
        return 256

    def private_state(self) -> dict[str, Tensor]:
        """What this kind of learner remembers besides weights, memory and counts."""
        return {}

    def restore_private(self, state: dict[str, Tensor]) -> None:
        """Take back what `private_state` gave."""
        del state

    @final
    def settings(self) -> dict[str, object]:
        """Every option with its value, as plain JSON values: what the record and the checkpoint say."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self) if f.name != "model"}

    @final
    def save(self, path: str | Path) -> None:
        """Write everything needed to continue bit for bit; `metareplay.load(path, model)` reads it."""
        checkpoint.save(self, Path(path))

    @final
    def finish(self, outcome: Outcome, slots: Ints, incoming: Incoming, table: Table) -> None:
        """Store and count the examples that were learned; name the next, if it could not be."""
        done = outcome.learned
        table.keep(slots[:done])
        if self.held is not None:
            self.held.keep(slots[:done], incoming.task_ids()[:done])
        self.seen += done
        if isinstance(outcome.error, Exception) and not isinstance(outcome.error, MetareplayError):
            raise InputError(
                f"example {self.seen} of the stream could not be learned and was undone: {one_line(outcome.error)}"
            ) from outcome.error
        if outcome.error is not None:
            raise outcome.error
        if done < len(incoming):
            raise NonFiniteError(
                f"example {self.seen} of the stream (label {incoming.ys[done].tolist()}) made the loss or the weights "
                f"not finite; it was undone: use a smaller lr or set clip, then go on with the next example"
            )

    def _task_count(self) -> int | None:
        return self.held.task_count if self.held is not None else None

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in self.settings().items())
        return f"{type(self).__name__}({options})"


def _plain(value: object) -> object:
    if isinstance(value, Memory):
        return value.settings()
    if callable(value):
        return loss_name(value)
    return value
