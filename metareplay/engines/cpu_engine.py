"""The compiled engine: MLPs on the CPU, a whole plan in one call that needs neither Python nor the GIL."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from metareplay.draws import Ints
from metareplay.engines.chain import Chain, LossKind
from metareplay.engines.engine import Engine, Outcome, Pull
from metareplay.engines.inputs import as_input
from metareplay.engines.torch_engine import TorchEngine
from metareplay.plan import Plan
from metareplay.table import Table
from metareplay.weights import Weights

logger = logging.getLogger("metareplay")


@final
class CpuEngine(Engine):
    """Plans by the kernel in `kernel.py`: the same rows in the same order, the same weights up to rounding."""

    def __init__(
        self, weights: Weights, chain: Chain, loss: LossKind, plain: TorchEngine, clip: float | None = None
    ) -> None:
        """`plain` takes over if inputs turn out not to be vectors to the first layer."""
        self.weights, self.chain, self.loss, self.clip = weights, chain, loss, clip
        self.name = "cpu"
        self._plain = plain
        self._kernel: _Kernel | None = None

    def execute(self, plan: Plan, table: Table, pull: Pull | None = None) -> Outcome:
        """At full speed first; if an example failed, again from the start, carefully, up to that example."""
        if not self._fits(table):
            return self._plain.execute(plan, table, pull)
        undo = self.remember()
        try:
            return self._execute(plan, table, pull)
        except BaseException as error:  # Ctrl-C, or no room for the kernel's arrays
            undo()
            self._kernel = None
            return Outcome(0, error)

    def _execute(self, plan: Plan, table: Table, pull: Pull | None) -> Outcome:
        self.weights.check()
        if self._kernel is None:
            self._kernel = _Kernel(self.weights, self.chain, self.loss, self.clip)
        learned = self._kernel.run(plan, table, pull, careful=False)
        if learned < len(plan):
            self._kernel.clear()
            learned = self._kernel.run(plan, table, pull, careful=True)
        self.weights.theta.copy_(self._kernel.weights())
        return Outcome(learned)

    def gradients(self, table: Table, groups: list[Ints], example: int) -> Tensor:
        """One pass over all the groups together."""
        if not self._fits(table):
            return self._plain.gradients(table, groups, example)
        self.weights.check()
        rows = torch.from_numpy(np.concatenate(groups))
        inputs = as_input(table.xs[rows], self.weights)
        return self.chain.gradients(inputs, table.ys[rows], self.loss, [len(group) for group in groups])

    def _fits(self, table: Table) -> bool:
        """Whether the inputs are vectors to the first layer; if not, torch does the arithmetic from now on."""
        if not self.chain.takes(table.xs.shape[1:]):
            self.name = self._plain.name
        return self.name == "cpu"

    def healthy(self) -> bool:
        """The weights are finite."""
        return bool(torch.isfinite(self.weights.theta).all())

    def remember(self) -> Callable[[], None]:
        """A copy of the weights."""
        theta = self.weights.theta.clone()

        def undo() -> None:
            self.weights.theta.copy_(theta)

        return undo

    def state(self) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Nothing."""
        del state


