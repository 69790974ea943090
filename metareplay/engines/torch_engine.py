"""The plain engine: torch autograd, any module, any objective, any device. It defines what a plan means."""

import logging
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

import numpy as np
import torch
from torch import Tensor

from metareplay._core.columns import Columns
from metareplay._core.draws import Draws, Ints, Purpose
from metareplay._core.interrupts import HeldBack, let_through
from metareplay._core.plan import Plan
from metareplay._core.table import Table
from metareplay._core.weights import Weights, reptile
from metareplay.engines.engine import Engine, Gradients, Outcome
from metareplay.engines.inputs import as_input, gather
from metareplay.engines.modes import evaluating, training
from metareplay.engines.objective import Objective, forward, prepared
from metareplay.engines.precision import full_precision
from metareplay.errors import InputError

logger = logging.getLogger("metareplay")
BATCH = 1000  # examples per forward pass of `outputs`
ONE_THREAD = 2**20  # models with fewer weights learn with one thread
Differentiate = Callable[[Table, Ints, Objective], None]  # puts the gradient of some rows' loss into weights.gradient


@contextmanager
def own_randomness(device: torch.device) -> Iterator["Randomness"]:
    """Lend the generator that layers such as dropout use on this device; afterwards restore its state."""
    randomness = Randomness(device)
    state = randomness.state()
    try:
        yield randomness
    finally:
        randomness.restore(state)


@final
class Randomness:
    """Read, restore and seed torch's generator for a device; each call by one thread at a time.

    Without that, two threads can wait for each other for ever: torch's generator holds a lock of its own while it reads
    its state, and if Python then collects garbage, another thread may go on and wait for that lock. The draws of
    several threads still come from one generator.

    Args:
        device: The device whose generator it is.
    """

    _one_at_a_time = threading.Lock()

    def __init__(self, device: torch.device) -> None:
        cuda = device.type == "cuda"
        self._generator = torch.cuda.default_generators[device.index or 0] if cuda else torch.default_generator

    def state(self) -> Tensor:
        """Return the generator's state."""
        with HeldBack(), self._one_at_a_time:  # a lock that Ctrl-C left behind would stop everything
            return self._generator.get_state()

    def restore(self, state: Tensor) -> None:
        """Restore a state.

        Args:
            state: What `state` returned.
        """
        with HeldBack(), self._one_at_a_time:
            self._generator.set_state(state)

    def seed(self, word: int) -> None:
        """Start from a seed.

        Args:
            word: The seed.
        """
        with self._one_at_a_time:
            self._generator.manual_seed(word)


@contextmanager
def few_threads(weights: Weights) -> Iterator[None]:
    """Use one thread while a small model learns: sharing single examples among threads costs more than it saves."""
    threads = torch.get_num_threads()
    small = weights.theta.numel() < ONE_THREAD and threads > 1
    if small:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if small:
            torch.set_num_threads(threads)


@final
class Notice:
    """Say why a learner learns by torch, once, however many engines it has in its life."""

    def __init__(self) -> None:
        self._given = False

    def give(self, reason: str | None) -> None:
        """Log the reason, unless one was logged before.

        Args:
            reason: Why no faster engine runs; None if there is nothing to say.
        """
        if reason is not None and not self._given:
            self._given = True
            logger.warning("learning by torch, which is much slower for small models: %s", reason)


