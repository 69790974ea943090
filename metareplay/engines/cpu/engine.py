"""The compiled engine: MLPs on the CPU, a whole plan in one call that needs neither Python nor the GIL."""

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
from metareplay.engines.accelerated import AcceleratedEngine
from metareplay.engines.chain import Chain
from metareplay.engines.cpu.compiling import compiling
from metareplay.engines.cpu.factors import Factors, pays
from metareplay.engines.cpu.losses import Reals, loss_number, loss_obstacle, shares_of, target_obstacle
from metareplay.engines.cpu.optimizers import CompiledOptimizer
from metareplay.engines.cpu.singles import CpuSingles, Prepared
from metareplay.engines.cpu.trial import OTHER_GRADIENTS, agrees, rows_to_try
from metareplay.engines.engine import Gradients, Outcome
from metareplay.engines.inputs import as_input, scale_of
from metareplay.engines.objective import Objective, QuadraticPenalty, Supervised
from metareplay.engines.torch_engine import TorchEngine, in_range
from metareplay.networks import TaskModule

WORTHWHILE = 100  # inputs; for fewer it does not pay to copy the weights into the kernel


@final
class CpuEngine(AcceleratedEngine):
    """Execute plans by the kernel in `steps.py`: the same rows in the same order, the same weights up to rounding.

    Args:
        weights: The model's weights, on the CPU.
        chains: The layers that the examples of each task go through, or a single chain for all.
        plain: The engine that takes over where the kernel does not serve.
        traced: Whether the chain was found by watching a call, so that the first rows must show that it is right.
    """

    def __init__(self, weights: Weights, chains: list[Chain], plain: TorchEngine, traced: bool = False) -> None:
        super().__init__(plain)
        self.weights, self.chains, self._traced, self._untried = weights, chains, traced, traced
        self.name = "cpu"
        self._stepping = TorchEngine(weights, plain.draws, plain.optimizer, self._differentiate)
        self._lock = threading.RLock()  # a prediction in another thread waits for the example being learned
        self._kernels: dict[tuple[int, ...], _Kernel] = {}  # by the widths of the layers

    def execute(self, plan: Plan, table: Table, objective: Objective) -> Outcome:
        """Learn at full speed first; if an example failed, start again and go carefully, up to that example.

        The steps of optimizers that the kernel does not know, and clipped SGD steps on whole batches, are torch's, with
        gradients from the kernel.
        """
        with self._lock:
            sgd, optimizer = self._plain.optimizer is None, CompiledOptimizer.of(self._plain.optimizer, self.weights)
            by_batch = plan.together and objective.clip is not None if sgd else optimizer is None
            penalised = isinstance(objective, Supervised) and objective.penalty is not None
            fits = self._fits(table, objective, vectors=penalised or by_batch or not sgd)
            if not fits or not isinstance(objective, Supervised):
                return self._plain.execute(plan, table, objective)
            if by_batch:
                return self._stepping.execute(plan, table, objective)
            undo = self.remember()
            try:
                return self._execute(plan, table, objective, optimizer)
            except BaseException as error:  # Ctrl-C, or no room for the kernel's arrays
                undo()
                self._kernels.clear()
                return Outcome(0, error)

    def _execute(self, plan: Plan, table: Table, objective: Supervised, optimizer: CompiledOptimizer | None) -> Outcome:
        chain = self._chain(table, plan.rows)
        kernel = self._kernel(chain)
        learned = kernel.run(chain, plan, table, objective, optimizer, careful=False)
        if learned < len(plan):
            kernel.clear()
            learned = kernel.run(chain, plan, table, objective, optimizer, careful=True)
        kernel.give_weights(chain)
        if optimizer is not None and learned:
            kernel.give_moments(chain, optimizer)
        return Outcome(learned)

    def singles(self, table: Table, objective: Objective) -> CpuSingles | None:
        """Return the kernel for single examples, where one chain serves all tasks and a step needs only its batch."""
        if not isinstance(objective, Supervised) or objective.by_task or objective.penalty is not None:
            return None
        if self._apart or self._plain.optimizer is not None:
            return None
        with self._lock:
            if self.name != "cpu" or not self._fits(table, objective, vectors=False) or self._untried:
                return None
            return self._kernel(self.chains[0]).singles(self.chains[0], table, objective, self._lock)

    def output(self, x: NDArray[Any]) -> NDArray[Any] | None:
        """Run the kernel forward. A traced chain is left to torch: a loaded one has not been tried yet."""
        chain = self.chains[0]
        if self._apart or self._traced or self.name != "cpu" or x.shape[1] != chain.layers[0].in_features:
            return None
        with self._lock:
            return self._kernel(chain).output(chain, x)

    def gradients(self, table: Table, groups: list[Ints], objective: Objective, example: int) -> Gradients:
        """Return gradients by the kernel; of many small groups only what is asked for is computed."""
        with self._lock:
            rows = np.concatenate(groups)
            if not self._fits(table, objective, vectors=True) or not isinstance(objective, Supervised):
                return self._plain.gradients(table, groups, objective, example)
            ends = np.cumsum([0, *(len(group) for group in groups)])
            chain, shares = self._chain(table, rows), shares_of(table, rows, ends, by_task=False)
            kernel, asked = self._kernel(chain), _Groups(chain, table, rows, shares, ends, objective)
            if pays(len(rows), len(groups), chain.widths):
                return _FactoredGradients(kernel, asked, self._lock)
            return _PackedGradients(kernel, asked, self._lock)

    def _differentiate(self, table: Table, rows: Ints, objective: Objective) -> None:
        """Put the gradient of a batch's loss into weights.gradient."""
        if not isinstance(objective, Supervised):
            raise TypeError(type(objective))  # `execute` has looked
        ends, chain = np.array([0, len(rows)]), self._chain(table, rows)
        shares, kernel = shares_of(table, rows, ends, objective.by_task), self._kernel(chain)
        found = kernel.gradients(_Groups(chain, table, rows, shares, ends, objective))
        self.weights.gradient.copy_(kernel.flat(found[0], chain))

    def outputs(self, xs: Tensor, tasks: Tensor) -> Tensor:
        """Predict by the kernel, for inputs that are vectors to the first layer and of one task's part.

        A traced chain is left to torch, tried or not: a learner that was just loaded has not tried it yet.
        """
        with self._lock:
            if self._traced:
                return self._plain.outputs(xs, tasks)
            chain = self.chains[int(tasks[0]) if self._apart and len(tasks) else 0]
            dtypes = (torch.uint8, self.weights.dtype)
            alike = len({chain.widths[-1] for chain in self.chains}) == 1  # else the module pads what a task lacks
            one_part = not self._apart or (alike and len(tasks.unique()) == 1)
            if not one_part or not chain.takes(xs.shape[1:]) or xs.dtype not in dtypes or len(xs) < WORTHWHILE:
                return self._plain.outputs(xs, tasks)
            return self._kernel(chain).outputs(chain, xs.flatten(1))

    def _kernel(self, chain: Chain) -> "_Kernel":
        self.weights.check()
        widths = chain.widths
        if widths not in self._kernels:
            self._kernels[widths] = _Kernel(self.weights, widths)
        return self._kernels[widths]

    def _chain(self, table: Table, rows: Ints) -> Chain:
        return self.chains[int(table.tasks(rows[:1])[0]) if self._apart else 0]

    def _fits(self, table: Table, objective: Objective, vectors: bool) -> bool:
        """Return whether the kernel can do this; if not, torch does the arithmetic from now on.

        Inputs must be vectors to the first layer. Where tasks have parts of their own, plans must be of one task, as
        those of learners without a memory are, and vectors of the size of all weights have no place. None of this
        depends on what was drawn: pieces of any size, and a learner that was loaded, give the same weights.
        """
        if self.name != "cpu":
            return False
        missing = loss_obstacle(objective) or target_obstacle(objective, table.shape("y"), self.chains[0].widths[-1])
        if self._apart and (vectors or table.capacity > 0):
            missing = "one part for all tasks, or a learner without a memory and with plain SGD"
        elif not self.chains[0].takes(table.shape("x")):
            missing = "inputs that are vectors to the first layer"
        elif self._untried and isinstance(objective, Supervised) and len(rows_to_try(table)):
            self._untried = False
            missing = missing or (None if agrees(self, self._plain, table, objective) else OTHER_GRADIENTS)
        if missing is not None:
            self.name = self._plain.name
            self.reason = self._plain.reason = f"the compiled engine needs {missing}"
        return missing is None

    @property
    def _apart(self) -> bool:
        """Whether tasks have parts of their own."""
        return isinstance(self.weights.module, TaskModule)


