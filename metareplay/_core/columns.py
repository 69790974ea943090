"""Examples as named columns of equal length: x, y, task, and whatever else a learner needs."""

from collections.abc import Iterator, Mapping
from typing import final

import torch
from torch import Tensor

from metareplay._core.draws import Ints
from metareplay.errors import InputError


@final
class Columns:
    """Hold some examples, one row each, as named columns.

    Every example has an input `x`, a target `y` and a `task` (-1 if none was given). A learner may add columns of
    its own: an action and a reward, a weight, stored logits.

    Args:
        columns: The values of each column by name; the first dimension counts the examples.

    >>> examples = Columns({"x": torch.zeros(3, 2), "y": torch.tensor([0, 1, 0]), "task": torch.tensor([0, 0, 1])})
    >>> len(examples), [len(part) for part in examples.by_task()]
    (3, [2, 1])
    """

    def __init__(self, columns: Mapping[str, Tensor]) -> None:
        self._columns = dict(columns)
        if len({len(values) for values in self._columns.values()}) != 1:
            lengths = ", ".join(f"{name} {len(values)}" for name, values in self._columns.items()) or "no columns"
            raise InputError(
                f"columns must have the same length, and there must be at least one; these have: {lengths}"
            )

    def __getitem__(self, name: str) -> Tensor:
        """Return one column."""
        return self._columns[name]

    def __len__(self) -> int:
        """Count the examples."""
        return len(next(iter(self._columns.values())))

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """Iterate over the columns with their names."""
        return iter(self._columns.items())

    def part(self, start: int, end: int) -> "Columns":
        """Return the examples from `start` up to, but not including, `end`.

        Args:
            start: The first example.
            end: The example after the last one.
        """
        return Columns({name: values[start:end] for name, values in self._columns.items()})

    def pieces(self, size: int) -> "list[Columns]":
        """Cut the examples into pieces of at most `size`.

        Args:
            size: The largest number of examples in a piece.
        """
        return [self.part(start, start + size) for start in range(0, len(self), size)]

    def by_task(self) -> "list[Columns]":
        """Cut the examples where the task changes."""
        cuts = (torch.diff(self["task"]) != 0).nonzero().flatten().add(1).tolist()
        return [self.part(start, end) for start, end in zip([0, *cuts], [*cuts, len(self)], strict=True)]

    def task_ids(self) -> Ints:
        """Return the tasks as NumPy integers."""
        return self["task"].numpy()
