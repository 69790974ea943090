"""Storage for stacks of pictures, in which every picture is kept once however many stacks it is part of.

The observations of a game are stacks of its last few pictures, and what follows an observation shares all but one with
it. A transition has eight pictures with stacks of four, but brings only one that is new.
"""

import hashlib
from typing import Any, ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metareplay._core.checks import shortened
from metareplay._core.table import Column, Storage, TensorColumn
from metareplay.errors import CheckpointError

STACKS = ("x", "next_x")  # the columns that hold stacks


@final
class Pictures:
    """Hold pictures by number, each once, and count how many stacks need them.

    Args:
        most: How many different pictures there may be at most.
        like: A stack of pictures, whose size they have.
        device: Where they live.
    """

    def __init__(self, most: int, like: Tensor, device: torch.device) -> None:
        self.values = torch.empty((most, *like.shape[1:]), dtype=like.dtype, device=device)  # used from 0 upwards
        self._needed = np.zeros(most, np.int64)
        self._free: list[int] = []
        self._used = 0
        self._numbers: dict[bytes, int] = {}
        self._digests: dict[int, bytes] = {}

    def __len__(self) -> int:
        """Count the pictures."""
        return len(self._numbers)

    def take(self, picture: Tensor) -> int:
        """Return the number of a picture, which is stored if it is new, and count that one more stack needs it.

        Args:
            picture: The picture, on the CPU.
        """
        digest = hashlib.blake2b(picture.numpy().tobytes(), digest_size=16).digest()
        number = self._numbers.get(digest)
        if number is None:
            number = self._free.pop() if self._free else self._used
            self.values[number].copy_(picture)
            self._used = max(self._used, number + 1)
            self._numbers[digest], self._digests[number] = number, digest
        self._needed[number] += 1
        return number

    def hold(self, numbers: NDArray[np.int64]) -> None:
        """Count that one more stack needs these pictures.

        Args:
            numbers: Their numbers.
        """
        np.add.at(self._needed, numbers, 1)

    def release(self, numbers: NDArray[np.int64]) -> None:
        """Count that one stack fewer needs these pictures; a picture that no stack needs makes room for another.

        Args:
            numbers: Their numbers; -1 for none.
        """
        for number in numbers[numbers >= 0].tolist():
            self._needed[number] -= 1
            if not self._needed[number]:
                del self._numbers[self._digests.pop(number)]
                self._free.append(number)


@final
class StackColumn(Column):
    """Hold a column of stacks as numbers of pictures.

    Args:
        rows: How many rows it has.
        like: Some values of the column, whose row shape it takes over.
        pictures: Where the pictures are.
    """

    in_memory: ClassVar[bool] = True

    def __init__(self, rows: int, like: Tensor, pictures: Pictures) -> None:
        self.pictures = pictures
        self._here = np.full((rows, like.shape[1]), -1)  # the numbers on the CPU; -1 before a row is written
        self.numbers = torch.zeros(self._here.shape, dtype=torch.int64, device=pictures.values.device)

    def gather(self, rows: Tensor) -> Tensor:
        """Return a copy of these rows' values."""
        return self.pictures.values[self.numbers[rows.to(self.numbers.device)]]

    def write(self, rows: Tensor, values: Tensor) -> None:
        """Replace the values of these rows."""
        new = [[self.pictures.take(picture) for picture in stack] for stack in values.cpu()]
        self._replace(rows, np.array(new, np.int64).reshape(len(rows), -1))

    def copy(self, to: Tensor, source: Tensor) -> None:
        """Copy the values of some rows to others: only numbers move."""
        new = self._here[source.numpy()]
        self.pictures.hold(new)
        self._replace(to, new)

    def numbers_of(self, rows: Tensor) -> NDArray[np.int64]:
        """Return the numbers of the pictures of these rows.

        Args:
            rows: Row numbers.
        """
        found: NDArray[np.int64] = self._here[rows.numpy()]
        return found

    def _replace(self, rows: Tensor, new: NDArray[np.int64]) -> None:
        """Let rows have new pictures, which have been counted already."""
        at = rows.numpy()
        self.pictures.release(self._here[at].ravel())
        self._here[at] = new
        try:
            self.numbers[rows.to(self.numbers.device)] = torch.from_numpy(new).to(self.numbers.device)
        except torch.cuda.OutOfMemoryError:  # row by row, which takes no memory on the device
            for row, numbers in zip(at.tolist(), torch.from_numpy(new), strict=True):
                self.numbers[row].copy_(numbers)


