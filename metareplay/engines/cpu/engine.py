"""The compiled engine: MLPs on the CPU, a whole plan in one call that needs neither Python nor the GIL."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metareplay._core.draws import Ints
from metareplay._core.plan import Plan
from metareplay._core.table import Table
from metareplay._core.weights import Weights
from metareplay.engines.chain import Chain, LossKind
from metareplay.engines.engine import Engine, Gradients, Outcome, Pull
from metareplay.engines.inputs import as_input, scale_of
from metareplay.engines.torch_engine import TorchEngine, in_range
from metareplay.networks import TaskModule

Reals = NDArray[np.float64]
logger = logging.getLogger("metareplay")
MANY = 100  # inputs: for fewer the kernel is not worth copying the weights


@final
class CpuEngine(Engine):
    """Plans by the kernel in `kernel.py`: the same rows in the same order, the same weights up to rounding."""

    def __init__(
        self,
        weights: Weights,
        chains: list[Chain],
        loss: LossKind,
        plain: TorchEngine,
        clip: float | None = None,
        by_batch: bool = False,
    ) -> None:
        """`chains`: one for each task, or a single one for all.

        `plain` makes the steps of an optimizer, with gradients from here, and takes over where chains do not serve.
        """
        self.weights, self.chains, self.loss, self.clip = weights, chains, loss, clip
        self.name = "cpu"
        self._plain = plain
        self._by_batch = by_batch
        self._lock = threading.RLock()  # a prediction in another thread waits for the example being learned
        self._kernels: dict[tuple[int, ...], _Kernel] = {}  # by the widths of the layers

    def execute(self, plan: Plan, table: Table, pull: Pull | None = None) -> Outcome:
        """At full speed first; if an example failed, again from the start, carefully, up to that example."""
        with self._lock:
            if not self._fits(table, vectors=pull is not None or self._by_batch):
                return self._plain.execute(plan, table, pull)
            if self._by_batch:
                return self._plain.execute(plan, table, pull, self._differentiate)
            undo = self.remember()
            try:
                return self._execute(plan, table, pull)
            except BaseException as error:  # Ctrl-C, or no room for the kernel's arrays
                undo()
                self._kernels.clear()
                return Outcome(0, error)

    def _execute(self, plan: Plan, table: Table, pull: Pull | None) -> Outcome:
        chain = self._chain(table, plan.rows)
        kernel = self._kernel(chain)
        learned = kernel.run(chain, plan, table, pull, careful=False)
        if learned < len(plan):
            kernel.clear()
            learned = kernel.run(chain, plan, table, pull, careful=True)
        kernel.give_weights(chain)
        return Outcome(learned)

    def gradients(self, table: Table, groups: list[Ints], example: int) -> Gradients:
        """One pass over all the groups."""
        with self._lock:
            rows = np.concatenate(groups)
            if not self._fits(table, vectors=True):
                return self._plain.gradients(table, groups, example)
            sizes = np.array([len(group) for group in groups])
            return self._gradients(table, rows, np.repeat(1 / sizes, sizes), np.cumsum([0, *sizes]))

    def _differentiate(self, table: Table, rows: Ints, balanced: bool) -> None:
        """Put the gradient of a batch's loss into weights.gradient."""
        found = self._gradients(table, rows, _shares(table, rows, balanced), np.array([0, len(rows)]))
        self.weights.gradient.copy_(found.each()[0])

    def _gradients(self, table: Table, rows: Ints, shares: Reals, ends: Ints) -> "_PackedGradients":
        chain = self._chain(table, rows)
        kernel = self._kernel(chain)
        return _PackedGradients(kernel, chain, kernel.gradients(chain, table, rows, shares, ends), self._lock)

    def outputs(self, xs: Tensor, tasks: Tensor) -> Tensor:
        """By the kernel, for inputs that are vectors to the first layer and of one task's part."""
        with self._lock:
            chain = self.chains[int(tasks[0]) if self._apart and len(tasks) else 0]
            dtypes = (torch.uint8, self.weights.dtype)
            alike = len({chain.widths[-1] for chain in self.chains}) == 1  # else the module pads what a task has not
            one_part = not self._apart or (alike and len(tasks.unique()) == 1)
            if not one_part or not chain.takes(xs.shape[1:]) or xs.dtype not in dtypes or len(xs) < MANY:
                return self._plain.outputs(xs, tasks)
            return self._kernel(chain).outputs(chain, xs.flatten(1))

    def _kernel(self, chain: Chain) -> "_Kernel":
        self.weights.check()
        if chain.widths not in self._kernels:
            self._kernels[chain.widths] = _Kernel(self.weights, chain.widths, self.loss, self.clip)
        return self._kernels[chain.widths]

    def _chain(self, table: Table, rows: Ints) -> Chain:
        return self.chains[int(table.tasks[rows[0]]) if self._apart else 0]

    def _fits(self, table: Table, vectors: bool) -> bool:
        """Whether the kernel can do this; if not, torch does the arithmetic from now on.

        Inputs must be vectors to the first layer. Where tasks have parts of their own, plans must be of one task, as
        those of learners without a memory are, and vectors of the size of all weights have no place. Neither depends on
        what was drawn: pieces of any size, and a learner that was loaded, give the same weights.
        """
        one_part = not self._apart or (not vectors and table.capacity == 0)
        if not one_part or not self.chains[0].takes(table.xs.shape[1:]):
            self.name = self._plain.name
        return self.name == "cpu"

    @property
    def _apart(self) -> bool:
        """Whether tasks have parts of their own."""
        return isinstance(self.weights.module, TaskModule)

    def healthy(self) -> bool:
        """Weights and moments are finite."""
        return self._plain.healthy()

    def remember(self) -> Callable[[], None]:
        """Copies of the weights and moments."""
        return self._plain.remember()

    def state(self) -> dict[str, Tensor]:
        """An optimizer's moments."""
        return self._plain.state()

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue with saved moments."""
        self._plain.restore(state)


class _Kernel:
    """The kernel with its arrays. The weights are copied in before a plan and out after it."""

    def __init__(self, weights: Weights, widths: tuple[int, ...], loss: LossKind, clip: float | None) -> None:
        from metareplay.engines.cpu import groups, layout, steps  # here, because numba takes long to import

        self._code, self._groups, self._packed = steps, groups, layout
        self.module_weights = weights
        self._dtype = weights.theta.numpy().dtype
        self._number: Any = self._dtype.type
        self._loss = {
            LossKind.CROSS_ENTROPY: layout.CROSS_ENTROPY,
            LossKind.SQUARED_ERROR: layout.SQUARED_ERROR,
            LossKind.HUBER: layout.HUBER,
        }[loss]
        self._clip = self._number(np.inf if clip is None else clip)
        self._widths = widths
        self._net = layout.make_net(widths, self._dtype)
        self._room = layout.make_batch(self._net, 1)  # for plans whose batches are one step
        self._group = layout.make_group(self._net)
        self._turned = layout.make_turned(0, widths[0], self._dtype)
        self._found = layout.aligned((0, self._net.rows.shape[1]), self._dtype)  # gradients of groups
        self._table = layout.sparse_rows(0, widths[0], self._dtype)
        self._copied = np.zeros(0, np.int64)  # Table.writes of each row when it was packed
        self._ran: set[tuple[bool, ...]] = set()
        self._packed_from: Table | None = None
        self._pulled: tuple[Pull | None, Any] = (None, None)  # the last pull, and the same as rows

    def run(self, chain: Chain, plan: Plan, table: Table, pull: Pull | None, careful: bool) -> int:
        """Learn a plan's examples from the module's weights on; how many stayed finite."""
        self._pack(table, plan.rows)
        if plan.together and (size := int(np.diff(plan.ends).max())) > self._room.size:
            self._room = self._packed.make_batch(self._net, size)
        self._take_weights(chain)
        with self._compiling(plan.together, pull is not None):
            return self._code.run_plan(
                self._net,
                self._table,
                self._targets(table),
                self._steps(plan, table),
                self._rates(plan),
                self._pull(chain, pull),
                self._room if plan.together else None,
                careful,
            )

    def gradients(self, chain: Chain, table: Table, rows: Ints, shares: Reals, ends: Ints) -> Any:
        """For each g the gradient over rows[ends[g] : ends[g + 1]], each by its share, laid out as the net's rows."""
        self._pack(table, rows)
        blocks = int((-(-np.diff(ends) // self._packed.GROUP)).sum())
        if len(self._turned.counts) < blocks:
            self._turned = self._packed.make_turned(blocks, self._widths[0], self._dtype)
        count, size = len(ends) - 1, len(self._net.rows)
        if len(self._found) < count * size:
            self._found = self._packed.aligned((count * size, self._found.shape[1]), self._dtype)
        self._take_weights(chain)
        found = self._found[: count * size]
        with self._compiling():
            if not self._groups.group_gradients(
                self._net,
                self._table,
                table.writes,
                self._targets(table),
                rows,
                shares.astype(self._dtype),
                ends,
                self._turned,
                self._group,
                found,
            ):
                found = np.full_like(found, np.nan)  # not in the room itself, parts of which are only ever zero
                self.clear()
        return found.reshape(count, -1)

    def outputs(self, chain: Chain, xs: Tensor) -> Tensor:
        """The outputs for these inputs."""
        self._take_weights(chain)
        found = np.empty((len(xs), self._widths[-1]), self._dtype)
        one_row = self._packed.sparse_rows(1, self._widths[0], self._dtype)
        with self._compiling():
            self._code.outputs(self._net, xs.contiguous().numpy(), scale_of(xs), one_row, found)
        return torch.from_numpy(found)

    def inner_products(self, vectors: Any) -> Tensor:
        """The inner product of every pair of rows."""
        count = len(vectors)
        eights = np.minimum(np.arange(-(-count // 8) * 8), count - 1).astype(np.uint32).reshape(-1, 8)
        products, block = np.zeros((count, eights.size)), self._packed.aligned((2, 8), self._dtype)
        self._groups.inner_products(vectors, eights, block, products)
        return torch.from_numpy(products[:, :count])

    def descend(self, vectors: Any, rates: Tensor, chain: Chain) -> None:
        """The module's weights, which the net still has, less the sum of the rows at these rates."""
        if not torch.isfinite(rates).all():
            self.module_weights.theta.fill_(torch.nan)
            return
        self._groups.descend(self._net, vectors, rates.numpy().astype(self._dtype))
        self.give_weights(chain)

    def flat(self, vector: Any, chain: Chain) -> Tensor:
        """What is laid out as the net's rows, in the module's order."""
        found = torch.empty_like(self.module_weights.theta)
        parts = [(weight.numpy(), bias.numpy()) for weight, bias in chain.split(found)]
        self._packed.get_weights(self._net, vector.reshape(self._net.rows.shape), parts)
        return found

    def _take_weights(self, chain: Chain) -> None:
        self._packed.put_weights(self._net, self._net.rows, _arrays(chain))

    def give_weights(self, chain: Chain) -> None:
        """Copy the net's weights into the module's."""
        self._packed.get_weights(self._net, self._net.rows, _arrays(chain))

    @contextmanager
    def _compiling(self, *kind: bool) -> Iterator[None]:
        """Say so if this kind of work takes long at its first time: it is compiled for this CPU, once."""
        remark = "compiling the CPU engine for this machine and this kind of learner, once (up to 20 seconds)"
        timer = threading.Timer(2.0, logger.warning, [remark])
        timer.daemon = True
        if kind not in self._ran:
            timer.start()
        self._ran.add(kind)
        try:
            yield
        finally:
            timer.cancel()

    def clear(self) -> None:
        """Forget everything, also what is not finite."""
        self._net = self._packed.make_net(self._widths, self._dtype)

    def _pack(self, table: Table, rows: Ints) -> None:
        """Bring the packed copies of these rows up to date."""
        if len(self._copied) < len(table.writes):
            self._table = self._packed.sparse_rows(len(table.writes), self._widths[0], self._dtype)
            self._copied = np.zeros(len(table.writes), np.int64)
        if table is not self._packed_from:
            self._copied[:], self._turned.counts[:], self._packed_from = 0, 0, table
        stale = np.unique(rows[self._copied[rows] != table.writes[rows]])
        if len(stale):
            dense = as_input(table.xs[stale], self.module_weights).flatten(1).numpy()
            self._packed.pack(self._table, dense, stale)
            self._copied[stale] = table.writes[stale]

    def _steps(self, plan: Plan, table: Table) -> Any:
        shares = np.zeros(0)
        if plan.together:
            batches = pairwise(plan.ends.tolist())
            shares = np.concatenate([_shares(table, plan.rows[start:end], plan.balanced) for start, end in batches])
        return self._packed.Steps(plan.rows, plan.ends, shares.astype(self._dtype), plan.s, plan.incoming)

    def _rates(self, plan: Plan) -> Any:
        rates, number = plan.rates, self._number
        within, across = rates.within, rates.across
        if plan.s == 1 and not plan.together:  # one batch: its two Reptile lines are one
            within, across = within * across, 1.0
        memory, current = number(rates.memory), number(rates.current)
        return self._packed.Rates(memory, current, number(within), number(across), self._clip)

    def _targets(self, table: Table) -> Any:
        ys = table.ys.numpy()
        if self._loss == self._packed.CROSS_ENTROPY:
            return self._packed.Targets(self._loss, ys, np.zeros((0, 0), self._dtype))
        return self._packed.Targets(self._loss, np.zeros(0, np.int64), ys)

    def _pull(self, chain: Chain, pull: Pull | None) -> Any:
        if pull is self._pulled[0]:
            return self._pulled[1]
        if pull is None:
            return None
        rows = [self._packed.aligned(self._net.rows.shape, self._dtype) for _ in range(2)]
        for part, vector in zip(rows, (pull.importance, pull.anchor), strict=True):
            parts = [(weight.numpy(), bias.numpy()) for weight, bias in chain.split(vector)]
            self._packed.put_weights(self._net, part, parts)
        self._pulled = pull, self._packed.PullRows(self._number(2 * pull.strength), *rows)
        return self._pulled[1]


def _shares(table: Table, rows: Ints, balanced: bool) -> Reals:
    """The weight of each row's loss in a batch: 1 / its size, or 1 / the number of rows that have its task."""
    if not balanced:
        return np.full(len(rows), 1 / len(rows))
    _, which, counts = np.unique(table.tasks.numpy()[rows], return_inverse=True, return_counts=True)
    return 1 / counts[which]


@final
class _PackedGradients(Gradients):
    """Gradients as rows of one matrix, each laid out as the kernel's weights."""

    def __init__(self, kernel: _Kernel, chain: Chain, rows: Any, lock: threading.RLock) -> None:
        self._kernel, self._chain, self._rows, self._lock = kernel, chain, rows, lock

    def each(self) -> Tensor:
        """In the module's order."""
        return torch.stack([self._kernel.flat(row, self._chain) for row in self._rows])

    def products(self) -> Tensor:
        """G G'; by way of float64 where float32 has not the range."""
        products = self._kernel.inner_products(self._rows)
        if in_range(products) or self._rows.dtype == np.float64:
            return products
        rows = self.each().double()
        return rows @ rows.T

    def descend(self, rates: Tensor) -> None:
        """theta <- theta - G' rates."""
        with self._lock:
            self._kernel.descend(self._rows, rates, self._chain)


def _arrays(chain: Chain) -> list[tuple[Any, Any]]:
    """The layers' (W, b), the module's own."""
    return [(layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in chain.layers]
