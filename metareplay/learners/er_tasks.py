"""Experience replay with tasks: Algorithm 5 of Riemer et al. (2019)."""

from dataclasses import dataclass
from typing import ClassVar, final

from metareplay.learners.batched_replay import BatchedReplayLearner


@final
@dataclass(eq=False, repr=False, kw_only=True)
class ERTasks(BatchedReplayLearner):
    """One step on a loss that weighs the tasks in the batch equally: the sum over tasks of each task's mean loss.

    With memory=Ring(...) it is the paper's "ER with Tasks and GEM Style Buffer".
    """

    uses_tasks: ClassVar[bool] = True
    balanced: ClassVar[bool] = True

    lr: float = 0.01  # alpha, the rate of the optimizer
    k: int = 101  # examples in the batch, the incoming one included
