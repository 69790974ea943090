"""Experience replay with reservoir sampling: Algorithm 4 of Riemer et al. (2019)."""

from dataclasses import dataclass
from typing import final

from metareplay.learners.batched_replay import BatchedReplayLearner


@final
@dataclass(eq=False, repr=False, kw_only=True)
class ER(BatchedReplayLearner):
    """One step on the mean loss of the incoming example and k - 1 from memory."""

    lr: float = 0.1  # alpha, the rate of the optimizer
    k: int = 6  # examples in the batch, the incoming one included
