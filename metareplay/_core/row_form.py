"""The form of rows on disk: named fields of any dtype and shape in one record, with a number and a checksum."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Self, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metareplay._core.draws import Ints
from metareplay.errors import InputError

Records = NDArray[np.uint8]  # one record per row
WORD: Final = 8  # bytes; records are whole words, so that checksums can be computed word by word
HEAD: Final = 2 * WORD  # the checksum, then the number of the row in its stream
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)


@final
@dataclass(frozen=True)
class Field:
    """Describe one field of a row.

    Args:
        name: Its name.
        dtype: Its dtype, such as "float32".
        shape: The shape of one value.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch has it."""
        found = getattr(torch, self.dtype, None)
        if not isinstance(found, torch.dtype):
            raise ValueError(f"{self.dtype} is not a dtype")
        return found

    @property
    def size(self) -> int:
        """How many bytes one value has."""
        return math.prod(self.shape) * self.torch_dtype.itemsize

    def __str__(self) -> str:
        """Name the field as messages do."""
        return f"{self.name} {self.dtype} {self.shape}"


@final
class RowForm:
    """Convert rows between columns of tensors and records of bytes: checksum, number, and one field after the other.

    The checksum is a sum of the record's words, each multiplied by an odd number of its own, and of the row's place; so
    any single wrong word changes it, and a record in a wrong place is noticed, too.

    Args:
        fields: The fields, in order.

    >>> form = RowForm.of({"x": torch.zeros(2, 3), "y": torch.tensor([1, 2])})
    >>> records = form.records({"x": torch.ones(2, 3), "y": torch.tensor([3, 4])}, numbers=np.array([7, 8]))
    >>> sealed = form.seal(records, places=np.array([0, 1]))
    >>> form.columns(sealed)["y"], form.numbers(sealed), form.intact(sealed, np.array([0, 1]))
    (tensor([3, 4]), array([7, 8]), array([ True,  True]))
    """

    def __init__(self, fields: tuple[Field, ...]) -> None:
        self.fields = fields
        ends = np.cumsum([HEAD, *(field.size for field in fields)])
        self._parts = dict(zip((field.name for field in fields), pairwise(ends.tolist()), strict=True))
        self.size = -(-int(ends[-1]) // WORD) * WORD
        words = np.arange(1, self.size // WORD, dtype=np.uint64) * _GOLDEN
        self._keys = ((words ^ (words >> np.uint64(29))) * _GOLDEN) | np.uint64(1)

    @classmethod
    def of(cls, columns: Mapping[str, Tensor]) -> Self:
        """Return the form of some rows.

        Args:
            columns: The values of each field by name; the first dimension counts the rows.
        """
        return cls(
            tuple(
                Field(name, str(values.dtype).removeprefix("torch."), tuple(values.shape[1:]))
                for name, values in columns.items()
            )
        )

    @classmethod
    def from_plain(cls, plain: Any) -> Self:
        """Return the form that `plain` described; raise ValueError for anything else.

        Args:
            plain: A list of [name, dtype, shape].
        """
        try:
            form = cls(tuple(Field(str(name), str(dtype), tuple(map(int, shape))) for name, dtype, shape in plain))
        except (TypeError, ValueError) as error:
            raise ValueError("the form of the rows is damaged") from error
        if any(side < 0 for field in form.fields for side in field.shape):
            raise ValueError("the form of the rows is damaged")
        return form

    def plain(self) -> list[Any]:
        """Return the form as plain JSON values."""
        return [[field.name, field.dtype, list(field.shape)] for field in self.fields]

    def check(self, columns: Mapping[str, Tensor]) -> None:
        """Raise InputError for rows of another form.

        Args:
            columns: The rows.
        """
        given = RowForm.of(columns).fields
        if sorted(given, key=str) != sorted(self.fields, key=str):
            raise InputError(
                f"these rows have {'; '.join(map(str, given))}, but this reservoir holds rows of "
                f"{'; '.join(map(str, self.fields))}: give rows of that form, or use another folder"
            )

    def like(self) -> dict[str, Tensor]:
        """Return columns of this form without any rows."""
        return {field.name: torch.zeros((0, *field.shape), dtype=field.torch_dtype) for field in self.fields}

    def records(self, columns: Mapping[str, Tensor], numbers: Ints, which: Ints | None = None) -> Records:
        """Return rows as records, whose checksums are still missing.

        Args:
            columns: The rows.
            numbers: The number of each row in its stream.
            which: The rows of the columns to take, one for each number; None for all.
        """
        found = np.empty((len(numbers), self.size), np.uint8)
        found.view(np.int64)[:, -1] = 0  # the last word may have bytes that no field fills
        found.view(np.int64)[:, 1] = numbers
        for name, (start, end) in self._parts.items():
            values = columns[name].detach().cpu().contiguous()
            if end > start and len(values):
                raw = values.reshape(len(values), -1).view(torch.uint8).numpy()
                found[:, start:end] = raw if which is None else raw[which]
        return found

    def columns(self, records: Records) -> dict[str, Tensor]:
        """Return the fields of records as tensors.

        Args:
            records: The records.
        """
        if not len(records):
            return self.like()
        found = {}
        for field in self.fields:
            start, end = self._parts[field.name]
            raw = torch.from_numpy(np.ascontiguousarray(records[:, start:end]))
            found[field.name] = raw.view(field.torch_dtype).reshape(len(records), *field.shape)
        return found

    def numbers(self, records: Records) -> Ints:
        """Return the number of each row in its stream.

        Args:
            records: The records.
        """
        return records.view(np.int64)[:, 1].copy()

    def seal(self, records: Records, places: Ints) -> Records:
        """Write the checksums into records, in place, and return the records.

        Args:
            records: The records.
            places: The row of the file that each of them goes to.
        """
        records.view(np.uint64)[:, 0] = self._sums(records, places)
        return records

    def intact(self, records: Records, places: Ints) -> NDArray[np.bool_]:
        """Return for each record whether its checksum is right.

        Args:
            records: The records.
            places: The row of the file that each of them comes from.
        """
        right: NDArray[np.bool_] = records.view(np.uint64)[:, 0] == self._sums(records, places)
        return right

    def _sums(self, records: Records, places: Ints) -> NDArray[np.uint64]:
        words: NDArray[np.uint64] = np.einsum("ij,j->i", records.view(np.uint64)[:, 1:], self._keys)
        return words + (places.astype(np.uint64) + np.uint64(1)) * _GOLDEN
