"""Online learning: SGD on each example as it comes, and nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from metareplay._core.checks import check_count, check_room
from metareplay._core.columns import Columns
from metareplay._core.plan import Plan, Rates
from metareplay._core.table import Table
from metareplay.learners.learner import Learner
from metareplay.learners.table_learner import PIECE, added_option


@final
@dataclass(eq=False, repr=False, kw_only=True)
class Online(Learner):
    """Take the step theta <- SGD(x, y, theta, lr) for each example: the baseline that forgets.

    Args:
        model: Any torch module; it always holds the current weights.
        lr: alpha, the SGD rate.
        steps: SGD steps on each incoming example.
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

    >>> import torch, metareplay as mr
    >>> learner = mr.Online(mr.networks.mlp(4, (8,), 3), lr=0.1)
    >>> learner.observe(torch.rand(4), 2)
    >>> learner.seen
    1
    """

    lr: float = 0.0003
    steps: int = added_option(1)

    def __post_init__(self) -> None:
        check_count("steps", self.steps, "each example is learned by at least one step")
        check_room("steps", self.steps, 16 * PIECE * self.steps)
        super().__post_init__()

    def learn(self, incoming: Columns, table: Table) -> None:
        """Take the steps on each example."""
        step_once(self, incoming, table, self.steps)

    def plan_ahead(self, count: int, table: Table) -> Plan:
        """Plan the steps on examples still to come."""
        return Plan.once(np.full(count, -1, np.int64), self.lr, self.seen, table.capacity, self.steps)

    def rates(self) -> Rates:
        """Return alpha for every step."""
        return Rates(memory=self.lr, current=self.lr)

    @classmethod
    def work_per_example(cls, settings: Mapping[str, Any]) -> float:
        """Estimate the cost: the steps on each example."""
        return float(settings.get("steps", 1))


def step_once(learner: Learner, incoming: Columns, table: Table, steps: int = 1) -> None:
    """Learn each of these examples once, in order, and keep none of them.

    There is one plan for each stretch of examples of the same task.

    Args:
        learner: The learner.
        incoming: The examples.
        table: The table to bring them into.
        steps: Steps on each example.
    """
    for examples in incoming.by_task():
        table.bring(examples)
        plan = Plan.once(np.full(len(examples), -1, np.int64), learner.lr, learner.seen, table.capacity, steps)
        outcome = learner.chosen_engine.execute(plan, table, learner.objective)
        learner.finish(outcome, plan.slots, examples, table)
