"""Experience replay with reservoir sampling: Algorithm 4 of Riemer et al. (2019)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import nn

from metareplay._core.plan import Plan, Rates
from metareplay.learners.optimizers import OptimizerName, make_optimizer, work
from metareplay.learners.replay import ReplayLearner, one_batch_each
from metareplay.memories.sampler import Sampler


@final
@dataclass(eq=False, repr=False, kw_only=True)
class ER(ReplayLearner):
    """Take one step per incoming example, on the mean loss of the example and k - 1 from memory.

    Args:
        model: Any torch module; it always holds the current weights.
        memory: M, the memory that holds examples: a `Reservoir` in the paper (Algorithm 3).
        lr: alpha, the rate of the optimizer.
        k: Examples per batch, the incoming one included (the paper's grids list k - 1).
        optimizer: What takes the steps: "sgd", "adam" or "rmsprop".
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

    lr: float = 0.1
    k: int = 6
    optimizer: OptimizerName = "sgd"

    def plan(self, memory: Sampler) -> Plan:
        """Draw the batches of Algorithm 4."""
        return one_batch_each(memory, self.k, self.lr)

    def rates(self) -> Rates:
        """Return alpha for every step."""
        return Rates(memory=self.lr, current=self.lr)

    def make_optimizer(self, theta: nn.Parameter) -> torch.optim.Optimizer | None:
        """Make the optimizer that was named."""
        return make_optimizer(self.optimizer, theta, self.lr)

    @classmethod
    def work_per_example(cls, settings: Mapping[str, Any]) -> float:
        """Estimate the cost: one step per row, and an optimizer's pass over all weights."""
        return work(settings["optimizer"], settings["k"])
