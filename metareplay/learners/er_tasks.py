"""Experience replay with tasks: Algorithm 5 of Riemer et al. (2019)."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from metareplay.draws import Ints
from metareplay.engines.torch_engine import MakeOptimizer
from metareplay.learners.optimizers import OptimizerName, optimizer_maker
from metareplay.learners.replay import ReplayLearner
from metareplay.plan import Rates, Sampler


@final
@dataclass(eq=False, repr=False, kw_only=True)
class ERTasks(ReplayLearner):
    """One step on a loss that weighs the tasks in the batch equally: the sum over tasks of each task's mean loss.

    With memory=Ring(...) it is the paper's "ER with Tasks and GEM Style Buffer".
    """

    uses_tasks: ClassVar[bool] = True
    together: ClassVar[bool] = True
    balanced: ClassVar[bool] = True

    lr: float = 0.01  # alpha, the rate of the optimizer
    k: int = 101  # examples in the batch, the incoming one included
    optimizer: OptimizerName = "sgd"  # "sgd", "adam" or "rmsprop"

    def batches(self, current: int, memory: Sampler) -> Ints:
        """B: the current example and k - 1 from memory."""
        return np.insert(memory.sample(1, self.k - 1), 0, current, axis=1)

    def rates(self) -> Rates:
        """alpha."""
        return Rates(memory=self.lr, current=self.lr)

    def make_optimizer(self) -> MakeOptimizer | None:
        """As named."""
        return optimizer_maker(self.optimizer, self.lr)
