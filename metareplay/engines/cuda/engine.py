"""The graph engine: any module on a CUDA device. A batch's steps are captured once and replayed with new rows.

On a GPU single-example SGD is bound by launches. A CUDA graph launches a whole batch at once; the rows, tasks and rates
of a plan lie on the device before it begins, so that nothing is copied to the device in between.
"""

import threading
from typing import final

import torch
from torch import Tensor

from metareplay._core.draws import Ints
from metareplay._core.plan import Plan
from metareplay._core.stacks import StackColumn
from metareplay._core.table import Table, TensorColumn
from metareplay.engines.accelerated import AcceleratedEngine
from metareplay.engines.cuda.batches import Batches, Problem, same_but_for_penalty, too_large
from metareplay.engines.cuda.convnet import ConvNet
from metareplay.engines.cuda.formation import Formation, Place, SideBySide
from metareplay.engines.cuda.gradients import GroupGradients
from metareplay.engines.cuda.graphs import Recorder, exclusive
from metareplay.engines.cuda.lockstep import Lockstep, Terms, can_chain
from metareplay.engines.cuda.rewrite import streamlined, streamlined_objective
from metareplay.engines.cuda.trial import lockstep_obstacle, obstacle
from metareplay.engines.engine import Gradients, Outcome
from metareplay.engines.objective import Objective, Supervised
from metareplay.engines.torch_engine import FlatGradients, TorchEngine

_trying = threading.Lock()  # one trial at a time: its kernels may have to be compiled


