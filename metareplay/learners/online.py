"""Online learning: SGD on each example as it comes, nothing else."""

from dataclasses import dataclass
from typing import final

import numpy as np

from metareplay._core.plan import Plan
from metareplay._core.table import Table
from metareplay.learners.learner import Learner
from metareplay.learners.predictor import Incoming


@dataclass(eq=False, repr=False, kw_only=True)
class MemorylessLearner(Learner):
    """One SGD step on each incoming example; nothing is kept."""

    @property
    @final
    def held(self) -> None:
        """No memory."""
        return None

    @final
    def slot_count(self) -> int:
        """No slots."""
        return 0

    @final
    def step_once(self, incoming: Incoming, table: Table) -> None:
        """A step on each of these examples, in order; a plan for each run of one task."""
        for run in incoming.runs():
            table.bring(run.xs, run.ys, run.tasks)
            nowhere = np.full(len(run), -1, np.int64)
            plan = Plan.once(nowhere, self.lr, self.seen, table.capacity)
            self.finish(self.compute.execute(plan, table), plan.slots, run, table)


@final
@dataclass(eq=False, repr=False, kw_only=True)
class Online(MemorylessLearner):
    """theta <- SGD(x, y, theta, lr) for each example: the baseline that forgets.

    >>> import torch, metareplay as mr
    >>> learner = mr.Online(mr.networks.mlp(4, (8,), 3), lr=0.1)
    >>> learner.observe(torch.rand(4), 2)
    >>> learner.seen
    1
    """

    lr: float = 0.0003  # alpha

    def learn(self, incoming: Incoming, table: Table) -> None:
        """One step an example."""
        self.step_once(incoming, table)
