"""A dedicated input layer for each task (Lopez-Paz and Ranzato, 2017)."""

from dataclasses import dataclass, field
from typing import ClassVar, final

from metareplay._core.table import Table
from metareplay.errors import InputError
from metareplay.learners.online import MemorylessLearner
from metareplay.learners.predictor import Incoming
from metareplay.networks import TaskInputs


@final
@dataclass(eq=False, repr=False, kw_only=True)
class TaskInput(MemorylessLearner):
    """Online learning with an input layer for each task; `networks.task_input_mlp` makes the paper's network."""

    uses_tasks: ClassVar[bool] = True

    model: TaskInputs = field(kw_only=False)
    lr: float = 0.01  # alpha

    def __post_init__(self) -> None:
        if not isinstance(self.model, TaskInputs):
            raise InputError(
                "TaskInput needs an input layer for each task: wrap them as networks.TaskInputs([...], shared, classes)"
            )
        super().__post_init__()

    def learn(self, incoming: Incoming, table: Table) -> None:
        """One step an example."""
        self.step_once(incoming, table)
