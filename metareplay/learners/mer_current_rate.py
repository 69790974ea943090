"""Meta-Experience Replay, current example learning rate: Algorithm 7 of Riemer et al. (2019)."""

from dataclasses import dataclass
from typing import final

from metareplay._core.checks import check_count, check_share
from metareplay._core.plan import Plan, Rates
from metareplay.learners.replay import ReplayLearner
from metareplay.memories.sampler import Sampler


@final
@dataclass(eq=False, repr=False, kw_only=True)
class MERCurrentRate(ReplayLearner):
    """Learn one batch of k - 1 from memory with the incoming example at a random place, at s times the rate.

    In the paper it gives the best value for its cost. The official code does not learn the stream's very first
    example; this class does.

    Args:
        model: Any torch module; it always holds the current weights.
        memory: M, the memory that holds examples: a `Reservoir` in the paper (Algorithm 3).
        lr: alpha, the SGD rate inside the batch; the incoming example is learned at s * alpha.
        gamma: Reptile rate: how far to go along the steps of the batch, 0 < gamma <= 1.
        s: How many times the rate the incoming example gets.
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
    """

    lr: float = 0.03
    gamma: float = 0.03
    s: int = 5
    k: int = 51

    def __post_init__(self) -> None:
        check_share("gamma", self.gamma)
        check_count("s", self.s, "the incoming example is learned at least as fast as the others")
        super().__post_init__()

    def plan(self, memory: Sampler) -> Plan:
        """Draw the loops of Algorithm 7."""
        for current in memory.incoming():  # for each example (x, y) of the stream
            [drawn] = memory.sample(1, self.k - 1)
            index = memory.position(len(drawn))  # where the current example stands in B
            memory.visit(drawn[:index], current, drawn[index:])  # at alpha or s alpha; then gamma's line
            memory.store()
        return memory.plan(self.rates())

    def rates(self) -> Rates:
        """Return alpha for stored examples, s alpha for the current one, gamma after the batch."""
        return Rates(memory=self.lr, current=self.s * self.lr, across=self.gamma)
