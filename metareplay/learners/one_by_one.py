"""Single examples without the ceremony of batches: draws are made ahead, and inputs are compared with earlier ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metareplay._core.interrupts import HeldBack
from metareplay._core.plan import Plan, Rates
from metareplay._core.table import Table, TensorColumn
from metareplay._core.weights import Weights
from metareplay.engines.engine import Engine, Singles
from metareplay.engines.inputs import as_input
from metareplay.engines.objective import Objective
from metareplay.networks import TaskModule

if TYPE_CHECKING:
    from metareplay.learners.learner import Learner

AHEAD = 64  # examples to draw for at a time, at most
Numbers = NDArray[Any]


@final
class Signature:
    """Say what single inputs look like, from the table that holds the earlier ones, and bring others into that form.

    Args:
        xs: The table's column of inputs.
        weights: The weights of the model that takes them.
    """

    def __init__(self, xs: Tensor, weights: Weights) -> None:
        self._shape, self._weights = tuple(xs.shape[1:]), weights
        self._shape_of_batch = (1, *self._shape)
        self._dtype, self._as_numpy = xs.dtype, xs.new_zeros(0).numpy().dtype

    @property
    def dimensions(self) -> int:
        """How many dimensions a single input has."""
        return len(self._shape)

    def stored(self, x: object, *, batch: bool = False) -> Numbers | None:
        """Return an input as the table holds it; None if it is anything but what came before.

        Args:
            x: An input, or anything else.
            batch: Whether it may also be a batch of a single input.
        """
        if type(x) is Tensor:
            try:
                x = x.numpy()
            except (RuntimeError, TypeError):  # it is on a GPU, has a history, or is of a kind that NumPy lacks
                return None
        if type(x) is list:
            try:
                x = np.array(x)
            except ValueError:  # its parts have different lengths
                return None
        if type(x) is not np.ndarray:
            return None
        if x.dtype != self._as_numpy:
            if x.dtype.kind not in "fi" or self._as_numpy.kind != "f":
                return None
            with np.errstate(over="ignore"):  # what becomes infinite is refused as such
                x = x.astype(self._as_numpy)
        if x.shape != self._shape and not (batch and x.shape == self._shape_of_batch):
            return None
        return x if x.flags.carray else x.copy()

    def taken(self, stored: Numbers) -> Numbers:
        """Return an input as the model takes it, as one row."""
        if self._dtype is self._weights.dtype:
            return stored.reshape(1, -1)
        return as_input(torch.from_numpy(stored).reshape(1, -1), self._weights).numpy()


@final
class OneByOne:
    """Learn single examples where a compiled engine can, with the draws and the weights that `observe_many` has.

    Whatever is unusual is left to `observe_many`, which says what is wrong with it.
    """

    def __init__(self) -> None:
        self._singles: Singles | None = None
        self._refused: object = None  # engine, table and objective with which it is not possible
        self._plan: Plan | None = None
        self._count = 0  # examples that the plan, or the one before, was made for
        self._at = 0  # of these, how many have come
        self._next = 0  # the number of the example in the stream that must come next
        self._known: Table | None = None  # the table that `_form` is of
        self._form: Signature | None = None

    def forget(self) -> None:
        """Forget everything that was prepared."""
        self._singles = None
        self.forget_draws()

    def forget_draws(self) -> None:
        """Forget the draws made ahead, because an option that they depend on has changed."""
        self._plan, self._refused, self._count = None, None, 0

    def change_rates(self, rates: Rates) -> None:
        """Go on with the same draws and other rates.

        Args:
            rates: The new rates.
        """
        if self._plan is not None and self._singles is not None:
            self._plan = replace(self._plan, rates=rates)
            self._singles.change_rates(self._plan)

    def learn(self, learner: Learner, x: object, y: object, task: object) -> bool:
        """Learn from one example, or return False with nothing changed.

        Args:
            learner: The learner.
            x: An input.
            y: Its label, or target.
            task: Its task id, or None.
        """
        if not self._is_current(learner) and not self._begin(learner):
            return False
        singles, plan, number = self._singles, self._plan, self._at
        stored, goal = self._signature.stored(x), self._goal(y)
        if task is not None and (type(task) is not int or task < 0):
            return False
        if singles is None or plan is None or stored is None or goal is None:
            return False
        row, slot, task_id = plan.incoming + number, int(plan.slots[number]), -1 if task is None else task
        self._write(row, stored, goal, task_id)
        if not singles.learn(number, self._signature.taken(stored), goal):
            self.forget()
            return False
        with HeldBack(), HeldBack():  # not even a second Ctrl-C comes in between
            singles.give()
            if slot >= 0:
                self._write(slot, stored, goal, task_id)
            if learner.own_memory is not None:
                learner.own_memory.keep(plan.slots[number : number + 1], np.array([task_id]))
                self._version = learner.own_memory.version
            learner.seen += 1
            self._at += 1
            self._next = learner.seen
        return True

    def output(self, learner: Learner, x: object) -> tuple[Tensor, bool] | None:
        """Compute the model's outputs for a single input, as a batch of one; None if the usual way is the right one.

        Args:
            learner: The learner.
            x: An input like those that were learned, or a batch of one.
        """
        if learner.table is not self._known:
            self._known, self._form = learner.table, _form(learner)
        form = self._form
        stored = form.stored(x, batch=True) if form is not None else None
        if form is None or stored is None or (found := learner.chosen_engine.output(form.taken(stored))) is None:
            return None
        return torch.from_numpy(found), stored.ndim == form.dimensions

    def _write(self, row: int, stored: Numbers, goal: int | Numbers, task: int) -> None:
        """Write an example into a row of the table."""
        self._writes[row] += 1
        self._xs[row], self._ys[row], self._tasks[row] = stored, goal, task

    def _is_current(self, learner: Learner) -> bool:
        """Return whether the plan goes on with the next example of the learner as it is now."""
        memory = learner.own_memory
        return (
            self._plan is not None
            and self._at < self._count
            and learner.seen == self._next
            and learner.table is self._table
            and learner.chosen_engine is self._engine
            and learner.objective is self._objective
            and (memory is None or memory.version == self._version)
        )

    def _begin(self, learner: Learner) -> bool:
        """Draw for the next examples: for twice as many as before, as long as they come one by one."""
        table, engine, objective = learner.table, learner.chosen_engine, learner.objective
        if table is None or learner.output_shape() is None or self._refused == (id(table), id(engine), id(objective)):
            return False
        went_on = self._singles is not None and self._at == self._count and learner.seen == self._next
        same = self._singles is not None and self._table is table and self._engine is engine
        self._plan = None  # until everything fits the new one, whatever happens
        if not (same and self._objective is objective):
            self._singles = self._prepare(learner, table, engine, objective)
        count = min(AHEAD, learner.piece_size(), 2 * self._count if went_on else 1)
        plan = learner.plan_ahead(count, table) if self._singles is not None else None
        if plan is None or self._singles is None or not self._singles.follow(plan):
            self.forget()
            self._refused = (id(table), id(engine), id(objective))
            return False
        self._version = learner.own_memory.version if learner.own_memory is not None else 0
        self._count, self._at, self._next = count, 0, plan.first
        self._plan = plan
        return True

    def _prepare(self, learner: Learner, table: Table, engine: Engine, objective: Objective) -> Singles | None:
        """Note the form of the examples, and return what learns them; None if they need more than a table in RAM."""
        columns = [column for column in table.columns.values() if isinstance(column, TensorColumn)]
        needs_tasks = learner.uses_tasks or isinstance(learner.model, TaskModule)
        memory = learner.own_memory
        if table.names != ("x", "y", "task") or len(columns) < 3 or needs_tasks:
            return None
        if (memory is not None and memory.task_count is not None) or not all(one.values.is_cpu for one in columns):
            return None
        singles, signature = engine.singles(table, objective), _form(learner)
        if singles is None or signature is None:
            return None
        self._table, self._engine, self._objective, self._writes = table, engine, objective, table.writes
        self._xs, self._ys, self._tasks = (column.values.numpy() for column in columns)
        self._signature, self._classes = signature, 0 if learner.regression else (learner.output_shape() or (0,))[0]
        return singles

    def _goal(self, y: object) -> int | Numbers | None:
        """Return a label or target as the table holds it; None for what must be looked at more closely."""
        if self._classes:
            if type(y) is Tensor and y.dim() == 0 and y.dtype == torch.int64:
                y = y.item()
            elif isinstance(y, np.integer):
                y = int(y)
            return y if type(y) is int and 0 <= y < self._classes else None
        if type(y) is Tensor and y.dtype.is_floating_point and y.is_cpu and not y.requires_grad:
            y = y.numpy()
        if (type(y) is float or (type(y) is list and len(y) == 1)) and self._ys.dtype == np.float32:
            y = np.array(y)
        if not isinstance(y, np.ndarray | np.floating) or y.dtype.kind != "f" or y.size != self._ys[0].size:
            return None
        goal = np.asarray(y, self._ys.dtype).reshape(self._ys.shape[1:])
        return goal if np.isfinite(goal).all() else None


def _form(learner: Learner) -> Signature | None:
    """Return what single inputs look like; None if none was learned yet, or they are not in RAM as NumPy has them."""
    column = learner.table.columns.get("x") if learner.table is not None else None
    if not isinstance(column, TensorColumn) or not column.values.is_cpu or column.values.dtype == torch.bfloat16:
        return None
    return Signature(column.values, learner.weights)
