"""Learners that replay: draw batches from a memory, learn, offer the example to the memory."""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, final

import numpy as np

from metareplay._core.checks import check_count
from metareplay._core.draws import Ints
from metareplay._core.plan import Plan, Rates
from metareplay._core.table import Table
from metareplay.learners.learner import Learner
from metareplay.learners.predictor import Incoming
from metareplay.memories.memory import Memory
from metareplay.memories.reservoir import Reservoir
from metareplay.memories.sampler import Sampler

ROWS = 2**18  # rows to plan at a time


@dataclass(eq=False, repr=False, kw_only=True)
class ReplayLearner(Learner):
    """Algorithms 1 and 4 to 7 differ in their batches and their rates; the rest is here."""

    balanced: ClassVar[bool] = False  # a batch's loss is the sum over tasks of each task's mean loss

    memory: Memory = field(default_factory=lambda: Reservoir(500))  # M
    k: int = 11  # examples in a batch, the incoming one included (the paper's grids list k - 1)

    def __post_init__(self) -> None:
        check_count("k", self.k, "a batch holds at least the incoming example")
        super().__post_init__()
        self.memory.claim()

    @abstractmethod
    def batches(self, current: int, memory: Sampler) -> Ints:
        """The batches to learn the incoming example with, one a row: rows of the table, `current` being its own."""

    @abstractmethod
    def rates(self) -> Rates:
        """How far the steps and the Reptile lines go."""

    @final
    def plan(self, incoming: Incoming) -> Plan:
        """All draws for these examples, before anything is computed."""
        memory = Sampler(self.memory, self.draws, self.seen, incoming.task_ids())
        drawn = []
        try:
            for i in range(len(incoming)):
                drawn.append(self.batches(memory.incoming + i, memory))
                memory.store()
        finally:
            memory.close()
        sizes = np.repeat([batches.shape[1] for batches in drawn], len(drawn[0]))
        ends = np.concatenate([[0], np.cumsum(sizes)])
        return Plan(
            rows=np.concatenate([batches.ravel() for batches in drawn]),
            ends=ends,
            s=len(drawn[0]),
            slots=memory.slots,
            rates=self.rates(),
            first=self.seen,
            incoming=memory.incoming,
            together=self.together,
            balanced=self.balanced,
        )

    @final
    def learn(self, incoming: Incoming, table: Table) -> None:
        """Draw first, then compute, then store."""
        table.bring(incoming.xs, incoming.ys, incoming.tasks)
        plan = self.plan(incoming)
        self.finish(self.compute.execute(plan, table), plan.slots, incoming, table)

    @property
    @abstractmethod
    def steps(self) -> int:
        """How many rows are visited for one incoming example."""

    @final
    def piece_size(self) -> int:
        """As many examples as make a plan of moderate size."""
        return max(1, min(256, ROWS // self.steps))

    @property
    @final
    def held(self) -> Memory:
        """M."""
        return self.memory

    @final
    def slot_count(self) -> int:
        """The whole memory."""
        return self.memory.capacity
