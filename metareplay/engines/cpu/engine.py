"""The compiled engine: MLPs on the CPU, a whole plan in one call that needs neither Python nor the GIL."""

import threading
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metareplay._core.draws import Ints
from metareplay._core.plan import Plan
from metareplay._core.table import Table
from metareplay._core.weights import Weights
from metareplay.engines.accelerated import AcceleratedEngine
from metareplay.engines.chain import Chain
from metareplay.engines.cpu.factors import pays
from metareplay.engines.cpu.gradients import FactoredGradients, PackedGradients
from metareplay.engines.cpu.losses import loss_obstacle, shares_of, target_obstacle
from metareplay.engines.cpu.mlp_kernel import Groups, MlpKernel
from metareplay.engines.cpu.optimizers import CompiledOptimizer
from metareplay.engines.cpu.singles import CpuSingles
from metareplay.engines.cpu.trial import OTHER_GRADIENTS, agrees, rows_to_try
from metareplay.engines.engine import Gradients, Outcome
from metareplay.engines.objective import Objective, Supervised
from metareplay.engines.torch_engine import TorchEngine
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
        self._kernels: dict[tuple[int, ...], MlpKernel] = {}  # by the widths of the layers

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
            kernel, asked = self._kernel(chain), Groups(chain, table, rows, shares, ends, objective)
            if pays(len(rows), len(groups), chain.widths):
                return FactoredGradients(kernel, asked, self._lock)
            return PackedGradients(kernel, asked, self._lock)

    def _differentiate(self, table: Table, rows: Ints, objective: Objective) -> None:
        """Put the gradient of a batch's loss into weights.gradient."""
        if not isinstance(objective, Supervised):
            raise TypeError(type(objective))  # `execute` has looked
        ends, chain = np.array([0, len(rows)]), self._chain(table, rows)
        shares, kernel = shares_of(table, rows, ends, objective.by_task), self._kernel(chain)
        found = kernel.gradients(Groups(chain, table, rows, shares, ends, objective))
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

    def _kernel(self, chain: Chain) -> MlpKernel:
        self.weights.check()
        widths = chain.widths
        if widths not in self._kernels:
            self._kernels[widths] = MlpKernel(self.weights, widths)
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