@final
class TorchEngine(Engine):
    """Execute plans with torch's autograd, one small step at a time.

    Args:
        weights: The model's weights.
        draws: The learner's random draws; randomness inside the module is seeded from them.
        optimizer: An optimizer over `weights.theta` that takes the steps; None for plain SGD.
        differentiate: Computes gradients; None for autograd.
        notice: Says why no faster engine runs; None to say it once for this engine.
    """

    name = "torch"

    def __init__(
        self,
        weights: Weights,
        draws: Draws,
        optimizer: torch.optim.Optimizer | None = None,
        differentiate: Differentiate | None = None,
        notice: Notice | None = None,
    ) -> None:
        self.weights, self.draws, self.optimizer = weights, draws, optimizer
        buffers = [b for b in weights.module.buffers() if b.is_floating_point() and not b.is_meta]
        self.statistics = [b for b in buffers if torch.isfinite(b).all()]  # of BatchNorm, which must stay finite
        self._differentiate = differentiate or self._by_autograd
        self._notice = notice or Notice()

    def execute(self, plan: Plan, table: Table, objective: Objective) -> Outcome:
        """Learn example by example; an example that cannot be learned is undone."""
        with self.learning() as randomness:
            for i in range(len(plan)):
                undo = nothing  # until something has changed
                try:
                    undo = self._remember(objective)
                    randomness.seed(self.draws.word(Purpose.MODULE, plan.first + i))
                    self._arrive(plan.incoming + i, table, objective)
                    self._learn(plan, i, table, objective)
                    healthy = self.healthy()
                except BaseException as error:
                    undo()
                    return Outcome(i, error)
                if not healthy:
                    undo()
                    return Outcome(i)
        return Outcome(len(plan))

    def _learn(self, plan: Plan, i: int, table: Table, objective: Objective) -> None:
        """Run the loops of Algorithm 1; the other algorithms are the same loops with other batches and rates."""
        theta, rates = self.weights.theta, plan.rates
        theta_a0 = theta.clone() if rates.across != 1 else theta  # with rate 1 the line changes nothing
        for batch in plan.batches(i):
            let_through()  # what has been learned of this example will be undone
            theta_w0 = theta.clone() if rates.within != 1 else theta
            differentiate, places = self._differentiating(batch, table, objective), np.arange(len(batch))
            for some in [places] if plan.together else places[:, np.newaxis]:
                current = not plan.together and batch[some[0]] == plan.incoming + i
                differentiate(some)
                self._step(rates.current if current else rates.memory, objective)
            reptile(theta, theta_w0, rates.within)
        reptile(theta, theta_a0, rates.across)

    def _arrive(self, row: int, table: Table, objective: Objective) -> None:
        """Let the objective fill its own columns for an example that has just come in."""
        if objective.stores:
            rows = torch.tensor([row], device="cpu")
            came = Columns({name: v for name, v in self._gather(table, rows).items() if name not in objective.stores})
            with torch.no_grad():
                filled = objective.arriving(self.weights.module, came)
            for name in objective.stores:
                if name not in filled:
                    raise InputError(f"{type(objective).__name__}.arriving gave no {name!r}, which it says it stores")
                table.fill(name, rows, filled[name])

    def _step(self, rate: float, objective: Objective) -> None:
        theta, gradient = self.weights.theta, self.weights.gradient
        objective.add_penalty(gradient, theta)
        clip_norm(gradient, objective.clip)
        if self.optimizer is None:
            theta.add_(gradient, alpha=-rate)
        else:
            self.optimizer.step()

    def _differentiating(self, batch: Ints, table: Table, objective: Objective) -> Callable[[Ints], None]:
        """Return what puts the gradient of some consecutive rows of a batch into weights.gradient."""
        if not objective.prepares:
            return lambda places: self._differentiate(table, batch[places], objective)
        model = self.weights.module
        examples = prepared(objective, model, self._gather(table, torch.from_numpy(batch)))
        return lambda places: self._backward(objective.loss(model, examples.part(places[0], places[-1] + 1)))

    def _by_autograd(self, table: Table, rows: Ints, objective: Objective) -> None:
        """Put the gradient of the rows' loss into weights.gradient; NaN if the loss is not finite."""
        self._backward(objective.loss(self.weights.module, self._gather(table, torch.from_numpy(rows))))

    def _backward(self, loss: Tensor) -> None:
        self.weights.gradient.zero_()
        loss.backward()
        if not torch.isfinite(loss):
            self.weights.gradient.fill_(torch.nan)

    def _gather(self, table: Table, rows: Tensor) -> Columns:
        return gather(table, rows, self.weights)

    def gradients(self, table: Table, groups: list[Ints], objective: Objective, example: int) -> Gradients:
        """Make one forward and backward pass per group."""
        found = []
        with self.learning() as randomness:
            randomness.seed(self.draws.word(Purpose.MODULE, example))
            for rows in groups:
                self._differentiating(rows, table, objective)(np.arange(len(rows)))
                found.append(self.weights.gradient.clone())
        return FlatGradients(self.weights, torch.stack(found))

    def outputs(self, xs: Tensor, tasks: Tensor) -> Tensor:
        """Make a forward pass that does not change the module."""
        model, batches = self.weights.module, zip(xs.split(BATCH), tasks.split(BATCH), strict=True)
        device = self.weights.device
        with torch.no_grad(), evaluating(model), full_precision(device), own_randomness(device):
            return torch.cat([forward(model, as_input(some, self.weights), of) for some, of in batches])

    def state(self) -> dict[str, Tensor]:
        """Return the optimizer's moments as flat vectors; plain SGD has none."""
        if self.optimizer is None:
            return {}
        kept = self.optimizer.state_dict()["state"].get(0, {})
        return {name: torch.as_tensor(value) for name, value in kept.items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue with saved moments."""
        kept = self.state()
        if kept.keys() == state.keys():  # in place, where graphs find them
            for name, value in state.items():
                kept[name].copy_(value)
        elif self.optimizer is not None:
            whole = self.optimizer.state_dict()
            whole["state"] = {0: {name: value.clone() for name, value in state.items()}} if state else {}
            self.optimizer.load_state_dict(whole)

    @contextmanager
    def learning(self) -> Iterator[Randomness]:
        """Prepare for learning (training mode, gathered gradients, full float32) and lend the random generator."""
        self._notice.give(self.reason)
        self.weights.check()
        self.weights.gather_gradient()
        with (
            training(self.weights.module),
            torch.inference_mode(False),
            torch.enable_grad(),
            few_threads(self.weights),
            full_precision(self.weights.device),
            own_randomness(self.weights.device) as randomness,
        ):
            yield randomness

    def healthy(self) -> bool:
        """Return whether weights, statistics and moments are all finite."""
        all_values = (self.weights.theta, *self.statistics, *self.state().values())
        return all(all_finite(values) for values in all_values)

    def _remember(self, objective: Objective) -> Callable[[], None]:
        """Remember what `remember` does, and what the objective keeps."""
        undo, undo_objective = self.remember(), objective.remember()

        def undo_all() -> None:
            undo()
            undo_objective()

        return undo_all

    def remember(self) -> Callable[[], None]:
        """Copy the weights, the module's buffers and the optimizer's moments."""
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
    """Hold gradients as the rows of one matrix.

    Args:
        weights: The weights that `descend` moves.
        rows: The matrix.
    """

    def __init__(self, weights: Weights, rows: Tensor) -> None:
        self._weights, self._rows = weights, rows

    def each(self) -> Tensor:
        """Return the matrix."""
        return self._rows

    def products(self) -> Tensor:
        """Return G G', computed in float64 if it exceeds the range of float32."""
        products = self._rows @ self._rows.T
        if self._rows.dtype != torch.float64 and not in_range(products):
            return self._rows.double() @ self._rows.double().T
        return products.double()

    def descend(self, rates: Tensor) -> None:
        """Take the step theta <- theta - G' rates."""
        self._weights.theta.sub_(rates.to(self._rows) @ self._rows)


def nothing() -> None:
    """Undo nothing."""


def all_finite(values: Tensor) -> bool:
    """Return whether every value is finite. A finite sum proves it in one pass; a sum of large values may overflow."""
    return math.isfinite(values.sum()) or bool(torch.isfinite(values).all())


def in_range(products: Tensor) -> bool:
    """Return whether float32 products neither overflowed nor lost digits to underflow."""
    return bool(((products.abs() > 1e-30) & torch.isfinite(products)).all())


def clip_norm(gradient: Tensor, clip: float | None) -> None:
    """Scale a gradient down, in place, to norm `clip` if it is longer.

    Args:
        gradient: A flat gradient.
        clip: The largest norm; None for no limit.
    """
    if clip is not None:
        norm = gradient.norm()
        if norm > clip:
            gradient.mul_(clip / norm)
