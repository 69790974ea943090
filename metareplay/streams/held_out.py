"""A stream some of whose training examples are held out, to choose settings by without looking at test examples."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import final

import torch
from torch import Tensor

from metareplay._core.checks import instance, shown
from metareplay.errors import InputError
from metareplay.streams.images import check_whole
from metareplay.streams.stream import CHUNK, Chunk, Examples, Stream


@final
@dataclass(frozen=True, eq=False)
class HeldOut(Stream):
    """Hold out a share of each task's training examples and offer them as the task's validation set.

    The examples that are held out are spread evenly over the task: with a share of 0.1 they are every tenth one. So
    they are as varied as the others even where a task shows one class after another, as Omniglot does.

    Args:
        stream: The stream, which must have test sets and a known length.
        share: The share of each task's examples that is held out, between 0 and 1; at least one example of each task is
            held out and at least one is left.

    >>> import metareplay as mr
    >>> examples = mr.OwnStream.from_tensors(torch.zeros(20, 3), torch.arange(20), test=(torch.zeros(1, 3), [0]))
    >>> stream = HeldOut(examples, 0.2)
    >>> stream.total, stream.validation(0).ys
    (16, tensor([ 4,  9, 14, 19]))
    """

    stream: Stream
    share: float = 0.1

    def __post_init__(self) -> None:
        """Refuse a share that cannot be held out, and streams that can be read only once."""
        instance("stream", self.stream, Stream, "a stream, such as Rotations()")
        check_held_out(self.share)
        if not self.stream.tasks:
            raise InputError("examples are held out task by task, and this stream has no tasks: give it test sets")
        if self.stream.total is None:
            raise InputError(
                "the length of this stream is unknown, so no share can be held out: use from_tensors or from_dataset"
            )

    @property
    def tasks(self) -> int:
        """The number of tasks that have a test set."""
        return self.stream.tasks

    @property
    def content(self) -> str | None:
        """A hash of what a checkpoint cannot tell otherwise, as the stream has it."""
        return self.stream.content

    @property
    def total(self) -> int:
        """The number of examples that are left for training, in all tasks together."""
        return sum(self.sizes())

    @property
    def has_validation(self) -> bool:
        """Whether there are validation sets: always."""
        return True

    def sizes(self) -> list[int]:
        """Return how many examples of each task are left for training."""
        return [size - self._count(size) for size in self._all_sizes]

    def chunks(self, start: int = 0) -> Iterator[Chunk]:
        """Yield the examples that are left for training, in order.

        Args:
            start: The number of examples to skip; tasks that are skipped entirely cost nothing.
        """
        check_whole("start", start, 0, self.total)
        for task, size in enumerate(self.sizes()):
            if start < size:
                left = self.train(task)
                for low in range(start, size, CHUNK):
                    yield Chunk(left.xs[low : low + CHUNK], left.ys[low : low + CHUNK], task)
            start = max(start - size, 0)

    def train(self, task: int) -> Examples:
        """Return the examples of one task that are left for training, in order.

        Args:
            task: The number of the task, counted from 0.
        """
        return self._part(task, held_out=False)

    def validation(self, task: int) -> Examples:
        """Return the examples of one task that are held out.

        Args:
            task: The number of the task, counted from 0.
        """
        return self._part(task, held_out=True)

    def test(self, task: int) -> Examples:
        """Return the test set of one task, which is that of the whole stream.

        Args:
            task: The number of the task, counted from 0.
        """
        return self.stream.test(task)

    def settings(self) -> dict[str, object]:
        """Return the settings of the whole stream and the share that is held out."""
        return self.stream.settings() | {"held_out": float(self.share)}

    @cached_property
    def _all_sizes(self) -> list[int]:
        """The number of training examples of each task of the whole stream."""
        sizes = self.stream.sizes()
        for task, size in enumerate(sizes):
            if size < 2:
                raise InputError(f"task {task} has {size} training examples: holding some out needs at least 2")
        return sizes

    def _count(self, size: int) -> int:
        """Return how many of a task's examples are held out."""
        return min(max(1, round(self.share * size)), size - 1)

    def _part(self, task: int, *, held_out: bool) -> Examples:
        """Return the examples of one task that are held out, or the others."""
        check_whole("task", task, 0, self.tasks - 1)
        every = self.stream.train(task)
        rows = _spread(len(every), self._count(len(every)))
        if not held_out:
            others = torch.ones(len(every), dtype=torch.bool)
            others[rows] = False
            rows = others.nonzero().flatten()
        return Examples(every.xs[rows], every.ys[rows])


def check_held_out(share: float) -> None:
    """Refuse a share that is not between 0 and 1.

    Args:
        share: The share of the training examples that is to be held out.
    """
    if isinstance(share, bool) or not isinstance(share, Real) or not 0 < share < 1:
        raise InputError(f"held_out={shown(share)}: use a share between 0 and 1, such as 0.1")


def _spread(size: int, count: int) -> Tensor:
    """Return `count` of the rows 0 to size - 1 at equal distances; the last row is one of them."""
    return torch.arange(1, count + 1) * size // count - 1
