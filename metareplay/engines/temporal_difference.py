"""The objective of deep Q-learning: values of actions approach the reward plus what a target network expects next."""

from copy import deepcopy
from typing import final

import torch
from torch import Tensor, nn

from metareplay._core.columns import Columns
from metareplay._core.weights import Weights
from metareplay.engines.modes import evaluating
from metareplay.engines.objective import Loss, Objective


@final
class TemporalDifference(Objective):
    """Minimise the loss of Q(x, action) against y = reward + discount * max_a Q'(next_x, a), as in Mnih et al. (2015).

    Q' is the target network: a copy of the model that changes only when `refresh` is called. If the episode was over, y
    is the reward alone. No gradient goes through y, which is computed once per batch.

    Args:
        model: The Q-network, which gives one value per action.
        criterion: The loss of (values, y), a mean over the batch.
        discount: Gamma in most texts, and capital Gamma in Algorithm 8: what a reward of the next frame is worth now.
        double: Let the model, with its weights before the batch, choose the action that Q' evaluates (double DQN, van
            Hasselt et al., 2016).
        clip: Scale any gradient with a larger norm down to this norm; None for no limit.
    """

    def __init__(
        self, model: nn.Module, criterion: Loss, discount: float, double: bool = False, clip: float | None = None
    ) -> None:
        self.criterion, self.discount, self.double, self.clip = criterion, discount, double, clip
        self.target = Weights(deepcopy(model).eval())

    def prepare(self, model: nn.Module, examples: Columns) -> dict[str, Tensor]:
        """Return y for each transition of a batch, as the column `target`."""
        following: Tensor = self.target.module(examples["next_x"])
        if self.double:
            with evaluating(model):
                chosen = model(examples["next_x"]).argmax(dim=1, keepdim=True)
            best = following.gather(1, chosen)[:, 0]
        else:
            best = following.max(dim=1).values
        reward = examples["reward"].to(best.dtype)
        return {"target": torch.where(examples["over"], reward, reward + self.discount * best)}

    def loss(self, model: nn.Module, examples: Columns) -> Tensor:
        """Return the mean loss of the values of the actions that were taken."""
        values: Tensor = model(examples["x"])
        return self.criterion(values.gather(1, examples["action"][:, None])[:, 0], examples["target"])

    def refresh(self, model: nn.Module) -> None:
        """Make the target network equal to the model.

        Args:
            model: The Q-network.
        """
        with torch.no_grad():
            for ours, theirs in zip(self._tensors(self.target.module), self._tensors(model), strict=True):
                ours.copy_(theirs)

    def state(self) -> dict[str, Tensor]:
        """Return the target network's parameters and buffers."""
        return {f"target.{name}": value for name, value in self._named().items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Restore the target network."""
        here = self._named()
        for name, value in state.items():
            here[name.removeprefix("target.")].copy_(value)

    def _named(self) -> dict[str, Tensor]:
        """Return all parameters and buffers of the target network, including those that a state_dict leaves out."""
        module = self.target.module
        return {name: value.detach() for name, value in (*module.named_parameters(), *module.named_buffers())}

    @staticmethod
    def _tensors(model: nn.Module) -> list[Tensor]:
        return [*model.parameters(), *model.buffers()]
