"""Meta-Experience Replay, one big batch: Algorithm 6 of Riemer et al. (2019)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from metareplay._core.checks import check_count, check_share
from metareplay._core.plan import Plan, Rates
from metareplay.learners.replay import ReplayLearner
from metareplay.memories.sampler import Sampler


@final
@dataclass(eq=False, repr=False, kw_only=True)
class MEROneBigBatch(ReplayLearner):
    """Learn s k - s examples from memory, then s copies of the incoming one, an SGD step each; then one Reptile line.

    The official code makes s separate Reptile updates instead, which is the same at the paper's s = 1.

    Args:
        model: Any torch module; it always holds the current weights.
        memory: M, the memory that holds examples: a `Reservoir` in the paper (Algorithm 3).
        lr: alpha, the SGD rate inside the batch.
        gamma: Reptile rate: how far to go along the steps of the batch, 0 < gamma <= 1.
        s: Copies of the incoming example.
        k: The batch has s k examples, s of which are the incoming one (the paper's grids list k - 1).
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
    gamma: float = 0.03
    s: int = 1

    def __post_init__(self) -> None:
        check_share("gamma", self.gamma)
        check_count("s", self.s, "the batch holds the incoming example at least once")
        super().__post_init__()

    def plan(self, memory: Sampler) -> Plan:
        """Draw the loops of Algorithm 6."""
        for current in memory.incoming():  # for each example (x, y) of the stream
            [drawn] = memory.sample(1, self.s * (self.k - 1))  # B: s k - s from memory,
            memory.visit(drawn, *[current] * self.s)  # the current example at the end; then gamma's line
            memory.store()
        return memory.plan(self.rates())

    def rates(self) -> Rates:
        """Return alpha for every step, gamma after the batch."""
        return Rates(memory=self.lr, current=self.lr, across=self.gamma)

    def rows_per_example(self) -> int:
        """Return s k."""
        return self.s * self.k

    @classmethod
    def work_per_example(cls, settings: Mapping[str, Any]) -> float:
        """Estimate the cost: s batches of k."""
        return float(settings["s"] * settings["k"])
