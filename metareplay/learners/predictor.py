"""A model with its loss and its engine, the base of everything that trains: it checks its inputs and predicts."""

import threading
from collections.abc import Hashable
from copy import deepcopy
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, Self, final

import torch
from torch import Tensor, nn

from metareplay._core.checks import check_rate, function, instance
from metareplay._core.columns import Columns
from metareplay._core.draws import Draws
from metareplay._core.interrupts import HeldBack
from metareplay._core.weights import Weights
from metareplay.engines.choose import EngineName, check_engine, choose_engine
from metareplay.engines.objective import Loss, Objective, Supervised
from metareplay.engines.torch_engine import Notice
from metareplay.errors import InputError, MetareplayError
from metareplay.learners.changes import CHANGEABLE, check_change, options_of
from metareplay.learners.input_checks import InputChecks, Tasks, one_line
from metareplay.learners.labels import Labels
from metareplay.learners.losses import default_loss
from metareplay.learners.option_types import checked, option_types
from metareplay.learners.predictions import class_dimension, decide, of_each_class, probabilities
from metareplay.networks import TaskModule


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
        self._labels: Labels | None = None  # which label each output stands for; None if labels are their numbers
        self._notice = Notice()
        self._layers_lock = threading.RLock()  # a prediction in another thread waits while layers are changed
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
        before = dict(vars(self))
        with HeldBack():
            object.__setattr__(self, name, value)
            try:
                self.follow_change(name)
            except BaseException:
                vars(self).update(before)  # the option, and everything that was made from it
                if name == "clip" and not is_dataclass(self.objective):
                    self.objective.clip = self.clip
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
        if self.weights.device.type == "cuda" and (name == "clip" or self._optimizer is not None):  # graphs hold it
            self._renew_engine()
        elif name == "lr" and self._optimizer is not None:
            for group in self._optimizer.param_groups:
                group["lr"] = self.lr

    def __getstate__(self) -> dict[str, Any]:
        """Return everything but the engine, which a copy makes anew, with the moments that the engine has."""
        made_anew = ("chosen_engine", "_optimizer", "_layers_lock")
        kept = {name: value for name, value in self.__dict__.items() if name not in made_anew}
        return kept | {"moments": self.chosen_engine.state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Go on where the copied learner was."""
        moments = state.pop("moments")
        self.__dict__.update(state)
        self._layers_lock = threading.RLock()
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
        self.chosen_engine = choose_engine(
            self.engine, self.weights, self.objective, self.draws, self._optimizer, self._notice
        )
        self._checks, self._outputs = self._make_checks(), None

    def _make_checks(self) -> InputChecks:
        own_loss = self.loss is not None
        return InputChecks(self.model, self.regression, self.weights.dtype, type(self).__name__, own_loss=own_loss)

    @final
    @property
    def runs_on(self) -> str:
        """Which engine does the arithmetic, and why not a faster one where one might be expected."""
        engine = self.chosen_engine
        return engine.name if engine.reason is None else f"{engine.name.split()[0]}: {engine.reason}"

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
    def predict(self, xs: Any, task: Tasks = None) -> Any:
        """Predict labels for a batch of inputs; for regression, outputs.

        Args:
            xs: A batch of inputs, or a single input like those learned so far, for a single label.
            task: The task id, or one for each input, for models with several heads.

        Returns:
            A tensor; a NumPy array of labels if the learner's option `classes` is set.
        """
        outputs, single = self._outputs_of(xs, task)
        found = outputs if self.regression else self._decided(outputs)
        return found[0] if single else found

    @final
    def predict_proba(self, xs: Any, task: Tasks = None) -> Tensor:
        """Predict the probability of each class for a batch of inputs; for a single output, of the classes 0 and 1.

        Args:
            xs: A batch of inputs.
            task: The task id, or one for each input, for models with several heads.

        Returns:
            Probabilities in the shape of the outputs; if the option `classes` is set, one for each of `labels`.
        """
        if self.regression:
            raise InputError("probabilities are undefined for regression: use predict")
        outputs, single = self._outputs_of(xs, task)
        found = self._probabilities(outputs)
        return found[0] if single else found

    @property
    @final
    def labels(self) -> tuple[Hashable, ...] | None:
        """The labels that the outputs stand for, in order, as far as they are known; None if these are 0, 1, 2, ..."""
        return None if self._labels is None else self._labels.known

    @final
    def _decided(self, outputs: Tensor) -> Any:
        """Return the label of each example by its outputs."""
        if self._labels is None:
            return decide(outputs, self._class_dimension(outputs))
        return self._labels.named(self._of_known(outputs).argmax(dim=-1))

    @final
    def _probabilities(self, outputs: Tensor) -> Tensor:
        """Return the probability of each class by the outputs."""
        if self._labels is None:
            return probabilities(outputs, self._class_dimension(outputs))
        return self._of_known(outputs).softmax(dim=-1)

    @final
    def _class_dimension(self, outputs: Tensor) -> int:
        return class_dimension(outputs, None if self._checks.target is None else self._checks.target[0], self.loss)

    @final
    def _of_known(self, outputs: Tensor) -> Tensor:
        """Return the outputs that stand for a known label."""
        if not self._labels:
            raise InputError("no label is known yet: let the learner observe an example first")
        return (outputs if self._labels.grows else of_each_class(outputs))[:, : len(self._labels)]

    @final
    def accuracy(self, xs: Any, ys: Any, task: Tasks = None) -> float:
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
        if self._labels is not None:
            if not self._labels:
                return 0.0
            wanted = self._labels.look_up(ys)
            if len(wanted) != len(outputs):
                raise InputError(f"ys has {len(wanted)} labels for {len(outputs)} examples: give one for each")
            right = self._of_known(outputs).argmax(dim=-1).cpu() == wanted
            return 100 * right.double().mean().item()
        tasks = self._checks.tasks(task, len(outputs), needed=False)
        right = decide(outputs).cpu() == self._checks.targets(ys, tasks, outputs.shape[1:]).cpu()
        return 100 * right.double().mean().item()

    @final
    def outputs(self, xs: Any, task: Tasks = None) -> Tensor:
        """Compute the model's outputs for a batch of inputs, in evaluation mode.

        Args:
            xs: A batch of inputs, or a single input like those learned so far, whose outputs then have no batch
                dimension.
            task: The task id, or one for each input, for models with several heads.
        """
        outputs, single = self._outputs_of(xs, task)
        return outputs[0] if single else outputs

    @final
    def _outputs_of(self, xs: Any, task: Tasks) -> tuple[Tensor, bool]:
        """Return the outputs for a batch of inputs, and whether the batch was made from a single input."""
        with self._layers_lock:
            if task is None and (found := self.single_output(xs)) is not None:
                return found
            self.weights.check()
            known = self._checks.expected_shape
            given, single = self._checks.batch_or_single(xs)
            if known is None and not single:
                single = given.dim() == 1 and given.dtype != torch.int64 and self._takes(given[None], task)
                given = given[None] if single else given
            inputs = self._checks.inputs(given)
            tasks = self._checks.tasks(task, len(inputs), needed=isinstance(self.model, TaskModule))
            outputs = self._forward(self._as_taken(inputs, tasks), tasks)
            if known is None and outputs.shape[:1] != (len(inputs),):
                raise InputError("x has no batch dimension: before the first example is learned, give a batch, x[None]")
            return outputs, single

    @final
    def _takes(self, xs: Tensor, task: Tasks) -> bool:
        """Return whether the model takes inputs of this shape."""
        try:
            self._forward(xs, self._checks.tasks(task, len(xs), needed=isinstance(self.model, TaskModule)))
        except InputError:
            return False
        return True

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

    def single_output(self, x: Any) -> tuple[Tensor, bool] | None:
        """Compute the outputs for a single input in a faster way than for a batch; None if there is none.

        Args:
            x: A single input, or a batch of inputs, of any size.

        Returns:
            The outputs as a batch of one, and whether the input came without a batch dimension.
        """
        del x
        return None

    @final
    def _check(self, xs: Any, ys: Any, task: Tasks, needs_tasks: bool) -> Columns:
        """Return examples ready to learn from, or raise InputError before anything has changed."""
        xs = self._checks.inputs(xs)
        tasks = self._checks.tasks(task, len(xs), needed=needs_tasks or isinstance(self.model, TaskModule))
        xs = self._as_taken(xs, tasks)
        first = self._forward(xs[:1], tasks[:1]) if self._outputs is None else None
        outputs = self._outputs if first is None else first.shape[1:]
        assert outputs is not None
        if not self.regression and len(outputs) != 1 and (self.loss is None or self._labels is not None):
            raise InputError(
                f"one input of shape {tuple(xs.shape[1:])} gives outputs of shape {tuple(outputs)}, not one score per "
                f"class; give observe one example, observe_many a batch, in the model's input shape"
            )
        named = self._labels is not None
        ys = self._numbered(ys, len(xs), outputs) if named else self._checks.targets(ys, tasks, outputs)
        if first is not None and not self._checks.are_usual(ys, outputs):
            self._try_loss(first, ys[:1])
        self._checks.expect(xs)
        self._checks.expect_targets(ys)
        self._outputs = outputs
        return Columns({"x": xs, "y": ys, "task": tasks})

    @final
    def _numbered(self, ys: Any, count: int, outputs: torch.Size) -> Tensor:
        """Return the number of each label, or raise InputError."""
        assert self._labels is not None
        room = max(2, outputs[0])  # a single output tells two classes apart
        if not self._labels.grows and len(self._labels) > room:
            raise InputError(f"classes has {len(self._labels)} labels, but the model has {outputs[0]} outputs")
        numbers = self._labels.numbers(ys)
        if len(numbers) != count:
            raise InputError(f"y has {len(numbers)} labels: give one label for each of the {count} examples")
        return numbers

    @final
    def _try_loss(self, outputs: Tensor, ys: Tensor) -> None:
        """Raise InputError if the user's own loss cannot take such outputs and targets."""
        forms = f"outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(ys.shape)} ({ys.dtype})"
        try:
            with torch.no_grad():
                found = self.loss(outputs, ys.to(outputs.device)) if self.loss is not None else None
        except Exception as error:
            raise InputError(f"the loss cannot take {forms}: {one_line(error)}") from error
        if not isinstance(found, Tensor) or found.numel() != 1:
            raise InputError(f"the loss does not give a single number for {forms}: return the mean over the batch")

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
        except (MetareplayError, torch.cuda.OutOfMemoryError):  # a GPU that is full says nothing about the inputs
            raise
        except Exception as error:
            raise InputError(
                f"the model cannot take inputs of shape {tuple(xs.shape)} ({xs.dtype}): {one_line(error)}"
            ) from error
        if not isinstance(outputs, Tensor):
            raise InputError(f"the model gives a {type(outputs).__name__}: wrap it so that it gives one tensor")
        return outputs
