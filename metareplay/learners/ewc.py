"""Elastic Weight Consolidation (Kirkpatrick et al., 2017), as the paper ran it."""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np
import torch
from torch import Tensor

from metareplay._core.checks import check_count, check_strength
from metareplay._core.draws import Ints
from metareplay._core.plan import Plan
from metareplay._core.table import Table
from metareplay.engines.engine import Outcome, Pull
from metareplay.errors import InputError, NonFiniteError
from metareplay.learners.learner import Learner
from metareplay.learners.predictor import Incoming


@final
@dataclass(eq=False, repr=False, kw_only=True)
class EWC(Learner):
    """Online learning, pulled towards the weights after each earlier task where these mattered.

    loss + strength * sum_t sum_i F_t,i (theta_i - theta_t,i)^2, over the earlier tasks t. The paper's code has no
    factor 1/2, so `strength` is half of Kirkpatrick's lambda. When a task ends its importance F_t is measured on the
    task's first `fisher_examples` examples: the square of their mean gradient ("squared-mean", as in the paper's code)
    or the mean of their squared gradients ("mean-square", the empirical Fisher information).
    """

    uses_tasks: ClassVar[bool] = True

    lr: float = 0.001  # alpha
    strength: float = 100.0  # the paper's "regularization"
    fisher_examples: int = 10  # how many examples of a task measure its importance
    fisher: Literal["squared-mean", "mean-square"] = "squared-mean"

    def __post_init__(self) -> None:
        check_strength(self.strength)
        check_count("fisher_examples", self.fisher_examples, "importance is measured on at least one example")
        if self.fisher not in ("squared-mean", "mean-square"):
            raise InputError(f"fisher={self.fisher!r}: use 'squared-mean' or 'mean-square'")
        super().__post_init__()
        self._pull = Pull(self.strength, *(torch.zeros_like(self.weights.theta) for _ in range(2)))
        self._task = -1  # the task being learned
        self._since = 0  # how many of its examples have come

    def learn(self, incoming: Incoming, table: Table) -> None:
        """One penalised step an example; at a change of task, consolidate the one that ended."""
        for run in incoming.runs():
            table.bring(run.xs, run.ys, run.tasks)
            begins = int(run.tasks[0]) != self._task
            since = 0 if begins else self._since
            place = since + np.arange(len(run), dtype=np.int64)
            slots = np.where(place < self.fisher_examples, place, -1)
            try:
                pull = self._consolidated(table) if begins and self._since else self._pull
                outcome = self.compute.execute(Plan.once(slots, self.lr, self.seen, table.capacity), table, pull)
            except BaseException as error:
                outcome = Outcome(0, error)
            if outcome.learned:
                self._pull, self._task, self._since = pull, int(run.tasks[0]), since + outcome.learned
            self.finish(outcome, slots, run, table)

    def _consolidated(self, table: Table) -> Pull:
        """F + F_t for the task that has ended, and the anchor likewise."""
        importance = self._importance(table, np.arange(min(self._since, self.fisher_examples), dtype=np.int64))
        if not torch.isfinite(importance).all():
            raise NonFiniteError(f"the importance of task {self._task} is not finite: use a smaller lr or set clip")
        anchor = importance * self.weights.theta
        return Pull(self.strength, self._pull.importance + importance, self._pull.anchor + anchor)

    def _importance(self, table: Table, rows: Ints) -> Tensor:
        """F_t."""
        groups = [rows] if self.fisher == "squared-mean" else list(rows[:, None])
        return self.compute.gradients(table, groups, self.seen).each().square_().mean(0)

    @property
    def held(self) -> None:
        """No memory but the first examples of the task."""
        return None

    def slot_count(self) -> int:
        """The task's first examples."""
        return self.fisher_examples

    def private_state(self) -> dict[str, Tensor]:
        """Importance and anchor of the earlier tasks, and how far the current one is."""
        return {
            "importance": self._pull.importance,
            "anchor": self._pull.anchor,
            "progress": torch.tensor([self._task, self._since]),
        }

    def restore_private(self, state: dict[str, Tensor]) -> None:
        """The same."""
        self._pull.importance.copy_(state["importance"])
        self._pull.anchor.copy_(state["anchor"])
        self._task, self._since = (int(value) for value in state["progress"])
