"""Checks of what users give: bad input is refused in one line before anything has changed."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from metareplay._core.checks import described
from metareplay.errors import InputError
from metareplay.networks import Structured, TaskModule

BATCH_NORM = (
    "BatchNorm needs several values per channel, and examples are learned one at a time: use LayerNorm or GroupNorm, "
    "or put that layer into evaluation mode, layer.eval()"
)
MOST_SAID = 300  # characters of what a library says
Array = Tensor | NDArray[np.generic]
Tasks = SupportsIndex | Sequence[int] | Array | None


@final
class InputChecks:
    """Check inputs, tasks and targets for one model.

    Args:
        model: The model that will take the inputs.
        regression: Whether targets are real numbers; otherwise they are class labels.
        dtype: The dtype of the model's weights, which real targets are converted to.
        owner: The name of the learner, for messages.
        own_loss: Whether the loss is the user's own, so that targets are whatever it takes.
    """

    def __init__(
        self, model: nn.Module, regression: bool, dtype: torch.dtype, owner: str, own_loss: bool = False
    ) -> None:
        self._model, self._regression, self._dtype, self._owner = model, regression, dtype, owner
        self._own_loss = own_loss
        self._expected: tuple[torch.Size, torch.dtype] | None = None  # shape and dtype of one input, from the first
        self.target: tuple[torch.Size, torch.dtype] | None = None  # likewise of one target, for a user's own loss

    def expect(self, xs: Tensor) -> None:
        """Accept only inputs of the shape and dtype of these from now on."""
        self._expected = (xs.shape[1:], xs.dtype)

    def expect_targets(self, ys: Tensor) -> None:
        """Accept only targets of the shape and dtype of these from now on, if the loss is the user's own."""
        self.target = (ys.shape[1:], ys.dtype) if self._own_loss else None

    def batch(self, xs: Any) -> Tensor:
        """Convert a batch of inputs to one tensor; a structured model packs its own."""
        if isinstance(self._model, Structured):
            return self._model.pack(xs)
        if isinstance(xs, Mapping):
            raise InputError(f"x is {described(xs)}: wrap the model, networks.Structured(model, like=...)")
        return as_tensor("x", xs)

    def single(self, x: Any) -> Tensor:
        """Convert one input to a batch of one."""
        return self._model.pack([x]) if isinstance(self._model, Structured) else self.batch(x)[None]

    def batch_or_single(self, xs: Any) -> tuple[Tensor, bool]:
        """Convert a batch, or one input like the earlier ones, to a batch; return also whether it was one input."""
        try:
            found = self.batch(xs)
        except InputError as error:
            if not isinstance(self._model, Structured):
                raise
            try:
                return self.single(xs), True
            except InputError:
                raise error from None
        return (found[None], True) if found.shape == self.expected_shape else (found, False)

    def inputs(self, given: Any) -> Tensor:
        """Return a batch of inputs as a tensor, or raise InputError."""
        xs = self.batch(given)
        if xs.dtype == torch.bool or xs.is_complex():
            raise InputError(f"x has dtype {xs.dtype}: use reals, uint8 images or integers")
        if xs.dim() < 1:
            raise InputError("x has no batch dimension: give a batch of inputs")
        if self._expected is not None and (xs.shape[1:], xs.dtype) != self._expected:
            xs = self._like_earlier(xs, *self._expected)
        if xs.is_floating_point() and not torch.isfinite(xs).all():
            row = int((~torch.isfinite(xs)).flatten(1).any(1).nonzero()[0]) if xs.dim() > 1 else 0
            raise InputError(f"x of example {row} is not finite (NaN or infinity): clean the input and try again")
        return xs

    @property
    def expected_shape(self) -> torch.Size | None:
        """The shape of one input; None before the first."""
        return None if self._expected is None else self._expected[0]

    @staticmethod
    def _like_earlier(xs: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Return inputs in the dtype of earlier ones, or raise InputError where the values would mean something else.

        Bytes are images, which are scaled; so they are not made real numbers, nor are real numbers made bytes.
        """
        bytes_and_others = torch.uint8 in (dtype, xs.dtype)
        if xs.shape[1:] == shape and not bytes_and_others:
            found = xs.to(dtype)
            if dtype.is_floating_point or (not xs.is_floating_point() and torch.equal(found.to(xs.dtype), xs)):
                return found
        raise InputError(
            f"x has shape {tuple(xs.shape[1:])} and dtype {xs.dtype}; earlier ones had {tuple(shape)} and {dtype}"
            + ("; networks.Structured takes different lengths" if len(xs.shape) == len(shape) + 1 else "")
        )

    def tasks(self, task: Tasks, count: int, needed: bool) -> Tensor:
        """Return one task id per input (-1 if none was given), or raise InputError.

        Args:
            task: One task id, one for each input, or None.
            count: How many inputs there are.
            needed: Whether task ids must be given.
        """
        if task is None:
            if needed:
                raise InputError(f"{self._owner} with this model needs the task id: pass task=...")
            return torch.full((count,), -1, device="cpu")
        tasks = as_tensor("task", task)
        tasks = tasks.expand(count) if tasks.dim() == 0 else tasks
        if tasks.is_floating_point() or tasks.is_complex() or tasks.dtype == torch.bool or tasks.shape != (count,):
            raise InputError(f"task must be an integer, or {count} of them, one for each example")
        tasks = tasks.to("cpu", torch.int64)
        if count and tasks.min() < 0:
            raise InputError(f"task {int(tasks.min())}: task ids start from 0")
        if isinstance(self._model, TaskModule):
            for one in tasks.unique().tolist():
                self._model.classes(one)
        return tasks

    def targets(self, ys: Array | Sequence[int], tasks: Tensor, outputs: torch.Size) -> Tensor:
        """Return one target per input, or raise InputError.

        Args:
            ys: Labels, or real targets.
            tasks: The task of each input.
            outputs: The shape of one output of the model.
        """
        ys = as_tensor("y", ys)
        if self._own_loss and self._regression and not ys.is_complex() and self.are_usual(ys, outputs):
            ys = ys.to(self._dtype)  # counts, for instance
        kept = self._usual(ys, tasks, outputs) if self.are_usual(ys, outputs) else self._whatever(ys, len(tasks))
        form = (kept.shape[1:], kept.dtype)
        if self.target is not None and form != self.target:
            shape, dtype = self.target
            raise InputError(
                f"y has shape {tuple(form[0])} and dtype {form[1]}; earlier ones had {tuple(shape)} and {dtype}"
            )
        return kept

    def are_usual(self, ys: Tensor, outputs: torch.Size) -> bool:
        """Return whether targets are one class label per example, or values in the shape of the outputs.

        Only a loss of the user's own may take other ones.

        Args:
            ys: Targets.
            outputs: The shape of one output of the model.
        """
        if not self._own_loss:
            return True
        if self._regression:
            return ys.dim() > 0 and ys.numel() == len(ys) * math.prod(outputs)
        whole = not (ys.is_floating_point() or ys.is_complex() or ys.dtype == torch.bool)
        return whole and ys.dim() <= 1 and len(outputs) == 1 and outputs[0] > 1

    def _whatever(self, ys: Tensor, count: int) -> Tensor:
        """Return targets for a user's own loss as they are, real numbers in the model's dtype."""
        if ys.shape[:1] != (count,):
            raise InputError(f"y has shape {tuple(ys.shape)}: give one target for each of the {count} examples")
        if ys.is_floating_point() and not torch.isfinite(ys).all():
            raise InputError("y is not finite (NaN or infinity): clean the targets and try again")
        return ys.to(self._dtype) if ys.is_floating_point() else ys

    def _usual(self, ys: Tensor, tasks: Tensor, outputs: torch.Size) -> Tensor:
        """Return labels, or values in the shape of the outputs."""
        count = len(tasks)
        if self._regression:
            if not ys.is_floating_point() or ys.shape[:1] != (count,) or ys.numel() != count * math.prod(outputs):
                raise InputError(
                    f"y has shape {tuple(ys.shape)} and dtype {ys.dtype}; "
                    f"the model's outputs are reals of shape {(count, *outputs)}: give targets of that shape"
                )
            if not torch.isfinite(ys).all():
                raise InputError("y is not finite (NaN or infinity): clean the targets and try again")
            return ys.to(self._dtype).reshape(count, *outputs)
        if ys.is_floating_point() or ys.is_complex() or ys.dtype == torch.bool:
            raise InputError(f"y has dtype {ys.dtype}: class labels are integers (for real targets: regression=True)")
        if ys.shape != (count,):
            raise InputError(f"y has shape {tuple(ys.shape)}: give one label for each of the {count} examples")
        ys = ys.to(torch.int64)
        for task in tasks.unique().tolist():
            classes = self._model.classes(task) if isinstance(self._model, TaskModule) else outputs[0]
            wrong = ys[(tasks == task).to(ys.device) & ((ys < 0) | (ys >= classes))]
            if len(wrong):
                raise InputError(f"label {int(wrong[0])} is out of range: the model's classes are 0 to {classes - 1}")
        return ys


def as_tensor(name: str, value: object) -> Tensor:
    """Convert whatever holds numbers to a tensor without history.

    Args:
        name: What to call the value in a message.
        value: A tensor, an array, a list or a number.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise InputError(f"{name} is a masked array: use filled(...), or leave the masked examples out")
    if isinstance(value, np.ndarray):
        value = np.ascontiguousarray(value) if value.flags.writeable else value.copy()
    try:
        return torch.as_tensor(value).detach()
    except Exception as error:  # torch raises almost anything
        raise InputError(
            f"{name} is {described(value)} that cannot become an array of numbers: {one_line(error)}"
        ) from error


def one_line(error: BaseException) -> str:
    """Return the first line of what an exception says, and for a known one what to do."""
    said = (str(error).strip() or type(error).__name__).splitlines()[0]
    said = said if len(said) <= MOST_SAID else f"{said[: MOST_SAID - 3]}..."
    return f"{said} ({BATCH_NORM})" if "Expected more than 1 value per channel" in said else said
