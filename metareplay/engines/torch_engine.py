"""The plain engine: torch autograd, any module, any loss, any device. It defines what a plan means."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from metareplay._core.draws import Draws, Ints, Purpose
from metareplay._core.plan import Plan
from metareplay._core.table import Table
from metareplay._core.weights import Weights, reptile
from metareplay.engines.engine import Engine, Gradients, Outcome, Pull
from metareplay.engines.inputs import as_input
from metareplay.engines.precision import full_precision
from metareplay.networks import TaskModule

Loss = Callable[[Tensor, Tensor], Tensor]
BATCH = 1000  # examples in one forward pass of `outputs`
SMALL = 2**20  # weights
Differentiate = Callable[[Table, Ints, bool], None]
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def forward(model: nn.Module, inputs: Tensor, tasks: Tensor) -> Tensor:
    """The model's outputs, its head chosen by task where it has several."""
    if isinstance(model, TaskModule):
        outputs: Tensor = model(inputs, tasks.to(inputs.device))
    else:
        outputs = model(inputs)
    return outputs


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode; give every part of it back its own."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def own_randomness(device: torch.device) -> Iterator[torch.Generator]:
    """Lend the generator that dropout and its like use on this device; give it back as it was."""
    cuda = device.type == "cuda"
    generator = torch.cuda.default_generators[device.index or 0] if cuda else torch.default_generator
    state = generator.get_state()
    try:
        yield generator
    finally:
        generator.set_state(state)


@contextmanager
def few_threads(weights: Weights) -> Iterator[None]:
    """One thread while a small model learns: handing single examples to several costs far more than it saves."""
    threads = torch.get_num_threads()
    small = weights.theta.numel() < SMALL and threads > 1
    if small:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if small:
            torch.set_num_threads(threads)


