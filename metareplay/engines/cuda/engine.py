"""The graph engine: any module on a CUDA device. A batch's steps are captured once and replayed with new rows.

On a GPU single-example SGD is bound by launches. A CUDA graph launches a whole batch at once; the rows, tasks and rates
of a plan lie on the device before it begins, so that nothing is copied to the device in between.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from metareplay._core.draws import Ints
from metareplay._core.plan import Plan
from metareplay._core.table import Table, TensorColumn
from metareplay.engines.cuda.batches import Batches, Problem, same_but_for_penalty, too_large
from metareplay.engines.cuda.graphs import Recorder, exclusive
from metareplay.engines.cuda.rewrite import streamlined, streamlined_loss
from metareplay.engines.cuda.trial import obstacle
from metareplay.engines.engine import Engine, Gradients, Outcome
from metareplay.engines.objective import Objective, Supervised
from metareplay.engines.torch_engine import TorchEngine

_trying = threading.Lock()  # one trial at a time: its kernels may have to be compiled


@final
class CudaEngine(Engine):
    """Execute plans by graphs: the same rows in the same order, the same weights up to rounding.

    Batches of a length that has no graph yet are stepped through by the very same function that is captured, so that
    results do not depend on when a graph was made.

    Args:
        plain: The engine that takes over where a module cannot be captured.
        recorder: What makes graphs.
        fewer_kernels: Use our own kernels for single examples where they fit.
    """

    def __init__(self, plain: TorchEngine, recorder: Recorder, fewer_kernels: bool = True) -> None:
        self.weights = plain.weights
        self.reason: str | None = None  # why stepping had to take over
        self._fewer = fewer_kernels
        self._plain, self._recorder = plain, recorder
        self._asked = False  # for gradients
        self._batches: Batches | None = None
        self._made_for: Objective | None = None  # what the batches minimise
        self._lock = threading.RLock()  # a prediction in another thread waits

    @property
    def name(self) -> str:  # type: ignore[override]
        """Whether graphs are used, and if not, why; a learner that only asks for gradients has none."""
        if self.reason is not None:
            return f"torch (cuda could not capture: {self.reason})"
        return "torch" if self._batches is None and self._asked else "cuda"

    def execute(self, plan: Plan, table: Table, objective: Objective) -> Outcome:
        """Learn example by example; one that cannot be learned is undone."""
        with self._lock:
            if self.reason is None:
                with self._recorder.aside(), self._plain.learning():
                    try:
                        batches = self._ready(plan, table, objective)
                        if batches is not None:
                            return batches.execute(plan, objective)
                    except torch.cuda.OutOfMemoryError as error:
                        self._batches = None
                        return Outcome(0, too_large(error))
            with self._recorder.aside(), exclusive:
                return self._plain.execute(plan, table, objective)

    def _ready(self, plan: Plan, table: Table, objective: Objective) -> Batches | None:
        """Return what carries out such plans; None if torch has to step through them."""
        if self.reason is None and not self._serves(plan, table, objective):
            self._batches, self._made_for = None, objective  # first, as batches hold memory
            self.reason = self._obstacle(table, objective)
            if self.reason is None:
                with _trying:
                    self._batches = self._first_that_can(plan, table, objective)
        return self._batches if self.reason is None else None

    def _first_that_can(self, plan: Plan, table: Table, objective: Objective) -> Batches | None:
        """Use the module and loss rewritten if that works and gives the same weights, else as they are."""
        given = Problem(self.weights.module, objective)
        as_given = Batches(self._plain, self._recorder, given, table, plan)
        for problem in _rewritten(given, self._fewer):
            batches = as_given if problem is given else Batches(self._plain, self._recorder, problem, table, plan)
            self.reason = obstacle(batches, plan, table, as_given)
            if self.reason is None:
                return batches
        return None

    def _serves(self, plan: Plan, table: Table, objective: Objective) -> bool:
        """Return whether the batches that were made carry out such plans."""
        if self._batches is None or self._made_for is None:
            return False
        return self._batches.serves(plan, table) and same_but_for_penalty(objective, self._made_for)

    def _obstacle(self, table: Table, objective: Objective) -> str | None:
        """Say what keeps plans from being captured at all; None if nothing does."""
        if self._plain.optimizer is not None:
            return "the optimizer keeps moments"
        if objective.stores:
            return f"the objective fills the column {objective.stores[0]!r} as examples arrive"
        if isinstance(objective, Supervised) and objective.by_task:
            return "the loss is balanced over tasks"
        if not all(isinstance(table.column(name), TensorColumn) for name in table.names):
            return "the memory is not on the GPU"
        return None

    def gradients(self, table: Table, groups: list[Ints], objective: Objective, example: int) -> Gradients:
        """Compute gradients by plain torch."""
        self._asked = True
        with self._lock, self._recorder.aside():
            return self._plain.gradients(table, groups, objective, example)

    def outputs(self, xs: Tensor, tasks: Tensor) -> Tensor:
        """Predict by plain torch."""
        with self._lock:
            return self._plain.outputs(xs, tasks)

    def healthy(self) -> bool:
        """Return whether weights, statistics and moments are finite."""
        return self._plain.healthy()

    def remember(self) -> Callable[[], None]:
        """Copy weights, buffers and moments."""
        return self._plain.remember()

    def state(self) -> dict[str, Tensor]:
        """Return an optimizer's moments; graphs hold nothing."""
        return self._plain.state()

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue with saved moments."""
        self._plain.restore(state)


def _rewritten(given: Problem, fewer_kernels: bool) -> list[Problem]:
    """Return what to try: module and loss rewritten so that a step takes fewer kernels, then both as they are."""
    objective = given.objective
    if isinstance(objective, Supervised):
        criterion = streamlined_loss(objective.criterion)
        objective = objective if criterion is objective.criterion else replace(objective, criterion=criterion)
    model = streamlined(given.model)
    same = model is given.model and objective is given.objective
    return [given] if same or not fewer_kernels else [Problem(model, objective), given]
