"""The work on one batch, which is captured as a graph: gather, step after step, the Reptile line."""

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn

from metareplay._core.plan import Plan
from metareplay._core.table import Table
from metareplay._core.weights import Weights, reptile
from metareplay.engines.cuda.graphs import Recorder, Work
from metareplay.engines.cuda.pieces import MOST, Patience, Piece, pieces, row_rates
from metareplay.engines.engine import Outcome
from metareplay.engines.inputs import gather
from metareplay.engines.objective import Objective, QuadraticPenalty, Supervised, prepared
from metareplay.engines.torch_engine import TorchEngine
from metareplay.errors import MetareplayError

LARGE = 2**19  # weights: gathering the gradient of more takes longer than a kernel that knows all its pieces


@final
@dataclass(frozen=True, eq=False)
class Problem:
    """Say what the steps on a table's rows minimise.

    Args:
        model: The learner's module, or the same function rewritten with the same parameters.
        objective: The learner's objective, or the same function rewritten.
    """

    model: nn.Module
    objective: Objective

    def parameters(self, weights: Weights) -> list[Tensor]:
        """Return the trainable parameters of the model, which together are theta, in its order.

        Args:
            weights: The learner's weights.
        """
        found: list[Tensor] = [p for p in self.model.parameters() if p.requires_grad]
        assert sum(p.numel() for p in found) == weights.theta.numel(), "a rewritten model has the same weights"
        return sorted(found, key=lambda parameter: parameter.data_ptr())