@final
class _Kernel:
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
        self._labels = np.zeros(0, np.int64)  # the target of each row: a label, or real values
        self._values = np.zeros((0, widths[-1]), self._dtype)
        self._copied = np.zeros(0, np.int64)  # Table.writes of each row when it was packed
        self._ran: set[tuple[bool, ...]] = set()
        self._packed_from: Table | None = None
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
            room, goals = self._room if plan.together else None, self._values if objective.regression else self._labels
            return Prepared(self._net, self._table, targets, steps, rates_of(plan), room, goals, self._copied)

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

    def gradients(self, asked: "_Groups") -> Any:
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

    def factors(self, asked: "_Groups") -> tuple[Factors, Tensor] | None:
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
        """Return room for so many gradients."""
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
        count, eight = len(vectors), self._eight  # so many vectors are multiplied at a time
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
        """Make room for so many blocks of inputs sorted by pixel, unless there is enough."""
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
        if len(self._copied) < len(table):
            self._table = self._packed.sparse_rows(len(table), self._widths[0], self._dtype)
            self._labels, self._copied = np.zeros(len(table), np.int64), np.zeros(len(table), np.int64)
            self._values = np.zeros((len(table), self._widths[-1]), self._dtype)
        if table is not self._packed_from:
            self._factors = None
            self._copied[:], self._turned.counts[:], self._packed_from = 0, 0, table
        stale = np.unique(rows[self._copied[rows] != table.writes[rows]])
        if len(stale):
            which = torch.from_numpy(stale)
            dense = as_input(table.column("x").gather(which), self.module_weights).flatten(1).numpy()
            self._packed.pack(self._table, dense, stale)
            ys = table.column("y").gather(which).cpu()
            if ys.is_floating_point():
                self._values[stale] = ys.numpy()
            else:
                self._labels[stale] = ys.numpy()
            self._copied[stale] = table.writes[stale]

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
        return self._packed.Targets(loss_number(objective), self._labels, self._values)

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