@final
class CudaEngine(AcceleratedEngine):
    """Execute plans by graphs: the same rows in the same order, the same weights up to rounding.

    Batches of a length that has no graph yet are stepped through by the very same function that is captured, so that
    results do not depend on when a graph was made.

    Args:
        plain: The engine that takes over where a module cannot be captured.
        recorder: What makes graphs.
        fewer_kernels: Use our own kernels for single examples where they fit.

    Attributes:
        place: The run's place in a formation, for networks that can learn in lockstep with others of their shape; None
            to learn alone.
    """

    def __init__(self, plain: TorchEngine, recorder: Recorder, fewer_kernels: bool = True) -> None:
        super().__init__(plain)
        self.place: Place | None = None
        self.weights = plain.weights
        self.reason: str | None = None  # why stepping had to take over
        self._fewer = fewer_kernels
        self._recorder = recorder
        self._asked = False  # for gradients
        self._gradients: GroupGradients | None = None
        self._not_in_lockstep: str | None = None  # why a network that lockstep supports does not use it
        self._batches: Batches | None = None
        self._side_by_side: SideBySide | None = None
        self._made_for: Objective | None = None  # what batches or lockstep minimise
        self._lock = threading.RLock()  # a prediction in another thread waits

    @property
    def name(self) -> str:  # type: ignore[override]
        """Whether graphs are used, and if not, why; a learner that only asks for gradients has no plans to capture."""
        if self.reason is not None:
            return f"torch (cuda could not capture: {self.reason})"
        if self._not_in_lockstep is not None:
            return f"cuda (not in lockstep: {self._not_in_lockstep})"
        plans = self._batches is not None or self._side_by_side is not None
        graphs = self._gradients is not None and self._gradients.has_graphs
        return "torch" if self._asked and not plans and not graphs else "cuda"

    def execute(self, plan: Plan, table: Table, objective: Objective) -> Outcome:
        """Learn example by example; one that cannot be learned is undone."""
        with self._lock:
            try:
                with torch.inference_mode(False):
                    self._prepare(plan, table, objective)
                    if self._side_by_side is not None:
                        self.weights.check()
                        return self._side_by_side.execute(plan, objective)  # not in our stream: it waits for other runs
                if self._batches is not None:
                    with self._recorder.aside(), self._plain.learning():
                        return self._batches.execute(plan, objective)
            except torch.cuda.OutOfMemoryError as error:
                self._batches = self._side_by_side = None
                return Outcome(0, too_large(error))
            with self._recorder.aside(), exclusive:
                return self._plain.execute(plan, table, objective)

    def _prepare(self, plan: Plan, table: Table, objective: Objective) -> None:
        """Make what carries out such plans; if nothing can, torch has to step through them."""
        if self.reason is not None or self._serves(plan, table, objective):
            return
        self._batches, self._side_by_side, self._made_for = None, None, objective  # first, as these hold memory
        self.reason = self._obstacle(table, objective)
        if self.reason is not None:
            self._leave()
            return
        with _trying:
            self._side_by_side = self._in_formation(plan, table, objective)
            if self._side_by_side is None:
                with self._recorder.aside(), self._plain.learning():
                    self._batches = self._first_that_can(plan, table, objective)

    def _in_formation(self, plan: Plan, table: Table, objective: Objective) -> SideBySide | None:
        """Use lockstep, alone or with the other runs of the formation; None if that does not support the network."""
        plain_steps = self._fewer and self._plain.optimizer is None
        terms = Terms.of(plan, table, objective) if plain_steps else None
        net = ConvNet.of(self.weights, objective, table) if terms is not None else None
        if terms is None or net is None or not isinstance(objective, Supervised):
            self._leave()
            return None
        device, recorder = self.weights.device, self._recorder

        def make(size: int) -> Lockstep:
            return Lockstep(net, terms, size, recorder, device, chained=can_chain(device))

        with recorder.aside():
            self._not_in_lockstep = lockstep_obstacle(make(1), self._plain, plan, table, objective)
        if self._not_in_lockstep is not None:
            self._leave()
            return None
        if self.place is not None and (self.place.left or not self.place.formation.takes(net, terms, recorder, make)):
            self._leave()
        if self.place is None:
            self.place = Formation(1).alone()
            self.place.formation.takes(net, terms, recorder, make)
        return SideBySide(self._plain, self.place, terms, table)

    def _leave(self) -> None:
        """Leave the formation, whose other runs must not wait for this one."""
        if self.place is not None:
            self.place.leave()
            self.place = None

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
        if self._made_for is None or not same_but_for_penalty(objective, self._made_for):
            return False
        if self._side_by_side is not None:
            return self._side_by_side.serves(plan, table, objective)
        return self._batches is not None and self._batches.serves(plan, table)

    def _obstacle(self, table: Table, objective: Objective) -> str | None:
        """Say what keeps plans from being captured at all; None if nothing does."""
        if objective.stores:
            return f"the objective fills the column {objective.stores[0]!r} as examples arrive"
        if isinstance(objective, Supervised) and objective.by_task and streamlined_objective(objective) is objective:
            return "a loss other than cross-entropy is balanced over tasks"
        if not all(isinstance(column, TensorColumn | StackColumn) for column in table.columns.values()):
            return "the memory is not on the GPU"
        return None

    def gradients(self, table: Table, groups: list[Ints], objective: Objective, example: int) -> Gradients:
        """Compute gradients by graphs, once groups of these sizes have come often enough; before that by torch."""
        self._asked = True
        with self._lock, self._recorder.aside():
            if self._gradients is None or not self._gradients.serves(table, objective):
                self._gradients = GroupGradients(self._plain, self._recorder, table, objective)
            with self._plain.learning():
                found = self._gradients.each(groups)
            if found is not None:
                return FlatGradients(self.weights, found)
            return self._plain.gradients(table, groups, objective, example)

    def outputs(self, xs: Tensor, tasks: Tensor) -> Tensor:
        """Predict by plain torch."""
        with self._lock:
            return self._plain.outputs(xs, tasks)


def _rewritten(given: Problem, fewer_kernels: bool) -> list[Problem]:
    """Return what to try: module and loss rewritten so that a step takes fewer kernels, then both as they are."""
    objective, model = streamlined_objective(given.objective), streamlined(given.model)
    same = model is given.model and objective is given.objective
    return [given] if same or not fewer_kernels else [Problem(model, objective), given]
