"""Single examples through the compiled engine: everything that stays the same from one to the next is prepared once."""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from metareplay._core.plan import Plan
from metareplay._core.table import Table
from metareplay._core.weights import Weights
from metareplay.engines.engine import Singles


class Prepared(NamedTuple):
    """Hold a plan as the kernel takes it. The first two change when the kernel gets new arrays."""

    net: Any
    table: Any
    targets: Any
    steps: Any
    rates: Any
    room: Any
    goals: NDArray[Any]  # the label or target of each row
    copied: NDArray[Any]  # Table.writes of each row when it was packed


@final
class CpuSingles(Singles):
    """Run the kernel on one example at a time. The weights are still copied in before it and out after it.

    Args:
        weights: The module's weights.
        table: The examples by row.
        places: Where each weight is in the net's rows, counted through them.
        prepare: Packs the stored rows of a plan and returns what the kernel takes; None if it cannot take the plan.
        rates_of: Returns the rates of a plan as the kernel takes them.
        current_net: Returns the kernel's net as it is now.
        clear: Empties the net, after numbers that are not finite.
        lock: What the engine holds while it computes.
    """

    def __init__(
        self,
        weights: Weights,
        table: Table,
        places: NDArray[Any],
        prepare: Callable[[Plan], Prepared | None],
        rates_of: Callable[[Plan], Any],
        current_net: Callable[[], object],
        clear: Callable[[], None],
        lock: threading.RLock,
    ) -> None:
        from metareplay._core.numba_private import entry_point  # here, because numba takes long to import
        from metareplay.engines.cpu import layout, single_rows, steps

        self._begin, self._give, self._steps = single_rows.begin, single_rows.give_weights, layout.Steps
        self._run_plan, self._entry_point = steps.run_plan, entry_point
        self._codes: dict[bool, Callable[..., Any]] = {}  # by whether a batch is one step
        self._weights, self._theta, self._places, self._writes = weights, weights.theta.numpy(), places, table.writes
        self._learned = np.empty_like(self._theta)  # the weights after the example: another thread may use the net
        self._prepare, self._rates_of = prepare, rates_of
        self._current_net, self._clear, self._lock = current_net, clear, lock

    def follow(self, plan: Plan) -> bool:
        """Pack the stored rows that the plan visits; rows still to come are packed when they come."""
        with self._lock:
            ready = self._prepare(plan)
            if ready is not None:
                self._ready, self._ends = ready, plan.ends.tolist()
                self._flat = ready.net.rows.reshape(-1)
                self._find_code(plan.together)
        return ready is not None

    def change_rates(self, plan: Plan) -> None:
        """Replace the rates alone."""
        self._ready = self._ready._replace(rates=self._rates_of(plan))

    def _find_code(self, together: bool) -> None:
        """Find the machine code for plans of this kind; before it has been compiled, numba finds it at every call."""
        if together not in self._codes and (code := self._entry_point(self._run_plan, *self._arguments(0))) is not None:
            self._codes[together] = code
        self._run = self._codes.get(together, self._run_plan)

    def _arguments(self, number: int) -> tuple[Any, ...]:
        """Return what `run_plan` takes for one example. The types are always the same."""
        net, table, targets, steps, rates, room, *_ = self._ready
        ends = steps.ends[number * steps.s : (number + 1) * steps.s + 1]
        its_steps = self._steps(steps.rows, ends, steps.shares, steps.s, steps.incoming + number)
        return net, table, targets, its_steps, rates, None, room, False

    def learn(self, number: int, x: NDArray[Any], y: int | NDArray[Any]) -> bool:
        """Run the kernel on the batches of one example."""
        ready, steps = self._ready, self._ready.steps
        row, start, end = steps.incoming + number, self._ends[number * steps.s], self._ends[(number + 1) * steps.s]
        with self._lock:
            self._weights.check()
            if ready.net is not self._current_net():
                return False
            ready.goals[row] = y
            packed = (*ready.table, steps.rows, start, end, ready.copied, self._writes)
            if not self._begin(self._flat, self._places, self._theta, x, row, *packed):
                return False
            if self._run(*self._arguments(number)):
                self._give(self._flat, self._places, self._learned)
                return True
            self._clear()
            return False

    def give(self) -> None:
        """Copy the weights out."""
        with self._lock:
            np.copyto(self._theta, self._learned)
