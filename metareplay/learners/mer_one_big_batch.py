"""Meta-Experience Replay, one big batch: Algorithm 6 of Riemer et al. (2019)."""

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
class MEROneBigBatch(ReplayLearner):
    """s k - s examples from memory, then s copies of the incoming one, an SGD step each; then one Reptile line, gamma.

    The official code makes s separate Reptile updates instead, which is the same at the paper's s = 1.
    """

    lr: float = 0.1  # alpha, the SGD rate inside the batch
    gamma: float = 0.03  # Reptile rate
    s: int = 1  # copies of the incoming example

    def __post_init__(self) -> None:
        check_share("gamma", self.gamma)
        check_count("s", self.s, "the batch holds the incoming example at least once")
        super().__post_init__()

    def batches(self, current: int, memory: Sampler) -> Ints:
        """B: s k - s from memory, the current example at the end."""
        drawn = memory.sample(1, self.s * (self.k - 1))
        return np.hstack([drawn, np.full((1, self.s), current)])

    def rates(self) -> Rates:
        """Every step alpha; gamma after the batch."""
        return Rates(memory=self.lr, current=self.lr, across=self.gamma)

    @property
    def steps(self) -> int:
        """s batches of k."""
        return self.s * self.k
