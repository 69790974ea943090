"""The beginning of a stream: only its first tasks, exactly as they are in the whole stream."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from metareplay._core.checks import instance
from metareplay.streams.images import check_whole
from metareplay.streams.stream import Chunk, Examples, Stream


@final
@dataclass(frozen=True, eq=False)
class FirstTasks(Stream):
    """Show only the first tasks of a stream, with the examples and test sets that they have in the whole stream.

    This is not the same as a stream with fewer tasks: Rotations with 4 tasks rotates them by up to 180 degrees, while
    the first 4 of 20 tasks are rotated by up to 36.

    Args:
        stream: The whole stream.
        first: How many of its tasks to show.

    >>> import metareplay as mr
    >>> stream = FirstTasks(mr.Rotations(tasks=20, examples=1000), 4)
    >>> stream.tasks, stream.total
    (4, 4000)
    """

    stream: Stream
    first: int

    def __post_init__(self) -> None:
        """Refuse a number of tasks that the stream does not have."""
        instance("stream", self.stream, Stream, "a stream, such as Rotations()")
        check_whole("first_tasks", self.first, 1, self.stream.tasks)

    @property
    def tasks(self) -> int:
        """The number of tasks that are shown."""
        return self.first

    @property
    def content(self) -> str | None:
        """A hash of what a checkpoint cannot tell otherwise, as the stream has it."""
        return self.stream.content

    @property
    def total(self) -> int | None:
        """The number of training examples in these tasks together, or None if it is not known in advance."""
        return None if self.stream.total is None else sum(self.sizes())

    @property
    def has_validation(self) -> bool:
        """Whether the whole stream has validation sets."""
        return self.stream.has_validation

    def sizes(self) -> list[int]:
        """Return how many training examples each of these tasks has."""
        return self.stream.sizes()[: self.first]

    def chunks(self, start: int = 0) -> Iterator[Chunk]:
        """Yield the training examples of these tasks in order.

        Args:
            start: The number of examples to skip.
        """
        for chunk in self.stream.chunks(start):
            if chunk.task >= self.first:
                return
            yield chunk

    def train(self, task: int) -> Examples:
        """Return the training examples of one task, in order.

        Args:
            task: The number of the task, counted from 0.
        """
        return self.stream.train(self._checked(task))

    def validation(self, task: int) -> Examples:
        """Return the validation set of one task.

        Args:
            task: The number of the task, counted from 0.
        """
        return self.stream.validation(self._checked(task))

    def test(self, task: int) -> Examples:
        """Return the test set of one task.

        Args:
            task: The number of the task, counted from 0.
        """
        return self.stream.test(self._checked(task))

    def settings(self) -> dict[str, object]:
        """Return the settings of the whole stream and the number of tasks that are shown."""
        return self.stream.settings() | {"first_tasks": int(self.first)}

    def _checked(self, task: int) -> int:
        check_whole("task", task, 0, self.first - 1)
        return task
