"""Experience replay with tasks: Algorithm 5 of Riemer et al. (2019)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import nn

from metareplay._core.plan import Plan
from metareplay.engines.objective import Supervised
from metareplay.learners.losses import default_loss
from metareplay.learners.optimizers import OptimizerName, make_optimizer, work
from metareplay.learners.replay import ReplayLearner, one_batch_each
from metareplay.memories.sampler import Sampler


@final
@dataclass(eq=False, repr=False, kw_only=True)
class ERTasks(ReplayLearner):
    """Take one step per incoming example, on a loss that weighs the tasks in the batch equally.

    The loss is the sum over the tasks in the batch of each task's mean loss. With memory=Ring(...) this is the paper's
    "ER with Tasks and GEM Style Buffer".

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

    uses_tasks: ClassVar[bool] = True

    lr: float = 0.01
    k: int = 101
    optimizer: OptimizerName = "sgd"

    def plan(self, memory: Sampler) -> Plan:
        """Draw the batches of Algorithm 5."""
        return one_batch_each(memory, self.k, self.lr)

    def make_objective(self) -> Supervised:
        """Make the loss that weighs tasks equally."""
        criterion = self.loss or default_loss(self.regression)
        return Supervised(criterion, self.regression, by_task=True, clip=self.clip)

    def make_optimizer(self, theta: nn.Parameter) -> torch.optim.Optimizer | None:
        """Make the optimizer that was named."""
        return make_optimizer(self.optimizer, theta, self.lr)

    @classmethod
    def work_per_example(cls, settings: Mapping[str, Any]) -> float:
        """Estimate the cost: one step per row, and an optimizer's pass over all weights."""
        return work(settings["optimizer"], settings["k"])
