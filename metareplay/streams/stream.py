"""The interface of streams: training examples in order, and a test set for each task."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from metareplay.errors import InputError

CHUNK = 256  # examples handed over at a time; the size makes no difference to the weights


@dataclass(frozen=True, repr=False)
class Examples:
    """Hold inputs and their targets.

    Args:
        xs: The inputs, one row per example.
        ys: The targets, one row per example.
    """

    xs: Tensor
    ys: Tensor

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.xs)

    def __repr__(self) -> str:
        """Show types and shapes instead of all the numbers."""
        return f"Examples(xs={tensor_form(self.xs)}, ys={tensor_form(self.ys)})"


@dataclass(frozen=True, repr=False)
class Chunk:
    """Hold consecutive examples of a stream that belong to the same task.

    Args:
        xs: The inputs, one row per example.
        ys: The targets, one row per example.
        task: The number of the task, counted from 0.
    """

    xs: Tensor
    ys: Tensor
    task: int

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.xs)

    def __repr__(self) -> str:
        """Show types and shapes instead of all the numbers."""
        return f"Chunk(xs={tensor_form(self.xs)}, ys={tensor_form(self.ys)}, task={self.task})"


class Stream(ABC):
    """Provide tasks that arrive one after another, as `run` feeds them to a learner: the interface of all streams."""

    @property
    @abstractmethod
    def tasks(self) -> int:
        """The number of tasks that have a test set."""

    @property
    @abstractmethod
    def total(self) -> int | None:
        """The number of training examples in all tasks together, or None if it is not known in advance."""

    @abstractmethod
    def chunks(self, start: int = 0) -> Iterator[Chunk]:
        """Yield the training examples in order.

        Args:
            start: The number of examples to skip; a run that is resumed has already learned them.
        """

    def train(self, task: int) -> Examples:
        """Return the training examples of one task, in the order in which they come.

        By default the whole stream is read for them; override this if they can be had for less.

        Args:
            task: The number of the task, counted from 0.
        """
        found = [chunk for chunk in self.chunks() if chunk.task == task]
        if not found:
            raise InputError(f"task {task} has no training examples in this stream")
        return Examples(torch.cat([chunk.xs for chunk in found]), torch.cat([chunk.ys for chunk in found]))

    def sizes(self) -> list[int]:
        """Return the number of training examples of each task.

        By default the whole stream is read for them; override this if they are known.
        """
        found = [0] * self.tasks
        for chunk in self.chunks():
            found[chunk.task] += len(chunk)
        return found

    @property
    def has_validation(self) -> bool:
        """Whether each task has a validation set: examples that are neither for training nor for testing."""
        return False

    def validation(self, task: int) -> Examples:
        """Return the validation set of one task; override this and `has_validation` if your stream has them.

        Args:
            task: The number of the task, counted from 0.
        """
        raise InputError(f"task {task} has no validation set: wrap the stream in streams.HeldOut, which makes them")

    @abstractmethod
    def test(self, task: int) -> Examples:
        """Return the test set of one task.

        Args:
            task: The number of the task, counted from 0.
        """

    @property
    def content(self) -> str | None:
        """A hash of what `settings` leaves out, so that a run is not resumed with other data; None if there is none."""
        return None

    @abstractmethod
    def settings(self) -> dict[str, object]:
        """Return everything that defines the stream as plain JSON values; the record of a run keeps it."""


def tensor_form(tensor: Tensor) -> str:
    """Return the type and shape of a tensor as a short text.

    Args:
        tensor: Any tensor.
    """
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
