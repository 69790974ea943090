"""The kernel for MLPs with its arrays: weights, rows and moments go in, compiled code runs, and they come out again."""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metareplay._core.draws import Ints
from metareplay._core.imports import import_whole
from metareplay._core.plan import Plan
from metareplay._core.table import Table
from metareplay._core.weights import Weights
from metareplay.engines.chain import Chain
from metareplay.engines.cpu.compiling import compiling
from metareplay.engines.cpu.factors import Factors
from metareplay.engines.cpu.losses import Reals, loss_number, shares_of
from metareplay.engines.cpu.optimizers import CompiledOptimizer
from metareplay.engines.cpu.row_copies import RowCopies
from metareplay.engines.cpu.singles import CpuSingles, Prepared
from metareplay.engines.inputs import as_input, scale_of
from metareplay.engines.objective import QuadraticPenalty, Supervised


class Groups(NamedTuple):
    """Say which gradients are wanted: for each g, that over rows[ends[g] : ends[g + 1]], weighted by their shares."""

    chain: Chain
    table: Table
    rows: Ints
    shares: Reals
    ends: Ints
    objective: Supervised


@final
class MlpKernel:
    """Run the kernel on its arrays. The weights are copied in before a plan and out after it.

    Args:
        weights: The module's weights.
        widths: Inputs, hidden widths and outputs of the chain.
    """

    def __init__(self, weights: Weights, widths: tuple[int, ...]) -> None:
        # here, because numba takes long to import
        import_whole("metareplay.engines.cpu.groups", "metareplay.engines.cpu.single_rows")
        import_whole("metareplay.engines.cpu.optimizer_steps", "metareplay.engines.cpu.factor_steps")
        from metareplay._core.numba_private import entry_point
        from metareplay.engines.cpu import factor_steps, groups, layout, optimizer_steps, simd, single_rows, steps

        self._code, self._groups, self._packed, self._eight = steps, groups, layout, simd.EIGHT
        self._single, self._entry_point = single_rows, entry_point
        self._by_optimizer, self._by_factors = optimizer_steps, factor_steps
        self.module_weights = weights
        self._dtype = weights.theta.numpy().dtype
        self._number: Any = self._dtype.type
        self._widths = widths
        self._net = layout.make_net(widths, self._dtype)
        self._room = layout.make_batch(self._net, 1)  # for plans whose batches are one step
        self._group = layout.make_group(self._net)
        self._turned = layout.make_turned(0, widths[0], self._dtype)
        self._moments: Any = None  # room for an optimizer's moments, made when there is one
        self._found = layout.aligned((0, self._net.rows.shape[1]), self._dtype)  # gradients of groups
        self._factors: Factors | None = None  # of the rows that were asked for last
        self._table = layout.sparse_rows(0, widths[0], self._dtype)
        self._rows = RowCopies(widths[-1], self._dtype)
        self._ran: set[tuple[bool, ...]] = set()
        self._penalty: tuple[QuadraticPenalty | None, Any] = (None, None)  # the last penalty, and its rows
        self._places: NDArray[np.int64] | None = None
        self._output_code: Callable[..., Any] | None = None  # machine code for a single input
        self._one_row = layout.sparse_rows(1, widths[0], self._dtype)

    def run(
        self,
        chain: Chain,
        plan: Plan,
        table: Table,
        objective: Supervised,
        optimizer: CompiledOptimizer | None,
        careful: bool,
    ) -> int:
        """Learn a plan's examples, starting from the module's weights; return how many stayed finite."""
        self._pack(table, plan.rows)
        if optimizer is not None:
            return self._run_by(optimizer, chain, plan, table, objective, careful)
        self._make_room(plan)
        self._take_weights(chain)
        with compiling(self._ran, plan.together, objective.penalty is not None):
            return self._code.run_plan(
                self._net,
                self._table,
                self._targets(objective),
                self._steps(plan, table, objective.by_task),
                self._rates(plan, objective.clip),
                self._penalty_rows(chain, objective.penalty),
                self._room if plan.together else None,
                careful,
            )

    def _run_by(
        self, optimizer: CompiledOptimizer, chain: Chain, plan: Plan, table: Table, objective: Supervised, careful: bool
    ) -> int:
        """Learn a plan's examples by the steps of an optimizer."""
        self._make_turned(-(-int(np.diff(plan.ends).max(initial=1)) // self._packed.GROUP))
        self._take_weights(chain)
        self._take_moments(chain, optimizer)
        no_pull = self._packed.PullRows(self._number(0), self._net.rows, self._net.rows)
        with compiling(self._ran, True, True, True):
            return self._by_optimizer.run_plan(
                self._net,
                self._table,
                table.writes,
                self._targets(objective),
                self._steps(plan, table, objective.by_task),
                self._rates(plan, objective.clip),
                self._penalty_rows(chain, objective.penalty) or no_pull,
                plan.together,
                self._by_optimizer.Rule(**optimizer.rule()),
                self._moments,
                self._turned,
                self._group,
                careful,
            )

    def _take_moments(self, chain: Chain, optimizer: CompiledOptimizer) -> None:
        """Copy an optimizer's moments into the kernel; those that it does not have yet are 0."""
        if self._moments is None:
            self._moments = self._by_optimizer.make_moments(self._net)
        self._moments.steps[0] = optimizer.steps()
        rooms = (self._moments.first, self._moments.second)
        for room, vector in zip(rooms, optimizer.moments(), strict=True):
            if vector is None:
                room.fill(0)
            else:
                self._packed.put_weights(self._net, room, _parts(chain, vector))

    def give_moments(self, chain: Chain, optimizer: CompiledOptimizer) -> None:
        """Copy the kernel's moments into the optimizer's own."""
        found = optimizer.room(int(self._moments.steps[0]))
        for room, vector in zip((self._moments.first, self._moments.second), found, strict=True):
            if vector is not None:
                self._packed.get_weights(self._net, room, _parts(chain, vector))

    def _make_room(self, plan: Plan) -> None:
        if plan.together and (size := int(np.diff(plan.ends).max())) > self._room.size:
            self._room = self._packed.make_batch(self._net, size)

    def singles(self, chain: Chain, table: Table, objective: Supervised, lock: threading.RLock) -> CpuSingles:
        """Return what runs plans for this table and objective one example at a time."""

        def rates_of(plan: Plan) -> Any:
            return self._rates(plan, objective.clip)

        def prepare(plan: Plan) -> Prepared | None:
            if plan.together and objective.clip is not None:  # such steps are torch's
                return None
            self._pack(table, plan.rows[plan.rows < table.capacity])
            self._make_room(plan)
            targets, steps = self._targets(objective), self._steps(plan, table, by_task=False)
            rows, ends = (np.require(numbers, np.int64, ["C", "A", "W"]) for numbers in (steps.rows, steps.ends))
            steps = steps._replace(rows=rows, ends=ends, s=int(steps.s), incoming=int(steps.incoming))
            room, copies = self._room if plan.together else None, self._rows
            goals = copies.values if objective.regression else copies.labels
            return Prepared(self._net, self._table, targets, steps, rates_of(plan), room, goals, copies.copied)

        places = self._places_of(chain)
        return CpuSingles(self.module_weights, table, places, prepare, rates_of, lambda: self._net, self.clear, lock)

    def output(self, chain: Chain, x: NDArray[Any]) -> NDArray[Any] | None:
        """Compute the outputs for one input in the dtype of the weights; None if the input is not finite."""
        theta = self.module_weights.theta.numpy()
        if not self._single.take_weights(self._net.rows.reshape(-1), self._places_of(chain), theta, x):
            return None
        found = np.empty((1, self._widths[-1]), self._dtype)
        arguments = self._net, x, 1.0, self._one_row, found
        if self._output_code is None:
            with compiling(self._ran):
                self._code.outputs(*arguments)
            self._output_code = self._entry_point(self._code.outputs, *arguments) or self._code.outputs
        else:
            self._output_code(*arguments)
        return found

    def _places_of(self, chain: Chain) -> NDArray[np.int64]:
        """Return where each weight is in the net's rows, counted through them, by copying in the weights' numbers."""
        if self._places is None:
            numbers = torch.arange(1.0, self.module_weights.theta.numel() + 1, dtype=torch.float64)
            rows = np.zeros(self._net.rows.shape)
            parts = [(weight.numpy(), bias.numpy()) for weight, bias in chain.split(numbers)]
            self._packed.put_weights(self._net, rows, parts)
            found = np.flatnonzero(rows)
            self._places = found[np.argsort(rows.reshape(-1)[found])]
        return self._places

    def gradients(self, asked: Groups) -> Any:
        """Compute the gradient of each group.

        Returns:
            One gradient per row, laid out like the net's rows.
        """
        self._pack(asked.table, asked.rows)
        self._make_turned(int((-(-np.diff(asked.ends) // self._packed.GROUP)).sum()))
        count = len(asked.ends) - 1
        found = self._make_found(count)
        self._take_weights(asked.chain)
        with compiling(self._ran):
            if not self._groups.group_gradients(
                self._net,
                self._table,
                asked.table.writes,
                self._targets(asked.objective),
                asked.rows,
                asked.shares.astype(self._dtype),
                asked.ends,
                self._turned,
                self._group,
                found,
            ):
                found = np.full_like(found, np.nan)  # not in the room itself, parts of which must stay zero
                self.clear()
        return found.reshape(count, -1)

    def factors(self, asked: Groups) -> tuple[Factors, Tensor] | None:
        """Compute the inputs and deltas of all rows, and the inner product of every pair of groups' gradients.

        Returns:
            None if a loss is not finite, or if that is not precise.
        """
        self._pack(asked.table, asked.rows)
        self._make_turned(1 + -(-len(asked.rows) // self._packed.GROUP))
        if self._factors is None or len(self._factors) != len(asked.rows):
            self._factors = Factors(len(asked.rows), self._widths, self._group.inputs.shape[1], self._dtype)
        self._take_weights(asked.chain)
        with compiling(self._ran, False, False, True):
            self._factors.take(asked.rows, asked.table.writes[asked.rows], self._table)
            if not self._by_factors.find_factors(
                self._net,
                self._table,
                asked.table.writes,
                self._targets(asked.objective),
                asked.rows,
                asked.shares.astype(self._dtype),
                self._turned,
                self._group,
                self._factors.inputs,
                self._factors.deltas,
            ):
                self.clear()
                return None
            products = self._factors.products(self._net, asked.ends)
        return None if products is None else (self._factors, products)

    def descend_by(self, factors: Factors, rates: NDArray[Any], chain: Chain) -> None:
        """Subtract the sum of the gradients of all rows at these rates from the module's weights."""
        whole, found, rates = np.ones(1, self._dtype), self._make_found(1), rates.astype(self._dtype)
        if not np.isfinite(rates).all():
            self.module_weights.theta.fill_(torch.nan)
            return
        self._by_factors.descend_by_factors(
            self._net, rates, self._turned, self._group, factors.inputs, factors.deltas, found, whole
        )
        self.give_weights(chain)

    def _make_found(self, count: int) -> Any:
        """Return room for this many gradients."""
        size = len(self._net.rows)
        if len(self._found) < count * size:
            self._found = self._packed.aligned((count * size, self._found.shape[1]), self._dtype)
        return self._found[: count * size]

    def outputs(self, chain: Chain, xs: Tensor) -> Tensor:
        """Compute the outputs for these inputs."""
        self._take_weights(chain)
        found = np.empty((len(xs), self._widths[-1]), self._dtype)
        one_row = self._packed.sparse_rows(1, self._widths[0], self._dtype)
        with compiling(self._ran):
            self._code.outputs(self._net, xs.contiguous().numpy(), scale_of(xs), one_row, found)
        return torch.from_numpy(found)

    def inner_products(self, vectors: Any) -> Tensor:
        """Compute the inner product of every pair of rows."""
        count, eight = len(vectors), self._eight  # vectors that are multiplied at a time
        eights = np.minimum(np.arange(-(-count // eight) * eight), count - 1).astype(np.uint32).reshape(-1, eight)
        products, block = np.zeros((count, eights.size)), self._packed.aligned((2, eight), self._dtype)
        self._groups.inner_products(vectors, eights, block, products)
        return torch.from_numpy(products[:, :count])

    def descend(self, vectors: Any, rates: Tensor, chain: Chain) -> None:
        """Subtract the sum of the rows at these rates from the module's weights, which the net still has."""
        if not torch.isfinite(rates).all():
            self.module_weights.theta.fill_(torch.nan)
            return
        self._groups.descend(self._net, vectors, rates.numpy().astype(self._dtype))
        self.give_weights(chain)

    def flat(self, vector: Any, chain: Chain) -> Tensor:
        """Convert a vector that is laid out like the net's rows to the order of the module's parameters."""
        found = torch.empty_like(self.module_weights.theta)
        self._packed.get_weights(self._net, vector.reshape(self._net.rows.shape), _parts(chain, found))
        return found

    def _make_turned(self, blocks: int) -> None:
        """Make room for this many blocks of inputs sorted by pixel, unless there is enough."""
        if len(self._turned.counts) < blocks:
            self._turned = self._packed.make_turned(blocks, self._widths[0], self._dtype)

    def _take_weights(self, chain: Chain) -> None:
        self._packed.put_weights(self._net, self._net.rows, _arrays(chain))

    def give_weights(self, chain: Chain) -> None:
        """Copy the net's weights into the module's."""
        self._packed.get_weights(self._net, self._net.rows, _arrays(chain))

    def clear(self) -> None:
        """Start with an empty net, so that nothing that is not finite is left in it."""
        self._net = self._packed.make_net(self._widths, self._dtype)

    def _pack(self, table: Table, rows: Ints) -> None:
        """Bring the packed copies of these rows up to date."""
        if len(self._rows) < len(table):
            self._table = self._packed.sparse_rows(len(table), self._widths[0], self._dtype)
            self._rows.make_room(len(table))
        if not self._rows.are_of(table):
            self._factors = None
            self._turned.counts[:] = 0
            self._rows.turn_to(table)
        stale = self._rows.stale(table, rows)
        if len(stale):
            xs = table.column("x").gather(torch.from_numpy(stale))
            self._packed.pack(self._table, as_input(xs, self.module_weights).flatten(1).numpy(), stale)
            self._rows.take(table, stale)

    def _steps(self, plan: Plan, table: Table, by_task: bool) -> Any:
        shares = shares_of(table, plan.rows, plan.ends, by_task) if plan.together else np.ones(len(plan.rows))
        return self._packed.Steps(plan.rows, plan.ends, shares.astype(self._dtype), plan.s, plan.incoming)

    def _rates(self, plan: Plan, clip: float | None) -> Any:
        rates, number = plan.rates, self._number
        within, across = rates.within, rates.across
        if plan.s == 1 and not plan.together:  # one batch: its two Reptile lines are one
            within, across = within * across, 1.0
        memory, current, most = number(rates.memory), number(rates.current), number(np.inf if clip is None else clip)
        return self._packed.KernelRates(memory, current, number(within), number(across), most)

    def _targets(self, objective: Supervised) -> Any:
        return self._packed.Targets(loss_number(objective), self._rows.labels, self._rows.values)

    def _penalty_rows(self, chain: Chain, penalty: QuadraticPenalty | None) -> Any:
        """Lay out a penalty like the net's rows, once per penalty."""
        if penalty is self._penalty[0]:
            return self._penalty[1]
        if penalty is None:
            return None
        rows = [self._packed.aligned(self._net.rows.shape, self._dtype) for _ in range(2)]
        for part, vector in zip(rows, (penalty.importance, penalty.anchor), strict=True):
            self._packed.put_weights(self._net, part, _parts(chain, vector))
        self._penalty = penalty, self._packed.PullRows(self._number(2 * penalty.strength), *rows)
        return self._penalty[1]


def _arrays(chain: Chain) -> list[tuple[Any, Any]]:
    """Return the layers' own (W, b), which are views of the module's weights."""
    return [(layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in chain.layers]


def _parts(chain: Chain, vector: Tensor) -> list[tuple[Any, Any]]:
    """Return the layers' (W, b) in a flat vector of the size of all weights, as views of it."""
    return [(weight.numpy(), bias.numpy()) for weight, bias in chain.split(vector)]