@final
class Batches:
    """Learn examples of one table with one set of rates, batch by batch: the work itself, and graphs of it.

    Args:
        plain: The torch engine of the same learner.
        recorder: What makes graphs.
        problem: What steps minimise.
        table: The examples by row.
        plan: A plan of the kind to be carried out.
    """

    def __init__(self, plain: TorchEngine, recorder: Recorder, problem: Problem, table: Table, plan: Plan) -> None:
        self.weights, self.model = plain.weights, problem.model
        self._objective = _with_own_penalty(problem.objective)
        self._penalty = _penalty_of(problem.objective)  # the one that was copied last
        self._statistics, self._recorder, self._table = plain.statistics, recorder, table
        self._optimizer = plain.optimizer
        self._moments = _moments_in_place(plain)
        self._parameters = problem.parameters(self.weights)
        self._buffers = list(self.weights.module.buffers())
        self._together, self._rates = plan.together, plan.rates
        theta = self.weights.theta
        self.start = theta.clone()  # before the example: theta_A0
        self._batch_start = theta.clone()  # before the batch: theta_W0
        self._kept = [values.clone() for values in (*self._buffers, *self._moments)]
        self._fine = torch.ones((), dtype=torch.bool, device=theta.device)  # everything was finite so far
        self._one = torch.ones((), dtype=theta.dtype, device=theta.device)
        self._slots: dict[int, _Slot] = {}  # by the number of rows
        self._graphs: dict[object, Work] = {}
        self._patience = Patience()

    def serves(self, plan: Plan, table: Table) -> bool:
        """Return whether plans like this one can be carried out."""
        return (plan.together, plan.rates) == (self._together, self._rates) and table is self._table

    def execute(self, plan: Plan, objective: Objective) -> Outcome:
        """Learn example by example, with one look at the device per example; one that fails is undone."""
        self._take_penalty(objective)
        rows = PlannedRows(plan, self._table, self.weights.theta.device)
        for i in range(len(plan)):
            parts = self.pieces(plan, i)
            capture = self._patience.ends({piece.kind for piece in parts})
            begun, kept = False, dict[str, Tensor]()
            try:
                kept = {name: value.clone() for name, value in objective.state().items()}
                self._work("open", self.open, capture)()
                begun = True  # before, there is nothing to undo
                if not self._learn(parts, rows, capture):
                    self.undo()
                    objective.restore(kept)
                    return Outcome(i)
            except BaseException as error:
                if begun:
                    self.undo()
                    objective.restore(kept)
                small = isinstance(error, torch.cuda.OutOfMemoryError)
                return Outcome(i, too_large(error) if small else error)
        return Outcome(len(plan))

    def pieces(self, plan: Plan, example: int) -> list[Piece]:
        """Return the pieces of an example; a batch for which the objective prepares columns is never cut.

        Args:
            plan: The plan.
            example: The example's number in the plan.
        """
        return pieces(plan, example, len(plan.rows) if self._objective.prepares else MOST)

    def _learn(self, parts: list[Piece], rows: "PlannedRows", capture: bool) -> bool:
        """Run the loops of Algorithm 1; return whether everything stayed finite."""
        for piece in parts:
            self.run(piece, rows, self._work(piece.kind, self.eager(piece), capture))
        self._work("close", self._close, capture)()
        return bool(self._fine)

    def _work(self, kind: object, work: Work, capture: bool) -> Work:
        """Return the graph of some work if there is one, or if one is to be made now; otherwise the work itself."""
        if capture and kind not in self._graphs:
            self._graphs[kind] = self._recorder.record(work)
        return self._graphs.get(kind, work)

    def record(self, piece: Piece) -> Work:
        """Make a graph for pieces of this kind."""
        self._graphs[piece.kind] = self._recorder.record(self.eager(piece))
        return self._graphs[piece.kind]

    def run(self, piece: Piece, rows: "PlannedRows", work: Work) -> None:
        """Do the work on one piece."""
        self._slot(piece.size).take(rows, piece)
        work()

    def _slot(self, size: int) -> "_Slot":
        if size not in self._slots:
            self._slots[size] = _Slot(size, self.weights.theta)
        return self._slots[size]

    def eager(self, piece: Piece) -> Work:
        """Return the work on pieces of this kind, to be done step by step or to be recorded."""
        slot = self._slot(piece.size)
        return lambda: self._batch(slot, piece.opens, piece.closes)

    def open(self) -> None:
        """Begin an example: remember everything that learning it can change."""
        self._fine.fill_(True)
        self.start.copy_(self.weights.theta)
        for kept, values in zip(self._kept, (*self._buffers, *self._moments), strict=True):
            kept.copy_(values)

    def _close(self) -> None:
        reptile(self.weights.theta, self.start, self._rates.across)
        for values in (self.weights.theta, *self._statistics, *self._moments):
            self._fine.logical_and_(torch.isfinite(values).all())

    def undo(self) -> None:
        """Put back what was remembered when the example began."""
        self.weights.theta.copy_(self.start)
        for kept, values in zip(self._kept, (*self._buffers, *self._moments), strict=True):
            values.copy_(kept)

    def _batch(self, slot: "_Slot", opens: bool, closes: bool) -> None:
        """Gather all rows at once, then take step after step, then draw the Reptile line."""
        theta, rates = self.weights.theta, self._rates
        if opens and rates.within != 1:
            self._batch_start.copy_(theta)
        gathered = gather(self._table, slot.rows, self.weights, slot.tasks)
        examples = prepared(self._objective, self.model, gathered)
        size = slot.size if self._together else 1
        losses = []
        for j in range(0, slot.size, size):
            loss = self._objective.loss(self.model, examples.part(j, j + size))
            self._descend(loss, slot.rates[j] if rates.current != rates.memory and not self._together else None)
            losses.append(loss.detach())
        self._fine.logical_and_(torch.isfinite(torch.stack(losses)).all())
        if closes:
            reptile(theta, self._batch_start, rates.within)

    def _descend(self, loss: Tensor, rate: Tensor | None) -> None:
        """Take the step theta <- theta - rate * gradient in as few kernels as possible."""
        one = self._one if loss.dim() == 0 and loss.dtype == self._one.dtype else None
        found = torch.autograd.grad(loss, self._parameters, one, allow_unused=True, materialize_grads=True)
        theta, objective = self.weights.theta, self._objective
        with torch.no_grad():
            plain = self._optimizer is None and objective.clip is None and not objective.penalises
            if theta.numel() > LARGE and rate is None and plain:
                torch._foreach_add_(self._parameters, found, alpha=-self._rates.memory)
                return
            gradient = torch.cat([g.reshape(-1) for g in found])
            objective.add_penalty(gradient, theta)
            if objective.clip is not None:
                norm = gradient.norm()
                gradient.mul_(torch.where(norm > objective.clip, objective.clip / norm, 1.0))
            if self._optimizer is not None:
                self.weights.gradient.copy_(gradient)
                self._optimizer.step()
            elif rate is None:
                theta.add_(gradient, alpha=-self._rates.memory)
            else:
                theta.addcmul_(gradient, rate, value=-1)

    def _take_penalty(self, objective: Objective) -> None:
        """Copy a penalty to where the graphs look for it."""
        penalty, ours = _penalty_of(objective), _penalty_of(self._objective)
        if penalty is not None and ours is not None and penalty is not self._penalty:
            ours.importance.copy_(penalty.importance)
            ours.anchor.copy_(penalty.anchor)
        self._penalty = penalty


