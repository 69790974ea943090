"""Gradients of groups of rows by graphs: one graph for each size of group, replayed with new rows."""

from collections import Counter
from typing import Final, final

import numpy as np
import torch
from torch import Tensor

from metareplay._core.draws import Ints
from metareplay._core.table import Table
from metareplay.engines.cuda.batches import Problem
from metareplay.engines.cuda.graphs import Recorder, Work
from metareplay.engines.cuda.rewrite import streamlined
from metareplay.engines.inputs import gather
from metareplay.engines.objective import Objective
from metareplay.engines.torch_engine import Randomness, TorchEngine

OFTEN: Final = 3  # groups of a size before a graph is made for it
ALIKE: Final = 1e-3  # how far a replay may differ from torch, as a share of the gradient's length


@final
class GroupGradients:
    """Compute the gradients of groups of one table's rows.

    Args:
        plain: The torch engine of the same learner.
        recorder: What makes graphs.
        table: The examples by row.
        objective: What the loss is.
    """

    def __init__(self, plain: TorchEngine, recorder: Recorder, table: Table, objective: Objective) -> None:
        self._plain, self._recorder, self._table, self._objective = plain, recorder, table, objective
        self._problem = Problem(streamlined(plain.weights.module), objective)
        self._parameters = self._problem.parameters(plain.weights)
        self._seen: Counter[int] = Counter()
        self._graphs: dict[int, tuple[Tensor, Tensor, Work]] = {}  # by size: rows and tasks, gradient, work
        self.fails = False  # whether graphs cannot be used

    def serves(self, table: Table, objective: Objective) -> bool:
        """Return whether these are the gradients of this table and objective."""
        return table is self._table and objective is self._objective

    def each(self, groups: list[Ints]) -> Tensor | None:
        """Return the gradient of each group as a row; None if torch has to compute them.

        Args:
            groups: The rows of each group.
        """
        self._seen.update(len(rows) for rows in groups)
        for size in {len(rows) for rows in groups}:
            if self._seen[size] < OFTEN or self.fails:
                return None
            if size not in self._graphs:
                self._capture(next(rows for rows in groups if len(rows) == size))
                if size not in self._graphs:
                    return None
        rows = np.concatenate(groups)
        both = torch.stack([torch.from_numpy(rows), self._table.tasks(rows)]).to(self._plain.weights.device)
        found = self._plain.weights.theta.new_empty((len(groups), len(self._plain.weights.theta)))
        at = 0
        for number, group in enumerate(groups):
            slot, gradient, work = self._graphs[len(group)]
            slot.copy_(both[:, at : at + len(group)])
            work()
            found[number].copy_(gradient)
            at += len(group)
        return found

    def _by_torch(self, rows: Ints) -> Tensor:
        """Return the gradient of a group, computed with the module as it was given."""
        weights = self._plain.weights
        loss = self._objective.loss(weights.module, gather(self._table, torch.from_numpy(rows), weights))
        given = [p for p in weights.module.parameters() if p.requires_grad]
        found = torch.autograd.grad(loss, given, allow_unused=True, materialize_grads=True)
        return torch.cat([one.reshape(-1) for one in found])

    @property
    def has_graphs(self) -> bool:
        """Whether some gradients are computed by graphs."""
        return bool(self._graphs) and not self.fails

    def _capture(self, rows: Ints) -> None:
        """Make the graph for groups of this size, unless it fails; wait for another group if this one says nothing."""
        weights = self._plain.weights
        self.fails = next(weights.module.buffers(), None) is not None  # statistics, which one more pass would move
        if self.fails:
            return
        both = torch.stack([torch.from_numpy(rows), self._table.tasks(rows)]).to(weights.device)
        gradient = torch.zeros_like(weights.theta)

        def work() -> None:
            loss = self._objective.loss(self._problem.model, gather(self._table, both[0], weights, both[1]))
            found = torch.autograd.grad(loss, self._parameters, allow_unused=True, materialize_grads=True)
            flat = torch.cat([one.reshape(-1) for one in found])
            gradient.copy_(torch.where(torch.isfinite(loss), flat, torch.nan))

        try:
            randomness = Randomness(weights.device)
            before = randomness.state()
            expected = self._by_torch(rows)
            if not bool(torch.isfinite(expected).all()):
                return
            work()
            self.fails = not torch.equal(before, randomness.state())  # the module draws random numbers
            if not self.fails:
                graph = self._recorder.record(work)
                gradient.zero_()
                graph()
                self.fails = not bool((gradient - expected).norm() <= ALIKE * expected.norm())
            if not self.fails:
                self._graphs[len(rows)] = both, gradient, graph
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception:  # whatever a module does that cannot be captured
            self.fails = True