class _Groups(NamedTuple):
    """Say which gradients are wanted: for each g, that over rows[ends[g] : ends[g + 1]], weighted by their shares."""

    chain: Chain
    table: Table
    rows: Ints
    shares: Reals
    ends: Ints
    objective: Supervised


@final
class _PackedGradients(Gradients):
    """Hold gradients as rows of one matrix, each laid out as the kernel's weights."""

    def __init__(self, kernel: _Kernel, asked: _Groups, lock: threading.RLock) -> None:
        self._kernel, self._chain, self._lock = kernel, asked.chain, lock
        self._rows = kernel.gradients(asked)

    def each(self) -> Tensor:
        """Return the gradients in the order of the module's parameters."""
        return torch.stack([self._kernel.flat(row, self._chain) for row in self._rows])

    def products(self) -> Tensor:
        """Return G G', computed in float64 where float32 does not have the range."""
        products = self._kernel.inner_products(self._rows)
        if in_range(products) or self._rows.dtype == np.float64:
            return products
        rows = self.each().double()
        return rows @ rows.T

    def descend(self, rates: Tensor) -> None:
        """Take the step theta <- theta - G' rates."""
        with self._lock:
            self._kernel.descend(self._rows, rates, self._chain)


@final
class _FactoredGradients(Gradients):
    """Hold gradients as the inputs and deltas of rows, as long as nobody asks for the gradients themselves."""

    def __init__(self, kernel: _Kernel, asked: _Groups, lock: threading.RLock) -> None:
        self._kernel, self._asked, self._lock = kernel, asked, lock
        self._factors: Factors | None = None
        self._matrix: _PackedGradients | None = None

    def each(self) -> Tensor:
        """Return the gradients in the order of the module's parameters."""
        return self._as_matrix().each()

    def products(self) -> Tensor:
        """Return G G', computed from the gradients themselves where factors are not precise."""
        with self._lock:
            found = self._kernel.factors(self._asked) if self._matrix is None else None
            if found is None:
                return self._as_matrix().products()
            self._factors, products = found
            return products

    def descend(self, rates: Tensor) -> None:
        """Take the step theta <- theta - G' rates."""
        with self._lock:
            if self._factors is None:
                self._as_matrix().descend(rates)
            else:
                by_row = np.repeat(rates.numpy(), np.diff(self._asked.ends))
                self._kernel.descend_by(self._factors, by_row, self._asked.chain)

    def _as_matrix(self) -> _PackedGradients:
        """Compute the gradients, which takes the place of the factors."""
        with self._lock:
            if self._matrix is None:
                self._factors, self._matrix = None, _PackedGradients(self._kernel, self._asked, self._lock)
            return self._matrix


def _arrays(chain: Chain) -> list[tuple[Any, Any]]:
    """Return the layers' own (W, b), which are views of the module's weights."""
    return [(layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in chain.layers]


def _parts(chain: Chain, vector: Tensor) -> list[tuple[Any, Any]]:
    """Return the layers' (W, b) in a flat vector of the size of all weights, as views of it."""
    return [(weight.numpy(), bias.numpy()) for weight, bias in chain.split(vector)]