class _Kernel:
    """The kernel with its arrays. The weights are copied in before a plan and out after it."""

    def __init__(self, weights: Weights, chain: Chain, loss: LossKind, clip: float | None) -> None:
        _notice_changes()
        from metareplay.engines import kernel, packed  # here, because numba takes long to import

        self._code, self._packed = kernel, packed
        self._module_weights = weights
        self._theta = weights.theta.numpy()
        self._number: Any = self._theta.dtype.type
        self._loss = {
            LossKind.CROSS_ENTROPY: packed.CROSS_ENTROPY,
            LossKind.SQUARED_ERROR: packed.SQUARED_ERROR,
            LossKind.HUBER: packed.HUBER,
        }[loss]
        self._clip = self._number(np.inf if clip is None else clip)
        self._widths = chain.widths
        self._net = packed.make_net(self._widths, self._theta.dtype)
        self._room = packed.make_batch(self._net, 1)  # for plans whose batches are one step
        self._table = packed.sparse_rows(0, self._widths[0], self._theta.dtype)
        self._copied = np.zeros(0, np.int64)  # Table.writes of each row when it was packed
        self._ran: set[tuple[bool, bool]] = set()
        self._packed_from: Table | None = None
        self._pulled: tuple[Pull | None, Any] = (None, None)  # the last pull, and the same as rows

    def run(self, plan: Plan, table: Table, pull: Pull | None, careful: bool) -> int:
        """Learn a plan's examples from the module's weights on; how many stayed finite."""
        self._pack(table, plan)
        if plan.together and (size := int(np.diff(plan.ends).max())) > self._room.size:
            self._room = self._packed.make_batch(self._net, size)
        self._packed.put_weights(self._net, self._net.rows, self._theta)
        with _compiling() if self._new(plan, pull) else nullcontext():
            return self._code.run_plan(
                self._net,
                self._table,
                self._targets(table),
                self._steps(plan, table),
                self._rates(plan),
                self._pull(pull),
                self._room if plan.together else None,
                careful,
            )

    def _new(self, plan: Plan, pull: Pull | None) -> bool:
        """Whether this kind of plan has not been run before, so that it may have to be compiled."""
        kind = (plan.together, pull is not None)
        new = kind not in self._ran
        self._ran.add(kind)
        return new

    def clear(self) -> None:
        """Forget everything, also what is not finite."""
        self._net = self._packed.make_net(self._widths, self._theta.dtype)

    def weights(self) -> Tensor:
        """The net's weights as a flat vector in the module's order."""
        theta = np.empty_like(self._theta)
        self._packed.get_weights(self._net, self._net.rows, theta)
        return torch.from_numpy(theta)

    def _pack(self, table: Table, plan: Plan) -> None:
        """Bring the packed rows that the plan visits up to date."""
        if len(self._copied) < len(table.writes):
            self._table = self._packed.sparse_rows(len(table.writes), self._widths[0], self._theta.dtype)
            self._copied = np.zeros(len(table.writes), np.int64)
        if table is not self._packed_from:
            self._copied[:], self._packed_from = 0, table
        stale = np.unique(plan.rows[self._copied[plan.rows] != table.writes[plan.rows]])
        if len(stale):
            dense = as_input(table.xs[stale], self._module_weights).flatten(1).numpy()
            self._packed.pack(self._table, dense, stale)
            self._copied[stale] = table.writes[stale]

    def _steps(self, plan: Plan, table: Table) -> Any:
        shares = _shares(plan, table) if plan.together else np.zeros(0)
        return self._packed.Steps(plan.rows, plan.ends, shares.astype(self._theta.dtype), plan.s, plan.incoming)

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
            return self._packed.Targets(self._loss, ys, np.zeros((0, 0), self._theta.dtype))
        return self._packed.Targets(self._loss, np.zeros(0, np.int64), ys)

    def _pull(self, pull: Pull | None) -> Any:
        if pull is self._pulled[0]:
            return self._pulled[1]
        if pull is None:
            return None
        rows = [self._packed.aligned(self._net.rows.shape, self._theta.dtype) for _ in range(2)]
        for part, vector in zip(rows, (pull.importance, pull.anchor), strict=True):
            self._packed.put_weights(self._net, part, vector.numpy())
        self._pulled = pull, self._packed.PullRows(self._number(2 * pull.strength), *rows)
        return self._pulled[1]


def _shares(plan: Plan, table: Table) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The weight of each row's loss: 1 / its batch's size, or 1 / the number in the batch that have its task."""
    sizes = np.diff(plan.ends)
    batch = np.repeat(np.arange(len(sizes)), sizes)
    if not plan.balanced:
        return 1 / sizes[batch]
    tasks = table.tasks.numpy()[plan.rows]
    pairs = batch * (tasks.max() + 2) + tasks + 1
    _, which, counts = np.unique(pairs, return_inverse=True, return_counts=True)
    return 1 / counts[which]


def _notice_changes() -> None:
    """numba's cache looks only at the file of the function that is called: let it see changes in the others."""
    folder = Path(__file__).parent
    kernel = folder / "kernel.py"
    if kernel.stat().st_mtime < max((folder / name).stat().st_mtime for name in ("packed.py", "vector.py")):
        with suppress(OSError):  # a read-only installation does not change
            kernel.touch()


@contextmanager
def _compiling() -> Iterator[None]:
    """Say so if the first call takes long: it compiles the kernel for this CPU, once."""
    remark = "compiling the CPU engine for this machine and this kind of learner, once (up to 20 seconds)"
    timer = threading.Timer(2.0, logger.warning, [remark])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
