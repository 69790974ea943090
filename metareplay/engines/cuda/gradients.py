"""Gradients of groups of rows by graphs, replayed with new rows: one graph for a group, or for many of one size."""

from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from typing import Final, final

import numpy as np
import torch
from torch import Tensor

from metareplay._core.draws import Ints
from metareplay._core.table import Table
from metareplay.engines.cuda.batches import Problem
from metareplay.engines.cuda.graphs import Recorder, Work
from metareplay.engines.cuda.rewrite import streamlined
from metareplay.engines.cuda.together import Together
from metareplay.engines.inputs import gather
from metareplay.engines.objective import Objective
from metareplay.engines.torch_engine import Randomness, TorchEngine

OFTEN: Final = 3  # groups of a size, or pieces of a shape, before a graph is made for them
ALIKE: Final = 1e-3  # how far a replay may differ from torch, as a share of the gradient's length

Piece = Ints  # the rows of groups that one graph computes: (number of groups, size of a group)


@final
@dataclass(frozen=True, eq=False)
class _Graph:
    """Hold a graph and the tensors that it works on.

    Args:
        rows_and_tasks: The rows of all groups and their tasks: (2, rows). Rows of different groups alternate.
        gradients: The gradient of each group as a row.
        work: The graph.
    """

    rows_and_tasks: Tensor
    gradients: Tensor
    work: Work


@final
class GroupGradients:
    """Compute the gradients of groups of one table's rows.

    Several groups of one size that follow each other are computed in one pass over the network, where `Together`
    supports it; any other group has a graph of its own.

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
        self._together = Together.of(plain.weights, objective, table)
        self._joint = self._together is not None  # whether groups may be computed together
        self._seen: Counter[int] = Counter()  # groups by size
        self._pieces_seen: Counter[tuple[int, int]] = Counter()  # by the number of groups and their size
        self._graphs: dict[tuple[int, int], _Graph] = {}  # likewise
        self.fails = False  # whether graphs cannot be used

    def serves(self, table: Table, objective: Objective) -> bool:
        """Return whether these are the gradients of this table and objective."""
        return table is self._table and objective is self._objective

    @property
    def has_graphs(self) -> bool:
        """Whether some gradients are computed by graphs."""
        return bool(self._graphs) and not self.fails

    @property
    def has_joint_graphs(self) -> bool:
        """Whether some gradients are computed for several groups at a time."""
        return self.has_graphs and self._joint and any(count > 1 for count, _ in self._graphs)

    def each(self, groups: list[Ints]) -> Tensor | None:
        """Return the gradient of each group as a row; None if torch has to compute them.

        Args:
            groups: The rows of each group.
        """
        self._seen.update(len(rows) for rows in groups)
        if self.fails or any(self._seen[len(rows)] < OFTEN for rows in groups):
            return None
        pieces = self._cut(groups)
        for piece in pieces:
            if self._shape(piece) not in self._graphs:
                self._capture(piece[0])
                if self._shape(piece) not in self._graphs:
                    return None
        rows = np.concatenate([self._in_order(piece) for piece in pieces])
        both = self._rows_and_tasks(rows)
        found = self._plain.weights.theta.new_empty((len(groups), len(self._plain.weights.theta)))
        at = number = 0
        for piece in pieces:
            graph, count = self._graphs[self._shape(piece)], len(piece)
            length = graph.rows_and_tasks.shape[1]
            graph.rows_and_tasks.copy_(both[:, at : at + length])
            graph.work()
            found[number : number + count].copy_(graph.gradients[:count])
            at, number = at + length, number + count
        return found

    def _cut(self, groups: list[Ints]) -> list[Piece]:
        """Cut the groups into pieces of as many as can be computed together now, in their order."""
        found = list[Piece]()
        for size, run in groupby(groups, key=len):
            rows = np.stack(list(run))
            most = self._together.most(size) if self._together is not None else 1
            for part in (rows[at : at + most] for at in range(0, len(rows), most)):
                found += [part] if len(part) == 1 or self._joins(part) else list(part[:, np.newaxis])
        return found

    def _joins(self, piece: Piece) -> bool:
        """Return whether there is a graph for such pieces, after making one if such a piece has come often enough."""
        if self._together is None or not self._joint:
            return False
        if not self._together.takes(self._table.tasks(piece.reshape(-1)).view(piece.shape).T):
            return False
        shape = self._shape(piece)
        self._pieces_seen[shape] += 1
        if shape not in self._graphs and self._pieces_seen[shape] >= OFTEN:
            self._capture_jointly(piece, self._together)
        return shape in self._graphs

    def _capture_jointly(self, piece: Piece, together: Together) -> None:
        """Make the graph for pieces of this shape; if that fails, never compute several groups together again."""
        weights = self._plain.weights
        both = self._rows_and_tasks(self._in_order(piece))
        count, _ = self._shape(piece)
        gradients = weights.theta.new_zeros((count, len(weights.theta)))

        def work() -> None:
            gradients.copy_(together.gradients(gather(self._table, both[0], weights, both[1]), count))

        try:
            expected = torch.stack([self._by_torch(rows) for rows in piece])
            if not bool(torch.isfinite(expected).all()):
                return  # this piece says nothing
            work()
            graph = self._recorder.record(work)
            gradients.zero_()
            graph()
            if _alike(gradients[: len(piece)], expected):
                self._graphs[count, piece.shape[1]] = _Graph(both, gradients, graph)
                return
        except Exception:  # also for want of memory: single groups need less
            pass
        self._joint = False

    def _shape(self, piece: Piece) -> tuple[int, int]:
        """Return how many groups the graph for a piece has room for, and their size."""
        count, size = piece.shape
        return (self._together.room(count, size) if self._together is not None and count > 1 else 1), size

    def _in_order(self, piece: Piece) -> Ints:
        """Return the rows of a piece as its graph takes them, with the first group repeated where there is room."""
        count, _ = self._shape(piece)
        return np.concatenate([piece, piece[:1].repeat(count - len(piece), axis=0)]).T.reshape(-1)

    def _rows_and_tasks(self, rows: Ints) -> Tensor:
        """Return rows and their tasks on the device."""
        return torch.stack([torch.from_numpy(rows), self._table.tasks(rows)]).to(self._plain.weights.device)

    def _by_torch(self, rows: Ints) -> Tensor:
        """Return the gradient of a group, computed with the module as it was given."""
        weights = self._plain.weights
        loss = self._objective.loss(weights.module, gather(self._table, torch.from_numpy(rows), weights))
        given = [p for p in weights.module.parameters() if p.requires_grad]
        found = torch.autograd.grad(loss, given, allow_unused=True, materialize_grads=True)
        return torch.cat([one.reshape(-1) for one in found])

    def _capture(self, rows: Ints) -> None:
        """Make the graph for groups of this size, unless it fails; wait for another group if this one says nothing."""
        weights = self._plain.weights
        self.fails = next(weights.module.buffers(), None) is not None  # statistics, which one more pass would move
        if self.fails:
            return
        both = self._rows_and_tasks(rows)
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
                self.fails = not _alike(gradient, expected)
            if not self.fails:
                self._graphs[1, len(rows)] = _Graph(both, gradient[None], graph)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception:  # whatever a module does that cannot be captured
            self.fails = True


def _alike(found: Tensor, expected: Tensor) -> bool:
    """Return whether gradients are those that are expected, up to rounding."""
    return bool((found - expected).norm() <= ALIKE * expected.norm())
