"""Elastic Weight Consolidation (Kirkpatrick et al., 2017), as the paper ran it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, final

import numpy as np
import torch
from torch import Tensor

from metareplay._core.checks import check_count, check_room, check_strength
from metareplay._core.columns import Columns
from metareplay._core.draws import Ints
from metareplay._core.plan import Plan
from metareplay._core.table import Table
from metareplay._core.weights import Carry
from metareplay.engines.engine import Outcome
from metareplay.engines.objective import QuadraticPenalty, Supervised
from metareplay.errors import NonFiniteError
from metareplay.learners.learner import Learner
from metareplay.learners.losses import default_loss
from metareplay.learners.table_learner import PIECE, added_option


@final
@dataclass(eq=False, repr=False, kw_only=True)
class EWC(Learner):
    """Learn online, pulled towards the weights after each earlier task where these mattered.

    Minimises loss + strength * sum_t sum_i F_t,i (theta_i - theta_t,i)^2 over the earlier tasks t. The paper's code has
    no factor 1/2, so `strength` is half of Kirkpatrick's lambda. When a task ends, its importance F_t is measured on
    its first examples.

    Args:
        model: Any torch module; it always holds the current weights.
        lr: alpha, the SGD rate.
        strength: The weight of the penalty; the paper's "regularization".
        fisher_examples: How many examples of a task measure its importance.
        fisher: How they measure it: the square of their mean gradient ("squared-mean", as in the paper's code), or the
            mean of their squared gradients ("mean-square", the empirical Fisher information).
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
    """

    uses_tasks: ClassVar[bool] = True

    lr: float = 0.001
    strength: float = 100.0
    fisher_examples: int = 10
    fisher: Literal["squared-mean", "mean-square"] = "squared-mean"
    steps: int = added_option(1)

    def __post_init__(self) -> None:
        check_strength(self.strength)
        check_count("fisher_examples", self.fisher_examples, "importance is measured on at least one example")
        check_count("steps", self.steps, "each example is learned by at least one step")
        check_room("steps", self.steps, 16 * PIECE * self.steps)
        super().__post_init__()
        self._penalty = QuadraticPenalty(self.strength, *(torch.zeros_like(self.weights.theta) for _ in range(2)))
        self._task = -1  # the task being learned
        self._since = 0  # how many of its examples have come

    def make_objective(self) -> Supervised:
        """Make the loss; the penalty is added task by task."""
        return Supervised(self.loss or default_loss(self.regression), self.regression, clip=self.clip)

    def learn(self, incoming: Columns, table: Table) -> None:
        """Take the penalised steps on each example; when the task changes, consolidate the one that ended."""
        for examples in incoming.by_task():
            table.bring(examples)
            task = int(examples["task"][0])
            begins = task != self._task
            since = 0 if begins else self._since
            place = since + np.arange(len(examples), dtype=np.int64)
            slots = np.where(place < self.fisher_examples, place, -1)
            try:
                penalty = self._consolidated(table) if begins and self._since else self._penalty
                plan = Plan.once(slots, self.lr, self.seen, table.capacity, self.steps)
                outcome = self.chosen_engine.execute(plan, table, replace(self.make_objective(), penalty=penalty))
            except BaseException as error:
                outcome = Outcome(0, error)
            if outcome.learned:
                self._penalty, self._task, self._since = penalty, task, since + outcome.learned
            self.finish(outcome, slots, examples, table)

    def _consolidated(self, table: Table) -> QuadraticPenalty:
        """Add the importance of the task that has ended, F + F_t, and its anchor."""
        importance = self._importance(table, np.arange(min(self._since, self.fisher_examples), dtype=np.int64))
        if not torch.isfinite(importance).all():
            raise NonFiniteError(f"the importance of task {self._task} is not finite: use a smaller lr or set clip")
        anchor = importance * self.weights.theta
        return QuadraticPenalty(self.strength, self._penalty.importance + importance, self._penalty.anchor + anchor)

    def _importance(self, table: Table, rows: Ints) -> Tensor:
        """Measure F_t on these rows."""
        groups = [rows] if self.fisher == "squared-mean" else list(rows[:, None])
        gradients = self.chosen_engine.gradients(table, groups, self.objective, self.seen)
        return gradients.each().square_().mean(0)

    @classmethod
    def work_per_example(cls, settings: Mapping[str, Any]) -> float:
        """Estimate the cost: the steps on each example."""
        return float(settings.get("steps", 1))

    def slot_count(self) -> int:
        """Return the number of a task's first examples, which are kept until it ends."""
        return self.fisher_examples

    def private_state(self) -> dict[str, Tensor]:
        """Return importance and anchor of the earlier tasks, and how far the current one is."""
        return {
            "importance": self._penalty.importance,
            "anchor": self._penalty.anchor,
            "progress": torch.tensor([self._task, self._since]),
        }

    def restore_private(self, state: dict[str, Tensor]) -> None:
        """Restore importance, anchor and progress."""
        self._penalty.importance.copy_(state["importance"])
        self._penalty.anchor.copy_(state["anchor"])
        self._task, self._since = (int(value) for value in state["progress"])

    def reshape_private(self, carry: Carry) -> None:
        """Carry importance and anchor over; new weights have not mattered to any earlier task."""
        old = self._penalty
        self._penalty = QuadraticPenalty(self.strength, carry(old.importance), carry(old.anchor))