@final
class TorchEngine(Engine):
    """Plans by torch autograd, one small step at a time."""

    name = "torch"

    def __init__(
        self,
        weights: Weights,
        loss: Loss,
        draws: Draws,
        clip: float | None = None,
        make_optimizer: MakeOptimizer | None = None,
    ) -> None:
        self.weights, self.loss, self.draws, self.clip = weights, loss, draws, clip
        buffers = weights.module.buffers()
        self.statistics = [b for b in buffers if b.is_floating_point() and torch.isfinite(b).all()]  # of BatchNorm
        self.optimizer = None
        if make_optimizer is not None:
            theta = nn.Parameter(weights.theta)  # the same storage
            theta.grad = weights.gradient
            self.optimizer = make_optimizer([theta])

    def execute(
        self, plan: Plan, table: Table, pull: Pull | None = None, differentiate: Differentiate | None = None
    ) -> Outcome:
        """Example by example; one that cannot be learned is undone. Another engine may do the gradients."""
        with self.learning() as generator:
            for i in range(len(plan)):
                undo = self.remember()
                try:
                    generator.manual_seed(self.draws.word(Purpose.MODULE, plan.first + i))
                    self._learn(plan, i, table, pull, differentiate or self._differentiate)
                except BaseException as error:
                    undo()
                    return Outcome(i, error)
                if not self.healthy():
                    undo()
                    return Outcome(i)
        return Outcome(len(plan))

    def _learn(self, plan: Plan, i: int, table: Table, pull: Pull | None, differentiate: Differentiate) -> None:
        """Algorithm 1's loops; the other algorithms are the same loops with other batches and rates."""
        theta, rates = self.weights.theta, plan.rates
        theta_a0 = theta.clone() if rates.across != 1 else theta  # with rate 1 the line changes nothing
        for batch in plan.batches(i):
            theta_w0 = theta.clone() if rates.within != 1 else theta
            for rows in [batch] if plan.together else batch[:, np.newaxis]:
                current = not plan.together and rows[0] == plan.incoming + i
                differentiate(table, rows, plan.balanced)
                self._step(rates.current if current else rates.memory, pull)
            reptile(theta, theta_w0, rates.within)
        reptile(theta, theta_a0, rates.across)

    def gradients(self, table: Table, groups: list[Ints], example: int) -> Gradients:
        """One forward and backward pass a group."""
        found = []
        with self.learning() as generator:
            generator.manual_seed(self.draws.word(Purpose.MODULE, example))
            for rows in groups:
                self._differentiate(table, rows, balanced=False)
                found.append(self.weights.gradient.clone())
        return FlatGradients(self.weights, torch.stack(found))

    def outputs(self, xs: Tensor, tasks: Tensor) -> Tensor:
        """A forward pass that leaves the module as it was."""
        model, batches = self.weights.module, zip(xs.split(BATCH), tasks.split(BATCH), strict=True)
        device = self.weights.device
        with torch.no_grad(), evaluating(model), full_precision(device), own_randomness(device):
            return torch.cat([forward(model, as_input(some, self.weights), of) for some, of in batches])

    def state(self) -> dict[str, Tensor]:
        """The optimizer's moments, flat; nothing for plain SGD."""
        if self.optimizer is None:
            return {}
        kept = self.optimizer.state_dict()["state"].get(0, {})
        return {name: torch.as_tensor(value) for name, value in kept.items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue with saved moments."""
        if self.optimizer is not None:
            whole = self.optimizer.state_dict()
            whole["state"] = {0: {name: value.clone() for name, value in state.items()}} if state else {}
            self.optimizer.load_state_dict(whole)

    def _differentiate(self, table: Table, rows: Ints, balanced: bool) -> None:
        """Put the gradient of the rows' loss into weights.gradient; of a loss that is not finite, a NaN."""
        index = torch.from_numpy(rows)
        tasks, there = table.tasks[index], index.to(table.xs.device)
        outputs = forward(self.weights.module, as_input(table.xs[there], self.weights), tasks)
        ys = table.ys[there]
        if balanced:
            of_task = [(tasks == task).to(ys.device) for task in tasks.unique()]
            loss = torch.stack([self.loss(outputs[mask], ys[mask]) for mask in of_task]).sum()
        else:
            loss = self.loss(outputs, ys)
        self.weights.gradient.zero_()
        loss.backward()
        if not torch.isfinite(loss):
            self.weights.gradient.fill_(torch.nan)

    def _step(self, rate: float, pull: Pull | None) -> None:
        theta, gradient = self.weights.theta, self.weights.gradient
        if pull is not None:
            gradient.add_(pull.gradient(theta))
        clip_norm(gradient, self.clip)
        if self.optimizer is None:
            theta.add_(gradient, alpha=-rate)
        else:
            self.optimizer.step()

    @contextmanager
    def learning(self) -> Iterator[torch.Generator]:
        """The module in training mode, gradients wanted and gathered, full float32; lends the generator."""
        self.weights.check()
        self.weights.gather_gradient()
        if not self.weights.module.training:
            self.weights.module.train()
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            few_threads(self.weights),
            full_precision(self.weights.device),
            own_randomness(self.weights.device) as generator,
        ):
            yield generator

    def healthy(self) -> bool:
        """Weights, statistics and moments are all finite."""
        all_values = (self.weights.theta, *self.statistics, *self.state().values())
        return all(all_finite(values) for values in all_values)

    def remember(self) -> Callable[[], None]:
        """Copies of the weights, the module's buffers and the optimizer's moments."""
        theta = self.weights.theta.clone()
        buffers = [buffer.clone() for buffer in self.weights.module.buffers()]
        moments = {name: value.clone() for name, value in self.state().items()}

        def undo() -> None:
            self.weights.theta.copy_(theta)
            for buffer, before in zip(self.weights.module.buffers(), buffers, strict=True):
                buffer.copy_(before)
            self.restore(moments)

        return undo


@final
class FlatGradients(Gradients):
    """Gradients as the rows of one matrix."""

    def __init__(self, weights: Weights, rows: Tensor) -> None:
        self._weights, self._rows = weights, rows

    def each(self) -> Tensor:
        """The matrix."""
        return self._rows

    def products(self) -> Tensor:
        """G G', computed in float64 where float32 has not the range."""
        products = self._rows @ self._rows.T
        if self._rows.dtype != torch.float64 and not in_range(products):
            return self._rows.double() @ self._rows.double().T
        return products.double()

    def descend(self, rates: Tensor) -> None:
        """theta <- theta - G' rates."""
        self._weights.theta.sub_(rates.to(self._rows) @ self._rows)


def all_finite(values: Tensor) -> bool:
    """Whether every value is finite: a sum of others never is, and takes one pass; but a finite sum may overflow."""
    return math.isfinite(values.sum()) or bool(torch.isfinite(values).all())


def in_range(products: Tensor) -> bool:
    """Whether float32 products neither overflowed nor lost digits to underflow."""
    return bool(((products.abs() > 1e-30) & torch.isfinite(products)).all())


def clip_norm(gradient: Tensor, clip: float | None) -> None:
    """Scale the gradient, in place, to norm min(norm, clip)."""
    if clip is not None:
        norm = gradient.norm()
        if norm > clip:
            gradient.mul_(clip / norm)
