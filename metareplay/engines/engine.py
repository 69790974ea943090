"""What an engine is: it executes plans on weights. Learners do not know which one they have."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from torch import Tensor

from metareplay._core.draws import Ints
from metareplay._core.plan import Plan
from metareplay._core.table import Table


@final
@dataclass(frozen=True)
class Pull:
    """EWC's penalty, strength * sum_t F_t (theta - theta_t)^2 over the earlier tasks t, as two vectors."""

    strength: float
    importance: Tensor  # F = sum_t F_t
    anchor: Tensor  # sum_t F_t theta_t

    def gradient(self, theta: Tensor) -> Tensor:
        """2 * strength * sum_t F_t (theta - theta_t)."""
        return (self.importance * theta).sub_(self.anchor).mul_(2 * self.strength)


@final
@dataclass(frozen=True)
class Outcome:
    """What became of a plan: how many of its examples were learned, and what stopped it, if it was an exception.

    Fewer than planned without an error means that the next one gave a loss or weights that are not finite. Either way
    it was undone: weights and everything else are as they were before it.
    """

    learned: int
    error: BaseException | None = None


class Gradients(ABC):
    """The gradients g_1, g_2, ... of some losses at the current weights; good until the engine's next call."""

    @abstractmethod
    def each(self) -> Tensor:
        """One a row, flat."""

    @abstractmethod
    def products(self) -> Tensor:
        """The inner product of every pair, in float64; what is not finite gives NaN or infinity."""

    @abstractmethod
    def descend(self, rates: Tensor) -> None:
        """theta <- theta - sum_i rates_i g_i."""


class Engine(ABC):
    """The arithmetic on weights."""

    name: str

    @abstractmethod
    def execute(self, plan: Plan, table: Table, pull: Pull | None = None) -> Outcome:
        """Carry out a plan as far as it goes; what an example raises is in the outcome."""

    @abstractmethod
    def gradients(self, table: Table, groups: list[Ints], example: int) -> Gradients:
        """For each group of rows the gradient of its mean loss; `example` is the one being learned."""

    @abstractmethod
    def outputs(self, xs: Tensor, tasks: Tensor) -> Tensor:
        """The model's outputs for a batch of inputs, in evaluation mode."""

    @abstractmethod
    def healthy(self) -> bool:
        """Whether the weights, and any statistics the module keeps, are finite."""

    @abstractmethod
    def remember(self) -> Callable[[], None]:
        """Remember everything that learning can change; calling the result puts it back."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """What the engine must keep from one call to the next: an optimizer's moments."""

    @abstractmethod
    def restore(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` gave."""
