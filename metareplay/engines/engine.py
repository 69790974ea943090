"""The interface of engines, which execute plans on weights. Learners do not know which engine they have."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from numpy.typing import NDArray
from torch import Tensor

from metareplay._core.draws import Ints
from metareplay._core.plan import Plan
from metareplay._core.table import Table
from metareplay.engines.objective import Objective


@final
@dataclass(frozen=True)
class Outcome:
    """Say what became of a plan.

    If fewer examples were learned than planned and there is no error, the next example gave a loss or weights that are
    not finite. In both cases that example was undone: weights and everything else are as they were before it.

    Args:
        learned: How many of the plan's examples were learned.
        error: The exception that stopped the plan, if there was one.
        undo: Undoes what was learned; only there if the examples are kept where writing may fail.
    """

    learned: int
    error: BaseException | None = None
    undo: Callable[[], None] | None = None


class Gradients(ABC):
    """Hold the gradients g_1, g_2, ... of some losses at the current weights; valid until the engine's next call.

    They may be computed only when they are asked for.
    """

    @abstractmethod
    def each(self) -> Tensor:
        """Return the gradients as flat vectors, one per row."""

    @abstractmethod
    def products(self) -> Tensor:
        """Return the inner product of every pair, in float64; gradients that are not finite give NaN or infinity."""

    @abstractmethod
    def descend(self, rates: Tensor) -> None:
        """Take the step theta <- theta - sum_i rates_i g_i.

        Args:
            rates: The rate of each gradient.
        """


class Singles(ABC):
    """Learn the examples of a plan one at a time, as they come, with as little around the arithmetic as possible."""

    @abstractmethod
    def follow(self, plan: Plan) -> bool:
        """Take over a plan whose examples are still to come; return whether its steps can be taken in this way.

        Args:
            plan: The rows to visit, in order, and the rates.
        """

    @abstractmethod
    def change_rates(self, plan: Plan) -> None:
        """Go on with other rates.

        Args:
            plan: The plan that was taken over last, with the new rates.
        """

    @abstractmethod
    def learn(self, number: int, x: NDArray[Any], y: int | NDArray[Any]) -> bool:
        """Compute what the weights are after the next example; `give` makes them the model's. Nothing changes before.

        Args:
            number: The number of the example in the plan. Its row of the table has been written.
            x: Its input as the model takes it, one row.
            y: Its label, or its target.

        Returns:
            False if `Engine.execute` must do it: the example cannot be learned, or the model or the table has changed.
        """

    @abstractmethod
    def give(self) -> None:
        """Make the weights that were computed the model's."""


class Engine(ABC):
    """Do the arithmetic on weights.

    Attributes:
        name: Which engine this is; if another engine had to take over, which one and why.
        reason: Why no faster engine runs; None if this is the fastest for the model's device, or was asked for.
    """

    name: str
    reason: str | None = None

    @abstractmethod
    def execute(self, plan: Plan, table: Table, objective: Objective) -> Outcome:
        """Execute a plan as far as possible; an exception that an example raises is in the outcome.

        Args:
            plan: The rows to visit, in order, and the rates.
            table: The examples by row.
            objective: What each step minimises.
        """

    def singles(self, table: Table, objective: Objective) -> Singles | None:
        """Return what learns single examples faster than `execute`, giving the same weights; None if nothing does.

        Args:
            table: The examples by row.
            objective: What each step minimises.
        """
        del table, objective
        return None

    def output(self, x: NDArray[Any]) -> NDArray[Any] | None:
        """Compute the outputs for a single input faster than `outputs`, up to rounding; None if that is not possible.

        Args:
            x: The input as the model takes it, one row.
        """
        del x
        return None

    @abstractmethod
    def gradients(self, table: Table, groups: list[Ints], objective: Objective, example: int) -> Gradients:
        """Compute the gradient of the loss of each of several groups of rows, without penalty or clipping.

        Args:
            table: The examples by row.
            groups: The rows of each group.
            objective: What the loss is.
            example: The number of the example being learned, which seeds randomness inside the module.
        """

    @abstractmethod
    def outputs(self, xs: Tensor, tasks: Tensor) -> Tensor:
        """Compute the model's outputs for a batch of inputs, in evaluation mode.

        Args:
            xs: The inputs, as they are stored.
            tasks: The task of each input.
        """

    @abstractmethod
    def healthy(self) -> bool:
        """Return whether the weights, and any statistics that the module keeps, are finite."""

    @abstractmethod
    def remember(self) -> Callable[[], None]:
        """Remember everything that learning can change; calling the returned function restores it."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return what the engine must keep from one call to the next, such as an optimizer's moments."""

    @abstractmethod
    def restore(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned.

        Args:
            state: What `state` returned.
        """
