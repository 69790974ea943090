"""Meta-Experience Replay: Algorithm 1 of Riemer et al. (2019)."""

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
class MER(ReplayLearner):
    """Replay with Reptile steps within and across batches, which favours gradients that point the same way.

    For each incoming example, s batches B_1 .. B_s of the example itself and k - 1 from memory; for each batch
        theta_W <- theta,  k times: theta_W <- SGD(B_i[j], theta_W, lr),  theta <- theta + beta (theta_W - theta)
    and after all of them theta <- theta_A + gamma (theta - theta_A), theta_A being the weights before the example.

    >>> import torch, metareplay as mr
    >>> learner = mr.MER(mr.networks.mlp(4, (8,), 3), memory=mr.Reservoir(10), lr=0.1, beta=0.03, s=2, k=5)
    >>> learner.observe_many(torch.rand(20, 4), torch.arange(20) % 3)
    >>> len(learner.memory), learner.memory.seen
    (10, 20)
    """

    lr: float = 0.1  # alpha, the SGD rate inside a batch
    beta: float = 0.01  # Reptile rate within a batch
    gamma: float = 1.0  # Reptile rate across the batches of one example
    s: int = 10  # batches for each incoming example

    def __post_init__(self) -> None:
        check_share("beta", self.beta)
        check_share("gamma", self.gamma)
        check_count("s", self.s, "an example is learned with at least one batch")
        super().__post_init__()

    def batches(self, current: int, memory: Sampler) -> Ints:
        """B_1 .. B_s: the current example first, then k - 1 from memory."""
        drawn = memory.sample(self.s, self.k - 1)
        return np.hstack([np.full((self.s, 1), current), drawn])

    def rates(self) -> Rates:
        """Every step alpha; beta within, gamma across batches."""
        return Rates(memory=self.lr, current=self.lr, within=self.beta, across=self.gamma)

    @property
    def steps(self) -> int:
        """s batches of k."""
        return self.s * self.k
