"""Experience replay with one step on a whole batch: what Algorithms 4 and 5 have in common."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from metareplay._core.draws import Ints
from metareplay._core.plan import Rates
from metareplay.engines.torch_engine import MakeOptimizer
from metareplay.learners.optimizers import OptimizerName, optimizer_maker
from metareplay.learners.replay import ReplayLearner
from metareplay.memories.sampler import Sampler


@dataclass(eq=False, repr=False, kw_only=True)
class BatchedReplayLearner(ReplayLearner):
    """One step on the incoming example and k - 1 from memory, by any of the paper's optimizers."""

    together: ClassVar[bool] = True

    optimizer: OptimizerName = "sgd"  # "sgd", "adam" or "rmsprop"

    @final
    def batches(self, current: int, memory: Sampler) -> Ints:
        """B: the current example and k - 1 from memory."""
        return np.hstack([[[current]], memory.sample(1, self.k - 1)])

    @final
    def rates(self) -> Rates:
        """alpha."""
        return Rates(memory=self.lr, current=self.lr)

    @property
    @final
    def steps(self) -> int:
        """One batch of k."""
        return self.k

    @final
    def make_optimizer(self) -> MakeOptimizer | None:
        """As named."""
        return optimizer_maker(self.optimizer, self.lr)
