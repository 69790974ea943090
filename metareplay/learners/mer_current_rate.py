"""Meta-Experience Replay, current example learning rate: Algorithm 7 of Riemer et al. (2019)."""

from dataclasses import dataclass
from typing import final

import numpy as np

from metareplay._core.checks import check_count, check_share
from metareplay._core.draws import Ints
from metareplay._core.plan import Rates
from metareplay.learners.replay import ReplayLearner
from metareplay.memories.sampler import Sampler


@final
@dataclass(eq=False, repr=False, kw_only=True)
class MERCurrentRate(ReplayLearner):
    """One batch of k - 1 from memory with the incoming example at a random place, learned at s times the rate.

    The paper's best value for its cost. (The official code does not learn the stream's very first example; we do.)
    """

    lr: float = 0.03  # alpha, the SGD rate inside the batch; s alpha for the incoming example
    gamma: float = 0.03  # Reptile rate
    s: int = 5  # how many times the rate the incoming example gets
    k: int = 51  # examples in the batch, the incoming one included

    def __post_init__(self) -> None:
        check_share("gamma", self.gamma)
        check_count("s", self.s, "the incoming example is learned at least as fast as the others")
        super().__post_init__()

    def batches(self, current: int, memory: Sampler) -> Ints:
        """B and index: the current example at a random place among k - 1 from memory."""
        drawn = memory.sample(1, self.k - 1)[0]
        index = memory.position(len(drawn))
        return np.concatenate([drawn[:index], [current], drawn[index:]])[None]

    def rates(self) -> Rates:
        """alpha from memory, s alpha for the current example; gamma after the batch."""
        return Rates(memory=self.lr, current=self.s * self.lr, across=self.gamma)

    @property
    def steps(self) -> int:
        """One batch of k."""
        return self.k
