"""An independent predictor for each task (Lopez-Paz and Ranzato, 2017)."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from metareplay._core.columns import Columns
from metareplay._core.table import Table
from metareplay.errors import InputError
from metareplay.learners.learner import Learner
from metareplay.learners.online import step_once
from metareplay.networks import Separate


@final
@dataclass(eq=False, repr=False, kw_only=True)
class Independent(Learner):
    """Learn online with a network of its own for each task: nothing is forgotten.

    Args:
        model: The networks; `networks.separate_mlps` makes the paper's, with fewer hidden units in proportion to the
            number of tasks.
        lr: alpha, the SGD rate.
        start: Where a task's network starts: from its own first weights ("fresh"), or from those of the task trained
            last ("clone").
        seed: Decides every draw.
        loss: The loss of (outputs, targets), a mean over the batch. None for cross-entropy, or squared error if
            `regression` is set.
        regression: Whether targets are real numbers; `predict` then gives the outputs themselves.
        clip: Scale any gradient with a larger norm down to this norm. None, as in the paper, turns clipping off.
        engine: What does the arithmetic: "torch", "cpu" (compiled), "cuda" (graphs), or "auto" for the fastest of these
            that supports the model.
    """

    uses_tasks: ClassVar[bool] = True

    model: Separate = field(kw_only=False)
    lr: float = 0.01
    start: Literal["fresh", "clone"] = "fresh"

    def __post_init__(self) -> None:
        if not isinstance(self.model, Separate):
            raise InputError(
                "Independent needs a network for each task: wrap them as networks.Separate([...], classes)"
            )
        super().__post_init__()
        self._trained: list[int] = []  # tasks, the one trained last at the end

    def learn(self, incoming: Columns, table: Table) -> None:
        """Take one step per example, on its own task's network."""
        for examples in incoming.by_task():
            task, seen, before = int(examples["task"][0]), self.seen, self.weights.theta.clone()
            if self.start == "clone" and self._trained and task not in self._trained:
                self.model.clone(self._trained[-1], task)
            try:
                step_once(self, examples, table)
            finally:
                if self.seen > seen:
                    self._trained = [*(other for other in self._trained if other != task), task]
                else:
                    self.weights.theta.copy_(before)

    def private_state(self) -> dict[str, Tensor]:
        """Return the tasks that have been trained, the last one at the end."""
        return {"trained": torch.tensor(self._trained, dtype=torch.int64)}

    def restore_private(self, state: dict[str, Tensor]) -> None:
        """Restore the list of tasks that have been trained."""
        trained = [int(task) for task in state["trained"]]
        for task in trained:
            self.model.classes(task)  # raises InputError for a task without a network
        self._trained = trained
