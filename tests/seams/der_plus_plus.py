"""Dark Experience Replay++ (Buzzega et al., 2020) as a user would write it: one file, the public names only."""

from dataclasses import dataclass
from typing import final

from torch import Tensor, nn
from torch.nn import functional

import metareplay as mr


@final
class Distillation(mr.Objective):
    """The cross-entropy of a batch, plus how far its outputs have moved from those that the examples came with."""

    stores = ("logits",)

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha

    def arriving(self, model: nn.Module, examples: mr.Columns) -> dict[str, Tensor]:
        return {"logits": model(examples["x"])}

    def loss(self, model: nn.Module, examples: mr.Columns) -> Tensor:
        outputs = model(examples["x"])
        moved = functional.mse_loss(outputs, examples["logits"])
        return functional.cross_entropy(outputs, examples["y"]) + self.alpha * moved


@final
@dataclass(eq=False, repr=False, kw_only=True)
class DERPlusPlus(mr.ReplayLearner):
    """Replay that also matches stored outputs.

    Args:
        alpha: The weight of the distance to the stored outputs.
    """

    alpha: float = 0.5

    def make_objective(self) -> Distillation:
        return Distillation(self.alpha)

    def plan(self, memory: mr.Sampler) -> mr.Plan:
        for current in memory.incoming():
            memory.visit(current, *memory.sample(1, self.k - 1))
            memory.store()
        return memory.plan(mr.Rates(memory=self.lr, current=self.lr), together=True)
