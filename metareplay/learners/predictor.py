"""A model with its loss: checks what it is given, predicts. Everything that trains stands on this."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import ClassVar, SupportsIndex, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from metareplay._core.checks import check_rate, real, whole
from metareplay._core.draws import Draws, Ints
from metareplay._core.weights import Weights
from metareplay.engines.choose import check_engine, choose_engine
from metareplay.engines.torch_engine import Loss, MakeOptimizer
from metareplay.errors import InputError, MetareplayError
from metareplay.networks import TaskModule

Array = Tensor | NDArray[np.generic]
Tasks = SupportsIndex | Sequence[int] | Array | None


@final
@dataclass(frozen=True)
class Incoming:
    """Examples that have been checked, in order; task -1 where none was given."""

    xs: Tensor
    ys: Tensor
    tasks: Tensor

    def __len__(self) -> int:
        return len(self.xs)

    def pieces(self, size: int) -> list["Incoming"]:
        """The same examples in pieces of at most `size`."""
        parts = (self.xs.split(size), self.ys.split(size), self.tasks.split(size))
        return [Incoming(*piece) for piece in zip(*parts, strict=True)]

    def runs(self) -> list["Incoming"]:
        """The same examples cut where the task changes."""
        cuts = (torch.diff(self.tasks) != 0).nonzero().flatten().add(1).tolist()
        parts = (self.xs.tensor_split(cuts), self.ys.tensor_split(cuts), self.tasks.tensor_split(cuts))
        return [Incoming(*run) for run in zip(*parts, strict=True)]

    def task_ids(self) -> Ints:
        """The tasks as NumPy integers."""
        return self.tasks.numpy()


@dataclass(eq=False, repr=False, kw_only=True)
class Predictor:
    """A user's module, its loss, and the checks that keep bad input out."""

    together: ClassVar[bool] = False  # a batch is one step on its mean loss, not one step a row

    model: nn.Module = field(kw_only=False)
    lr: float = 0.01  # alpha, the SGD rate
    seed: int = 0  # decides every draw
    loss: Loss | None = (
        None  # of (outputs, targets), a mean over the batch; cross-entropy, or squared error for regression
    )
    regression: bool = False  # targets are real numbers; predict gives the outputs themselves
    clip: float | None = None  # scale any gradient whose norm is above this down to it; the paper does not
    engine: str = "auto"  # "auto", "torch", "cpu" or "cuda": who does the arithmetic

    def __post_init__(self) -> None:
        """Subclasses check their own options first: a model is only touched once everything is in order."""
        for option in fields(self):
            value = getattr(self, option.name)
            if option.type is int:
                setattr(self, option.name, whole(option.name, value))
            elif option.type is float or (option.type == float | None and value is not None):
                setattr(self, option.name, real(option.name, value))
        check_rate("lr", self.lr)
        if self.clip is not None:
            check_rate("clip", self.clip)
        if not isinstance(self.model, nn.Module):
            raise InputError(f"model is a {type(self.model).__name__}: use a torch.nn.Module")
        self.draws = Draws(self.seed)
        loss, optimizer = self.loss or default_loss(self.regression), self.make_optimizer()
        check_engine(self.engine)
        self.weights = Weights(self.model)
        self.compute = choose_engine(
            self.engine, self.weights, loss, self.draws, self.clip, optimizer, self.together, self.regression
        )
        self._inputs: tuple[torch.Size, torch.dtype] | None = None  # shape and dtype of one input, from the first
        self._outputs: torch.Size | None = None  # shape of one output

    def make_optimizer(self) -> MakeOptimizer | None:
        """The optimizer that takes the steps; None for plain SGD."""
        return None

    @final
    def predict(self, xs: Array, task: Tasks = None) -> Tensor:
        """Labels for a batch of inputs (outputs, for regression); `task` for models with several heads."""
        outputs = self.outputs(xs, task)
        return outputs if self.regression else outputs.argmax(dim=-1)

    @final
    def outputs(self, xs: Array, task: Tasks = None) -> Tensor:
        """The model's outputs for a batch of inputs, in evaluation mode."""
        self.weights.check()
        xs = self._check_inputs(xs)
        tasks = self._check_tasks(task, len(xs), needed=isinstance(self.model, TaskModule))
        return self._forward(xs, tasks)

    @final
    def _check(self, xs: Array, ys: Array | Sequence[int], task: Tasks, needs_tasks: bool) -> Incoming:
        """Examples ready to learn from, or an InputError before anything has changed."""
        xs = self._check_inputs(xs)
        tasks = self._check_tasks(task, len(xs), needed=needs_tasks or isinstance(self.model, TaskModule))
        outputs = self._outputs or self._forward(xs[:1], tasks[:1]).shape[1:]
        if not self.regression and len(outputs) != 1:
            raise InputError(
                f"one input of shape {tuple(xs.shape[1:])} gives outputs of shape {tuple(outputs)}, not one score a "
                f"class; give observe one example, observe_many a batch, in the model's input shape"
            )
        ys = self._check_targets(ys, tasks, len(xs), outputs)
        self._inputs, self._outputs = (xs.shape[1:], xs.dtype), outputs
        return Incoming(xs, ys, tasks)

    @final
    def expect(self, xs: Tensor) -> None:
        """From now on inputs look like these: what a restored learner knows from its table."""
        self._inputs = (xs.shape[1:], xs.dtype)

    def _check_inputs(self, xs: Array) -> Tensor:
        xs = as_tensor("x", xs)
        if xs.dtype == torch.bool or xs.is_complex():
            raise InputError(f"x has dtype {xs.dtype}: use reals, uint8 images or integers")
        if xs.dim() < 1:
            raise InputError("x has no batch dimension: give a batch of inputs")
        if self._inputs is not None and (xs.shape[1:], xs.dtype) != self._inputs:
            shape, dtype = self._inputs
            raise InputError(
                f"x has shape {tuple(xs.shape[1:])} and dtype {xs.dtype}; earlier ones had {tuple(shape)} and {dtype}"
            )
        if xs.is_floating_point() and not torch.isfinite(xs).all():
            row = int((~torch.isfinite(xs)).flatten(1).any(1).nonzero()[0]) if xs.dim() > 1 else 0
            raise InputError(f"x of example {row} is not finite (NaN or infinity): clean the input and try again")
        return xs

    def _check_tasks(self, task: Tasks, count: int, needed: bool) -> Tensor:
        if task is None:
            if needed:
                raise InputError(f"{type(self).__name__} with this model needs the task id: pass task=...")
            return torch.full((count,), -1, device="cpu")
        tasks = as_tensor("task", task)
        tasks = tasks.expand(count) if tasks.dim() == 0 else tasks
        if tasks.dtype.is_floating_point or tasks.dtype == torch.bool or tasks.shape != (count,):
            raise InputError(f"task must be an integer, or {count} of them, one for each example")
        tasks = tasks.to("cpu", torch.int64)
        if count and tasks.min() < 0:
            raise InputError(f"task {int(tasks.min())}: task ids start from 0")
        if isinstance(self.model, TaskModule):
            for one in tasks.unique().tolist():
                self.model.classes(one)
        return tasks

    def _check_targets(self, ys: Array | Sequence[int], tasks: Tensor, count: int, outputs: torch.Size) -> Tensor:
        ys = as_tensor("y", ys)
        if self.regression:
            if not ys.is_floating_point() or ys.shape[:1] != (count,) or ys.numel() != count * math.prod(outputs):
                raise InputError(
                    f"y has shape {tuple(ys.shape)} and dtype {ys.dtype}; "
                    f"the model's outputs are reals of shape {(count, *outputs)}: give targets of that shape"
                )
            if not torch.isfinite(ys).all():
                raise InputError("y is not finite (NaN or infinity): clean the targets and try again")
            return ys.to(self.weights.dtype).reshape(count, *outputs)
        if ys.is_floating_point() or ys.is_complex() or ys.dtype == torch.bool:
            raise InputError(f"y has dtype {ys.dtype}: class labels are integers (for real targets: regression=True)")
        if ys.shape != (count,):
            raise InputError(f"y has shape {tuple(ys.shape)}: give one label for each of the {count} examples")
        ys = ys.to(torch.int64)
        for task in tasks.unique().tolist():
            classes = self.model.classes(task) if isinstance(self.model, TaskModule) else outputs[0]
            wrong = ys[(tasks == task).to(ys.device) & ((ys < 0) | (ys >= classes))]
            if len(wrong):
                raise InputError(f"label {int(wrong[0])} is out of range: the model's classes are 0 to {classes - 1}")
        return ys

    def _forward(self, xs: Tensor, tasks: Tensor) -> Tensor:
        """Outputs in evaluation mode; a model that cannot take the inputs is reported in one line."""
        try:
            outputs = self.compute.outputs(xs, tasks)
        except MetareplayError:
            raise
        except Exception as error:
            raise InputError(
                f"the model cannot take inputs of shape {tuple(xs.shape)} ({xs.dtype}): {one_line(error)}"
            ) from error
        if not isinstance(outputs, Tensor):
            raise InputError(f"the model gives a {type(outputs).__name__}: wrap it so that it gives one tensor")
        return outputs


def default_loss(regression: bool) -> Loss:
    """Cross-entropy for classes, squared error for real targets."""
    return functional.mse_loss if regression else functional.cross_entropy


def loss_name(loss: Callable[..., object]) -> str:
    """A name from which `named_loss` finds the loss again, if it is one of torch's functions."""
    name = getattr(loss, "__name__", type(loss).__name__)
    return name if getattr(functional, name, None) is loss else f"own:{name}"


def named_loss(name: str) -> Loss | None:
    """torch's loss function of that name; None for a user's own."""
    found: Loss | None = getattr(functional, name, None)
    return found


def as_tensor(name: str, value: object) -> Tensor:
    """Whatever holds numbers, as a tensor without history."""
    if isinstance(value, np.ndarray):
        value = np.ascontiguousarray(value) if value.flags.writeable else value.copy()
    try:
        return torch.as_tensor(value).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{name} is a {type(value).__name__} that is no array of numbers: {one_line(error)}"
        ) from error


def one_line(error: BaseException) -> str:
    """The first line of what an exception says."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
