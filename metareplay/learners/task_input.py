"""A dedicated input layer for each task (Lopez-Paz and Ranzato, 2017)."""

from dataclasses import dataclass, field
from typing import ClassVar, final

from metareplay._core.columns import Columns
from metareplay._core.table import Table
from metareplay.errors import InputError
from metareplay.learners.learner import Learner
from metareplay.learners.online import step_once
from metareplay.networks import TaskInputs


@final
@dataclass(eq=False, repr=False, kw_only=True)
class TaskInput(Learner):
    """Learn online with an input layer for each task.

    Args:
        model: The input layers and what they share; `networks.task_input_mlp` makes the paper's network.
        lr: alpha, the SGD rate.
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

    model: TaskInputs = field(kw_only=False)
    lr: float = 0.01

    def __post_init__(self) -> None:
        if not isinstance(self.model, TaskInputs):
            raise InputError(
                "TaskInput needs an input layer for each task: wrap them as networks.TaskInputs([...], shared, classes)"
            )
        super().__post_init__()

    def learn(self, incoming: Columns, table: Table) -> None:
        """Take one step per example."""
        step_once(self, incoming, table)