@final
class PlannedRows:
    """Hold a plan's rows, tasks and rates on the device."""

    def __init__(self, plan: Plan, table: Table, device: torch.device) -> None:
        self.rows_and_tasks = torch.stack([torch.from_numpy(plan.rows), table.tasks(plan.rows)]).to(device)
        rates = row_rates(plan)
        self.rates = None if rates is None else torch.from_numpy(rates).to(device)


@final
class _Slot:
    """Hold the rows that a piece of a certain size works on."""

    def __init__(self, size: int, theta: Tensor) -> None:
        self.size = size
        self._both = torch.zeros((2, size), dtype=torch.int64, device=theta.device)
        self.rows, self.tasks = self._both
        self.rates = torch.zeros(size, dtype=theta.dtype, device=theta.device)

    def take(self, planned: PlannedRows, piece: Piece) -> None:
        """Copy the rows of a piece here, from device to device."""
        end = piece.start + piece.size
        self._both.copy_(planned.rows_and_tasks[:, piece.start : end])
        if planned.rates is not None:
            self.rates.copy_(planned.rates[piece.start : end])


def _moments_in_place(plain: TorchEngine) -> list[Tensor]:
    """Return what the optimizer keeps, as tensors that stay where they are; a new optimizer begins with zeros."""
    if plain.optimizer is None:
        return []
    if not plain.state():
        plain.weights.gradient.zero_()
        try:
            plain.optimizer.step()  # makes the tensors; a gradient of 0 leaves the weights alone
        except BaseException:
            plain.restore({})  # it may have made some of them
            raise
        for values in plain.state().values():
            values.zero_()
    return list(plain.state().values())


def too_large(error: BaseException) -> MetareplayError:
    """Explain in one line that the GPU has run out of memory."""
    return MetareplayError(
        f"not enough GPU memory: use a smaller memory or batch, or fewer runs at a time ({str(error)[:80]})"
    )


def same_but_for_penalty(one: Objective, other: Objective) -> bool:
    """Return whether graphs made for one objective serve another: only the values of a penalty may differ."""
    if not isinstance(one, Supervised) or not isinstance(other, Supervised):
        return one is other
    terms = [
        (of.criterion, of.regression, of.by_task, of.clip, None if of.penalty is None else of.penalty.strength)
        for of in (one, other)
    ]
    return terms[0] == terms[1]


def _penalty_of(objective: Objective) -> QuadraticPenalty | None:
    return objective.penalty if isinstance(objective, Supervised) else None


def _with_own_penalty(objective: Objective) -> Objective:
    """Give an objective a copy of its penalty, whose tensors stay where they are when the penalty changes."""
    penalty = _penalty_of(objective)
    if penalty is None or not isinstance(objective, Supervised):
        return objective
    own = QuadraticPenalty(penalty.strength, penalty.importance.clone(), penalty.anchor.clone())
    return replace(objective, penalty=own)
