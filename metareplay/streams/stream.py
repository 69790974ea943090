"""What a stream is: examples in order, and a test set for each task."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

CHUNK = 256  # examples handed over at a time; any size gives the same weights


@dataclass(frozen=True)
class Examples:
    """Inputs and their targets, one row each."""

    xs: Tensor
    ys: Tensor

    def __len__(self) -> int:
        """How many examples there are."""
        return len(self.xs)


@dataclass(frozen=True)
class Chunk:
    """Examples that follow one another in the stream and belong to one task."""

    xs: Tensor
    ys: Tensor
    task: int

    def __len__(self) -> int:
        """How many examples there are."""
        return len(self.xs)


class Stream(ABC):
    """Tasks that arrive one after the other; `run` feeds them to a learner in this order."""

    @property
    @abstractmethod
    def tasks(self) -> int:
        """How many tasks have a test set."""

    @property
    @abstractmethod
    def total(self) -> int | None:
        """How many training examples there are in all; None if nobody knows yet."""

    @abstractmethod
    def chunks(self, start: int = 0) -> Iterator[Chunk]:
        """The training examples in order, from the `start`-th on."""

    @abstractmethod
    def test(self, task: int) -> Examples:
        """The test set of one task."""

    @abstractmethod
    def settings(self) -> dict[str, object]:
        """Everything that defines the stream, for the record: plain JSON values."""
