"""What an engine is: it executes plans on weights. Learners do not know which one they have."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from torch import Tensor

from metareplay.draws import Ints
from metareplay.plan import Plan
from metareplay.table import Table


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


class Engine(ABC):
    """The arithmetic on weights."""

    name: str

    @abstractmethod
    def execute(self, plan: Plan, table: Table, pull: Pull | None = None) -> int:
        """Carry out a plan; return how many of its examples were learned.

        Fewer than planned means that the next one gave a loss or weights that are not finite: it was undone, weights
        and everything else are as they were before it.
        """

    @abstractmethod
    def gradient(self, table: Table, rows: Ints, example: int) -> Tensor:
        """The gradient of the mean loss over some rows, a new flat vector; `example` is the one being learned."""

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
