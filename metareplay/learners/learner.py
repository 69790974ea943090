"""The interface of learners, which observe examples one by one, or many in order, and predict at any time."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

from metareplay._core.columns import Columns
from metareplay._core.interrupts import HeldBack
from metareplay._core.table import Table
from metareplay.errors import InputError
from metareplay.learners.adopting import store
from metareplay.learners.input_checks import Array, Tasks, as_tensor
from metareplay.learners.table_learner import TableLearner


@dataclass(eq=False, repr=False, kw_only=True)
class Learner(TableLearner):
    """Learn a stream of examples. This is the interface of all learners; an implementation defines `learn`.

    Args:
        model: Any torch module; it always holds the current weights.
        lr: alpha, the SGD rate.
        seed: Decides every draw.
        loss: The loss of (outputs, targets), a mean over the batch. None for cross-entropy, or squared error if
            `regression` is set.
        regression: Whether targets are real numbers; `predict` then gives the outputs themselves.
        clip: Scale any gradient with a larger norm down to this norm. None, as in the paper, turns clipping off.
        engine: What does the arithmetic: "torch", "cpu" (compiled), "cuda" (graphs), or "auto" for the fastest of these
            that supports the model.

    Attributes:
        uses_tasks: Whether learning needs task ids even if the model does not.
        seen: How many examples have been learned.
        table: The examples that the learner works on; None before the first one.
    """

    uses_tasks: ClassVar[bool] = False

    @final
    def observe(self, x: Array, y: int | float | Array, task: int | None = None) -> None:
        """Learn from one example.

        Args:
            x: An input, in the model's input shape.
            y: Its label, or target.
            task: Its task id, for learners and models that need one.
        """
        self.observe_many(as_tensor("x", x)[None], as_tensor("y", y)[None], task)

    @final
    def observe_many(self, xs: Array, ys: Array | Sequence[int], task: Tasks = None) -> None:
        """Learn from many examples, in order: the very same weights as a loop over `observe`.

        Bad input raises InputError before anything is learned. An example whose loss is not finite is undone and named
        by a NonFiniteError; those before it stay learned, and those after it are not used. Ctrl-C comes between two
        examples, and `seen` says between which.

        Args:
            xs: A batch of inputs.
            ys: Their labels, or targets.
            task: One task id, or one for each example.
        """
        xs = as_tensor("x", xs)
        if xs.shape[:1] == (0,):
            return
        incoming, table = self.accept(xs, ys, task)
        for piece in incoming.pieces(self.piece_size()):
            self.learn_whole(piece, table)

    @final
    def store(self, xs: Array, ys: Array | Sequence[int], task: Tasks = None) -> None:
        """Offer examples to the memory without learning from them. Bad input raises InputError, and nothing is stored.

        Args:
            xs: A batch of inputs.
            ys: Their labels, or targets.
            task: One task id, or one for each example.
        """
        xs = as_tensor("x", xs)
        if xs.shape[:1] != (0,):
            store(self, *self.accept(xs, ys, task))

    @final
    def learn_whole(self, incoming: Columns, table: Table) -> None:
        """Learn from checked examples by `learn`. Ctrl-C comes before or after an example, and `seen` says where.

        Args:
            incoming: The examples, in order, at most `piece_size` of them.
            table: The table to bring them into.
        """
        with HeldBack():
            self.learn(incoming, table)

    @final
    def accept(self, xs: Array, ys: Array | Sequence[int], task: Tasks = None) -> tuple[Columns, Table]:
        """Check examples; return them with the table to `learn` them in. Bad input raises InputError.

        Args:
            xs: A batch of inputs.
            ys: Their labels, or targets.
            task: One task id, or one for each example.
        """
        incoming = self._check(xs, ys, task, needs_tasks=self.uses_tasks or self._task_count() is not None)
        limit = self._task_count()
        if limit is not None and int(incoming["task"].max()) >= limit:
            raise InputError(f"task {int(incoming['task'].max())}: the memory was made for tasks 0 to {limit - 1}")
        if self.table is None:
            self.table = self.make_table(incoming, self.piece_size())
        return incoming, self.table

    @final
    def check_held(self, held: Columns) -> None:
        """Raise InputError for examples of a checkpoint that `observe` would not have accepted."""
        self._check_rows(held["x"], held["y"], held["task"])

    @abstractmethod
    def learn(self, incoming: Columns, table: Table) -> None:
        """Learn from checked examples, at most `piece_size` of them.

        Args:
            incoming: The examples, in order.
            table: The table to bring them into.
        """

    @classmethod
    def work_per_example(cls, settings: Mapping[str, Any]) -> float:
        """Estimate the cost of learning one example, in SGD steps on a single example; it predicts the time left.

        Args:
            settings: The learner's options, as `settings` returns them.
        """
        del settings
        return 1.0

    def _task_count(self) -> int | None:
        return self.own_memory.task_count if self.own_memory is not None else None
