"""Meta-Experience Replay: Algorithm 1 of Riemer et al. (2019)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from metareplay._core.checks import check_count, check_share
from metareplay._core.plan import Plan, Rates
from metareplay.learners.replay import ReplayLearner
from metareplay.memories.sampler import Sampler


@final
@dataclass(eq=False, repr=False, kw_only=True)
class MER(ReplayLearner):
    """Replay with Reptile lines within and across batches, which favours gradients that point the same way.

    For each incoming example:

        theta_A <- theta
        for each of s batches B_i, the example itself and k - 1 from memory:
            theta_W <- theta
            for j = 1 .. k:  theta <- SGD(B_i[j], theta, lr)
            theta <- theta_W + beta (theta - theta_W)
        theta <- theta_A + gamma (theta - theta_A)
        offer the example to the memory

    Args:
        model: Any torch module; it always holds the current weights.
        memory: M, the memory that holds examples: a `Reservoir` in the paper (Algorithm 3).
        lr: alpha, the SGD rate inside a batch.
        beta: Reptile rate within a batch: how far to go along the steps of one batch, 0 < beta <= 1.
        gamma: Reptile rate across the batches of one example, 0 < gamma <= 1.
        s: Batches per incoming example.
        k: Examples per batch, the incoming one included (the paper's grids list k - 1).
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

    >>> import torch, metareplay as mr
    >>> learner = mr.MER(mr.networks.mlp(4, (8,), 3), memory=mr.Reservoir(10), lr=0.1, beta=0.03, s=2, k=5)
    >>> learner.observe_many(torch.rand(20, 4), torch.arange(20) % 3)
    >>> len(learner.memory), learner.memory.seen
    (10, 20)
    """

    lr: float = 0.1
    beta: float = 0.01
    gamma: float = 1.0
    s: int = 10

    def __post_init__(self) -> None:
        check_share("beta", self.beta)
        check_share("gamma", self.gamma)
        check_count("s", self.s, "an example is learned with at least one batch")
        super().__post_init__()

    def plan(self, memory: Sampler) -> Plan:
        """Draw the loops of Algorithm 1; an engine takes the steps and draws the Reptile lines."""
        for current in memory.incoming():  # for each example (x, y) of the stream
            for drawn in memory.sample(self.s, self.k - 1):  # for each batch B_1 .. B_s
                memory.visit(current, drawn)  # k SGD steps, then beta's line
            memory.store()  # gamma's line, then Algorithm 3
        return memory.plan(self.rates(), s=self.s)

    def rates(self) -> Rates:
        """Return alpha for every step, beta within and gamma across batches."""
        return Rates(memory=self.lr, current=self.lr, within=self.beta, across=self.gamma)

    def rows_per_example(self) -> int:
        """Return s batches of k."""
        return self.s * self.k

    @classmethod
    def work_per_example(cls, settings: Mapping[str, Any]) -> float:
        """Estimate the cost: s batches of k."""
        return float(settings["s"] * settings["k"])
