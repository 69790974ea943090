"""Online learning: SGD on each example as it comes, and nothing else."""

from dataclasses import dataclass
from typing import final

import numpy as np

from metareplay._core.columns import Columns
from metareplay._core.plan import Plan
from metareplay._core.table import Table
from metareplay.learners.learner import Learner


@final
@dataclass(eq=False, repr=False, kw_only=True)
class Online(Learner):
    """Take the step theta <- SGD(x, y, theta, lr) for each example: the baseline that forgets.

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

    >>> import torch, metareplay as mr
    >>> learner = mr.Online(mr.networks.mlp(4, (8,), 3), lr=0.1)
    >>> learner.observe(torch.rand(4), 2)
    >>> learner.seen
    1
    """

    lr: float = 0.0003

    def learn(self, incoming: Columns, table: Table) -> None:
        """Take one step per example."""
        step_once(self, incoming, table)


def step_once(learner: Learner, incoming: Columns, table: Table) -> None:
    """Take one step on each of these examples, in order, and keep none of them.

    There is one plan for each stretch of examples of the same task.

    Args:
        learner: The learner.
        incoming: The examples.
        table: The table to bring them into.
    """
    for examples in incoming.by_task():
        table.bring(examples)
        plan = Plan.once(np.full(len(examples), -1, np.int64), learner.lr, learner.seen, table.capacity)
        outcome = learner.chosen_engine.execute(plan, table, learner.objective)
        learner.finish(outcome, plan.slots, examples, table)
