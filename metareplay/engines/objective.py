"""Objectives: what a step minimises, computed from a model and the gathered columns of some examples."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from metareplay._core.columns import Columns
from metareplay.networks import TaskModule

Loss = Callable[[Tensor, Tensor], Tensor]


class Objective(ABC):
    """Say what a step minimises. Every engine can minimise any objective; fast paths exist for `Supervised`.

    An objective is evaluated at every step and may hold state of its own, such as a target network. It may also fill
    columns of its own when an example arrives, such as the outputs that the model had for it then; these are stored and
    replayed with the example. What is the same for all steps of a batch, such as targets made by a target network, is
    computed once per batch by `prepare`.

    Attributes:
        stores: The names of the columns that `arriving` fills.
        clip: Scale any gradient with a larger norm down to this norm; None for no limit.
    """

    stores: ClassVar[tuple[str, ...]] = ()
    clip: float | None = None

    @abstractmethod
    def loss(self, model: nn.Module, examples: Columns) -> Tensor:
        """Return the loss of some examples as a scalar that can be differentiated.

        Args:
            model: The learner's model, in training mode.
            examples: The gathered columns; `x` is already as the model takes it (bytes scaled to [0, 1]).
        """

    def arriving(self, model: nn.Module, examples: Columns) -> dict[str, Tensor]:
        """Return the values of the columns in `stores` for examples that have just come in, before they are learned.

        Args:
            model: The learner's model, in training mode; no gradients are recorded.
            examples: The columns that came with the examples.
        """
        del model, examples
        return {}

    @property
    def prepares(self) -> bool:
        """Whether `prepare` adds any columns."""
        return type(self).prepare is not Objective.prepare

    def prepare(self, model: nn.Module, examples: Columns) -> dict[str, Tensor]:
        """Return further columns for the rows of a batch, computed before its first step; `loss` finds them.

        Args:
            model: The learner's model, with its weights before the batch, in training mode; no gradients are recorded.
            examples: The gathered columns of all rows of the batch.
        """
        del model, examples
        return {}

    @property
    def penalises(self) -> bool:
        """Whether `add_penalty` adds anything."""
        return type(self).add_penalty is not Objective.add_penalty

    def add_penalty(self, gradient: Tensor, theta: Tensor) -> None:
        """Add the gradient of a penalty on the weights, in place.

        Args:
            gradient: The gradient of the loss, flat.
            theta: The current weights, flat.
        """
        del gradient, theta

    def state(self) -> dict[str, Tensor]:
        """Return what a checkpoint must hold besides the weights."""
        return {}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned.

        Args:
            state: What `state` returned.
        """
        del state

    @final
    def remember(self) -> Callable[[], None]:
        """Remember what `state` returns.

        Returns:
            A function that restores it.
        """
        kept = {name: value.clone() for name, value in self.state().items()}

        def undo() -> None:
            if kept:
                self.restore(kept)

        return undo


@final
@dataclass(frozen=True)
class QuadraticPenalty:
    """Hold EWC's penalty, strength * sum_t F_t (theta - theta_t)^2 over the earlier tasks t, as two vectors.

    Args:
        strength: The weight of the penalty in the loss.
        importance: F, the sum over t of F_t.
        anchor: The sum over t of F_t theta_t.
    """

    strength: float
    importance: Tensor
    anchor: Tensor

    def gradient(self, theta: Tensor) -> Tensor:
        """Return 2 * strength * sum_t F_t (theta - theta_t).

        Args:
            theta: The current weights, flat.
        """
        return (self.importance * theta).sub_(self.anchor).mul_(2 * self.strength)


@final
@dataclass(frozen=True)
class Supervised(Objective):
    """Minimise the mean loss of the model's outputs against the targets, as the paper's learners do.

    Args:
        criterion: The loss of (outputs, targets), a mean over the batch.
        regression: Whether targets are real numbers; otherwise they are class labels.
        by_task: Minimise the sum over the tasks in a batch of each task's mean loss (Algorithm 5).
        penalty: EWC's penalty on the weights.
        clip: Scale any gradient with a larger norm down to this norm; None for no limit.
    """

    criterion: Loss
    regression: bool = False
    by_task: bool = False
    penalty: QuadraticPenalty | None = None
    clip: float | None = None

    def loss(self, model: nn.Module, examples: Columns) -> Tensor:
        """Return the mean loss, or the sum of the mean losses of each task."""
        outputs, ys, tasks = forward(model, examples["x"], examples["task"]), examples["y"], examples["task"]
        if not self.by_task:
            return self.criterion(outputs, ys)
        of_task = [(tasks == task).to(ys.device) for task in tasks.unique()]
        return torch.stack([self.criterion(outputs[mask], ys[mask]) for mask in of_task]).sum()

    @property
    def penalises(self) -> bool:
        """Whether there is a penalty."""
        return self.penalty is not None

    def add_penalty(self, gradient: Tensor, theta: Tensor) -> None:
        """Add the gradient of EWC's penalty, if there is one."""
        if self.penalty is not None:
            gradient.add_(self.penalty.gradient(theta))


def forward(model: nn.Module, inputs: Tensor, tasks: Tensor) -> Tensor:
    """Return the model's outputs, or their `logits` if it gives an object; a TaskModule is given each input's task.

    Args:
        model: Any module, or a TaskModule.
        inputs: A batch of inputs as the model takes them.
        tasks: The task of each input; only TaskModules use it.
    """
    if isinstance(model, TaskModule):
        outputs: Tensor = model(inputs, tasks.to(inputs.device))
    else:
        outputs = model(inputs)
    return outputs if isinstance(outputs, Tensor) else getattr(outputs, "logits", outputs)


def prepared(objective: Objective, model: nn.Module, examples: Columns) -> Columns:
    """Return the rows of a batch with the columns that the objective prepares.

    Args:
        objective: What steps minimise.
        model: The model, with its weights before the batch.
        examples: The gathered columns of the batch.
    """
    with torch.no_grad():
        further = objective.prepare(model, examples)
    return Columns({**dict(examples.items()), **further}) if further else examples
