"""The compiled engine for deep Q-learning on the CPU, for MLPs and for networks with convolutions, without the GIL."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from metareplay._core.draws import Ints
from metareplay._core.imports import import_whole
from metareplay._core.plan import Plan, Rates
from metareplay._core.table import Table, TensorColumn
from metareplay._core.weights import Weights
from metareplay.engines.accelerated import AcceleratedEngine
from metareplay.engines.chain import Chain, LossKind
from metareplay.engines.engine import Gradients, Outcome
from metareplay.engines.inputs import scale_of
from metareplay.engines.objective import Objective
from metareplay.engines.q_shape import Conv, Shape, parts_of
from metareplay.engines.temporal_difference import TemporalDifference
from metareplay.engines.torch_engine import TorchEngine
from metareplay.networks import TaskModule

logger = logging.getLogger("metareplay")
MOMENTS = {"moments": "exp_avg", "squares": "exp_avg_sq"}  # Adam's, by their names in the kernel
PICTURES = (torch.uint8, torch.float32)  # what convolutions take
FEW = 100  # inputs; torch computes the outputs of more than that faster, many at a time
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
            return None if self._form(table.shape("x")) is not None else "pictures that the convolutions fit"
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
                self.name = f"{self._plain.name} (the compiled engine needs {missing})"
            if self.name != "cpu" or not isinstance(objective, TemporalDifference):
                return self._plain.execute(plan, table, objective)
            undo = self.remember()
            try:
                self.weights.check()
                kernel = self._kernel_for(table.shape("x"), int(np.diff(plan.ends).max(initial=1)))
                kernel.take(objective)
                learned = kernel.run(plan, table, objective)
                kernel.give()
            except BaseException as error:  # Ctrl-C, or no room for the kernel's arrays
                undo()
                self._kernel = None
                return Outcome(0, error)
            return Outcome(learned)

    def kernel(self, batch: int = 1) -> "QKernel":
        """Return the kernel for an MLP with its arrays; hold `lock` while using it.

        Args:
            batch: The largest number of transitions in a batch.
        """
        assert self.chain is not None, "the caller has looked"
        return self._kernel_for(torch.Size(self.chain.widths[:1]), batch)

    def _kernel_for(self, shape: torch.Size, batch: int = 1) -> "QKernel":
        """Return the kernel for inputs of this shape."""
        form = self._form(shape)
        assert form is not None, "the caller has looked"
        if self._kernel is None or self._kernel.batch < batch or self._kernel.form != form:
            self._kernel = QKernel(self.weights, form, self._plain.optimizer, batch)
        return self._kernel

    def _form(self, shape: torch.Size) -> "Form | None":
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
        fits = few_vectors or (self.chain is None and xs.dtype in PICTURES)
        if form is None or not usable or not fits:
            return self._plain.outputs(xs, tasks)
        with self.lock:
            return self._kernel_for(xs.shape[1:]).outputs(xs.flatten(1))


@final
@dataclass(frozen=True)
class Form:
    """Say how the kernel sees a network.

    Args:
        mlp: The widths of an MLP; empty if there are convolutions.
        pictures: The shape of a network with convolutions; None if there are none.
    """

    mlp: tuple[int, ...]
    pictures: Shape | None = None

    @property
    def convs(self) -> tuple[Conv, ...]:
        """The convolutions."""
        return () if self.pictures is None else self.pictures.convs

    def make_net(self, batch: int, adam: bool) -> Any:
        """Return the kernel's arrays.

        Args:
            batch: The largest number of transitions in a batch.
            adam: Whether to make room for Adam's moments.
        """
        from metareplay.engines.cpu import convolutions, q_steps  # here, because numba takes long to import

        if self.pictures is None:
            return q_steps.make_net(self.mlp, batch, adam)
        widths = (convolutions.features_of(self.convs), *(dense.outs for dense in self.pictures.denses))
        return q_steps.make_net(widths, batch, adam, self.convs)


@final
class QKernel:
    """Run the kernel on its arrays. Weights and moments are copied in before a call and out after it.

    Args:
        weights: The model's weights.
        form: How the kernel sees the network.
        optimizer: What takes the steps: Adam, or None for plain SGD.
        batch: The largest number of transitions in a batch.
    """

    def __init__(self, weights: Weights, form: Form, optimizer: torch.optim.Optimizer | None, batch: int) -> None:
        import_whole("metareplay.engines.cpu.q_steps")
        from metareplay.engines.cpu import q_steps  # here, because numba takes long to import

        self._code: Any = q_steps
        self._weights, self._optimizer = weights, optimizer
        self.form, self.batch = form, batch
        self.net: Any = form.make_net(batch, optimizer is not None)
        self._held: dict[str, Tensor] = {}  # what is in the kernel, in torch's order
        self._has_run = False

    def take(self, objective: TemporalDifference) -> None:
        """Copy the model's weights, the target network's and Adam's moments into the kernel.

        Args:
            objective: The objective with the target network.
        """
        self._pack("weights", self._weights.theta)
        self._pack("target", objective.target.theta)
        if self._optimizer is not None:
            state = self._moments()
            self.net.steps[0] = int(state["step"]) if state else 0
            for name, moment in MOMENTS.items():
                self._pack(name, state[moment] if state else torch.zeros_like(self._weights.theta))

    def give(self, objective: TemporalDifference | None = None) -> None:
        """Copy the kernel's weights and moments into the model and the optimizer.

        Args:
            objective: The objective whose target network is also to be copied out; None to leave it alone.
        """
        self._unpack("weights", self._weights.theta)
        if objective is not None:
            self._unpack("target", objective.target.theta)
        if self._optimizer is not None and self.net.steps[0]:
            theta, state = self._weights.theta, self._moments()
            if not state:
                state |= {"step": torch.tensor(0.0)}
                state |= {moment: torch.zeros_like(theta) for moment in MOMENTS.values()}
                self._optimizer.state[self._parameter()] = state
            state["step"].fill_(float(self.net.steps[0]))
            for name, moment in MOMENTS.items():
                self._unpack(name, state[moment])

    def run(self, plan: Plan, table: Table, objective: TemporalDifference) -> int:
        """Learn a plan's examples; return how many stayed finite.

        Args:
            plan: The rows to visit, in order, and the rates.
            table: The transitions by row.
            objective: What each step minimises.
        """
        rates = self.rates(plan.rates, objective, plan.together)
        if not self.form.convs:
            columns = self.columns(table)
            with self.compiling():
                return int(
                    self._code.run_plan(
                        self.net, columns, plan.rows, plan.ends, len(plan), plan.s, plan.incoming, rates
                    )
                )
        for i in range(len(plan)):
            part = plan.part(i, i + 1)
            columns, rows, incoming = self._gathered(table, part)
            with self.compiling():
                if not self._code.run_plan(self.net, columns, rows, part.ends, 1, part.s, incoming, rates):
                    return i
        return len(plan)

    def _gathered(self, table: Table, plan: Plan) -> tuple[Any, Ints, int]:
        """Return copies of the rows that a plan for one example visits, their new numbers, and that of the incoming."""
        rows, numbers = np.unique(plan.rows, return_inverse=True)
        found = table.gather(torch.from_numpy(rows))
        xs, following = (found[name].cpu().flatten(1).numpy() for name in ("x", "next_x"))
        action, reward, over = (found[name].cpu().numpy() for name in ("action", "reward", "over"))
        self._scale(found["x"])
        incoming = np.flatnonzero(rows == plan.incoming)
        columns = self._code.Transitions(xs, action, reward, following, over)
        return columns, numbers.reshape(-1), int(incoming[0]) if len(incoming) else -1

    def _scale(self, xs: Tensor) -> None:
        """Let the kernel scale inputs like these."""
        self.net.eye.scale[0] = scale_of(xs)

    def outputs(self, xs: Tensor) -> Tensor:
        """Compute the values of all actions.

        Args:
            xs: Inputs, one per row.
        """
        self._pack("weights", self._weights.theta)
        if self.form.convs:
            self._scale(xs)
        found = np.empty((len(xs), self.net.widths[-1]), np.float32)
        with self.compiling():
            self._code.outputs(self.net, xs.contiguous().numpy(), found)
        return torch.from_numpy(found)

    def columns(self, table: Table) -> Any:
        """Return a table's columns as the kernel takes them.

        Args:
            table: The transitions by row.
        """

        def values(name: str) -> Any:
            column = table.column(name)
            if not isinstance(column, TensorColumn):
                raise TypeError(type(column))  # the engine has looked
            return column.values.numpy()

        xs, following = (values(name).reshape(len(table), -1) for name in ("x", "next_x"))
        return self._code.Transitions(xs, values("action"), values("reward"), following, values("over"))

    def rates(self, rates: Rates, objective: TemporalDifference, together: bool) -> Any:
        """Return how steps are taken, as the kernel takes it.

        Args:
            rates: How far steps and Reptile lines go.
            objective: What each step minimises.
            together: Take one step on the mean loss of a batch, instead of one step per row.
        """
        number = np.float32
        return self._code.QRates(
            memory=number(rates.memory),
            current=number(rates.current),
            within=number(rates.within),
            across=number(rates.across),
            clip=np.inf if objective.clip is None else float(objective.clip),
            discount=number(objective.discount),
            double=bool(objective.double),
            together=together,
            adam=self._optimizer is not None,
            lr=0.0 if self._optimizer is None else float(self._optimizer.param_groups[0]["lr"]),
        )

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Log a remark if the first call takes long: the kernel is compiled for this CPU, once."""
        remark = "compiling deep Q-learning for this machine, once (up to 20 seconds)"
        timer = threading.Timer(2.0, logger.warning, [remark])
        timer.daemon = True
        if not self._has_run:
            timer.start()
        self._has_run = True
        try:
            yield
        finally:
            timer.cancel()

    def _parameter(self) -> nn.Parameter:
        assert self._optimizer is not None
        parameter: nn.Parameter = self._optimizer.param_groups[0]["params"][0]
        return parameter

    def _moments(self) -> dict[str, Tensor]:
        """Return Adam's own moments; nothing before its first step."""
        assert self._optimizer is not None
        return dict(self._optimizer.state.get(self._parameter(), {}))

    def _pack(self, name: str, theta: Tensor) -> None:
        """Bring one of the net's vectors to these values, unless it has them already."""
        values, held = theta.detach().numpy(), self._held.get(name)
        if held is None or not self._code.same(held.numpy(), values):
            self._held[name] = theta.detach().clone()
            self._code.pack(self.net, values, getattr(self.net, name))

    def _unpack(self, name: str, theta: Tensor) -> None:
        """Read one of the net's vectors."""
        held = self._held.setdefault(name, torch.empty_like(theta))
        self._code.unpack(self.net, getattr(self.net, name), held.numpy())
        theta.copy_(held)


def _is_plain_adam(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer is torch's Adam with its default options and any fixed rate."""
    options = optimizer.param_groups[0]
    usual = all(options.get(name) == value for name, value in ADAM.items())
    return type(optimizer) is torch.optim.Adam and usual and isinstance(options["lr"], float)
