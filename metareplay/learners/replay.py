"""Learners that replay: they draw batches from a memory, learn, and offer the example to the memory."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, final

import numpy as np

from metareplay._core.checks import check_count, check_room, instance, whole
from metareplay._core.columns import Columns
from metareplay._core.interrupts import HeldBack
from metareplay._core.plan import Plan, Rates
from metareplay._core.table import Table
from metareplay.engines.engine import Outcome
from metareplay.errors import InputError
from metareplay.learners.augmenting import execute_augmented
from metareplay.learners.input_checks import one_line
from metareplay.learners.learner import Learner
from metareplay.learners.table_learner import PIECE
from metareplay.memories.memory import Memory
from metareplay.memories.reservoir import Reservoir
from metareplay.memories.sampler import Sampler

ROWS = 2**18  # rows to plan at a time
ROW_BYTES = 40  # of the lists of a plan and of what is drawn for it, for each row


@dataclass(eq=False, repr=False, kw_only=True)
class ReplayLearner(Learner):
    """Draw batches from a memory, learn from them, then store the example. An implementation defines `plan`.

    Algorithms 1 and 4 to 7 differ only in what they draw and at what rates.

    Args:
        model: Any torch module; it always holds the current weights.
        memory: M, the memory that holds examples: a `Reservoir` in the paper (Algorithm 3).
        lr: alpha, the SGD rate.
        k: Examples per batch, the incoming one included (the paper's grids list k - 1).
        seed: Decides every draw.
        loss: The loss of (outputs, targets), a mean over the batch. None for cross-entropy, or squared error if
            `regression` is set.
        regression: Whether targets are real numbers; `predict` then gives the outputs themselves.
        clip: Scale any gradient with a larger norm down to this norm. None, as in the paper, turns clipping off.
        engine: What does the arithmetic: "torch", "cpu" (compiled), "cuda" (graphs), or "auto" for the fastest of these
            that supports the model.
        classes: What the labels are: None for the numbers of the model's outputs, a list of labels, or "grow" for ones
            that are not known in advance; see `Learner`.
        head: With classes="grow", the name of the linear layer that grows; None to find it.
    """

    augments: ClassVar[bool] = True

    memory: Memory = field(default_factory=lambda: Reservoir(500))
    k: int = 11

    def __post_init__(self) -> None:
        check_count("k", self.k, "a batch holds at least the incoming example")
        instance("memory", self.memory, Memory, "a memory, for instance Reservoir(500)")
        self._check_rows_per_example()
        super().__post_init__()
        self.memory.claim()

    def _check_rows_per_example(self) -> None:
        rows = whole("k", self.rows_per_example())
        check_room("rows per example (k times the number of batches)", rows, ROW_BYTES * rows)

    def follow_change(self, name: str) -> None:
        """Check that the batches are not too large.

        Args:
            name: The option that has changed.
        """
        self._check_rows_per_example()
        super().follow_change(name)

    @abstractmethod
    def plan(self, memory: Sampler) -> Plan:
        """Draw everything for the next examples, before anything is computed.

        Args:
            memory: The memory as it stands before each of the next examples; it goes through them in order.
        """

    @final
    def learn(self, incoming: Columns, table: Table) -> None:
        """Draw everything first, then compute, then store."""
        table.bring(incoming)
        self.memory.coming(incoming)
        with Sampler(self.memory, self.draws, self.seen, incoming.task_ids()) as memory:
            plan = self.plan(memory)
        outcome = self.execute(plan, table) if self.memory.augment is None else self._augmented(plan, table)
        self.finish(outcome, plan.slots, incoming, table)

    @final
    def plan_ahead(self, count: int, table: Table) -> Plan | None:
        """Draw everything for examples still to come, unless the memory places them by their task."""
        del table
        if not self.memory.looks_ahead or self.memory.augment is not None:
            return None
        with HeldBack(), Sampler(self.memory, self.draws, self.seen, np.full(count, -1, np.int64)) as memory:
            return self.plan(memory)  # at the end of the block the memory is as it was

    def _augmented(self, plan: Plan, table: Table) -> Outcome:
        """Execute a plan whose replayed examples are transformed; all of it can be undone."""
        assert self.memory.augment is not None, "`learn` has looked"
        if self.objective.stores:
            raise InputError("an objective that stores columns of its own needs a memory without augmented()")
        undo = self.chosen_engine.remember()
        run = partial(self.chosen_engine.execute, objective=self.objective)
        try:
            outcome = execute_augmented(plan, table, self.memory.augment, self.draws, self.staging, run)
        except Exception as error:  # raised by the user's function
            undo()
            raise InputError(f"replayed examples could not be transformed: {one_line(error)}") from error
        return replace(outcome, undo=None if table.in_memory else undo)

    def rows_per_example(self) -> int:
        """Return the largest number of rows that are visited for one incoming example."""
        return self.k

    @classmethod
    def work_per_example(cls, settings: Mapping[str, Any]) -> float:
        """Estimate the cost: one step per row of a batch."""
        return float(settings["k"])

    @final
    def piece_size(self) -> int:
        """Return the number of examples for which a plan has a moderate size, and the table has room."""
        room = PIECE if self.table is None else len(self.table) - self.table.capacity
        return max(1, min(PIECE, room, ROWS // self.rows_per_example()))

    @property
    @final
    def own_memory(self) -> Memory:
        """The learner's memory (M)."""
        return self.memory


def one_batch_each(memory: Sampler, k: int, lr: float) -> Plan:
    """Plan one step per incoming example, on a batch of the example itself and k - 1 from memory.

    Args:
        memory: The memory as it stands before each of the next examples.
        k: Examples per batch, the incoming one included.
        lr: alpha, the rate of the steps.
    """
    for current in memory.incoming():
        memory.visit(current, *memory.sample(1, k - 1))
        memory.store()
    return memory.plan(Rates(memory=lr, current=lr), together=True)
