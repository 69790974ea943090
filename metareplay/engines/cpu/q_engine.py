"""The compiled engine for deep Q-learning on the CPU, for MLPs and for networks with convolutions, without the GIL."""

import threading
from typing import final

import numpy as np
import torch
from torch import Tensor

from metareplay._core.draws import Ints
from metareplay._core.interrupts import HeldBack
from metareplay._core.plan import Plan
from metareplay._core.table import Table, TensorColumn
from metareplay._core.weights import Weights
from metareplay.engines.accelerated import AcceleratedEngine
from metareplay.engines.chain import Chain, LossKind
from metareplay.engines.cpu.q_kernel import Form, QKernel
from metareplay.engines.engine import Gradients, Outcome
from metareplay.engines.inputs import as_input
from metareplay.engines.objective import Objective
from metareplay.engines.q_shape import Shape, parts_of
from metareplay.engines.temporal_difference import TemporalDifference
from metareplay.engines.torch_engine import TorchEngine
from metareplay.networks import TaskModule

FEW = 100  # vectors; torch predicts more of them faster, many at a time
ADAM = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0, "amsgrad": False, "maximize": False}  # torch's defaults


@final
class CpuQEngine(AcceleratedEngine):
    """Execute plans of deep Q-learning by the kernel in `q_steps.py`: the same weights as torch's up to rounding.

    Args:
        weights: The model's weights, on the CPU, in float32.
        plain: The engine that takes over where the kernel does not serve. It keeps Adam's moments.

    Attributes:
        chain: The model's layers if it is an MLP; None if it has convolutions.
    """

    def __init__(self, weights: Weights, plain: TorchEngine) -> None:
        super().__init__(plain)
        self.weights, self.chain = weights, Chain.of(weights.module)
        self.name = "cpu"
        self.lock = threading.RLock()  # a prediction in another thread waits for the frame being learned
        self._kernel: QKernel | None = None
        self._forms = dict[torch.Size, Form | None]()  # by the shape of inputs

    @staticmethod
    def obstacle(weights: Weights, objective: Objective, optimizer: torch.optim.Optimizer | None) -> str | None:
        """Say what the kernel would need that a model, objective or optimizer does not have; None if it can learn.

        Args:
            weights: The model's weights.
            objective: What steps will minimise.
            optimizer: What takes the steps; None for plain SGD.
        """
        layers = Chain.of(weights.module) or parts_of(weights.module)
        if layers is None or isinstance(weights.module, TaskModule):
            return "a chain of Linear and ReLU layers, or of Conv2d, ReLU, Flatten and Linear layers, all trained"
        if weights.device.type != "cpu" or weights.dtype != torch.float32:
            return "float32 weights on the CPU"
        if not isinstance(objective, TemporalDifference) or LossKind.of(objective.criterion) is not LossKind.HUBER:
            return "Huber's loss"
        if objective.target.theta.shape != weights.theta.shape:
            return "a target network of the model's shape"
        if optimizer is not None and not _is_plain_adam(optimizer):
            return "SGD, or Adam with torch's defaults"
        return None

    def misfit(self, table: Table, objective: Objective) -> str | None:
        """Say what the kernel would need that a table or objective does not have; None if it can learn from them.

        Args:
            table: The transitions by row.
            objective: What steps minimise.
        """
        if not isinstance(objective, TemporalDifference) or LossKind.of(objective.criterion) is not LossKind.HUBER:
            return "Huber's loss"
        if self.chain is None:
            first = table.column("x").gather(torch.zeros(1, dtype=torch.int64))
            fits = self._form(first.shape[1:]) is not None and _is_picture(first)
            return None if fits else "pictures of bytes or real numbers that fit the convolutions"
        columns = [table.column(name) for name in ("x", "next_x", "reward", "action", "over")]
        values = [column.values for column in columns if isinstance(column, TensorColumn)]
        if len(values) < len(columns) or any(value.device.type != "cpu" for value in values):
            return "a memory in RAM"
        dtypes = {value.dtype for value in values[:3]}
        vectors = self.chain.takes(table.shape("x")) and dtypes == {torch.float32}
        return None if vectors else "float32 vectors as inputs"

    def execute(self, plan: Plan, table: Table, objective: Objective) -> Outcome:
        """Learn by the kernel; from the first table on that it cannot read, torch does the arithmetic."""
        with self.lock:
            missing = self.misfit(table, objective) if self.name == "cpu" else None
            if missing is not None:
                self.hand_back()
                self.name = f"{self._plain.name} (the compiled engine needs {missing})"
            if self.name != "cpu" or not isinstance(objective, TemporalDifference):
                return self._plain.execute(plan, table, objective)
            learned, stopped = 0, None
            with HeldBack():  # nothing in here can hang, so Ctrl-C may wait until the plan is done
                try:
                    self.weights.check()
                    kernel = self._kernel_for(table.shape("x"), int(np.diff(plan.ends).max(initial=1)))
                    kernel.take(objective)
                    try:
                        kernel.run(plan, table, objective)
                    finally:
                        learned = kernel.give()
                except Exception as error:  # a table that cannot be read, or no room for the kernel's arrays
                    stopped = error
            return Outcome(learned, stopped)

    def hand_back(self) -> None:
        """Copy Adam's moments out of the kernel if it has newer ones."""
        with self.lock:
            if self._kernel is not None:
                self._kernel.give_moments()

    def kernel(self, batch: int = 1) -> QKernel:
        """Return the kernel for an MLP with its arrays; hold `lock` while using it.

        Args:
            batch: The largest number of transitions in a batch.
        """
        assert self.chain is not None, "the caller has looked"
        return self._kernel_for(torch.Size(self.chain.widths[:1]), batch)

    def _kernel_for(self, shape: torch.Size, batch: int = 1) -> QKernel:
        """Return the kernel for inputs of this shape."""
        form = self._form(shape)
        assert form is not None, "the caller has looked"
        if self._kernel is None or self._kernel.batch < batch or self._kernel.form != form:
            self.hand_back()
            self._kernel = QKernel(self.weights, form, self._plain.optimizer, batch)
        return self._kernel

    def _form(self, shape: torch.Size) -> Form | None:
        """Return how the kernel sees the network if inputs have this shape; None if they do not fit."""
        if self.chain is not None:
            return Form(self.chain.widths) if self.chain.takes(shape) else None
        if shape not in self._forms:
            found = Shape.of(self.weights.module, shape) if len(shape) == 3 else None
            self._forms[shape] = Form((), found) if found is not None else None
        return self._forms[shape]

    def gradients(self, table: Table, groups: list[Ints], objective: Objective, example: int) -> Gradients:
        """Leave gradients to torch."""
        return self._plain.gradients(table, groups, objective, example)

    def outputs(self, xs: Tensor, tasks: Tensor) -> Tensor:
        """Predict by the kernel, but let torch predict many vectors, and inputs that the kernel does not take."""
        form, usable = self._form(xs.shape[1:]), self.name == "cpu" and not xs.is_cuda and len(xs) > 0
        few_vectors = self.chain is not None and len(xs) <= FEW and xs.dtype == torch.float32
        fits = few_vectors or (self.chain is None and _is_picture(xs))
        if form is None or not usable or not fits:
            return self._plain.outputs(xs, tasks)
        with self.lock:
            return self._kernel_for(xs.shape[1:]).outputs(as_input(xs, self.weights))


def _is_picture(xs: Tensor) -> bool:
    """Return whether inputs have a dtype that becomes float32."""
    return xs.dtype == torch.uint8 or xs.is_floating_point()


def _is_plain_adam(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer is torch's Adam with its default options and any fixed rate."""
    options = optimizer.param_groups[0]
    usual = all(options.get(name) == value for name, value in ADAM.items())
    return type(optimizer) is torch.optim.Adam and usual and isinstance(options["lr"], float)
