"""An independent predictor for each task (Lopez-Paz and Ranzato, 2017)."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from metareplay._core.table import Table
from metareplay.errors import InputError
from metareplay.learners.online import MemorylessLearner
from metareplay.learners.predictor import Incoming
from metareplay.networks import Separate


@final
@dataclass(eq=False, repr=False, kw_only=True)
class Independent(MemorylessLearner):
    """Online learning with a network of its own for each task: nothing is forgotten.

    `networks.separate_mlps` makes the paper's networks: fewer hidden units in proportion to the number of tasks. A
    task's network starts from its own first weights ("fresh") or from those of the task trained last ("clone").
    """

    uses_tasks: ClassVar[bool] = True

    model: Separate = field(kw_only=False)
    lr: float = 0.01  # alpha
    start: Literal["fresh", "clone"] = "fresh"  # where a new task's network starts

    def __post_init__(self) -> None:
        if not isinstance(self.model, Separate):
            raise InputError(
                "Independent needs a network for each task: wrap them as networks.Separate([...], classes)"
            )
        if self.start not in ("fresh", "clone"):
            raise InputError(f"start={self.start!r}: use 'fresh' or 'clone'")
        super().__post_init__()
        self._trained: list[int] = []  # tasks, the one trained last at the end

    def learn(self, incoming: Incoming, table: Table) -> None:
        """One step an example, on its own task's network."""
        for run in incoming.runs():
            task, seen, before = int(run.tasks[0]), self.seen, self.weights.theta.clone()
            if self.start == "clone" and self._trained and task not in self._trained:
                self.model.clone(self._trained[-1], task)
            try:
                self.step_once(run, table)
            finally:
                if self.seen > seen:
                    self._trained = [*(other for other in self._trained if other != task), task]
                else:
                    self.weights.theta.copy_(before)

    def private_state(self) -> dict[str, Tensor]:
        """Which tasks have been trained, and which last."""
        return {"trained": torch.tensor(self._trained, dtype=torch.int64)}

    def restore_private(self, state: dict[str, Tensor]) -> None:
        """The same."""
        self._trained = [int(task) for task in state["trained"]]
