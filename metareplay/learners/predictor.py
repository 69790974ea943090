"""A model with its loss and its engine, the base of everything that trains: it checks its inputs and predicts."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, Self, final, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn
from torch.nn import functional

from metareplay._core.checks import check_rate, choice, flag, function, instance, real, whole
from metareplay._core.columns import Columns
from metareplay._core.draws import Draws
from metareplay._core.interrupts import HeldBack
from metareplay._core.weights import Weights
from metareplay.engines.choose import EngineName, check_engine, choose_engine
from metareplay.engines.objective import Loss, Objective, Supervised
from metareplay.errors import InputError, MetareplayError
from metareplay.learners.changes import CHANGEABLE, check_change, options_of
from metareplay.learners.input_checks import Array, InputChecks, Tasks, as_tensor, one_line
from metareplay.networks import TaskModule

MAYBE = float | None


@dataclass(eq=False, repr=False, kw_only=True)
class Predictor:
    """Wrap a user's module with its loss, its engine, and the checks that keep bad input out.

    Args:
        model: Any torch module; it always holds the current weights.
        lr: alpha, the SGD rate.
        seed: Decides every draw.
        loss: The loss of (outputs, targets), a mean over the batch. None for cross-entropy, or squared error if
            `regression` is set.
        regression: Whether targets are real numbers; `predict` then gives the outputs themselves.
        clip: Scale any gradient with a larger norm down to this norm. None, as in the paper, turns clipping off.
        engine: What does the arithmetic: "torch", "cpu" (compiled), "cuda" (graphs), or "auto" for the fastest of these
            that supports the model.
    """

    model: nn.Module = field(kw_only=False)
    lr: float = 0.01
    seed: int = 0
    loss: Loss | None = None
    regression: bool = False
    clip: float | None = None
    engine: EngineName = "auto"

    def __post_init__(self) -> None:
        """Check the options. Subclasses check their own first: a model is only touched once everything is in order."""
        for name, kind in option_types(type(self)).items():
            setattr(self, name, checked(name, kind, getattr(self, name)))
        check_rate("lr", self.lr)
        if self.clip is not None:
            check_rate("clip", self.clip)
        if self.loss is not None:
            function("loss", self.loss)
        instance("model", self.model, nn.Module, "a torch.nn.Module")
        check_engine(self.engine)
        self.draws = Draws(self.seed)
        self.objective = self.make_objective()
        self.weights = Weights(self.model)
        self._outputs: torch.Size | None = None  # shape of one output
        self._checks = self._make_checks()
        self._choose()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute. An option must be one that may change, and its value is checked."""
        if "chosen_engine" in self.__dict__ and name in options_of(type(self)):
            self._change(name, value)
        else:
            object.__setattr__(self, name, value)

    @final
    def _change(self, name: str, value: Any) -> None:
        """Change an option, completely or not at all."""
        if name in CHANGEABLE:
            value = checked(name, option_types(type(self))[name], value)
        check_change(name, value)
        before = getattr(self, name)
        with HeldBack():
            object.__setattr__(self, name, value)
            try:
                self.follow_change(name)
            except BaseException:
                object.__setattr__(self, name, before)
                raise

    def follow_change(self, name: str) -> None:
        """Bring everything that was made from an option up to date, or raise InputError for a value that does not fit.

        Args:
            name: The option that has changed.
        """
        if name == "clip" and is_dataclass(self.objective):
            self.objective = replace(self.objective, clip=self.clip)
        elif name == "clip":
            self.objective.clip = self.clip
        if name == "lr" and self._optimizer is not None:
            for group in self._optimizer.param_groups:
                group["lr"] = self.lr
        if self.weights.device.type == "cuda" and (name == "clip" or self._optimizer is not None):  # graphs hold it
            self._renew_engine()

    def __getstate__(self) -> dict[str, Any]:
        """Return everything but the engine, which a copy makes anew, with the moments that the engine has."""
        kept = {name: value for name, value in self.__dict__.items() if name not in ("chosen_engine", "_optimizer")}
        return kept | {"moments": self.chosen_engine.state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Go on where the copied learner was."""
        moments = state.pop("moments")
        self.__dict__.update(state)
        checks, outputs = self._checks, self._outputs
        self._choose()
        self._checks, self._outputs = checks, outputs
        self.chosen_engine.restore(moments)

    def __copy__(self) -> Self:
        """Return a copy with a model and a memory of its own: two learners cannot share them."""
        return deepcopy(self)

    @final
    def _renew_engine(self) -> None:
        """Make the engine anew; it goes on with the moments that the old one had."""
        moments, checks, outputs = self.chosen_engine.state(), self._checks, self._outputs
        self._choose()
        self._checks, self._outputs = checks, outputs
        self.chosen_engine.restore(moments)

    @final
    def _choose(self) -> None:
        """Choose the engine for the model as it is now."""
        theta = nn.Parameter(self.weights.theta)  # the same storage
        theta.grad = self.weights.gradient
        self._optimizer = self.make_optimizer(theta)
        self.chosen_engine = choose_engine(self.engine, self.weights, self.objective, self.draws, self._optimizer)
        self._checks, self._outputs = self._make_checks(), None

    def _make_checks(self) -> InputChecks:
        return InputChecks(self.model, self.regression, self.weights.dtype, type(self).__name__)

    def make_objective(self) -> Objective:
        """Make the objective that every step minimises. Override this for an objective of your own."""
        return Supervised(self.loss or default_loss(self.regression), self.regression, clip=self.clip)

    def make_optimizer(self, theta: nn.Parameter) -> torch.optim.Optimizer | None:
        """Make the optimizer that takes the steps; None for plain SGD. Override this for another one.

        Args:
            theta: All trainable weights as one flat vector.
        """
        del theta
        return None

    @final
    def predict(self, xs: Array, task: Tasks = None) -> Tensor:
        """Predict labels for a batch of inputs; for regression, outputs.

        Args:
            xs: A batch of inputs, or a single input like those learned so far, for a single label.
            task: The task id, or one for each input, for models with several heads.
        """
        outputs = self.outputs(xs, task)
        return outputs if self.regression else outputs.argmax(dim=-1)

    @final
    def accuracy(self, xs: Array, ys: Array | Sequence[int], task: Tasks = None) -> float:
        """Return the accuracy on some examples, in percent. Labels are checked as those that are learned from.

        Args:
            xs: A batch of inputs.
            ys: Their labels.
            task: The task id, or one for each input, for models with several heads.
        """
        if self.regression:
            raise InputError("accuracy is undefined for regression: compare the targets with outputs")
        outputs = self.outputs(xs, task)
        if outputs.dim() != 2 or not len(outputs):
            raise InputError(
                f"the outputs have shape {tuple(outputs.shape)}, not one score per class for some examples"
            )
        tasks = self._checks.tasks(task, len(outputs), needed=False)
        right = outputs.argmax(dim=-1).cpu() == self._checks.targets(ys, tasks, outputs.shape[1:]).cpu()
        return 100 * right.double().mean().item()

    @final
    def outputs(self, xs: Array, task: Tasks = None) -> Tensor:
        """Compute the model's outputs for a batch of inputs, in evaluation mode.

        Args:
            xs: A batch of inputs, or a single input like those learned so far, whose outputs then have no batch
                dimension.
            task: The task id, or one for each input, for models with several heads.
        """
        if task is None and (found := self.single_output(xs)) is not None:
            return found
        self.weights.check()
        xs = as_tensor("x", xs)
        if xs.shape == self._checks.expected_shape:
            return self.outputs(xs[None], task)[0]
        xs = self._checks.inputs(xs)
        tasks = self._checks.tasks(task, len(xs), needed=isinstance(self.model, TaskModule))
        return self._forward(self._as_taken(xs, tasks), tasks)

    @final
    def _as_taken(self, xs: Tensor, tasks: Tensor) -> Tensor:
        """Return the first integers as real numbers if the model takes only these, and anything else as it is."""
        known = self._checks.expected_shape is not None
        if known or xs.is_floating_point() or xs.dtype == torch.uint8 or not len(xs):
            return xs
        try:
            self._forward(xs[:1], tasks[:1])
        except InputError as error:
            real_numbers = xs.to(self.weights.dtype)
            try:
                self._forward(real_numbers[:1], tasks[:1])
            except InputError:
                raise error from error.__cause__
            return real_numbers
        return xs

    def single_output(self, x: Array) -> Tensor | None:
        """Compute the outputs for a single input in a faster way than for a batch; None if there is none.

        Args:
            x: A batch of inputs, of any size.
        """
        del x
        return None

    @final
    def _check(self, xs: Array, ys: Array | Sequence[int], task: Tasks, needs_tasks: bool) -> Columns:
        """Return examples ready to learn from, or raise InputError before anything has changed."""
        xs = self._checks.inputs(xs)
        tasks = self._checks.tasks(task, len(xs), needed=needs_tasks or isinstance(self.model, TaskModule))
        xs = self._as_taken(xs, tasks)
        outputs = self._outputs or self._forward(xs[:1], tasks[:1]).shape[1:]
        if not self.regression and len(outputs) != 1:
            raise InputError(
                f"one input of shape {tuple(xs.shape[1:])} gives outputs of shape {tuple(outputs)}, not one score per "
                f"class; give observe one example, observe_many a batch, in the model's input shape"
            )
        ys = self._checks.targets(ys, tasks, outputs)
        self._checks.expect(xs)
        self._outputs = outputs
        return Columns({"x": xs, "y": ys, "task": tasks})

    @final
    def output_shape(self) -> torch.Size | None:
        """Return the shape of one output of the model; None before the first example since the learner was made."""
        return self._outputs

    @final
    def _check_rows(self, xs: Tensor, ys: Tensor, tasks: Tensor) -> None:
        """Raise InputError for rows of a table that `_check` would not return; task -1 means that none was given."""
        if self._checks.inputs(xs).dtype != xs.dtype:
            raise InputError(f"inputs are {xs.dtype}")
        if tasks.dtype != torch.int64 or tasks.shape != (len(xs),) or (len(xs) and int(tasks.min()) < -1):
            raise InputError("task ids are not whole numbers from -1 on")
        named = tasks[tasks >= 0]
        self._checks.tasks(named, len(named), needed=False)
        outputs = self._forward(xs[:1], tasks[:1]).shape[1:]
        kept = self._checks.targets(ys, tasks, outputs)
        if kept.dtype != ys.dtype or kept.shape != ys.shape:
            raise InputError(f"targets are {ys.dtype} of shape {tuple(ys.shape)}")

    @final
    def expect(self, xs: Tensor) -> None:
        """Accept only inputs of this shape and dtype from now on; a restored learner knows them from its table."""
        self._checks.expect(xs)

    @final
    def _forward(self, xs: Tensor, tasks: Tensor) -> Tensor:
        """Compute outputs in evaluation mode; raise a one-line InputError if the model cannot take the inputs."""
        try:
            outputs = self.chosen_engine.outputs(xs, tasks)
        except MetareplayError:
            raise
        except Exception as error:
            raise InputError(
                f"the model cannot take inputs of shape {tuple(xs.shape)} ({xs.dtype}): {one_line(error)}"
            ) from error
        if not isinstance(outputs, Tensor):
            raise InputError(f"the model gives a {type(outputs).__name__}: wrap it so that it gives one tensor")
        return outputs


def option_types(kind: Any) -> Mapping[str, Any]:
    """Return the type of each option of a class, also where annotations are written as text.

    Args:
        kind: A dataclass.
    """
    return _option_types(kind)


@cache
def _option_types(kind: type[Any]) -> Mapping[str, Any]:
    """Return what `option_types` returns: asking takes as long as the rest of finding a run's key."""
    try:
        known = get_type_hints(kind)
    except NameError:  # a name that only type checkers import
        known = {}
    return MappingProxyType({option.name: known.get(option.name, option.type) for option in fields(kind)})


def checked(name: str, kind: Any, value: Any) -> Any:
    """Return an option's value in the type that it should have, or raise InputError.

    Args:
        name: The option.
        kind: The type that it should have.
        value: What was given for it.
    """
    if kind is int:
        return whole(name, value)
    if kind is bool:
        return flag(name, value)
    if kind is float or (kind == MAYBE and value is not None):
        return real(name, value)
    if get_origin(kind) is Literal and name != "engine":
        return choice(name, value, get_args(kind))
    return value


def default_loss(regression: bool) -> Loss:
    """Return cross-entropy for classes, squared error for real targets."""
    return functional.mse_loss if regression else functional.cross_entropy


def loss_name(loss: Callable[..., object]) -> str:
    """Return a name from which `named_loss` finds the loss again, if it is one of torch's functions."""
    name = getattr(loss, "__name__", type(loss).__name__)
    return name if getattr(functional, name, None) is loss else f"own:{name}"


def named_loss(name: str) -> Loss | None:
    """Return torch's loss function of that name; None for a user's own."""
    found = getattr(functional, name, None)
    return found if callable(found) and loss_name(found) == name else None