@final
class StackStorage(Storage):
    """Keep stacks of pictures as numbers of pictures, and all other columns as tensors.

    Args:
        device: The model's device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pictures: Pictures | None = None

    def column(self, name: str, rows: int, like: Tensor) -> Column:
        """Make an empty column."""
        if name not in STACKS or not is_stack(like):
            return TensorColumn(rows, like, torch.device("cpu") if name == "task" else self._device)
        if self._pictures is None:
            most = (
                (rows + 1) * 2 * like.shape[1]
            )  # if no two stacks shared a picture, and one more row is being written
            self._pictures = Pictures(most, like[0], self._device)
        return StackColumn(rows, like, self._pictures)


def is_stack(values: Tensor) -> bool:
    """Return whether these may be stacks of several pictures in bytes.

    Args:
        values: Some values of a column.
    """
    return values.dtype == torch.uint8 and values.dim() == 4 and values.shape[1] > 1


def slides(values: Tensor, following: Tensor) -> bool:
    """Return whether each observation is a stack of pictures, and the next one drops its oldest and adds a new one.

    Args:
        values: Some observations.
        following: The observations after them.
    """
    return is_stack(values) and torch.equal(values[:, 1:], following[:, :-1])


def packed(columns: dict[str, Column], rows: Tensor) -> dict[str, Tensor]:
    """Return the values of some rows of all columns for a file, with every picture once.

    Args:
        columns: The columns by name.
        rows: Row numbers.
    """
    stacks = {name: column for name, column in columns.items() if isinstance(column, StackColumn)}
    found = {name: column.gather(rows) for name, column in columns.items() if name not in stacks}
    if stacks:
        numbers = np.concatenate([column.numbers_of(rows) for column in stacks.values()])
        used, places = np.unique(numbers, return_inverse=True)
        pictures = next(iter(stacks.values())).pictures.values
        found["pictures"] = pictures[torch.from_numpy(used).to(pictures.device)]
        parts = np.split(places.reshape(numbers.shape), len(stacks))
        found |= {f"{name}.pictures": torch.from_numpy(part) for name, part in zip(stacks, parts, strict=True)}
    return found


@final
class Unpacked:
    """Read what `packed` returned, some rows at a time; raise CheckpointError if it cannot be read.

    Args:
        tensors: What `packed` returned.
    """

    def __init__(self, tensors: dict[str, Any]) -> None:
        self._pictures = tensors.get("pictures")
        self._tensors = {name.removesuffix(".pictures"): v for name, v in tensors.items() if name != "pictures"}
        self._stacked = {name.removesuffix(".pictures") for name in tensors if name.endswith(".pictures")}
        for name, values in tensors.items():
            if not values.dim():
                raise CheckpointError(f"the column {shortened(name)} has no rows")
        for name in self._stacked:
            numbers, count = self._tensors[name], 0 if self._pictures is None else len(self._pictures)
            if numbers.dtype != torch.int64 or ((numbers < 0) | (numbers >= count)).any():
                raise CheckpointError(f"the column {shortened(name)} names pictures that are not there")

    def columns(self) -> list[Tensor]:
        """Return all columns; those of stacks as numbers of pictures."""
        return list(self._tensors.values())

    def __len__(self) -> int:
        """Count the rows."""
        return len(next(iter(self._tensors.values()))) if self._tensors else 0

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self._tensors)

    def values(self, name: str, start: int, end: int) -> Tensor:
        """Return some rows of one column.

        Args:
            name: The column.
            start: The first row.
            end: The row after the last one.
        """
        part: Tensor = self._tensors[name][start:end]
        if name not in self._stacked:
            return part
        assert self._pictures is not None, "written with the numbers"
        found: Tensor = self._pictures[part]
        return found
